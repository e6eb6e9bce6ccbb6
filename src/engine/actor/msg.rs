//! What an actor is asked.

use std::time::Duration;

use tokio::sync::{oneshot, watch};

use super::super::api::{EngineError, ForceReleased, Mutation, Value, WatchEvent};
use super::super::leases::{LeaseKey, OpenCall};
use crate::lock::{Create, Fence, LockRef, ReplicaId, Seq, SessionId, Tag};

/// A lockRef of the actor's own key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct EntryRef {
    pub seq: Seq,
    pub tag: Tag,
    pub grant: Option<Fence>,
}

impl From<&LockRef> for EntryRef {
    fn from(lock_ref: &LockRef) -> Self {
        EntryRef {
            seq: lock_ref.seq,
            tag: lock_ref.tag,
            grant: lock_ref.grant,
        }
    }
}

/// What may be told of the lease that an entry lives by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct LeaseValidity {
    pub ttl: Duration,
    pub valid_for: Duration,
    /// Another replica is to be asked first: it keeps this session, or it needs a new epoch.
    pub ask: Option<SessionId>,
}

/// An accepted critical call that was done.
pub(in super::super) struct Accepted<T> {
    pub value: T,
    pub validity: LeaseValidity,
}

/// Who has an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct EntryStatus {
    pub home: ReplicaId,
    pub epoch: u32,
    /// The fence in force, of the holder; [`Fence::NONE`] of a waiter.
    pub fence: Fence,
    /// Whether it goes to another home only once its own gave it up, or is down: one that holds, or that lives by
    /// what its home learns of it (I10).
    pub needs_hand_over: bool,
    /// The version of the key that says so.
    pub version: u64,
}

/// Whether something is handed over to another replica that asks for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum HandOverAnswer {
    /// For good.
    Yes,
    /// Whoever asks learns so, and may ask anew later.
    No,
    /// It cannot be said yet, or there is nothing to give.
    NotNow,
}

/// The status of an entry, to whoever created or acquires it.
pub(in super::super) enum Held {
    /// It holds the key.
    Held {
        seq: Seq,
        tag: Tag,
        grant: Fence,
        value: Option<Value>,
        lease: LeaseKey,
        validity: LeaseValidity,
        existed: bool,
    },
    /// It waits.
    Waiting {
        seq: Seq,
        tag: Tag,
        position: usize,
        waker: Option<TurnWaker>,
        lease: LeaseKey,
        validity: LeaseValidity,
        existed: bool,
    },
}

impl Held {
    /// Whether nobody else is to be asked before it is told.
    pub fn is_final(&self) -> bool {
        let (Held::Held { validity, .. } | Held::Waiting { validity, .. }) = self;
        validity.ask.is_none()
    }
}

/// Wakes when it is the entry's turn, or the entry has ended. Keeps it alive until then.
pub(in super::super) struct TurnWaker {
    pub turn: oneshot::Receiver<()>,
    pub _open: OpenCall,
}

pub(in super::super) type HeldReply = oneshot::Sender<Result<Held, EngineError>>;
pub(in super::super) type Reply<T> = oneshot::Sender<Result<T, EngineError>>;

/// A watch of one entry.
pub(in super::super) struct WatchHandle {
    pub seen: watch::Receiver<WatchEvent>,
    /// Keeps the entry alive.
    pub _open: OpenCall,
    pub lease: LeaseKey,
}

/// What an actor is asked.
pub(in super::super) enum Msg {
    Create {
        create: Box<Create>,
        read_value: bool,
        reply: HeldReply,
    },
    Acquire {
        entry_ref: EntryRef,
        wait: bool,
        read_value: bool,
        reply: HeldReply,
    },
    Get {
        entry_ref: EntryRef,
        call_no: u64,
        reply: Reply<Accepted<Value>>,
    },
    Write {
        entry_ref: EntryRef,
        call_no: u64,
        mutation: Mutation,
        reply: Reply<Accepted<()>>,
    },
    Release {
        entry_ref: EntryRef,
        call_no: u64,
        put: Option<Mutation>,
        /// True if it had been released before.
        reply: Reply<bool>,
    },
    Watch {
        entry_ref: EntryRef,
        reply: Reply<WatchHandle>,
    },
    /// A renewal: answered with what may be told of what the entry lives by.
    Renew {
        entry_ref: EntryRef,
        reply: Reply<LeaseValidity>,
    },
    /// A caller is about to be answered HELD, after the replica that keeps its session was asked (I5).
    Answered {
        entry_ref: EntryRef,
        reply: Reply<()>,
    },
    /// The lease of an entry that lives by itself has ended.
    Expired { seq: Seq },
    /// An entry has been the holder with this grant for one TTL.
    Claim { seq: Seq, grant: Fence },
    /// The session that an entry lives by has ended. Answered when the entry is.
    SessionEnded {
        seq: Seq,
        session: SessionId,
        reply: oneshot::Sender<()>,
    },
    Force {
        entry_ref: EntryRef,
        by: Box<str>,
        why: Box<str>,
        reply: Reply<ForceReleased>,
    },
    /// Who has an entry, as the store has it now.
    Where {
        entry_ref: EntryRef,
        reply: Reply<EntryStatus>,
    },
    /// Makes this replica the home of an entry whose home until now is down, or agreed. False if the entry is
    /// another one than that by now.
    Take {
        seq: Seq,
        from_home: ReplicaId,
        from_fence: Fence,
        from_epoch: u32,
        reply: Reply<bool>,
    },
    /// Makes this replica the home of a waiter once the one that is its liveness was silent for its TTL. Answered then;
    /// false if the entry is another one than that by now.
    TakeSilent {
        seq: Seq,
        from_home: ReplicaId,
        from_epoch: u32,
        reply: Reply<bool>,
    },
    /// Another replica asks for an entry: answered once it is given up, for good, or is not.
    HandOver {
        seq: Seq,
        fence: Fence,
        epoch: u32,
        reply: oneshot::Sender<HandOverAnswer>,
    },
    /// Another replica says that the key has this version.
    Hint { version: u64 },
    /// One that lives by a session may have ended: that was closed by this replica.
    MembershipRead,
    /// Replicas that have entries here are down: see to them.
    Sweep,
    /// After a start: answered when all entries of the key are this replica's.
    Settle { reply: oneshot::Sender<()> },
}

impl Msg {
    /// The entry that a call is about, where it can be served by the home of the entry only.
    pub fn entry_ref(&self) -> Option<EntryRef> {
        match self {
            Msg::Acquire { entry_ref, .. }
            | Msg::Get { entry_ref, .. }
            | Msg::Write { entry_ref, .. }
            | Msg::Release { entry_ref, .. }
            | Msg::Watch { entry_ref, .. }
            | Msg::Renew { entry_ref, .. }
            | Msg::Answered { entry_ref, .. } => Some(*entry_ref),
            Msg::Create { .. }
            | Msg::Expired { .. }
            | Msg::Claim { .. }
            | Msg::SessionEnded { .. }
            | Msg::Force { .. }
            | Msg::Where { .. }
            | Msg::Take { .. }
            | Msg::TakeSilent { .. }
            | Msg::HandOver { .. }
            | Msg::Hint { .. }
            | Msg::MembershipRead
            | Msg::Sweep
            | Msg::Settle { .. } => None,
        }
    }

    /// Tells the caller that it failed. What nobody waits for is given back, to be done later.
    pub fn fail(self, error: EngineError) -> Option<Msg> {
        match self {
            Msg::Create { reply, .. } | Msg::Acquire { reply, .. } => drop(reply.send(Err(error))),
            Msg::Get { reply, .. } => drop(reply.send(Err(error))),
            Msg::Write { reply, .. } => drop(reply.send(Err(error))),
            Msg::Release { reply, .. } => drop(reply.send(Err(error))),
            Msg::Watch { reply, .. } => drop(reply.send(Err(error))),
            Msg::Renew { reply, .. } => drop(reply.send(Err(error))),
            Msg::Answered { reply, .. } => drop(reply.send(Err(error))),
            Msg::Force { reply, .. } => drop(reply.send(Err(error))),
            Msg::Where { reply, .. } => drop(reply.send(Err(error))),
            Msg::Take { reply, .. } | Msg::TakeSilent { reply, .. } => {
                drop(reply.send(Err(error)));
            }
            Msg::HandOver { reply, .. } => drop(reply.send(HandOverAnswer::NotNow)),
            Msg::Hint { .. } | Msg::MembershipRead | Msg::Sweep => {}
            Msg::Expired { .. }
            | Msg::Claim { .. }
            | Msg::SessionEnded { .. }
            | Msg::Settle { .. } => return Some(self),
        }
        None
    }
}
