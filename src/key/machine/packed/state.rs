//! The state of a key in few bytes, for a key without entries, or with one entry that holds it in a session.

use std::collections::VecDeque;
use std::sync::Arc;

use prost::Message;
use uuid::Uuid;

use crate::key::{Entry, Home, KeyState, Reserved};
use crate::lock::{EndReason, Ended, EndedEntry, Fence, Liveness, Mode, Seq, SessionId, Tag};

/// A state without its entry and home, which a differing row shares.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PackedState {
    #[prost(uint64, tag = "1")]
    version: u64,
    #[prost(uint64, tag = "2")]
    next: u64,
    #[prost(uint64, tag = "3")]
    grant: u64,
    #[prost(uint64, tag = "4")]
    fence: u64,
    #[prost(uint32, tag = "5")]
    width: u32,
    #[prost(uint64, tag = "6")]
    seq_end: u64,
    #[prost(uint64, tag = "7")]
    fence_end: u64,
    #[prost(uint64, tag = "8")]
    volatile_end: u64,
    #[prost(uint64, optional, tag = "9")]
    kept: Option<u64>,
    #[prost(uint64, tag = "10")]
    complete_from: u64,
    #[prost(bool, tag = "11")]
    unsynced: bool,
    /// Oldest first.
    #[prost(message, repeated, tag = "12")]
    ended: Vec<PackedEnd>,
    #[prost(uint64, tag = "13")]
    unknown_from: u64,
    #[prost(uint64, tag = "14")]
    unknown_to: u64,
}

/// A remembered end. Not a stored record: its format may change.
#[derive(Clone, PartialEq, Message)]
struct PackedEnd {
    #[prost(uint64, tag = "1")]
    seq: u64,
    #[prost(bytes = "vec", tag = "2")]
    tag: Vec<u8>,
    #[prost(enumeration = "PackedReason", tag = "3")]
    reason: i32,
    /// Of a forced end: the operator.
    #[prost(string, tag = "4")]
    by: String,
    /// Of a forced end: the reason.
    #[prost(string, tag = "5")]
    why: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, prost::Enumeration)]
#[repr(i32)]
enum PackedReason {
    Expired = 0,
    SessionClosed = 1,
    Unclaimed = 2,
    Forced = 3,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PackedEntry {
    #[prost(uint64, tag = "1")]
    seq: u64,
    #[prost(bytes = "vec", tag = "2")]
    tag: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    session: Vec<u8>,
    #[prost(string, tag = "4")]
    identity: String,
    #[prost(string, tag = "5")]
    owner: String,
    #[prost(int64, tag = "6")]
    created_at_ms: i64,
}

/// A state of this home without its entries; `None` if a field has no room here.
pub(super) fn packed_state(of: Home, state: &KeyState) -> Option<PackedState> {
    // Every field by name: a new field needs a decision here.
    let KeyState {
        version,
        home,
        next,
        grant,
        fence,
        width,
        unsynced,
        reserved,
        kept,
        first_left_ms: 0,
        entries: _,
        ended:
            Ended {
                entries: ended,
                complete_from,
                unknown,
            },
    } = state
    else {
        return None;
    };
    (*home == Some(of)).then(|| PackedState {
        version: *version,
        next: next.0,
        grant: grant.0,
        fence: fence.0,
        width: *width,
        seq_end: reserved.seq_end.0,
        fence_end: reserved.fence_end,
        volatile_end: reserved.volatile_end.0,
        kept: kept.map(|seq| seq.0),
        complete_from: complete_from.0,
        unsynced: *unsynced,
        ended: ended.iter().map(packed_end).collect(),
        unknown_from: unknown.start.0,
        unknown_to: unknown.end.0,
    })
}

fn packed_end(end: &EndedEntry) -> PackedEnd {
    let EndedEntry { seq, tag, reason } = end;
    let (reason, by, why) = match reason {
        EndReason::Expired => (PackedReason::Expired, "", ""),
        EndReason::SessionClosed => (PackedReason::SessionClosed, "", ""),
        EndReason::Unclaimed => (PackedReason::Unclaimed, "", ""),
        EndReason::Forced { by, why } => (PackedReason::Forced, &**by, &**why),
    };
    PackedEnd {
        seq: seq.0,
        tag: tag.bytes().to_vec(),
        reason: reason.into(),
        by: by.to_owned(),
        why: why.to_owned(),
    }
}

pub(super) fn packed_entry(entry: &Entry, session: SessionId) -> PackedEntry {
    let Entry {
        seq,
        mode: Mode::Exclusive,
        tag,
        liveness: _,
        identity,
        owner,
        created_at_ms,
    } = entry;
    PackedEntry {
        seq: seq.0,
        tag: tag.bytes().to_vec(),
        session: session.0.as_bytes().to_vec(),
        identity: identity.to_string(),
        owner: owner.to_string(),
        created_at_ms: *created_at_ms,
    }
}

/// The packed entry and its session.
pub(super) fn unpacked_entry(packed: PackedEntry) -> Option<(Arc<Entry>, SessionId)> {
    let session = SessionId(Uuid::from_slice(&packed.session).ok()?);
    let entry = Entry {
        seq: Seq(packed.seq),
        mode: Mode::Exclusive,
        tag: Tag::from_slice(&packed.tag)?,
        liveness: Liveness::Session(session),
        identity: packed.identity.into(),
        owner: packed.owner.into(),
        created_at_ms: packed.created_at_ms,
    };
    Some((Arc::new(entry), session))
}

pub(super) fn unpacked_state(
    home: Home,
    packed: PackedState,
    entry: Option<&Arc<Entry>>,
) -> Option<KeyState> {
    let ended: Option<VecDeque<EndedEntry>> = packed.ended.into_iter().map(unpacked_end).collect();
    Some(KeyState {
        version: packed.version,
        home: Some(home),
        next: Seq(packed.next),
        grant: Fence(packed.grant),
        fence: Fence(packed.fence),
        width: packed.width,
        unsynced: packed.unsynced,
        reserved: Reserved {
            seq_end: Seq(packed.seq_end),
            fence_end: packed.fence_end,
            volatile_end: Seq(packed.volatile_end),
        },
        kept: packed.kept.map(Seq),
        first_left_ms: 0,
        entries: entry.into_iter().map(Arc::clone).collect(),
        ended: Ended {
            entries: ended?,
            complete_from: Seq(packed.complete_from),
            unknown: Seq(packed.unknown_from)..Seq(packed.unknown_to),
        },
    })
}

fn unpacked_end(packed: PackedEnd) -> Option<EndedEntry> {
    let reason = match PackedReason::try_from(packed.reason).ok()? {
        PackedReason::Expired => EndReason::Expired,
        PackedReason::SessionClosed => EndReason::SessionClosed,
        PackedReason::Unclaimed => EndReason::Unclaimed,
        PackedReason::Forced => EndReason::Forced {
            by: packed.by.into(),
            why: packed.why.into(),
        },
    };
    Some(EndedEntry {
        seq: Seq(packed.seq),
        tag: Tag::from_slice(&packed.tag)?,
        reason,
    })
}
