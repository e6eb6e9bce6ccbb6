//! Keeps the list of nodes, their connections and the tables of the cluster up to date.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cassandra_cpp::{LogLevel, set_level};
use futures_util::future::join_all;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::link::not_started;
use super::members::Members;
use super::settings::Settings;
use super::topology::{nodes_by, resolved, ring_by};
use crate::driver::backend::{Coordinator, Silence, Unanswered};
use crate::driver::reach::Greeted;
use crate::fault::ConnectFault;
use crate::options::CassandraOptions;

/// The pause between two looks at the connections and the sessions of all nodes, and before the cluster is asked again that
/// lost a node or did not answer. Each look takes some hundred microseconds for each node.
const PAUSE: Duration = Duration::from_secs(1);
/// The pause between two questions for the cluster's nodes and tables, while all goes well.
const REFRESH_PAUSE: Duration = Duration::from_secs(30);

impl Members {
    /// Connects to the nodes that there are, as one of the contact points has them, but to those that are silent.
    pub(super) async fn connect(
        options: &CassandraOptions,
        contact_points: &[String],
        greeted: &Greeted,
    ) -> Result<Arc<Members>, ConnectFault> {
        // It would write to stderr by itself. What matters of it comes back as errors.
        set_level(LogLevel::DISABLED);
        let (port, addresses) = resolved(contact_points, options.connect_timeout).await?;
        let members = Members::new(Settings::new(options, port)?, options);
        let mut failed = ConnectFault::Unreachable("no contact point has an address".to_owned());
        for ip in addresses {
            match members.begin_at(ip).await {
                Ok(()) => {
                    members.connect_all(greeted).await;
                    let weak = || Arc::downgrade(&members);
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
        self.refresh().await.map_err(unreachable)
    }

    /// Makes sessions with all others, as far as that takes no longer than it may. (Those that take longer go on.)
    async fn connect_all(self: &Arc<Members>, greeted: &Greeted) {
        let others = self.to_be_tried(|at| !greeted.leaves_out(at));
        let tries = others.into_iter().map(|(id, at)| self.begin_try(id, at));
        let tries: Vec<_> = tries.collect();
        let _ = timeout(self.settings.session_timeout(), join_all(tries)).await;
    }

    fn begin_try(self: &Arc<Members>, id: Uuid, at: SocketAddr) -> tokio::task::JoinHandle<()> {
        let members = Arc::clone(self);
        // Until the library is done with it, so that there is one at a time.
        tokio::spawn(async move {
            let made = members.settings.begin_link(at.ip()).await;
            members.tried(id, at, made);
        })
    }

    /// Asks a connected node for the nodes and tables of the cluster. Each time another node is asked first: a node that was
    /// taken out of the cluster may not know.
    async fn refresh(&self) -> Result<(), Unanswered> {
        // Never closed. An older answer must not replace a newer one.
        let turn = self.refreshes.acquire().await;
        let mut nodes = self.coordinators(None);
        nodes.retain(|at| at.is_connected);
        let first = self.refreshed.fetch_add(1, Ordering::Relaxed) % nodes.len().max(1);
        nodes.rotate_left(first);
        let mut failed = not_started("no node is connected", Silence::Unreached);
        for at in &nodes {
            match self.refreshed_by(at).await {
                Ok(()) => return Ok(()),
                Err(unanswered) => failed = unanswered,
            }
        }
        drop(turn);
        Err(failed)
    }

    /// Asks the cluster for its nodes and tables now. False where it does not answer in time.
    pub(super) async fn known_anew(&self, within: Duration) -> bool {
        matches!(timeout(within, self.refresh()).await, Ok(Ok(())))
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

/// Makes sessions with nodes that have none, and reads which nodes are connected, until nobody uses them any more.
async fn keep_connected(members: Weak<Members>) {
    loop {
        sleep(PAUSE).await;
        let Some(members) = members.upgrade() else {
            return;
        };
        for (id, at) in members.to_be_tried(|_| true) {
            members.begin_try(id, at);
        }
        let reading = Arc::clone(&members);
        // A thread's work, with many nodes.
        let back = spawn_blocking(move || reading.read_connections()).await;
        for (id, link) in back.unwrap_or_default() {
            let members = Arc::clone(&members);
            tokio::spawn(async move { members.ask_again(id, link).await });
        }
    }
}

/// Asks for the nodes and tables of the cluster now and then, until nobody uses them any more.
async fn keep_known(members: Weak<Members>, wanted: Arc<Notify>) {
    let mut pause = REFRESH_PAUSE;
    loop {
        // Whichever comes first.
        let _ = timeout(pause, wanted.notified()).await;
        sleep(PAUSE).await;
        let Some(members) = members.upgrade() else {
            return;
        };
        pause = match members.refresh().await {
            Ok(()) => REFRESH_PAUSE,
            Err(unanswered) => {
                let is_any = members.is_any_connected();
                let why = unanswered.fault;
                tracing::debug!(%why, is_any, "no node answered with the list of nodes");
                if !is_any {
                    members.find_again().await;
                }
                PAUSE
            }
        };
    }
}
