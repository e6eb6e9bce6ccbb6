//! Entries in the queue of a key: taken, asked about, given back.

use std::time::Duration;

use fermata_proto as proto;
use fermata_proto::lock_renewal::Outcome;
use tonic::{Code, Status};
use uuid::Uuid;

use super::{from_wire, promise, to_wire};
use crate::answer::{Acquired, Created, GrantedValue, LockStatus, Mutation};
use crate::call_numbers::{CallNumbers, until_not_overtaken};
use crate::connect::{Answer, Client};
use crate::connections::LongCallPermit;
use crate::error::{CreateError, ReleaseError, WaitError};
use crate::fault::{Fault, unexpected};
use crate::homes::{key_in, key_of};
use crate::request::LockRequest;
use crate::sent_write::SentWrite;

impl Client {
    /// Adds an entry to the queue of a key. Keep the `request_id` for repeats: the same id never takes a second
    /// entry. The entry must be kept alive: by [`Client::acquire_lock`] or [`Client::renew_session`], each third of its TTL.
    pub async fn create_lock_ref(
        &self,
        request: &LockRequest,
        session: &str,
        request_id: Uuid,
    ) -> Result<Created, CreateError> {
        let total = self.options().timeout;
        let sent = SentWrite::default();
        let created = self
            .create_raw(request, session, request_id, &sent, total)
            .await;
        Ok(created.map_err(|status| Fault::new(&status))?)
    }

    pub(crate) async fn create_raw(
        &self,
        request: &LockRequest,
        session: &str,
        request_id: Uuid,
        sent: &SentWrite,
        total: Duration,
    ) -> Result<Created, Status> {
        let message = create_message(request, session, request_id);
        let key = key_in(&request.table, &request.key);
        let answer = self
            .repeat(Some(&key), total, |attempt| {
                sent.attempt(attempt.call(message.clone()))
            })
            .await?;
        created(answer, request.read_value)
    }

    /// The same in one attempt.
    pub(crate) async fn create_once(
        &self,
        request: &LockRequest,
        session: &str,
        request_id: Uuid,
        timeout: Duration,
    ) -> Result<Created, Status> {
        let message = create_message(request, session, request_id);
        let key = key_in(&request.table, &request.key);
        let answer = self.once_on(Some(&key), None, timeout, |attempt| attempt.call(message));
        created(answer.await?, request.read_value)
    }

    /// Asks whether a lockRef holds its key, and with `read_value` for the value if it does; with `wait`, lets the server wait
    /// for it so long. One attempt.
    pub(crate) async fn acquire_once(
        &self,
        lock_ref: &str,
        wait: Option<(Duration, LongCallPermit)>,
        read_value: bool,
        timeout: Duration,
    ) -> Result<Acquired, Status> {
        let (wait, permit) = wait.unzip();
        let message = proto::AcquireLockRequest {
            lock_ref: lock_ref.to_owned(),
            wait: wait.and_then(to_wire),
            read_value,
            give_up: false,
        };
        let answer = self
            .once_on(Some(key_of(lock_ref)), permit, timeout, |attempt| {
                attempt.call(message)
            })
            .await?;
        acquired(answer, read_value)
    }

    /// The same of many in one call to the replica with this number: what it says of each, in their order. One attempt.
    pub(crate) async fn renew_locks_once(
        &self,
        at: usize,
        lock_refs: Vec<String>,
        timeout: Duration,
    ) -> Result<Vec<Result<Acquired, Status>>, Status> {
        let asked = lock_refs.len();
        let message = proto::RenewLocksRequest { lock_refs };
        let answer = self.once_at(at, None, timeout, |attempt| attempt.call(message));
        let (response, sent) = answer.await?;
        let renewals = response.into_inner().renewals;
        if renewals.len() != asked {
            let answered = renewals.len();
            return Err(unexpected(&format!(
                "{answered} results of {asked} renewals"
            )));
        }
        let renewed = renewals.into_iter().map(|renewal| match renewal.outcome {
            Some(Outcome::Renewed(message)) => acquired(Answer { message, sent }, false),
            Some(Outcome::Error(error)) => Err(Status::with_details(
                Code::from_i32(error.code),
                error.message,
                error.details,
            )),
            None => Err(unexpected("a renewal without an outcome")),
        });
        Ok(renewed.collect())
    }

    /// Asks, without waiting, whether a lockRef holds its key, and with which grant.
    pub async fn acquire_lock(&self, lock_ref: &str) -> Result<Acquired, WaitError> {
        let acquired = self.acquire_raw(lock_ref).await;
        Ok(acquired.map_err(|status| Fault::new(&status))?)
    }

    pub(crate) async fn acquire_raw(&self, lock_ref: &str) -> Result<Acquired, Status> {
        let message = proto::AcquireLockRequest {
            lock_ref: lock_ref.to_owned(),
            wait: None,
            read_value: false,
            give_up: false,
        };
        let answer = self
            .call_about(key_of(lock_ref), |attempt| attempt.call(message.clone()))
            .await?;
        acquired(answer, false)
    }

    /// Ends a lockRef, after writing `put`, with numbers as [`Client::critical_write`] takes them. True if it had been
    /// released before, other than by an attempt of this call; then `put` was not written.
    pub async fn release_lock(
        &self,
        lock_ref: &str,
        put: Option<Mutation>,
        numbers: &CallNumbers,
    ) -> Result<bool, ReleaseError> {
        let end = self.end();
        let sent = SentWrite::default();
        let is_in_doubt = || put.is_some() && sent.is_in_doubt();
        let call = || {
            let total = self.now().until(end);
            self.release_raw(lock_ref, put.as_ref(), &sent, numbers, total)
        };
        let may_repeat = || self.now() < end && !is_in_doubt();
        match until_not_overtaken(may_repeat, call).await {
            Ok(already_released) => Ok(already_released && !is_in_doubt()),
            Err(status) => Err(ReleaseError::of(Fault::new(&status), is_in_doubt())),
        }
    }

    pub(crate) async fn release_raw(
        &self,
        lock_ref: &str,
        put: Option<&Mutation>,
        sent: &SentWrite,
        numbers: &CallNumbers,
        total: Duration,
    ) -> Result<bool, Status> {
        let answer = self
            .repeat(Some(key_of(lock_ref)), total, |attempt| {
                sent.attempt(attempt.call(proto::ReleaseLockRequest {
                    lock_ref: lock_ref.to_owned(),
                    put: put.map(Mutation::to_wire),
                    call_no: if put.is_some() {
                        sent.number(numbers)
                    } else {
                        0
                    },
                }))
            })
            .await
            .inspect_err(|status| numbers.note_refusal(status))?;
        Ok(answer.message.already_released)
    }

    /// The same without a value, in one attempt.
    pub(crate) async fn release_once(
        &self,
        lock_ref: &str,
        timeout: Duration,
    ) -> Result<bool, Status> {
        let message = proto::ReleaseLockRequest {
            lock_ref: lock_ref.to_owned(),
            put: None,
            call_no: 0,
        };
        let answer = self
            .once_on(Some(key_of(lock_ref)), None, timeout, |attempt| {
                attempt.call(message)
            })
            .await?;
        Ok(answer.message.already_released)
    }
}

fn create_message(
    request: &LockRequest,
    session: &str,
    request_id: Uuid,
) -> proto::CreateLockRefRequest {
    proto::CreateLockRefRequest {
        key: request.key.clone(),
        table: request.table.clone(),
        request_id: request_id.to_string(),
        session: session.to_owned(),
        // A session has a TTL of its own; both together are refused.
        ttl: request.ttl.filter(|_| session.is_empty()).and_then(to_wire),
        owner: request.owner.clone(),
        read_value: request.read_value,
        mode: proto::LockMode::Exclusive.into(),
    }
}

fn created(
    answer: Answer<proto::CreateLockRefResponse>,
    read_value: bool,
) -> Result<Created, Status> {
    let promise = promise(&answer, answer.message.valid_for, answer.message.durable);
    let message = answer.message;
    let status = status(message.state, message.position, message.fencing_token)?;
    Ok(Created {
        status,
        lock_ref: message.lock_ref,
        session: message.session,
        ttl: from_wire(message.ttl),
        promise,
        value: GrantedValue::of(status, read_value, message.value, message.exists),
    })
}

fn acquired(
    answer: Answer<proto::AcquireLockResponse>,
    read_value: bool,
) -> Result<Acquired, Status> {
    let promise = promise(&answer, answer.message.valid_for, answer.message.durable);
    let message = answer.message;
    let status = status(message.state, message.position, message.fencing_token)?;
    Ok(Acquired {
        status,
        lock_ref: message.lock_ref,
        promise,
        value: GrantedValue::of(status, read_value, message.value, message.exists),
    })
}

/// Reads a state that only HELD and WAITING are allowed in.
fn status(state: i32, position: u32, fencing_token: u64) -> Result<LockStatus, Status> {
    match proto::LockState::try_from(state) {
        Ok(proto::LockState::Held) => Ok(LockStatus::Held { fencing_token }),
        Ok(proto::LockState::Waiting) => Ok(LockStatus::Waiting { position }),
        Ok(proto::LockState::Unspecified | proto::LockState::Lost | proto::LockState::Released)
        | Err(_) => Err(unexpected(&format!("the state {state}"))),
    }
}
