//! Reads and writes of the holder: only here, each write with the next timestamp of the fence (I3, I10,
//! I11).

use std::sync::Arc;

use super::super::api::{EngineError, Mutation, Value};
use super::ceding::changing_home;
use super::holding::{Holding, LastPut};
use super::intent::Intent;
use super::latest::Read;
use super::msg::{Accepted, HeldReply, Life, PlaceRef, Reply};
use super::others::Looked;
use super::outcome::unexpected;
use super::{Actor, Run};
use crate::lock::{EndReason, Fence, Outcome, Over, Seq};
use crate::store::{Cell, StoreError, Written};

/// What a critical call does, and who hears of it.
pub(super) enum CriticalKind {
    Get(Reply<Accepted<Value>>),
    Write(Mutation, Reply<Accepted<()>>),
    /// A write, then the release of the lockRef.
    Release(Mutation, Reply<bool>),
}

/// An accepted critical call.
pub(super) struct Critical {
    pub place: PlaceRef,
    pub life: Life,
    pub kind: CriticalKind,
}

/// Who hears of a write.
pub(super) enum WriteReply {
    Write(Reply<Accepted<()>>),
    Release(Reply<bool>),
}

/// What came of a read or a write of data. Each belongs to the grant it was begun under.
pub(super) enum IoDone {
    Got {
        place: PlaceRef,
        life: Life,
        reply: Reply<Accepted<Value>>,
        read: Read,
        looked: Looked,
    },
    Wrote {
        place: PlaceRef,
        life: Life,
        cell: Cell,
        reply: WriteReply,
        written: Written,
        looked: Looked,
    },
    /// The value that an answer of HELD shall carry.
    LetIn {
        grant: Fence,
        let_in: super::LetIn,
        read: Read,
        looked: Looked,
    },
    /// The one read of a fence that must be synced.
    SyncRead {
        fence: Fence,
        cell: Result<Option<Cell>, StoreError>,
    },
    /// The rewrite of what was read.
    SyncWrote { fence: Fence, written: Written },
    /// The look at the key after a sync that took long.
    SyncLooked { grant: Fence, looked: Looked },
}

impl Actor {
    /// Checks a critical call, in the order in which a client can mend what is wrong, and begins it.
    pub(super) fn critical(
        &mut self,
        run: &mut Run,
        place: PlaceRef,
        call_no: u64,
        kind: CriticalKind,
    ) {
        let is_release = matches!(kind, CriticalKind::Release(..));
        match self.accept(run, place, call_no, is_release) {
            Ok(life) => {
                if let Some(holding) = &mut self.holding {
                    holding.last_put = match is_release {
                        true => LastPut::UnderWay(call_no),
                        false => LastPut::None,
                    };
                }
                let call = Critical { place, life, kind };
                self.begin(run, call);
            }
            // The one under way may be an earlier try of it.
            Err(EngineError::Releasing) if is_release => {
                kind.fail(EngineError::Releasing.with_write());
            }
            Err(error) => kind.fail(error),
        }
    }

    fn accept(
        &mut self,
        run: &Run,
        place: PlaceRef,
        call_no: u64,
        is_release: bool,
    ) -> Result<Life, EngineError> {
        let (position, _, life) = self.live(run, place)?;
        let grant = place.grant.ok_or(EngineError::NoGrant)?;
        if position > 0 {
            // Nobody ever told this lockRef a grant.
            return Err(EngineError::NoGrant);
        }
        let Some(holding) = self.holding.as_mut().filter(|h| h.grant == grant) else {
            return Err(EngineError::GrantSuperseded);
        };
        if holding.releasing || matches!(holding.last_put, LastPut::UnderWay(_)) {
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
        Ok(life)
    }

    /// Begins an accepted call, or puts it off until the holder is let in or has timestamps again.
    pub(super) fn begin(&mut self, run: &mut Run, call: Critical) {
        let current = |h: &&mut Holding| Some(h.grant) == call.place.grant;
        let Some(holding) = self.holding.as_mut().filter(current) else {
            let error = self.why_over(call.place.seq, call.place.tag);
            return call.fail(error);
        };
        if !holding.is_open() || holding.extending {
            // In their order: what waits for timestamps is not overtaken by what comes after it.
            return holding.put_off.push_back(call);
        }
        let id = Arc::clone(&self.id);
        let store = Arc::clone(&run.inner.store);
        let Critical { place, life, kind } = call;
        let (mutation, reply) = match kind {
            CriticalKind::Get(reply) => {
                let (read, look) = (self.read_latest(run), self.look_beside(run));
                run.io.push(Box::pin(async move {
                    let (read, looked) = tokio::join!(read, look);
                    IoDone::Got {
                        place,
                        life,
                        reply,
                        read,
                        looked,
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
            return holding.put_off.push_back(Critical { place, life, kind });
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
        let look = self.look_beside(run);
        run.io.push(Box::pin(async move {
            let (written, looked) = tokio::join!(store.write_data(&id, cell.clone()), look);
            IoDone::Wrote {
                place,
                life,
                cell,
                reply,
                written,
                looked,
            }
        }));
    }

    /// An Extend was decided: what waited for timestamps goes on in `let_in`.
    pub(super) fn extended(
        &mut self,
        run: &mut Run,
        seq: Seq,
        fence: Fence,
        outcome: Option<Outcome>,
    ) {
        // The fence may have ended, and what is remembered be of the holder after it.
        let asked = |h: &&mut Holding| h.seq == seq && h.grant <= fence;
        let Some(holding) = self.holding.as_mut().filter(asked) else {
            return;
        };
        holding.extending = false;
        if !matches!(outcome, Some(Outcome::Extended)) {
            self.fail_holder_calls(&unexpected(outcome));
            self.pause(run);
        }
    }

    /// Fails what waits to be let in, or for timestamps; the callers may ask again.
    pub(super) fn fail_holder_calls(&mut self, error: &EngineError) {
        for let_in in std::mem::take(&mut self.let_ins) {
            drop(let_in.reply.send(Err(error.clone())));
        }
        self.fail_put_off(error);
    }

    /// Fails who waits for this place to be let in.
    pub(super) fn fail_let_ins(&mut self, seq: Seq, error: &EngineError) {
        for let_in in self.let_ins.extract_if(.., |l| l.seq == seq) {
            drop(let_in.reply.send(Err(error.clone())));
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
                place,
                life,
                reply,
                read,
                looked,
            } => {
                let looked = self.saw_beside(run, looked);
                let answer = match settle_call(&mut self.holding, place) {
                    Some(holding) => read
                        .noted(holding, &mut self.latest)
                        .map(|cell| Accepted {
                            value: value_of(cell),
                            life,
                        })
                        .map_err(|error| EngineError::Unavailable(error.to_string()))
                        .and_then(|done| looked.map(|()| done)),
                    // What was read may be of a later holder.
                    None => Err(self.why_over(place.seq, place.tag)),
                };
                drop(reply.send(answer));
                self.finish_consent();
            }
            IoDone::Wrote {
                place,
                life,
                cell,
                reply,
                written,
                looked,
            } => {
                let looked = self.saw_beside(run, looked);
                self.wrote((place, life), cell, reply, written, looked);
                self.finish_consent();
            }
            IoDone::LetIn {
                grant,
                let_in,
                read,
                looked,
            } => match self.saw_beside(run, looked) {
                Ok(()) => self.let_in_read(run, grant, let_in, read),
                Err(error) => drop(let_in.reply.send(Err(error))),
            },
            IoDone::SyncRead { fence, cell } => self.sync_read(run, fence, cell),
            IoDone::SyncWrote { fence, written } => self.sync_wrote(run, fence, written),
            IoDone::SyncLooked { grant, looked } => self.sync_looked(run, grant, looked),
        }
    }

    fn wrote(
        &mut self,
        (place, life): (PlaceRef, Life),
        cell: Cell,
        reply: WriteReply,
        written: Written,
        looked: Result<(), EngineError>,
    ) {
        let timestamp = cell.timestamp;
        let Some(holding) = settle_call(&mut self.holding, place) else {
            // The fence ended meanwhile: its end was not clean, so the next holder syncs (I7). Whether
            // this write shows is up to that.
            let is_unknown = !matches!(written, Written::NotStarted(_));
            let error = match (self.why_over(place.seq, place.tag), is_unknown) {
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
                looked.map_err(|error| EngineError::WriteUnknown(error.to_string()))
            }
            Written::Unknown(error) => {
                holding.unknown = holding.unknown.max(timestamp);
                Err(EngineError::WriteUnknown(error.to_string()))
            }
            Written::NotStarted(error) => Err(EngineError::Unavailable(error.to_string())),
        };
        match (reply, result) {
            (WriteReply::Write(reply), result) => {
                let answer = result.map(|()| Accepted { value: (), life });
                drop(reply.send(answer));
            }
            (WriteReply::Release(reply), Ok(())) => {
                holding.end_last_put(true);
                self.push_release(place, true, reply);
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
        let place = PlaceRef {
            seq: holding.seq,
            tag: holding.tag,
            grant: Some(holding.grant),
        };
        let grant = holding.grant;
        let answer = self
            .live(run, place)
            .map(|(_, lease, life)| super::Held::Held {
                seq: place.seq,
                tag: place.tag,
                grant,
                value,
                lease,
                life,
                existed,
            });
        // Where its session is kept elsewhere the answer is not out yet: `told`.
        let held = answer.as_ref().is_ok_and(super::Held::is_final);
        let heard = reply.send(answer).is_ok();
        if let Some(holding) = &mut self.holding
            && held
            && heard
        {
            holding.claimed = true;
            holding.served_at = Some(run.inner.clock.boot());
        }
    }

    /// A caller hears HELD now, unless that changed while its session was asked about: notes it (I5).
    pub(super) fn told(&mut self, run: &Run, place: PlaceRef) -> Result<(), EngineError> {
        let current = |h: &&mut Holding| Some(h.grant) == place.grant;
        let Some(holding) = self.holding.as_mut().filter(current) else {
            return Err(match self.why_over(place.seq, place.tag) {
                // Given up, or taken anew: nobody was told that grant.
                EngineError::GrantSuperseded => changing_home(),
                other => other,
            });
        };
        if holding.is_unclaimed() {
            return Err(EngineError::Over(Over::Ended(EndReason::Unclaimed)));
        }
        holding.claimed = true;
        holding.served_at = Some(run.inner.clock.boot());
        Ok(())
    }
}

/// One critical call less under way; what is known of its fence, if that is still in force.
fn settle_call(holding: &mut Option<Holding>, place: PlaceRef) -> Option<&mut Holding> {
    let current = |h: &&mut Holding| Some(h.grant) == place.grant;
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
