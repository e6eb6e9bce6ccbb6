//! What comes in, checked against the state that is known.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use super::super::api::{EngineError, WatchEvent};
use super::super::leases::{LeaseKey, NoLease, OpenCall, Room};
use super::critical::{Critical, CriticalKind};
use super::hand_over::changing_home;
use super::holding::HolderState;
use super::intent::{EvictReply, Intent};
use super::msg::{EntryRef, Held, HeldReply, LeaseValidity, Msg, Reply, TurnWaker, WatchHandle};
use super::remote_entries::session_closed;
use super::{Actor, GrantWaiter, Run};
use crate::lock::{
    Create, Created, EndReason, EndedAs, Entry, Evidence, Fence, Liveness, Lookup, Seq,
};

impl Actor {
    /// Takes one message. The state is known; `fresh` if it was read after the message came.
    pub(super) fn take(&mut self, run: &mut Run, msg: Msg, fresh: bool) {
        if run.inner.shared && !fresh {
            // Others may have changed it since: what this home cannot answer for is looked up first.
            let must_read = match &msg {
                Msg::Where { .. } => true,
                Msg::Force { entry_ref, .. } => !self.knows(run, *entry_ref),
                // It may say HELD, or "not yet" for as long as it is repeated.
                Msg::Acquire { entry_ref, .. } | Msg::Watch { entry_ref, .. } => {
                    !self.knows(run, *entry_ref) || self.read_long_ago(run)
                }
                Msg::Get { entry_ref, .. }
                | Msg::Write { entry_ref, .. }
                | Msg::Release {
                    entry_ref,
                    put: Some(_),
                    ..
                } => !self.knows(run, *entry_ref) || !self.knows_grant(*entry_ref),
                other => other
                    .entry_ref()
                    .is_some_and(|entry_ref| !self.knows(run, entry_ref)),
            };
            if must_read {
                self.stale = true;
                return self.put_off(run, msg);
            }
        }
        match msg {
            Msg::Create {
                create,
                read_value,
                reply,
            } => {
                if let Err(full) = self.has_room(run) {
                    return drop(reply.send(Err(full)));
                }
                let room = match self.room(run, &create) {
                    Ok(room) => room,
                    Err(error) => return drop(reply.send(Err(error))),
                };
                self.pending.push_back(Intent::Create {
                    create,
                    read_value,
                    reply,
                    open: false,
                    _room: room,
                });
            }
            Msg::Acquire {
                entry_ref,
                wait,
                read_value,
                reply,
            } => self.stand(run, entry_ref, wait, read_value, true, reply),
            Msg::Get {
                entry_ref,
                call_no,
                reply,
            } => self.critical(run, entry_ref, call_no, CriticalKind::Get(reply)),
            Msg::Write {
                entry_ref,
                call_no,
                mutation,
                reply,
            } => self.critical(
                run,
                entry_ref,
                call_no,
                CriticalKind::Write(mutation, reply),
            ),
            Msg::Release {
                entry_ref,
                call_no,
                put: Some(mutation),
                reply,
            } => self.release_with_put(run, entry_ref, call_no, mutation, reply),
            Msg::Release {
                entry_ref,
                call_no: _,
                put: None,
                reply,
            } => self.release(run, entry_ref, reply),
            Msg::Watch { entry_ref, reply } => {
                drop(reply.send(self.watch(run, entry_ref)));
            }
            Msg::Renew { entry_ref, reply } => {
                let renewed = self.live(run, entry_ref).map(|(_, _, validity)| validity);
                drop(reply.send(renewed));
            }
            Msg::Answered { entry_ref, reply } => drop(reply.send(self.answered(run, entry_ref))),
            Msg::Expired { seq } => self.expired(run, seq),
            Msg::Claim { seq, grant } => self.claim_due(run, seq, grant),
            Msg::SessionEnded {
                seq,
                session,
                reply,
            } => match self.state.as_ref().and_then(|s| s.entry(seq)) {
                Some(entry) => self.pending.push_back(Intent::Evict {
                    seq,
                    tag: entry.tag(),
                    evidence: Evidence::SessionEnded(session),
                    reply: EvictReply::Settled(reply),
                }),
                None => drop(reply.send(())),
            },
            Msg::Force {
                entry_ref,
                by,
                why,
                reply,
            } => {
                if let Err(full) = self.has_room(run) {
                    return drop(reply.send(Err(full)));
                }
                self.pending.push_back(Intent::Evict {
                    seq: entry_ref.seq,
                    tag: entry_ref.tag,
                    evidence: Evidence::Forced { by, why },
                    reply: EvictReply::Force(reply),
                });
            }
            Msg::Where { entry_ref, reply } => drop(reply.send(self.entry_status(entry_ref))),
            Msg::Take {
                seq,
                from_home,
                from_fence,
                from_epoch,
                reply,
            } => self.take_from(seq, from_home, (from_fence, from_epoch), reply),
            Msg::TakeSilent {
                seq,
                from_home,
                from_epoch,
                reply,
            } => self.ask_for(run, (seq, from_home, from_epoch), reply),
            Msg::HandOver {
                seq,
                fence,
                epoch,
                reply,
            } => self.hand_over(run, (seq, fence, epoch), reply),
            Msg::Hint { version } => self.hinted(version),
            Msg::MembershipRead => self.read_soon(),
            Msg::Sweep => self.sweep(run),
            Msg::Settle { reply } => self.pending.push_back(Intent::Settle(reply)),
        }
    }

    /// Room in the session that a new entry shall live by. One that was made before needs none (I5).
    fn room(&self, run: &Run, create: &Create) -> Result<Option<Room>, EngineError> {
        let Liveness::Session(session) = create.liveness else {
            return Ok(None);
        };
        let most = run.inner.limits.lock_refs_per_session_max;
        match run.inner.leases.room(session, most) {
            Ok(room) => Ok(Some(room)),
            Err(NoLease::TooMany) => {
                let same = |e: &Arc<Entry>| e.request_id == create.request_id;
                if self
                    .state
                    .as_ref()
                    .is_some_and(|s| s.entries.iter().any(same))
                {
                    return Ok(None);
                }
                Err(EngineError::Exhausted {
                    what: "lock_refs_per_session_max",
                    limit: most as u64,
                })
            }
            Err(NoLease::Unknown) if run.inner.shared => {
                // Another replica keeps it, and was asked before.
                match run.inner.remote.entries_of(session) < most {
                    true => Ok(None),
                    false => Err(EngineError::Exhausted {
                        what: "lock_refs_per_session_max",
                        limit: most as u64,
                    }),
                }
            }
            Err(NoLease::HandedOver | NoLease::InDoubt) => Err(changing_home()),
            Err(NoLease::Ended | NoLease::Unknown) => Err(EngineError::SessionEnded),
        }
    }

    /// Whether a caller may add to what the next compare-and-swaps shall do.
    fn has_room(&self, run: &Run) -> Result<(), EngineError> {
        let calls_max = run.inner.limits.calls_per_key_max;
        if self.pending.len() < calls_max {
            return Ok(());
        }
        Err(EngineError::Exhausted {
            what: "calls_per_key_max",
            limit: calls_max as u64,
        })
    }

    /// A live entry of this home, its position, and what may be told of its lease, renewed by this call.
    pub(super) fn live(
        &mut self,
        run: &Run,
        entry_ref: EntryRef,
    ) -> Result<(usize, LeaseKey, LeaseValidity), EngineError> {
        let state = self.state.clone().ok_or(EngineError::NeverIssued)?;
        let at = match state.lookup(entry_ref.seq, entry_ref.tag) {
            Lookup::Live(at) => at,
            Lookup::Ended(ended) => return Err(EngineError::Ended(ended)),
            Lookup::NeverIssued => return Err(EngineError::NeverIssued),
        };
        let Some(entry) = state.entries.get(at) else {
            return Err(EngineError::NeverIssued);
        };
        if run.inner.shared && entry.home != run.inner.replica {
            return Err(EngineError::Elsewhere {
                home: entry.home,
                version: state.version,
            });
        }
        if self.is_handed_over(run, entry_ref.seq) {
            return Err(changing_home());
        }
        let key = self.lease_key(entry);
        match (run.inner.leases.renew(&key), &key) {
            (Ok(renewed), _) => Ok((
                at,
                key,
                LeaseValidity {
                    ttl: renewed.ttl,
                    valid_for: renewed.valid_for,
                    ask: None,
                },
            )),
            (
                Err(NoLease::Unknown | NoLease::InDoubt | NoLease::HandedOver),
                LeaseKey::Session(session),
            ) if run.inner.shared => {
                let ask = Some(*session);
                let validity = LeaseValidity {
                    ttl: Duration::ZERO,
                    valid_for: Duration::ZERO,
                    ask,
                };
                Ok((at, key, validity))
            }
            (Err(NoLease::InDoubt), LeaseKey::Entry(_)) => {
                self.take_anew(run, entry_ref.seq);
                Err(changing_home())
            }
            (Err(why), _) => Err(self.no_lease(run, entry, why)),
        }
    }

    /// A call that keeps a lease alive for as long as the guard lives.
    fn open_call(&self, run: &Run, lease: &LeaseKey) -> Result<OpenCall, EngineError> {
        let open = run.inner.leases.open_call(lease, run.inner.shared);
        open.map_err(|_| EngineError::SessionEnded)
    }

    /// What to tell a client whose lease has ended while its entry is still being evicted.
    fn no_lease(&self, run: &Run, entry: &Entry, why: NoLease) -> EngineError {
        match (why, self.lease_key(entry)) {
            (NoLease::Ended, LeaseKey::Entry(_)) => {
                EngineError::Ended(EndedAs::Lost(EndReason::Expired))
            }
            (NoLease::Ended, LeaseKey::Session(_)) => session_closed(),
            // Closed, and forgotten before this entry came to live by it.
            (NoLease::Unknown, LeaseKey::Session(_)) if entry.home == run.inner.replica => {
                session_closed()
            }
            // The entry is being taken over from a home that is gone.
            (NoLease::Unknown | NoLease::TooMany | NoLease::HandedOver | NoLease::InDoubt, _) => {
                changing_home()
            }
        }
    }

    /// A Create took effect, or was found to have.
    pub(super) fn created(
        &mut self,
        run: &mut Run,
        created: Created,
        read_value: bool,
        reply: HeldReply,
    ) {
        let Some(entry) = self.state.as_ref().and_then(|s| s.entry(created.seq)) else {
            let ended = self.state.as_ref().map(|s| s.how_ended(created.seq));
            let ended = ended.unwrap_or(EndedAs::NoLongerKept);
            drop(reply.send(Err(EngineError::Ended(ended))));
            return;
        };
        let entry_ref = EntryRef {
            seq: created.seq,
            tag: entry.tag(),
            grant: None,
        };
        self.stand(run, entry_ref, false, read_value, created.existed, reply);
    }

    /// Answers the status of an entry: HELD once the holder may be granted the lock, WAITING at once.
    fn stand(
        &mut self,
        run: &Run,
        entry_ref: EntryRef,
        wait: bool,
        read_value: bool,
        existed: bool,
        reply: HeldReply,
    ) {
        let (position, lease, validity) = match self.live(run, entry_ref) {
            Ok(live) => live,
            Err(error) => return drop(reply.send(Err(error))),
        };
        let waits_max = run.inner.limits.waits_per_lock_ref_max;
        let too_many = || EngineError::Exhausted {
            what: "waits_per_lock_ref_max",
            limit: waits_max as u64,
        };
        if position == 0 {
            if !reply.is_closed() {
                self.came_for(entry_ref.seq);
            }
            self.grant_waiters.retain(|l| !l.reply.is_closed());
            if self.grant_waiters.len() >= waits_max {
                return drop(reply.send(Err(too_many())));
            }
            let open = match self.open_call(run, &lease) {
                Ok(open) => open,
                Err(error) => return drop(reply.send(Err(error))),
            };
            self.grant_waiters.push(GrantWaiter {
                seq: entry_ref.seq,
                read_value,
                existed,
                reply,
                _open: open,
            });
            return;
        }
        let waker = if wait {
            let turns = self.wakers.entry(entry_ref.seq).or_default();
            turns.retain(|turn| !turn.is_closed());
            if turns.len() >= waits_max {
                return drop(reply.send(Err(too_many())));
            }
            let (ring, turn) = oneshot::channel();
            turns.push(ring);
            let open = match self.open_call(run, &lease) {
                Ok(open) => open,
                Err(error) => return drop(reply.send(Err(error))),
            };
            self.count_turns(run);
            Some(TurnWaker { turn, _open: open })
        } else {
            None
        };
        drop(reply.send(Ok(Held::Waiting {
            seq: entry_ref.seq,
            tag: entry_ref.tag,
            position,
            waker,
            lease,
            validity,
            existed,
        })));
    }

    fn release(&mut self, run: &mut Run, entry_ref: EntryRef, reply: Reply<bool>) {
        if let Err(full) = self.has_room(run) {
            return drop(reply.send(Err(full)));
        }
        match self.live(run, entry_ref) {
            Ok(_) => self.push_release(entry_ref, false, reply),
            Err(EngineError::Ended(EndedAs::Released)) => drop(reply.send(Ok(true))),
            // A release of it through another replica, repeated here.
            Err(EngineError::Ended(EndedAs::Lost(EndReason::Foreign))) => {
                drop(reply.send(Ok(true)))
            }
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    /// From here on nothing more is taken of this lockRef (I11).
    pub(super) fn push_release(&mut self, entry_ref: EntryRef, wrote: bool, reply: Reply<bool>) {
        if let Some(holding) = &mut self.holding
            && holding.seq == entry_ref.seq
        {
            holding.releasing = true;
            // What was accepted before and is not begun must not land once the release is decided.
            self.fail_put_off(&EngineError::Releasing);
        }
        self.pending.push_back(Intent::Release {
            entry_ref,
            wrote,
            reply,
        });
    }

    /// May be a repeated call: what an earlier try of it wrote is not known here once it has ended otherwise than by a
    /// clean release.
    fn release_with_put(
        &mut self,
        run: &mut Run,
        entry_ref: EntryRef,
        call_no: u64,
        mutation: crate::engine::Mutation,
        reply: Reply<bool>,
    ) {
        let state = self.state.as_ref();
        let ended = state.map(|s| s.lookup(entry_ref.seq, entry_ref.tag));
        match ended {
            // A repeated call: what it carries was written before the release, once.
            Some(Lookup::Ended(EndedAs::Released)) => return drop(reply.send(Ok(true))),
            Some(Lookup::Ended(ended)) => {
                return drop(reply.send(Err(EngineError::EndedDuringWrite(ended))));
            }
            Some(Lookup::Live(_) | Lookup::NeverIssued) | None => {}
        }
        let current = |h: &&HolderState| Some(h.grant) == entry_ref.grant;
        let holding = self.holding.as_ref().filter(current);
        if holding.is_some_and(|h| h.releasing && h.has_written_last(call_no)) {
            // The same call: its put was acknowledged, so it learns what becomes of its release.
            return match self.has_room(run) {
                Ok(()) => self.push_release(entry_ref, true, reply),
                Err(full) => drop(reply.send(Err(full))),
            };
        }
        let kind = CriticalKind::Release(mutation, reply);
        self.critical(run, entry_ref, call_no, kind);
    }

    fn watch(&mut self, run: &Run, entry_ref: EntryRef) -> Result<WatchHandle, EngineError> {
        let (position, lease, _) = self.live(run, entry_ref)?;
        let open = self.open_call(run, &lease)?;
        let waits_max = run.inner.limits.waits_per_lock_ref_max;
        self.count_turns(run);
        let estimate = self.estimate(run, position);
        let sender = self.watches.entry(entry_ref.seq).or_insert_with(|| {
            // The head is told that it holds the key once it is granted the lock; until then nobody is ahead.
            watch::channel(WatchEvent::Waiting { position, estimate }).0
        });
        sender.send_if_modified(|seen| {
            if let WatchEvent::Waiting {
                estimate: answered, ..
            } = seen
            {
                *answered = estimate;
            }
            // Nobody is told anew because one more asks.
            false
        });
        if sender.receiver_count() >= waits_max {
            return Err(EngineError::Exhausted {
                what: "waits_per_lock_ref_max",
                limit: waits_max as u64,
            });
        }
        Ok(WatchHandle {
            seen: sender.subscribe(),
            _open: open,
            lease,
        })
    }

    /// The lease of an entry that lives by itself has ended: evict it, on the epoch it has now.
    fn expired(&mut self, run: &Run, seq: Seq) {
        let Some(entry) = self.state.as_ref().and_then(|s| s.entry(seq)) else {
            return;
        };
        if entry.home != run.inner.replica {
            return;
        }
        self.pending.push_back(Intent::Evict {
            seq,
            tag: entry.tag(),
            evidence: Evidence::Silent { epoch: entry.epoch },
            reply: EvictReply::None,
        });
    }

    /// The TTL of what an entry lives by; the longest there may be, of a session that another replica keeps and whose
    /// row was not read yet.
    pub(super) fn ttl_of(&self, run: &Run, entry: &Entry) -> Duration {
        let here = || run.inner.leases.ttl(&self.lease_key(entry));
        match entry.liveness {
            Liveness::Own { ttl_ms } => Duration::from_millis(u64::from(ttl_ms)),
            Liveness::Session(session) => here()
                .or_else(|| run.inner.remote.ttl_of(session))
                .unwrap_or(Duration::from_millis(u64::from(
                    run.inner.limits.ttl_max_ms,
                ))),
        }
    }

    /// An entry has been the holder for one TTL: evict it if nobody was told (I5).
    fn claim_due(&mut self, run: &Run, seq: Seq, grant: Fence) {
        let waits = |l: &GrantWaiter| l.seq == seq && !l.reply.is_closed();
        let watched = |w: &watch::Sender<WatchEvent>| w.receiver_count() > 0;
        let is_waited_for =
            self.grant_waiters.iter().any(waits) || self.watches.get(&seq).is_some_and(watched);
        if let Some(holding) = &mut self.holding
            && holding.seq == seq
            && holding.grant == grant
            && !holding.claimed
        {
            if is_waited_for || !holding.claim_watched {
                // Somebody came and could not be granted the lock yet: from now on, one TTL more.
                holding.claim_watched = false;
                return;
            }
            self.pending.push_back(Intent::Evict {
                seq,
                tag: holding.tag,
                evidence: Evidence::Unclaimed {
                    home: run.inner.replica,
                    grant,
                },
                reply: EvictReply::None,
            });
        }
    }
}

impl Critical {
    /// Tells the caller that it failed.
    pub(super) fn fail(self, error: EngineError) {
        self.kind.fail(error);
    }
}

impl CriticalKind {
    /// Tells the caller that it failed.
    pub(super) fn fail(self, error: EngineError) {
        match self {
            CriticalKind::Get(reply) => drop(reply.send(Err(error))),
            CriticalKind::Write(_, reply) => drop(reply.send(Err(error))),
            CriticalKind::Release(_, reply) => drop(reply.send(Err(error))),
        }
    }
}
