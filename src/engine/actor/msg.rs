//! What an actor is asked.

use std::time::Duration;

use tokio::sync::{oneshot, watch};

use super::super::api::{EngineError, ForceReleased, Mutation, Value, Watched};
use super::super::leases::{LeaseKey, OpenCall};
use crate::lock::{Create, Fence, LockRef, ReplicaId, Seq, SessionId, Tag};

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

/// What may be told of the lease that a place lives by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct Life {
    pub ttl: Duration,
    pub valid_for: Duration,
    /// Another replica is to be asked first: it keeps this session, or it needs a new epoch.
    pub ask: Option<SessionId>,
}

/// An accepted critical call that was done.
pub(in super::super) struct Accepted<T> {
    pub value: T,
    pub life: Life,
}

/// Who has a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct Whereabouts {
    pub home: ReplicaId,
    pub epoch: u32,
    /// The fence in force, of the holder; [`Fence::NONE`] of a waiter.
    pub fence: Fence,
    /// Whether it goes to another home only once its own gave it up, or is down: one that holds, or that lives by
    /// what its home hears of it (I10).
    pub needs_consent: bool,
    /// The version of the key that says so.
    pub version: u64,
}

/// Whether something is given up to another replica that asks for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum GivesUp {
    /// For good.
    Yes,
    /// Whoever asks hears so, and may ask anew later.
    No,
    /// It cannot be said yet, or there is nothing to give.
    NotNow,
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
        life: Life,
        existed: bool,
    },
    /// It waits.
    Waiting {
        seq: Seq,
        tag: Tag,
        position: usize,
        wake: Option<Wake>,
        lease: LeaseKey,
        life: Life,
        existed: bool,
    },
}

impl Held {
    /// Whether nobody else is to be asked before it is told.
    pub fn is_final(&self) -> bool {
        let (Held::Held { life, .. } | Held::Waiting { life, .. }) = self;
        life.ask.is_none()
    }
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
        reply: Reply<Accepted<Value>>,
    },
    Write {
        place: PlaceRef,
        call_no: u64,
        mutation: Mutation,
        reply: Reply<Accepted<()>>,
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
    /// A sign of life: answered with what may be told of what the place lives by.
    Renew { place: PlaceRef, reply: Reply<Life> },
    /// A caller is about to hear HELD, after the replica that keeps its session was asked (I5).
    Told { place: PlaceRef, reply: Reply<()> },
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
    /// Who has a place, as the store has it now.
    Where {
        place: PlaceRef,
        reply: Reply<Whereabouts>,
    },
    /// Makes this replica the home of a place whose home until now is down, or consented. False if the place is
    /// another one than that by now.
    Take {
        seq: Seq,
        from_home: ReplicaId,
        from_fence: Fence,
        from_epoch: u32,
        reply: Reply<bool>,
    },
    /// Makes this replica the home of a waiter once the one that is its liveness was silent for its TTL. Answered then;
    /// false if the place is another one than that by now.
    TakeSilent {
        seq: Seq,
        from_home: ReplicaId,
        from_epoch: u32,
        reply: Reply<bool>,
    },
    /// Another replica asks for a place: answered once it is given up, for good, or is not.
    Consent {
        seq: Seq,
        fence: Fence,
        epoch: u32,
        reply: oneshot::Sender<GivesUp>,
    },
    /// Another replica says that the key has this version.
    Hint { version: u64 },
    /// One that lives by a session may be over: that was closed by this replica.
    Look,
    /// Replicas that have places here are down: see to them.
    Sweep,
    /// After a start: answered when all places of the key are this replica's.
    Settle { reply: oneshot::Sender<()> },
}

impl Msg {
    /// The place that a call is about, where it can be served by the home of the place only.
    pub fn place(&self) -> Option<PlaceRef> {
        match self {
            Msg::Acquire { place, .. }
            | Msg::Get { place, .. }
            | Msg::Write { place, .. }
            | Msg::Release { place, .. }
            | Msg::Watch { place, .. }
            | Msg::Renew { place, .. }
            | Msg::Told { place, .. } => Some(*place),
            Msg::Create { .. }
            | Msg::Expired { .. }
            | Msg::Claim { .. }
            | Msg::SessionOver { .. }
            | Msg::Force { .. }
            | Msg::Where { .. }
            | Msg::Take { .. }
            | Msg::TakeSilent { .. }
            | Msg::Consent { .. }
            | Msg::Hint { .. }
            | Msg::Look
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
            Msg::Told { reply, .. } => drop(reply.send(Err(error))),
            Msg::Force { reply, .. } => drop(reply.send(Err(error))),
            Msg::Where { reply, .. } => drop(reply.send(Err(error))),
            Msg::Take { reply, .. } | Msg::TakeSilent { reply, .. } => {
                drop(reply.send(Err(error)));
            }
            Msg::Consent { reply, .. } => drop(reply.send(GivesUp::NotNow)),
            Msg::Hint { .. } | Msg::Look | Msg::Sweep => {}
            Msg::Expired { .. }
            | Msg::Claim { .. }
            | Msg::SessionOver { .. }
            | Msg::Settle { .. } => return Some(self),
        }
        None
    }
}
