//! The nodes of the cluster, each with a session of its own.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use uuid::Uuid;

use super::link::{Link, not_started};
use super::ring::Ring;
use super::settings::Settings;
use super::topology::{NodeRow, query, read};
use crate::driver::backend::{ANSWERS_WITHIN, Coordinator, Node, Silence, Unanswered};
use crate::fault::ConnectFault;
use crate::options::CassandraOptions;

/// The nodes. [`super::keeper`] keeps them up to date.
#[derive(Debug)]
pub(super) struct Members {
    pub settings: Settings,
    pub contact_points: Vec<String>,
    near: Option<String>,
    by_id: Mutex<BTreeMap<Uuid, Member>>,
    ring: Mutex<Arc<Ring>>,
    /// A node was lost, or a node or a table is not known: the cluster is asked soon.
    pub wanted: Arc<Notify>,
    /// The turn to ask the cluster, and how often it was asked.
    pub refreshes: Semaphore,
    pub refreshed: AtomicUsize,
}

#[derive(Debug)]
struct Member {
    address: SocketAddr,
    datacenter: Option<Arc<str>>,
    link: Option<Arc<Link>>,
    /// It answered by way of its session, which has had connections since.
    is_connected: bool,
    /// Its session, which has a connection again, is being asked whether it is of use.
    is_asked: bool,
    /// A session is being made.
    is_tried: bool,
    /// Why that failed last.
    why: Option<String>,
    /// Since when its session is of no use.
    alone_since: Option<Instant>,
}

impl Members {
    pub(super) fn new(settings: Settings, options: &CassandraOptions) -> Arc<Members> {
        Arc::new(Members {
            settings,
            contact_points: options.contact_points.clone(),
            near: options.datacenter.clone(),
            by_id: Mutex::default(),
            ring: Mutex::default(),
            wanted: Arc::default(),
            refreshes: Semaphore::new(1),
            refreshed: AtomicUsize::new(0),
        })
    }

    pub(super) fn know(&self, ring: Ring) {
        *self.ring.lock() = Arc::new(ring);
    }

    /// What the cluster has, as was read last.
    pub(super) fn ring(&self) -> Arc<Ring> {
        Arc::clone(&self.ring.lock())
    }

    pub(super) fn nodes(&self) -> Vec<Node> {
        let members = self.by_id.lock();
        let nodes = members.iter().map(|(id, member)| Node {
            id: *id,
            datacenter: member.datacenter.as_deref().map(str::to_owned),
            is_connected: member.is_connected(),
        });
        nodes.collect()
    }

    /// Whether any node is connected.
    pub(super) fn is_any_connected(&self) -> bool {
        self.by_id.lock().values().any(Member::is_connected)
    }

    /// These nodes, as far as they are known; without any, all.
    pub(super) fn coordinators(&self, of: Option<&[Uuid]>) -> Vec<Coordinator> {
        let members = self.by_id.lock();
        let coordinator = |(id, member): (&Uuid, &Member)| Coordinator {
            id: *id,
            address: member.address,
            is_near: self.near.is_none() || member.datacenter.as_deref() == self.near.as_deref(),
            is_connected: member.is_connected(),
            shard: 0,
        };
        match of {
            None => members.iter().map(coordinator).collect(),
            Some(ids) => {
                let known = ids.iter().filter_map(|id| members.get_key_value(id));
                known.map(coordinator).collect()
            }
        }
    }

    /// Whether all of these nodes are in one datacenter.
    pub(super) fn are_together(&self, of: &[Coordinator]) -> bool {
        let members = self.by_id.lock();
        let mut names = of
            .iter()
            .map(|at| members.get(&at.id)?.datacenter.as_deref());
        let first = names.next();
        names.all(|name| Some(name) == first)
    }

    /// The session with this node.
    pub(super) fn link(&self, node: Uuid) -> Result<Arc<Link>, Unanswered> {
        let link = self
            .by_id
            .lock()
            .get(&node)
            .and_then(|member| member.link.clone());
        link.ok_or_else(|| not_started("there is no connection to the node", Silence::Unreached))
    }

    /// There is no connection in this session with a node; it is seen soon when there is one again.
    pub(super) fn not_connected(&self, node: Uuid, link: &Arc<Link>) {
        if let Some(member) = with_link(&mut self.by_id.lock(), node, link) {
            member.is_connected = false;
            self.wanted.notify_one();
        }
    }

    /// There is more than is known: the cluster is asked soon.
    pub(super) fn ask_soon(&self) {
        self.wanted.notify_one();
    }

    /// Takes note of the nodes that there are, and forgets those that there are no more.
    pub(super) fn take_in(&self, nodes: Vec<NodeRow>, connected: Option<(SocketAddr, Arc<Link>)>) {
        // Dropped outside of the lock.
        let mut gone = Vec::new();
        let mut members = self.by_id.lock();
        let mut before = std::mem::take(&mut *members);
        for node in nodes {
            // What a node says of itself comes first; others may have an older word of it.
            if members.contains_key(&node.id) {
                continue;
            }
            let is_there = |member: &Member| member.address == node.address;
            let (known, moved) = match before.remove(&node.id) {
                Some(member) if is_there(&member) => (Some(member), None),
                other => (None, other),
            };
            gone.extend(moved);
            let new = connected.as_ref();
            let new = new.filter(|(at, _)| *at == node.address);
            let member = match (known, new) {
                (Some(member), None) => Member {
                    datacenter: node.datacenter,
                    ..member
                },
                (known, new) => {
                    gone.extend(known);
                    Member {
                        address: node.address,
                        datacenter: node.datacenter,
                        link: new.map(|(_, link)| Arc::clone(link)),
                        is_connected: new.is_some(),
                        is_asked: false,
                        is_tried: false,
                        why: None,
                        alone_since: None,
                    }
                }
            };
            members.insert(node.id, member);
        }
        drop(members);
        gone.extend(before.into_values());
    }

    /// Those of these nodes that have no session and are to have one, which is going to be made.
    pub(super) fn to_be_tried(
        &self,
        is_one: impl Fn(SocketAddr) -> bool,
    ) -> Vec<(Uuid, SocketAddr)> {
        let mut members = self.by_id.lock();
        let without = members.iter_mut().filter(|(_, member)| {
            let has_one = member.link.is_some() || member.is_tried;
            !has_one && is_one(member.address)
        });
        let tried = without.map(|(id, member)| {
            member.is_tried = true;
            (*id, member.address)
        });
        tried.collect()
    }

    /// Takes note of what came of making a session with this node, which is used at once.
    pub(super) fn tried(&self, id: Uuid, at: SocketAddr, made: Result<Arc<Link>, ConnectFault>) {
        let mut members = self.by_id.lock();
        let Some(member) = members.get_mut(&id).filter(|member| member.address == at) else {
            drop(members);
            drop(made);
            return;
        };
        member.is_tried = false;
        match made {
            Ok(link) if member.link.is_none() => {
                if member.why.take().is_some() {
                    tracing::info!(address = %at, "connected to a Cassandra node again");
                }
                member.link = Some(link);
                member.is_connected = true;
                member.is_asked = false;
                member.alone_since = None;
            }
            Ok(surplus) => {
                drop(members);
                drop(surplus);
            }
            // It was made elsewhere meanwhile.
            Err(_) if member.link.is_some() => {}
            Err(fault) => {
                let (ConnectFault::Settings(why)
                | ConnectFault::Refused(why)
                | ConnectFault::Unreachable(why)) = fault;
                if member.why.as_ref() != Some(&why) {
                    tracing::warn!(address = %at, %why, "cannot connect to a Cassandra node; retrying");
                    member.why = Some(why);
                }
            }
        }
    }

    /// Whether all connected nodes have the same schema.
    pub(super) async fn agree(&self) -> Result<bool, Unanswered> {
        let text = "SELECT schema_version FROM system.local";
        let within = self.settings.request_timeout;
        let nodes = self.coordinators(None);
        let connected = nodes.iter().filter(|at| at.is_connected);
        let versions = connected.map(|at| async {
            let link = self.link(at.id)?;
            let answer = query(&link, text, &[], within).await?;
            let row = read(&answer)?.into_iter().next();
            let version = row.and_then(|mut row| row.uuid("schema_version").ok().flatten());
            Ok::<Option<Uuid>, Unanswered>(version)
        });
        let mut first = None;
        for version in join_all(versions).await {
            let version = version?;
            if *first.get_or_insert(version) != version {
                return Ok(false);
            }
        }
        Ok(first.flatten().is_some())
    }

    /// Reads which nodes have connections. Those that have again, and are to be asked whether they answer, are returned.
    pub(super) fn read_connections(&self) -> Vec<(Uuid, Arc<Link>)> {
        let links = |(id, member): (&Uuid, &Member)| Some((*id, Arc::clone(member.link.as_ref()?)));
        let links: Vec<(Uuid, Arc<Link>)> = self.by_id.lock().iter().filter_map(links).collect();
        let now = Instant::now();
        let mut back = Vec::new();
        for (id, link) in links {
            // Outside of the lock: requests wait for that.
            let has_connections = link.has_connections();
            let mut members = self.by_id.lock();
            let Some(member) = with_link(&mut members, id, &link) else {
                continue;
            };
            if member.is_connected && has_connections {
                continue;
            }
            if member.is_connected {
                self.wanted.notify_one();
            }
            member.is_connected = false;
            let since = *member.alone_since.get_or_insert(now);
            // The library does not try again where a node has refused it once, as one may that is about to start.
            if now.duration_since(since) >= self.settings.alone_max() {
                member.alone_since = None;
                member.link = None;
            } else if has_connections && !member.is_asked {
                member.is_asked = true;
                back.push((id, link));
            }
        }
        back
    }

    /// Whether this node, which has a connection again, answers. (The library sends nothing to a node at once that it lost; and
    /// another one may be there.)
    pub(super) async fn ask_again(&self, id: Uuid, link: Arc<Link>) {
        let text = "SELECT host_id FROM system.local";
        let answer = query(&link, text, &[], ANSWERS_WITHIN).await;
        let row = answer.and_then(|answer| read(&answer));
        let row = row.ok().and_then(|rows| rows.into_iter().next());
        let is_it = row.and_then(|mut row| row.uuid("host_id").ok().flatten()) == Some(id);
        if let Some(member) = with_link(&mut self.by_id.lock(), id, &link) {
            member.is_asked = false;
            if is_it {
                member.is_connected = true;
                member.alone_since = None;
            }
        }
    }
}

/// This node, where this is its session still.
fn with_link<'a>(
    members: &'a mut BTreeMap<Uuid, Member>,
    id: Uuid,
    link: &Arc<Link>,
) -> Option<&'a mut Member> {
    let member = members.get_mut(&id)?;
    let has = member.link.as_ref()?;
    Arc::ptr_eq(has, link).then_some(member)
}

impl Member {
    fn is_connected(&self) -> bool {
        self.is_connected && self.link.is_some()
    }
}
