//! The calls of the contract, one by one: repeated where that can help, but with nothing kept alive in
//! the background. [`super::LockGuard`] and [`super::Session`] are made of these; use them directly where a
//! lockRef came from another process.

use std::time::Duration;

use tonic::Status;
use uuid::Uuid;

use super::answer::{Acquired, Created, Mutation, Renewed, Standing, Value};
use super::connect::{Answer, Client};
use super::error::{CallError, CreateError, CriticalError, ReleaseError, SessionError, WaitError};
use super::fault::{Fault, ServerError};
use super::request::{LockRequest, SessionRequest};
use super::validity::Validity;
use crate::proto;

impl Client {
    /// Takes a place in the queue of a key. Keep the `request_id` for repeats: the same id never takes a
    /// second place. The place must be kept alive, by an open [`Client::acquire_lock`] or by
    /// [`Client::renew_session`].
    pub async fn create_lock_ref(
        &self,
        request: &LockRequest,
        session: &str,
        request_id: Uuid,
    ) -> Result<Created, CreateError> {
        let message = proto::CreateLockRefRequest {
            key: request.key.clone(),
            table: request.table.clone(),
            request_id: request_id.to_string(),
            session: session.to_owned(),
            // A session has a TTL of its own; both together are refused.
            ttl: request.ttl.filter(|_| session.is_empty()).and_then(to_wire),
            owner: request.owner.clone(),
            read_value: false,
            mode: proto::LockMode::Exclusive.into(),
        };
        let answer = self
            .call(|attempt| {
                let request = attempt.request(message.clone());
                async move { attempt.locks().create_lock_ref(request).await }
            })
            .await
            .map_err(|status| Fault::new(&status))?;
        let validity = promised(&answer, answer.message.valid_for);
        let message = answer.message;
        Ok(Created {
            standing: standing(message.state, message.position, message.fencing_token)
                .map_err(CreateError::Other)?,
            lock_ref: message.lock_ref,
            session: message.session,
            ttl: from_wire(message.ttl),
            valid_until: validity.until(),
            validity,
        })
    }

    /// Asks whether a lockRef holds its key; with `wait`, lets the server wait for it. One attempt, at
    /// most `wait` and a little longer.
    pub(super) async fn acquire_once(
        &self,
        lock_ref: &str,
        wait: Duration,
        timeout: Duration,
    ) -> Result<Acquired, Status> {
        let message = proto::AcquireLockRequest {
            lock_ref: lock_ref.to_owned(),
            wait: to_wire(wait),
            read_value: false,
        };
        let answer = self
            .once(timeout, |attempt| {
                let request = attempt.request(message.clone());
                async move { attempt.locks().acquire_lock(request).await }
            })
            .await?;
        acquired(answer).map_err(|error| Status::internal(error.message))
    }

    /// Asks, without waiting, whether a lockRef holds its key, and with which grant.
    pub async fn acquire_lock(&self, lock_ref: &str) -> Result<Acquired, WaitError> {
        let message = proto::AcquireLockRequest {
            lock_ref: lock_ref.to_owned(),
            wait: None,
            read_value: false,
        };
        let answer = self
            .call(|attempt| {
                let request = attempt.request(message.clone());
                async move { attempt.locks().acquire_lock(request).await }
            })
            .await
            .map_err(|status| Fault::new(&status))?;
        acquired(answer).map_err(WaitError::Other)
    }

    /// Ends a lockRef, after writing `put`. Each attempt takes the next number from `call_no`. True if it
    /// had been released before.
    pub async fn release_lock(
        &self,
        lock_ref: &str,
        put: Option<Mutation>,
        call_no: impl FnMut() -> u64,
    ) -> Result<bool, ReleaseError> {
        let timeout = self.options().timeout;
        let released = self.release_raw(lock_ref, put.as_ref(), call_no, timeout);
        match released.await {
            Ok(already_released) => Ok(already_released),
            Err(status) => Err(Fault::new(&status).into()),
        }
    }

    pub(super) async fn release_raw(
        &self,
        lock_ref: &str,
        put: Option<&Mutation>,
        mut call_no: impl FnMut() -> u64,
        total: Duration,
    ) -> Result<bool, Status> {
        let answer = self
            .repeat(total, |attempt| {
                let call_no = call_no();
                let request = attempt.request(proto::ReleaseLockRequest {
                    lock_ref: lock_ref.to_owned(),
                    put: put.map(Mutation::to_wire),
                    call_no: if put.is_some() { call_no } else { 0 },
                });
                async move { attempt.locks().release_lock(request).await }
            })
            .await?;
        Ok(answer.message.already_released)
    }

    /// Reads the latest value as the holder. Each attempt takes the next number from `call_no`.
    pub async fn critical_get(
        &self,
        lock_ref: &str,
        call_no: impl FnMut() -> u64,
    ) -> Result<Value, CriticalError> {
        let answer = self.critical_get_raw(lock_ref, call_no).await;
        match answer {
            Ok((value, _)) => Ok(value),
            Err(status) => Err(Fault::new(&status).into()),
        }
    }

    pub(super) async fn critical_get_raw(
        &self,
        lock_ref: &str,
        mut call_no: impl FnMut() -> u64,
    ) -> Result<(Value, Validity), Status> {
        let answer = self
            .call(|attempt| {
                let request = attempt.request(proto::CriticalGetRequest {
                    lock_ref: lock_ref.to_owned(),
                    call_no: call_no(),
                });
                async move { attempt.locks().critical_get(request).await }
            })
            .await?;
        let validity = promised(&answer, answer.message.valid_for);
        let message = answer.message;
        Ok((message.exists.then_some(message.value), validity))
    }

    /// Writes as the holder. Each attempt takes the next number from `call_no`.
    pub async fn critical_write(
        &self,
        lock_ref: &str,
        mutation: Mutation,
        call_no: impl FnMut() -> u64,
    ) -> Result<(), CriticalError> {
        let answer = self.critical_write_raw(lock_ref, &mutation, call_no).await;
        match answer {
            Ok(_) => Ok(()),
            Err(status) => Err(Fault::new(&status).into()),
        }
    }

    pub(super) async fn critical_write_raw(
        &self,
        lock_ref: &str,
        mutation: &Mutation,
        mut call_no: impl FnMut() -> u64,
    ) -> Result<Validity, Status> {
        match mutation {
            Mutation::Put(value) => {
                let answer = self
                    .call(|attempt| {
                        let request = attempt.request(proto::CriticalPutRequest {
                            lock_ref: lock_ref.to_owned(),
                            value: value.clone(),
                            call_no: call_no(),
                        });
                        async move { attempt.locks().critical_put(request).await }
                    })
                    .await?;
                Ok(promised(&answer, answer.message.valid_for))
            }
            Mutation::Delete => {
                let answer = self
                    .call(|attempt| {
                        let request = attempt.request(proto::CriticalDeleteRequest {
                            lock_ref: lock_ref.to_owned(),
                            call_no: call_no(),
                        });
                        async move { attempt.locks().critical_delete(request).await }
                    })
                    .await?;
                Ok(promised(&answer, answer.message.valid_for))
            }
        }
    }

    pub(super) async fn open_session_raw(
        &self,
        request: &SessionRequest,
    ) -> Result<Renewed, SessionError> {
        let message = proto::OpenSessionRequest {
            ttl: request.ttl.and_then(to_wire),
            // One id for all attempts: a repeat finds the session that the first one opened.
            request_id: Uuid::new_v4().to_string(),
            owner: request.owner.clone(),
        };
        let answer = self
            .call(|attempt| {
                let request = attempt.request(message.clone());
                async move { attempt.locks().open_session(request).await }
            })
            .await
            .map_err(|status| Fault::new(&status))?;
        let validity = promised(&answer, answer.message.valid_for);
        Ok(Renewed {
            session: answer.message.session,
            ttl: from_wire(answer.message.ttl),
            valid_until: validity.until(),
            validity,
        })
    }

    /// One sign of life for a session, or for a lockRef without one.
    pub async fn renew_session(&self, session: &str) -> Result<Renewed, SessionError> {
        self.renew_within(session, self.options().timeout).await
    }

    pub(super) async fn renew_within(
        &self,
        session: &str,
        total: Duration,
    ) -> Result<Renewed, SessionError> {
        let answer = self
            .repeat(total, |attempt| {
                let request = attempt.request(proto::RenewSessionRequest {
                    session: session.to_owned(),
                });
                async move { attempt.locks().renew_session(request).await }
            })
            .await
            .map_err(|status| Fault::new(&status))?;
        let validity = promised(&answer, answer.message.valid_for);
        Ok(Renewed {
            session: session.to_owned(),
            ttl: from_wire(answer.message.ttl),
            valid_until: validity.until(),
            validity,
        })
    }

    /// Closes a session and ends all lockRefs of it. True if it was over before.
    pub async fn close_session(&self, session: &str) -> Result<bool, SessionError> {
        let answer = self
            .call(|attempt| {
                let request = attempt.request(proto::CloseSessionRequest {
                    session: session.to_owned(),
                });
                async move { attempt.locks().close_session(request).await }
            })
            .await
            .map_err(|status| Fault::new(&status))?;
        Ok(answer.message.already_closed)
    }

    /// Reads a value without a lock: as some recent section left it, about to be overwritten perhaps.
    pub async fn get(&self, table: &str, key: &str) -> Result<Value, CallError> {
        let answer = self
            .call(|attempt| {
                let request = attempt.request(proto::GetRequest {
                    key: key.to_owned(),
                    table: table.to_owned(),
                });
                async move { attempt.locks().get(request).await }
            })
            .await
            .map_err(|status| Fault::new(&status))?;
        Ok(answer.message.exists.then_some(answer.message.value))
    }
}

fn acquired(answer: Answer<proto::AcquireLockResponse>) -> Result<Acquired, ServerError> {
    let validity = promised(&answer, answer.message.valid_for);
    let message = answer.message;
    Ok(Acquired {
        standing: standing(message.state, message.position, message.fencing_token)?,
        lock_ref: message.lock_ref,
        valid_until: validity.until(),
        validity,
    })
}

/// Reads a state that only HELD and WAITING are allowed in.
fn standing(state: i32, position: u32, fencing_token: u64) -> Result<Standing, ServerError> {
    match proto::LockState::try_from(state) {
        Ok(proto::LockState::Held) => Ok(Standing::Held { fencing_token }),
        Ok(proto::LockState::Waiting) => Ok(Standing::Waiting { position }),
        Ok(proto::LockState::Unspecified | proto::LockState::Lost) | Err(_) => {
            Err(ServerError::unexpected(format!("the state {state}")))
        }
    }
}

fn promised<T>(answer: &Answer<T>, valid_for: Option<prost_types::Duration>) -> Validity {
    Validity::promised(answer.sent, from_wire(valid_for))
}

/// A span of the contract; nothing where it is absent or negative.
pub(super) fn from_wire(span: Option<prost_types::Duration>) -> Duration {
    span.and_then(|span| Duration::try_from(span).ok())
        .unwrap_or(Duration::ZERO)
}

/// A span for the contract; `None` where it has no room for it, which asks for the server's maximum or
/// default.
fn to_wire(span: Duration) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(span).ok()
}
