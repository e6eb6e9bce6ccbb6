//! TLS on the connections of clients, and of other replicas. Each handshake is a task of its own, for a bounded time, so that one
//! that never ends holds up nobody.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use fermata_tls as tls;
use futures_util::{Stream, StreamExt, stream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::client_tls;
use super::connection::Admitted;
use super::wire::{ServerIo, ServerWire};
use crate::access::Origin;
use crate::clock::{Clock as _, SystemClock};
use crate::log_throttle::LogThrottle;
use crate::rpc::AccessCheck;
use crate::rpc::budget::Connection;

/// How long a handshake may take.
const WITHIN: Duration = Duration::from_secs(10);

/// Where a handshake failed: how long the other side gets to learn why, and how much it may say meanwhile. A
/// connection that is closed on unread bytes takes our last words with it.
const FAREWELL: Duration = Duration::from_secs(1);
const FAREWELL_BYTES_MAX: u64 = 64 * 1024;

/// Who is at the other end.
#[derive(Clone)]
pub(super) enum Side {
    /// A client; with who writes the audit log.
    Client(AccessCheck),
    /// Another replica; with how often it is said that one was refused.
    Replica(Arc<LogThrottle>),
}

/// The connections whose other side is trusted; those over Unix sockets as they are. There are never more handshakes than
/// permits. `acceptor` gives what is in force when one begins.
pub(super) fn secured<E>(
    incoming: impl Stream<Item = Result<Admitted<ServerWire>, E>>,
    side: Side,
    acceptor: impl Fn() -> TlsAcceptor,
) -> impl Stream<Item = Result<Admitted<ServerWire>, E>> {
    let begun = (Box::pin(incoming), JoinSet::new());
    let acceptor = Arc::new(acceptor);
    stream::unfold(begun, move |(mut incoming, mut handshakes)| {
        let (acceptor, side) = (Arc::clone(&acceptor), side.clone());
        async move {
            loop {
                tokio::select! {
                    biased;
                    Some(ended) = handshakes.join_next() => if let Ok(Some(secured)) = ended {
                        return Some((Ok(secured), (incoming, handshakes)));
                    },
                    accepted = incoming.next() => match accepted? {
                        Ok(admitted) => match admitted.io {
                            ServerWire { io: ServerIo::Tcp(io), caller } => {
                                let plain = Plain { io, caller, counted: admitted.counted };
                                drop(handshakes.spawn(handshake(acceptor(), side.clone(), plain)));
                            }
                            wire => {
                                let admitted = Admitted { io: wire, counted: admitted.counted };
                                return Some((Ok(admitted), (incoming, handshakes)));
                            }
                        },
                        Err(error) => return Some((Err(error), (incoming, handshakes))),
                    },
                }
            }
        }
    })
}

/// A connection before its handshake.
struct Plain {
    io: TcpStream,
    caller: Origin,
    counted: Connection,
}

async fn handshake(
    acceptor: TlsAcceptor,
    side: Side,
    plain: Plain,
) -> Option<Admitted<ServerWire>> {
    let Plain {
        io,
        caller,
        counted,
    } = plain;
    let (from, at) = (Arc::clone(&caller.from), io.local_addr());
    let at = at.ok().map(tracing::field::display);
    let accepted = tokio::select! {
        biased;
        () = Arc::clone(counted.account()).until_cut() => return None,
        accepted = timeout(WITHIN, acceptor.accept(io).into_fallible()) => accepted,
    };
    let why = match accepted {
        Ok(Ok(io)) => {
            let caller = match &side {
                Side::Client(check) => known(check, &io, caller),
                Side::Replica(_) => caller,
            };
            let io = ServerIo::Tls(Box::new(io));
            return Some(Admitted {
                io: ServerWire { io, caller },
                counted,
            });
        }
        Ok(Err((error, io))) => {
            let why = tls::distrust(&error, "the caller", tls::NAMED_CA);
            tokio::select! {
                biased;
                () = Arc::clone(counted.account()).until_cut() => {}
                () = farewell(io) => {}
            }
            // Whoever only looks whether somebody listens says nothing.
            why.ok_or(error)
        }
        Err(_elapsed) => Ok(format!("its TLS handshake took longer than {WITHIN:?}")),
    };
    match (why, side) {
        (Ok(why), Side::Replica(refused)) => {
            let what = "a connection of a replica was refused";
            if let Some(times) = refused.met(SystemClock.boot(), what) {
                tracing::warn!(%from, at, why, times, "{what}");
            }
        }
        (Ok(why), Side::Client(check)) => check.connection_refused(&from, &why),
        (Err(error), _) => {
            tracing::debug!(%from, at, %error, "a connection ended in its TLS handshake");
        }
    }
    None
}

/// The caller, with who it is by its certificate, where it showed one.
fn known(check: &AccessCheck, io: &TlsStream<TcpStream>, caller: Origin) -> Origin {
    let (_, connection) = io.get_ref();
    let shown = connection.peer_certificates().and_then(<[_]>::first);
    let mut is_unnamed = false;
    let certificate = shown.and_then(|shown| match client_tls::identity(shown) {
        Ok(identity) => Some(identity),
        Err(why) => {
            is_unnamed = true;
            let why = format!("the certificate is trusted, but names no identity: {why}");
            check.certificate_refused(&caller.from, &why);
            None
        }
    });
    Origin {
        certificate,
        is_unnamed,
        ..caller
    }
}

async fn farewell(mut io: TcpStream) {
    let hear_out = async {
        io.shutdown().await?;
        let mut rest = io.take(FAREWELL_BYTES_MAX);
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
    };
    let heard: Result<io::Result<u64>, _> = timeout(FAREWELL, hear_out).await;
    tracing::trace!(?heard, "said why");
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use tokio::net::TcpListener;
    use tokio::time::Instant;

    use crate::rpc::budget::Accounts;

    use super::super::{PeerTls, PeerTlsFiles, connection, listen};
    use super::*;

    fn tls() -> PeerTls {
        let directory = tempfile::TempDir::new().unwrap();
        let [cert_file, key_file] = ["cert", "key"].map(|name| directory.path().join(name));
        let (certificate, key) = crate::rpc::peer::for_tests::certificate();
        std::fs::write(&cert_file, certificate).unwrap();
        std::fs::write(&key_file, key).unwrap();
        PeerTls::read(&PeerTlsFiles {
            ca_file: cert_file.clone(),
            cert_file,
            key_file,
        })
        .unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_handshake_that_never_ends_is_ended_and_its_entry_is_free() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accounts = Accounts::new(connection::unbounded(1));
        let counted = connection::counted(listen::connections(vec![listener.into()]), accounts);
        let secured = {
            let tls = tls();
            secured(counted, Side::Replica(Arc::default()), move || {
                tls.acceptor()
            })
        };
        let serving = tokio::spawn(async move { pin!(secured).next().await.is_some() });
        for _ in 0..2 {
            let begun = Instant::now();
            let mut silent = TcpStream::connect(address).await.unwrap();
            assert_eq!(silent.read(&mut [0]).await.unwrap(), 0);
            // One for which there is no permit is closed at once.
            assert!(begun.elapsed() >= WITHIN, "{:?}", begun.elapsed());
        }
        assert!(!serving.is_finished(), "nobody was admitted");
    }
}
