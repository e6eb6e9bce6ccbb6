//! The rows of a key: encoding a state to values, and decoding it.

use std::collections::VecDeque;
use std::sync::Arc;

use fermata_cassandra::{Row, Value, present};
use prost::Message;

use super::digest;
use super::skip::{self, Run};
use crate::key::{Entry, Home, KeyState, Reserved};
use crate::lock::{Ended, EndedEntry, Fence, Liveness, Mode, ReplicaId, Seq, SessionId, Tag};
use crate::store::StoreError;
use crate::store::ends::End;

/// The format of the rows.
const FORMAT: i8 = 4;
/// The format of the ends.
const ENDS_FORMAT: u8 = 2;
/// In `kept`: nobody. A null would leave a tombstone in every key that was released.
const NOT_KEPT: i64 = 0;
const MODE_ENDED: i8 = 0;
const MODE_EXCLUSIVE: i8 = 1;

/// The seq of the row that is always there, below all entries.
pub(super) const SEQ_BELOW: i64 = 0;
/// The seq of the row that is always there, above all entries.
pub(super) const SEQ_ABOVE: i64 = i64::MAX;

fn damaged(what: impl Into<String>) -> StoreError {
    StoreError::Damaged(what.into())
}

/// A number of ours as a `bigint`.
pub(super) fn bigint(number: u64) -> Result<i64, StoreError> {
    i64::try_from(number).map_err(|_| damaged(format!("{number} does not fit into a bigint")))
}

/// A `bigint` as a number of ours.
pub(super) fn number(bigint: i64) -> Result<u64, StoreError> {
    u64::try_from(bigint).map_err(|_| damaged(format!("{bigint} is below 0")))
}

/// What all rows of a key share, in the order of `SHARED_COLUMNS`.
pub(super) fn shared(state: &KeyState) -> Result<Vec<Value>, StoreError> {
    let (home, term) = match state.home {
        Some(home) => (
            Value::Uuid(home.replica.0),
            Value::BigInt(bigint(home.term)?),
        ),
        None => (Value::Null, Value::Null),
    };
    let kept = match state.kept {
        Some(seq) => bigint(seq.0)?,
        None => NOT_KEPT,
    };
    Ok(vec![
        Value::TinyInt(FORMAT),
        Value::BigInt(bigint(state.version)?),
        home,
        term,
        Value::BigInt(bigint(state.next.0)?),
        Value::BigInt(bigint(state.head().0)?),
        Value::BigInt(bigint(state.grant.0)?),
        Value::BigInt(bigint(state.fence.0)?),
        Value::Int(state.width.cast_signed()),
        Value::Boolean(state.unsynced),
        Value::BigInt(bigint(state.reserved.seq_end.0)?),
        Value::BigInt(bigint(state.reserved.fence_end)?),
        Value::BigInt(bigint(state.reserved.volatile_end.0)?),
        Value::BigInt(kept),
        Value::Int(state.first_left_ms.cast_signed()),
        Value::BigInt(digest::of(state).cast_signed()),
    ])
}

/// A row with nothing in it but its key, in the order of `ROW_COLUMNS`.
fn bare(seq: i64) -> Vec<Value> {
    let mut row = vec![Value::Unset; super::statements::ROW_COLUMNS.len()];
    if let Some(first) = row.first_mut() {
        *first = Value::BigInt(seq);
    }
    row
}

/// The row above all entries.
pub(super) fn above() -> Vec<Value> {
    bare(SEQ_ABOVE)
}

/// The row below all entries, with what is rarely changed.
pub(super) fn below(ended: &Ended, runs: &[Run]) -> Vec<Value> {
    let mut row = bare(SEQ_BELOW);
    if let [.., ends, skip] = row.as_mut_slice() {
        *ends = Value::Blob(encode_ends(ended).into());
        *skip = Value::Blob(skip::encode(runs).into());
    }
    row
}

/// An entry that has ended.
pub(super) fn ended(seq: Seq) -> Result<Vec<Value>, StoreError> {
    let mut row = bare(bigint(seq.0)?);
    if let Some(mode) = row.get_mut(1) {
        *mode = Value::TinyInt(MODE_ENDED);
    }
    Ok(row)
}

/// A live entry.
pub(super) fn live(entry: &Entry) -> Result<Vec<Value>, StoreError> {
    let mode = match entry.mode {
        Mode::Exclusive => MODE_EXCLUSIVE,
    };
    let (session, ttl) = match entry.liveness {
        Liveness::Own { ttl_ms } => (Value::Unset, Value::Int(ttl_ms.cast_signed())),
        Liveness::Session(session) => (Value::Uuid(session.0), Value::Unset),
    };
    Ok(vec![
        Value::BigInt(bigint(entry.seq.0)?),
        Value::TinyInt(mode),
        Value::Blob(entry.tag.bytes().to_vec().into()),
        session,
        ttl,
        Value::text(&entry.identity),
        Value::text(&entry.owner),
        Value::Timestamp(entry.created_at_ms),
        Value::Unset,
        Value::Unset,
    ])
}

/// The row below all entries as it was read: everything but the entries.
#[derive(Clone, Debug)]
pub(super) struct First {
    /// The state, without its entries.
    pub(super) state: KeyState,
    /// The seq of its first entry, or `next`: the rows below it are not read.
    pub(super) head: Seq,
    /// Which seqs are ignored, whatever is there.
    pub(super) runs: Vec<Run>,
    /// The digest of the state with its entries.
    digest: u64,
}

impl First {
    pub(super) fn decode(mut row: Row) -> Result<First, StoreError> {
        match row.tinyint("format")? {
            Some(FORMAT) => {}
            Some(format) => {
                return Err(damaged(format!(
                    "its format is {format}, which this program does not know"
                )));
            }
            None => return Err(damaged("its format is missing")),
        }
        let mut counter = |column: &str| number(present(row.bigint(column)?, column)?);
        let version = counter("version")?;
        let next = Seq(counter("next")?);
        let head = Seq(counter("head")?);
        let grant = Fence(counter("grant")?);
        let fence = Fence(counter("fence")?);
        let width = present(row.int("width")?, "width")?.cast_unsigned();
        let unsynced = present(row.boolean("unsynced")?, "unsynced")?;
        let mut counter = |column: &str| number(present(row.bigint(column)?, column)?);
        let reserved = Reserved {
            seq_end: Seq(counter("seq_end")?),
            fence_end: counter("fence_end")?,
            volatile_end: Seq(counter("volatile_end")?),
        };
        let kept = match present(row.bigint("kept")?, "kept")? {
            NOT_KEPT => None,
            seq => Some(Seq(number(seq)?)),
        };
        let first_left_ms = present(row.int("first_left")?, "first_left")?.cast_unsigned();
        let home = match (row.uuid("home")?, row.bigint("term")?) {
            (Some(replica), Some(term)) => Some(Home {
                replica: ReplicaId(replica),
                term: number(term)?,
            }),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => {
                return Err(damaged(
                    "it has a home without a term, or a term without a home",
                ));
            }
        };
        let ended = decode_ends(&present(row.blob("ended")?, "ended")?)?;
        let runs = present(row.blob("skip")?, "skip")?;
        let runs =
            skip::decode(&runs).ok_or_else(|| damaged("its column skip cannot be decoded"))?;
        let digest = present(row.bigint("digest")?, "digest")?.cast_unsigned();
        if version == 0 {
            return Err(damaged("its version is 0"));
        }
        // Before anybody counts the entries between them.
        if head > next {
            return Err(damaged("its head is above next"));
        }
        Ok(First {
            state: KeyState {
                version,
                home,
                next,
                grant,
                fence,
                width,
                unsynced,
                reserved,
                kept,
                first_left_ms,
                entries: VecDeque::new(),
                ended,
            },
            head,
            runs,
            digest,
        })
    }

    /// Puts the entries in, given newest first; checks that all of it is of one state.
    pub(super) fn with_entries(self, rows: Vec<Row>) -> Result<KeyState, StoreError> {
        let digest = self.digest;
        let state = self.joined(rows)?;
        match digest::of(&state) == digest {
            true => Ok(state),
            false => Err(damaged("its rows do not match its digest")),
        }
    }

    /// The same by what the rows say alone: checks that every seq from head to next is accounted for.
    pub(super) fn joined(self, rows: Vec<Row>) -> Result<KeyState, StoreError> {
        let (mut state, head) = (self.state, self.head);
        let mut due = state.next.0;
        for mut row in rows {
            let seq = present(row.bigint("seq")?, "seq")?;
            if seq == SEQ_ABOVE {
                continue;
            }
            let seq = number(seq)?;
            if seq < head.0 || self.runs.iter().any(|run| run.contains(seq)) {
                continue;
            }
            due = before(due, &self.runs);
            if seq != due {
                return Err(damaged(format!(
                    "the row of entry {due} is missing: entry {seq} is in its place"
                )));
            }
            if let Some(entry) = entry_row(seq, row)? {
                state.entries.push_front(entry);
            }
        }
        if head < state.next && due != head.0 {
            return Err(damaged(format!(
                "entry {} is missing",
                before(due, &self.runs)
            )));
        }
        if state.head() != head {
            return Err(damaged(format!(
                "its first entry is {}, not {head}",
                state.head()
            )));
        }
        state.check().map_err(damaged)?;
        Ok(state)
    }
}

/// The seq below this one that must have a row.
fn before(seq: u64, runs: &[Run]) -> u64 {
    let below = seq.saturating_sub(1);
    match runs.iter().find(|run| run.contains(below)) {
        Some(run) => run.first.saturating_sub(1),
        None => below,
    }
}

/// The entry in a row; `None` where it has ended.
fn entry_row(seq: u64, mut row: Row) -> Result<Option<Arc<Entry>>, StoreError> {
    let mode = match row.tinyint("mode")? {
        Some(MODE_EXCLUSIVE) => Mode::Exclusive,
        Some(MODE_ENDED) => return Ok(None),
        Some(_) | None => return Err(damaged(format!("entry {seq} has no known mode"))),
    };
    let liveness = match (row.uuid("session")?, row.int("ttl")?) {
        (Some(session), _) => Liveness::Session(SessionId(session)),
        (None, Some(ttl)) => Liveness::Own {
            ttl_ms: ttl.cast_unsigned(),
        },
        (None, None) => {
            return Err(damaged(format!(
                "entry {seq} has neither a session nor a TTL"
            )));
        }
    };
    let entry = Entry {
        seq: Seq(seq),
        mode,
        tag: present(
            row.blob("tag")?.and_then(|tag| Tag::from_slice(&tag)),
            "tag",
        )?,
        liveness,
        identity: present(row.text("identity")?, "identity")?.into(),
        owner: present(row.text("owner")?, "owner")?.into(),
        created_at_ms: present(row.timestamp("created_at")?, "created_at")?,
    };
    Ok(Some(Arc::new(entry)))
}

#[derive(Clone, PartialEq, prost::Message)]
struct Ends {
    #[prost(uint64, tag = "1")]
    complete_from: u64,
    #[prost(message, repeated, tag = "2")]
    entries: Vec<End>,
    /// The ends below `unknown_to` of which nothing is known; 0 for both where there are none.
    #[prost(uint64, tag = "3")]
    unknown_from: u64,
    #[prost(uint64, tag = "4")]
    unknown_to: u64,
}

fn encode_ends(ended: &Ended) -> Vec<u8> {
    let message = Ends {
        complete_from: ended.complete_from.0,
        entries: ended.entries.iter().map(End::from).collect(),
        unknown_from: ended.unknown.start.0,
        unknown_to: ended.unknown.end.0,
    };
    let mut bytes = vec![ENDS_FORMAT];
    // A Vec grows, so there is always room.
    message.encode_raw(&mut bytes);
    bytes
}

fn decode_ends(bytes: &[u8]) -> Result<Ended, StoreError> {
    let Some((&ENDS_FORMAT, message)) = bytes.split_first() else {
        return Err(damaged(
            "its ends have a format that this program does not know",
        ));
    };
    let message = Ends::decode(message).map_err(|error| damaged(error.to_string()))?;
    let entries = message.entries.into_iter().map(EndedEntry::try_from);
    Ok(Ended {
        entries: entries.collect::<Result<_, _>>().map_err(damaged)?,
        complete_from: Seq(message.complete_from),
        unknown: Seq(message.unknown_from)..Seq(message.unknown_to),
    })
}
