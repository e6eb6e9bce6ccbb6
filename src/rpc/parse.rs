//! Parses the text and numbers of requests into types that cannot be wrong. Each error names the field and the limit. At an error
//! nothing has been changed.

use std::time::Duration;

use bytes::Bytes;
use fermata_proto as proto;
use uuid::{Uuid, Version};

use crate::engine::{LeaseId, LiveBy, Mutation};
use crate::limits::Limits;
use crate::lock::{EntryName, InvalidKey, Key, KeyId, LockRef, Mode, SessionId, TableName};
use crate::protocol::RowChange;

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
    /// It has too many bytes, or too many elements.
    #[error("it has {given} {unit}; the limit is {max} ({limit})")]
    TooLarge {
        /// What was given.
        given: usize,
        /// Bytes or elements.
        unit: &'static str,
        /// The limit in force.
        max: usize,
        /// The name of the limit.
        limit: &'static str,
    },
    /// It is below zero.
    #[error("must not be negative")]
    Negative,
    /// A span of time is too short or too long.
    #[error("{given_ms} ms is out of range; allowed are {min_ms} to {max_ms} ms ({limits})")]
    OutOfRange {
        /// What was given, in milliseconds, rounded up.
        given_ms: u64,
        /// The shortest, in milliseconds.
        min_ms: u32,
        /// The longest, in milliseconds.
        max_ms: u32,
        /// What sets the two.
        limits: &'static str,
    },
    /// It is not what belongs there.
    #[error("{0}")]
    Malformed(String),
    /// It does not go together with something else.
    #[error("{0}")]
    Conflicting(&'static str),
}

fn malformed(why: impl ToString) -> FieldProblem {
    FieldProblem::Malformed(why.to_string())
}

fn control(at: usize) -> FieldProblem {
    malformed(format!("contains a control character at byte {at}"))
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
    at("table", TableName::parse(text).map_err(malformed))
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
        InvalidKey::TooLong { bytes, max } => {
            too_large(bytes, "bytes", max, "limits.key_bytes_max")
        }
        InvalidKey::Control { at, .. } => control(at),
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
    LockRef::parse(text, identity).map_err(malformed)
}

/// `name`, of an entry.
pub fn entry_name(text: &str) -> Result<EntryName, Invalid> {
    let parsed = match text.is_empty() {
        true => Err(FieldProblem::Missing),
        false => text.parse::<EntryName>().map_err(malformed),
    };
    at("name", parsed)
}

/// `lock_refs`: how many there are. Each of them is parsed for itself, so that one does not stand for the others.
pub fn lock_refs(texts: &[String], limits: &Limits) -> Result<(), Invalid> {
    let max = limits.lock_refs_per_renewal_max;
    let parsed = match texts.len() {
        0 => Err(FieldProblem::Missing),
        count => fits(count, "elements", max, "limits.lock_refs_per_renewal_max"),
    };
    at("lock_refs", parsed)
}

/// `request_id`: a missing one is made by `make`.
pub fn request_id(text: &str, make: impl FnOnce() -> Uuid) -> Result<Uuid, Invalid> {
    if text.is_empty() {
        return Ok(make());
    }
    let id = Uuid::try_parse(text).ok();
    let random = id.filter(|id| id.get_version() == Some(Version::Random));
    let why = "must be a random UUID (version 4): a guessed request_id gives access to its entry or session";
    at("request_id", random.ok_or_else(|| malformed(why)))
}

/// `session_id`, as listings show it.
pub fn session_id(text: &str) -> Result<SessionId, Invalid> {
    let parsed = match text.is_empty() {
        true => Err(FieldProblem::Missing),
        false => Uuid::try_parse(text).map_err(|_| malformed("not a UUID")),
    };
    at("session_id", parsed).map(SessionId)
}

/// `session`, as this client gives it, where only one from OpenSession will do.
pub fn session(text: &str, identity: &str) -> Result<SessionId, Invalid> {
    at("session", session_text(text, identity, "not a session"))
}

fn session_text(text: &str, identity: &str, fault: &str) -> Result<SessionId, FieldProblem> {
    if text.is_empty() {
        return Err(FieldProblem::Missing);
    }
    let whole = "give the whole text that OpenSession returned: a UUID, a dot and 26 characters";
    SessionId::parse(text, identity).ok_or_else(|| malformed(format!("{fault}: {whole}")))
}

/// `session` where a lockRef without a session keeps itself alive. A grant on it does not matter.
pub fn lease(text: &str, identity: &str) -> Result<LeaseId, Invalid> {
    let parsed = if text.contains('/') {
        lock_ref_text(text, identity).map(|lock_ref| LeaseId::LockRef(lock_ref.without_grant()))
    } else {
        let fault = "neither a session nor a lockRef";
        session_text(text, identity, fault).map(LeaseId::Session)
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
        let why = "cannot be set together with session";
        return at("ttl", Err(FieldProblem::Conflicting(why)));
    }
    session(session_text, identity).map(LiveBy::Session)
}

/// `ttl`, in milliseconds, rounded up; the default where absent.
pub fn ttl_ms(ttl: Option<&prost_types::Duration>, limits: &Limits) -> Result<u32, Invalid> {
    let Some(ttl) = ttl else {
        return Ok(limits.ttl_default_ms);
    };
    let (min_ms, max_ms) = (limits.ttl_min_ms, limits.ttl_max_ms);
    let names = "limits.ttl_min_ms, limits.ttl_max_ms";
    at("ttl", ms_in_range(ttl, min_ms, max_ms, names))
}

/// `expire_after` of a row lock, as [`ttl_ms`].
pub fn expire_after_ms(
    ttl: Option<&prost_types::Duration>,
    limits: &Limits,
) -> Result<u32, Invalid> {
    let field = "expire_after";
    ttl_ms(ttl, limits).map_err(|invalid| Invalid { field, ..invalid })
}

/// `column_ttl` of a lock with this TTL, in milliseconds, rounded up; 0 where absent.
pub fn column_ttl_ms(ttl: Option<&prost_types::Duration>, ttl_ms: u32) -> Result<u32, Invalid> {
    let Some(ttl) = ttl else {
        return Ok(0);
    };
    let names = "expire_after, 49 days";
    at("column_ttl", ms_in_range(ttl, ttl_ms, u32::MAX, names))
}

/// A pause between two tries, capped as a wait.
pub fn pause(
    field: &'static str,
    pause: Option<&prost_types::Duration>,
    limits: &Limits,
) -> Result<Option<Duration>, Invalid> {
    let pause = pause.map(|pause| at(field, duration(pause))).transpose()?;
    Ok(pause.map(|pause| pause.min(limits.wait_max())))
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
    let names = "limits.disconnect_grace_min_ms, the session's ttl";
    let parsed = ms_in_range(grace, min_ms, ttl_ms, names);
    at("disconnect_grace", parsed)
}

/// A span in milliseconds, rounded up.
fn ms_in_range(
    span: &prost_types::Duration,
    min_ms: u32,
    max_ms: u32,
    limits: &'static str,
) -> Result<u32, FieldProblem> {
    let nanos = duration(span)?.as_nanos();
    let given_ms = u64::try_from(nanos.div_ceil(1_000_000)).unwrap_or(u64::MAX);
    match u32::try_from(given_ms) {
        Ok(ms) if (min_ms..=max_ms).contains(&ms) => Ok(ms),
        Ok(_) | Err(_) => Err(FieldProblem::OutOfRange {
            given_ms,
            min_ms,
            max_ms,
            limits,
        }),
    }
}

/// A span of time that is not negative. (prost's own conversion overflows on the least number.)
fn duration(given: &prost_types::Duration) -> Result<Duration, FieldProblem> {
    let nanos_fit = (-999_999_999..=999_999_999).contains(&given.nanos);
    let signs_agree =
        given.seconds == 0 || given.nanos == 0 || (given.seconds < 0) == (given.nanos < 0);
    if !nanos_fit || !signs_agree {
        let why = "not a valid duration: nanos must be below a second and have the sign of seconds";
        return Err(malformed(why));
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
        true => Err(FieldProblem::Conflicting(
            "another call in flight on this stream has the same call_id",
        )),
        false => Ok(()),
    };
    at("call_id", parsed)
}

/// A list of a frame of Pipeline.
pub fn frame_part(field: &'static str, count: usize, max: usize) -> Result<(), Invalid> {
    at(field, fits(count, "elements", max, "a frame"))
}

/// `mode`: exclusive where unset.
pub fn mode(number: i32) -> Result<Mode, Invalid> {
    match proto::LockMode::try_from(number) {
        Ok(proto::LockMode::Unspecified | proto::LockMode::Exclusive) => Ok(Mode::Exclusive),
        Err(_) => at(
            "mode",
            Err(malformed(format!("unknown lock mode {number}"))),
        ),
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
    fits(text.len(), "bytes", max, limit)?;
    match text.char_indices().find(|(_, c)| c.is_control()) {
        Some((at, _)) => Err(control(at)),
        None => Ok(text),
    }
}

fn fits(
    given: usize,
    unit: &'static str,
    max: usize,
    limit: &'static str,
) -> Result<(), FieldProblem> {
    match given > max {
        true => Err(too_large(given, unit, max, limit)),
        false => Ok(()),
    }
}

fn too_large(given: usize, unit: &'static str, max: usize, limit: &'static str) -> FieldProblem {
    FieldProblem::TooLarge {
        given,
        unit,
        max,
        limit,
    }
}

/// `key_prefix` of a listing: may be empty.
pub fn key_prefix(text: String, limits: &Limits) -> Result<String, Invalid> {
    let max = limits.key_bytes_max;
    at(
        "key_prefix",
        fits(text.len(), "bytes", max, "limits.key_bytes_max").map(|()| text),
    )
}

/// `value` of a CriticalPut.
pub fn put(value: Bytes, limits: &Limits) -> Result<Mutation, Invalid> {
    at("value", value_fits(&value, limits)).map(|()| Mutation::Put(value))
}

fn value_fits(value: &Bytes, limits: &Limits) -> Result<(), FieldProblem> {
    let max = limits.value_bytes_max;
    fits(value.len(), "bytes", max, "limits.value_bytes_max")
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
        Some(_) => at(
            "put.value",
            Err(FieldProblem::Conflicting(
                "must be empty when delete is true",
            )),
        ),
    }
}

/// `lock_id` of a row lock: `None` where empty.
pub fn lock_id(text: String, limits: &Limits) -> Result<Option<String>, Invalid> {
    if text.starts_with('~') {
        let why = "must not begin with ~, as the columns of tries do";
        return at("lock_id", Err(FieldProblem::Conflicting(why)));
    }
    let label = label(text, limits.key_bytes_max, "limits.key_bytes_max");
    at(
        "lock_id",
        label.map(|text| Some(text).filter(|text| !text.is_empty())),
    )
}

/// How many mutations one release may have: each number of them is a statement of its own.
const MUTATIONS_MAX: usize = 32;
/// The longest TTL of a data column. Cassandra refuses more than twenty years.
const COLUMN_TTL_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// `mutations`, by their number.
pub fn mutations(count: usize) -> Result<(), Invalid> {
    at(
        "mutations",
        fits(count, "elements", MUTATIONS_MAX, "a release"),
    )
}

/// A mutation of a data column. `is_new`: none before is of this column.
pub fn row_change(
    mutation: proto::RowMutation,
    (is_data, is_new): (bool, bool),
    limits: &Limits,
) -> Result<RowChange, Invalid> {
    let column = match () {
        () if mutation.column.is_empty() => Err(FieldProblem::Missing),
        () if !is_data => Err(FieldProblem::Conflicting("it is a lock column")),
        () if !is_new => Err(FieldProblem::Conflicting(
            "another mutation has the same column",
        )),
        () => fits(
            mutation.column.len(),
            "bytes",
            limits.key_bytes_max,
            "limits.key_bytes_max",
        ),
    };
    at("mutations.column", column)?;
    let column = mutation.column;
    if mutation.delete {
        let value = match mutation.value.is_empty() && mutation.ttl.is_none() {
            true => Ok(RowChange::Delete { column }),
            false => Err(FieldProblem::Conflicting(
                "must be empty when delete is true, without a ttl",
            )),
        };
        return at("mutations.value", value);
    }
    at("mutations.value", value_fits(&mutation.value, limits))?;
    let ttl = mutation.ttl.as_ref().map(duration).transpose();
    let ttl = at("mutations.ttl", ttl)?;
    if ttl.is_some_and(|ttl| ttl > COLUMN_TTL_MAX) {
        let why = "must be at most ten years";
        return at("mutations.ttl", Err(FieldProblem::Conflicting(why)));
    }
    Ok(RowChange::Put {
        column,
        value: mutation.value,
        ttl: ttl.filter(|ttl| !ttl.is_zero()),
    })
}

#[cfg(test)]
#[path = "parse_test.rs"]
mod tests;
