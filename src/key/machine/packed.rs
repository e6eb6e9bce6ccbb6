//! An unused machine in few bytes. Most locks are held for long and rarely called: the home keeps only the encoded necessary state until
//! the next event.
//!
//! [`Machine::unpack`] restores the packed machine field by field. A machine in any other state is not packed.

mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use uuid::Uuid;

use super::Machine;
use super::holder::{Claim, Holder, LastPut, Phase, Writes};
use super::leases::Leases;
use super::pace::Pace;
use super::released::{LastWrite, ReleasedEntry};
use super::role::{Role, Turn};
use super::row::KnownRow;
use super::serving::{KnownValue, Serving};
use crate::key::{Entry, Home, KeyState};
use crate::lock::{Fence, Liveness, ReplicaId, Seq, Tag};
use crate::session::Observed;
use state::{PackedEntry, PackedState, packed_entry, packed_state, unpacked_entry, unpacked_state};

/// The home of a key without entries, or with one entry that holds it in a session. Nothing is in flight, and no call waits or
/// watches. In memory only: no other program reads it.
#[derive(Clone, PartialEq, Message)]
struct PackedMachine {
    #[prost(bytes = "vec", tag = "1")]
    replica: Vec<u8>,
    #[prost(uint64, tag = "2")]
    term: u64,
    #[prost(message, required, tag = "3")]
    state: PackedState,
    /// Absent if equal to `state`.
    #[prost(message, optional, tag = "4")]
    row: Option<PackedState>,
    /// Absent, like `holder`, if nobody locks the key.
    #[prost(message, optional, tag = "5")]
    entry: Option<PackedEntry>,
    #[prost(message, optional, tag = "6")]
    holder: Option<PackedHolder>,
    #[prost(uint64, tag = "7")]
    began: u64,
    #[prost(uint64, optional, tag = "8")]
    inherited: Option<u64>,
    /// In nanoseconds; absent if unknown.
    #[prost(uint64, optional, tag = "9")]
    session_ttl: Option<u64>,
    #[prost(uint64, tag = "10")]
    next_io: u64,
    #[prost(bool, tag = "11")]
    changed: bool,
    /// The entry is inherited, without a call here yet.
    #[prost(bool, tag = "12")]
    unheard: bool,
    /// Oldest first.
    #[prost(message, repeated, tag = "13")]
    released: Vec<PackedReleased>,
}

/// A recently released entry.
#[derive(Clone, PartialEq, Message)]
struct PackedReleased {
    #[prost(uint64, tag = "1")]
    seq: u64,
    #[prost(bytes = "vec", tag = "2")]
    tag: Vec<u8>,
    #[prost(uint64, tag = "3")]
    grant: u64,
    /// The number of the call that wrote its put; absent without a put.
    #[prost(uint64, optional, tag = "4")]
    written: Option<u64>,
    /// It carried no put, and an earlier write may show.
    #[prost(bool, tag = "5")]
    unknown: bool,
    #[prost(uint64, tag = "6")]
    until: u64,
}

#[derive(Clone, PartialEq, Message)]
struct PackedHolder {
    #[prost(uint32, tag = "1")]
    op: u32,
    #[prost(enumeration = "PackedPhase", tag = "2")]
    phase: i32,
    /// The number of HELD answers; absent if claimed.
    #[prost(uint32, optional, tag = "3")]
    answered: Option<u32>,
    #[prost(uint64, tag = "4")]
    acknowledged: u64,
    #[prost(uint64, tag = "5")]
    unknown: u64,
    #[prost(uint64, optional, tag = "6")]
    past: Option<u64>,
    #[prost(uint64, tag = "7")]
    last_call_no: u64,
    /// The call number of a failed release with a put.
    #[prost(uint64, optional, tag = "8")]
    failed_put: Option<u64>,
    #[prost(uint64, optional, tag = "9")]
    in_use_since: Option<u64>,
    #[prost(bool, tag = "10")]
    at_once: bool,
    #[prost(uint32, tag = "11")]
    sync_tries: u32,
}

/// The phase of a holder that waits for nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, prost::Enumeration)]
#[repr(i32)]
enum PackedPhase {
    Held = 0,
    HeldSynced = 1,
    /// As after a take-over: the sync begins with the next call for it.
    Unsynced = 2,
}

impl Machine {
    /// The machine in few bytes; `None` if something is in flight, waiting or due, if the value is remembered, or if memory alone
    /// knows of the holder.
    pub fn pack(&self) -> Option<Vec<u8>> {
        let is_quiet = self.turn == Turn::Free && self.backlog.is_empty() && self.tries == 0;
        match &self.role {
            Role::Serving(serving) if is_quiet => {
                Some(packed(serving, self.next_io)?.encode_to_vec())
            }
            _ => None,
        }
    }

    /// Restores a packed machine; `None` for any other bytes.
    pub fn unpack(bytes: &[u8]) -> Option<Machine> {
        let packed = PackedMachine::decode(bytes).ok()?;
        Some(Machine {
            next_io: packed.next_io,
            role: Role::Serving(Box::new(unpacked(packed)?)),
            ..Machine::new()
        })
    }

    /// The end of its memory of released entries.
    pub fn remembers_until(&self) -> Option<Observed> {
        match &self.role {
            Role::Serving(serving) => serving.released.iter().map(|entry| entry.until).max(),
            Role::HandingOver(..) | Role::Unread | Role::Taking(_) => None,
        }
    }

    /// Forgets recent holders and released entries that are too old to matter.
    pub fn forget_past(&mut self, now: Observed, span: Duration) {
        if let Role::Serving(serving) = &mut self.role {
            serving.pace.forget(now, span);
            serving.released.forget(now);
        }
    }
}

fn packed(serving: &Serving, next_io: u64) -> Option<PackedMachine> {
    // Every field by name: a new field needs a decision here.
    let Serving {
        home,
        state,
        row,
        changed,
        moved: false,
        decided,
        holder,
        inherited,
        unheard,
        began,
        first_until: None,
        leases,
        session_ttls,
        asks,
        watchers,
        ios,
        released,
        value: KnownValue::Unknown,
        grant_again: None,
        pace,
        detaching,
        tidy_at: None,
    } = serving
    else {
        return None;
    };
    let is_quiet = decided.is_empty()
        && asks.is_empty()
        && watchers.is_empty()
        && ios.is_empty()
        && detaching.is_empty()
        && row.sent().is_none()
        && *leases == Leases::default()
        && *pace == Pace::default();
    let held = match (state.entries.as_slices(), holder) {
        (([entry], []), Some(holder)) => {
            let Liveness::Session(session) = entry.liveness else {
                return None;
            };
            Some((entry, session, packed_holder(holder, entry, state)?))
        }
        (([], []), None) => None,
        _ => return None,
    };
    let entry = held.as_ref().map(|(entry, ..)| *entry);
    let session = held.as_ref().map(|(_, session, _)| *session);
    let session_ttl = session.and_then(|session| session_ttls.get(&session));
    let is_unheard = entry.is_some_and(|entry| unheard.contains(&entry.seq));
    let is_alone = session_ttls.len() == usize::from(session_ttl.is_some())
        && unheard.len() == usize::from(is_unheard);
    let is_in_row =
        row.known().entries == state.entries && entry.is_none_or(|entry| row.is_durable(entry.seq));
    if !is_quiet || !is_alone || !is_in_row {
        return None;
    }
    let packed_state = packed_state(*home, state)?;
    let row = packed_state_of_row(*home, row.known(), &packed_state)?;
    Some(PackedMachine {
        replica: home.replica.0.as_bytes().to_vec(),
        term: home.term,
        state: packed_state,
        row,
        entry: entry
            .zip(session)
            .map(|(entry, session)| packed_entry(entry, session)),
        holder: held.map(|(.., holder)| holder),
        began: began.to_nanos(),
        inherited: inherited.map(|seq| seq.0),
        session_ttl: session_ttl.map(|ttl| nanos(*ttl)),
        next_io,
        changed: *changed,
        unheard: is_unheard,
        released: released.iter().map(packed_released).collect(),
    })
}

/// A row with the same entries; the inner `None` if it equals `state`.
fn packed_state_of_row(
    home: Home,
    row: &KeyState,
    state: &PackedState,
) -> Option<Option<PackedState>> {
    let row = packed_state(home, row)?;
    Some((row != *state).then_some(row))
}

fn packed_holder(holder: &Holder, entry: &Entry, state: &KeyState) -> Option<PackedHolder> {
    let is_of_state = holder.seq == entry.seq
        && holder.tag == entry.tag
        && (holder.grant, holder.fence, holder.width) == (state.grant, state.fence, state.width);
    let phase = match holder.phase {
        Phase::Held { synced: false } => PackedPhase::Held,
        Phase::Held { synced: true } => PackedPhase::HeldSynced,
        Phase::Unsynced => PackedPhase::Unsynced,
        Phase::Granting
        | Phase::SyncRead(_)
        | Phase::SyncWrite { .. }
        | Phase::SyncPaused { .. }
        | Phase::Extending(_)
        | Phase::Settling { .. }
        | Phase::LastPut { .. } => return None,
    };
    let answered = match holder.claim {
        Claim::Claimed => None,
        Claim::Answered(times) => Some(times),
        Claim::Until(_) => return None,
    };
    let failed_put = match holder.last_put {
        LastPut::None => None,
        LastPut::Failed(call_no) => Some(call_no),
        LastPut::InFlight(_) => return None,
    };
    let (acknowledged, unknown) = holder.writes.ended()?;
    let (op, past) = holder.timestamps();
    (is_of_state && holder.queued.is_empty()).then(|| PackedHolder {
        op,
        phase: phase.into(),
        answered,
        acknowledged,
        unknown,
        past,
        last_call_no: holder.last_call_no,
        failed_put,
        in_use_since: holder.in_use_since.map(Observed::to_nanos),
        at_once: holder.at_once,
        sync_tries: holder.sync_tries,
    })
}

fn unpacked(packed: PackedMachine) -> Option<Serving> {
    let home = Home {
        replica: ReplicaId(Uuid::from_slice(&packed.replica).ok()?),
        term: packed.term,
    };
    let (entry, session) = match packed.entry {
        Some(entry) => {
            let (entry, session) = unpacked_entry(entry)?;
            (Some(entry), Some(session))
        }
        None => (None, None),
    };
    let state = Arc::new(unpacked_state(home, packed.state, entry.as_ref())?);
    let row = match packed.row {
        Some(row) => Arc::new(unpacked_state(home, row, entry.as_ref())?),
        None => Arc::clone(&state),
    };
    let holder = match (&packed.holder, &entry) {
        (Some(holder), Some(entry)) => Some(unpacked_holder(holder, entry, &state)?),
        (None, None) => None,
        _ => return None,
    };
    let unheard = entry.filter(|_| packed.unheard).map(|entry| entry.seq);
    let session_ttl = packed.session_ttl.map(Duration::from_nanos);
    let released = packed.released.iter().map(unpacked_released);
    Some(Serving {
        home,
        row: KnownRow::new(row),
        changed: packed.changed,
        moved: false,
        decided: Vec::new(),
        holder,
        inherited: packed.inherited.map(Seq),
        unheard: BTreeSet::from_iter(unheard),
        began: Observed::from_nanos(packed.began),
        first_until: None,
        leases: Leases::default(),
        session_ttls: BTreeMap::from_iter(session.zip(session_ttl)),
        asks: Vec::new(),
        watchers: Vec::new(),
        ios: Vec::new(),
        released: released.collect::<Option<_>>()?,
        value: KnownValue::Unknown,
        grant_again: None,
        pace: Pace::default(),
        detaching: Vec::new(),
        tidy_at: None,
        state,
    })
}

fn packed_released(entry: &ReleasedEntry) -> PackedReleased {
    let ReleasedEntry {
        seq,
        tag,
        grant,
        put,
        until,
    } = entry;
    let (written, unknown) = match put {
        LastWrite::None => (None, false),
        LastWrite::Unknown => (None, true),
        LastWrite::Written(call_no) => (Some(*call_no), false),
    };
    PackedReleased {
        seq: seq.0,
        tag: tag.bytes().to_vec(),
        grant: grant.0,
        written,
        unknown,
        until: until.to_nanos(),
    }
}

fn unpacked_released(packed: &PackedReleased) -> Option<ReleasedEntry> {
    Some(ReleasedEntry {
        seq: Seq(packed.seq),
        tag: Tag::from_slice(&packed.tag)?,
        grant: Fence(packed.grant),
        put: match (packed.written, packed.unknown) {
            (Some(call_no), _) => LastWrite::Written(call_no),
            (None, true) => LastWrite::Unknown,
            (None, false) => LastWrite::None,
        },
        until: Observed::from_nanos(packed.until),
    })
}

fn unpacked_holder(packed: &PackedHolder, entry: &Entry, state: &KeyState) -> Option<Holder> {
    let claim = match packed.answered {
        Some(times) => Claim::Answered(times),
        None => Claim::Claimed,
    };
    let mut holder =
        Holder::new(entry, state, claim, packed.at_once).with_timestamps(packed.op, packed.past);
    holder.phase = match PackedPhase::try_from(packed.phase).ok()? {
        PackedPhase::Held => Phase::Held { synced: false },
        PackedPhase::HeldSynced => Phase::Held { synced: true },
        PackedPhase::Unsynced => Phase::Unsynced,
    };
    holder.writes = Writes::of_ended(packed.acknowledged, packed.unknown);
    holder.last_call_no = packed.last_call_no;
    holder.last_put = packed.failed_put.map_or(LastPut::None, LastPut::Failed);
    holder.in_use_since = packed.in_use_since.map(Observed::from_nanos);
    holder.sync_tries = packed.sync_tries;
    Some(holder)
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
