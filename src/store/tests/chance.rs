//! States by chance, for the tests of every store: whole ones, as the core makes them or not.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use uuid::Uuid;

use crate::key::{Entry, Home, KeyState, Reserved};
use crate::lock::{
    EndReason, Ended, EndedEntry, Fence, Liveness, Mode, ReplicaId, Seq, SessionId, Tag,
};

fn label() -> impl Strategy<Value = Box<str>> {
    "[^\\p{Cc}]{0,12}".prop_map(String::into_boxed_str)
}

prop_compose! {
    fn any_entry()(
        tag in any::<u128>(),
        session in proptest::option::of(any::<u128>()),
        ttl_ms in any::<u32>(),
        identity in label(),
        owner in label(),
        created_at_ms in any::<i64>(),
    ) -> Entry {
        let session = session.map(|id| Liveness::Session(SessionId(Uuid::from_u128(id))));
        Entry {
            seq: Seq::FIRST,
            mode: Mode::Exclusive,
            tag: Tag::from_bits(tag),
            liveness: session.unwrap_or(Liveness::Own { ttl_ms }),
            identity,
            owner,
            created_at_ms,
        }
    }
}

fn any_end() -> impl Strategy<Value = (u128, EndReason)> {
    let reason = prop_oneof![
        Just(EndReason::Expired),
        Just(EndReason::SessionClosed),
        Just(EndReason::Unclaimed),
        (label(), label()).prop_map(|(by, why)| EndReason::Forced { by, why }),
    ];
    (any::<u128>(), reason)
}

/// Its replica and term.
fn any_home() -> impl Strategy<Value = (u128, u64)> {
    (any::<u128>(), 1..=i64::MAX as u64)
}

/// How far ahead of the row something is reserved: not at all, by as much as a home does, or by much more.
fn any_ahead() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 1..5_000_u64, 1..1_u64 << 40]
}

prop_compose! {
    /// A state that is whole. Between its entries are gaps of some, of many, and of very many that have ended.
    pub(in crate::store) fn any_state()(
        version in 1..=i64::MAX as u64,
        below in 0..1_000_u64,
        drawn in prop::collection::vec(
            (prop_oneof![1..3_u64, 60..70_u64, 1..1_u64 << 40], any_entry()),
            0..5,
        ),
        above in prop_oneof![0..3_u64, 60..70_u64, 0..1_u64 << 40],
        ends in prop::collection::btree_map(any::<u64>(), any_end(), 0..4),
        fence in 1..1_u64 << 62,
        earlier in 0..1_000_u64,
        width in any::<u32>(),
        unsynced in any::<bool>(),
        (complete_from, unknown_from) in any::<(u64, u64)>(),
        (home, idle_home) in (any_home(), any::<bool>()),
        (seq_ahead, fence_ahead, volatile_end) in (any_ahead(), any_ahead(), any_ahead()),
        (has_grant, is_kept, first_left_ms) in any::<(bool, bool, u32)>(),
    ) -> KeyState {
        let mut last = below;
        let mut entries = Vec::new();
        for (gap, entry) in drawn {
            last += gap;
            entries.push(Arc::new(Entry { seq: Seq(last), ..entry }));
        }
        let next = last + 1 + above;
        let holder = entries.first().filter(|_| has_grant).map(|entry| entry.seq);
        let grant = match holder {
            None => Fence::NONE,
            Some(_) => Fence(fence.saturating_sub(earlier).max(1)),
        };
        // Only a key without a queue may have no home.
        let home = (idle_home || !entries.is_empty()).then(|| Home {
            replica: ReplicaId(Uuid::from_u128(home.0)),
            term: home.1,
        });
        let ended: BTreeMap<u64, (u128, EndReason)> =
            ends.into_iter().map(|(at, end)| (at % next, end)).collect();
        let has_ended = |seq: u64| seq > 0 && entries.iter().all(|entry| entry.seq.0 != seq);
        KeyState {
            version,
            home,
            next: Seq(next),
            grant,
            fence: Fence(fence),
            width,
            unsynced,
            reserved: Reserved {
                seq_end: Seq(next + seq_ahead),
                fence_end: fence + u64::from(width) + fence_ahead,
                volatile_end: Seq(volatile_end),
            },
            kept: holder.filter(|_| is_kept),
            first_left_ms,
            ended: Ended {
                entries: ended
                    .into_iter()
                    .filter(|(seq, _)| has_ended(*seq))
                    .map(|(seq, (tag, reason))| EndedEntry {
                        seq: Seq(seq),
                        tag: Tag::from_bits(tag),
                        reason,
                    })
                    .collect(),
                complete_from: Seq((complete_from % next).max(1)),
                unknown: Seq(unknown_from % next)..Seq(unknown_from % next + (next - unknown_from % next) / 2),
            },
            entries: entries.into(),
        }
    }
}
