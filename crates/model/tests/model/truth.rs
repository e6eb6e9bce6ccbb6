//! What clients were told, and what that promises.

use std::collections::BTreeSet;

use super::world::Value;

/// What must not be.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Broken {
    /// Two clients may both be sure that they hold the key.
    TwoHolders,
    /// An entry was answered HELD after a later one.
    OutOfOrder,
    /// A grant is not above the ones told before.
    FenceNotAbove,
    /// A holder reads what was overwritten, or decided against.
    OldValue,
    /// A put is acknowledged that a later reader was told not to have happened, or of a holder that was followed.
    AcknowledgedTooLate,
    /// A holder that was followed by another is answered.
    AnsweredAfterItsEnd,
    /// Two values are written under one timestamp.
    OneTimestampTwoValues,
    /// A home finds itself deposed although no other took it for gone.
    Deposed,
    /// The row is not in order.
    Row(&'static str),
    /// A write that its caller was told not to have happened shows.
    DeniedShows,
    /// The row names a durable holder no longer, and its entry lives.
    HolderLetGo,
    /// After a clean stop the row does not list just those who held and waited.
    LostAtStop,
}

/// What is promised so far.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Truth {
    pub broken: Option<Broken>,
    /// The value that must be read, unless one of `pending` is.
    pub current: Value,
    /// Values that were sent, not acknowledged, and may show.
    pub pending: BTreeSet<Value>,
    /// Values that a reader was told not to have been written, by reading another.
    pub against: Vec<Value>,
    /// Values that their callers were told not to be written.
    pub denied: Vec<Value>,
    /// The highest grant that was told, and the entry that it was told to.
    pub grant: u64,
    pub seq: u64,
}

impl Truth {
    pub fn breaks(&mut self, broken: Broken) {
        self.broken.get_or_insert(broken);
    }

    /// An entry is answered HELD, with this grant.
    pub fn held(&mut self, seq: u64, grant: u64) {
        if seq < self.seq {
            self.breaks(Broken::OutOfOrder);
        }
        let again = seq == self.seq && grant == self.grant;
        if grant <= self.grant && !again {
            self.breaks(Broken::FenceNotAbove);
        }
        self.seq = self.seq.max(seq);
        self.grant = self.grant.max(grant);
    }

    /// A put is handed to the home.
    pub fn sent(&mut self, value: Value) {
        if !self.against.contains(&value) && self.current != value {
            self.pending.insert(value);
        }
        self.denied.retain(|other| *other != value);
    }

    /// The holder with this grant read a value.
    pub fn read(&mut self, grant: u64, value: Value) {
        if grant < self.grant {
            self.breaks(Broken::AnsweredAfterItsEnd);
        }
        if self.denied.contains(&value) {
            self.breaks(Broken::DeniedShows);
        }
        if value != self.current && !self.pending.contains(&value) {
            self.breaks(Broken::OldValue);
        }
        self.current = value;
        // What was sent before, by itself or others, and is not seen never shows again.
        let unseen = std::mem::take(&mut self.pending).into_iter();
        self.against.extend(unseen.filter(|other| *other > value));
    }

    /// A put of the holder with this grant is acknowledged.
    pub fn acknowledged(&mut self, grant: u64, value: Value) {
        let is_known = self.pending.contains(&value) || self.current == value;
        if grant < self.grant || !is_known {
            self.breaks(Broken::AcknowledgedTooLate);
        }
        self.is_current(value);
    }

    /// A release is answered whose put was sent before: it is written, and what came after it may show above it.
    pub fn released_with(&mut self, value: Value) {
        if self.pending.contains(&value) {
            self.is_current(value);
        } else if self.against.contains(&value) {
            self.breaks(Broken::AcknowledgedTooLate);
        }
    }

    fn is_current(&mut self, value: Value) {
        self.current = value;
        self.pending.retain(|other| *other > value);
    }

    /// A caller is told that this was not written.
    pub fn denied(&mut self, value: Value) {
        if self.current == value {
            self.breaks(Broken::DeniedShows);
        } else if self.pending.remove(&value) {
            self.denied.push(value);
        }
    }
}
