//! The uses of statements, which decide about their execution, and the observer of statements.

use std::fmt::Debug;
use std::time::Duration;

use super::backend::{Execution, Level, Sending};
use super::window::Order;
use crate::fault::Fault;
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

/// The kind of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatementKind {
    /// A read, settling reads included.
    Read,
    /// A plain write.
    Write,
    /// A lightweight transaction.
    Transaction,
}

impl Use {
    pub(super) fn kind(self) -> StatementKind {
        match (self.execution().sending, self) {
            (Sending::Read, _) | (_, Use::SerialRead | Use::SettlingRead) => StatementKind::Read,
            (Sending::Write, _) => StatementKind::Write,
            (Sending::Once, _) => StatementKind::Transaction,
        }
    }
}

/// Observes the statements of a driver.
pub trait Observer: Debug + Send + Sync {
    /// A statement is being sent.
    fn sent(&self, kind: StatementKind);

    /// A statement that took this time was answered, or failed with this fault.
    fn ended(&self, kind: StatementKind, took: Duration, fault: Option<&Fault>);
}

/// Observes nothing.
impl Observer for () {
    fn sent(&self, _: StatementKind) {}

    fn ended(&self, _: StatementKind, _: Duration, _: Option<&Fault>) {}
}
