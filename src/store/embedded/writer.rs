//! The one thread that writes: it commits all that is waiting in one transaction, then answers.
//!
//! It also owns the file: it closes it after a fault, opens it again, and closes it in the end.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use redb::{Durability, WriteTransaction};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::directory::Directory;
use super::fault::Fault;
use super::file::{Medium, Opened};
use super::gate::Gate;
use super::open_error::EmbeddedOpenError;
use super::work::{Work, WorkEffect, apply};
use crate::key::KeyState;
use crate::store::{SessionRow, StoreError};

/// How many jobs may wait; whoever comes then waits to be admitted.
pub(super) const QUEUE_JOBS_MAX: usize = 4096;
/// How many jobs one transaction may hold.
const BATCH_JOBS_MAX: usize = 1024;
/// How many bytes one transaction may write, but for its last job.
const BATCH_BYTES_MAX: usize = 8 * 1024 * 1024;
/// How long after a fault the file is opened again; twice as long after each failure.
const REOPEN_MS_MIN: u64 = 1_000;
const REOPEN_MS_MAX: u64 = 10_000;
/// How many bytes a commit must be able to write before a store that was closed is open again, at least.
const ROOM_BYTES_MIN: usize = 64 * 1024;
/// What a change of few bytes rewrites.
const PAGES_BYTES_PER_JOB: usize = 8 * 1024;
/// How long somebody may wait for the answer that the store is closed.
const REFUSE_EVERY_MS: u64 = 25;

/// What came of a job.
#[derive(Debug)]
pub(super) enum JobOutcome {
    Applied,
    StateConflict(Option<KeyState>),
    SessionConflict(Option<SessionRow>),
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
    /// How much the commit was to write that closed the store.
    pub(super) failed_bytes: usize,
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
            if batch.len() >= BATCH_JOBS_MAX || bytes >= BATCH_BYTES_MAX {
                break Flow::On;
            }
            next = match self.queue.try_recv() {
                Ok(message) => Some(message),
                // That nobody is left shows when the queue is waited for next.
                Err(_) => break Flow::On,
            };
        };
        if !batch.is_empty() {
            // Each change rewrites pages beside its own bytes.
            let wanted = bytes + answers.len() * PAGES_BYTES_PER_JOB;
            self.failed_bytes = match self.commit(&batch, answers) {
                true => 0,
                false => wanted.min(BATCH_BYTES_MAX),
            };
        }
        flow
    }

    /// Whether the transaction met no fault.
    fn commit(&mut self, batch: &[Work], answers: Vec<oneshot::Sender<JobOutcome>>) -> bool {
        let mut effects = Vec::with_capacity(batch.len());
        let mut commit_begun = false;
        let outcome = self.gate.write(|database| {
            let mut transaction: WriteTransaction = database.begin_write()?;
            transaction.set_durability(Durability::Immediate)?;
            apply(&transaction, batch, &mut effects)?;
            if effects.iter().any(WorkEffect::changes) {
                commit_begun = true;
                transaction.commit()?;
                Ok(true)
            } else {
                transaction.abort()?;
                Ok(false)
            }
        });
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
                true
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
                false
            }
        }
    }

    /// Closes the file and opens it again, as often as it takes.
    fn reopen(&mut self) -> Flow {
        self.gate.close_file();
        let mut pause_ms = REOPEN_MS_MIN;
        loop {
            for _ in 0..pause_ms / REFUSE_EVERY_MS {
                if let Flow::Stop(acknowledge) = self.refuse_waiting() {
                    return Flow::Stop(acknowledge);
                }
                thread::sleep(Duration::from_millis(REFUSE_EVERY_MS));
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
                Err(error) => {
                    match pause_ms {
                        REOPEN_MS_MIN => {
                            tracing::warn!(%error, "the store cannot be used yet; trying again")
                        }
                        _ => tracing::debug!(%error, "the store cannot be used yet"),
                    }
                    pause_ms = (pause_ms * 2).min(REOPEN_MS_MAX);
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
                "it is another store than before",
            ));
        }
        let opened = self.medium.open(&path)?;
        if opened.commits < self.commits {
            let what = "it lacks what was acknowledged, as a backup would";
            return Err(EmbeddedOpenError::damaged(&path, what));
        }
        // A full disk reads well: without this the store would be open again until the next change, and closed again.
        opened.prove_room(&path, self.failed_bytes.max(ROOM_BYTES_MIN))?;
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
        WorkEffect::StateConflict(state) => JobOutcome::StateConflict(state),
        WorkEffect::SessionConflict(session) => JobOutcome::SessionConflict(session),
        WorkEffect::Damaged(what) => JobOutcome::NotStarted(StoreError::Damaged(what)),
    }
}

/// The answer where the transaction failed; `effect` only if its commit had begun. A conflict is not
/// told: it may be with a change that the same transaction failed to commit (I4).
fn undone(effect: Option<WorkEffect>, error: &StoreError) -> JobOutcome {
    match effect {
        Some(WorkEffect::Done { .. }) => JobOutcome::Unknown(error.clone()),
        Some(WorkEffect::Damaged(what)) => JobOutcome::NotStarted(StoreError::Damaged(what)),
        Some(WorkEffect::StateConflict(_) | WorkEffect::SessionConflict(_)) | None => {
            JobOutcome::NotStarted(error.clone())
        }
    }
}
