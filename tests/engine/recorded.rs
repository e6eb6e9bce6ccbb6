//! An engine whose calls are noted in a history. To the tests it is the engine.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use fermata::engine::{
    Acquired, CreateCall, CreatedLockRef, Done, EngineError, ForceReleased, LeaseId, LiveBy,
    LockStatus, Mutation, Renewed, Value,
};
use fermata::lock::{EndedAs, LockRef, SessionId};
use uuid::Uuid;

use super::history::{self, Call, Event, Learned, Op, Outcome, Recorder};

/// Cheap to clone; clones are of one client.
#[derive(Clone)]
pub struct Engine {
    inner: fermata::engine::Engine,
    history: Recorder,
    client: Arc<str>,
}

impl Deref for Engine {
    type Target = fermata::engine::Engine;

    fn deref(&self) -> &fermata::engine::Engine {
        &self.inner
    }
}

fn refused(error: &EngineError) -> Outcome {
    match error {
        EngineError::Ended(EndedAs::Released) => Outcome::Refused(Learned::Released),
        EngineError::Ended(_) => Outcome::Refused(Learned::Ended),
        EngineError::EndedDuringWrite(EndedAs::Released) => Outcome::Unknown(Learned::Released),
        EngineError::EndedDuringWrite(_) => Outcome::Unknown(Learned::Ended),
        EngineError::GrantSuperseded => Outcome::Refused(Learned::Superseded),
        EngineError::SupersededDuringWrite => Outcome::Unknown(Learned::Superseded),
        EngineError::Unavailable(_)
        | EngineError::WriteUnknown(_)
        | EngineError::ReleasingDuringWrite
        | EngineError::Silent
        | EngineError::Fenced
        | EngineError::Stopping => Outcome::Unknown(Learned::Nothing),
        EngineError::UnknownTable(_)
        | EngineError::NeverIssued
        | EngineError::SessionEnded
        | EngineError::NoGrant
        | EngineError::Releasing
        | EngineError::CallNoNotAbove { .. }
        | EngineError::RequestMismatch { .. }
        | EngineError::NotInProtocol { .. }
        | EngineError::RowBusy { .. }
        | EngineError::StaleLock { .. }
        | EngineError::Exhausted { .. }
        | EngineError::ShareUsed { .. }
        | EngineError::Overloaded { .. }
        | EngineError::ClockOff
        | EngineError::KeyUsedUp(_)
        | EngineError::Elsewhere { .. } => Outcome::Refused(Learned::Nothing),
    }
}

/// Notes what came of a call, and passes it on.
fn came_to<T>(
    mut call: Call,
    answer: Result<T, EngineError>,
    done: impl FnOnce(&T, &mut Event) -> Outcome,
) -> Result<T, EngineError> {
    let outcome = match &answer {
        Ok(answer) => done(answer, &mut call.event),
        Err(error) => refused(error),
    };
    call.came_to(outcome);
    answer
}

fn stands(status: &LockStatus, event: &mut Event) {
    if let LockStatus::Held { grant, value } = status {
        event.grant = Some(grant.0);
        event.read = value.as_ref().map(|value| value.bytes.clone());
    }
}

fn written(mutation: &Mutation) -> history::Value {
    match mutation {
        Mutation::Put(bytes) => Some(bytes.clone()),
        Mutation::Delete => None,
    }
}

impl Engine {
    pub fn new(inner: fermata::engine::Engine, history: &Recorder, client: &str) -> Engine {
        Engine {
            inner,
            history: history.clone(),
            client: client.into(),
        }
    }

    /// The same, asked by somebody else.
    pub fn of_client(&self, client: &str) -> Engine {
        Engine::new(self.inner.clone(), &self.history, client)
    }

    fn call(&self, op: Op, ask: impl FnOnce(&mut Event)) -> Call {
        self.history.call(&self.client, op, |event| {
            // They go to one task in the order they are made in.
            event.in_order = true;
            ask(event);
        })
    }

    fn call_of(&self, op: Op, lock_ref: &LockRef) -> Call {
        self.call(op, |event| event.names(lock_ref))
    }

    fn call_under(&self, op: Op, lock_ref: &LockRef) -> Call {
        self.call(op, |event| {
            event.names(lock_ref);
            event.grant = lock_ref.grant.map(|grant| grant.0);
        })
    }

    pub async fn create(&self, call: CreateCall) -> Result<CreatedLockRef, EngineError> {
        let request = Uuid::from_bytes(call.tag.bytes());
        let noted = self.call(Op::Create { request }, |event| {
            event.key = call.id.key.as_str().into();
            if let LiveBy::Session(session) = &call.live_by {
                event.session = Some(session.to_string().into());
            }
        });
        came_to(noted, self.inner.create(call).await, |created, event| {
            event.names(&created.lock_ref);
            event.safe_for(created.valid_for);
            stands(&created.status, event);
            Outcome::Done
        })
    }

    pub async fn acquire(
        &self,
        lock_ref: &LockRef,
        wait: Duration,
        read_value: bool,
    ) -> Result<Acquired, EngineError> {
        let noted = self.call_of(Op::Acquire, lock_ref);
        let acquired = self.inner.acquire(lock_ref, wait, read_value).await;
        came_to(noted, acquired, |acquired, event| {
            event.safe_for(acquired.valid_for);
            stands(&acquired.status, event);
            Outcome::Done
        })
    }

    pub async fn critical_get(
        &self,
        lock_ref: &LockRef,
        call_no: u64,
    ) -> Result<Done<Value>, EngineError> {
        let noted = self.call_under(Op::Get, lock_ref);
        let got = self.inner.critical_get(lock_ref, call_no).await;
        came_to(noted, got, |done, event| {
            event.safe_for(done.valid_for);
            event.read = Some(done.value.bytes.clone());
            Outcome::Done
        })
    }

    pub async fn critical_write(
        &self,
        lock_ref: &LockRef,
        mutation: Mutation,
        call_no: u64,
    ) -> Result<Done<()>, EngineError> {
        let noted = self.call_under(Op::Put(written(&mutation)), lock_ref);
        let wrote = self.inner.critical_write(lock_ref, mutation, call_no).await;
        came_to(noted, wrote, |done, event| {
            event.safe_for(done.valid_for);
            Outcome::Done
        })
    }

    pub async fn release(
        &self,
        lock_ref: &LockRef,
        put: Option<Mutation>,
        call_no: u64,
    ) -> Result<bool, EngineError> {
        let noted = self.call_under(Op::Release(put.as_ref().map(written)), lock_ref);
        let released = self.inner.release(lock_ref, put, call_no).await;
        came_to(noted, released, |before, event| event.released(*before))
    }

    pub async fn renew(&self, lease: &LeaseId) -> Result<Renewed, EngineError> {
        let LeaseId::LockRef(lock_ref) = lease else {
            return self.inner.renew(lease).await;
        };
        let noted = self.call_of(Op::Renew, lock_ref);
        came_to(noted, self.inner.renew(lease).await, |renewed, event| {
            event.safe_for(renewed.valid_for);
            Outcome::Done
        })
    }

    pub async fn force_release(
        &self,
        lock_ref: &LockRef,
        by: &str,
        why: &str,
    ) -> Result<ForceReleased, EngineError> {
        let noted = self.call_of(Op::Force, lock_ref);
        let forced = self.inner.force_release(&lock_ref.name(), by, why).await;
        came_to(noted, forced, |_, _| Outcome::Done)
    }

    pub async fn close_session(&self, session: SessionId) -> Result<bool, EngineError> {
        let noted = self.call(Op::CloseSession, |event| {
            event.session = Some(session.to_string().into());
        });
        let closed = self.inner.close_session(session).await;
        came_to(noted, closed, |_, _| Outcome::Done).map(|closed| closed.had_ended)
    }
}
