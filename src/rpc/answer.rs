//! Typed answers of the engine -> messages of the contract.

use std::time::Duration;

use bytes::Bytes;
use fermata_proto::{self as proto, LockState};
use prost::Message as _;

use crate::engine::{
    Acquired, CreatedLockRef, Described, DescribedEntry, DescribedSession, KeyHome, LeaseId,
    LockStatus, ReplicaActivity, Turns, Value,
};
use crate::key::{Entry, KeyState};
use crate::lock::{
    EndReason, EndedEntry, EntryName, Fence, KeyId, Liveness, Mode, ReplicaId, Secret, Seq,
    with_grant,
};
use crate::process::resident_bytes;
use crate::store::ReplicaRow;

/// A span of time.
pub fn duration(span: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(span.subsec_nanos()).unwrap_or(0),
    }
}

fn millis(ms: u32) -> prost_types::Duration {
    duration(Duration::from_millis(u64::from(ms)))
}

fn timestamp(ms: i64) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: ms.div_euclid(1000),
        nanos: i32::try_from(ms.rem_euclid(1000) * 1_000_000).unwrap_or(0),
    }
}

/// A time in microseconds since 1970; `None` for 0.
pub fn end_us(us: u64) -> Option<prost_types::Timestamp> {
    let ms = i64::try_from(us / 1_000).unwrap_or(i64::MAX);
    (us > 0).then(|| timestamp(ms))
}

/// How many, in the 32 bits of the contract.
pub fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The size of the busiest keys of one replica, in bytes: the answers of many replicas go into one message.
const BUSIEST_BYTES_MAX: usize = 128 * 1024;

/// The activity of a replica.
pub fn activity(did: ReplicaActivity, answering: ReplicaId) -> proto::ReplicaActivity {
    let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let grants = did.grants;
    let busiest = did.busiest.into_iter().map(|key| proto::KeyActivity {
        table: key.id.table.to_string(),
        key: key.id.key.to_string(),
        owner: key.owner.into(),
        waiters: count(key.waiters),
        last_minute: Some(turns(key.last_minute)),
        held_for: key.held_for.map(duration),
        identity: key.identity.into(),
    });
    let mut bytes = 0;
    let fits = |key: &proto::KeyActivity| {
        bytes += key.encoded_len();
        bytes <= BUSIEST_BYTES_MAX
    };
    proto::ReplicaActivity {
        replica: Some(replica(did.row, answering)),
        answered: true,
        sessions: number(did.counts.sessions),
        keys: number(did.counts.active_keys),
        grants: Some(proto::GrantCounts {
            at_once: grants.at_once,
            after_change: grants.change,
        }),
        last_minute: Some(turns(did.last_minute)),
        store: Some(proto::StoreCounts {
            reads: did.store.reads,
            writes: did.store.writes,
            transactions: did.store.transactions,
            changes: did.counts.swaps,
            conflicts: did.counts.conflicts,
        }),
        busiest_keys: busiest.take_while(fits).collect(),
        resident_bytes: resident_bytes().unwrap_or_default(),
        as_home: Some(proto::HomeCounts {
            volatile_grants: did.counts.volatile_grants,
            durable_grants: did.counts.durable_grants,
            background_commits: did.counts.background_commits,
            commits_in_doubt: did.counts.unknown,
            take_overs: did.counts.take_overs,
            received_keys: did.counts.received_keys,
            hand_overs: did.counts.hand_overs,
            forgotten_keys: did.counts.forgotten_keys,
        }),
    }
}

fn turns(turns: Turns) -> proto::Turns {
    let some = |span: Duration| (turns.count > 0).then(|| duration(span));
    let count = u32::try_from(turns.count).unwrap_or(u32::MAX).max(1);
    proto::Turns {
        count: turns.count,
        mean_wait: some(turns.waited / count),
        longest_wait: some(turns.longest),
    }
}

/// A value and whether there is one.
pub fn value(value: Option<Value>) -> (Bytes, bool) {
    match value.and_then(|value| value.bytes) {
        Some(bytes) => (bytes, true),
        None => (Bytes::new(), false),
    }
}

/// A [`LockStatus`] as the fields of an answer.
struct StatusFields {
    state: LockState,
    position: u32,
    fencing_token: u64,
    value: Bytes,
    exists: bool,
}

impl StatusFields {
    fn of(status: LockStatus) -> StatusFields {
        match status {
            LockStatus::Held { grant, value: read } => {
                let (value, exists) = value(read);
                StatusFields {
                    state: LockState::Held,
                    position: 0,
                    fencing_token: grant.0,
                    value,
                    exists,
                }
            }
            LockStatus::Waiting { position } => StatusFields {
                state: LockState::Waiting,
                position: count(position),
                fencing_token: 0,
                value: Bytes::new(),
                exists: false,
            },
        }
    }
}

/// The answer to CreateLockRef, with the client's secret and its session as given.
pub fn created(
    created: CreatedLockRef,
    session: &str,
    secret: &Secret,
) -> proto::CreateLockRefResponse {
    let fields = StatusFields::of(created.status);
    let lease = match &created.lease {
        LeaseId::Session(_) => session.to_owned(),
        LeaseId::LockRef(lock_ref) => lock_ref.without_grant().text(secret),
    };
    proto::CreateLockRefResponse {
        lock_ref: created.lock_ref.text(secret),
        state: fields.state.into(),
        position: fields.position,
        fencing_token: fields.fencing_token,
        session: lease,
        ttl: Some(duration(created.ttl)),
        valid_for: Some(duration(created.valid_for)),
        value: fields.value,
        exists: fields.exists,
        already_existed: created.existed,
        durable: created.durable,
    }
}

/// The answer to AcquireLock, with the lockRef as its client gave it.
pub fn acquired(acquired: Acquired, lock_ref: &str) -> proto::AcquireLockResponse {
    let fields = StatusFields::of(acquired.status);
    proto::AcquireLockResponse {
        lock_ref: with_grant(lock_ref, acquired.lock_ref.grant),
        state: fields.state.into(),
        position: fields.position,
        fencing_token: fields.fencing_token,
        valid_for: Some(duration(acquired.valid_for)),
        value: fields.value,
        exists: fields.exists,
        durable: acquired.durable,
    }
}

/// The name of an entry.
fn name(id: &KeyId, seq: Seq) -> String {
    EntryName {
        table: id.table.clone(),
        key: id.key.clone(),
        seq,
    }
    .to_string()
}

/// One live entry; a holder if it has a grant.
fn queue_entry(
    described: &Described,
    entry: &Entry,
    beside: DescribedEntry,
    grant: Option<Fence>,
) -> proto::QueueEntry {
    let lease = beside.lease;
    let (session, ttl) = match entry.liveness {
        Liveness::Own { ttl_ms } => (String::new(), Some(millis(ttl_ms))),
        Liveness::Session(id) => (id.to_string(), lease.map(|lease| duration(lease.ttl))),
    };
    let mode = match entry.mode {
        Mode::Exclusive => proto::LockMode::Exclusive,
    };
    let state = match grant {
        Some(_) => LockState::Held,
        None => LockState::Waiting,
    };
    proto::QueueEntry {
        name: name(&described.id, entry.seq),
        seq: entry.seq.0,
        state: state.into(),
        mode: mode.into(),
        fencing_token: grant
            .filter(|_| described.has_fence)
            .unwrap_or(Fence::NONE)
            .0,
        session_id: session,
        ttl,
        lease_left: lease.map(|lease| duration(lease.left)),
        create_time: Some(timestamp(entry.created_at_ms)),
        owner: entry.owner.to_string(),
        identity: entry.identity.to_string(),
        home: described
            .home
            .as_ref()
            .map_or_else(String::new, |home| home.id.to_string()),
        durable: beside.durable,
    }
}

/// The entry at this index of a key's queue.
fn entry_at(described: &Described, index: usize) -> Option<proto::QueueEntry> {
    let entry = described.state.entries.get(index)?;
    let beside = described.entries.get(index).copied()?;
    let holder = described.state.holder().map(|holder| holder.seq);
    let grant = (holder == Some(entry.seq)).then_some(described.state.grant);
    Some(queue_entry(described, entry, beside, grant))
}

/// The holder of a key.
pub fn holder(described: &Described) -> Option<proto::QueueEntry> {
    described.state.holder()?;
    entry_at(described, 0)
}

/// The waiters of a key above a seq, first in the queue first.
pub fn waiters(
    described: &Described,
    after: Option<Seq>,
) -> impl Iterator<Item = proto::QueueEntry> {
    let entries = &described.state.entries;
    let holders = usize::from(described.state.holder().is_some());
    let first = match after {
        None => holders,
        Some(after) => entries
            .partition_point(|entry| entry.seq <= after)
            .max(holders),
    };
    (first..entries.len()).filter_map(|index| entry_at(described, index))
}

/// How many wait behind the holder.
pub fn waiter_count(state: &KeyState) -> u32 {
    let holders = usize::from(state.holder().is_some());
    count(state.entries.len().saturating_sub(holders))
}

/// One key of ListLocks.
pub fn summary(described: &Described) -> proto::LockSummary {
    proto::LockSummary {
        table: described.id.table.to_string(),
        key: described.id.key.to_string(),
        holder: holder(described),
        waiters: waiter_count(&described.state),
    }
}

/// The replica that serves a key.
pub fn key_home(home: &KeyHome) -> proto::KeyHome {
    proto::KeyHome {
        replica: home.id.to_string(),
        address: home.address.clone(),
        term: home.term,
    }
}

/// One remembered end.
pub fn ended(id: &KeyId, entry: &EndedEntry) -> proto::EndedEntry {
    let (ended_by, detail) = match &entry.reason {
        EndReason::Forced { by, why } => (by.to_string(), why.to_string()),
        EndReason::Expired | EndReason::SessionClosed | EndReason::Unclaimed => {
            (String::new(), String::new())
        }
    };
    proto::EndedEntry {
        name: name(id, entry.seq),
        seq: entry.seq.0,
        reason: super::status::ended_reason(&entry.reason).into(),
        ended_by,
        detail,
    }
}

/// One session of ListSessions.
pub fn session(session: DescribedSession) -> proto::SessionInfo {
    proto::SessionInfo {
        session_id: session.row.id.to_string(),
        ttl: Some(millis(session.row.ttl_ms)),
        disconnect_grace: session.row.disconnect_grace().map(duration),
        lease_left: session.left.map(duration),
        lock_refs: count(session.lock_refs),
        replica: session.row.replica.to_string(),
        owner: session.row.owner,
        identity: session.row.identity,
        create_time: Some(timestamp(session.row.created_at_ms)),
    }
}

/// One replica of ListReplicas.
pub fn replica(row: ReplicaRow, answering: ReplicaId) -> proto::ReplicaInfo {
    proto::ReplicaInfo {
        replica: row.id.to_string(),
        address: row.address,
        version: row.version,
        name: row.name,
        zone: row.zone,
        start_time: Some(timestamp(row.started_at_ms)),
        answering: row.id == answering,
    }
}
