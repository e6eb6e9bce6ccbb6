//! Text and numbers of requests -> types that cannot be wrong. Each error names the field and the limit;
//! nothing was changed when one is returned.

use std::time::Duration;

use bytes::Bytes;
use fermata_proto as proto;
use uuid::{Uuid, Version};

use crate::engine::{LeaseId, LiveBy, Mutation};
use crate::limits::Limits;
use crate::lock::{
    EntryName, EntryNameError, InvalidKey, Key, KeyId, LockRef, LockRefError, Mode, SessionId,
    TableName, TableNameError,
};

/// A field of a request that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Invalid {
    /// Its path in the request.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: FieldProblem,
}

/// What is wrong with a field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldProblem {
    /// It is needed.
    #[error("must not be empty")]
    Missing,
    /// It has too many bytes.
    #[error("it has {bytes} bytes; the limit is {max} ({limit})")]
    TooLong {
        /// What was given, in bytes.
        bytes: usize,
        /// The limit in force, in bytes.
        max: usize,
        /// The name of the limit.
        limit: &'static str,
    },
    /// It has too many elements.
    #[error("{count} were given; the limit is {max} ({limit})")]
    TooMany {
        /// How many were given.
        count: usize,
        /// The limit in force.
        max: usize,
        /// The name of the limit.
        limit: &'static str,
    },
    /// It holds a control character.
    #[error("contains a control character at byte {at}")]
    Control {
        /// Where, counted in bytes from 0.
        at: usize,
    },
    /// It is no table name.
    #[error("{0}")]
    Table(TableNameError),
    /// It is no lockRef.
    #[error("{0}")]
    LockRef(LockRefError),
    /// It is no name of an entry.
    #[error("{0}")]
    EntryName(EntryNameError),
    /// It is no UUID.
    #[error("not a UUID (like 67e55044-10b1-426f-9247-bb680e5fe0c8)")]
    NotUuid,
    /// It is the UUID of only zeros or only ones, which would make different calls one.
    #[error("must not be the nil or the max UUID; generate a random one")]
    ConstantUuid,
    /// It is a UUID that is not random, by what it says of itself.
    #[error("must be a random UUID (version 4): whoever guesses it has what it made")]
    GuessableUuid,
    /// It is no session.
    #[error(
        "not a session (a UUID with a dot and 26 characters behind it, as OpenSession gave it)"
    )]
    NotASession,
    /// It is neither a session nor a lockRef.
    #[error(
        "neither a session (a UUID with a dot and 26 characters behind it, as OpenSession gave it) nor a lockRef"
    )]
    NotALease,
    /// It is the id of a session.
    #[error(
        "the id of a session lets nobody act for it: give the whole text that OpenSession answered"
    )]
    OnlySessionId,
    /// Another call that is in flight has it.
    #[error("another call in flight on this stream has it")]
    InUse,
    /// It is no google.protobuf.Duration.
    #[error("not a valid duration: nanos must be below a second and have the sign of seconds")]
    Duration,
    /// It is below zero.
    #[error("must not be negative")]
    Negative,
    /// The TTL is too short or too long.
    #[error(
        "{given_ms} ms is out of range; allowed are {min_ms} to {max_ms} ms (limits.ttl_min_ms, limits.ttl_max_ms)"
    )]
    TtlOutOfRange {
        /// What was given, in milliseconds, rounded up.
        given_ms: u64,
        /// The shortest, in milliseconds.
        min_ms: u32,
        /// The longest, in milliseconds.
        max_ms: u32,
    },
    /// The grace for a client that is disconnected is too short or too long.
    #[error(
        "{given_ms} ms is out of range; allowed are {min_ms} ms (limits.disconnect_grace_min_ms) to the session's ttl, \
         {ttl_ms} ms"
    )]
    GraceOutOfRange {
        /// What was given, in milliseconds, rounded up.
        given_ms: u64,
        /// The shortest, in milliseconds.
        min_ms: u32,
        /// The longest, which is the TTL of the session, in milliseconds.
        ttl_ms: u32,
    },
    /// It cannot be set where another field is.
    #[error("cannot be set together with {0}")]
    TogetherWith(&'static str),
    /// A mode that this server does not know.
    #[error("unknown lock mode {0}")]
    UnknownMode(i32),
    /// A mutation both deletes and writes.
    #[error("must be empty when delete is true")]
    DeleteWithValue,
    /// A page token of nobody, or of another listing.
    #[error(
        "not a page token of this listing; pass next_page_token of the previous page, with the other fields unchanged"
    )]
    PageToken,
}

/// Names the field of a problem.
pub(super) fn at<T>(field: &'static str, parsed: Result<T, FieldProblem>) -> Result<T, Invalid> {
    parsed.map_err(|problem| Invalid { field, problem })
}

/// `table`: empty is the default one. Whether it exists is the engine's to say.
pub fn table(text: &str) -> Result<TableName, Invalid> {
    if text.is_empty() {
        return Ok(TableName::default_table());
    }
    at("table", TableName::parse(text).map_err(FieldProblem::Table))
}

/// `key` and `table`.
pub fn key_id(key: &str, table_name: &str, limits: &Limits) -> Result<KeyId, Invalid> {
    let table = table(table_name)?;
    let key = key_in("key", key, limits)?;
    Ok(KeyId { table, key })
}

/// A key, in a field of this name.
pub fn key_in(field: &'static str, text: &str, limits: &Limits) -> Result<Key, Invalid> {
    at(field, key_text(text, limits))
}

/// In the words, and under the names of limits, that all fields share.
fn key_text(text: &str, limits: &Limits) -> Result<Key, FieldProblem> {
    Key::parse(text, limits.key_bytes_max).map_err(|error| match error {
        InvalidKey::Empty { .. } => FieldProblem::Missing,
        InvalidKey::TooLong { bytes, max } => FieldProblem::TooLong {
            bytes,
            max,
            limit: "limits.key_bytes_max",
        },
        InvalidKey::Control { at, .. } => FieldProblem::Control { at },
    })
}

/// `lock_ref`, as this client gives it.
pub fn lock_ref(text: &str, identity: &str) -> Result<LockRef, Invalid> {
    at("lock_ref", lock_ref_text(text, identity))
}

fn lock_ref_text(text: &str, identity: &str) -> Result<LockRef, FieldProblem> {
    if text.is_empty() {
        return Err(FieldProblem::Missing);
    }
    LockRef::parse(text, identity).map_err(FieldProblem::LockRef)
}

/// `name`, of an entry.
pub fn entry_name(text: &str) -> Result<EntryName, Invalid> {
    let parsed = match text.is_empty() {
        true => Err(FieldProblem::Missing),
        false => text.parse().map_err(FieldProblem::EntryName),
    };
    at("name", parsed)
}

/// `lock_refs`: how many there are. Each of them is parsed for itself, so that one does not stand for the others.
pub fn lock_refs(texts: &[String], limits: &Limits) -> Result<(), Invalid> {
    let (count, max) = (texts.len(), limits.lock_refs_per_renewal_max);
    let limit = "limits.lock_refs_per_renewal_max";
    let parsed = match count {
        0 => Err(FieldProblem::Missing),
        count if count > max => Err(FieldProblem::TooMany { count, max, limit }),
        _ => Ok(()),
    };
    at("lock_refs", parsed)
}

/// `request_id`: a missing one is made by `make`.
pub fn request_id(text: &str, make: impl FnOnce() -> Uuid) -> Result<Uuid, Invalid> {
    if text.is_empty() {
        return Ok(make());
    }
    let random = uuid(text).and_then(|id| match id.get_version() {
        Some(Version::Random) => Ok(id),
        _ => Err(FieldProblem::GuessableUuid),
    });
    at("request_id", random)
}

fn uuid(text: &str) -> Result<Uuid, FieldProblem> {
    let id = Uuid::try_parse(text).map_err(|_| FieldProblem::NotUuid)?;
    if id.is_nil() || id.is_max() {
        return Err(FieldProblem::ConstantUuid);
    }
    Ok(id)
}

/// `session_id`, as listings show it.
pub fn session_id(text: &str) -> Result<SessionId, Invalid> {
    let parsed = match text.is_empty() {
        true => Err(FieldProblem::Missing),
        false => uuid(text),
    };
    at("session_id", parsed).map(SessionId)
}

/// `session`, as this client gives it, where only one from OpenSession will do.
pub fn session(text: &str, identity: &str) -> Result<SessionId, Invalid> {
    at("session", session_text(text, identity))
}

fn session_text(text: &str, identity: &str) -> Result<SessionId, FieldProblem> {
    if text.is_empty() {
        return Err(FieldProblem::Missing);
    }
    match SessionId::parse(text, identity) {
        Some(session) => Ok(session),
        None if Uuid::try_parse(text).is_ok() => Err(FieldProblem::OnlySessionId),
        None => Err(FieldProblem::NotASession),
    }
}

/// `session` where a lockRef without a session keeps itself alive. A grant on it does not matter.
pub fn lease(text: &str, identity: &str) -> Result<LeaseId, Invalid> {
    let parsed = if text.contains('/') {
        lock_ref_text(text, identity).map(|lock_ref| LeaseId::LockRef(lock_ref.without_grant()))
    } else {
        match session_text(text, identity) {
            Ok(session) => Ok(LeaseId::Session(session)),
            Err(FieldProblem::NotASession) => Err(FieldProblem::NotALease),
            Err(other) => Err(other),
        }
    };
    at("session", parsed)
}

/// `session` and `ttl` of a new entry: at most one of them.
pub fn live_by(
    (session_text, identity): (&str, &str),
    ttl: Option<&prost_types::Duration>,
    limits: &Limits,
) -> Result<LiveBy, Invalid> {
    if session_text.is_empty() {
        return ttl_ms(ttl, limits).map(LiveBy::Ttl);
    }
    if ttl.is_some() {
        return at("ttl", Err(FieldProblem::TogetherWith("session")));
    }
    session(session_text, identity).map(LiveBy::Session)
}

/// `ttl`, in milliseconds, rounded up; the default where absent.
pub fn ttl_ms(ttl: Option<&prost_types::Duration>, limits: &Limits) -> Result<u32, Invalid> {
    let Some(ttl) = ttl else {
        return Ok(limits.ttl_default_ms);
    };
    at(
        "ttl",
        duration(ttl).and_then(|ttl| ttl_in_range(ttl, limits)),
    )
}

fn ttl_in_range(ttl: Duration, limits: &Limits) -> Result<u32, FieldProblem> {
    let (min_ms, max_ms) = (limits.ttl_min_ms, limits.ttl_max_ms);
    ms_in_range(ttl, min_ms, max_ms).map_err(|given_ms| FieldProblem::TtlOutOfRange {
        given_ms,
        min_ms,
        max_ms,
    })
}

/// `disconnect_grace` of a session with this TTL, in milliseconds, rounded up; 0 where absent.
pub fn disconnect_grace_ms(
    grace: Option<&prost_types::Duration>,
    ttl_ms: u32,
    limits: &Limits,
) -> Result<u32, Invalid> {
    let Some(grace) = grace else {
        return Ok(0);
    };
    let min_ms = limits.disconnect_grace_min_ms;
    let parsed = duration(grace).and_then(|grace| {
        ms_in_range(grace, min_ms, ttl_ms).map_err(|given_ms| FieldProblem::GraceOutOfRange {
            given_ms,
            min_ms,
            ttl_ms,
        })
    });
    at("disconnect_grace", parsed)
}

/// A span in milliseconds, rounded up; as an error where it is not within these.
fn ms_in_range(span: Duration, min_ms: u32, max_ms: u32) -> Result<u32, u64> {
    let given_ms = u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
    match u32::try_from(given_ms) {
        Ok(ms) if (min_ms..=max_ms).contains(&ms) => Ok(ms),
        Ok(_) | Err(_) => Err(given_ms),
    }
}

/// A span of time that is not negative. (prost's own conversion overflows on the least number.)
fn duration(given: &prost_types::Duration) -> Result<Duration, FieldProblem> {
    let nanos_fit = (-999_999_999..=999_999_999).contains(&given.nanos);
    let signs_agree =
        given.seconds == 0 || given.nanos == 0 || (given.seconds < 0) == (given.nanos < 0);
    if !nanos_fit || !signs_agree {
        return Err(FieldProblem::Duration);
    }
    match (u64::try_from(given.seconds), u32::try_from(given.nanos)) {
        (Ok(seconds), Ok(nanos)) => Ok(Duration::new(seconds, nanos)),
        (Err(_), _) | (_, Err(_)) => Err(FieldProblem::Negative),
    }
}

/// `wait`: none where absent, capped by the server.
pub fn wait(wait: Option<&prost_types::Duration>, limits: &Limits) -> Result<Duration, Invalid> {
    match wait {
        None => Ok(Duration::ZERO),
        Some(wait) => Ok(at("wait", duration(wait))?.min(limits.wait_max())),
    }
}

/// `timeout` of a call in a frame: none where absent.
pub fn timeout(timeout: Option<&prost_types::Duration>) -> Result<Option<Duration>, Invalid> {
    timeout
        .map(|timeout| at("timeout", duration(timeout)))
        .transpose()
}

/// `call_id` of a call of Pipeline: no two in flight have the same.
pub fn call_id(is_in_flight: bool) -> Result<(), Invalid> {
    let parsed = match is_in_flight {
        true => Err(FieldProblem::InUse),
        false => Ok(()),
    };
    at("call_id", parsed)
}

/// A list of a frame of Pipeline.
pub fn frame_part(field: &'static str, count: usize, max: usize) -> Result<(), Invalid> {
    let parsed = match count {
        count if count > max => Err(FieldProblem::TooMany {
            count,
            max,
            limit: "a frame",
        }),
        _ => Ok(()),
    };
    at(field, parsed)
}

/// `mode`: exclusive where unset.
pub fn mode(number: i32) -> Result<Mode, Invalid> {
    match proto::LockMode::try_from(number) {
        Ok(proto::LockMode::Unspecified | proto::LockMode::Exclusive) => Ok(Mode::Exclusive),
        Err(_) => at("mode", Err(FieldProblem::UnknownMode(number))),
    }
}

/// `owner`: may be empty.
pub fn owner(text: String, limits: &Limits) -> Result<String, Invalid> {
    at(
        "owner",
        label(text, limits.owner_bytes_max, "limits.owner_bytes_max"),
    )
}

/// `forced_by`: may be empty.
pub fn forced_by(text: String, limits: &Limits) -> Result<String, Invalid> {
    at(
        "forced_by",
        label(text, limits.owner_bytes_max, "limits.owner_bytes_max"),
    )
}

/// `reason` of an end by force.
pub fn reason(text: String, limits: &Limits) -> Result<String, Invalid> {
    if text.is_empty() {
        return at("reason", Err(FieldProblem::Missing));
    }
    at(
        "reason",
        label(text, limits.reason_bytes_max, "limits.reason_bytes_max"),
    )
}

/// Words that are shown to people: control characters could change what a terminal shows.
fn label(text: String, max: usize, limit: &'static str) -> Result<String, FieldProblem> {
    fits(text.len(), max, limit)?;
    match text.char_indices().find(|(_, c)| c.is_control()) {
        Some((at, _)) => Err(FieldProblem::Control { at }),
        None => Ok(text),
    }
}

fn fits(bytes: usize, max: usize, limit: &'static str) -> Result<(), FieldProblem> {
    if bytes > max {
        return Err(FieldProblem::TooLong { bytes, max, limit });
    }
    Ok(())
}

/// `key_prefix` of a listing: may be empty.
pub fn key_prefix(text: String, limits: &Limits) -> Result<String, Invalid> {
    let max = limits.key_bytes_max;
    at(
        "key_prefix",
        fits(text.len(), max, "limits.key_bytes_max").map(|()| text),
    )
}

/// `value` of a CriticalPut.
pub fn put(value: Bytes, limits: &Limits) -> Result<Mutation, Invalid> {
    at("value", value_fits(&value, limits)).map(|()| Mutation::Put(value))
}

fn value_fits(value: &Bytes, limits: &Limits) -> Result<(), FieldProblem> {
    fits(
        value.len(),
        limits.value_bytes_max,
        "limits.value_bytes_max",
    )
}

/// `put` of a ReleaseLock.
pub fn mutation(
    put: Option<proto::Mutation>,
    limits: &Limits,
) -> Result<Option<Mutation>, Invalid> {
    match put {
        None => Ok(None),
        Some(put) if !put.delete => {
            at("put.value", value_fits(&put.value, limits)).map(|()| Some(Mutation::Put(put.value)))
        }
        Some(put) if put.value.is_empty() => Ok(Some(Mutation::Delete)),
        Some(_) => at("put.value", Err(FieldProblem::DeleteWithValue)),
    }
}

#[cfg(test)]
#[path = "parse_test.rs"]
mod tests;
