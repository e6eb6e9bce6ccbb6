//! The one thread that writes: it commits all waiting work in one transaction, then answers.
//!
//! It also owns the file: it closes it after a fault, opens it again, and closes it in the end.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use redb::{Durability, WriteTransaction};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::directory::Directory;
use super::fault::Fault;
use super::file::{Medium, Opened};
use super::gate::Gate;
use super::open_error::EmbeddedOpenError;
use super::work::{Met, Work, WorkEffect, apply};
use crate::store::StoreError;
use crate::store::metrics::{DataOf, Failure, Operation};

/// How many jobs may wait, and how many one transaction may hold: one of so many takes a tenth of a second at worst. More callers
/// wait to be admitted.
pub(super) const JOBS_MAX: usize = 1024;
/// How many bytes one transaction may write, but for its last job: as much as a disk syncs in a tenth of a second.
pub(super) const BATCH_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The pause before the file is opened again after a fault. Opening it reads all of it.
const REOPEN_PAUSE: Duration = Duration::from_secs(2);
/// How long a caller may wait for the answer that the store is closed.
const REFUSE_PAUSE: Duration = Duration::from_millis(25);

/// The outcome of a job.
#[derive(Debug)]
pub(super) enum JobOutcome {
    Applied,
    Conflict(Met),
    Unknown(StoreError),
    NotStarted(StoreError),
}

/// What the writer is told.
#[derive(Debug)]
pub(super) enum Message {
    /// Do this, and say what came of it.
    Job(Work, oneshot::Sender<JobOutcome>),
    /// The gate was closed by a reader.
    Recheck,
    /// Finish what came before, close the file and say so.
    Stop(oneshot::Sender<()>),
}

pub(super) struct Writer {
    pub(super) directory: Directory,
    pub(super) store: Uuid,
    pub(super) medium: Medium,
    pub(super) gate: Arc<Gate>,
    pub(super) queue: mpsc::Receiver<Message>,
    /// How many commits the file must have seen: none that was acknowledged may be missing.
    pub(super) commits: u64,
}

/// Whether the writer goes on.
enum Flow {
    On,
    Stop(Option<oneshot::Sender<()>>),
}

impl Writer {
    /// Works until told to stop, or until nobody is left to tell it anything.
    pub(super) fn run(mut self) {
        let stopped = loop {
            let flow = match self.gate.ready() {
                Ok(()) => self.write_batch(),
                Err(_) => self.reopen(),
            };
            if let Flow::Stop(acknowledge) = flow {
                break acknowledge;
            }
        };
        self.queue.close();
        self.gate.shut("it was shut down");
        self.gate.close_file();
        // Others may ask for the same.
        while let Flow::Stop(Some(_)) = self.refuse_waiting() {}
        // Gives the directory back before anybody is told.
        drop(self.directory);
        if let Some(acknowledge) = stopped {
            // Whoever asked may have gone.
            let _ = acknowledge.send(());
        }
    }

    /// Waits for a job, takes what else is there, and commits all of it.
    fn write_batch(&mut self) -> Flow {
        let mut batch = Vec::new();
        let mut answers = Vec::new();
        let mut bytes = 0;
        let mut next = self.queue.blocking_recv();
        let flow = loop {
            match next {
                Some(Message::Job(work, answer)) => {
                    bytes += work.bytes();
                    batch.push(work);
                    answers.push(answer);
                }
                Some(Message::Recheck) => {}
                Some(Message::Stop(acknowledge)) => break Flow::Stop(Some(acknowledge)),
                None => break Flow::Stop(None),
            }
            if batch.len() >= JOBS_MAX || bytes >= BATCH_BYTES_MAX {
                break Flow::On;
            }
            next = match self.queue.try_recv() {
                Ok(message) => Some(message),
                // That nobody is left shows when the queue is waited for next.
                Err(_) => break Flow::On,
            };
        };
        if !batch.is_empty() {
            self.commit(&batch, answers);
        }
        flow
    }

    fn commit(&mut self, batch: &[Work], answers: Vec<oneshot::Sender<JobOutcome>>) {
        let mut effects = Vec::with_capacity(batch.len());
        let mut commit_begun = false;
        let begun = Instant::now();
        let outcome = self.gate.write(|database| {
            let mut transaction: WriteTransaction = database.begin_write()?;
            transaction.set_durability(Durability::Immediate)?;
            apply(&transaction, batch, &mut effects)?;
            if effects.iter().any(WorkEffect::changes) {
                commit_begun = true;
                self.gate.metrics.sent(DataOf::Locks, Operation::Commit);
                transaction.commit()?;
                Ok(true)
            } else {
                transaction.abort()?;
                Ok(false)
            }
        });
        if commit_begun {
            let (took, failure) = (begun.elapsed(), outcome.as_ref().err());
            let failure = failure.map(|_| Failure::Unknown);
            let metrics = &self.gate.metrics;
            metrics.ended(DataOf::Locks, Operation::Commit, took, failure);
        }
        match outcome {
            Ok(changed) => {
                if changed {
                    self.commits += 1;
                    self.gate.count_commit();
                }
                for (effect, answer) in effects.into_iter().zip(answers) {
                    // Whoever asked may have gone; it is done all the same.
                    let _ = answer.send(done(effect));
                }
            }
            Err(Fault::File(reason) | Fault::Row(reason)) => {
                // Closed first: nobody who is notified of the fault finds the store open.
                self.gate.close(&reason);
                let error = StoreError::Closed(reason);
                let mut effects = effects.into_iter();
                for answer in answers {
                    let effect = effects.next().filter(|_| commit_begun);
                    let _ = answer.send(undone(effect, &error));
                }
            }
        }
    }

    /// Closes the file and opens it again, as often as it takes.
    fn reopen(&mut self) -> Flow {
        self.gate.close_file();
        let mut is_warned = false;
        loop {
            let begun = Instant::now();
            while begun.elapsed() < REOPEN_PAUSE {
                if let Flow::Stop(acknowledge) = self.refuse_waiting() {
                    return Flow::Stop(acknowledge);
                }
                thread::sleep(REFUSE_PAUSE);
            }
            match self.open_again() {
                Ok(Opened {
                    database, commits, ..
                }) => {
                    // A commit of unknown outcome may be among them.
                    self.commits = commits;
                    self.gate.reopen(database);
                    tracing::info!("the store is open again");
                    return Flow::On;
                }
                Err(error) if is_warned => tracing::debug!(%error, "cannot open the store"),
                Err(error) => {
                    tracing::warn!(%error, "cannot open the store; retrying every 2 s");
                    is_warned = true;
                }
            }
        }
    }

    /// Opens the file, which must be the same one and hold all that was acknowledged.
    fn open_again(&self) -> Result<Opened, EmbeddedOpenError> {
        let path = self.directory.locks_file();
        if self.directory.format()?.store != self.store {
            return Err(EmbeddedOpenError::damaged(
                &path,
                "it belongs to another store than before",
            ));
        }
        let opened = self.medium.open(&path)?;
        if opened.commits < self.commits {
            let what = "it lacks acknowledged changes (was a backup restored?)";
            return Err(EmbeddedOpenError::damaged(&path, what));
        }
        // A full disk reads well: without this the store would be open again until the next change, and closed again.
        opened.prove_room(&path, BATCH_BYTES_MAX)?;
        Ok(opened)
    }

    /// Answers everybody who is waiting that the store is closed.
    fn refuse_waiting(&mut self) -> Flow {
        loop {
            match self.queue.try_recv() {
                Ok(Message::Job(_, answer)) => {
                    let error = self.gate.ready().err().unwrap_or_else(closed_meanwhile);
                    let _ = answer.send(JobOutcome::NotStarted(error));
                }
                Ok(Message::Recheck) => {}
                Ok(Message::Stop(acknowledge)) => return Flow::Stop(Some(acknowledge)),
                Err(mpsc::error::TryRecvError::Empty) => return Flow::On,
                Err(mpsc::error::TryRecvError::Disconnected) => return Flow::Stop(None),
            }
        }
    }
}

fn closed_meanwhile() -> StoreError {
    StoreError::Closed("it was closed meanwhile".to_owned())
}

/// The answer once the transaction has ended.
fn done(effect: WorkEffect) -> JobOutcome {
    match effect {
        WorkEffect::Done { .. } => JobOutcome::Applied,
        WorkEffect::Conflict(met) => JobOutcome::Conflict(met),
        WorkEffect::Damaged(what) => JobOutcome::NotStarted(StoreError::Damaged(what)),
    }
}

/// The answer where the transaction failed; `effect` only if its commit had begun. A conflict is not
/// told: it may be with a change that the same transaction failed to commit (I4).
fn undone(effect: Option<WorkEffect>, error: &StoreError) -> JobOutcome {
    match effect {
        Some(WorkEffect::Done { .. }) => JobOutcome::Unknown(error.clone()),
        Some(WorkEffect::Damaged(what)) => JobOutcome::NotStarted(StoreError::Damaged(what)),
        Some(WorkEffect::Conflict(_)) | None => JobOutcome::NotStarted(error.clone()),
    }
}
