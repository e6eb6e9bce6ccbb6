//! The state of a key: one small row with its counters and ends, and one row a live entry.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{RecordError, decode, encode, uuid};
use crate::key::{Entry, Home, KeyState, Reserved};
use crate::lock::{Ended, EndedEntry, Fence, Liveness, Mode, ReplicaId, Seq, SessionId, Tag};
use crate::store::ends::End;

/// All of a state but its live entries.
#[derive(Clone, PartialEq, prost::Message)]
struct StateRow {
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
    #[prost(bool, tag = "6")]
    unsynced: bool,
    /// How many live entries there are: a lost row shows.
    #[prost(uint64, tag = "7")]
    entries: u64,
    #[prost(uint64, tag = "8")]
    complete_from: u64,
    #[prost(message, repeated, tag = "9")]
    ended: Vec<End>,
    /// The replica that is the home; absent where there is none.
    #[prost(bytes = "vec", optional, tag = "10")]
    home: Option<Vec<u8>>,
    #[prost(uint64, tag = "11")]
    term: u64,
    #[prost(uint64, tag = "12")]
    seq_end: u64,
    #[prost(uint64, tag = "13")]
    fence_end: u64,
    #[prost(uint64, tag = "14")]
    volatile_end: u64,
    #[prost(uint64, optional, tag = "15")]
    kept: Option<u64>,
    #[prost(uint32, tag = "16")]
    first_left_ms: u32,
    /// The ends below `unknown_to` of which nothing is known; 0 for both where there are none.
    #[prost(uint64, tag = "17")]
    unknown_from: u64,
    #[prost(uint64, tag = "18")]
    unknown_to: u64,
}

/// The part of [`StateRow`] that a compare-and-swap looks at.
#[derive(Clone, PartialEq, prost::Message)]
struct Version {
    #[prost(uint64, tag = "1")]
    version: u64,
}

/// A live entry; its seq is in the row's key.
#[derive(Clone, PartialEq, prost::Message)]
struct EntryRow {
    #[prost(enumeration = "EntryMode", tag = "1")]
    mode: i32,
    #[prost(bytes = "vec", tag = "2")]
    tag: Vec<u8>,
    /// Its session; absent for one that lives by itself.
    #[prost(bytes = "vec", optional, tag = "3")]
    session: Option<Vec<u8>>,
    /// Its own time to live, where it has no session.
    #[prost(uint32, tag = "4")]
    ttl_ms: u32,
    #[prost(string, tag = "5")]
    identity: String,
    #[prost(string, tag = "6")]
    owner: String,
    #[prost(sint64, tag = "7")]
    created_at_ms: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, prost::Enumeration)]
#[repr(i32)]
enum EntryMode {
    None = 0,
    Exclusive = 1,
}

/// A state without its entries, as its row holds it.
pub(in crate::store::embedded) struct LockRow {
    state: KeyState,
    entries: u64,
}

impl LockRow {
    /// Fences below it may have been used.
    pub(in crate::store::embedded) fn fence_end(&self) -> u64 {
        self.state.reserved.fence_end.max(self.state.fence.0)
    }

    pub(in crate::store::embedded) fn decode(row: &[u8]) -> Result<LockRow, RecordError> {
        let row: StateRow = decode(row)?;
        let entries = row
            .ended
            .into_iter()
            .map(|end| EndedEntry::try_from(end).map_err(RecordError::new))
            .collect::<Result<VecDeque<_>, _>>()?;
        let home = match row.home {
            Some(replica) => Some(Home {
                replica: ReplicaId(uuid(&replica, "home")?),
                term: row.term,
            }),
            None => None,
        };
        Ok(LockRow {
            state: KeyState {
                version: row.version,
                home,
                next: Seq(row.next),
                grant: Fence(row.grant),
                fence: Fence(row.fence),
                width: row.width,
                unsynced: row.unsynced,
                reserved: Reserved {
                    seq_end: Seq(row.seq_end),
                    fence_end: row.fence_end,
                    volatile_end: Seq(row.volatile_end),
                },
                kept: row.kept.map(Seq),
                first_left_ms: row.first_left_ms,
                entries: VecDeque::new(),
                ended: Ended {
                    entries,
                    complete_from: Seq(row.complete_from),
                    unknown: Seq(row.unknown_from)..Seq(row.unknown_to),
                },
            },
            entries: row.entries,
        })
    }

    /// Whether there are entries to read.
    pub(in crate::store::embedded) fn has_entries(&self) -> bool {
        self.entries > 0
    }

    /// Puts the entries in; checks that they are all there and that the whole agrees with itself.
    pub(in crate::store::embedded) fn with_entries(
        self,
        entries: VecDeque<Arc<Entry>>,
    ) -> Result<KeyState, RecordError> {
        if entries.len() as u64 != self.entries {
            return Err(RecordError::new(format!(
                "it has {} entries where {} were written",
                entries.len(),
                self.entries
            )));
        }
        let state = KeyState {
            entries,
            ..self.state
        };
        if state.version == 0 {
            return Err(RecordError::new("its version is 0"));
        }
        state.check().map_err(RecordError::new)?;
        Ok(state)
    }
}

pub(in crate::store::embedded) fn encode_lock(state: &KeyState) -> Vec<u8> {
    encode(&StateRow {
        version: state.version,
        next: state.next.0,
        grant: state.grant.0,
        fence: state.fence.0,
        width: state.width,
        unsynced: state.unsynced,
        entries: state.entries.len() as u64,
        complete_from: state.ended.complete_from.0,
        unknown_from: state.ended.unknown.start.0,
        unknown_to: state.ended.unknown.end.0,
        ended: state.ended.entries.iter().map(End::from).collect(),
        home: state.home.map(|home| home.replica.0.as_bytes().to_vec()),
        term: state.term(),
        seq_end: state.reserved.seq_end.0,
        fence_end: state.reserved.fence_end,
        volatile_end: state.reserved.volatile_end.0,
        kept: state.kept.map(|seq| seq.0),
        first_left_ms: state.first_left_ms,
    })
}

/// The version in a row, for the guard of a compare-and-swap.
pub(in crate::store::embedded) fn version_of(row: &[u8]) -> Result<u64, RecordError> {
    match decode(row)? {
        Version { version: 0 } => Err(RecordError::new("its version is 0")),
        Version { version } => Ok(version),
    }
}

pub(in crate::store::embedded) fn encode_entry(entry: &Entry) -> Vec<u8> {
    let (session, ttl_ms) = match entry.liveness {
        Liveness::Own { ttl_ms } => (None, ttl_ms),
        Liveness::Session(session) => (Some(session.0.as_bytes().to_vec()), 0),
    };
    let mode = match entry.mode {
        Mode::Exclusive => EntryMode::Exclusive,
    };
    encode(&EntryRow {
        mode: mode.into(),
        tag: entry.tag.bytes().to_vec(),
        session,
        ttl_ms,
        identity: entry.identity.to_string(),
        owner: entry.owner.to_string(),
        created_at_ms: entry.created_at_ms,
    })
}

pub(in crate::store::embedded) fn decode_entry(
    seq: Seq,
    row: &[u8],
) -> Result<Arc<Entry>, RecordError> {
    let row: EntryRow = decode(row)?;
    let mode = match EntryMode::try_from(row.mode) {
        Ok(EntryMode::Exclusive) => Mode::Exclusive,
        Ok(EntryMode::None) | Err(_) => return Err(RecordError::new("an entry has no known mode")),
    };
    let liveness = match row.session {
        Some(session) => Liveness::Session(SessionId(uuid(&session, "session")?)),
        None => Liveness::Own { ttl_ms: row.ttl_ms },
    };
    Ok(Arc::new(Entry {
        seq,
        mode,
        tag: Tag::from_slice(&row.tag).ok_or(RecordError::new("an entry has no tag"))?,
        liveness,
        identity: row.identity.into(),
        owner: row.owner.into(),
        created_at_ms: row.created_at_ms,
    }))
}
