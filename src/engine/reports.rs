//! Reports to operators about keys: logs, counters, and the turns of each key.

use std::sync::Arc;
use std::time::Duration;

use super::activity::{Activity, Cause, GrantNoted, HolderNoted};
use super::api::describe_end;
use super::metrics::{EngineMetrics, GrantCounted, QueueGauges, QueueNoted};
use super::slot::{KeyCell, Slot};
use crate::clock::Clock;
use crate::key::Entry;
use crate::key::machine::Report;
use crate::lock::{EndReason, EndedAs, KeyId, Seq};
use crate::log_throttle::LogThrottle;

/// The reports of machines, for operators.
pub(super) struct Reports {
    is_alone: bool,
    clock: Arc<dyn Clock>,
    metrics: Arc<EngineMetrics>,
    queues: QueueGauges,
    activity: Arc<Activity>,
    /// Throttled, because a failing store affects all keys alike.
    unknown_outcome: LogThrottle,
}

impl Reports {
    /// `is_alone`: only this process uses the store, so it takes over only the keys of its predecessor.
    pub fn new(
        clock: Arc<dyn Clock>,
        metrics: Arc<EngineMetrics>,
        queues: QueueGauges,
        activity: Arc<Activity>,
        is_alone: bool,
    ) -> Self {
        Reports {
            is_alone,
            clock,
            metrics,
            queues,
            activity,
            unknown_outcome: LogThrottle::default(),
        }
    }

    /// Handles a report of a machine.
    pub fn report(&self, cell: &KeyCell, slot: &mut Slot, report: &Report) {
        match report {
            Report::Granted {
                seq,
                at_once,
                held_before,
            } => match held_before {
                true => self.kept_on(cell, slot),
                false => self.granted(cell, slot, *seq, *at_once),
            },
            Report::Evicted {
                entry,
                end,
                was_holder,
            } => {
                self.metrics.evicted(&cell.id.table, end, *was_holder);
                // Text of operators is quoted.
                let (how, by, why) = match end {
                    EndedAs::Lost(EndReason::Forced { by, why }) => (
                        "it was ended by force".to_owned(),
                        Some(&**by),
                        Some(&**why),
                    ),
                    end => (describe_end(end), None, None),
                };
                tracing::info!(
                    key = %cell.id, seq = %entry.seq, was_holder, by, why,
                    "an entry ended: {how}"
                );
            }
            Report::TookOver { from } => {
                let is_first = slot.machine.state().is_none_or(|state| state.term() == 1);
                match from {
                    Some(from) => {
                        self.metrics.take_overs.inc();
                        match self.is_alone {
                            true => tracing::debug!(key = %cell.id, "took a key over"),
                            false => {
                                tracing::info!(key = %cell.id, from = %from.replica, "took a key over");
                            }
                        }
                    }
                    None if is_first => {
                        tracing::debug!(key = %cell.id, "became the first home of a key");
                    }
                    None => {
                        self.metrics.received_keys.inc();
                        tracing::debug!(key = %cell.id, "received a key from another replica");
                    }
                }
            }
            Report::HandedOver { to } => {
                self.metrics.given_keys.inc();
                tracing::debug!(key = %cell.id, to = %to.replica, "handed a key over");
            }
            Report::Deposed { by } => {
                let by = by.map(|home| home.replica.to_string());
                tracing::error!(
                    key = %cell.id, by,
                    "another replica took this key over: this one no longer serves it"
                );
            }
            Report::Contradicted { known, found } => {
                self.metrics.contradicted_keys.inc();
                tracing::error!(
                    key = %cell.id, known, found,
                    "the row of a key differs from the last write of its home (was the table restored?): taking the key over \
                     again"
                );
            }
            Report::InDoubt { why } => {
                let now = self.clock.boot();
                if let Some(times) = self.unknown_outcome.met(now, why) {
                    tracing::warn!(
                        key = %cell.id, error = %why, times,
                        "the outcome of a change is unknown; resolving it"
                    );
                }
            }
        }
    }

    /// The holder held the key before this replica became the home, so it waited for nothing.
    fn kept_on(&self, cell: &KeyCell, slot: &Slot) {
        let Some(state) = slot.machine.state() else {
            return;
        };
        let waiters = state.entries.len().saturating_sub(1);
        if let Some(holder) = self.holder(slot) {
            let now = self.clock.boot();
            self.activity.kept_on(&cell.id, now, waiters, holder);
        }
    }

    /// The age of an entry, by the wall clocks of its creator and of this replica.
    fn age(&self, entry: &Entry) -> Duration {
        let age_ms = self.clock.wall_ms().saturating_sub(entry.created_at_ms);
        Duration::from_millis(age_ms.max(0).unsigned_abs())
    }

    /// The holder of a key. If another replica or process granted it, the unknown time of the grant is replaced by that of the
    /// entry's creation.
    fn holder<'a>(&self, slot: &'a Slot) -> Option<HolderNoted<'a>> {
        let holder = slot.machine.state()?.holder()?;
        Some(HolderNoted {
            owner: &holder.owner,
            identity: &holder.identity,
            held_for: self
                .age(holder)
                .saturating_sub(slot.waited(holder.seq).unwrap_or_default()),
        })
    }

    fn granted(&self, cell: &KeyCell, slot: &mut Slot, seq: Seq, at_once: bool) {
        let Some(state) = slot.machine.state() else {
            return;
        };
        let Some(entry) = state.entry(seq) else {
            return;
        };
        let waited = self.age(entry);
        let cause = match at_once {
            true => Cause::AtOnce,
            false => Cause::Change,
        };
        let ahead_us = state.grant.0.saturating_sub(self.clock.wall_us());
        let counted = GrantCounted {
            cause,
            is_durable: slot.machine.is_durable(seq),
            waited,
            fence_ahead: Duration::from_micros(ahead_us),
        };
        self.metrics.granted(&cell.id.table, counted);
        let grant = GrantNoted {
            owner: entry.owner.clone(),
            identity: entry.identity.clone(),
            waited,
            waiters: state.entries.len().saturating_sub(1),
        };
        slot.granted_after = Some((seq, waited));
        let now = self.clock.boot();
        // The holder may be noted before its grant is reported.
        if let Some((noted, since)) = &mut slot.noted.held
            && *noted == seq
        {
            since.get_or_insert(now);
        }
        self.activity.granted(&cell.id, now, grant);
    }

    /// As [`Activity::estimate`], from now on.
    pub fn estimate(&self, id: &KeyId, position: usize) -> Option<Duration> {
        let now = self.clock.boot();
        self.activity.estimate(id, now, position)
    }

    /// How many locks are held, and how many entries wait.
    pub fn queues(&self) -> &QueueGauges {
        &self.queues
    }

    /// Notes the holder and the number of waiters behind it.
    pub fn note_queue(&self, cell: &KeyCell, slot: &mut Slot) {
        let state = slot.machine.state();
        let holder = state.and_then(|state| Some(state.holder()?.seq));
        let waiters = state.map_or(0, |state| {
            state.entries.len() - usize::from(holder.is_some())
        });
        let noted = slot.noted;
        if (noted.holder(), noted.waiters) == (holder, waiters) {
            return;
        }
        let now = self.clock.boot();
        let ended = noted.held.filter(|(seq, _)| holder != Some(*seq));
        if let Some((_, Some(since))) = ended
            && state.is_some()
        {
            let held_for = now.saturating_sub(since);
            self.metrics.held(&cell.id.table, held_for);
        }
        let held = holder.map(|seq| match noted.held {
            Some((noted, since)) if noted == seq => (seq, since),
            _ => (seq, slot.waited(seq).map(|_| now)),
        });
        slot.noted = QueueNoted { held, waiters };
        let change = |after: usize, before: usize| after as i64 - before as i64;
        let held = change(holder.iter().len(), noted.held.iter().len());
        let waiting = change(waiters, noted.waiters);
        self.queues.add(&cell.id.table, held, waiting);
        if waiting != 0 {
            self.activity
                .waiting(&cell.id, now, waiters, self.holder(slot));
        }
    }
}
