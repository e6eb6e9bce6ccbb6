//! Counts of the last minute.

use std::time::Duration;

/// The length of a slot.
const SLOT: Duration = Duration::from_secs(10);
/// The shortest time of observation for an estimate.
const WATCHED_MIN: Duration = Duration::from_secs(1);
/// The slots of a minute.
const SLOTS: usize = 6;

/// Turns in a span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// The number of turns.
    pub count: u64,
    /// The sum of their waits.
    pub waited: Duration,
    /// The longest wait.
    pub longest: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct TimeSlot {
    /// The number of the slot, counted from the start of the clock.
    number: u64,
    turns: u32,
    waited_ms: u64,
    longest_ms: u64,
}

/// Turns in slots of [`SLOT`]. Slots older than a minute are overwritten. All times are of one clock.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Minute {
    slots: [TimeSlot; SLOTS],
    /// The start of the notes.
    since: Option<Duration>,
    /// The notes began with a turn.
    began_with_turn: bool,
}

fn number(now: Duration) -> u64 {
    now.as_secs() / SLOT.as_secs()
}

fn ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

impl Minute {
    /// Begins to note turns, unless it did before.
    pub fn watch(&mut self, now: Duration) {
        self.since.get_or_insert(now);
    }

    /// Notes a turn after this wait.
    pub fn turn(&mut self, now: Duration, waited: Duration) {
        self.began_with_turn |= self.since.is_none();
        self.watch(now);
        let number = number(now);
        let slot = &mut self.slots[number as usize % SLOTS];
        if slot.number != number {
            *slot = TimeSlot {
                number,
                ..TimeSlot::default()
            };
        }
        slot.turns = slot.turns.saturating_add(1);
        slot.waited_ms = slot.waited_ms.saturating_add(ms(waited));
        slot.longest_ms = slot.longest_ms.max(ms(waited));
    }

    fn of_last_minute(&self, now: Duration) -> impl Iterator<Item = &TimeSlot> {
        let number = number(now);
        let first = number.saturating_sub(SLOTS as u64 - 1);
        self.slots
            .iter()
            .filter(move |slot| slot.turns > 0 && (first..=number).contains(&slot.number))
    }

    /// The turns of the last minute, or up to [`SLOT`] less of it.
    pub fn turns(&self, now: Duration) -> Turns {
        let mut turns = Turns::default();
        let mut longest_ms = 0;
        for slot in self.of_last_minute(now) {
            turns.count += u64::from(slot.turns);
            turns.waited = turns
                .waited
                .saturating_add(Duration::from_millis(slot.waited_ms));
            longest_ms = longest_ms.max(slot.longest_ms);
        }
        turns.longest = Duration::from_millis(longest_ms);
        turns
    }

    /// The mean time from one turn to the next in the last minute; `None` without a turn.
    pub fn between_turns(&self, now: Duration) -> Option<Duration> {
        let turns: u32 = self.of_last_minute(now).map(|slot| slot.turns).sum();
        let first = number(now).saturating_sub(SLOTS as u64 - 1);
        let from = Duration::from_secs(first.saturating_mul(SLOT.as_secs())).max(self.since?);
        // The time before the first turn is unknown.
        let is_whole = self.began_with_turn && self.since == Some(from);
        let count = turns.saturating_sub(u32::from(is_whole));
        let watched = now.saturating_sub(from);
        (count > 0 && watched >= WATCHED_MIN).then(|| watched / count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_turn_counts_for_a_minute() {
        let mut minute = Minute::default();
        minute.turn(s(1_000), s(3));
        minute.turn(s(1_005), s(4));
        let both = Turns {
            count: 2,
            waited: s(7),
            longest: s(4),
        };
        assert_eq!(minute.turns(s(1_005)), both);
        assert_eq!(minute.turns(s(1_059)), both);
        assert_eq!(minute.turns(s(1_060)), Turns::default());
        // A slot is overwritten.
        minute.turn(s(1_061), s(1));
        assert_eq!(minute.turns(s(1_061)).count, 1);
    }

    #[test]
    fn the_mean_time_between_turns_counts_from_when_they_were_looked_at() {
        let mut minute = Minute::default();
        assert_eq!(minute.between_turns(s(1_000)), None);
        minute.watch(s(1_000));
        assert_eq!(minute.between_turns(s(1_004)), None);
        minute.turn(s(1_004), s(0));
        assert_eq!(minute.between_turns(s(1_004)), Some(s(4)));
        minute.turn(s(1_006), s(0));
        assert_eq!(minute.between_turns(s(1_008)), Some(s(4)));
        for at in 1_010..1_200 {
            minute.turn(s(at), s(0));
        }
        let between = minute.between_turns(s(1_199)).unwrap();
        assert!((between.as_secs_f64() - 1.0).abs() < 0.05, "{between:?}");
        // It slows down, and then nothing moves at all.
        assert!(minute.between_turns(s(1_229)).unwrap() > between);
        assert_eq!(minute.between_turns(s(1_300)), None);
    }

    #[test]
    fn a_clock_that_begins_late_or_stands_still_divides_by_nothing() {
        let mut minute = Minute::default();
        minute.turn(Duration::ZERO, Duration::MAX);
        assert_eq!(minute.between_turns(Duration::ZERO), None);
        assert_eq!(minute.turns(Duration::ZERO).count, 1);
    }
}
