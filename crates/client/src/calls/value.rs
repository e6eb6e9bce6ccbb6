//! Values: read and written as the holder, or read without a lock.

use std::time::Duration;

use fermata_proto as proto;
use tonic::Status;

use super::promise;
use crate::answer::{Mutation, Value};
use crate::call_numbers::{CallNumbers, until_not_overtaken};
use crate::connect::Client;
use crate::error::{CallError, CriticalError};
use crate::fault::Fault;
use crate::homes::key_of;
use crate::sent_write::SentWrite;
use crate::validity::Promise;

impl Client {
    /// Reads the latest value as the holder. Each attempt takes the next of these numbers. Where another process that has the
    /// lockRef was overtaking, it is made again.
    pub async fn critical_get(
        &self,
        lock_ref: &str,
        numbers: &CallNumbers,
    ) -> Result<Value, CriticalError> {
        let end = self.end();
        let call = || self.critical_get_raw(lock_ref, numbers, self.now().until(end));
        let read = until_not_overtaken(|| self.now() < end, call).await;
        let (value, _) = read.map_err(|status| Fault::new(&status))?;
        Ok(value)
    }

    pub(crate) async fn critical_get_raw(
        &self,
        lock_ref: &str,
        numbers: &CallNumbers,
        total: Duration,
    ) -> Result<(Value, Promise), Status> {
        let answer = self
            .repeat(Some(key_of(lock_ref)), total, |attempt| {
                attempt.call(proto::CriticalGetRequest {
                    lock_ref: lock_ref.to_owned(),
                    call_no: numbers.next(),
                })
            })
            .await
            .inspect_err(|status| numbers.note_refusal(status))?;
        let promise = promise(&answer, answer.message.valid_for, answer.message.durable);
        let message = answer.message;
        Ok((message.exists.then_some(message.value), promise))
    }

    /// Writes as the holder. Each attempt takes the next of these numbers; one after an attempt that may have been done, one above
    /// that, and below those of later calls. Where another process that has the lockRef was
    /// overtaking, and nothing was written, it is made again.
    pub async fn critical_write(
        &self,
        lock_ref: &str,
        mutation: Mutation,
        numbers: &CallNumbers,
    ) -> Result<(), CriticalError> {
        let sent = SentWrite::default();
        let end = self.end();
        let call = || {
            let total = self.now().until(end);
            self.critical_write_raw(lock_ref, &mutation, (&sent, numbers), total)
        };
        let may_repeat = || self.now() < end && !sent.is_in_doubt();
        let written = until_not_overtaken(may_repeat, call).await;
        let failed = |status| CriticalError::of(Fault::new(&status), sent.is_in_doubt());
        written.map(|_| ()).map_err(failed)
    }

    pub(crate) async fn critical_write_raw(
        &self,
        lock_ref: &str,
        mutation: &Mutation,
        (sent, numbers): (&SentWrite, &CallNumbers),
        total: Duration,
    ) -> Result<Promise, Status> {
        let note = |status: &Status| numbers.note_refusal(status);
        match mutation {
            Mutation::Put(value) => {
                let answer = self
                    .repeat(Some(key_of(lock_ref)), total, |attempt| {
                        sent.attempt(attempt.call(proto::CriticalPutRequest {
                            lock_ref: lock_ref.to_owned(),
                            value: value.clone(),
                            call_no: sent.number(numbers),
                        }))
                    })
                    .await
                    .inspect_err(note)?;
                let message = &answer.message;
                Ok(promise(&answer, message.valid_for, message.durable))
            }
            Mutation::Delete => {
                let answer = self
                    .repeat(Some(key_of(lock_ref)), total, |attempt| {
                        sent.attempt(attempt.call(proto::CriticalDeleteRequest {
                            lock_ref: lock_ref.to_owned(),
                            call_no: sent.number(numbers),
                        }))
                    })
                    .await
                    .inspect_err(note)?;
                let message = &answer.message;
                Ok(promise(&answer, message.valid_for, message.durable))
            }
        }
    }

    /// Reads a value without a lock: as some recent section left it, about to be overwritten perhaps.
    pub async fn get(&self, table: &str, key: &str) -> Result<Value, CallError> {
        let answer = self
            .call(|attempt| {
                attempt.call(proto::GetRequest {
                    key: key.to_owned(),
                    table: table.to_owned(),
                })
            })
            .await
            .map_err(|status| Fault::new(&status))?;
        Ok(answer.message.exists.then_some(answer.message.value))
    }
}
