//! The uses of statements, which decide about their execution, and the number of statements sent.

use parking_lot::Mutex;

use super::backend::{Execution, Level, Sending};
use super::window::Order;
use crate::row_table::Quorum;

/// How a statement is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// A lightweight transaction. The driver never repeats it: its outcome would be unknown.
    Cas,
    /// A lightweight transaction that may be sent twice, since it takes effect once at most. While a node does not answer,
    /// another one is asked as well.
    HedgedCas(Order),
    /// A lightweight transaction decided by a majority of all nodes, whatever [`Majority`](crate::Majority) says.
    CasEverywhere,
    /// A read that first settles the transactions in flight.
    SerialRead,
    /// The same, to settle a transaction in doubt. While nodes hang, many come at once.
    SettlingRead,
    /// A read from a majority. May be sent twice.
    Read,
    /// A read from a majority of all nodes, whatever [`Majority`](crate::Majority) says. May be sent twice.
    ReadEverywhere,
    /// A read from any one replica, possibly stale. May be sent twice.
    AnyRead,
    /// A write with its own timestamp. Sending it twice changes nothing.
    Write,
    /// A read from this quorum, whatever [`Majority`](crate::Majority) says. May be sent twice.
    ReadFrom(Quorum),
    /// A write to this quorum, whatever [`Majority`](crate::Majority) says, with its own timestamp.
    WriteTo(Quorum),
}

impl Use {
    pub(super) fn execution(self) -> Execution {
        let (level, sending) = match self {
            Use::Cas | Use::HedgedCas(_) => (Level::Majority, Sending::Once),
            Use::CasEverywhere => (Level::Everywhere, Sending::Once),
            Use::SerialRead | Use::SettlingRead => (Level::Serial, Sending::Once),
            Use::Read => (Level::Majority, Sending::Read),
            Use::ReadEverywhere => (Level::Everywhere, Sending::Read),
            Use::AnyRead => (Level::One, Sending::Read),
            Use::Write => (Level::Majority, Sending::Write),
            Use::ReadFrom(quorum) => (Level::Of(quorum), Sending::Read),
            Use::WriteTo(quorum) => (Level::Of(quorum), Sending::Write),
        };
        Execution { level, sending }
    }
}

/// Statements that were sent, failed ones included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Reads.
    pub reads: u64,
    /// Plain writes.
    pub writes: u64,
    /// Lightweight transactions.
    pub transactions: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counted(Mutex<Sent>);

impl Counted {
    pub fn one(&self, usage: Use) {
        let mut sent = self.0.lock();
        match (usage.execution().sending, usage) {
            (Sending::Read, _) | (_, Use::SerialRead | Use::SettlingRead) => sent.reads += 1,
            (Sending::Write, _) => sent.writes += 1,
            (Sending::Once, _) => sent.transactions += 1,
        }
    }

    pub fn so_far(&self) -> Sent {
        *self.0.lock()
    }
}
