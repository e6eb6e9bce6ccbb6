//! Every limit of the service, in one place. Each can be configured under `[limits]`, with the same name. Units come last in a
//! name.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::lock::{CoreLimits, Key};

/// The most that `streams_per_connection_max` may be: each takes 1 KiB of the window of its connection.
const STREAMS_PER_CONNECTION_MAX: u32 = 16 * 1024;

/// The size limit of the headers of a call.
pub const HEADERS_BYTES_MAX: u32 = 16 * 1024;

/// The size limit of the identity of a client.
pub const IDENTITY_BYTES_MAX: usize = 256;

/// The maximum number of connections of other replicas: a few each, of some hundreds.
pub const PEER_CONNECTIONS_MAX: usize = 2_000;

/// The most that `value_bytes_max` may be.
pub const VALUE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The limits in force. What is above one of them is refused with an error that names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// The longest key, in bytes; at most 1024.
    pub key_bytes_max: usize,
    /// The largest value, in bytes.
    pub value_bytes_max: usize,
    /// The largest value that the home of a key remembers, in bytes; 0 for none.
    pub remembered_value_bytes_max: usize,
    /// How much all values together take that this replica remembers, in bytes. Above that those that were not used for longest
    /// are forgotten.
    pub remembered_bytes_max: usize,
    /// The largest gRPC message, in bytes. Must leave room for a value.
    pub message_bytes_max: usize,
    /// The longest owner label, in bytes.
    pub owner_bytes_max: usize,
    /// The longest reason of an end by force, in bytes.
    pub reason_bytes_max: usize,
    /// How many live entries a key may have, the holder included.
    pub entries_per_key_max: usize,
    /// How many ends other than clean releases a key remembers.
    pub ended_per_key_max: usize,
    /// How many lockRefs may live by one session.
    pub lock_refs_per_session_max: usize,
    /// How many lockRefs one RenewLocks may renew.
    pub lock_refs_per_renewal_max: usize,
    /// How many sessions may be open on this replica.
    pub sessions_max: usize,
    /// How many keys this replica may know at once. Above that, one that is idle is forgotten for one that is used.
    pub active_keys_max: usize,
    /// How many calls may queue up for one key on this replica.
    pub calls_per_key_max: usize,
    /// How many critical calls of one lockRef may be in flight at once.
    pub critical_calls_per_lock_ref_max: usize,
    /// How many calls may wait for, or watch, one lockRef at once.
    pub waits_per_lock_ref_max: usize,
    /// How many streams one connection may have: calls by themselves, waits, watches, Pipelines.
    pub streams_per_connection_max: u32,
    /// How many connections may be open at once.
    pub connections_max: usize,
    /// The shortest TTL that may be asked for, in milliseconds.
    pub ttl_min_ms: u32,
    /// The longest TTL that may be asked for, in milliseconds.
    pub ttl_max_ms: u32,
    /// The TTL of who asks for none, in milliseconds.
    pub ttl_default_ms: u32,
    /// The shortest disconnect_grace that may be asked for, in milliseconds. The longest is the session's TTL.
    pub disconnect_grace_min_ms: u32,
    /// The longest wait of one AcquireLock, in milliseconds; a longer one is capped.
    pub wait_max_ms: u64,
    /// How long a call without a deadline may take, a wait aside, in milliseconds.
    pub call_max_ms: u64,
    /// What one connection may hold in memory, in bytes: half is for messages that come in, half for answers that were not sent
    /// yet.
    pub connection_bytes_max: u64,
    /// What all connections of clients may hold so. Above that, who holds most loses a connection.
    pub bytes_in_flight_max: u64,
    /// How long an answer is kept of which nothing is taken, in milliseconds.
    pub answer_max_ms: u64,
    /// How many listings may be in flight at once, of one connection one. Others wait for their turn.
    pub listings_max: usize,
    /// The largest page of a listing.
    pub page_size_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            key_bytes_max: Key::BYTES_MAX,
            value_bytes_max: 1024 * 1024,
            remembered_value_bytes_max: 64 * 1024,
            remembered_bytes_max: 128 * 1024 * 1024,
            message_bytes_max: 1024 * 1024 + 64 * 1024,
            owner_bytes_max: 128,
            reason_bytes_max: 256,
            entries_per_key_max: 10_000,
            ended_per_key_max: 64,
            lock_refs_per_session_max: 10_000,
            lock_refs_per_renewal_max: 1_000,
            sessions_max: 100_000,
            active_keys_max: 1_000_000,
            calls_per_key_max: 20_000,
            critical_calls_per_lock_ref_max: 16,
            waits_per_lock_ref_max: 16,
            streams_per_connection_max: 2_000,
            connections_max: 10_000,
            ttl_min_ms: 1_000,
            ttl_max_ms: 3_600_000,
            ttl_default_ms: 30_000,
            disconnect_grace_min_ms: 100,
            wait_max_ms: 3_600_000,
            call_max_ms: 10_000,
            connection_bytes_max: 64 * 1024 * 1024,
            bytes_in_flight_max: 512 * 1024 * 1024,
            answer_max_ms: 60_000,
            listings_max: 4,
            page_size_max: 1_000,
        }
    }
}

impl Limits {
    /// The shortest TTL where replicas share the store, in milliseconds. A session is kept by one replica, and others
    /// that serve its locks pass renewals on to it, looking every 200 ms whether any are due: several must fit.
    pub const SHARED_TTL_MIN_MS: u32 = 1_000;

    /// The part that the core takes.
    pub fn core(&self) -> CoreLimits {
        CoreLimits {
            ended_max: self.ended_per_key_max,
            entries_max: self.entries_per_key_max,
            ..CoreLimits::default()
        }
    }

    /// The longest wait of one AcquireLock.
    pub fn wait_max(&self) -> Duration {
        Duration::from_millis(self.wait_max_ms)
    }

    /// How long a call without a deadline may take.
    pub fn call_max(&self) -> Duration {
        Duration::from_millis(self.call_max_ms)
    }

    /// How long an answer is kept of which nothing is taken.
    pub fn answer_max(&self) -> Duration {
        Duration::from_millis(self.answer_max_ms)
    }

    /// As [`Limits::check`], where replicas share the store: what only there does not fit.
    pub fn check_shared(&self) -> Result<(), String> {
        if self.ttl_min_ms >= Self::SHARED_TTL_MIN_MS {
            return Ok(());
        }
        Err(format!(
            "limits.ttl_min_ms must be at least {} where replicas share the store (store.kind = \"cassandra\"): \
             renewals are passed on between replicas, and several must fit into a TTL",
            Self::SHARED_TTL_MIN_MS,
        ))
    }

    /// Whether the limits agree with each other; each that does not, in words.
    pub fn check(&self) -> Result<(), Vec<String>> {
        let mut wrong = Vec::new();
        let mut need = |good: bool, what: &str| {
            if !good {
                wrong.push(what.to_owned());
            }
        };
        need(
            (1..=Key::BYTES_MAX).contains(&self.key_bytes_max),
            "limits.key_bytes_max must be 1 to 1024",
        );
        need(
            self.value_bytes_max <= VALUE_BYTES_MAX,
            "limits.value_bytes_max must be at most 67108864 (64 MiB)",
        );
        need(
            self.message_bytes_max >= self.value_bytes_max.saturating_add(16 * 1024),
            "limits.message_bytes_max must be at least limits.value_bytes_max + 16384",
        );
        need(
            self.ttl_min_ms >= 100,
            "limits.ttl_min_ms must be at least 100",
        );
        need(
            self.ttl_min_ms <= self.ttl_default_ms && self.ttl_default_ms <= self.ttl_max_ms,
            "limits.ttl_default_ms must lie between limits.ttl_min_ms and limits.ttl_max_ms",
        );
        need(
            self.disconnect_grace_min_ms >= 100,
            "limits.disconnect_grace_min_ms must be at least 100",
        );
        need(
            self.call_max_ms >= 100,
            "limits.call_max_ms must be at least 100",
        );
        let message_bytes_max = u64::try_from(self.message_bytes_max).unwrap_or(u64::MAX);
        need(
            self.connection_bytes_max >= message_bytes_max.saturating_mul(2),
            "limits.connection_bytes_max must be at least twice limits.message_bytes_max",
        );
        need(
            self.bytes_in_flight_max >= self.connection_bytes_max,
            "limits.bytes_in_flight_max must be at least limits.connection_bytes_max",
        );
        need(
            self.answer_max_ms >= 100,
            "limits.answer_max_ms must be at least 100",
        );
        for (name, value) in [
            ("owner_bytes_max", self.owner_bytes_max),
            ("reason_bytes_max", self.reason_bytes_max),
            ("entries_per_key_max", self.entries_per_key_max),
            ("ended_per_key_max", self.ended_per_key_max),
            ("lock_refs_per_session_max", self.lock_refs_per_session_max),
            ("lock_refs_per_renewal_max", self.lock_refs_per_renewal_max),
            ("sessions_max", self.sessions_max),
            ("active_keys_max", self.active_keys_max),
            ("calls_per_key_max", self.calls_per_key_max),
            (
                "critical_calls_per_lock_ref_max",
                self.critical_calls_per_lock_ref_max,
            ),
            ("waits_per_lock_ref_max", self.waits_per_lock_ref_max),
            ("connections_max", self.connections_max),
            ("listings_max", self.listings_max),
            ("page_size_max", self.page_size_max),
        ] {
            need(value >= 1, &format!("limits.{name} must be at least 1"));
        }
        need(
            (1..=STREAMS_PER_CONNECTION_MAX).contains(&self.streams_per_connection_max),
            "limits.streams_per_connection_max must be 1 to 16384",
        );
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }
}
