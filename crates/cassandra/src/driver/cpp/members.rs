//! The nodes of the cluster, each with a session of its own, and what each has.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use uuid::Uuid;

use super::link::{Link, not_started};
use super::ring::Ring;
use super::settings::{ANSWERS_WITHIN, Settings};
use super::topology::{NodeRow, query, read};
use crate::driver::backend::{Coordinator, Node, Silence, Unanswered};
use crate::fault::ConnectFault;
use crate::options::CassandraOptions;

/// The pause before a node that has no session is tried again; it doubles up to the last one.
const TRY_PAUSE: Duration = Duration::from_secs(1);
const TRY_PAUSE_MAX: Duration = Duration::from_secs(8);

/// The nodes. One task at a time ([`super::keeper`]) asks the cluster for them and takes them in.
#[derive(Debug)]
pub(super) struct Members {
    pub settings: Settings,
    pub contact_points: Vec<String>,
    near: Option<String>,
    by_id: Mutex<BTreeMap<Uuid, Member>>,
    ring: Mutex<Arc<Ring>>,
    pub wanted: Arc<Wanted>,
    /// The last round in which the cluster was asked for what there is, and the last one in which it answered.
    pub rounds: watch::Sender<Rounds>,
}

/// What the cluster is to be asked for.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// A node was lost, or there is one, or a table, that is not known.
    pub soon: Notify,
    /// Somebody waits for it.
    pub now: Notify,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rounds {
    pub begun: u64,
    pub answered: u64,
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
    /// How often that failed in a row, when it is tried again, and why it failed.
    failures: u32,
    next_try: Option<Instant>,
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
            rounds: watch::Sender::default(),
        })
    }

    fn by_id(&self) -> MutexGuard<'_, BTreeMap<Uuid, Member>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn know(&self, ring: Ring) {
        *self.ring.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(ring);
    }

    /// What the cluster has, as was read last.
    pub(super) fn ring(&self) -> Arc<Ring> {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&ring)
    }

    pub(super) fn nodes(&self) -> Vec<Node> {
        let members = self.by_id();
        let nodes = members.iter().map(|(id, member)| Node {
            id: *id,
            address: member.address.to_string(),
            datacenter: member.datacenter.as_deref().map(str::to_owned),
            is_connected: member.is_connected(),
        });
        nodes.collect()
    }

    /// Whether any node is connected.
    pub(super) fn is_any_connected(&self) -> bool {
        self.by_id().values().any(Member::is_connected)
    }

    /// These nodes, as far as they are known; without any, all.
    pub(super) fn coordinators(&self, of: Option<&[Uuid]>) -> Vec<Coordinator> {
        let members = self.by_id();
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
        let members = self.by_id();
        let mut names = of
            .iter()
            .map(|at| members.get(&at.id)?.datacenter.as_deref());
        let first = names.next();
        names.all(|name| Some(name) == first)
    }

    /// The session with this node.
    pub(super) fn link(&self, node: Uuid) -> Result<Arc<Link>, Unanswered> {
        let link = self
            .by_id()
            .get(&node)
            .and_then(|member| member.link.clone());
        link.ok_or_else(|| not_started("there is no connection to the node", Silence::Unreached))
    }

    /// There is no connection in this session with a node; it is seen soon when there is one again.
    pub(super) fn not_connected(&self, node: Uuid, link: &Arc<Link>) {
        if let Some(member) = with_link(&mut self.by_id(), node, link) {
            member.is_connected = false;
            self.wanted.soon.notify_one();
        }
    }

    /// There is more than is known: the cluster is asked soon.
    pub(super) fn ask_soon(&self) {
        self.wanted.soon.notify_one();
    }

    /// Waits until the cluster has said what there is now. False where it does not in time.
    pub(super) async fn known_anew(&self, within: Duration) -> bool {
        let mut rounds = self.rounds.subscribe();
        let begun = rounds.borrow_and_update().begun;
        self.wanted.now.notify_one();
        // What was begun before may have been read before.
        let answered = rounds.wait_for(|rounds| rounds.answered > begun);
        matches!(timeout(within, answered).await, Ok(Ok(_)))
    }

    /// Takes note of the nodes that there are, and forgets those that there are no more.
    pub(super) fn take_in(&self, nodes: Vec<NodeRow>, connected: Option<(SocketAddr, Arc<Link>)>) {
        // Dropped outside of the lock.
        let mut gone = Vec::new();
        let mut members = self.by_id();
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
                        failures: 0,
                        next_try: None,
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

    /// Whether anything is sent to it but by whoever knows no other node yet.
    fn is_spoken_to(&self, member: &Member) -> bool {
        let only = self.settings.only.as_deref();
        only.is_none_or(|only| member.datacenter.as_deref() == Some(only))
    }

    /// Those of these nodes that have no session and are to have one, which is going to be made.
    pub(super) fn to_be_tried(
        &self,
        now: Instant,
        is_one: impl Fn(SocketAddr) -> bool,
    ) -> Vec<(Uuid, SocketAddr)> {
        let mut members = self.by_id();
        let without = members.iter_mut().filter(|(_, member)| {
            let has_one = member.link.is_some() || member.is_tried;
            let is_due = member.next_try.is_none_or(|at| at <= now);
            !has_one && is_due && self.is_spoken_to(member) && is_one(member.address)
        });
        let tried = without.map(|(id, member)| {
            member.is_tried = true;
            (*id, member.address)
        });
        tried.collect()
    }

    /// Takes note of what came of making a session with this node, which is used at once.
    pub(super) fn tried(&self, id: Uuid, at: SocketAddr, made: Result<Arc<Link>, ConnectFault>) {
        let mut members = self.by_id();
        let Some(member) = members.get_mut(&id).filter(|member| member.address == at) else {
            drop(members);
            drop(made);
            return;
        };
        member.is_tried = false;
        match made {
            Ok(link) if member.link.is_none() => {
                if member.why.take().is_some() {
                    tracing::info!(address = %at, "a node of Cassandra is connected to again");
                }
                member.link = Some(link);
                member.is_connected = true;
                member.is_asked = false;
                member.failures = 0;
                member.next_try = None;
                member.alone_since = None;
            }
            Ok(surplus) => {
                drop(members);
                drop(surplus);
            }
            // It was made elsewhere meanwhile.
            Err(_) if member.link.is_some() => {}
            Err(fault) => {
                let pause = TRY_PAUSE * 2_u32.saturating_pow(member.failures);
                member.next_try = Some(Instant::now() + pause.min(TRY_PAUSE_MAX));
                member.failures = (member.failures + 1).min(8);
                let (ConnectFault::Settings(why)
                | ConnectFault::Refused(why)
                | ConnectFault::Unreachable(why)) = fault;
                if member.why.as_ref() != Some(&why) {
                    tracing::warn!(address = %at, %why, "a node of Cassandra is not connected to");
                    member.why = Some(why);
                }
            }
        }
    }

    /// Ends the sessions with nodes that nothing is to be sent to, once there is one with another node.
    pub(super) fn leave_others(&self) {
        // Dropped outside of the lock.
        let mut left = Vec::new();
        let mut members = self.by_id();
        let mut connected = members.values().filter(|member| member.is_connected());
        if connected.any(|member| self.is_spoken_to(member)) {
            let all = members.values_mut();
            let others = all.filter(|member| !self.is_spoken_to(member));
            left.extend(others.filter_map(|member| member.link.take()));
        }
        drop(members);
        drop(left);
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
        let links: Vec<(Uuid, Arc<Link>)> = self.by_id().iter().filter_map(links).collect();
        let now = Instant::now();
        let mut back = Vec::new();
        for (id, link) in links {
            // Outside of the lock: requests wait for that.
            let has_connections = link.has_connections();
            let mut members = self.by_id();
            let Some(member) = with_link(&mut members, id, &link) else {
                continue;
            };
            if member.is_connected && has_connections {
                continue;
            }
            if member.is_connected {
                self.wanted.soon.notify_one();
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
        if let Some(member) = with_link(&mut self.by_id(), id, &link) {
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
