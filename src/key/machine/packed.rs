//! A machine to which nothing happens, in few bytes. Most locks of a service are held for long and not used: of such a key
//! only what its home must remember is kept, encoded, until something happens to it again.
//!
//! [`Machine::unpack`] gives back the machine that was packed, field by field; one whose state is none of these is not packed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use uuid::Uuid;

use super::holder::{Claim, Holder, LastPut, Phase, Writes};
use super::leases::Leases;
use super::pace::Pace;
use super::row::KnownRow;
use super::serving::{KnownValue, Serving};
use super::{Machine, Role, Turn};
use crate::key::{Entry, Home, KeyState, Reserved};
use crate::lock::{Ended, Fence, Liveness, Mode, ReplicaId, Seq, SessionId};
use crate::session::Observed;

/// The home of a key whose one entry holds it in a session, with nothing in flight and nobody who waits or watches. In memory
/// only: no other program reads it.
#[derive(Clone, PartialEq, Message)]
struct PackedMachine {
    #[prost(bytes = "vec", tag = "1")]
    replica: Vec<u8>,
    #[prost(uint64, tag = "2")]
    term: u64,
    #[prost(message, required, tag = "3")]
    state: PackedState,
    /// Absent where it is as `state`.
    #[prost(message, optional, tag = "4")]
    row: Option<PackedState>,
    #[prost(message, required, tag = "5")]
    entry: PackedEntry,
    #[prost(message, required, tag = "6")]
    holder: PackedHolder,
    #[prost(uint64, tag = "7")]
    began: u64,
    #[prost(uint64, optional, tag = "8")]
    inherited: Option<u64>,
    /// In nanoseconds; absent where it is not known.
    #[prost(uint64, optional, tag = "9")]
    session_ttl: Option<u64>,
    #[prost(uint64, tag = "10")]
    next_io: u64,
    #[prost(bool, tag = "11")]
    changed: bool,
}

/// The counters of a state.
#[derive(Clone, PartialEq, Message)]
struct PackedState {
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
}

#[derive(Clone, PartialEq, Message)]
struct PackedEntry {
    #[prost(uint64, tag = "1")]
    seq: u64,
    #[prost(bytes = "vec", tag = "2")]
    request_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    session: Vec<u8>,
    #[prost(string, tag = "4")]
    identity: String,
    #[prost(string, tag = "5")]
    owner: String,
    #[prost(int64, tag = "6")]
    created_at_ms: i64,
}

#[derive(Clone, PartialEq, Message)]
struct PackedHolder {
    #[prost(uint32, tag = "1")]
    op: u32,
    #[prost(bool, tag = "2")]
    synced: bool,
    /// So many answers said so; absent where it is claimed.
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
    /// The number of the put of a release that failed.
    #[prost(uint64, optional, tag = "8")]
    failed_put: Option<u64>,
    #[prost(uint64, optional, tag = "9")]
    in_use_since: Option<u64>,
    #[prost(bool, tag = "10")]
    at_once: bool,
}

impl Machine {
    /// The machine in few bytes; `None` where something is in flight, waits or is due, or where it remembers the value.
    pub fn pack(&self) -> Option<Vec<u8>> {
        let is_quiet = self.turn == Turn::Free && self.backlog.is_empty() && self.tries == 0;
        match &self.role {
            Role::Serving(serving) if is_quiet => {
                Some(packed(serving, self.next_io)?.encode_to_vec())
            }
            _ => None,
        }
    }

    /// The machine that was packed; `None` of bytes that no machine was packed into.
    pub fn unpack(bytes: &[u8]) -> Option<Machine> {
        let packed = PackedMachine::decode(bytes).ok()?;
        Some(Machine {
            next_io: packed.next_io,
            role: Role::Serving(Box::new(unpacked(packed)?)),
            ..Machine::new()
        })
    }

    /// Forgets how many held the key lately, where that is so long ago that it does not matter any more.
    pub fn forget_pace(&mut self, now: Observed, span: Duration) {
        if let Role::Serving(serving) = &mut self.role {
            serving.pace.forget(now, span);
        }
    }
}

fn packed(serving: &Serving, next_io: u64) -> Option<PackedMachine> {
    // Named one by one: who adds a field decides here what becomes of it.
    let Serving {
        home,
        state,
        row,
        changed,
        moved: false,
        decided,
        holder: Some(holder),
        inherited,
        unheard,
        began,
        first_until: None,
        leases,
        session_ttls,
        asks,
        watchers,
        ios,
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
        && unheard.is_empty()
        && asks.is_empty()
        && watchers.is_empty()
        && ios.is_empty()
        && detaching.is_empty()
        && row.sent().is_none()
        && *leases == Leases::default()
        && *pace == Pace::default();
    let ([entry], []) = state.entries.as_slices() else {
        return None;
    };
    let Liveness::Session(session) = entry.liveness else {
        return None;
    };
    let session_ttl = session_ttls.get(&session);
    let is_alone = session_ttls.len() == usize::from(session_ttl.is_some());
    if !is_quiet || !is_alone || row.known().entries != state.entries {
        return None;
    }
    let packed_state = packed_state(*home, state)?;
    let row = packed_state_of_row(*home, row.known(), &packed_state)?;
    Some(PackedMachine {
        replica: home.replica.0.as_bytes().to_vec(),
        term: home.term,
        holder: packed_holder(holder, entry, state)?,
        state: packed_state,
        row,
        entry: packed_entry(entry, session),
        began: began.to_nanos(),
        inherited: inherited.map(|seq| seq.0),
        session_ttl: session_ttl.map(|ttl| nanos(*ttl)),
        next_io,
        changed: *changed,
    })
}

/// Of a row that has the same entries; `None` within where it is the same in all.
fn packed_state_of_row(
    home: Home,
    row: &KeyState,
    state: &PackedState,
) -> Option<Option<PackedState>> {
    let row = packed_state(home, row)?;
    Some((row != *state).then_some(row))
}

fn packed_state(of: Home, state: &KeyState) -> Option<PackedState> {
    let KeyState {
        version,
        home,
        next,
        grant,
        fence,
        width,
        unsynced: false,
        reserved,
        kept,
        first_left_ms: 0,
        entries: _,
        ended: Ended {
            entries: ended,
            complete_from,
        },
    } = state
    else {
        return None;
    };
    (*home == Some(of) && ended.is_empty()).then(|| PackedState {
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
    })
}

fn packed_entry(entry: &Entry, session: SessionId) -> PackedEntry {
    let Entry {
        seq,
        mode: Mode::Exclusive,
        request_id,
        liveness: _,
        identity,
        owner,
        created_at_ms,
    } = entry;
    PackedEntry {
        seq: seq.0,
        request_id: request_id.as_bytes().to_vec(),
        session: session.0.as_bytes().to_vec(),
        identity: identity.to_string(),
        owner: owner.to_string(),
        created_at_ms: *created_at_ms,
    }
}

fn packed_holder(holder: &Holder, entry: &Entry, state: &KeyState) -> Option<PackedHolder> {
    let is_of_state = holder.seq == entry.seq
        && holder.tag == entry.tag()
        && (holder.grant, holder.fence, holder.width) == (state.grant, state.fence, state.width);
    let (Phase::Held { synced }, true) = (&holder.phase, is_of_state) else {
        return None;
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
    let is_quiet = holder.sync_tries == 0 && holder.queued.is_empty();
    let (op, past) = holder.timestamps();
    is_quiet.then(|| PackedHolder {
        op,
        synced: *synced,
        answered,
        acknowledged,
        unknown,
        past,
        last_call_no: holder.last_call_no,
        failed_put,
        in_use_since: holder.in_use_since.map(Observed::to_nanos),
        at_once: holder.at_once,
    })
}

fn unpacked(packed: PackedMachine) -> Option<Serving> {
    let home = Home {
        replica: ReplicaId(Uuid::from_slice(&packed.replica).ok()?),
        term: packed.term,
    };
    let session = SessionId(Uuid::from_slice(&packed.entry.session).ok()?);
    let entry = Arc::new(Entry {
        seq: Seq(packed.entry.seq),
        mode: Mode::Exclusive,
        request_id: Uuid::from_slice(&packed.entry.request_id).ok()?,
        liveness: Liveness::Session(session),
        identity: packed.entry.identity.into(),
        owner: packed.entry.owner.into(),
        created_at_ms: packed.entry.created_at_ms,
    });
    let row = packed.row.as_ref().unwrap_or(&packed.state);
    let row = Arc::new(unpacked_state(home, row, &entry));
    let state = match packed.row {
        Some(_) => Arc::new(unpacked_state(home, &packed.state, &entry)),
        None => Arc::clone(&row),
    };
    let holder = unpacked_holder(&packed.holder, &entry, &state);
    let session_ttl = packed.session_ttl.map(Duration::from_nanos);
    Some(Serving {
        home,
        row: KnownRow::new(row),
        changed: packed.changed,
        moved: false,
        decided: Vec::new(),
        holder: Some(holder),
        inherited: packed.inherited.map(Seq),
        unheard: BTreeSet::new(),
        began: Observed::from_nanos(packed.began),
        first_until: None,
        leases: Leases::default(),
        session_ttls: BTreeMap::from_iter(session_ttl.map(|ttl| (session, ttl))),
        asks: Vec::new(),
        watchers: Vec::new(),
        ios: Vec::new(),
        value: KnownValue::Unknown,
        grant_again: None,
        pace: Pace::default(),
        detaching: Vec::new(),
        tidy_at: None,
        state,
    })
}

fn unpacked_state(home: Home, packed: &PackedState, entry: &Arc<Entry>) -> KeyState {
    KeyState {
        version: packed.version,
        home: Some(home),
        next: Seq(packed.next),
        grant: Fence(packed.grant),
        fence: Fence(packed.fence),
        width: packed.width,
        unsynced: false,
        reserved: Reserved {
            seq_end: Seq(packed.seq_end),
            fence_end: packed.fence_end,
            volatile_end: Seq(packed.volatile_end),
        },
        kept: packed.kept.map(Seq),
        first_left_ms: 0,
        entries: VecDeque::from([Arc::clone(entry)]),
        ended: Ended {
            entries: VecDeque::new(),
            complete_from: Seq(packed.complete_from),
        },
    }
}

fn unpacked_holder(packed: &PackedHolder, entry: &Entry, state: &KeyState) -> Holder {
    let claim = match packed.answered {
        Some(times) => Claim::Answered(times),
        None => Claim::Claimed,
    };
    let mut holder =
        Holder::new(entry, state, claim, packed.at_once).with_timestamps(packed.op, packed.past);
    holder.phase = Phase::Held {
        synced: packed.synced,
    };
    holder.writes = Writes::of_ended(packed.acknowledged, packed.unknown);
    holder.last_call_no = packed.last_call_no;
    holder.last_put = packed.failed_put.map_or(LastPut::None, LastPut::Failed);
    holder.in_use_since = packed.in_use_since.map(Observed::from_nanos);
    holder
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
