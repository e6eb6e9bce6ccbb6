//! Who has what, and how this replica comes to have it (I10). The gRPC edge asks here where a call belongs.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::Engine;
use super::actor::{EntryRef, EntryStatus, Msg};
use super::api::{EngineError, Renewed};
use super::inner::Inner;
use super::peers::Presence;
use super::sessions;
use crate::lock::{Fence, KeyId, LockRef, ReplicaId, SessionId};
use crate::store::{HAND_OVER_REQUEST_KEPT, HandOverRequest, HandOverTarget, StoreError};

/// An answer to a hand-over request is looked for after this, then after twice as long …
const READ_AFTER: Duration = Duration::from_millis(100);
/// … and at last this often: those who are asked look for hand-over requests no oftener.
const READ_EVERY: Duration = Duration::from_millis(400);
/// How long one try waits for agreement.
const HAND_OVER_MAX: Duration = Duration::from_secs(4);
// What is asked must not be forgotten while somebody waits for the answer, though clocks differ.
const _: () = assert!(HAND_OVER_REQUEST_KEPT.as_millis() >= 4 * HAND_OVER_MAX.as_millis());
/// How often a take-over that met another state is tried again.
const TRIES: u32 = 4;

impl Engine {
    /// The replica that should serve a key, softly: the same for all who ask, while it lives. `Here`, or `Live`.
    pub fn affinity(&self, key: &KeyId) -> Presence {
        match self.inner() {
            Ok(inner) if inner.shared => inner.members.affinity(key),
            Ok(_) | Err(_) => Presence::Local,
        }
    }

    /// What is known of a replica.
    pub fn presence(&self, id: ReplicaId) -> Presence {
        match self.inner() {
            Ok(inner) => inner.members.presence(id),
            Err(_) => Presence::Unsure,
        }
    }

    /// Makes this replica the home of a lockRef that `home` has and cannot be asked for: at once where it is
    /// down, or where the lockRef waits and has a session, else once it agreed through the store (I10), or, of one
    /// that waits, was silent for its TTL. Fails where that takes too long, with `Unavailable`, and with `Elsewhere`
    /// where another replica has it meanwhile.
    pub async fn take_over(&self, lock_ref: &LockRef, home: ReplicaId) -> Result<(), EngineError> {
        let inner = self.inner()?;
        let id = self.id_of_ref(lock_ref)?;
        let entry_ref = EntryRef::from(lock_ref);
        // In a task of its own: a hand-over request that was put is followed up, whoever waits.
        let taken = tokio::spawn(async move { take(&inner, &id, entry_ref, home).await });
        taken.await.map_err(|_| super::actor::no_answer())?
    }

    /// As [`Engine::take_over`], for the entry that a create with this request_id made.
    pub async fn take_created(
        &self,
        id: &KeyId,
        request_id: Uuid,
        home: ReplicaId,
    ) -> Result<(), EngineError> {
        let inner = self.inner()?;
        let state = inner.store.load(id).await.map_err(failed)?;
        let state = state.unwrap_or_default();
        let made = state.entries.iter().find(|e| e.request_id == request_id);
        match made {
            Some(entry) => {
                let lock_ref = LockRef {
                    table: id.table.clone(),
                    key: id.key.clone(),
                    seq: entry.seq,
                    tag: entry.tag(),
                    grant: None,
                };
                self.take_over(&lock_ref, home).await
            }
            // Over meanwhile: the next try makes another.
            None => Ok(()),
        }
    }

    /// As [`Engine::take_over`], for a session and the replica that renews it.
    pub async fn take_session(
        &self,
        session: SessionId,
        keeper: ReplicaId,
    ) -> Result<(), EngineError> {
        sessions::take(&self.inner()?, session, keeper).await
    }

    /// Another replica says that a key has this version now. Fails where that could not be taken in.
    pub fn hinted(&self, key: KeyId, version: u64) -> Result<(), EngineError> {
        let inner = self.inner()?;
        inner.keys.hint(&inner, &Arc::new(key), version)
    }

    /// Another replica says that a session has ended.
    pub fn session_hinted(&self, session: SessionId) {
        if let Ok(inner) = self.inner() {
            inner.remote.hint(session);
        }
    }

    /// Another replica passes on a renewal of a session that this one keeps.
    pub async fn renew_for(&self, session: SessionId) -> Result<Renewed, EngineError> {
        let inner = self.inner()?;
        let renewed = sessions::renew(&inner, session).await;
        inner.alive()?;
        renewed
    }
}

async fn take(
    inner: &Arc<Inner>,
    id: &Arc<KeyId>,
    entry_ref: EntryRef,
    home: ReplicaId,
) -> Result<(), EngineError> {
    for tries in 0..TRIES {
        if tries > 0 {
            inner.clock.sleep(inner.backoff(tries)).await;
        }
        let found = Engine::ask(inner, id, |reply| Msg::Where { entry_ref, reply }).await?;
        if found.home == inner.replica {
            return Ok(());
        }
        if found.home != home {
            return Err(EngineError::Elsewhere {
                home: found.home,
                version: found.version,
            });
        }
        if found.needs_hand_over && inner.members.presence(home) != Presence::Down {
            let target = HandOverTarget::Entry {
                key: KeyId::clone(id),
                seq: entry_ref.seq,
                fence: found.fence,
                epoch: found.epoch,
            };
            let agreed = hand_over_agreed(inner, home, target);
            tokio::select! {
                biased;
                taken = taken_silent(inner, id, entry_ref, &found) => match taken {
                    true => return Ok(()),
                    // It changed meanwhile: re-read.
                    false => continue,
                },
                agreed = agreed => {
                    if !agreed.map_err(failed)? {
                        return Err(EngineError::Unavailable(
                            "the replica that has this lockRef cannot be called, and did not give it up yet"
                                .to_owned(),
                        ));
                    }
                }
            }
        }
        let EntryStatus {
            fence: from_fence,
            epoch: from_epoch,
            ..
        } = found;
        let taken = Engine::ask(inner, id, |reply| Msg::Take {
            seq: entry_ref.seq,
            from_home: home,
            from_fence,
            from_epoch,
            reply,
        });
        match taken.await {
            Ok(true) => return Ok(()),
            // It changed meanwhile: re-read.
            Ok(false) => {}
            Err(error) => return Err(error),
        }
    }
    Err(EngineError::Unavailable(
        "the lockRef is changing its home".to_owned(),
    ))
}

/// Waits for a waiter to be taken over from a home that is its liveness and is silent. False if it changed otherwise.
async fn taken_silent(
    inner: &Arc<Inner>,
    id: &Arc<KeyId>,
    entry_ref: EntryRef,
    found: &EntryStatus,
) -> bool {
    if found.fence == Fence::NONE {
        let taken = Engine::ask(inner, id, |reply| Msg::TakeSilent {
            seq: entry_ref.seq,
            from_home: found.home,
            from_epoch: found.epoch,
            reply,
        });
        match taken.await {
            Ok(taken) => return taken,
            Err(error) => tracing::debug!(key = %id, %error, "a silent home is not observed"),
        }
    }
    // A holder goes with agreement only, as what cannot be observed does.
    std::future::pending().await
}

pub(super) fn failed(error: StoreError) -> EngineError {
    EngineError::Unavailable(error.to_string())
}

/// Asks a replica that lives and cannot be called, through the store. True once it agreed, or is down; false
/// where it declines, or does not answer in time.
pub(super) async fn hand_over_agreed(
    inner: &Inner,
    home: ReplicaId,
    target: HandOverTarget,
) -> Result<bool, StoreError> {
    let request = HandOverRequest {
        id: inner.ids.uuid(),
        home,
        target,
    };
    inner.store.request_hand_over(&request).await?;
    let until = inner.clock.boot().saturating_add(HAND_OVER_MAX);
    let mut pause = READ_AFTER;
    while inner.clock.boot() < until {
        inner.clock.sleep(pause).await;
        pause = pause.saturating_mul(2).min(READ_EVERY);
        if inner.members.presence(home) == Presence::Down {
            return Ok(true);
        }
        if let Some(agreed) = inner.store.hand_over_agreed(&request).await? {
            return Ok(agreed);
        }
    }
    Ok(false)
}
