//! What a replica does for the lock: swaps, and what comes of them. As the actors of the engine do it, one intent and
//! one outcome at a time.

use fermata::lock::{EndReason, EndedAs, Outcome, Seq};

use crate::committed::{Committed, decided, head_seq, home_of};
use crate::setup::{Rule, Setup};
use crate::world::{Call, HolderState, Intent, LastWords, Phase, Replica, Swap, World};

impl World {
    pub fn replica(&mut self, by: u8) -> &mut Replica {
        &mut self.replicas[usize::from(by)]
    }

    /// The intents of the next swap, as they stand now: nothing of an old state is left in them.
    fn next_batch(&self, setup: &Setup, by: u8) -> (Vec<Intent>, Vec<Intent>) {
        let replica = &self.replicas[usize::from(by)];
        let head = replica.view.as_ref().and_then(|state| head_seq(state));
        let taken_over = head.filter(|seq| replica.is_taking_over(*seq));
        let (mut batch, mut later) = (Vec::new(), Vec::new());
        for intent in &replica.pending {
            match *intent {
                Intent::Release { seq, .. } if taken_over == Some(seq) => later.push(*intent),
                Intent::Release { seq, request, .. } => {
                    let words = self.last_words(setup, by, seq);
                    batch.push(Intent::Release {
                        seq,
                        request,
                        words,
                    });
                }
                Intent::Create { .. }
                | Intent::Evict { .. }
                | Intent::TakeOver { .. }
                | Intent::Extend { .. } => batch.push(*intent),
            }
        }
        (batch, later)
    }

    fn last_words(&self, setup: &Setup, by: u8, seq: u8) -> LastWords {
        let holding = self.replicas[usize::from(by)].holding.as_ref();
        let Some(holding) = holding.filter(|h| h.seq == seq) else {
            return LastWords::default();
        };
        LastWords {
            grant: Some(holding.grant),
            synced: holding.synced,
            open_write: setup.rule(Rule::OpenWriteTold) && self.has_open_write(by, holding),
        }
    }

    /// A write whose outcome is not known, and that no later acknowledged one covers (I7).
    fn has_open_write(&self, by: u8, holding: &HolderState) -> bool {
        let puts = self
            .writes
            .iter()
            .filter(|w| w.awaited && w.by == by && w.grant == holding.grant && !w.sync);
        let writing = puts.map(|w| w.cell.ts).max().unwrap_or(0);
        writing.max(holding.unknown) > holding.acked
    }

    /// A replica decides what it has to do on what it knows, and sends the swap.
    pub fn send(&mut self, setup: &Setup, by: u8) {
        let (batch, later) = self.next_batch(setup, by);
        let replica = self.replica(by);
        replica.pending = later;
        let Some(view) = replica.view.clone() else {
            return;
        };
        let (new, outcomes) = decided(setup, &view, by, &batch);
        if new.version == view.version {
            return self.deliver(setup, by, &batch, outcomes);
        }
        self.replica(by).swap = Some(Swap {
            by,
            expected: view.version,
            batch,
        });
    }

    /// The swap in flight reaches the register, and its replica learns what came of it.
    pub fn swap_ends(&mut self, setup: &Setup, by: u8) {
        let Some(swap) = self.replica(by).swap.take() else {
            return;
        };
        if swap.expected == self.stored.version {
            let (new, outcomes) = swap.decided(setup, &self.stored);
            self.applied(setup, &swap, new.into(), outcomes);
        } else if setup.rule(Rule::DecidedAgain) {
            self.ask_again(setup, &swap, false);
            let current = self.stored.clone();
            self.adopt(setup, by, current);
        } else {
            // The rule is off: what was decided on the old state is put over the new one.
            let view = self.replica(by).view.clone().unwrap_or_default();
            let (mut new, outcomes) = swap.decided(setup, &view);
            new.version = self.stored.version + 1;
            self.applied(setup, &swap, new.into(), outcomes);
        }
    }

    fn applied(&mut self, setup: &Setup, swap: &Swap, new: Committed, outcomes: Vec<Outcome>) {
        let old = self.stored.clone();
        self.commit(new.clone());
        self.adopt(setup, swap.by, new.clone());
        self.deliver(setup, swap.by, &swap.batch, outcomes);
        // The homes that have something to do now are told, if the word arrives.
        let turn = new.holder().filter(|_| old.grant != new.grant);
        let ended = old.entries.iter().filter(|e| new.entry(e.seq).is_none());
        for answered in ended.chain(turn) {
            let home = home_of(answered);
            if home != swap.by && !setup.rule(Rule::Polling) {
                self.replica(home).hinted = true;
            }
        }
    }

    /// The outcome of the swap in flight is not known to its replica. It may yet take effect.
    pub fn swap_unknown(&mut self, setup: &Setup, by: u8) {
        let Some(swap) = self.replica(by).swap.take() else {
            return;
        };
        if setup.rule(Rule::CommittedGrant) {
            self.ask_again(setup, &swap, true);
            self.replica(by).stale = true;
        } else {
            // The rule is off: it is taken for applied.
            let view = self.replica(by).view.clone().unwrap_or_default();
            let (new, outcomes) = swap.decided(setup, &view);
            self.adopt(setup, by, new.into());
            self.deliver(setup, by, &swap.batch, outcomes);
        }
        self.leave_open(swap);
    }

    pub fn leave_open(&mut self, swap: Swap) {
        if swap.expected == self.stored.version {
            self.open.push(swap);
        }
    }

    /// A swap of unknown outcome takes effect after all.
    pub fn lands(&mut self, setup: &Setup, at: usize) {
        let swap = self.open.remove(at);
        let (new, _) = swap.decided(setup, &self.stored);
        self.commit(new.into());
    }

    /// Puts a batch back, in front, to be decided again on the state that is met next.
    fn ask_again(&mut self, setup: &Setup, swap: &Swap, unknown: bool) {
        let mut pending: Vec<Intent> = Vec::new();
        for intent in &swap.batch {
            pending.push(match *intent {
                Intent::Create { request, open } => Intent::Create {
                    request,
                    open: open || unknown,
                },
                Intent::Release { seq, request, .. } => Intent::Release {
                    seq,
                    request,
                    words: LastWords::default(),
                },
                other
                @ (Intent::Evict { .. } | Intent::TakeOver { .. } | Intent::Extend { .. }) => other,
            });
        }
        pending.append(&mut self.replica(swap.by).pending);
        self.replica(swap.by).pending = pending;
        self.drop_unwanted(setup);
    }

    /// A Create whose caller is gone is dropped, unless it may have taken effect already.
    pub fn drop_unwanted(&mut self, setup: &Setup) {
        for by in 0..self.replicas.len() {
            let mut pending = std::mem::take(&mut self.replicas[by].pending);
            pending.retain(|intent| match *intent {
                Intent::Create { request, open } => open || self.waits_at(setup, request, by as u8),
                _ => true,
            });
            self.replicas[by].pending = pending;
        }
    }

    fn waits_at(&self, setup: &Setup, request: u8, by: u8) -> bool {
        let at = setup.client_of(request);
        let client = &self.clients[at];
        client.phase == Phase::Creating { at: by }
            && setup.request(at as u8, client.section) == request
    }

    /// Callers learn what came of a batch.
    fn deliver(&mut self, setup: &Setup, by: u8, batch: &[Intent], outcomes: Vec<Outcome>) {
        for (intent, outcome) in batch.iter().zip(outcomes) {
            match *intent {
                Intent::Create { request, .. } => {
                    if let Outcome::Created(created) = outcome
                        && self.waits_at(setup, request, by)
                    {
                        let client = &mut self.clients[setup.client_of(request)];
                        client.phase = Phase::Waiting;
                        client.seq = created.seq.0 as u8;
                    }
                }
                Intent::Release { seq, request, .. } => {
                    let released = matches!(
                        outcome,
                        Outcome::Released(_)
                            | Outcome::Gone(EndedAs::Released)
                            | Outcome::Gone(EndedAs::Lost(EndReason::Foreign))
                    );
                    let at = setup.client_of(request);
                    if released && self.is_wanted(setup, request, seq) {
                        self.section_done(setup, at);
                    }
                }
                Intent::Extend { seq, .. } => {
                    if let Some(holding) = &mut self.replica(by).holding
                        && holding.seq == seq
                    {
                        holding.extending = false;
                    }
                }
                // One that was refused is asked for again by whoever needs it.
                Intent::Evict { .. } | Intent::TakeOver { .. } => {}
            }
        }
    }

    fn section_done(&mut self, setup: &Setup, at: usize) {
        let client = &mut self.clients[at];
        (client.seq, client.grant, client.puts, client.call) = (0, 0, 0, Call::None);
        client.section += 1;
        client.phase = Phase::Idle;
        if client.section == setup.sections {
            client.section -= 1;
            client.phase = Phase::Done;
        }
    }

    /// A client learns that its entry has ended.
    pub fn end_learned(&mut self, setup: &Setup, at: usize) {
        let client = &mut self.clients[at];
        let ended = self.stored.how_ended(Seq(client.seq.into()));
        let given_back = matches!(ended, EndedAs::Released | EndedAs::Lost(EndReason::Foreign));
        if client.phase == Phase::Releasing && given_back {
            self.section_done(setup, at);
        } else {
            (client.phase, client.call) = (Phase::Lost, Call::None);
        }
    }

    /// The memory of a task is gone, or the whole replica: whatever was asked of it gets no answer.
    pub fn forget(&mut self, setup: &Setup, by: u8) {
        let replica = self.replica(by);
        let swap = replica.swap.take();
        replica.view = None;
        replica.stale = false;
        replica.holding = None;
        replica.handed_over = None;
        replica.owes_hand_over = false;
        replica.pending.clear();
        let mut unanswered = Vec::new();
        for write in self.writes.iter_mut().filter(|w| w.by == by && w.awaited) {
            write.awaited = false;
            if !write.sync {
                unanswered.push(write.cell.value);
            }
        }
        for at in 0..self.clients.len() {
            let put = self.open_put(setup, at);
            let reads = matches!(self.clients[at].call, Call::Get { at, .. } if at == by);
            if reads || put.is_some_and(|value| unanswered.contains(&value)) {
                self.clients[at].call = Call::None;
            }
        }
        if let Some(swap) = swap {
            self.leave_open(swap);
        }
    }
}
