//! Connections from within this process: the calls of the console take the way of every other call, through the access check, the
//! limits, the audit log and the metrics.

use std::future::Future;
use std::io;

use hyper_util::rt::TokioIo;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use super::listen::ServerListener;
use super::wire::Dialed;
use crate::access::Origin;

/// Connections that are not accepted yet.
const BACKLOG: usize = 16;
/// The bytes on their way on one connection, in each direction.
const BUFFER_BYTES: usize = 64 * 1024;
/// The size limit of an answer.
pub const LOCAL_ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Connects to the server of this process.
#[derive(Clone, Debug)]
pub struct LocalDialer(mpsc::Sender<Dialed>);

/// A listener within this process.
pub fn local() -> (LocalDialer, ServerListener) {
    let (dialer, accepted) = mpsc::channel(BACKLOG);
    (LocalDialer(dialer), ServerListener::Local(accepted))
}

impl LocalDialer {
    /// A connection for calls of this origin, whose share of connections it uses. Waits until the server accepts it; fails once the
    /// server stops.
    pub async fn connect(&self, origin: Origin) -> Result<Channel, tonic::transport::Error> {
        let mut once = Some(self.dial(origin));
        let connector = service_fn(move |_| {
            let dialed = once.take();
            async move {
                match dialed {
                    Some(dialed) => dialed.await,
                    None => Err(io::ErrorKind::NotConnected.into()),
                }
            }
        });
        Endpoint::from_static("http://fermata")
            .connect_with_connector(connector)
            .await
    }

    fn dial(
        &self,
        origin: Origin,
    ) -> impl Future<Output = io::Result<TokioIo<DuplexStream>>> + Send + 'static {
        let server = self.0.clone();
        async move {
            let (ours, theirs) = tokio::io::duplex(BUFFER_BYTES);
            match server.send((theirs, origin)).await {
                Ok(()) => Ok(TokioIo::new(ours)),
                Err(_stopped) => Err(io::ErrorKind::ConnectionRefused.into()),
            }
        }
    }
}
