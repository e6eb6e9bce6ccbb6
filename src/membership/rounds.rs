//! The tasks of one replica: rounds of heartbeats and reads, and periodic checks.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::lease::{IncarnationChange, OwnRow, Round};
use super::shell::MembershipShared;
use super::wall_check::WallCheck;
use super::within::within;
use crate::clock::Clock;
use crate::lock::ReplicaId;
use crate::log_throttle::LogThrottle;
use crate::store::{ClusterStore, ReplicaRow, ReplicaState, StateSwap, StoreError};

/// The shortest time between two rounds ...
const APART_MIN: Duration = Duration::from_millis(50);
/// ... and the longest.
const APART_MAX: Duration = Duration::from_millis(1_000);
/// Rounds in a replica TTL.
const PER_REPLICA_TTL: u32 = 10;
/// Rounds open at once. The next one goes out beside them: a slow round costs nothing.
const OPEN_MAX: usize = 10;
/// The largest step between two heartbeats. Small: a store may take the numbers for timestamps in microseconds, and they must
/// stay below those of clocks.
const HEARTBEAT_STEP_MAX: u64 = 16;
/// The row of an ended replica is kept for this time: however often replicas restart, only rows of some minutes are kept.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// Rows deleted at once.
const FORGOTTEN_AT_ONCE: usize = 100;
/// The pause between reads of hand-over requests while some come, since their senders have waiting callers ...
const REQUESTS_EVERY: Duration = Duration::from_millis(200);
/// ... until this many reads in a row showed none.
const READS_WITHOUT_REQUESTS: u32 = 25;
/// The pause between reads of the store's clock (I2) ...
const CLOCK_EVERY: Duration = Duration::from_secs(30);
/// ... and the pause while the clock here is off, so that calls do not wait for long.
const CLOCK_AGAIN: Duration = Duration::from_millis(1_000);

/// Begins the tasks of a replica. They end when it is fenced, stopped or dropped.
pub(super) fn begin(shared: &Arc<MembershipShared>) {
    tokio::spawn(run_rounds(Arc::clone(shared)));
    tokio::spawn(check_clock_and_old_rows(Arc::clone(shared)));
    tokio::spawn(read_requests(Arc::clone(shared)));
}

fn apart(replica_ttl: Duration) -> Duration {
    (replica_ttl / PER_REPLICA_TTL).clamp(APART_MIN, APART_MAX)
}

async fn run_rounds(shared: Arc<MembershipShared>) {
    let shared = &shared;
    let mut ended = shared.ended.subscribe();
    let mut open = FuturesUnordered::new();
    let mut coming_back = FuturesUnordered::new();
    let mut last: Option<Duration> = None;
    let (mut is_wanted, mut moved) = (false, true);
    loop {
        if moved
            && coming_back.is_empty()
            && let Some(change) = shared.judge(|lease, now| lease.come_back(now))
        {
            coming_back.push(come_back(shared, change));
        }
        let pause = match is_wanted {
            true => APART_MIN,
            false => apart(shared.replica_ttl),
        };
        let since = |at| shared.clock.boot().saturating_sub(at);
        let left = last.map_or(Duration::ZERO, |at| pause.saturating_sub(since(at)));
        tokio::select! {
            biased;
            _ = ended.wait_for(|ended| *ended) => return,
            Some(()) = open.next() => continue,
            Some(()) = coming_back.next() => continue,
            () = shared.sooner.notified(), if !is_wanted => {
                is_wanted = true;
                continue;
            }
            () = shared.clock.sleep(left), if open.len() < OPEN_MAX => {}
        }
        last = Some(shared.clock.boot());
        is_wanted = false;
        // A hanging process must look so to the others (H2).
        moved = (shared.moved)();
        if !moved {
            let throttle = &shared.log_throttles.stuck;
            warn(
                shared,
                throttle,
                "the process is stuck: sending no heartbeat",
            );
        }
        let step = moved.then(|| 1 + shared.ids.below(HEARTBEAT_STEP_MAX));
        let Some(round) = shared.judge(|lease, now| lease.begin_round(now, step)) else {
            return;
        };
        open.push(run_round(shared, round));
    }
}

async fn run_round(shared: &Arc<MembershipShared>, round: Round) {
    let heartbeat = async {
        let Some(number) = round.heartbeat else {
            return false;
        };
        let written = shared.store.heartbeat(shared.me, number);
        match within(&*shared.clock, written).await {
            Ok(()) => true,
            Err(error) => {
                let throttle = &shared.log_throttles.heartbeat;
                warn_of(shared, throttle, "heartbeat write failed; retrying", &error);
                false
            }
        }
    };
    let (acknowledged, own) = tokio::join!(heartbeat, read_all(shared));
    shared.judge(|lease, now| lease.end_round(round, acknowledged, own, now));
}

/// Reads all rows, and returns this replica's own.
async fn read_all(shared: &Arc<MembershipShared>) -> Option<OwnRow> {
    let read = shared.observation().begin_read(shared.clock.boot());
    let rows = match within(&*shared.clock, shared.store.list_replicas()).await {
        Ok(rows) => rows,
        Err(error) => {
            let throttle = &shared.log_throttles.read;
            warn_of(
                shared,
                throttle,
                "could not read the rows of the replicas; retrying",
                &error,
            );
            return None;
        }
    };
    let own = own_row(&rows, shared.me);
    // Not only at the end of the round: a hanging heartbeat must not delay it.
    shared.judge(|lease, _| lease.saw(own));
    shared.observation().saw(read, shared.clock.boot(), &rows);
    shared.reads.send_modify(|reads| *reads += 1);
    shared.declare_suspected();
    Some(own)
}

fn own_row(rows: &[ReplicaRow], me: ReplicaId) -> OwnRow {
    let own = rows.iter().find(|row| row.id == me);
    own.map_or(OwnRow::Missing, |row| OwnRow::Present {
        state: row.state,
        heartbeat: row.heartbeat,
    })
}

/// Runs beside the rounds: hand-over requests have their own partition, and being sure must not wait for it.
async fn read_requests(shared: Arc<MembershipShared>) {
    let mut ended = shared.ended.subscribe();
    let reads = async {
        let seldom = apart(shared.replica_ttl);
        let mut without = READS_WITHOUT_REQUESTS;
        loop {
            let pause = match without < READS_WITHOUT_REQUESTS {
                true => REQUESTS_EVERY.min(seldom),
                false => seldom,
            };
            shared.clock.sleep(pause).await;
            without = match read_hand_over_requests(&shared).await {
                true => 0,
                false => without.saturating_add(1),
            };
        }
    };
    tokio::select! {
        biased;
        _ = ended.wait_for(|ended| *ended) => {}
        () = reads => {}
    }
}

/// Returns whether there are any.
async fn read_hand_over_requests(shared: &MembershipShared) -> bool {
    let requests = shared.store.hand_over_requests(shared.me);
    match within(&*shared.clock, requests).await {
        Ok(requests) => {
            let are_some = !requests.is_empty();
            shared.hand_overs.saw(requests);
            are_some
        }
        Err(error) => {
            let throttle = &shared.log_throttles.hand_overs;
            warn_of(
                shared,
                throttle,
                "could not read hand-over requests; retrying",
                &error,
            );
            false
        }
    }
}

/// Changes the incarnation of this silent replica.
async fn come_back(shared: &MembershipShared, change: IncarnationChange) {
    let (expected, next) = (
        ReplicaState::Up(change.expected),
        ReplicaState::Up(change.next),
    );
    let came = shared.swap_state(shared.me, expected, next).await;
    shared.judge(|lease, now| lease.swapped(change, &came, now));
    if let StateSwap::Unknown(error) | StateSwap::NotStarted(error) = &came {
        let throttle = &shared.log_throttles.come_back;
        warn_of(
            shared,
            throttle,
            "could not write the next incarnation of this silent replica; retrying",
            error,
        );
    }
}

/// Checks the clock against the store's, and deletes rows that are no longer needed.
async fn check_clock_and_old_rows(shared: Arc<MembershipShared>) {
    let mut ended = shared.ended.subscribe();
    loop {
        let is_off = shared
            .wall
            .is_off(shared.clock.wall_us(), shared.clock.boot());
        let pause = if is_off { CLOCK_AGAIN } else { CLOCK_EVERY };
        let pause = shared.clock.sleep(pause);
        tokio::select! {
            biased;
            _ = ended.wait_for(|ended| *ended) => return,
            () = pause => {}
        }
        let looked = async {
            if let Err(error) = check_clock(&*shared.store, &*shared.clock, &shared.wall).await {
                let throttle = &shared.log_throttles.store_clock;
                warn_of(
                    &shared,
                    throttle,
                    "could not read the clock of the store; retrying",
                    &error,
                );
            }
            let ended: Vec<ReplicaId> = {
                let observation = shared.observation();
                let ended = observation.ended_for(FORGOTTEN_AFTER);
                ended.take(FORGOTTEN_AT_ONCE).collect()
            };
            futures_util::future::join_all(ended.into_iter().map(|id| shared.forget(id))).await;
        };
        tokio::select! {
            biased;
            _ = ended.wait_for(|ended| *ended) => return,
            () = looked => {}
        }
    }
}

/// Compares the clock of this machine with the store's.
pub(super) async fn check_clock(
    store: &dyn ClusterStore,
    clock: &dyn Clock,
    wall: &WallCheck,
) -> Result<(), StoreError> {
    let before = clock.wall_us();
    let store_us = within(clock, store.clock_us()).await?;
    let after = clock.wall_us();
    let compared = wall.compare(store_us, (before, after), clock.boot());
    match (compared.was_off, compared.is_off) {
        (false, true) => tracing::error!(
            seconds = compared.apart_us / 1_000_000,
            "the clock of this machine differs from the store's by more than a minute: this replica grants no locks until the \
             wrong clock is corrected"
        ),
        (true, false) => {
            tracing::info!("the clock of this machine agrees with the store's again");
        }
        (false, false) | (true, true) => {}
    }
    Ok(())
}

fn warn(shared: &MembershipShared, throttle: &LogThrottle, what: &str) {
    if let Some(times) = throttle.met(shared.clock.boot(), what) {
        tracing::warn!(times, "{what}");
    }
}

fn warn_of(shared: &MembershipShared, throttle: &LogThrottle, what: &str, error: &StoreError) {
    if let Some(times) = throttle.met(shared.clock.boot(), &error.to_string()) {
        tracing::warn!(%error, times, "{what}");
    }
}
