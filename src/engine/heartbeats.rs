//! A replica's own heartbeats, and its looks at those of the others (I10).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::oneshot;

use super::actor::{HandOverAnswer, Msg};
use super::handed_over;
use super::inner::Inner;
use super::peers::Presence;
use crate::limits::Limits;
use crate::lock::{KeyId, ReplicaId};
use crate::store::{HandOverRequest, HandOverTarget, StoreError};

/// Heartbeats are not closer than this …
const APART_MIN: Duration = Duration::from_millis(Limits::HEARTBEATS_APART_MIN_MS as u64);
/// … and not further apart than this.
const APART_MAX: Duration = Duration::from_millis(1_000);
/// How many go into the replica TTL.
const PER_REPLICA_TTL: u32 = 10;
/// Looks at the others are not further apart than this.
const READS_APART: Duration = Duration::from_millis(500);
/// Looks in the TTL of a session that another replica keeps and that is watched here: what they add to the time in
/// which it is found expired is small beside that.
const READS_PER_TTL: u32 = 10;
/// A heartbeat or a read that takes longer is given up.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(2);
/// How many heartbeats may be open at once: those that fit in this time.
const OPEN_MAX: usize = 10;
/// How many hand-over requests are worked at, at once.
const HAND_OVER_REQUESTS_MAX: usize = 500;
/// After this time without a heartbeat a row is forgotten: whatever begins and ends how often, rows of minutes are
/// kept.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// How often the store's clock is looked at (I2) …
const CLOCK_EVERY: Duration = Duration::from_secs(30);
/// … and this often while this one is wrong, so that what waits for that does not wait for long.
const CLOCK_AGAIN: Duration = Duration::from_millis(1_000);

/// The last heartbeat has a number so far above the one before it.
const LAST_AHEAD: u64 = 1 << 32;

/// A fifth of the shortest TTL that is kept here, and a tenth of the replica TTL: one that is lost must not end it.
fn apart(inner: &Inner) -> Duration {
    let own = Duration::from_millis(inner.row.ttl_ms.into()) / PER_REPLICA_TTL;
    let shortest = inner.leases.shortest_ttl();
    let fits = shortest.map_or(own, |ttl| own.min(ttl / Limits::HEARTBEATS_PER_TTL));
    fits.clamp(APART_MIN, APART_MAX)
}

async fn within<T>(
    inner: &Inner,
    work: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    tokio::select! {
        biased;
        done = work => done,
        () = inner.clock.sleep(GIVEN_UP_AFTER) => {
            Err(StoreError::Unavailable("no answer in time".to_owned()))
        }
    }
}

/// The first read of the others, and then the first heartbeat, which announces this replica: a try to start that fails
/// has left no row in most cases. Nothing is served before.
pub(super) async fn begin(inner: &Arc<Inner>) -> Result<(), StoreError> {
    read_members_once(inner).await?;
    check_clock(inner).await?;
    let sent = inner.clock.boot();
    within(inner, inner.store.announce_replica(&inner.row)).await?;
    inner.leases.acknowledged(sent);
    Ok(())
}

/// Writes heartbeats until this replica is fenced. The next one goes out even while those before it are open: one that
/// takes long costs nothing.
pub(super) async fn send_heartbeats(inner: Arc<Inner>) {
    let mut ended = inner.fenced.subscribe();
    let mut last = inner.clock.boot();
    let mut open = FuturesUnordered::new();
    let mut failed = false;
    loop {
        if inner.leases.is_fenced() {
            return inner.fence_self();
        }
        let next = last.saturating_add(apart(&inner));
        let left = next.saturating_sub(inner.clock.boot());
        tokio::select! {
            biased;
            _ = ended.wait_for(|ended| *ended) => return,
            Some(written) = open.next() => {
                tell_of_heartbeat(written, &mut failed);
                continue;
            }
            // Something with a shorter TTL lives here now.
            () = inner.heartbeat_sooner.notified(), if !left.is_zero() => continue,
            () = inner.clock.sleep(left), if open.len() < OPEN_MAX => {}
        }
        last = inner.clock.boot();
        // Not of one that slept for too long: it would only be waited for.
        if !inner.leases.is_fenced() {
            open.push(send_heartbeat(&inner, false));
        }
    }
}

/// Logs when heartbeats begin to fail, and when they are written again.
fn tell_of_heartbeat(written: Result<(), StoreError>, failed: &mut bool) {
    match written {
        Ok(()) => {
            if std::mem::take(failed) {
                tracing::info!("heartbeat writes succeed again");
            }
        }
        Err(error) => {
            if !std::mem::replace(failed, true) {
                tracing::warn!(%error, "heartbeat write failed; retrying");
            }
        }
    }
}

/// One heartbeat. `stopped`: the last one.
pub(super) async fn send_heartbeat(inner: &Inner, stopped: bool) -> Result<(), StoreError> {
    let number = match stopped {
        // Above one that another task may be sending now.
        true => inner.heartbeats.load(Ordering::Relaxed) + LAST_AHEAD,
        false => inner.heartbeats.fetch_add(1, Ordering::Relaxed) + 1,
    };
    let sent = inner.clock.boot();
    within(inner, inner.store.heartbeat(inner.replica, number, stopped)).await?;
    inner.leases.acknowledged(sent);
    Ok(())
}

/// Looks at the others, and at what they ask, until this replica is fenced.
pub(super) async fn read_members(inner: Arc<Inner>) {
    let mut ended = inner.fenced.subscribe();
    let mut clock_at = inner.clock.boot();
    loop {
        // Silence is seen by looks only.
        let watched = inner
            .remote
            .shortest_ttl()
            .unwrap_or(READS_APART * READS_PER_TTL);
        let pause = apart(&inner).min(READS_APART);
        let pause = pause.min(watched / READS_PER_TTL).max(APART_MIN);
        tokio::select! {
            biased;
            _ = ended.wait_for(|ended| *ended) => return,
            () = inner.clock.sleep(pause) => {}
            () = asked_to_read(&inner) => {}
        }
        // At once: a slow answer to one must not put the reads too far apart to count.
        let hand_over_requests = within(&inner, inner.store.hand_over_requests(inner.replica));
        let (re_read, hand_over_requests) =
            tokio::join!(read_members_once(&inner), hand_over_requests);
        if let Err(error) = re_read {
            tracing::debug!(%error, "could not read the rows of the other replicas");
        }
        match hand_over_requests {
            Ok(hand_over_requests) => answer(&inner, hand_over_requests),
            Err(error) => tracing::debug!(%error, "could not read hand-over requests"),
        }
        let every = match inner.is_clock_off() {
            true => CLOCK_AGAIN,
            false => CLOCK_EVERY,
        };
        if inner.clock.boot().saturating_sub(clock_at) >= every {
            clock_at = inner.clock.boot();
            if let Err(error) = check_clock(&inner).await {
                tracing::debug!(%error, "could not read the clock of the store");
            }
            for id in inner.members.silent_for(FORGOTTEN_AFTER) {
                if let Err(error) = within(&inner, inner.store.forget_replica(id)).await {
                    tracing::debug!(%error, replica = %id, "could not delete the row of a replica that is down");
                }
            }
        }
    }
}

/// Returns once a read is wanted that is not too close to the last one.
async fn asked_to_read(inner: &Inner) {
    inner.read_sooner.notified().await;
    let ago = inner.members.unseen(inner.clock.boot());
    inner.clock.sleep(APART_MIN.saturating_sub(ago)).await;
}

/// Where a replica is; of one that is not known, which may be the youngest, after a read of the rows of all.
pub(super) async fn presence_of(inner: &Inner, id: ReplicaId) -> Presence {
    match inner.members.presence(id) {
        Presence::Unsure => {
            if let Err(error) = read_members_once(inner).await {
                tracing::debug!(replica = %id, %error, "could not read the row of an unknown replica");
            }
            inner.members.presence(id)
        }
        known => known,
    }
}

async fn read_members_once(inner: &Inner) -> Result<(), StoreError> {
    let look = inner.members.begin_read(inner.clock.boot());
    let rows = within(inner, inner.store.list_replicas()).await?;
    inner.members.saw(look, inner.clock.boot(), rows);
    Ok(())
}

async fn check_clock(inner: &Inner) -> Result<(), StoreError> {
    let before = inner.clock.wall_us();
    let Some(remote_rows) = within(inner, inner.store.clock_us()).await? else {
        return Ok(());
    };
    let after = inner.clock.wall_us();
    let compared = inner
        .wall
        .compare(remote_rows, (before, after), inner.clock.boot());
    match (compared.was_off, compared.is_off) {
        (false, true) => tracing::error!(
            seconds = compared.apart_us / 1_000_000,
            "the clock of this machine differs from the store's by more than a minute: no lock is granted here until \
             it is set"
        ),
        (true, false) => {
            tracing::info!("the clock of this machine agrees with the store's again");
        }
        (false, false) | (true, true) => {}
    }
    Ok(())
}

/// Works at what is asked, each in a task of its own; what takes long is asked again by the next read.
fn answer(inner: &Arc<Inner>, hand_over_requests: Vec<HandOverRequest>) {
    for request in hand_over_requests.into_iter().take(HAND_OVER_REQUESTS_MAX) {
        if !inner.open_hand_overs.begin(request.id) {
            continue;
        }
        let inner = Arc::clone(inner);
        tokio::spawn(async move {
            let given_up = hand_over_answer(&inner, &request).await;
            if let HandOverAnswer::Yes = given_up {
                match &request.target {
                    HandOverTarget::Entry { key, seq, .. } => {
                        tracing::info!(%key, %seq, "handed a lockRef over to another replica that requested it");
                    }
                    HandOverTarget::Session { session, .. } => {
                        tracing::info!(%session, "handed a session over to another replica that requested it");
                    }
                    HandOverTarget::Key { .. } => {}
                }
            }
            let written = match given_up {
                HandOverAnswer::Yes => inner.store.agree_to_hand_over(&request).await,
                HandOverAnswer::No => inner.store.decline_hand_over(&request).await,
                HandOverAnswer::NotNow => Ok(()),
            };
            if let Err(error) = written {
                tracing::debug!(%error, "could not write the answer to a hand-over request; it will be answered again");
            }
            inner.open_hand_overs.end(request.id);
        });
    }
}

/// Whether what is asked for is given up, here and now, for good. Of news: whether they were heard.
async fn hand_over_answer(inner: &Arc<Inner>, request: &HandOverRequest) -> HandOverAnswer {
    let is_done = |done: bool| match done {
        true => HandOverAnswer::Yes,
        false => HandOverAnswer::NotNow,
    };
    match &request.target {
        HandOverTarget::Key { key, version } => {
            let id = Arc::new(key.clone());
            is_done(inner.keys.hint(inner, &id, *version).is_ok())
        }
        HandOverTarget::Entry {
            key,
            seq,
            fence,
            epoch,
        } => {
            let (reply, answer) = oneshot::channel();
            let msg = Msg::HandOver {
                seq: *seq,
                fence: *fence,
                epoch: *epoch,
                reply,
            };
            let id: Arc<KeyId> = Arc::new(key.clone());
            match inner.keys.send(inner, &id, msg) {
                Ok(()) => answer.await.unwrap_or(HandOverAnswer::NotNow),
                Err(_) => HandOverAnswer::NotNow,
            }
        }
        HandOverTarget::Session { session, epoch } => {
            is_done(handed_over::give_up(inner, *session, *epoch).await)
        }
    }
}
