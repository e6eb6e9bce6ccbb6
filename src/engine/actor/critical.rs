//! Reads and writes of the holder: only here, each write with the next timestamp of the fence (I3, I10,
//! I11).

use std::sync::Arc;

use super::super::api::{EngineError, Mutation, Value};
use super::hand_over::changing_home;
use super::holding::{HolderState, LastPut};
use super::intent::Intent;
use super::latest::Read;
use super::msg::{Accepted, EntryRef, HeldReply, LeaseValidity, Reply};
use super::outcome::unexpected;
use super::remote_entries::ReRead;
use super::{Actor, Run};
use crate::lock::{EndReason, EndedAs, Fence, Outcome, Seq};
use crate::store::{Cell, StoreError, Written};

/// What a critical call does, and who learns of it.
pub(super) enum CriticalKind {
    Get(Reply<Accepted<Value>>),
    Write(Mutation, Reply<Accepted<()>>),
    /// A write, then the release of the lockRef.
    Release(Mutation, Reply<bool>),
}

/// An accepted critical call.
pub(super) struct Critical {
    pub entry_ref: EntryRef,
    pub validity: LeaseValidity,
    pub kind: CriticalKind,
}

/// Who learns of a write.
pub(super) enum WriteReply {
    Write(Reply<Accepted<()>>),
    Release(Reply<bool>),
}

/// What came of a read or a write of data. Each belongs to the grant it was begun under.
pub(super) enum IoDone {
    Got {
        entry_ref: EntryRef,
        validity: LeaseValidity,
        reply: Reply<Accepted<Value>>,
        read: Read,
        re_read: ReRead,
    },
    Wrote {
        entry_ref: EntryRef,
        validity: LeaseValidity,
        cell: Cell,
        reply: WriteReply,
        written: Written,
        re_read: ReRead,
    },
    /// The value that an answer of HELD shall carry.
    GrantWaiter {
        grant: Fence,
        grant_waiter: super::GrantWaiter,
        read: Read,
        re_read: ReRead,
    },
    /// The one read of a fence that must be synced.
    SyncRead {
        fence: Fence,
        cell: Result<Option<Cell>, StoreError>,
    },
    /// The rewrite of what was read.
    SyncWrote { fence: Fence, written: Written },
    /// The look at the key after a sync that took long.
    SyncReRead { grant: Fence, re_read: ReRead },
}

impl Actor {
    /// Checks a critical call, in the order in which a client can mend what is wrong, and begins it.
    pub(super) fn critical(
        &mut self,
        run: &mut Run,
        entry_ref: EntryRef,
        call_no: u64,
        kind: CriticalKind,
    ) {
        let is_release = matches!(kind, CriticalKind::Release(..));
        match self.accept(run, entry_ref, call_no, is_release) {
            Ok(validity) => {
                if let Some(holding) = &mut self.holding {
                    holding.last_put = match is_release {
                        true => LastPut::InFlight(call_no),
                        false => LastPut::None,
                    };
                }
                let call = Critical {
                    entry_ref,
                    validity,
                    kind,
                };
                self.begin(run, call);
            }
            // The one in flight may be an earlier try of it.
            Err(EngineError::Releasing) if is_release => {
                kind.fail(EngineError::Releasing.with_write());
            }
            Err(error) => kind.fail(error),
        }
    }

    fn accept(
        &mut self,
        run: &Run,
        entry_ref: EntryRef,
        call_no: u64,
        is_release: bool,
    ) -> Result<LeaseValidity, EngineError> {
        let (position, _, validity) = self.live(run, entry_ref)?;
        let grant = entry_ref.grant.ok_or(EngineError::NoGrant)?;
        if position > 0 {
            // Nobody ever told this lockRef a grant.
            return Err(EngineError::NoGrant);
        }
        let Some(holding) = self.holding.as_mut().filter(|h| h.grant == grant) else {
            return Err(EngineError::GrantSuperseded);
        };
        if holding.releasing || matches!(holding.last_put, LastPut::InFlight(_)) {
            return Err(EngineError::Releasing);
        }
        let calls_max = run.inner.limits.critical_calls_per_lock_ref_max;
        if holding.calls >= calls_max {
            return Err(EngineError::Exhausted {
                what: "critical_calls_per_lock_ref_max",
                limit: calls_max as u64,
            });
        }
        if call_no > 0 {
            // A release whose put failed, and that nothing followed, may come again as it was.
            let is_again = is_release && holding.last_put == LastPut::Failed(call_no);
            if call_no <= holding.last_call_no && !is_again {
                return Err(EngineError::CallNoNotAbove {
                    given: call_no,
                    last: holding.last_call_no,
                });
            }
            holding.last_call_no = call_no;
        }
        holding.calls += 1;
        holding.served_at = Some(run.inner.clock.boot());
        Ok(validity)
    }

    /// Begins an accepted call, or puts it off until the holder is granted the lock or has timestamps again.
    pub(super) fn begin(&mut self, run: &mut Run, call: Critical) {
        let current = |h: &&mut HolderState| Some(h.grant) == call.entry_ref.grant;
        let Some(holding) = self.holding.as_mut().filter(current) else {
            let error = self.why_ended(call.entry_ref.seq, call.entry_ref.tag);
            return call.fail(error);
        };
        if !holding.is_open() || holding.extending {
            // In their order: what waits for timestamps is not overtaken by what comes after it.
            return holding.put_off.push_back(call);
        }
        let id = Arc::clone(&self.id);
        let store = Arc::clone(&run.inner.store);
        let Critical {
            entry_ref,
            validity,
            kind,
        } = call;
        let (mutation, reply) = match kind {
            CriticalKind::Get(reply) => {
                let (read, look) = (self.read_latest(run), self.re_read_beside(run));
                run.io.push(Box::pin(async move {
                    let (read, re_read) = tokio::join!(read, look);
                    IoDone::Got {
                        entry_ref,
                        validity,
                        reply,
                        read,
                        re_read,
                    }
                }));
                return;
            }
            CriticalKind::Write(mutation, reply) => (mutation, WriteReply::Write(reply)),
            CriticalKind::Release(mutation, reply) => (mutation, WriteReply::Release(reply)),
        };
        let Some(timestamp) = holding.next_timestamp() else {
            if !holding.extending {
                holding.extending = true;
                self.pending.push_back(Intent::Extend {
                    seq: holding.seq,
                    fence: holding.fence,
                    past: holding.past,
                });
            }
            let kind = match reply {
                WriteReply::Write(reply) => CriticalKind::Write(mutation, reply),
                WriteReply::Release(reply) => CriticalKind::Release(mutation, reply),
            };
            return holding.put_off.push_back(Critical {
                entry_ref,
                validity,
                kind,
            });
        };
        holding.writing.insert(timestamp);
        self.latest.forget();
        let cell = Cell {
            value: match mutation {
                Mutation::Put(bytes) => Some(bytes),
                Mutation::Delete => None,
            },
            timestamp,
        };
        let look = self.re_read_beside(run);
        run.io.push(Box::pin(async move {
            let (written, re_read) = tokio::join!(store.write_data(&id, cell.clone()), look);
            IoDone::Wrote {
                entry_ref,
                validity,
                cell,
                reply,
                written,
                re_read,
            }
        }));
    }

    /// An Extend was decided: what waited for timestamps goes on in `grant_waiter`.
    pub(super) fn extended(
        &mut self,
        run: &mut Run,
        seq: Seq,
        fence: Fence,
        outcome: Option<Outcome>,
    ) {
        // The fence may have ended, and what is remembered be of the holder after it.
        let take_over_requests = |h: &&mut HolderState| h.seq == seq && h.grant <= fence;
        let Some(holding) = self.holding.as_mut().filter(take_over_requests) else {
            return;
        };
        holding.extending = false;
        if !matches!(outcome, Some(Outcome::Extended)) {
            self.fail_holder_calls(&unexpected(outcome));
            self.pause(run);
        }
    }

    /// Fails what waits to be granted the lock, or for timestamps; the callers may ask again.
    pub(super) fn fail_holder_calls(&mut self, error: &EngineError) {
        for grant_waiter in std::mem::take(&mut self.grant_waiters) {
            drop(grant_waiter.reply.send(Err(error.clone())));
        }
        self.fail_put_off(error);
    }

    /// Fails who waits for this entry to be granted the lock.
    pub(super) fn fail_grant_waiters(&mut self, seq: Seq, error: &EngineError) {
        for grant_waiter in self.grant_waiters.extract_if(.., |l| l.seq == seq) {
            drop(grant_waiter.reply.send(Err(error.clone())));
        }
    }

    /// Fails the critical calls that were accepted and not begun.
    pub(super) fn fail_put_off(&mut self, error: &EngineError) {
        let Some(holding) = &mut self.holding else {
            return;
        };
        let put_off = std::mem::take(&mut holding.put_off);
        holding.calls = holding.calls.saturating_sub(put_off.len());
        for call in put_off {
            if matches!(call.kind, CriticalKind::Release(..)) {
                holding.end_last_put(false);
            }
            call.fail(error.clone());
        }
    }

    /// Takes in what came of a read or a write.
    pub(super) fn io_done(&mut self, run: &mut Run, done: IoDone) {
        match done {
            IoDone::Got {
                entry_ref,
                validity,
                reply,
                read,
                re_read,
            } => {
                let re_read = self.saw_re_read(run, re_read);
                let answer = match settle_call(&mut self.holding, entry_ref) {
                    Some(holding) => read
                        .noted(holding, &mut self.latest)
                        .map(|cell| Accepted {
                            value: value_of(cell),
                            validity,
                        })
                        .map_err(|error| EngineError::Unavailable(error.to_string()))
                        .and_then(|done| re_read.map(|()| done)),
                    // What was read may be of a later holder.
                    None => Err(self.why_ended(entry_ref.seq, entry_ref.tag)),
                };
                drop(reply.send(answer));
                self.finish_hand_over();
            }
            IoDone::Wrote {
                entry_ref,
                validity,
                cell,
                reply,
                written,
                re_read,
            } => {
                let re_read = self.saw_re_read(run, re_read);
                self.wrote((entry_ref, validity), cell, reply, written, re_read);
                self.finish_hand_over();
            }
            IoDone::GrantWaiter {
                grant,
                grant_waiter,
                read,
                re_read,
            } => match self.saw_re_read(run, re_read) {
                Ok(()) => self.grant_with_value(run, grant, grant_waiter, read),
                Err(error) => drop(grant_waiter.reply.send(Err(error))),
            },
            IoDone::SyncRead { fence, cell } => self.sync_read(run, fence, cell),
            IoDone::SyncWrote { fence, written } => self.sync_wrote(run, fence, written),
            IoDone::SyncReRead { grant, re_read } => self.sync_re_read(run, grant, re_read),
        }
    }

    fn wrote(
        &mut self,
        (entry_ref, validity): (EntryRef, LeaseValidity),
        cell: Cell,
        reply: WriteReply,
        written: Written,
        re_read: Result<(), EngineError>,
    ) {
        let timestamp = cell.timestamp;
        let Some(holding) = settle_call(&mut self.holding, entry_ref) else {
            // The fence ended meanwhile: its end was not clean, so the next holder syncs (I7). Whether
            // this write shows is up to that.
            let is_unknown = !matches!(written, Written::NotStarted(_));
            let error = match (self.why_ended(entry_ref.seq, entry_ref.tag), is_unknown) {
                (error, true) => error.with_write(),
                (error, false) => error,
            };
            return match reply {
                WriteReply::Write(reply) => drop(reply.send(Err(error))),
                WriteReply::Release(reply) => drop(reply.send(Err(error))),
            };
        };
        holding.writing.remove(&timestamp);
        let result = match written {
            Written::Done => {
                holding.acked = holding.acked.max(timestamp);
                if holding.acked == timestamp && !holding.has_open_write() {
                    self.latest.know(Some(cell));
                }
                // Written; but whether this home's fence was still in force is not known.
                re_read.map_err(|error| EngineError::WriteUnknown(error.to_string()))
            }
            Written::Unknown(error) => {
                holding.unknown = holding.unknown.max(timestamp);
                Err(EngineError::WriteUnknown(error.to_string()))
            }
            Written::NotStarted(error) => Err(EngineError::Unavailable(error.to_string())),
        };
        match (reply, result) {
            (WriteReply::Write(reply), result) => {
                let answer = result.map(|()| Accepted {
                    value: (),
                    validity,
                });
                drop(reply.send(answer));
            }
            (WriteReply::Release(reply), Ok(())) => {
                holding.end_last_put(true);
                self.push_release(entry_ref, true, reply);
            }
            (WriteReply::Release(reply), Err(error)) => {
                // Not released: the caller may repeat it.
                holding.end_last_put(false);
                drop(reply.send(Err(error)));
            }
        }
    }

    /// Answers HELD, and notes that somebody was there to hear it (I5).
    pub(super) fn say_held(
        &mut self,
        run: &mut Run,
        reply: HeldReply,
        existed: bool,
        value: Option<Value>,
    ) {
        let Some(holding) = &self.holding else {
            return drop(reply.send(Err(super::no_answer())));
        };
        let entry_ref = EntryRef {
            seq: holding.seq,
            tag: holding.tag,
            grant: Some(holding.grant),
        };
        let grant = holding.grant;
        let answer = self
            .live(run, entry_ref)
            .map(|(_, lease, validity)| super::Held::Held {
                seq: entry_ref.seq,
                tag: entry_ref.tag,
                grant,
                value,
                lease,
                validity,
                existed,
            });
        // Where its session is kept elsewhere the answer is not out yet: `answered`.
        let held = answer.as_ref().is_ok_and(super::Held::is_final);
        let observed = reply.send(answer).is_ok();
        if let Some(holding) = &mut self.holding
            && held
            && observed
        {
            holding.claimed = true;
            holding.served_at = Some(run.inner.clock.boot());
        }
    }

    /// A caller is answered HELD now, unless that changed while its session was asked about: notes it (I5).
    pub(super) fn answered(&mut self, run: &Run, entry_ref: EntryRef) -> Result<(), EngineError> {
        let current = |h: &&mut HolderState| Some(h.grant) == entry_ref.grant;
        let Some(holding) = self.holding.as_mut().filter(current) else {
            return Err(match self.why_ended(entry_ref.seq, entry_ref.tag) {
                // Given up, or taken anew: nobody was told that grant.
                EngineError::GrantSuperseded => changing_home(),
                other => other,
            });
        };
        if holding.is_unclaimed() {
            return Err(EngineError::Ended(EndedAs::Lost(EndReason::Unclaimed)));
        }
        holding.claimed = true;
        holding.served_at = Some(run.inner.clock.boot());
        Ok(())
    }
}

/// One critical call less in flight; what is known of its fence, if that is still in force.
fn settle_call(holding: &mut Option<HolderState>, entry_ref: EntryRef) -> Option<&mut HolderState> {
    let current = |h: &&mut HolderState| Some(h.grant) == entry_ref.grant;
    let holding = holding.as_mut().filter(current)?;
    holding.calls = holding.calls.saturating_sub(1);
    Some(holding)
}

/// What a cell means to a reader.
pub(in super::super) fn value_of(cell: Option<Cell>) -> Value {
    Value {
        bytes: cell.and_then(|cell| cell.value),
    }
}
