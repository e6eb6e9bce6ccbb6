//! The messages of the contract as JSON: names as in the contract; spans, times and enums as in protobuf's JSON; 64-bit numbers as
//! numbers; absent messages as null.

use bytes::Bytes;
use fermata_proto as proto;
use serde_json::{Value, json};

fn text_of(shown: Option<impl ToString>) -> Option<String> {
    shown.map(|shown| shown.to_string())
}

fn state(number: i32) -> &'static str {
    proto::LockState::try_from(number)
        .unwrap_or(proto::LockState::Unspecified)
        .as_str_name()
}

/// One entry.
pub fn entry(entry: &proto::QueueEntry) -> Value {
    let mode = proto::LockMode::try_from(entry.mode).unwrap_or(proto::LockMode::Unspecified);
    json!({
        "name": entry.name,
        "seq": entry.seq,
        "state": state(entry.state),
        "mode": mode.as_str_name(),
        "fencing_token": entry.fencing_token,
        "session_id": entry.session_id,
        "ttl": text_of(entry.ttl),
        "lease_left": text_of(entry.lease_left),
        "create_time": text_of(entry.create_time),
        "owner": entry.owner,
        "identity": entry.identity,
        "home": entry.home,
        "durable": entry.durable,
    })
}

/// ListLocksResponse, all pages in one.
pub fn locks(locks: &[proto::LockSummary]) -> Value {
    let locks: Vec<Value> = locks
        .iter()
        .map(|lock| {
            json!({
                "table": lock.table,
                "key": lock.key,
                "holder": lock.holder.as_ref().map(entry),
                "waiters": lock.waiters,
            })
        })
        .collect();
    json!({ "locks": locks })
}

/// ListSessionsResponse, all pages in one.
pub fn sessions(sessions: &[proto::SessionInfo]) -> Value {
    let sessions = sessions.iter().map(|session| {
        json!({
            "session_id": session.session_id,
            "ttl": text_of(session.ttl),
            "lease_left": text_of(session.lease_left),
            "lock_refs": session.lock_refs,
            "replica": session.replica,
            "owner": session.owner,
            "identity": session.identity,
            "create_time": text_of(session.create_time),
            "disconnect_grace": text_of(session.disconnect_grace),
        })
    });
    json!({ "sessions": sessions.collect::<Vec<_>>() })
}

/// DescribeLockResponse, all pages in one.
pub fn described(lock: &proto::DescribeLockResponse) -> Value {
    let ended: Vec<Value> = lock.ended.iter().map(ended_entry).collect();
    json!({
        "table": lock.table,
        "key": lock.key,
        "holders": lock.holders.iter().map(entry).collect::<Vec<_>>(),
        "waiters": lock.waiters.iter().map(entry).collect::<Vec<_>>(),
        "waiter_count": lock.waiter_count,
        "unsynced": lock.unsynced,
        "last_fencing_token": lock.last_fencing_token,
        "ended": ended,
        "from_row": lock.from_row,
        "home": lock.home.as_ref().map(key_home),
        "protocol": lock.protocol,
        "unfenced": lock.unfenced,
        "unordered": lock.unordered,
    })
}

fn key_home(home: &proto::KeyHome) -> Value {
    json!({
        "replica": home.replica,
        "address": home.address,
        "term": home.term,
    })
}

fn ended_entry(ended: &proto::EndedEntry) -> Value {
    let reason = proto::EndReason::try_from(ended.reason).unwrap_or(proto::EndReason::Unspecified);
    json!({
        "name": ended.name,
        "seq": ended.seq,
        "reason": reason.as_str_name(),
        "ended_by": ended.ended_by,
        "detail": ended.detail,
    })
}

/// DescribeActivityResponse.
pub fn activity(replicas: &[proto::ReplicaActivity]) -> Value {
    json!({ "replicas": replicas.iter().map(replica_activity).collect::<Vec<_>>() })
}

fn replica_activity(activity: &proto::ReplicaActivity) -> Value {
    let replica = activity.replica.as_ref().map(|info| {
        json!({
            "replica": info.replica,
            "address": info.address,
            "version": info.version,
            "start_time": text_of(info.start_time),
            "answering": info.answering,
        })
    });
    let grants = activity.grants.map(|grants| {
        json!({
            "at_once": grants.at_once,
            "after_change": grants.after_change,
        })
    });
    let store = activity.store.map(|store| {
        json!({
            "reads": store.reads,
            "writes": store.writes,
            "transactions": store.transactions,
            "changes": store.changes,
            "conflicts": store.conflicts,
        })
    });
    let as_home = activity.as_home.map(|counts| {
        json!({
            "volatile_grants": counts.volatile_grants,
            "durable_grants": counts.durable_grants,
            "background_commits": counts.background_commits,
            "commits_in_doubt": counts.commits_in_doubt,
            "take_overs": counts.take_overs,
            "received_keys": counts.received_keys,
            "hand_overs": counts.hand_overs,
            "forgotten_keys": counts.forgotten_keys,
        })
    });
    let keys = activity.busiest_keys.iter().map(|key| {
        json!({
            "table": key.table,
            "key": key.key,
            "owner": key.owner,
            "identity": key.identity,
            "waiters": key.waiters,
            "last_minute": key.last_minute.as_ref().map(turns),
            "held_for": text_of(key.held_for),
        })
    });
    json!({
        "replica": replica,
        "answered": activity.answered,
        "sessions": activity.sessions,
        "keys": activity.keys,
        "grants": grants,
        "last_minute": activity.last_minute.as_ref().map(turns),
        "store": store,
        "busiest_keys": keys.collect::<Vec<_>>(),
        "resident_bytes": activity.resident_bytes,
        "as_home": as_home,
    })
}

fn turns(turns: &proto::Turns) -> Value {
    json!({
        "count": turns.count,
        "mean_wait": text_of(turns.mean_wait),
        "longest_wait": text_of(turns.longest_wait),
    })
}

/// A value: as text if it is UTF-8 (else null), and as base64; both null without a value.
pub fn value(value: Option<&Bytes>) -> Value {
    json!({
        "exists": value.is_some(),
        "value": value.and_then(|bytes| std::str::from_utf8(bytes).ok()),
        "value_base64": value.map(|bytes| base64(bytes)),
    })
}

const BASE64: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Standard base64, padded.
fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = [0, 1, 2].map(|at| u32::from(chunk.get(at).copied().unwrap_or(0)));
        let bits = (group[0] << 16) | (group[1] << 8) | group[2];
        for at in 0..4 {
            if at <= chunk.len() {
                let digit = (bits >> (18 - 6 * at)) & 63;
                text.push(char::from(BASE64.as_bytes()[digit as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_the_standard_one() {
        for (plain, encoded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(plain.as_bytes()), encoded);
        }
        assert_eq!(base64(&[0xff, 0xfe]), "//4=");
    }

    #[test]
    fn a_value_that_is_no_text_is_told_from_none() {
        let binary = Bytes::from_static(&[0xff]);
        assert_eq!(value(Some(&binary))["value"], Value::Null);
        assert_eq!(value(Some(&binary))["exists"], json!(true));
        assert_eq!(value(None)["value_base64"], Value::Null);
        assert_eq!(value(None)["exists"], json!(false));
    }
}
