//! Values: read and written as the holder, or read without a lock.

use fermata_proto as proto;
use tonic::{Response, Status};

use super::answer::{Mutation, Value};
use super::call_numbers::{CallNumbers, NotAbove};
use super::client::{Answer, Attempt, Client, Tries};
use super::error::{CallError, CriticalError};
use super::fault::Fault;
use super::homes::key_of;
use super::sent_write::SentWrite;
use super::validity::Promise;

/// The repeats of a call that was refused for its number. The first repeat has a number above the accepted one; further repeats
/// are needed only if other processes overtake again.
const OVERTAKEN_MAX: usize = 3;

impl Client {
    /// Attempts of a call as the holder, each with the next of these numbers. If another process with the lockRef overtook the
    /// call, so that its number was refused, the call is made again. A write in doubt (`sent`) is not made again, because the
    /// other process may have written after it.
    pub(crate) async fn numbered<T, F, Fut>(
        &self,
        lock_ref: &str,
        numbers: &CallNumbers,
        sent: Option<&SentWrite>,
        tries: Tries,
        op: F,
    ) -> Result<Answer<T>, Status>
    where
        F: Fn(Attempt, u64) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        let call = |attempt| {
            let number = match sent {
                Some(sent) => sent.number(numbers),
                None => numbers.next(),
            };
            let call = op(attempt, number);
            async move {
                match sent {
                    Some(sent) => sent.attempt(call).await,
                    None => call.await,
                }
            }
        };
        let begun = self.now();
        let mut overtaken = 0;
        loop {
            let took = begun.until(self.now());
            let tries = match tries {
                Tries::Once(timeout) => Tries::Once(timeout),
                Tries::For(total) => Tries::For(total.saturating_sub(took)),
            };
            let made = self.make(Some(key_of(lock_ref)), tries, call).await;
            let Some(refused) = made.as_ref().err().and_then(NotAbove::of) else {
                return made;
            };
            numbers.note_refusal(&refused);
            let has_time = !matches!(tries, Tries::For(left) if left.is_zero());
            let is_in_doubt = sent.is_some_and(SentWrite::is_in_doubt);
            if is_in_doubt || !has_time || overtaken == OVERTAKEN_MAX {
                return made;
            }
            overtaken += 1;
        }
    }

    /// Reads the latest value as the holder. Each attempt takes the next of these numbers. If another process with the lockRef
    /// overtakes the call, the call is made again.
    pub async fn critical_get(
        &self,
        lock_ref: &str,
        numbers: &CallNumbers,
    ) -> Result<Value, CriticalError> {
        let read = self.critical_get_raw(lock_ref, numbers, self.tries()).await;
        let (value, _) = read.map_err(|status| Fault::new(&status))?;
        Ok(value)
    }

    pub(crate) async fn critical_get_raw(
        &self,
        lock_ref: &str,
        numbers: &CallNumbers,
        tries: Tries,
    ) -> Result<(Value, Promise), Status> {
        let answer = self
            .numbered(lock_ref, numbers, None, tries, |attempt, call_no| {
                attempt.call(proto::CriticalGetRequest {
                    lock_ref: lock_ref.to_owned(),
                    call_no,
                })
            })
            .await?;
        let promise = answer.promise(answer.message.valid_for, answer.message.durable);
        let message = answer.message;
        Ok((message.exists.then_some(message.value), promise))
    }

    /// Writes as the holder. Each attempt takes the next of these numbers. After an attempt that may have been done, the repeat
    /// takes a number above that attempt and below later calls. If another process with the lockRef overtakes the call and
    /// nothing was written, the call is made again.
    pub async fn critical_write(
        &self,
        lock_ref: &str,
        mutation: Mutation,
        numbers: &CallNumbers,
    ) -> Result<(), CriticalError> {
        let sent = SentWrite::default();
        let written = self
            .critical_write_raw(lock_ref, &mutation, (&sent, numbers), self.tries())
            .await;
        let failed = |status| CriticalError::of(Fault::new(&status), sent.is_in_doubt());
        written.map(|_| ()).map_err(failed)
    }

    pub(crate) async fn critical_write_raw(
        &self,
        lock_ref: &str,
        mutation: &Mutation,
        (sent, numbers): (&SentWrite, &CallNumbers),
        tries: Tries,
    ) -> Result<Promise, Status> {
        match mutation {
            Mutation::Put(value) => {
                let answer = self
                    .numbered(lock_ref, numbers, Some(sent), tries, |attempt, call_no| {
                        attempt.call(proto::CriticalPutRequest {
                            lock_ref: lock_ref.to_owned(),
                            value: value.clone(),
                            call_no,
                        })
                    })
                    .await?;
                Ok(answer.promise(answer.message.valid_for, answer.message.durable))
            }
            Mutation::Delete => {
                let answer = self
                    .numbered(lock_ref, numbers, Some(sent), tries, |attempt, call_no| {
                        attempt.call(proto::CriticalDeleteRequest {
                            lock_ref: lock_ref.to_owned(),
                            call_no,
                        })
                    })
                    .await?;
                Ok(answer.promise(answer.message.valid_for, answer.message.durable))
            }
        }
    }

    /// Reads a value without a lock. The value may be old, and a holder may be about to overwrite it.
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
