//! From where a key is used (H8).

use std::time::Duration;

use super::time::nanos;

/// After so many calls in a row from one other zone a key moves there.
const CALLS_MIN: u8 = 16;
/// For so long a key stays that was fetched from a home that cannot be called from here.
const STAYS_FOR: Duration = Duration::from_secs(60);

/// From which other zone the calls of a key came lately.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Users {
    zone: Option<Box<str>>,
    calls: u8,
    /// By CLOCK_BOOTTIME.
    stays_until: Duration,
}

/// Users in few bytes.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct PackedUsers {
    #[prost(string, optional, tag = "1")]
    zone: Option<String>,
    #[prost(uint32, tag = "2")]
    calls: u32,
    /// In nanoseconds.
    #[prost(uint64, tag = "3")]
    stays_until: u64,
}

impl Users {
    /// `None` where nothing is known.
    pub fn to_packed(&self) -> Option<PackedUsers> {
        (*self != Users::default()).then(|| PackedUsers {
            zone: self.zone.as_deref().map(str::to_owned),
            calls: self.calls.into(),
            stays_until: nanos(self.stays_until),
        })
    }

    /// What was packed.
    pub fn of_packed(packed: PackedUsers) -> Users {
        Users {
            zone: packed.zone.map(String::into_boxed_str),
            calls: u8::try_from(packed.calls).unwrap_or(u8::MAX),
            stays_until: Duration::from_nanos(packed.stays_until),
        }
    }

    /// A call was served `here` that came from this zone.
    pub fn note(&mut self, zone: &str, here: &str) {
        if zone == here {
            self.forget();
        } else if self.zone.as_deref() == Some(zone) {
            self.calls = self.calls.saturating_add(1);
        } else {
            self.zone = Some(zone.into());
            self.calls = 1;
        }
    }

    /// Forgets from where calls came.
    pub fn forget(&mut self) {
        (self.zone, self.calls) = (None, 0);
    }

    /// The key was fetched from a home that cannot be called from here.
    pub fn fetched(&mut self, now: Duration) {
        self.stays_until = now.saturating_add(STAYS_FOR);
    }

    /// Where the key is to move once it is idle.
    pub fn wanted_in(&self, now: Duration) -> Option<&str> {
        let zone = self.zone.as_deref();
        zone.filter(|_| self.calls >= CALLS_MIN && now >= self.stays_until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(zones: &[(&str, usize)]) -> Option<String> {
        let mut users = Users::default();
        for (zone, calls) in zones {
            for _ in 0..*calls {
                users.note(zone, "here");
            }
        }
        users.wanted_in(Duration::ZERO).map(str::to_owned)
    }

    #[test]
    fn a_key_is_wanted_where_sixteen_calls_in_a_row_came_from() {
        assert_eq!(after(&[("west", 15)]), None);
        assert_eq!(after(&[("west", 16)]).as_deref(), Some("west"));
        assert_eq!(after(&[("west", 1_000)]).as_deref(), Some("west"));
    }

    #[test]
    fn a_key_that_several_zones_want_stays() {
        assert_eq!(after(&[("west", 15), ("east", 1), ("west", 15)]), None);
        assert_eq!(after(&[("west", 15), ("here", 1), ("west", 15)]), None);
    }

    #[test]
    fn a_key_that_had_to_be_fetched_stays_for_a_while() {
        let mut users = Users::default();
        let fetched = Duration::from_secs(100);
        users.fetched(fetched);
        for _ in 0..100 {
            users.note("west", "here");
        }
        assert_eq!(users.wanted_in(fetched + STAYS_FOR / 2), None);
        assert_eq!(users.wanted_in(fetched + STAYS_FOR), Some("west"));
    }
}
