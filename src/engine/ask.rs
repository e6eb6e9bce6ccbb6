//! A call to a key: handed to the key's machine, and answered.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use super::api::EngineError;
use super::shell::KeyShell;
use super::slot::{CallResult, KeyCell, Listener};
use crate::key::machine::{
    Answer, Call, CallError, CallId, EntryRef, EntryStatus, Event, KeyError,
};
use crate::lock::{Fence, KeyId, Liveness, Tag};

/// A call that was handed in. A drop tells the machine that nobody waits for it any longer; begun work goes on.
pub(super) struct Asking {
    shell: Arc<KeyShell>,
    cell: Arc<KeyCell>,
    call: CallId,
    answer: oneshot::Receiver<CallResult>,
    is_answered: bool,
}

impl Drop for Asking {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        self.answer.close();
        // The answer may have come a moment ago, unheard.
        match self.answer.try_recv() {
            Ok(Ok(Answer::Held { entry, .. })) => {
                if let Some(grant) = entry.grant {
                    let lost = Event::AnswerLost { grant };
                    self.shell.handle_event(&self.cell, lost);
                }
            }
            Ok(_) => {}
            Err(_) => self.shell.call_gone(&self.cell, self.call),
        }
    }
}

impl Asking {
    /// The answer.
    pub async fn answer(&mut self) -> CallResult {
        let answer = (&mut self.answer).await;
        self.is_answered = true;
        // The machine is lost: the outcome of the call is unknown.
        answer.unwrap_or_else(|_| {
            Err(CallError {
                why: KeyError::StoreUnavailable("the in-memory state of this key was lost".into()),
                may_have_written: true,
            })
        })
    }

    /// Tells the machine that the wait is at its limit.
    pub fn wait_ended(&self) {
        self.shell
            .handle_event(&self.cell, Event::WaitEnded(self.call));
    }
}

/// A HELD that a machine answered, until a caller hears it.
pub(super) struct HeldAnswer {
    shell: Arc<KeyShell>,
    cell: Arc<KeyCell>,
    grant: Option<Fence>,
}

impl HeldAnswer {
    pub fn heard(mut self) {
        self.grant = None;
    }
}

impl Drop for HeldAnswer {
    fn drop(&mut self) {
        if let Some(grant) = self.grant {
            let lost = Event::AnswerLost { grant };
            self.shell.handle_event(&self.cell, lost);
        }
    }
}

/// A watch that has begun.
pub(super) struct Watching {
    pub shell: Arc<KeyShell>,
    pub cell: Arc<KeyCell>,
    call: CallId,
    pub news: watch::Receiver<Option<EntryStatus>>,
    /// The grant that the watcher was told.
    pub heard: Option<Fence>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.shell.call_gone(&self.cell, self.call);
        // The machine counts HELD as heard once it notifies.
        let granted = match *self.news.borrow() {
            Some(EntryStatus::Held { grant }) => Some(grant),
            _ => None,
        };
        if let Some(grant) = granted.filter(|_| self.heard != granted) {
            let lost = Event::AnswerLost { grant };
            self.shell.handle_event(&self.cell, lost);
        }
    }
}

impl KeyShell {
    fn cell(&self, id: &Arc<KeyId>) -> Result<Arc<KeyCell>, EngineError> {
        self.keys
            .cell(id, || self.local.clock.boot())
            .ok_or(EngineError::Exhausted {
                what: "active_keys_max",
                limit: self.keys.keys_max() as u64,
            })
    }

    /// Whether the client of this share may make an entry of a key.
    pub fn admit(&self, id: &KeyId, share_of: &str) -> Result<(), EngineError> {
        let admitted = self.keys.admit(id, share_of);
        let most = self.keys.keys_max();
        admitted.map_err(|no_share| EngineError::of_no_share(no_share, "active_keys_max", most))
    }

    /// Hands a call in; `share_of`: the client that a new entry counts for, if shares limit it.
    pub fn ask(
        self: &Arc<Self>,
        id: &Arc<KeyId>,
        call: Call,
        share_of: Option<Arc<str>>,
    ) -> Result<Asking, EngineError> {
        let (reply, answer) = oneshot::channel();
        let (cell, call) = self.hand_in(id, call, Listener::Answer(reply), share_of)?;
        Ok(Asking {
            shell: Arc::clone(self),
            cell,
            call,
            answer,
            is_answered: false,
        })
    }

    fn hand_in(
        self: &Arc<Self>,
        id: &Arc<KeyId>,
        call: Call,
        mut listener: Listener,
        share_of: Option<Arc<str>>,
    ) -> Result<(Arc<KeyCell>, CallId), EngineError> {
        loop {
            let cell = self.cell(id)?;
            match self.call(&cell, call.clone(), listener, share_of.as_ref()) {
                Ok(call) => return Ok((cell, call)),
                // The cell was forgotten a moment ago: the next look-up makes a new one.
                Err(back) => listener = back,
            }
        }
    }

    /// Whether an answer may be given, checked after the store's acknowledgement and before the caller hears it (H2). A
    /// forbidden answer is lost.
    fn may_tell(self: &Arc<Self>, id: &Arc<KeyId>, answer: &CallResult) -> Result<(), EngineError> {
        self.local.sure().inspect_err(|_| {
            if let Ok(answer) = answer {
                drop(self.held_answer(id, answer));
            }
        })
    }

    /// Makes a call and waits for its answer.
    pub async fn asked(
        self: &Arc<Self>,
        id: &Arc<KeyId>,
        call: Call,
    ) -> Result<Answer, EngineError> {
        self.asked_of(id, call, None).await
    }

    /// As [`KeyShell::asked`], for a call that makes an entry for the client of this share.
    pub async fn asked_to_create(
        self: &Arc<Self>,
        id: &Arc<KeyId>,
        call: Call,
        share_of: Arc<str>,
    ) -> Result<Answer, EngineError> {
        self.asked_of(id, call, Some(share_of)).await
    }

    async fn asked_of(
        self: &Arc<Self>,
        id: &Arc<KeyId>,
        call: Call,
        share_of: Option<Arc<str>>,
    ) -> Result<Answer, EngineError> {
        let answer = self.ask(id, call, share_of)?.answer().await;
        self.may_tell(id, &answer)?;
        answer.map_err(|error| EngineError::of_key(error.why))
    }

    /// As [`KeyShell::asked`], for a call that may write: a forbidden answer may be that of a write.
    pub async fn asked_to_write(
        self: &Arc<Self>,
        id: &Arc<KeyId>,
        call: Call,
    ) -> Result<Answer, EngineError> {
        let answer = self.ask(id, call, None)?.answer().await;
        self.local.sure().map_err(EngineError::with_write)?;
        answer.map_err(|error| match error.may_have_written {
            true => EngineError::of_key(error.why).with_write(),
            false => EngineError::of_key(error.why),
        })
    }

    /// Asks until the entry holds the key, for at most `wait` and two thirds of its TTL: a live client asks again, which renews
    /// the entry.
    pub async fn asked_to_wait(
        self: &Arc<Self>,
        id: &Arc<KeyId>,
        call: Call,
        entry: EntryRef,
        wait: Duration,
    ) -> Result<Answer, EngineError> {
        let mut asking = self.ask(id, call, None)?;
        let mut stopping = self.local.stopping();
        let answer = {
            let cell = Arc::clone(&asking.cell);
            let wait_ended = self.wait_ended(&cell, entry, wait);
            tokio::select! {
                biased;
                answer = asking.answer() => Some(answer),
                _ = stopping.wait_for(|stopping| *stopping) => {
                    self.local.sure()?;
                    return Err(EngineError::Stopping);
                }
                () = wait_ended => None,
            }
        };
        let answer = match answer {
            Some(answer) => answer,
            None => {
                asking.wait_ended();
                asking.answer().await
            }
        };
        self.may_tell(id, &answer)?;
        answer.map_err(|error| EngineError::of_key(error.why))
    }

    /// Sleeps until a wait for an entry is at its limit. The TTL of the entry may be known only once its key was read; until
    /// then the wait is at least that of the shortest TTL.
    async fn wait_ended(&self, cell: &KeyCell, entry: EntryRef, wait: Duration) {
        let most = |ttl: Duration| wait.min(ttl * 2 / 3);
        let clock = &self.local.clock;
        let began = clock.boot();
        loop {
            let waited = clock.boot().saturating_sub(began);
            clock
                .sleep(most(self.ttl_min).min(wait.saturating_sub(waited)))
                .await;
            let waited = clock.boot().saturating_sub(began);
            if waited >= wait {
                return;
            }
            let ttl = match cell.slot().liveness_of(entry.seq) {
                Some(Liveness::Own { ttl_ms }) => Some(Duration::from_millis(ttl_ms.into())),
                Some(Liveness::Session(session)) => self.sessions.table.ttl_of(session),
                None => None,
            };
            if let Some(ttl) = ttl {
                return clock.sleep(most(ttl).saturating_sub(waited)).await;
            }
        }
    }

    /// Whether a key served here has a live entry with this tag.
    pub fn has_made(&self, id: &KeyId, tag: Tag) -> bool {
        let Some(cell) = self.keys.find(id) else {
            return false;
        };
        let slot = cell.slot();
        let state = slot.machine.state();
        state.is_some_and(|state| state.entries.iter().any(|e| e.tag == tag))
    }

    /// Whether a new entry of a key is made in memory alone.
    pub fn is_in_memory(&self, id: &KeyId) -> bool {
        self.commits.is_write_back(&id.table)
            && self.keys.find(id).is_some_and(|cell| cell.is_served())
    }

    /// Guards a HELD: it counts as lost until it is reported as heard.
    pub fn held_answer(self: &Arc<Self>, id: &Arc<KeyId>, answer: &Answer) -> Option<HeldAnswer> {
        let Answer::Held { entry, .. } = answer else {
            return None;
        };
        Some(HeldAnswer {
            shell: Arc::clone(self),
            cell: self.keys.find(id)?,
            grant: entry.grant,
        })
    }

    /// Begins a watch.
    pub async fn asked_to_watch(
        self: &Arc<Self>,
        id: &Arc<KeyId>,
        entry: EntryRef,
    ) -> Result<(Watching, Answer), EngineError> {
        let (begun, answer) = oneshot::channel();
        let (sender, news) = watch::channel(None);
        let listener = Listener::Watch {
            begun: Some(begun),
            news: sender,
        };
        let (cell, call) = self.hand_in(id, Call::Watch { entry }, listener, None)?;
        let watching = Watching {
            shell: Arc::clone(self),
            cell,
            call,
            news,
            heard: None,
        };
        let answer = answer.await;
        self.local.sure()?;
        match answer {
            Ok(Ok(answer)) => Ok((watching, answer)),
            Ok(Err(error)) => Err(EngineError::of_key(error.why)),
            Err(_) => Err(EngineError::Unavailable(
                "the in-memory state of this key was lost".to_owned(),
            )),
        }
    }
}
