//! The leases of entries with their own TTL, waiters and holder, with the next expiry: no entry waits behind an expired one (I8).

use std::collections::VecDeque;
use std::time::Duration;

use crate::lock::Seq;
use crate::session::{Lease, Observed};

/// Both in ascending order. A renewal moves no alarm: an early alarm is set again.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Leases {
    leases: VecDeque<(Seq, Lease)>,
    alarms: VecDeque<(Observed, Seq)>,
}

impl Leases {
    /// Begins a lease with this much left of its TTL.
    pub fn add(&mut self, seq: Seq, ttl: Duration, left: Duration, now: Observed) {
        if let Err(at) = self.leases.binary_search_by_key(&seq, |(seq, _)| *seq) {
            let lease = Lease::with_left(ttl, left, now);
            self.set_alarm(lease.expires(), seq);
            self.leases.insert(at, (seq, lease));
        }
    }

    pub fn remove(&mut self, seq: Seq) {
        if let Ok(at) = self.leases.binary_search_by_key(&seq, |(seq, _)| *seq) {
            self.leases.remove(at);
            self.alarms.retain(|(_, of)| *of != seq);
        }
    }

    pub fn get(&self, seq: Seq) -> Option<&Lease> {
        let at = self.leases.binary_search_by_key(&seq, |(seq, _)| *seq);
        at.ok()
            .and_then(|at| self.leases.get(at))
            .map(|(_, lease)| lease)
    }

    pub fn get_mut(&mut self, seq: Seq) -> Option<&mut Lease> {
        let at = self.leases.binary_search_by_key(&seq, |(seq, _)| *seq);
        at.ok()
            .and_then(|at| self.leases.get_mut(at))
            .map(|(_, lease)| lease)
    }

    /// The earliest possible expiry.
    pub fn due(&self) -> Option<Observed> {
        self.alarms.front().map(|(at, _)| *at)
    }

    /// Ends the expired leases.
    pub fn expire(&mut self, now: Observed) -> Vec<Seq> {
        let mut expired = Vec::new();
        while let Some((at, seq)) = self.alarms.front().copied()
            && at <= now
        {
            self.alarms.pop_front();
            let Some(lease) = self.get_mut(seq) else {
                continue;
            };
            if lease.expire(now) {
                expired.push(seq);
            } else {
                let again = lease.expires();
                self.set_alarm(again, seq);
            }
        }
        expired
    }

    fn set_alarm(&mut self, at: Observed, seq: Seq) {
        let alarm = (at, seq);
        let entry = self.alarms.partition_point(|other| *other <= alarm);
        self.alarms.insert(entry, alarm);
    }
}
