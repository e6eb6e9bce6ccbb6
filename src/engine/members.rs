//! The replicas of one service, as this one sees them: who sends heartbeats, who is down, who should serve which key.
//!
//! One observer, on its own clock (I9): a replica is down once it said so, or once no new heartbeat of it was seen
//! for a replica TTL: that which it announced, since it answers until 90 % of that has passed, or the observer's own
//! if that is longer. However long the rows could not be read, that counts as one interval between two reads at most:
//! replicas that could not be seen may not have been able to write heartbeats either.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::peers::{Peer, Presence};
use crate::lock::{KeyId, ReplicaId};
use crate::store::ReplicaRow;

/// The longest interval between two good looks that counts in full: that of a read which took as long as one may, and
/// the pause after it. Of a longer one, in which looks failed or the observer slept, so much counts. It is not left
/// out, or nobody would ever be down where only some looks come through.
const READS_APART_MAX: Duration = Duration::from_millis(2_500);
/// How many ids of entries are kept of which no row was found.
const UNKNOWN_MAX: usize = 10_000;

/// A moment of the observer's: how much time it could see in so far.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct ObservedTime(Duration);

struct Member {
    row: ReplicaRow,
    /// When the present heartbeat was first seen.
    changed: ObservedTime,
}

#[derive(Default)]
struct Table {
    members: BTreeMap<ReplicaId, Member>,
    /// Ids met in entries that no row was found of: since when, and the read that was the latest then.
    unknown: BTreeMap<ReplicaId, (ObservedTime, u64)>,
    /// How many reads were begun.
    reads: u64,
    /// The latest read of which the answer is here.
    seen: u64,
    /// When that was begun.
    last: Option<Duration>,
    observed: ObservedTime,
}

/// The replicas of one service.
pub(super) struct Members {
    me: ReplicaId,
    ttl: Duration,
    table: Mutex<Table>,
}

/// A read of the rows that was begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct MembershipRead {
    number: u64,
    begun: Duration,
}

impl Members {
    pub fn new(me: ReplicaId, ttl: Duration) -> Self {
        Members {
            me,
            ttl,
            table: Mutex::default(),
        }
    }

    /// How long another one must be silent to be down.
    fn ttl_of(&self, member: &Member) -> Duration {
        self.ttl
            .max(Duration::from_millis(member.row.ttl_ms.into()))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A read begins; `now` is CLOCK_BOOTTIME.
    pub fn begin_read(&self, now: Duration) -> MembershipRead {
        let mut table = self.table();
        table.reads += 1;
        MembershipRead {
            number: table.reads,
            begun: now,
        }
    }

    /// What a read showed. One that was overtaken by a later one counts for nothing.
    pub fn saw(&self, read: MembershipRead, now: Duration, rows: Vec<ReplicaRow>) {
        let mut table = self.table();
        if read.number <= table.seen {
            return;
        }
        table.seen = read.number;
        // Silence ends where this read began; a change is counted from where its answer came.
        table.observed = table.moment(read.begun);
        table.last = Some(read.begun);
        let came = table.moment(now);
        let mut before = std::mem::take(&mut table.members);
        for row in rows {
            let known = before.remove(&row.id);
            let changed = match known {
                Some(known) if known.row.heartbeat == row.heartbeat => known.changed,
                Some(_) | None => came,
            };
            table.unknown.remove(&row.id);
            table.members.insert(row.id, Member { row, changed });
        }
    }

    /// The present moment of this observer; `now` is CLOCK_BOOTTIME. What is first seen at it has been silent for no
    /// longer than later reads count: the time since the latest one was begun is not counted again.
    pub fn observed(&self, now: Duration) -> ObservedTime {
        self.table().moment(now)
    }

    /// The time since the latest read was begun, of which nobody can say whether it was silent.
    pub fn unseen(&self, now: Duration) -> Duration {
        let last = self.table().last;
        last.map_or(Duration::ZERO, |last| now.saturating_sub(last))
    }

    /// For how long nothing was learned of a replica, of what was seen since `since`.
    pub fn silence(&self, id: ReplicaId, since: ObservedTime) -> Duration {
        let mut table = self.table();
        let observed = table.observed;
        let from = match table.members.get(&id) {
            Some(member) => member.changed.max(since),
            None => match table.missing_since(id) {
                Some(missing) => missing.max(since),
                None => observed,
            },
        };
        observed.0.saturating_sub(from.0)
    }

    /// What is known of a replica.
    pub fn presence(&self, id: ReplicaId) -> Presence {
        if id == self.me {
            return Presence::Local;
        }
        let mut table = self.table();
        let observed = table.observed;
        match table.members.get(&id) {
            Some(member) if member.row.stopped => Presence::Down,
            Some(member) if member.silent(observed) >= self.ttl_of(member) => Presence::Down,
            Some(member) => Presence::Live(peer(&member.row)),
            // Replicas announce themselves before they serve, and are forgotten only when long down.
            None => match table.missing_since(id) {
                Some(_) => Presence::Down,
                None => Presence::Unsure,
            },
        }
    }

    /// The replica that should serve a key: of the live ones that with the highest hash of both.
    pub fn affinity(&self, key: &KeyId) -> Presence {
        let table = self.table();
        let observed = table.observed;
        let key = hash_of(key);
        let mut best = (rank(key, self.me), None);
        for member in table.members.values() {
            // One that missed heartbeats is not the first choice, long before it is down.
            let silent = member.silent(observed) >= self.ttl_of(member) / 3;
            if member.row.id == self.me || member.row.stopped || silent {
                continue;
            }
            best = best.max_by_rank(rank(key, member.row.id), &member.row);
        }
        match best.1 {
            None => Presence::Local,
            Some(row) => Presence::Live(peer(row)),
        }
    }

    /// The others that live.
    pub fn peers(&self) -> Vec<Peer> {
        let ids: Vec<ReplicaId> = self.table().members.keys().copied().collect();
        let live = ids.into_iter().filter_map(|id| match self.presence(id) {
            Presence::Live(peer) => Some(peer),
            Presence::Local | Presence::Down | Presence::Unsure => None,
        });
        live.collect()
    }

    /// Replicas of which nothing was heard for this long, and twice what it takes to be down.
    pub fn silent_for(&self, span: Duration) -> Vec<ReplicaId> {
        let table = self.table();
        let observed = table.observed;
        let silent =
            |member: &&Member| member.silent(observed) >= span.max(self.ttl_of(member) * 2);
        let silent = table.members.values().filter(silent);
        silent.map(|member| member.row.id).collect()
    }
}

impl Member {
    /// For how long no new heartbeat was seen.
    fn silent(&self, observed: ObservedTime) -> Duration {
        observed.0.saturating_sub(self.changed.0)
    }
}

impl Table {
    /// A moment after the latest look: as far as the next good look can count, if that begins then.
    fn moment(&self, now: Duration) -> ObservedTime {
        let since = self
            .last
            .map_or(Duration::ZERO, |last| now.saturating_sub(last));
        ObservedTime(self.observed.0 + since.min(READS_APART_MAX))
    }

    /// Since when it is known that a replica has no row; `None` while the rows were not read since its id was
    /// first met.
    fn missing_since(&mut self, id: ReplicaId) -> Option<ObservedTime> {
        if self.unknown.len() >= UNKNOWN_MAX {
            self.unknown.clear();
        }
        let met = (self.observed, self.reads);
        let (since, read) = *self.unknown.entry(id).or_insert(met);
        (self.seen > read).then_some(since)
    }
}

trait Best<'a> {
    fn max_by_rank(self, rank: (u64, ReplicaId), row: &'a ReplicaRow) -> Self;
}

impl<'a> Best<'a> for ((u64, ReplicaId), Option<&'a ReplicaRow>) {
    fn max_by_rank(self, rank: (u64, ReplicaId), row: &'a ReplicaRow) -> Self {
        if rank > self.0 {
            (rank, Some(row))
        } else {
            self
        }
    }
}

fn peer(row: &ReplicaRow) -> Peer {
    Peer {
        id: row.id,
        address: row.peer_address.clone(),
    }
}

/// The same in every process (FNV-1a; its constants are the published ones).
fn hash_of(key: &KeyId) -> u64 {
    let table = key.table.as_str().bytes();
    let bytes = table.chain([0]).chain(key.key.as_str().bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// How much a replica is the one for a key (rendezvous hashing; mixed as splitmix64 does).
fn rank(key: u64, replica: ReplicaId) -> (u64, ReplicaId) {
    let (high, low) = replica.0.as_u64_pair();
    let mut mixed = key ^ high ^ low.rotate_left(32);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31), replica)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::lock::{Key, TableName};

    const TTL: Duration = Duration::from_secs(10);

    fn id(number: u128) -> ReplicaId {
        ReplicaId(Uuid::from_u128(number))
    }

    fn row(number: u128, heartbeat: u64) -> ReplicaRow {
        ReplicaRow {
            id: id(number),
            address: String::new(),
            peer_address: format!("127.0.0.{number}:1"),
            version: String::new(),
            started_at_ms: 0,
            ttl_ms: 10_000,
            heartbeat,
            stopped: false,
        }
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn is_live(members: &Members, number: u128) -> bool {
        matches!(members.presence(id(number)), Presence::Live(_))
    }

    /// Looks each second from `from` on, `times` times.
    fn reads(members: &Members, from: u64, times: u64, heartbeat: impl Fn(u64) -> u64) {
        reads_of(members, from, times, |n| row(2, heartbeat(n)));
    }

    fn reads_of(members: &Members, from: u64, times: u64, row: impl Fn(u64) -> ReplicaRow) {
        for n in from..from + times {
            let read = members.begin_read(ms(n * 1_000));
            members.saw(read, ms(n * 1_000), vec![row(n)]);
        }
    }

    #[test]
    fn one_that_sends_no_heartbeat_for_the_ttl_is_down_and_not_before() {
        let members = Members::new(id(1), TTL);
        reads(&members, 0, 10, |_| 5);
        assert!(is_live(&members, 2));
        reads(&members, 10, 1, |_| 5);
        assert_eq!(members.presence(id(2)), Presence::Down);
        reads(&members, 11, 1, |_| 6);
        assert!(is_live(&members, 2), "it sends heartbeats again");
    }

    #[test]
    fn one_with_another_ttl_is_waited_for_by_the_longer_one() {
        for (own, announced) in [(2, 30), (30, 2)] {
            let members = Members::new(id(1), Duration::from_secs(own));
            let silent = |_| ReplicaRow {
                ttl_ms: announced * 1_000,
                ..row(2, 5)
            };
            reads_of(&members, 0, 30, silent);
            assert!(is_live(&members, 2), "{own} {announced}");
            reads_of(&members, 30, 1, silent);
            assert_eq!(members.presence(id(2)), Presence::Down);
        }
    }

    #[test]
    fn time_in_which_nothing_could_be_read_counts_as_one_interval_at_most() {
        let members = Members::new(id(1), TTL);
        reads(&members, 0, 3, |_| 5);
        reads(&members, 60, 6, |_| 5);
        assert!(is_live(&members, 2));
        assert_eq!(members.silence(id(2), ObservedTime::default()), ms(9_500));
        reads(&members, 66, 1, |_| 5);
        assert_eq!(members.presence(id(2)), Presence::Down);
    }

    #[test]
    fn a_slow_read_counts_its_silence_from_its_answer_and_to_its_begin() {
        let members = Members::new(id(1), TTL);
        let read = members.begin_read(ms(0));
        members.saw(read, ms(2_000), vec![row(2, 1)]);
        let read = members.begin_read(ms(2_400));
        members.saw(read, ms(2_400), vec![row(2, 1)]);
        assert_eq!(members.silence(id(2), ObservedTime::default()), ms(400));
    }

    #[test]
    fn an_unknown_one_is_down_only_after_a_read_that_was_begun_later() {
        let members = Members::new(id(1), TTL);
        let early = members.begin_read(ms(0));
        assert_eq!(members.presence(id(9)), Presence::Unsure);
        members.saw(early, ms(1), vec![]);
        assert_eq!(members.presence(id(9)), Presence::Unsure);
        let later = members.begin_read(ms(2));
        members.saw(later, ms(3), vec![]);
        assert_eq!(members.presence(id(9)), Presence::Down);
    }

    #[test]
    fn what_is_first_seen_between_two_reads_is_silent_from_then_on_only() {
        let members = Members::new(id(1), TTL);
        reads(&members, 0, 3, |_| 5);
        let seen = members.observed(ms(2_900));
        reads(&members, 3, 1, |_| 5);
        assert_eq!(members.silence(id(2), seen), ms(100));
    }

    #[test]
    fn what_is_first_seen_while_looks_fail_is_silent_from_the_next_good_look_on() {
        let members = Members::new(id(1), TTL);
        reads(&members, 0, 3, |_| 5);
        let seen = members.observed(ms(60_000));
        reads(&members, 61, 6, |_| 5);
        assert_eq!(members.silence(id(2), seen), ms(5_000));
    }

    #[test]
    fn a_heartbeat_whose_answer_came_very_late_is_followed_by_no_more_than_the_ttl() {
        let members = Members::new(id(1), TTL);
        // The observer was suspended while it waited for the answer.
        let read = members.begin_read(ms(0));
        members.saw(read, ms(60_000), vec![row(2, 5)]);
        reads(&members, 61, 11, |_| 5);
        assert_eq!(members.presence(id(2)), Presence::Down);
    }

    #[test]
    fn a_replica_is_down_in_bounded_time_however_many_looks_fail_between_two_good_ones() {
        let members = Members::new(id(1), TTL);
        for n in 0..5 {
            let read = members.begin_read(ms(n * 5_000));
            members.saw(read, ms(n * 5_000), vec![row(2, 5)]);
        }
        assert_eq!(members.presence(id(2)), Presence::Down);
    }

    #[test]
    fn one_that_stopped_is_down_at_once() {
        let members = Members::new(id(1), TTL);
        let read = members.begin_read(ms(0));
        let stopped = ReplicaRow {
            stopped: true,
            ..row(2, 7)
        };
        members.saw(read, ms(0), vec![stopped]);
        assert_eq!(members.presence(id(2)), Presence::Down);
    }

    #[test]
    fn keys_are_spread_and_all_replicas_agree() {
        let rows = || (1..=3).map(|n| row(n, 1)).collect::<Vec<_>>();
        let all: Vec<Members> = (1..=3).map(|n| Members::new(id(n), TTL)).collect();
        for members in &all {
            let read = members.begin_read(ms(0));
            members.saw(read, ms(0), rows());
        }
        let mut served = BTreeMap::<ReplicaId, u32>::new();
        for n in 0..3_000 {
            let key = KeyId {
                table: TableName::default_table(),
                key: Key::parse(&format!("orders-{n}"), 99).unwrap(),
            };
            let chosen: Vec<ReplicaId> = all
                .iter()
                .map(|members| match members.affinity(&key) {
                    Presence::Live(peer) => peer.id,
                    _ => members.me,
                })
                .collect();
            assert!(chosen.iter().all(|id| *id == chosen[0]));
            *served.entry(chosen[0]).or_default() += 1;
        }
        assert!(
            served.values().all(|n| (800..1_200).contains(n)),
            "{served:?}"
        );
    }
}
