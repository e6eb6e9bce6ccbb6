//! The interface of a client library for Cassandra, and the times that all libraries keep. The code above this interface exists
//! once; below it each library has its own file.

use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::fault::Fault;
use crate::row_table::Quorum;
use crate::value::{Row, Value};

/// After how long without an answer of its node a statement that may be sent twice is sent to another one as well. More than a
/// transaction takes between sites (172 ms as measured), and less than a caller would notice as an outage.
pub(super) const SECOND_NODE_AFTER: Duration = Duration::from_millis(300);
/// The pause between two keep-alives of a connection …
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// … and how long a node may take to answer one before the connection is closed. Preparing a statement waits for all connected
/// nodes, so a node that hangs delays each new statement until then.
pub(super) const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a node may take to answer a greeting, and the pause before it is greeted again.
pub(super) const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// How long the nodes may take to agree on the schema. A node that missed a change while it was down or hung asks for it after
/// a minute.
pub(super) const AGREEMENT_MAX: Duration = Duration::from_secs(100);
/// The port of a contact point that names none.
pub(super) const PORT: u16 = 9042;

/// A request in flight. The libraries' own futures take kilobytes, which would become part of each future that waits for them.
pub(super) type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Who must agree before a statement counts as executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// A majority of those that [`Majority`] names.
    ///
    /// [`Majority`]: crate::options::Majority
    Majority,
    /// A majority of all nodes that have the partition.
    Everywhere,
    /// A majority, after what is in flight was settled.
    Serial,
    /// Any one node.
    One,
    /// This quorum.
    Of(Quorum),
}

/// How often a statement may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sending {
    /// Once.
    Once,
    /// It changes nothing, and may be sent again.
    Read,
    /// It changes nothing if it is sent again. So the error of the last time says nothing of those before.
    Write,
}

/// How a statement is to be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Execution {
    pub level: Level,
    pub sending: Sending,
}

impl Execution {
    /// Whether it changes something if, and only if, a condition holds.
    #[cfg(feature = "cassandra-cpp")]
    pub fn is_transaction(self) -> bool {
        matches!(self.level, Level::Majority | Level::Everywhere) && self.sending == Sending::Once
    }
}

/// A node, as it was when it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub id: Uuid,
    pub datacenter: Option<String>,
    /// Whether there is a connection to it.
    pub is_connected: bool,
}

/// A node that has a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Coordinator {
    pub id: Uuid,
    pub address: SocketAddr,
    /// Whether it is in the preferred datacenter; where none is, all are.
    pub is_near: bool,
    /// Whether there is a connection to it.
    pub is_connected: bool,
    /// Which part of it, where a library knows such parts.
    pub shard: u32,
}

/// Why a node gave no result.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unanswered {
    pub fault: Fault,
    pub silence: Silence,
}

impl Unanswered {
    /// The node answered, with what cannot be read.
    pub(super) fn unreadable(fault: Fault) -> Unanswered {
        Unanswered {
            fault,
            silence: Silence::Answered,
        }
    }
}

/// Whether the node was heard of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Silence {
    /// It said so itself.
    Answered,
    /// It was not asked: another one may be.
    Unreached,
    /// It did not answer in time.
    TimedOut,
    /// The connection broke, or its answer made no sense.
    Broken,
}

/// One page of rows, and where the next one begins, as the library has it.
pub(super) type Page = (Vec<Row>, Option<PageMark>);

/// Where a listing goes on: what only the library can read.
#[derive(Clone, Debug)]
pub(super) struct PageMark(pub Arc<[u8]>);

/// A connected cluster. Dropping it ends its connections.
pub(super) trait Backend: fmt::Debug + Send + Sync {
    /// All nodes that the cluster knows.
    fn nodes(&self) -> Vec<Node>;

    /// The tokens of all nodes, in no order.
    fn ring(&self) -> Vec<i64>;

    /// Prepares a statement. The caller gives it up after a while.
    fn prepare<'a>(
        &'a self,
        text: &'a str,
        execution: Execution,
    ) -> Boxed<'a, Result<Arc<dyn Prepared>, Fault>>;

    /// Executes a statement at this node and no other one, at level ONE where that counts.
    fn query_at<'a>(
        &'a self,
        node: &'a Node,
        text: &'a str,
        values: &'a [Value],
        within: Duration,
    ) -> Boxed<'a, Result<Vec<Row>, Unanswered>>;

    /// Waits until all nodes have the same schema, and reads anew what of it is known here.
    fn agree_on_schema(&self) -> Boxed<'_, Result<(), Fault>>;
}

/// A prepared statement.
pub(super) trait Prepared: fmt::Debug + Send + Sync {
    /// The nodes that have the partition of these values, in the order of the ring, if they name one.
    fn replicas(&self, values: &[Value]) -> Result<Vec<Coordinator>, Fault>;

    /// Executes it, wherever that is best, and more than once if it may be.
    fn execute<'a>(&'a self, values: &'a [Value]) -> Boxed<'a, Result<Vec<Row>, Fault>>;

    /// Executes it once, at this node.
    fn execute_at<'a>(
        &'a self,
        at: &'a Coordinator,
        values: &'a [Value],
    ) -> Boxed<'a, Result<Vec<Row>, Unanswered>>;

    /// Executes a read, for one page.
    fn page<'a>(
        &'a self,
        values: &'a [Value],
        page_rows: i32,
        from: Option<PageMark>,
    ) -> Boxed<'a, Result<Page, Fault>>;
}
