//! From where a key is used (H8).

/// After so many calls in a row from one other zone a key moves there.
const CALLS_MIN: u8 = 16;

/// From which other zone the calls of a key came lately.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Users {
    zone: Option<Box<str>>,
    calls: u8,
}

impl Users {
    /// A call was served `here` that came from this zone.
    pub fn note(&mut self, zone: &str, here: &str) {
        if zone == here {
            *self = Users::default();
        } else if self.zone.as_deref() == Some(zone) {
            self.calls = self.calls.saturating_add(1);
        } else {
            self.zone = Some(zone.into());
            self.calls = 1;
        }
    }

    /// Where the key is to move once it is idle.
    pub fn wanted_in(&self) -> Option<&str> {
        let zone = self.zone.as_deref();
        zone.filter(|_| self.calls >= CALLS_MIN)
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
        users.wanted_in().map(str::to_owned)
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
}
