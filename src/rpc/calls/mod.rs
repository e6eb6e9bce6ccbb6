//! The unary calls that another replica may have to serve, each as a value: parsed once, made here on the
//! engine, or passed on as the message that it came as.
//!
//! Where a call is made is not decided here but in [`super::route`].

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
use tracing::Span;
use tracing::field::display;

pub use create::CreateLockRef;
pub use entry::{AcquireLock, CriticalDelete, CriticalGet, CriticalPut, ReleaseLock};
pub use force::{ByForce, EndSession, ForceRelease, Words};
pub use lease::{CloseSession, KeepAlive, OpenSession, RenewSession};
pub use served::Served;

use super::deadline::Deadline;
use super::parse::Invalid;
use super::status;
use crate::access::{Login, Verbs};
use crate::clock::Ids;
use crate::engine::{Engine, EngineError, LeaseId};
use crate::limits::Limits;
use crate::lock::{EntryName, KeyId, LockRef, NameHash, SessionId};
use crate::rpc::budget::Account;
use crate::rpc::peer_proto::Method;

/// What is known of a call beside its message.
#[derive(Clone)]
pub struct CallContext {
    /// When it came in, and how long its caller listens.
    pub deadline: Deadline,
    /// Who asks.
    pub login: Login,
    /// The zone that it comes from: as its caller says, else that of the replica that was asked. May be empty.
    pub zone: Arc<str>,
    /// The limits in force.
    pub limits: Arc<Limits>,
    /// The connection that it came on; `None`: another replica passed it on.
    pub connection: Option<Arc<Account>>,
    /// Makes the request_ids that callers leave out.
    pub ids: Arc<dyn Ids>,
}

impl CallContext {
    /// Who asks, as far as the server knows; empty where it does not.
    pub fn identity(&self) -> &str {
        &self.login.identity
    }

    /// When a call without a wait must be answered.
    fn answer_by(&self) -> Instant {
        self.deadline.answer_within(self.limits.call_max())
    }
}

/// What a call is about: says which replica has it.
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
    /// The key that it is about, unless it is about a session.
    pub fn key_id(&self) -> Option<KeyId> {
        match self {
            Target::Key(id) => Some(id.clone()),
            Target::LockRef(lock_ref) => Some(lock_ref.key_id()),
            Target::Entry(name) => Some(name.key_id()),
            Target::Session(_) => None,
        }
    }

    /// What its key is ranked by, unless it is about a session.
    pub fn name_hash(&self) -> Option<NameHash> {
        self.key_id().map(|id| id.name_hash())
    }

    /// Names it in the span of the call.
    pub fn record(&self, span: &Span) {
        match self {
            Target::Key(id) => span.record("table", display(&id.table)),
            Target::LockRef(lock_ref) => span.record("entry", display(lock_ref)),
            Target::Entry(name) => span.record("entry", display(name)),
            Target::Session(session) => span.record("session", display(session)),
        };
    }
}

/// A unary call of the contract.
pub trait UnaryCall: Sized + Send + Sync + 'static {
    /// Its name between replicas.
    const METHOD: Method;
    /// Its request.
    type Ask: Message + Default + Clone + Send + 'static;
    /// Its answer.
    type Answer: Message + Default + Send + 'static;

    /// Checks a request. Nothing was changed where that fails.
    fn parse(ask: Self::Ask, context: &CallContext) -> Result<Self, Invalid>;

    /// What it is about.
    fn target(&self) -> Target;

    /// When it must be answered.
    fn answer_by(&self, context: &CallContext) -> Instant {
        context.answer_by()
    }

    /// What its caller must be allowed to do to that.
    fn needs(&self) -> Verbs;

    /// It writes a value: what may have been done is not done once more.
    fn is_write(&self) -> bool {
        false
    }

    /// It makes or ends an entry, or a session: where one replica may have done so, that another one refuses says nothing.
    fn changes(&self) -> bool {
        false
    }

    /// What its caller hears once it is too late for an answer.
    fn late(&self) -> Status {
        status::late(self.is_write())
    }

    /// It may take as long as its caller likes.
    fn waits(&self) -> bool {
        false
    }

    /// The request as another replica is to see it.
    fn ask(&self) -> Cow<'_, Self::Ask>;

    /// What its caller hears where the engine did not do it, here or on the way to wherever it is done.
    fn failed(&self, error: EngineError) -> Result<Self::Answer, Status> {
        Err(status::of_engine(&error))
    }

    /// What its caller hears where it was refused, wherever that was.
    fn refused(&self, refusal: Status) -> Result<Self::Answer, Status> {
        Err(refusal)
    }

    /// Makes it on the engine of this replica.
    fn serve_locally(
        &self,
        engine: &Engine,
    ) -> impl Future<Output = Result<Self::Answer, EngineError>> + Send;
}
