//! Keeps what is known of the nodes up to date: which there are, which are connected, and which tables they have.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use cassandra_cpp::{LogLevel, set_level};
use futures_util::future::join_all;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::link::not_started;
use super::members::{Members, Wanted};
use super::settings::Settings;
use super::topology::{nodes_by, resolved, ring_by};
use crate::driver::backend::{Coordinator, Silence, Unanswered};
use crate::driver::reach::Silent;
use crate::fault::ConnectFault;
use crate::options::CassandraOptions;

/// How often it is read which nodes have connections, for so many nodes: that takes some time for each.
const READ_PAUSE: Duration = Duration::from_millis(250);
const READ_NODES: usize = 16;
const READ_PAUSES_MAX: u32 = 8;
/// How often it is seen who is to be tried again, and the pause before the cluster is asked that lost a node, or did not answer.
const PAUSE: Duration = Duration::from_secs(1);
/// How often the cluster is asked for its nodes and tables. One that was just lost may be somewhere else by then: that is
/// asked soon.
const REFRESH_PAUSE: Duration = Duration::from_secs(30);
/// So many nodes are asked for that, one after the other, until one answers.
const TRIES_MAX: usize = 3;
/// Each of so many rounds begins with another node: one that was taken out of the cluster may not know.
const ANOTHER_EACH: u64 = 4;

impl Members {
    /// Connects to the nodes that there are, as one of the contact points has them, but to those that are silent.
    pub(super) async fn connect(
        options: &CassandraOptions,
        contact_points: &[String],
        silent: &Silent,
    ) -> Result<Arc<Members>, ConnectFault> {
        // It would write to stderr by itself. What matters of it comes back as errors.
        set_level(LogLevel::DISABLED);
        let (port, addresses) = resolved(contact_points, options.connect_timeout).await?;
        let members = Members::new(Settings::new(options, port)?, options);
        let mut failed = ConnectFault::Unreachable("no contact point has an address".to_owned());
        for ip in addresses {
            match members.begin_at(ip).await {
                Ok(()) => {
                    members.connect_all(silent).await;
                    let weak = || Arc::downgrade(&members);
                    tokio::spawn(keep_read(weak()));
                    tokio::spawn(keep_connected(weak()));
                    tokio::spawn(keep_known(weak(), Arc::clone(&members.wanted)));
                    return Ok(members);
                }
                Err(fault @ ConnectFault::Settings(_)) => return Err(fault),
                // What a node said is worth more than that another one was not reached.
                Err(ConnectFault::Unreachable(_)) if matches!(failed, ConnectFault::Refused(_)) => {
                }
                Err(fault) => failed = fault,
            }
        }
        Err(failed)
    }

    /// Makes a session with this node, and asks it for the others.
    async fn begin_at(&self, ip: IpAddr) -> Result<(), ConnectFault> {
        let link = self.settings.link(ip).await?;
        let at = SocketAddr::new(ip, self.settings.port);
        let unreachable = |unanswered: Unanswered| {
            ConnectFault::Unreachable(format!("{at}: {}", unanswered.fault))
        };
        let nodes = nodes_by(&self.settings, &link, at).await;
        let nodes = nodes.map_err(unreachable)?;
        if nodes.first().is_none_or(|node| node.address != at) {
            return Err(ConnectFault::Unreachable(format!(
                "{at} has not joined the cluster"
            )));
        }
        self.take_in(nodes, Some((at, link)));
        self.refresh(&mut None).await.map_err(unreachable)
    }

    /// Makes sessions with all others, as far as that takes no longer than it may. (Those that take longer go on.)
    async fn connect_all(self: &Arc<Members>, silent: &Silent) {
        let others = self.to_be_tried(Instant::now(), |at| !silent.leaves_out(at));
        let tries = others.into_iter().map(|(id, at)| self.begin_try(id, at));
        let tries: Vec<_> = tries.collect();
        let _ = timeout(self.settings.session_timeout(), join_all(tries)).await;
        self.leave_others();
    }

    fn begin_try(self: &Arc<Members>, id: Uuid, at: SocketAddr) -> tokio::task::JoinHandle<()> {
        let members = Arc::clone(self);
        // Until the library is done with it, so that there is one at a time.
        tokio::spawn(async move {
            let made = members.settings.begin_link(at.ip()).await;
            members.tried(id, at, made);
        })
    }

    /// Asks a connected node for the nodes and tables that there are: most of the time the one that answered `before`.
    async fn refresh(&self, before: &mut Option<Uuid>) -> Result<(), Unanswered> {
        let mut round = 0;
        self.rounds.send_modify(|rounds| {
            rounds.begun += 1;
            round = rounds.begun;
        });
        let mut nodes = self.coordinators(None);
        nodes.retain(|at| at.is_connected);
        let turn = usize::try_from(round).unwrap_or_default() % nodes.len().max(1);
        nodes.rotate_left(turn);
        if round % ANOTHER_EACH != 0 {
            nodes.sort_by_key(|at| Some(at.id) != *before);
        }
        let mut failed = not_started("no node is connected", Silence::Unreached);
        for at in nodes.iter().take(TRIES_MAX) {
            match self.refreshed_by(at).await {
                Ok(()) => {
                    *before = Some(at.id);
                    self.rounds.send_modify(|rounds| rounds.answered = round);
                    return Ok(());
                }
                Err(unanswered) => failed = unanswered,
            }
        }
        *before = None;
        Err(failed)
    }

    async fn refreshed_by(&self, at: &Coordinator) -> Result<(), Unanswered> {
        let link = self.link(at.id)?;
        let nodes = nodes_by(&self.settings, &link, at.address).await?;
        let ring = ring_by(&self.settings, &link, &nodes).await?;
        self.know(ring);
        self.take_in(nodes, None);
        Ok(())
    }

    /// Asks the contact points where the cluster is: no node that was known answers.
    async fn find_again(&self) {
        let Ok((_, addresses)) =
            resolved(&self.contact_points, self.settings.connect_timeout).await
        else {
            return;
        };
        for ip in addresses {
            if self.is_any_connected() || self.begin_at(ip).await.is_ok() {
                return;
            }
        }
    }
}

/// Reads which nodes are connected, until nobody uses them any more.
async fn keep_read(members: Weak<Members>) {
    let mut nodes = 0;
    loop {
        let pauses = u32::try_from(1 + nodes / READ_NODES).unwrap_or(READ_PAUSES_MAX);
        sleep(READ_PAUSE * pauses.min(READ_PAUSES_MAX)).await;
        let Some(members) = members.upgrade() else {
            return;
        };
        let reading = Arc::clone(&members);
        // A thread's work, with many nodes.
        let back = spawn_blocking(move || reading.read_connections()).await;
        for (id, link) in back.unwrap_or_default() {
            let members = Arc::clone(&members);
            tokio::spawn(async move { members.ask_again(id, link).await });
        }
        members.leave_others();
        nodes = members.nodes().len();
    }
}

/// Makes sessions with nodes that have none, until nobody uses them any more.
async fn keep_connected(members: Weak<Members>) {
    loop {
        sleep(PAUSE).await;
        let Some(members) = members.upgrade() else {
            return;
        };
        for (id, at) in members.to_be_tried(Instant::now(), |_| true) {
            members.begin_try(id, at);
        }
    }
}

/// Asks now and then which nodes and tables there are, until nobody uses them any more.
async fn keep_known(members: Weak<Members>, wanted: Arc<Wanted>) {
    let mut pause = REFRESH_PAUSE;
    let mut before = None;
    loop {
        let soon = async {
            // Whichever comes first.
            let _ = timeout(pause, wanted.soon.notified()).await;
            sleep(PAUSE).await;
        };
        tokio::select! {
            () = wanted.now.notified() => {}
            () = soon => {}
        }
        let Some(members) = members.upgrade() else {
            return;
        };
        pause = match members.refresh(&mut before).await {
            Ok(()) => REFRESH_PAUSE,
            Err(unanswered) => {
                let is_any = members.is_any_connected();
                let why = unanswered.fault;
                tracing::debug!(%why, is_any, "the nodes of the cluster are not known anew");
                if !is_any {
                    members.find_again().await;
                }
                PAUSE
            }
        };
    }
}
