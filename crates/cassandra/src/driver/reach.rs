//! Nodes that hang, or are cut off, while the driver connects. It knows them by keep-alives only: it waits several
//! seconds at each that it asks where the others are, and as long for the first connection to each that there is.
//! So all contact points are greeted first, and those that are silent are left out until they answer.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{sleep, timeout};

/// How long a node may take to answer a greeting.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// The pause before silent nodes are greeted again.
const GREETED_EVERY: Duration = Duration::from_secs(1);
/// A request for the options of a node, of version 4 of the protocol. A node that wants TLS answers with an alert or
/// breaks off, which is an answer as well.
const GREETING: [u8; 9] = [4, 0, 0, 0, 5, 0, 0, 0, 0];

/// The nodes that are left out.
#[derive(Debug, Default)]
pub(super) struct Silent(Mutex<HashSet<SocketAddr>>);

impl Silent {
    fn set(&self) -> MutexGuard<'_, HashSet<SocketAddr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this node is to be left out.
    pub(super) fn leaves_out(&self, address: SocketAddr) -> bool {
        self.set().contains(&address)
    }

    /// Those of these contact points that are to be asked, and all nodes that are to be left out: none, where nobody
    /// answers.
    pub(super) async fn greet(contact_points: &[String]) -> (Vec<String>, Arc<Silent>) {
        let greeted = join_all(contact_points.iter().map(|point| silent_at(point))).await;
        let pairs = || contact_points.iter().zip(&greeted);
        let answering = pairs().filter(|(_, silent)| silent.is_empty());
        let answering: Vec<String> = answering.map(|(point, _)| point.clone()).collect();
        if answering.is_empty() {
            return (contact_points.to_vec(), Arc::default());
        }
        for (point, _) in pairs().filter(|(_, silent)| !silent.is_empty()) {
            tracing::warn!(
                address = point,
                "a node of Cassandra does not answer; connecting without it"
            );
        }
        let silent = Silent(Mutex::new(greeted.into_iter().flatten().collect()));
        (answering, Arc::new(silent))
    }

    /// Takes in those that answer again, until there are none left: `connect` is told to, and has nothing to do any more
    /// once there is nobody who would use them.
    pub(super) fn take_in<F>(self: Arc<Silent>, connect: impl Fn() -> Option<F> + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if self.set().is_empty() {
            return;
        }
        tokio::spawn(async move { until_all_answer(&self, connect).await });
    }
}

async fn until_all_answer<F>(silent: &Silent, connect: impl Fn() -> Option<F>)
where
    F: Future<Output = ()>,
{
    loop {
        sleep(GREETED_EVERY).await;
        let before: Vec<SocketAddr> = silent.set().iter().copied().collect();
        let answers = join_all(before.iter().map(|address| answers(*address))).await;
        let back = before.iter().zip(answers).filter(|(_, answers)| *answers);
        let back: Vec<SocketAddr> = back.map(|(address, _)| *address).collect();
        silent.set().retain(|address| !back.contains(address));
        let Some(connected) = connect() else {
            return;
        };
        if back.is_empty() {
            continue;
        }
        connected.await;
        tracing::info!(addresses = ?back, "nodes of Cassandra answer again");
        if silent.set().is_empty() {
            return;
        }
    }
}

/// The addresses of a contact point, if none of them answers. One that cannot be looked up is left to the driver.
async fn silent_at(contact_point: &str) -> Vec<SocketAddr> {
    let Ok(Ok(found)) = timeout(ANSWERS_WITHIN, lookup_host(contact_point)).await else {
        return Vec::new();
    };
    let addresses: Vec<SocketAddr> = found.collect();
    let answers = join_all(addresses.iter().map(|address| answers(*address))).await;
    match answers.contains(&true) {
        true => Vec::new(),
        false => addresses,
    }
}

/// Whether there is any answer: where nobody listens, the system's.
async fn answers(address: SocketAddr) -> bool {
    let greeted = async {
        let Ok(mut node) = TcpStream::connect(address).await else {
            return;
        };
        let _ = node.write_all(&GREETING).await;
        let _ = node.read(&mut [0]).await;
    };
    timeout(ANSWERS_WITHIN, greeted).await.is_ok()
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    async fn listener() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (listener, address)
    }

    #[tokio::test]
    async fn one_that_hangs_is_left_out_and_one_that_answers_or_is_down_is_not() {
        let (_hangs, hanging) = listener().await;
        let (breaks_off, answering) = listener().await;
        tokio::spawn(async move { while breaks_off.accept().await.is_ok() {} });
        let (down, refused) = listener().await;
        drop(down);
        let points = [hanging.clone(), answering.clone(), refused.clone()];
        let (asked, silent) = Silent::greet(&points).await;
        assert_eq!(asked, [answering, refused]);
        let left_out: Vec<String> = silent.set().iter().map(SocketAddr::to_string).collect();
        assert_eq!(left_out, [hanging]);
    }

    #[tokio::test]
    async fn where_nobody_answers_all_are_asked() {
        let (_hangs, hanging) = listener().await;
        let (asked, silent) = Silent::greet(std::slice::from_ref(&hanging)).await;
        assert_eq!(asked, [hanging]);
        assert!(silent.set().is_empty());
    }
}
