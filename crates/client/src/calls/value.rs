//! Values: read and written as the holder, or read without a lock.

use fermata_proto as proto;
use tonic::Status;

use super::promise;
use crate::answer::{Mutation, Value};
use crate::connect::Client;
use crate::error::{CallError, CriticalError};
use crate::fault::Fault;
use crate::homes::key_of;
use crate::sent_write::SentWrite;
use crate::validity::Promise;

impl Client {
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

    pub(crate) async fn critical_get_raw(
        &self,
        lock_ref: &str,
        mut call_no: impl FnMut() -> u64,
    ) -> Result<(Value, Promise), Status> {
        let answer = self
            .call_about(key_of(lock_ref), |attempt| {
                attempt.call(proto::CriticalGetRequest {
                    lock_ref: lock_ref.to_owned(),
                    call_no: call_no(),
                })
            })
            .await?;
        let promise = promise(&answer, answer.message.valid_for, answer.message.durable);
        let message = answer.message;
        Ok((message.exists.then_some(message.value), promise))
    }

    /// Writes as the holder. Each attempt takes the next number from `call_no`.
    pub async fn critical_write(
        &self,
        lock_ref: &str,
        mutation: Mutation,
        call_no: impl FnMut() -> u64,
    ) -> Result<(), CriticalError> {
        let sent = SentWrite::default();
        let answer = self.critical_write_raw(lock_ref, &mutation, &sent, call_no);
        match answer.await {
            Ok(_) => Ok(()),
            Err(status) => Err(CriticalError::of(Fault::new(&status), sent.is_in_doubt())),
        }
    }

    pub(crate) async fn critical_write_raw(
        &self,
        lock_ref: &str,
        mutation: &Mutation,
        sent: &SentWrite,
        mut call_no: impl FnMut() -> u64,
    ) -> Result<Promise, Status> {
        match mutation {
            Mutation::Put(value) => {
                let answer = self
                    .call_about(key_of(lock_ref), |attempt| {
                        sent.attempt(attempt.call(proto::CriticalPutRequest {
                            lock_ref: lock_ref.to_owned(),
                            value: value.clone(),
                            call_no: call_no(),
                        }))
                    })
                    .await?;
                let message = &answer.message;
                Ok(promise(&answer, message.valid_for, message.durable))
            }
            Mutation::Delete => {
                let answer = self
                    .call_about(key_of(lock_ref), |attempt| {
                        sent.attempt(attempt.call(proto::CriticalDeleteRequest {
                            lock_ref: lock_ref.to_owned(),
                            call_no: call_no(),
                        }))
                    })
                    .await?;
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
