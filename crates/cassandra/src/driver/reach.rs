//! Nodes that hang, or are cut off, while the driver connects. It waits several seconds at each that it asks where the
//! others are, and as long for the first connection to each node. So every node is greeted before the driver connects to
//! it: first the contact points, then the nodes that these name. Silent ones are left out until they answer.

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
/// The port of a contact point that names none.
const PORT: u16 = 9042;
/// A request for the options of a node, of version 4 of the protocol. A node that wants TLS answers with an alert or
/// breaks off, which is an answer as well.
const GREETING: [u8; 9] = [4, 0, 0, 0, 5, 0, 0, 0, 0];

/// The nodes that are left out.
#[derive(Debug, Default)]
pub(super) struct Silent {
    silent: Mutex<HashSet<SocketAddr>>,
    first: Mutex<Option<Greeted>>,
}

/// The contact points that answered. Until other nodes were greeted as well, these are only noted.
#[derive(Debug)]
struct Greeted {
    answering: HashSet<SocketAddr>,
    others: HashSet<SocketAddr>,
}

impl Silent {
    fn set(&self) -> MutexGuard<'_, HashSet<SocketAddr>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this node is known to be silent.
    pub(super) fn leaves_out(&self, address: SocketAddr) -> bool {
        self.set().contains(&address)
    }

    /// Whether the driver may connect to this node now.
    pub(super) fn admits(&self, address: SocketAddr) -> bool {
        if self.leaves_out(address) {
            return false;
        }
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *first {
            Some(greeted) if !greeted.answering.contains(&address) => {
                greeted.others.insert(address);
                false
            }
            Some(_) | None => true,
        }
    }

    /// Those of these contact points that are to be asked, and the nodes that are to be left out: none, where nobody
    /// answers.
    pub(super) async fn greet(contact_points: &[String]) -> (Vec<String>, Arc<Silent>) {
        let greeted = join_all(contact_points.iter().map(|point| greet_point(point))).await;
        let (mut asked, mut answering, mut silent) = (Vec::new(), HashSet::new(), HashSet::new());
        for (point, (answer, do_not)) in contact_points.iter().zip(greeted) {
            match do_not.is_empty() {
                true => asked.push(point.clone()),
                false => asked.extend(answer.iter().map(SocketAddr::to_string)),
            }
            answering.extend(answer);
            silent.extend(do_not);
        }
        if asked.is_empty() {
            return (contact_points.to_vec(), Arc::default());
        }
        warn_of(&silent);
        let first = Greeted {
            answering,
            others: HashSet::new(),
        };
        let silent = Silent {
            silent: Mutex::new(silent),
            first: Mutex::new(Some(first)),
        };
        (asked, Arc::new(silent))
    }

    /// Greets the nodes that the contact points named, and admits all that come later. Whom to leave out from now on, if
    /// there were any such nodes.
    pub(super) async fn greet_others(&self) -> Option<Arc<Silent>> {
        let first = self
            .first
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let others: Vec<SocketAddr> = first?.others.into_iter().collect();
        if others.is_empty() {
            return None;
        }
        let mut silent = silent_of(&others).await;
        warn_of(&silent);
        silent.extend(self.set().iter());
        Some(Arc::new(Silent {
            silent: Mutex::new(silent),
            first: Mutex::default(),
        }))
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
        let still = silent_of(&before).await;
        let back: Vec<SocketAddr> = before
            .into_iter()
            .filter(|one| !still.contains(one))
            .collect();
        silent.set().retain(|address| !back.contains(address));
        let Some(connected) = connect() else {
            return;
        };
        if back.is_empty() {
            continue;
        }
        connected.await;
        tracing::info!(addresses = ?back, "Cassandra nodes answer again");
        if silent.set().is_empty() {
            return;
        }
    }
}

fn warn_of(silent: &HashSet<SocketAddr>) {
    for address in silent {
        tracing::warn!(%address, "a Cassandra node does not answer; connecting without it");
    }
}

/// The addresses of a contact point, those that answer and those that do not. None of one that cannot be looked up, which
/// is left to the driver.
async fn greet_point(contact_point: &str) -> (Vec<SocketAddr>, HashSet<SocketAddr>) {
    let found = async {
        match lookup_host(contact_point).await {
            Ok(found) => found.collect(),
            Err(_) => match lookup_host((contact_point, PORT)).await {
                Ok(found) => found.collect(),
                Err(_) => Vec::new(),
            },
        }
    };
    let mut found: Vec<SocketAddr> = timeout(ANSWERS_WITHIN, found).await.unwrap_or_default();
    let silent = silent_of(&found).await;
    found.retain(|address| !silent.contains(address));
    (found, silent)
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

    #[tokio::test]
    async fn a_node_that_no_contact_point_is_waits_for_its_greeting_and_later_ones_do_not() {
        let (breaks_off, answering) = listener().await;
        tokio::spawn(async move { while breaks_off.accept().await.is_ok() {} });
        let (hangs, _) = listener().await;
        let (answering, hanging) = (answering.parse().unwrap(), hangs.local_addr().unwrap());
        let (_, silent) = Silent::greet(&["127.0.0.1:1".to_owned()]).await;
        assert!(silent.admits("127.0.0.1:1".parse().unwrap()));
        assert!(!silent.admits(answering) && !silent.admits(hanging));
        let rest = silent.greet_others().await.unwrap();
        assert!(rest.admits(answering) && !rest.admits(hanging));
        let joined = "127.0.0.9:9042".parse().unwrap();
        assert!(silent.admits(joined) && rest.admits(joined));
        assert!(silent.greet_others().await.is_none());
    }

    /// A listener that nobody accepts from, at the port that a contact point has unless it names another one.
    #[tokio::test]
    async fn a_contact_point_without_a_port_is_greeted_as_well() {
        let Ok(_hangs) = TcpListener::bind(("127.99.0.1", PORT)).await else {
            return;
        };
        let points = ["127.99.0.1".to_owned(), "127.0.0.1:1".to_owned()];
        let (asked, _) = Silent::greet(&points).await;
        assert_eq!(asked, ["127.0.0.1:1"]);
    }
}
