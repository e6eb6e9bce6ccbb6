//! TLS on the connections of other replicas. Each handshake is a task of its own, for a bounded time, so that one
//! that never ends holds up nobody.

use std::io;
use std::time::Duration;

use fermata_tls as tls;
use futures_util::{Stream, StreamExt, stream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::connection::Admitted;

/// How long a handshake may take.
const WITHIN: Duration = Duration::from_secs(10);

/// Where a handshake failed: how long the other side gets to learn why, and how much it may say meanwhile. A
/// connection that is closed on unread bytes takes our last words with it.
const FAREWELL: Duration = Duration::from_secs(1);
const FAREWELL_BYTES_MAX: u64 = 64 * 1024;

/// The connections whose other side is trusted. There are never more handshakes than permits.
pub(super) fn secured<E>(
    incoming: impl Stream<Item = Result<Admitted<TcpStream>, E>>,
    acceptor: TlsAcceptor,
) -> impl Stream<Item = Result<Admitted<TlsStream<TcpStream>>, E>> {
    let begun = (Box::pin(incoming), JoinSet::new());
    stream::unfold(begun, move |(mut incoming, mut handshakes)| {
        let acceptor = acceptor.clone();
        async move {
            loop {
                tokio::select! {
                    biased;
                    Some(ended) = handshakes.join_next() => if let Ok(Some(secured)) = ended {
                        return Some((Ok(secured), (incoming, handshakes)));
                    },
                    accepted = incoming.next() => match accepted? {
                        Ok(admitted) => drop(handshakes.spawn(handshake(acceptor.clone(), admitted))),
                        Err(error) => return Some((Err(error), (incoming, handshakes))),
                    },
                }
            }
        }
    })
}

async fn handshake(
    acceptor: TlsAcceptor,
    admitted: Admitted<TcpStream>,
) -> Option<Admitted<TlsStream<TcpStream>>> {
    let Admitted { io, permit } = admitted;
    let from = io.peer_addr().ok().map(tracing::field::display);
    let at = io.local_addr().ok().map(tracing::field::display);
    let why = match timeout(WITHIN, acceptor.accept(io).into_fallible()).await {
        Ok(Ok(io)) => return Some(Admitted { io, permit }),
        Ok(Err((error, io))) => {
            let why = tls::distrust(&error, "the caller");
            farewell(io).await;
            // Whoever only looks whether somebody listens says nothing.
            why.ok_or(error)
        }
        Err(_elapsed) => Ok(format!("its TLS handshake took longer than {WITHIN:?}")),
    };
    match why {
        Ok(why) => tracing::warn!(from, at, why, "a connection of a replica was refused"),
        Err(error) => {
            tracing::debug!(from, at, %error, "a connection ended in its TLS handshake")
        }
    }
    None
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
        let counted = connection::counted(listen::connections(vec![listener]), 1);
        let secured = secured(counted, tls().acceptor());
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
