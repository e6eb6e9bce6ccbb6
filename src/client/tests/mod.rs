//! The client against a server that misbehaves as the test says, in one process and on a paused clock.

mod fake;
mod held_lock;
mod repeats;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::{Endpoint, Server, Uri};

use super::clock::fake::FakeClock;
use super::{Client, ClientOptions};
use crate::proto::lock_service_server::LockServiceServer;
use fake::Fake;

/// A fake server, and a client of it whose clock the test can move.
struct World {
    fake: Fake,
    client: Client,
    clock: Arc<FakeClock>,
}

impl World {
    fn new() -> World {
        World::with(ClientOptions::default())
    }

    fn with(options: ClientOptions) -> World {
        let fake = Fake::default();
        let (connections, incoming) = mpsc::unbounded_channel::<tokio::io::DuplexStream>();
        let incoming = tokio_stream::StreamExt::map(
            UnboundedReceiverStream::new(incoming),
            Ok::<_, std::io::Error>,
        );
        let server = Server::builder()
            .add_service(LockServiceServer::new(fake.clone()))
            .serve_with_incoming(incoming);
        tokio::spawn(server);
        let connect = tower::service_fn(move |_: Uri| {
            let (ours, theirs) = tokio::io::duplex(64 * 1024);
            let sent = connections.send(theirs);
            async move {
                sent.map_err(|_| std::io::Error::other("no server"))?;
                Ok::<_, std::io::Error>(TokioIo::new(ours))
            }
        });
        let channel = Endpoint::from_static("http://fake:1").connect_with_connector_lazy(connect);
        let clock = Arc::new(FakeClock::new());
        let client = Client::from_channel_and_clock(channel, options, Arc::clone(&clock) as _);
        World {
            fake,
            client,
            clock,
        }
    }
}

/// So many seconds.
fn secs(number: u64) -> Duration {
    Duration::from_secs(number)
}
