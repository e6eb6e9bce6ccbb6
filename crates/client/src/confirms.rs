//! Locks that are not durable are asked about together: those that are due within a moment, and that one replica is to be
//! asked about, in one call.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::Status;

use super::answer::Acquired;
use super::connect::Client;
use super::fault::no_answer_within;
use super::homes::key_of;
use super::retry::{Verdict, judge};

/// For so long others are waited for.
const GATHERED_FOR: Duration = Duration::from_millis(5);
/// How many one call is about at most, as a server takes them.
const TOGETHER_MAX: usize = 1_000;
/// How many bytes of lockRefs one call carries at most, well below what a server takes.
const TOGETHER_BYTES_MAX: usize = 256 * 1024;
/// What has less time than this is asked about by itself: of several the answer comes when the slowest is known.
const TOGETHER_WITHIN_MIN: Duration = Duration::from_millis(500);

type Answered = Result<Acquired, Status>;

struct ConfirmAsk {
    lock_ref: String,
    timeout: Duration,
    reply: oneshot::Sender<Answered>,
}

/// Those that go together, and the task that asks.
struct Batch {
    asks: Vec<ConfirmAsk>,
    bytes: usize,
    task: JoinHandle<()>,
}

/// What is gathered, by the number of the replica that is to be asked.
type Batches = HashMap<usize, Batch>;

/// What a client is about to ask.
#[derive(Default)]
pub(super) struct Confirms(Arc<Mutex<Batches>>);

fn open(batches: &Mutex<Batches>) -> MutexGuard<'_, Batches> {
    batches.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Confirms {
    /// Asks whether a lock is held still, within `timeout`.
    pub(super) async fn ask(
        &self,
        client: &Client,
        lock_ref: String,
        timeout: Duration,
    ) -> Answered {
        if timeout < TOGETHER_WITHIN_MIN {
            return client.acquire_once(&lock_ref, None, false, timeout).await;
        }
        let at = client.best(Some(key_of(&lock_ref)));
        let (reply, answer) = oneshot::channel();
        let ask = ConfirmAsk {
            lock_ref,
            timeout,
            reply,
        };
        self.gather(client, at, ask);
        match tokio::time::timeout(timeout, answer).await {
            Ok(Ok(answered)) => answered,
            Ok(Err(_)) | Err(_) => Err(no_answer_within(timeout)),
        }
    }

    fn gather(&self, client: &Client, at: usize, ask: ConfirmAsk) {
        let bytes = ask.lock_ref.len();
        let mut batches = open(&self.0);
        match batches.get_mut(&at) {
            // Else its runtime has ended, and the task with it.
            Some(batch) if !batch.task.is_finished() => {
                let is_full = batch.asks.len() >= TOGETHER_MAX
                    || batch.bytes.saturating_add(bytes) > TOGETHER_BYTES_MAX;
                if is_full {
                    batch.bytes = 0;
                    let (client, full) = (client.clone(), std::mem::take(&mut batch.asks));
                    tokio::spawn(async move { ask_about(&client, at, full).await });
                }
                batch.bytes = batch.bytes.saturating_add(bytes);
                batch.asks.push(ask);
            }
            Some(_) | None => {
                let (client, gathered) = (client.clone(), Arc::clone(&self.0));
                let task = tokio::spawn(async move {
                    tokio::time::sleep(GATHERED_FOR).await;
                    let batch = open(&gathered).remove(&at);
                    if let Some(batch) = batch {
                        ask_about(&client, at, batch.asks).await;
                    }
                });
                let asks = vec![ask];
                batches.insert(at, Batch { asks, bytes, task });
            }
        }
    }
}

/// Asks about them, and gives each its own answer.
async fn ask_about(client: &Client, at: usize, asks: Vec<ConfirmAsk>) {
    let timeout = asks.iter().map(|ask| ask.timeout).min();
    let lock_refs: Vec<String> = asks.iter().map(|ask| ask.lock_ref.clone()).collect();
    let asked = client.renew_locks_once(at, lock_refs, timeout.unwrap_or_default());
    let answered = match asked.await {
        Ok(answered) => answered,
        Err(status) => asks.iter().map(|_| Err(status.clone())).collect(),
    };
    for (ask, answered) in asks.into_iter().zip(answered) {
        if let Err(status) = &answered
            && matches!(judge(status), Verdict::Repeat { .. })
        {
            client.forget_home(key_of(&ask.lock_ref));
        }
        // It may have given up meanwhile.
        let _ = ask.reply.send(answered);
    }
}
