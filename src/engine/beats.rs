//! A replica's own beats, and its looks at those of the others (design §6, I10).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::oneshot;

use super::actor::{GivesUp, Msg};
use super::ceded;
use super::inner::Inner;
use super::peers::Presence;
use crate::limits::Limits;
use crate::lock::{KeyId, ReplicaId};
use crate::store::{Question, StoreError, Subject};

/// Beats are not closer than this …
const APART_MIN: Duration = Duration::from_millis(Limits::BEATS_APART_MIN_MS as u64);
/// … and not further apart than this.
const APART_MAX: Duration = Duration::from_millis(1_000);
/// How many go into the replica TTL.
const PER_REPLICA_TTL: u32 = 10;
/// Looks at the others are not further apart than this.
const LOOKS_APART: Duration = Duration::from_millis(500);
/// Looks in the TTL of a session that another replica keeps and that is watched here: what they add to the time in
/// which it is found dead is small beside that.
const LOOKS_PER_TTL: u32 = 10;
/// A heartbeat or a look that takes longer is given up.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(2);
/// How many heartbeats may be open at once: those that fit in this time.
const OPEN_MAX: usize = 10;
/// How many questions are worked at, at once.
const QUESTIONS_MAX: usize = 500;
/// After this time without a heartbeat a row is forgotten: whatever begins and ends how often, rows of minutes are kept.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// How often the store's clock is looked at (I2) …
const CLOCK_EVERY: Duration = Duration::from_secs(30);
/// … and this often while this one is wrong, so that what waits for that does not wait for long.
const CLOCK_AGAIN: Duration = Duration::from_millis(1_000);

/// The last beat has a number so far above the one before it.
const LAST_AHEAD: u64 = 1 << 32;

/// A fifth of the shortest TTL that is kept here, and a tenth of the replica TTL: one that is lost must not end it.
fn apart(inner: &Inner) -> Duration {
    let own = Duration::from_millis(inner.row.ttl_ms.into()) / PER_REPLICA_TTL;
    let shortest = inner.leases.shortest_ttl();
    let fits = shortest.map_or(own, |ttl| own.min(ttl / Limits::BEATS_PER_TTL));
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

/// The first look at the others, and then the first heartbeat, which announces this replica: a try to start that fails
/// has left no row in most cases. Nothing is served before.
pub(super) async fn begin(inner: &Arc<Inner>) -> Result<(), StoreError> {
    look(inner).await?;
    look_at_clock(inner).await?;
    let sent = inner.clock.boot();
    within(inner, inner.store.announce_replica(&inner.row)).await?;
    inner.leases.acknowledged(sent);
    Ok(())
}

/// Writes heartbeats until this replica is fenced. The next one goes out even while those before it are open: one that
/// takes long costs nothing.
pub(super) async fn beat_on(inner: Arc<Inner>) {
    let mut over = inner.dead.subscribe();
    let mut last = inner.clock.boot();
    let mut open = FuturesUnordered::new();
    let mut failed = false;
    loop {
        if inner.leases.is_dead() {
            return inner.die();
        }
        let next = last.saturating_add(apart(&inner));
        let left = next.saturating_sub(inner.clock.boot());
        tokio::select! {
            biased;
            _ = over.wait_for(|over| *over) => return,
            Some(written) = open.next() => {
                tell_of_heartbeat(written, &mut failed);
                continue;
            }
            // Something with a shorter TTL lives here now.
            () = inner.beat_sooner.notified(), if !left.is_zero() => continue,
            () = inner.clock.sleep(left), if open.len() < OPEN_MAX => {}
        }
        last = inner.clock.boot();
        // Not of one that slept for too long: it would only be waited for.
        if !inner.leases.is_dead() {
            open.push(beat(&inner, false));
        }
    }
}

/// Logs when heartbeats begin to fail, and when they are written again.
fn tell_of_heartbeat(written: Result<(), StoreError>, failed: &mut bool) {
    match written {
        Ok(()) => {
            if std::mem::take(failed) {
                tracing::info!("heartbeats are written again");
            }
        }
        Err(error) => {
            if !std::mem::replace(failed, true) {
                tracing::warn!(%error, "heartbeat write failed; retrying");
            }
        }
    }
}

/// One beat. `stopped`: the last one.
pub(super) async fn beat(inner: &Inner, stopped: bool) -> Result<(), StoreError> {
    let number = match stopped {
        // Above one that another task may be sending now.
        true => inner.beats.load(Ordering::Relaxed) + LAST_AHEAD,
        false => inner.beats.fetch_add(1, Ordering::Relaxed) + 1,
    };
    let sent = inner.clock.boot();
    within(inner, inner.store.beat(inner.replica, number, stopped)).await?;
    inner.leases.acknowledged(sent);
    Ok(())
}

/// Looks at the others, and at what they ask, until this replica is over.
pub(super) async fn look_on(inner: Arc<Inner>) {
    let mut over = inner.dead.subscribe();
    let mut clock_at = inner.clock.boot();
    loop {
        // Silence is seen by looks only.
        let watched = inner
            .remote
            .shortest_ttl()
            .unwrap_or(LOOKS_APART * LOOKS_PER_TTL);
        let pause = apart(&inner).min(LOOKS_APART);
        let pause = pause.min(watched / LOOKS_PER_TTL).max(APART_MIN);
        tokio::select! {
            biased;
            _ = over.wait_for(|over| *over) => return,
            () = inner.clock.sleep(pause) => {}
            () = asked_to_look(&inner) => {}
        }
        // At once: a slow answer to one must not put the looks too far apart to count.
        let questions = within(&inner, inner.store.questions(inner.replica));
        let (looked, questions) = tokio::join!(look(&inner), questions);
        if let Err(error) = looked {
            tracing::debug!(%error, "the other replicas could not be looked at");
        }
        match questions {
            Ok(questions) => answer(&inner, questions),
            Err(error) => tracing::debug!(%error, "questions could not be read"),
        }
        let every = match inner.is_clock_off() {
            true => CLOCK_AGAIN,
            false => CLOCK_EVERY,
        };
        if inner.clock.boot().saturating_sub(clock_at) >= every {
            clock_at = inner.clock.boot();
            if let Err(error) = look_at_clock(&inner).await {
                tracing::debug!(%error, "the clock of the store could not be read");
            }
            for id in inner.members.silent_for(FORGOTTEN_AFTER) {
                if let Err(error) = within(&inner, inner.store.forget_replica(id)).await {
                    tracing::debug!(%error, replica = %id, "an old replica could not be forgotten");
                }
            }
        }
    }
}

/// Returns once a look is wanted that is not too close to the last one.
async fn asked_to_look(inner: &Inner) {
    inner.look_sooner.notified().await;
    let ago = inner.members.unseen(inner.clock.boot());
    inner.clock.sleep(APART_MIN.saturating_sub(ago)).await;
}

/// Where a replica is; of one that is not known, which may be the youngest, after a look at the rows of all.
pub(super) async fn presence_of(inner: &Inner, id: ReplicaId) -> Presence {
    match inner.members.presence(id) {
        Presence::Unsure => {
            if let Err(error) = look(inner).await {
                tracing::debug!(replica = %id, %error, "a replica that is not known could not be looked up");
            }
            inner.members.presence(id)
        }
        known => known,
    }
}

async fn look(inner: &Inner) -> Result<(), StoreError> {
    let look = inner.members.look(inner.clock.boot());
    let rows = within(inner, inner.store.list_replicas()).await?;
    inner.members.saw(look, inner.clock.boot(), rows);
    Ok(())
}

async fn look_at_clock(inner: &Inner) -> Result<(), StoreError> {
    let before = inner.clock.wall_us();
    let Some(theirs) = within(inner, inner.store.clock_us()).await? else {
        return Ok(());
    };
    let after = inner.clock.wall_us();
    let compared = inner
        .wall
        .compare(theirs, (before, after), inner.clock.boot());
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

/// Works at what is asked, each in a task of its own; what takes long is asked again by the next look.
fn answer(inner: &Arc<Inner>, questions: Vec<Question>) {
    for question in questions.into_iter().take(QUESTIONS_MAX) {
        if !inner.asked.begin(question.id) {
            continue;
        }
        let inner = Arc::clone(inner);
        tokio::spawn(async move {
            let given_up = gives_up(&inner, &question).await;
            if let GivesUp::Yes = given_up {
                match &question.about {
                    Subject::Place { key, seq, .. } => {
                        tracing::info!(%key, %seq, "gave a lockRef up to another replica that asked for it");
                    }
                    Subject::Session { session, .. } => {
                        tracing::info!(%session, "gave a session up to another replica that asked for it");
                    }
                    Subject::Key { .. } => {}
                }
            }
            let written = match given_up {
                GivesUp::Yes => inner.store.consent(&question).await,
                GivesUp::No => inner.store.decline(&question).await,
                GivesUp::NotNow => Ok(()),
            };
            if let Err(error) = written {
                tracing::debug!(%error, "an answer to a question could not be written; it is asked again");
            }
            inner.asked.end(question.id);
        });
    }
}

/// Whether what is asked for is given up, here and now, for good. Of news: whether they were heard.
async fn gives_up(inner: &Arc<Inner>, question: &Question) -> GivesUp {
    let is_done = |done: bool| match done {
        true => GivesUp::Yes,
        false => GivesUp::NotNow,
    };
    match &question.about {
        Subject::Key { key, version } => {
            let id = Arc::new(key.clone());
            is_done(inner.keys.hint(inner, &id, *version).is_ok())
        }
        Subject::Place {
            key,
            seq,
            fence,
            epoch,
        } => {
            let (reply, answer) = oneshot::channel();
            let msg = Msg::Consent {
                seq: *seq,
                fence: *fence,
                epoch: *epoch,
                reply,
            };
            let id: Arc<KeyId> = Arc::new(key.clone());
            match inner.keys.send(inner, &id, msg) {
                Ok(()) => answer.await.unwrap_or(GivesUp::NotNow),
                Err(_) => GivesUp::NotNow,
            }
        }
        Subject::Session { session, epoch } => {
            is_done(ceded::give_up(inner, *session, *epoch).await)
        }
    }
}
