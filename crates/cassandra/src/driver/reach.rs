//! Finds the reachable nodes. While it connects, the driver would wait several seconds for each node that hangs or is cut off. So
//! every node is greeted before the driver connects to it: first the contact points, then the nodes that the contact points name.
//! A node is left out until it answers.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{sleep, timeout};

use super::backend::{ANSWERS_WITHIN, PORT};

/// A request for the options of a node, of version 4 of the protocol. A node that wants TLS answers with an alert or
/// breaks off, which is an answer as well.
const GREETING: [u8; 9] = [4, 0, 0, 0, 5, 0, 0, 0, 0];

/// The nodes by their greetings. By default no node is greeted, and all are admitted.
#[derive(Debug, Default)]
pub(super) struct Greeted(Option<Mutex<Nodes>>);

#[derive(Debug, Default)]
struct Nodes {
    answering: HashSet<SocketAddr>,
    /// They did not answer, or were not greeted yet.
    waiting: HashSet<SocketAddr>,
}

impl Greeted {
    /// Whether this node did not answer.
    #[cfg(feature = "cassandra-cpp")]
    pub(super) fn leaves_out(&self, address: SocketAddr) -> bool {
        let nodes = self.0.as_ref();
        nodes.is_some_and(|nodes| nodes.lock().waiting.contains(&address))
    }

    /// Whether the driver may connect to this node now. Otherwise the node is greeted soon.
    pub(super) fn admits(&self, address: SocketAddr) -> bool {
        let Some(nodes) = &self.0 else {
            return true;
        };
        let mut nodes = nodes.lock();
        nodes.answering.contains(&address) || {
            nodes.waiting.insert(address);
            false
        }
    }

    /// Greets the contact points. Those that answer are to be asked; all, where none does.
    pub(super) async fn greet(contact_points: &[String]) -> (Vec<String>, Arc<Greeted>) {
        let greeted = join_all(contact_points.iter().map(|point| greet_point(point))).await;
        let (mut asked, mut nodes) = (Vec::new(), Nodes::default());
        for (point, (answering, silent)) in contact_points.iter().zip(greeted) {
            match silent.is_empty() {
                true => asked.push(point.clone()),
                false => asked.extend(answering.iter().map(SocketAddr::to_string)),
            }
            nodes.answering.extend(answering);
            nodes.waiting.extend(silent);
        }
        if asked.is_empty() {
            return (contact_points.to_vec(), Arc::default());
        }
        for address in &nodes.waiting {
            tracing::warn!(%address, "a Cassandra node does not answer; connecting without it");
        }
        (asked, Arc::new(Greeted(Some(Mutex::new(nodes)))))
    }

    /// Greets the waiting nodes, now and then every second. `connect` connects to those that answer, for as long as the driver is
    /// used.
    pub(super) async fn take_in<F>(
        self: Arc<Greeted>,
        connect: impl Fn() -> Option<F> + Send + Sync + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        if self.greet_waiting(&connect).await.is_some() {
            tokio::spawn(async move {
                while self.greet_waiting(&connect).await.is_some() {
                    sleep(ANSWERS_WITHIN).await;
                }
            });
        }
    }

    /// `None` once there is nothing to greet for.
    async fn greet_waiting<F>(&self, connect: &impl Fn() -> Option<F>) -> Option<()>
    where
        F: Future<Output = ()>,
    {
        let nodes = self.0.as_ref()?;
        let before: Vec<SocketAddr> = nodes.lock().waiting.iter().copied().collect();
        let silent = silent_of(&before).await;
        let mut answering = before;
        answering.retain(|one| !silent.contains(one));
        {
            let mut nodes = nodes.lock();
            nodes.waiting.retain(|one| !answering.contains(one));
            nodes.answering.extend(&answering);
        }
        let connected = connect()?;
        if !answering.is_empty() {
            connected.await;
            tracing::debug!(addresses = ?answering, "connected to Cassandra nodes that answer");
        }
        Some(())
    }
}

/// The addresses of a contact point, those that answer and those that do not. None of one that cannot be looked up, which
/// is left to the driver.
async fn greet_point(contact_point: &str) -> (Vec<SocketAddr>, HashSet<SocketAddr>) {
    let found = timeout(ANSWERS_WITHIN, addresses_of(contact_point)).await;
    let mut found = found.map(Result::unwrap_or_default).unwrap_or_default();
    let silent = silent_of(&found).await;
    found.retain(|address| !silent.contains(address));
    (found, silent)
}

/// The addresses of a contact point.
pub(super) async fn addresses_of(point: &str) -> io::Result<Vec<SocketAddr>> {
    match lookup_host(point).await {
        Ok(found) => Ok(found.collect()),
        Err(error) => match lookup_host((point, PORT)).await {
            Ok(found) => Ok(found.collect()),
            Err(_) => Err(error),
        },
    }
}

/// Those that do not answer.
async fn silent_of(addresses: &[SocketAddr]) -> HashSet<SocketAddr> {
    let answers = join_all(addresses.iter().map(|address| answers(*address))).await;
    let silent = addresses
        .iter()
        .zip(answers)
        .filter(|(_, answers)| !answers);
    silent.map(|(address, _)| *address).collect()
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
        let (hangs, hanging) = listener().await;
        let (breaks_off, answering) = listener().await;
        tokio::spawn(async move { while breaks_off.accept().await.is_ok() {} });
        let (down, refused) = listener().await;
        drop(down);
        let points = [hanging.clone(), answering.clone(), refused.clone()];
        let (asked, greeted) = Greeted::greet(&points).await;
        assert_eq!(asked, [answering.clone(), refused]);
        let hanging = hangs.local_addr().unwrap();
        assert!(!greeted.admits(hanging));
        assert!(greeted.admits(answering.parse().unwrap()));
    }

    #[tokio::test]
    async fn where_nobody_answers_all_are_asked() {
        let (_hangs, hanging) = listener().await;
        let (asked, greeted) = Greeted::greet(std::slice::from_ref(&hanging)).await;
        assert_eq!(asked, std::slice::from_ref(&hanging));
        assert!(greeted.admits(hanging.parse().unwrap()));
    }

    #[tokio::test]
    async fn a_node_that_no_contact_point_names_is_admitted_once_it_answers() {
        let (breaks_off, answering) = listener().await;
        tokio::spawn(async move { while breaks_off.accept().await.is_ok() {} });
        let (hangs, _) = listener().await;
        let (answering, hanging) = (answering.parse().unwrap(), hangs.local_addr().unwrap());
        let (_, greeted) = Greeted::greet(&["127.0.0.1:1".to_owned()]).await;
        assert!(greeted.admits("127.0.0.1:1".parse().unwrap()));
        assert!(!greeted.admits(answering) && !greeted.admits(hanging));
        let connected = || Some(std::future::ready(()));
        assert_eq!(greeted.greet_waiting(&connected).await, Some(()));
        assert!(greeted.admits(answering) && !greeted.admits(hanging));
        tokio::spawn(async move { while hangs.accept().await.is_ok() {} });
        let unused = || None::<std::future::Ready<()>>;
        assert_eq!(greeted.greet_waiting(&unused).await, None);
        assert!(greeted.admits(hanging));
    }

    /// A listener that nobody accepts from, at the port that a contact point has unless it names another one.
    #[tokio::test]
    async fn a_contact_point_without_a_port_is_greeted_as_well() {
        let Ok(_hangs) = TcpListener::bind(("127.99.0.1", PORT)).await else {
            return;
        };
        let points = ["127.99.0.1".to_owned(), "127.0.0.1:1".to_owned()];
        let (asked, _) = Greeted::greet(&points).await;
        assert_eq!(asked, ["127.0.0.1:1"]);
    }
}
