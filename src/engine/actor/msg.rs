//! What an actor is asked.

use std::time::Duration;

use tokio::sync::{oneshot, watch};

use super::super::api::{Done, EngineError, ForceReleased, Mutation, Value, Watched};
use super::super::leases::{LeaseKey, OpenCall};
use crate::lock::{Create, Fence, LockRef, Seq, SessionId, Tag};

/// A lockRef of the actor's own key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct PlaceRef {
    pub seq: Seq,
    pub tag: Tag,
    pub grant: Option<Fence>,
}

impl From<&LockRef> for PlaceRef {
    fn from(lock_ref: &LockRef) -> Self {
        PlaceRef {
            seq: lock_ref.seq,
            tag: lock_ref.tag,
            grant: lock_ref.grant,
        }
    }
}

/// Where a place stands, to whoever created or acquires it.
pub(in super::super) enum Held {
    /// It holds the key.
    Held {
        seq: Seq,
        tag: Tag,
        grant: Fence,
        value: Option<Value>,
        lease: LeaseKey,
        valid_for: Duration,
        existed: bool,
    },
    /// It waits.
    Waiting {
        seq: Seq,
        tag: Tag,
        position: usize,
        wake: Option<Wake>,
        lease: LeaseKey,
        valid_for: Duration,
        existed: bool,
    },
}

/// Rings when it is the place's turn, or the place is over. Keeps it alive until then.
pub(in super::super) struct Wake {
    pub turn: oneshot::Receiver<()>,
    pub _open: OpenCall,
}

pub(in super::super) type HeldReply = oneshot::Sender<Result<Held, EngineError>>;
pub(in super::super) type Reply<T> = oneshot::Sender<Result<T, EngineError>>;

/// A watch of one place.
pub(in super::super) struct WatchHandle {
    pub seen: watch::Receiver<Watched>,
    /// Keeps the place alive.
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
        place: PlaceRef,
        wait: bool,
        read_value: bool,
        reply: HeldReply,
    },
    Get {
        place: PlaceRef,
        call_no: u64,
        reply: Reply<Done<Value>>,
    },
    Write {
        place: PlaceRef,
        call_no: u64,
        mutation: Mutation,
        reply: Reply<Done<()>>,
    },
    Release {
        place: PlaceRef,
        call_no: u64,
        put: Option<Mutation>,
        /// True if it had been released before.
        reply: Reply<bool>,
    },
    Watch {
        place: PlaceRef,
        reply: Reply<WatchHandle>,
    },
    /// A sign of life: answered with the TTL of what the place lives by.
    Renew {
        place: PlaceRef,
        reply: Reply<Duration>,
    },
    /// The lease of a place that lives by itself is over.
    Expired { seq: Seq },
    /// A place has been the holder with this grant for one TTL.
    Claim { seq: Seq, grant: Fence },
    /// The session that a place lives by is over. Answered when the place is.
    SessionOver {
        seq: Seq,
        session: SessionId,
        reply: oneshot::Sender<()>,
    },
    Force {
        place: PlaceRef,
        by: Box<str>,
        why: Box<str>,
        reply: Reply<ForceReleased>,
    },
    /// After a start: answered when all places of the key are this replica's.
    Settle { reply: oneshot::Sender<()> },
}

impl Msg {
    /// Tells the caller that it failed. What nobody waits for is given back, to be done later.
    pub fn fail(self, error: EngineError) -> Option<Msg> {
        match self {
            Msg::Create { reply, .. } | Msg::Acquire { reply, .. } => drop(reply.send(Err(error))),
            Msg::Get { reply, .. } => drop(reply.send(Err(error))),
            Msg::Write { reply, .. } => drop(reply.send(Err(error))),
            Msg::Release { reply, .. } => drop(reply.send(Err(error))),
            Msg::Watch { reply, .. } => drop(reply.send(Err(error))),
            Msg::Renew { reply, .. } => drop(reply.send(Err(error))),
            Msg::Force { reply, .. } => drop(reply.send(Err(error))),
            Msg::Expired { .. }
            | Msg::Claim { .. }
            | Msg::SessionOver { .. }
            | Msg::Settle { .. } => return Some(self),
        }
        None
    }
}
