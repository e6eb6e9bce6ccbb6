//! Entries in the queue of a key: created, asked about, released.

use std::time::Duration;

use fermata_proto as proto;
use tonic::Status;
use uuid::Uuid;

use super::answer::{Acquired, Created, LockStatus, Mutation, granted_value};
use super::call_numbers::CallNumbers;
use super::client::{Answer, Attempt, Client, Tries};
use super::error::{CreateError, ReleaseError, WaitError};
use super::fault::Fault;
use super::homes::{key_in, key_of};
use super::request::LockRequest;
use super::sent_write::SentWrite;
use super::wire::{from_wire, to_wire};
use crate::transport::connections::LongCallPermit;
use crate::transport::local_status::unexpected;

impl Client {
    /// Adds an entry to the queue of a key. Keep the `request_id` for repeats: the same id never makes a second entry. Keep the
    /// entry alive by [`Client::acquire_lock`] or [`Client::renew_session`], each third of its TTL.
    pub async fn create_lock_ref(
        &self,
        request: &LockRequest,
        session: &str,
        request_id: Uuid,
    ) -> Result<Created, CreateError> {
        let sent = SentWrite::default();
        let created = self
            .create_raw(request, session, request_id, &sent, self.tries())
            .await;
        Ok(created.map_err(|status| Fault::new(&status))?)
    }

    pub(crate) async fn create_raw(
        &self,
        request: &LockRequest,
        session: &str,
        request_id: Uuid,
        sent: &SentWrite,
        tries: Tries,
    ) -> Result<Created, Status> {
        let message = proto::CreateLockRefRequest {
            key: request.key.clone(),
            table: request.table.clone(),
            request_id: request_id.to_string(),
            session: session.to_owned(),
            // A session has a TTL of its own; both together are refused.
            ttl: request.ttl.filter(|_| session.is_empty()).and_then(to_wire),
            owner: request.owner.clone(),
            read_value: request.read_value,
            mode: proto::LockMode::Exclusive.into(),
        };
        let key = key_in(&request.table, &request.key);
        let answer = self
            .make(Some(&key), tries, |attempt| {
                sent.attempt(attempt.call(message.clone()))
            })
            .await?;
        let promise = answer.promise(answer.message.valid_for, answer.message.durable);
        let message = answer.message;
        let status = status(message.state, message.position, message.fencing_token)?;
        let read = request.read_value;
        Ok(Created {
            status,
            lock_ref: message.lock_ref,
            session: message.session,
            ttl: from_wire(message.ttl),
            promise,
            value: granted_value(status, read, message.value, message.exists),
        })
    }

    /// Asks, without waiting, whether a lockRef holds its key, and with which grant.
    pub async fn acquire_lock(&self, lock_ref: &str) -> Result<Acquired, WaitError> {
        let acquired = self.acquire_raw(lock_ref, false, self.tries()).await;
        Ok(acquired.map_err(|status| Fault::new(&status))?)
    }

    /// As [`Client::acquire_lock`]; `read_value` also asks for the value if the lockRef holds its key.
    pub(crate) async fn acquire_raw(
        &self,
        lock_ref: &str,
        read_value: bool,
        tries: Tries,
    ) -> Result<Acquired, Status> {
        let message = acquire_message(lock_ref, None, read_value);
        let answer = self
            .make(Some(key_of(lock_ref)), tries, |attempt| {
                attempt.call(message.clone())
            })
            .await?;
        acquired(answer, read_value)
    }

    /// Waits at the server until a lockRef holds its key, for `wait` at most. One attempt.
    pub(crate) async fn wait_once(
        &self,
        lock_ref: &str,
        (wait, permit): (Duration, LongCallPermit),
        read_value: bool,
        timeout: Duration,
    ) -> Result<Acquired, Status> {
        let message = acquire_message(lock_ref, Some(wait), read_value);
        let answer = self
            .once(Some(key_of(lock_ref)), Some(permit), timeout, |attempt| {
                attempt.call(message)
            })
            .await?;
        acquired(answer, read_value)
    }

    /// Writes `put`, then releases the lockRef. The numbers are used as in [`Client::critical_write`]. True if the lockRef had
    /// been released before, and not by an attempt of this call; then `put` was not written.
    pub async fn release_lock(
        &self,
        lock_ref: &str,
        put: Option<Mutation>,
        numbers: &CallNumbers,
    ) -> Result<bool, ReleaseError> {
        let sent = SentWrite::default();
        let released = self
            .release_raw(lock_ref, put.as_ref(), &sent, numbers, self.tries())
            .await;
        let is_in_doubt = put.is_some() && sent.is_in_doubt();
        match released {
            Ok(already_released) => Ok(already_released && !is_in_doubt),
            Err(status) => Err(ReleaseError::of(Fault::new(&status), is_in_doubt)),
        }
    }

    pub(crate) async fn release_raw(
        &self,
        lock_ref: &str,
        put: Option<&Mutation>,
        sent: &SentWrite,
        numbers: &CallNumbers,
        tries: Tries,
    ) -> Result<bool, Status> {
        let message = |call_no| proto::ReleaseLockRequest {
            lock_ref: lock_ref.to_owned(),
            put: put.map(Mutation::to_wire),
            call_no,
        };
        let answer = match put {
            Some(_) => {
                let call = |attempt: Attempt, number| attempt.call(message(number));
                self.numbered(lock_ref, numbers, Some(sent), tries, call)
                    .await?
            }
            None => {
                let call = |attempt: Attempt| sent.attempt(attempt.call(message(0)));
                self.make(Some(key_of(lock_ref)), tries, call).await?
            }
        };
        Ok(answer.message.already_released)
    }
}

fn acquire_message(
    lock_ref: &str,
    wait: Option<Duration>,
    read_value: bool,
) -> proto::AcquireLockRequest {
    proto::AcquireLockRequest {
        lock_ref: lock_ref.to_owned(),
        wait: wait.and_then(to_wire),
        read_value,
        give_up: false,
    }
}

fn acquired(
    answer: Answer<proto::AcquireLockResponse>,
    read_value: bool,
) -> Result<Acquired, Status> {
    let promise = answer.promise(answer.message.valid_for, answer.message.durable);
    let message = answer.message;
    let status = status(message.state, message.position, message.fencing_token)?;
    Ok(Acquired {
        status,
        lock_ref: message.lock_ref,
        promise,
        value: granted_value(status, read_value, message.value, message.exists),
    })
}

/// Reads a state, which must be HELD or WAITING.
fn status(state: i32, position: u32, fencing_token: u64) -> Result<LockStatus, Status> {
    match proto::LockState::try_from(state) {
        Ok(proto::LockState::Held) => Ok(LockStatus::Held { fencing_token }),
        Ok(proto::LockState::Waiting) => Ok(LockStatus::Waiting { position }),
        Ok(proto::LockState::Unspecified | proto::LockState::Lost | proto::LockState::Released)
        | Err(_) => Err(unexpected(&format!("the lock state {state}"))),
    }
}
