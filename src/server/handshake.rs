//! TLS on the connections of clients and of other replicas. Each handshake is a task with a time limit, so a hanging handshake
//! delays no other.

use std::io;
use std::sync::Arc;

use fermata_tls as tls;
use futures_util::{Stream, StreamExt, stream};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::client_tls;
use super::connection::{Admitted, GO_AWAY_WITHIN, HELLO_WITHIN};
use super::wire::{ByteStream, Socket, plain};
use crate::access::Origin;
use crate::clock::{Clock as _, SystemClock};
use crate::log_throttle::LogThrottle;
use crate::rpc::AccessCheck;

/// The other side.
#[derive(Clone)]
pub(super) enum Side {
    /// A client, with the audit log.
    Client(AccessCheck),
    /// Another replica, with the throttle of its log line.
    Replica(Arc<LogThrottle>),
}

/// The connections after their handshakes; Unix sockets have none. The limit of connections bounds the handshakes. `acceptor` gives
/// the certificates in force.
pub(super) fn secured<E>(
    incoming: impl Stream<Item = Result<Admitted<Socket>, E>>,
    side: Side,
    acceptor: impl Fn() -> TlsAcceptor,
) -> impl Stream<Item = Result<Admitted<Box<dyn ByteStream>>, E>> {
    let begun = (Box::pin(incoming), JoinSet::new());
    let acceptor = Arc::new(acceptor);
    stream::unfold(begun, move |(mut incoming, mut handshakes)| {
        let (acceptor, side) = (Arc::clone(&acceptor), side.clone());
        async move {
            loop {
                let accepted = tokio::select! {
                    biased;
                    Some(ended) = handshakes.join_next() => match ended {
                        Ok(Some(secured)) => return Some((Ok(secured), (incoming, handshakes))),
                        Ok(None) | Err(_) => continue,
                    },
                    accepted = incoming.next() => accepted?,
                };
                match accepted {
                    Ok(admitted) if matches!(admitted.io, Socket::Tcp(_)) => {
                        drop(handshakes.spawn(handshake(acceptor(), side.clone(), admitted)));
                    }
                    other => return Some((other.map(plain), (incoming, handshakes))),
                }
            }
        }
    })
}

async fn handshake(
    acceptor: TlsAcceptor,
    side: Side,
    admitted: Admitted<Socket>,
) -> Option<Admitted<Box<dyn ByteStream>>> {
    let Admitted {
        io: Socket::Tcp(io),
        origin,
        counted,
    } = admitted
    else {
        return None;
    };
    let caller = origin.unwrap_or_default();
    let (from, at) = (Arc::clone(&caller.from), io.local_addr());
    let at = at.ok().map(tracing::field::display);
    let accepted = tokio::select! {
        biased;
        () = Arc::clone(counted.account()).until_cut() => return None,
        accepted = timeout(HELLO_WITHIN, acceptor.accept(io).into_fallible()) => accepted,
    };
    let why = match accepted {
        Ok(Ok(io)) => {
            let caller = match &side {
                Side::Client(check) => known(check, &io, caller),
                Side::Replica(_) => caller,
            };
            return Some(Admitted {
                io: Box::new(io),
                origin: Some(caller),
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
            // A port scan is no news.
            why.ok_or(error)
        }
        Err(_elapsed) => Ok(format!(
            "its TLS handshake took longer than {HELLO_WITHIN:?}"
        )),
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

/// The caller with the identity of its certificate, if it has one.
fn known(check: &AccessCheck, io: &TlsStream<TcpStream>, caller: Origin) -> Origin {
    let (caller, unnamed) = client_tls::known(io, caller);
    if let Some(why) = unnamed {
        let why = format!("the certificate is trusted, but names no identity: {why}");
        check.certificate_refused(&caller.from, &why);
    }
    caller
}

/// Ends a connection in a way that lets the other side read the reason: closed with unread bytes, it would lose our last ones.
async fn farewell(mut io: TcpStream) {
    let hear_out = async {
        io.shutdown().await?;
        tokio::io::copy(&mut io, &mut tokio::io::sink()).await
    };
    let heard: Result<io::Result<u64>, _> = timeout(GO_AWAY_WITHIN, hear_out).await;
    tracing::trace!(?heard, "told a refused connection the reason");
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use tokio::io::AsyncReadExt as _;
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
            // A connection above the limit would be closed at once.
            assert!(begun.elapsed() >= HELLO_WITHIN, "{:?}", begun.elapsed());
        }
        assert!(!serving.is_finished(), "nobody was admitted");
    }
}
