//! What a replica may say of the leases it keeps: its heartbeats in the store keep valid them.

use std::collections::VecDeque;
use std::time::Duration;

/// How many gaps are remembered, of lengths that fall from the oldest to the latest: of heartbeats in time a dozen.
const GAPS_MAX: usize = 64;

/// 90 % of a span: what is left is for clock rates that differ.
fn most(span: Duration) -> Duration {
    span / 10 * 9
}

/// A time in which others may have seen no heartbeat: from when one was sent to when the next one was acknowledged,
/// since they need not see that before.
#[derive(Clone, Copy, Debug)]
struct Gap {
    from: Duration,
    to: Duration,
}

impl Gap {
    fn length(&self) -> Duration {
        self.to.saturating_sub(self.from)
    }
}

/// The heartbeats of one replica, as far as its store acknowledged them. All times are of its own CLOCK_BOOTTIME.
///
/// Others may end what it keeps valid once they saw no heartbeat of it for a TTL. They cannot have seen that before a
/// TTL has passed since it sent a heartbeat that was acknowledged, nor before a TTL since the swap was sent that made
/// or took over the entry (or session) at its present epoch.
#[derive(Clone, Debug)]
pub struct Validity {
    /// When the last acknowledged heartbeat was sent; `None` for a replica that has its store alone.
    sent: Option<Duration>,
    replica_ttl: Duration,
    fenced: bool,
    gaps: VecDeque<Gap>,
}

impl Validity {
    /// For a replica that has its store alone: nobody else can end what it keeps.
    pub fn alone() -> Self {
        Validity {
            sent: None,
            replica_ttl: Duration::MAX,
            fenced: false,
            gaps: VecDeque::new(),
        }
    }

    /// For a replica whose first heartbeat was sent then, and that others take for down after this replica TTL.
    pub fn shared(sent: Duration, replica_ttl: Duration) -> Self {
        Validity {
            sent: Some(sent),
            replica_ttl,
            fenced: false,
            gaps: VecDeque::new(),
        }
    }

    /// A heartbeat that was sent then was acknowledged, now.
    pub fn acknowledged(&mut self, sent: Duration, now: Duration) {
        let Some(last) = self.sent else { return };
        if sent <= last || self.is_fenced(now) {
            return;
        }
        self.note_gap(Gap {
            from: last,
            to: now,
        });
        self.sent = Some(sent);
    }

    /// A gap that is no longer than a later one says nothing that this does not say, whatever is asked. So only
    /// those are kept that are longer than all later ones.
    fn note_gap(&mut self, gap: Gap) {
        while self.gaps.back().is_some_and(|b| b.length() <= gap.length()) {
            self.gaps.pop_back();
        }
        if self.gaps.len() >= GAPS_MAX
            && let Some(oldest) = self.gaps.pop_front()
            && let Some(next) = self.gaps.front_mut()
        {
            // One that says what both say, and hardly more: as long as the longer, as late as the later.
            next.from = next.to.saturating_sub(oldest.length());
        }
        self.gaps.push_back(gap);
    }

    /// How long a client may be told that it is safe, from `now`, where its lease was renewed now, has this TTL,
    /// and the swap that gave it its epoch was sent at `since`. `None` where others may have seen enough to end
    /// it: then it needs a new epoch first.
    pub fn valid_for(&self, ttl: Duration, since: Duration, now: Duration) -> Option<Duration> {
        let Some(sent) = self.sent else {
            return Some(ttl);
        };
        let silent = |gap: &Gap| gap.to.saturating_sub(gap.from.max(since)) > most(ttl);
        if self.gaps.iter().any(silent) {
            return None;
        }
        let silence = now.saturating_sub(sent.max(since));
        (silence <= most(ttl)).then(|| ttl - silence)
    }

    /// Until when this replica is alive, the moment included, unless another heartbeat is acknowledged.
    pub fn alive_until(&self) -> Duration {
        let sent = self
            .sent
            .map(|sent| sent.saturating_add(most(self.replica_ttl)));
        sent.unwrap_or(Duration::MAX)
    }

    /// Whether this replica is fenced for good: others may take it for down soon. No heartbeat brings it back.
    pub fn is_fenced(&mut self, now: Duration) -> bool {
        self.fenced |= now > self.alive_until();
        self.fenced
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn shared(sent: u64) -> Validity {
        Validity::shared(s(sent), s(1_000))
    }

    fn heartbeat(validity: &mut Validity, at: u64) {
        validity.acknowledged(s(at), s(at));
    }

    #[test]
    fn a_client_is_safe_for_its_ttl_counted_from_the_last_acknowledged_heartbeat() {
        let mut validity = shared(10);
        assert_eq!(validity.valid_for(s(10), s(0), s(12)), Some(s(8)));
        heartbeat(&mut validity, 13);
        assert_eq!(validity.valid_for(s(10), s(0), s(13)), Some(s(10)));
        // Late news of an earlier one change nothing.
        heartbeat(&mut validity, 11);
        assert_eq!(validity.valid_for(s(10), s(0), s(13)), Some(s(10)));
    }

    #[test]
    fn an_entry_that_is_younger_than_the_last_heartbeat_counts_from_its_own_swap() {
        let validity = shared(10);
        assert_eq!(validity.valid_for(s(5), s(14), s(15)), Some(s(4)));
        assert_eq!(validity.valid_for(s(5), s(9), s(15)), None);
    }

    #[test]
    fn what_lived_through_a_silence_of_its_ttl_needs_a_new_epoch() {
        let mut validity = shared(10);
        heartbeat(&mut validity, 20);
        assert_eq!(validity.valid_for(s(10), s(9), s(20)), None);
        assert_eq!(validity.valid_for(s(12), s(9), s(20)), Some(s(12)));
        // Made half way: nobody saw more than 5 s of silence.
        assert_eq!(validity.valid_for(s(10), s(15), s(20)), Some(s(10)));
        // Its new epoch.
        assert_eq!(validity.valid_for(s(10), s(20), s(20)), Some(s(10)));
    }

    #[test]
    fn a_silence_lasts_until_the_next_heartbeat_is_acknowledged() {
        let mut validity = shared(10);
        // By then others may have seen none for 11 s.
        validity.acknowledged(s(17), s(21));
        assert_eq!(validity.valid_for(s(10), s(9), s(21)), None);
        assert_eq!(validity.valid_for(s(13), s(9), s(21)), Some(s(9)));
        assert_eq!(validity.valid_for(s(10), s(13), s(21)), Some(s(6)));
    }

    #[test]
    fn gaps_are_forgotten_only_for_longer_ones() {
        let mut validity = shared(0);
        heartbeat(&mut validity, 30);
        for n in 1..200 {
            heartbeat(&mut validity, 30 + n);
        }
        assert_eq!(validity.valid_for(s(30), s(0), s(229)), None);
        assert_eq!(validity.valid_for(s(30), s(31), s(229)), Some(s(30)));
        // Each shorter than the one before: all are kept, until there are too many.
        let mut at = 229;
        for length in (2..200).rev() {
            at += length;
            heartbeat(&mut validity, at);
        }
        assert!(validity.gaps.len() <= GAPS_MAX);
        assert_eq!(validity.valid_for(s(200), s(0), s(at)), None);
        assert_eq!(validity.valid_for(s(3), s(at - 6), s(at)), None);
        assert_eq!(validity.valid_for(s(3), s(at - 2), s(at)), Some(s(3)));
    }

    #[test]
    fn heartbeats_in_time_never_put_a_lease_in_doubt_however_many() {
        let mut validity = shared(0);
        // Each some milliseconds later than it should be.
        let mut at = Duration::ZERO;
        for n in 1..10_000_u64 {
            at += Duration::from_millis(1_000 + n * 7_919 % 41);
            validity.acknowledged(at, at);
            assert_eq!(
                validity.valid_for(s(5), s(0), at),
                Some(s(5)),
                "heartbeat {n}"
            );
        }
        assert!(validity.gaps.len() <= GAPS_MAX);
    }

    #[test]
    fn a_replica_is_down_before_anybody_may_think_so() {
        let late = s(109) + Duration::from_millis(1);
        let validity = || Validity::shared(s(100), s(10));
        assert!(!validity().is_fenced(s(109)));
        assert!(validity().is_fenced(late));
        // Sent in time, and acknowledged too late.
        let mut sleeper = validity();
        sleeper.acknowledged(s(101), late);
        assert!(sleeper.is_fenced(s(101)), "for good");
        assert!(!Validity::alone().is_fenced(s(1_000_000)));
    }
}
