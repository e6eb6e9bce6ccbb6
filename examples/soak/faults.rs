//! Faults: which there are, how they are drawn, how they are made and mended.
//!
//! Those of replicas, of nodes and of clients each come one after the other; together they overlap as they like.

use std::sync::Arc;
use std::time::Duration;

use fermata_proto::CreateLockRefRequest;
use nix::sys::signal::Signal;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::report::replica_name;
use super::shared::calls::seconds;
use super::shared::cassandra::{self, ClusterError};
use super::shared::counters::{KEYS, TTL};
use super::shared::network;
use super::shared::replica::Replica;
use super::shared::rng::Rng;
use super::shared::sprayed::Sprayed;
use super::timeline::Timeline;
use super::world::{World, blocking};
use super::{CUT_NODE, Failure, NODES};

/// Between the end of one and the begin of the next of its sort.
const PAUSE_MS: (u64, u64) = (2_000, 20_000);
/// How long what can be ended at will lasts: from nothing to more than the TTL of replicas, and of sessions.
const LASTS_MS: (u64, u64) = (500, 20_000);
/// How long a majority is away, before its nodes start: with that, clients go on asking all the time.
const MAJORITY_MS: (u64, u64) = (500, 8_000);
/// The lease of a client that goes without a word.
const GONE_TTL: Duration = Duration::from_secs(5);
/// A replica serves again within this: more than nodes take to come back, which it needs a majority of.
const SERVES_WITHIN: Duration = Duration::from_secs(300);
/// How long one waits for its turn before it goes.
const GONE_PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    ReplicaKilled,
    ReplicaStopped,
    ReplicaPaused,
    ReplicasRenewed,
    ReplicasApart,
    NodeKilled,
    NodePaused,
    NodeCutOff,
    MajorityKilled,
    MajorityPaused,
    /// By its operator, for it did not see the others again.
    NodeRestarted,
    HolderGone,
}

impl Kind {
    pub const ALL: [Kind; 12] = [
        Kind::ReplicaKilled,
        Kind::ReplicaStopped,
        Kind::ReplicaPaused,
        Kind::ReplicasRenewed,
        Kind::ReplicasApart,
        Kind::NodeKilled,
        Kind::NodePaused,
        Kind::NodeCutOff,
        Kind::MajorityKilled,
        Kind::MajorityPaused,
        Kind::NodeRestarted,
        Kind::HolderGone,
    ];

    const OF_REPLICAS: [Kind; 5] = [
        Kind::ReplicaKilled,
        Kind::ReplicaStopped,
        Kind::ReplicaPaused,
        Kind::ReplicasRenewed,
        Kind::ReplicasApart,
    ];

    const OF_NODES: [Kind; 5] = [
        Kind::NodeKilled,
        Kind::NodePaused,
        Kind::NodeCutOff,
        Kind::MajorityKilled,
        Kind::MajorityPaused,
    ];

    pub fn words(self) -> &'static str {
        match self {
            Kind::ReplicaKilled => "replica killed and started",
            Kind::ReplicaStopped => "replica stopped and started",
            Kind::ReplicaPaused => "replica paused",
            Kind::ReplicasRenewed => "all replicas restarted in turn",
            Kind::ReplicasApart => "replicas cut off from each other",
            Kind::NodeKilled => "node killed and started",
            Kind::NodePaused => "node paused",
            Kind::NodeCutOff => "node cut off",
            Kind::MajorityKilled => "two nodes killed and started",
            Kind::MajorityPaused => "two nodes paused",
            Kind::NodeRestarted => "node blind to others restarted",
            Kind::HolderGone => "holder gone without a word",
        }
    }

    /// Needs a network of the soak's own.
    pub fn is_cut(self) -> bool {
        matches!(self, Kind::ReplicasApart | Kind::NodeCutOff)
    }
}

/// What makes the faults of one round.
#[derive(Clone)]
pub struct Faults {
    pub world: Arc<World>,
    pub timeline: Timeline,
    pub may_cut: bool,
    /// After this none begins, counted from the begin of the soak.
    pub until: Duration,
}

fn between(rng: &mut Rng, (from, to): (u64, u64)) -> Duration {
    Duration::from_millis(from + rng.below(to - from))
}

fn pick(rng: &mut Rng, bound: usize) -> usize {
    usize::try_from(rng.below(bound as u64)).unwrap_or(0)
}

impl Faults {
    /// Waits for the next one; no more come once it has ended.
    async fn next(&self, rng: &mut Rng) -> bool {
        let pause = between(rng, PAUSE_MS);
        if self.timeline.elapsed() + pause >= self.until {
            let left = self.until.saturating_sub(self.timeline.elapsed());
            sleep(left).await;
            return false;
        }
        sleep(pause).await;
        true
    }

    fn drawn(&self, rng: &mut Rng, kinds: &[Kind]) -> Kind {
        let kinds: Vec<Kind> = kinds
            .iter()
            .copied()
            .filter(|kind| self.may_cut || !kind.is_cut())
            .collect();
        kinds[pick(rng, kinds.len())]
    }

    pub async fn of_replicas(self, mut rng: Rng) -> Result<(), Failure> {
        while self.next(&mut rng).await {
            let kind = self.drawn(&mut rng, &Kind::OF_REPLICAS);
            let number = pick(&mut rng, self.world.replicas());
            let lasts = between(&mut rng, LASTS_MS);
            let all = matches!(kind, Kind::ReplicasRenewed | Kind::ReplicasApart);
            let on = match all {
                true => String::new(),
                false => replica_name(number + 1),
            };
            let begun = self.timeline.begins(kind, &on);
            let world = Arc::clone(&self.world);
            let made = blocking(move || match kind {
                Kind::ReplicaPaused => {
                    runs(&mut world.replica(number), number)?;
                    paused(lasts, |signal| {
                        world.replica(number).signal(signal);
                        Ok(())
                    })
                }
                Kind::ReplicasApart => {
                    replicas_apart(&world, lasts);
                    Ok(())
                }
                Kind::ReplicasRenewed => {
                    (0..world.replicas()).try_for_each(|number| restarted(&world, number, false))
                }
                kind => restarted(&world, number, kind == Kind::ReplicaKilled),
            });
            made.await??;
            self.timeline.ends(begun);
        }
        Ok(())
    }

    pub async fn of_nodes(self, mut rng: Rng) -> Result<(), Failure> {
        while self.next(&mut rng).await {
            let kind = self.drawn(&mut rng, &Kind::OF_NODES);
            let first = pick(&mut rng, NODES);
            let lasts = between(&mut rng, LASTS_MS);
            let away = between(&mut rng, MAJORITY_MS);
            let nodes = match kind {
                Kind::NodeCutOff => vec![CUT_NODE],
                Kind::MajorityKilled | Kind::MajorityPaused => {
                    vec![first + 1, (first + 1) % NODES + 1]
                }
                _ => vec![first + 1],
            };
            let on: Vec<String> = nodes.iter().map(usize::to_string).collect();
            let on = format!("node {}", on.join(" and "));
            let begun = self.timeline.begins(kind, &on);
            let (world, timeline) = (Arc::clone(&self.world), self.timeline.clone());
            let made = blocking(move || {
                let lasts = if nodes.len() > 1 { away } else { lasts };
                match kind {
                    Kind::NodeCutOff => {
                        network::cut();
                        std::thread::sleep(lasts);
                        network::heal();
                    }
                    Kind::NodePaused | Kind::MajorityPaused => paused(lasts, |signal| {
                        nodes
                            .iter()
                            .try_for_each(|node| cassandra::signal(*node, signal))
                            .map_err(Failure::from)
                    })?,
                    _ => {
                        for node in &nodes {
                            cassandra::signal(*node, Signal::SIGKILL)?;
                        }
                        std::thread::sleep(lasts);
                        for node in &nodes {
                            world.cluster.start_again(*node)?;
                        }
                    }
                }
                match world.wait_for_nodes() {
                    Err(blind @ ClusterError::Blind { .. }) => {
                        timeline.tell(&blind.to_string());
                        nodes_again(&world, &timeline, &nodes, &on)
                    }
                    seen => seen.map_err(Failure::from),
                }
            });
            made.await??;
            self.timeline.ends(begun);
        }
        Ok(())
    }

    /// Clients that hold a key, and are gone without a word.
    pub async fn of_clients(self, mut rng: Rng, clients: Sprayed, name: String) {
        while self.next(&mut rng).await {
            let key = format!("{name}-{}", rng.below(KEYS as u64));
            let one = clients.of_client(pick(&mut rng, self.world.replicas()));
            let ask = CreateLockRefRequest {
                key: key.clone(),
                request_id: Uuid::new_v4().to_string(),
                ttl: Some(seconds(GONE_TTL)),
                owner: "a client that goes".to_owned(),
                ..Default::default()
            };
            let turn = async {
                let lock_ref = one.create(ask).await?;
                one.acquire(&lock_ref).await
            };
            // An entry that is lost meanwhile, or whose turn does not come, is gone without a word as well.
            if let Ok(Ok(_)) = timeout(GONE_PATIENCE, turn).await {
                let begun = self.timeline.begins(Kind::HolderGone, &key);
                sleep(GONE_TTL).await;
                self.timeline.ends(begun);
            }
        }
    }
}

fn paused(lasts: Duration, send: impl Fn(Signal) -> Result<(), Failure>) -> Result<(), Failure> {
    send(Signal::SIGSTOP)?;
    std::thread::sleep(lasts);
    send(Signal::SIGCONT)
}

/// Starts nodes again as their operator would: one that lost an answer of another's while it was cut off may take that
/// for down ever after.
fn nodes_again(
    world: &World,
    timeline: &Timeline,
    nodes: &[usize],
    on: &str,
) -> Result<(), Failure> {
    let begun = timeline.begins(Kind::NodeRestarted, on);
    for node in nodes {
        cassandra::signal(*node, Signal::SIGKILL)?;
    }
    for node in nodes {
        world.cluster.start_again(*node)?;
    }
    world.wait_for_nodes()?;
    timeline.ends(begun);
    Ok(())
}

fn replicas_apart(world: &World, lasts: Duration) {
    let ports: Vec<u16> = (0..world.replicas())
        .map(|number| world.replica(number).peer_port())
        .collect();
    for port in &ports {
        network::close_port(*port);
    }
    std::thread::sleep(lasts);
    for port in &ports {
        network::open_port(*port);
    }
}

/// A replica that ended by itself is not to be taken for one that was ended.
fn runs(replica: &mut Replica, number: usize) -> Result<(), Failure> {
    match replica.ended() {
        None => Ok(()),
        Some(status) => {
            let end = replica.log_end();
            Err(format!("replica {} ended by itself: {status}\n{end}", number + 1).into())
        }
    }
}

/// Ends a replica, and starts it at the addresses it had.
fn restarted(world: &World, number: usize, kill: bool) -> Result<(), Failure> {
    let mut replica = world.replica(number);
    runs(&mut replica, number)?;
    match kill {
        true => replica.kill(),
        false => {
            let status = replica.stop();
            if !status.success() {
                return Err(format!("replica {} ended with {status}", number + 1).into());
            }
        }
    }
    replica.start_again();
    match replica.line_within("replica ", SERVES_WITHIN) {
        Some(_) => Ok(()),
        None => {
            let end = replica.log_end();
            Err(format!(
                "replica {} does not serve after {SERVES_WITHIN:?}\n{end}",
                number + 1
            )
            .into())
        }
    }
}

/// How long after the last fault everybody may still be on the way.
pub const PATIENCE: Duration = Duration::from_secs(TTL.as_secs() * 4 + 120);
