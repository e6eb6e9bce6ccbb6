//! A digest of a whole state, stored beside it. Each load checks it, and so notices rows of different states.
//!
//! XXH3-64 of the fields in a fixed order: integers big-endian, fields without a fixed length behind their length. The digest
//! is the same in every version and on every platform; a change of it needs a new format of the rows.

use std::hash::Hasher;

use twox_hash::XxHash3_64;
use uuid::Uuid;

use crate::key::{Entry, Home, KeyState, Reserved};
use crate::lock::{EndReason, EndedEntry, Liveness, Mode, Tag};

struct Fields(XxHash3_64);

impl Fields {
    fn u8(&mut self, number: u8) {
        self.0.write(&[number]);
    }

    fn u32(&mut self, number: u32) {
        self.0.write(&number.to_be_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.0.write(&number.to_be_bytes());
    }

    fn uuid(&mut self, id: Uuid) {
        self.0.write(id.as_bytes());
    }

    fn tag(&mut self, tag: Tag) {
        self.0.write(&tag.bytes());
    }

    fn count(&mut self, count: usize) {
        self.u64(count as u64);
    }

    fn text(&mut self, text: &str) {
        self.count(text.len());
        self.0.write(text.as_bytes());
    }

    fn entry(&mut self, entry: &Entry) {
        let Entry {
            seq,
            mode,
            tag,
            liveness,
            identity,
            owner,
            created_at_ms,
        } = entry;
        self.u64(seq.0);
        self.u8(match mode {
            Mode::Exclusive => 1,
        });
        self.tag(*tag);
        match liveness {
            Liveness::Own { ttl_ms } => {
                self.u8(1);
                self.u32(*ttl_ms);
            }
            Liveness::Session(session) => {
                self.u8(2);
                self.uuid(session.0);
            }
        }
        self.text(identity);
        self.text(owner);
        self.u64(created_at_ms.cast_unsigned());
    }

    fn ended(&mut self, entry: &EndedEntry) {
        let EndedEntry { seq, tag, reason } = entry;
        self.u64(seq.0);
        self.tag(*tag);
        match reason {
            EndReason::Expired => self.u8(1),
            EndReason::SessionClosed => self.u8(2),
            EndReason::Unclaimed => self.u8(3),
            EndReason::Forced { by, why } => {
                self.u8(4);
                self.text(by);
                self.text(why);
            }
        }
    }
}

/// The digest of everything in a state.
pub(super) fn of(state: &KeyState) -> u64 {
    // Named one by one: what a state gains must be covered.
    let KeyState {
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
        entries,
        ended,
    } = state;
    let Reserved {
        seq_end,
        fence_end,
        volatile_end,
    } = reserved;
    let mut fields = Fields(XxHash3_64::new());
    fields.u64(*version);
    match home {
        None => fields.u8(0),
        Some(Home { replica, term }) => {
            fields.u8(1);
            fields.uuid(replica.0);
            fields.u64(*term);
        }
    }
    fields.u64(next.0);
    fields.u64(grant.0);
    fields.u64(fence.0);
    fields.u32(*width);
    fields.u8(u8::from(*unsynced));
    fields.u64(seq_end.0);
    fields.u64(*fence_end);
    fields.u64(volatile_end.0);
    match kept {
        None => fields.u8(0),
        Some(seq) => {
            fields.u8(1);
            fields.u64(seq.0);
        }
    }
    fields.u32(*first_left_ms);
    fields.count(entries.len());
    for entry in entries {
        fields.entry(entry);
    }
    fields.u64(ended.complete_from.0);
    fields.count(ended.entries.len());
    for entry in &ended.entries {
        fields.ended(entry);
    }
    // What was written before there were such ends has the digest that it had.
    if !ended.unknown.is_empty() {
        fields.u64(ended.unknown.start.0);
        fields.u64(ended.unknown.end.0);
    }
    fields.0.finish()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::lock::{Ended, Fence, ReplicaId, Seq, SessionId};
    use crate::store::tests::chance::any_state;

    fn state() -> KeyState {
        let entry = |seq, liveness| {
            Arc::new(Entry {
                seq: Seq(seq),
                mode: Mode::Exclusive,
                tag: Tag::from_bits(11),
                liveness,
                identity: "who".into(),
                owner: "wörker".into(),
                created_at_ms: -1,
            })
        };
        let reasons = [
            EndReason::Expired,
            EndReason::SessionClosed,
            EndReason::Unclaimed,
            EndReason::Forced {
                by: "a".into(),
                why: "b".into(),
            },
        ];
        let ends = (1..).zip(reasons).map(|(seq, reason)| EndedEntry {
            seq: Seq(seq),
            tag: Tag::from_bits(seq.into()),
            reason,
        });
        KeyState {
            version: 7,
            home: Some(Home {
                replica: ReplicaId(Uuid::from_u128(12)),
                term: 3,
            }),
            next: Seq(9),
            grant: Fence(8_000),
            fence: Fence(9_000),
            width: 16,
            unsynced: true,
            reserved: Reserved {
                seq_end: Seq(4_105),
                fence_end: 10_000,
                volatile_end: Seq(7),
            },
            kept: Some(Seq(6)),
            first_left_ms: 800,
            entries: [
                entry(6, Liveness::Own { ttl_ms: 5_000 }),
                entry(8, Liveness::Session(SessionId(Uuid::from_u128(13)))),
            ]
            .into(),
            ended: Ended {
                entries: ends.collect(),
                complete_from: Seq(1),
                unknown: Seq(0)..Seq(0),
            },
        }
    }

    /// Stored digests must still be right: if this fails, the format of the rows has to change.
    #[test]
    fn the_digest_of_a_state_stays_what_it_is() {
        assert_eq!(of(&state()), 3_868_247_268_419_522_295);
        assert_eq!(of(&KeyState::default()), 18_131_118_241_793_104_788);
    }

    #[test]
    fn each_part_of_a_state_is_covered() {
        let changes: [fn(&mut KeyState); 19] = [
            |s| s.version += 1,
            |s| s.home = None,
            |s| s.home.as_mut().unwrap().replica = ReplicaId(Uuid::nil()),
            |s| s.home.as_mut().unwrap().term += 1,
            |s| s.next.0 += 1,
            |s| s.grant.0 += 1,
            |s| s.fence.0 -= 1_000,
            |s| s.width += 1,
            |s| s.unsynced = false,
            |s| drop(s.entries.pop_back()),
            |s| s.reserved.seq_end.0 += 1,
            |s| s.reserved.fence_end += 1,
            |s| s.reserved.volatile_end.0 += 1,
            |s| s.kept = None,
            |s| s.first_left_ms += 1,
            |s| Arc::make_mut(&mut s.entries[0]).liveness = Liveness::Own { ttl_ms: 1 },
            |s| drop(s.ended.entries.pop_front()),
            |s| s.ended.complete_from.0 += 1,
            |s| s.ended.unknown = Seq(7)..Seq(8),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut changed = state();
            change(&mut changed);
            assert_ne!(of(&changed), of(&state()), "{number}");
        }
    }

    proptest! {
        #[test]
        fn two_states_that_differ_have_different_digests(one in any_state(), other in any_state()) {
            prop_assert_eq!(of(&one) == of(&other), one == other);
        }
    }
}
