//! The unary calls that another replica may serve, each as a value. A call is parsed once, then made on the engine here or
//! forwarded as its original message.
//!
//! The home of a call is chosen in [`super::route`].

mod create;
mod entry;
mod force;
mod lease;
mod served;

use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;

use prost::Message;
use tokio::time::Instant;
use tonic::Status;

pub use create::CreateLockRef;
pub use entry::{AcquireLock, CriticalDelete, CriticalGet, CriticalPut, ReleaseLock};
pub use force::{ByForce, EndSession, ForceRelease, Words};
pub use lease::{CloseSession, KeepAlive, OpenSession, RenewSession};
pub use served::Served;

use super::deadline::Deadline;
use super::parse::Invalid;
use super::status;
use crate::access::{Login, Verb, Verbs};
use crate::clock::Ids;
use crate::engine::{EngineError, LeaseId};
use crate::limits::Limits;
use crate::lock::{EntryName, KeyId, LockRef, NameHash, SessionId};
use crate::protocol::LockProtocol;
use crate::rpc::budget::Account;
use crate::rpc::peer_proto::Method;
use crate::trace;

/// The context of a call beside its message.
#[derive(Clone)]
pub struct CallContext {
    /// Its arrival, and how long its caller listens.
    pub deadline: Deadline,
    /// The caller.
    pub login: Login,
    /// The zone of the caller, as it says itself, else that of the asked replica. May be empty.
    pub zone: Arc<str>,
    /// The limits in force.
    pub limits: Arc<Limits>,
    /// Its connection; `None` for a forwarded call.
    pub connection: Option<Arc<Account>>,
    /// Makes the request_ids that callers leave out.
    pub ids: Arc<dyn Ids>,
}

impl CallContext {
    /// The identity of the caller; empty without one.
    pub fn identity(&self) -> &str {
        &self.login.identity
    }

    /// When a call without a wait must be answered.
    fn answer_by(&self) -> Instant {
        self.deadline.answer_within(self.limits.call_max())
    }
}

/// The target of a call, which decides its home.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// A key.
    Key(KeyId),
    /// An entry, by its client.
    LockRef(LockRef),
    /// An entry, by an operator.
    Entry(EntryName),
    /// A session.
    Session(SessionId),
}

impl From<&LeaseId> for Target {
    fn from(lease: &LeaseId) -> Target {
        match lease {
            LeaseId::Session(session) => Target::Session(*session),
            LeaseId::LockRef(lock_ref) => Target::LockRef(lock_ref.clone()),
        }
    }
}

impl Target {
    /// The key of the target, unless it is a session.
    pub fn key_id(&self) -> Option<KeyId> {
        match self {
            Target::Key(id) => Some(id.clone()),
            Target::LockRef(lock_ref) => Some(lock_ref.key_id()),
            Target::Entry(name) => Some(name.key_id()),
            Target::Session(_) => None,
        }
    }

    /// The hash that ranks the key, unless it is a session.
    pub fn name_hash(&self) -> Option<NameHash> {
        self.key_id().map(|id| id.name_hash())
    }

    /// Names it in the spans of the call.
    pub fn record(&self) {
        match self {
            Target::Key(id) => trace::record("table", &id.table),
            Target::LockRef(lock_ref) => trace::record("entry", lock_ref),
            Target::Entry(name) => trace::record("entry", name),
            Target::Session(session) => trace::record("session", session),
        }
    }
}

/// A unary call of the contract.
pub trait UnaryCall: Sized + Send + Sync + 'static {
    /// Its name between replicas.
    const METHOD: Method;
    /// It makes or ends an entry, or a session: once one replica may have done so, the refusal of another one says nothing.
    const CHANGES: bool = false;
    /// Its request.
    type Ask: Message + Default + Clone + Send + 'static;
    /// Its answer.
    type Answer: Message + Default + Send + 'static;

    /// Checks a request. Nothing was changed if that fails.
    fn parse(ask: Self::Ask, context: &CallContext) -> Result<Self, Invalid>;

    /// Its target.
    fn target(&self) -> Target;

    /// When it must be answered.
    fn answer_by(&self, context: &CallContext) -> Instant {
        context.answer_by()
    }

    /// The permissions that its caller needs on the target.
    fn needs(&self) -> Verbs {
        Verb::Lock.into()
    }

    /// It writes a value: it may not be made twice.
    fn is_write(&self) -> bool {
        false
    }

    /// The status once it is too late for an answer.
    fn late(&self) -> Status {
        status::late(self.is_write())
    }

    /// It may take as long as its caller likes.
    fn waits(&self) -> bool {
        false
    }

    /// The request as another replica is to see it.
    fn ask(&self) -> Cow<'_, Self::Ask>;

    /// The answer or status for an error of the engine, here or at the home.
    fn failed(&self, error: EngineError) -> Result<Self::Answer, Status> {
        Err(status::of_engine(&error))
    }

    /// Makes it by the protocol of its table, on this replica.
    fn serve(
        &self,
        locks: &dyn LockProtocol,
    ) -> impl Future<Output = Result<Self::Answer, EngineError>> + Send;
}
