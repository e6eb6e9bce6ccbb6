//! The zones that a key is used from (H8).

use std::time::Duration;

use super::time::nanos;

/// The surplus of calls from another zone that moves a key there: those of eight sections.
const CALLS_MIN: u8 = 32;
/// The shortest stay of a key at a new home.
const STAYS_AT_LEAST: Duration = Duration::from_secs(1);
/// The shortest stay of a key that was fetched from a home that cannot be called from here.
const STAYS_FOR: Duration = Duration::from_secs(60);

/// The other zone that a key may move to, by Boyer and Moore's vote: a call from there counts for it, a call from elsewhere
/// against it. So a zone with most of the calls gets the key, and one with half of them or less seldom does.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Users {
    zone: Option<Box<str>>,
    /// The surplus of calls from there.
    calls: u8,
    /// The term of these calls.
    term: u64,
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
    #[prost(uint64, tag = "4")]
    term: u64,
}

impl Users {
    /// `None` without any calls.
    pub fn to_packed(&self) -> Option<PackedUsers> {
        (*self != Users::default()).then(|| PackedUsers {
            zone: self.zone.as_deref().map(str::to_owned),
            calls: self.calls.into(),
            stays_until: nanos(self.stays_until),
            term: self.term,
        })
    }

    /// The unpacked form.
    pub fn of_packed(packed: PackedUsers) -> Users {
        Users {
            zone: packed.zone.map(String::into_boxed_str),
            calls: u8::try_from(packed.calls).unwrap_or(u8::MAX),
            stays_until: Duration::from_nanos(packed.stays_until),
            term: packed.term,
        }
    }

    /// Notes a call from this zone that was served `here` in this term.
    pub fn note(&mut self, zone: &str, here: &str, term: u64, now: Duration) {
        if self.term != term {
            self.forget();
            self.term = term;
            self.stays_until = self.stays_until.max(now.saturating_add(STAYS_AT_LEAST));
        }
        if self.zone.as_deref() == Some(zone) {
            self.calls = self.calls.saturating_add(1).min(CALLS_MIN);
        } else if self.calls > 0 {
            self.calls -= 1;
        } else if zone != here {
            self.zone = Some(zone.into());
            self.calls = 1;
        }
    }

    /// Forgets the origins of calls.
    pub fn forget(&mut self) {
        (self.zone, self.calls) = (None, 0);
    }

    /// Notes that the key was fetched from a home that cannot be called from here.
    pub fn fetched(&mut self, now: Duration) {
        self.stays_until = now.saturating_add(STAYS_FOR);
    }

    /// The zone that the key moves to once it is idle.
    pub fn wanted_in(&self, now: Duration) -> Option<&str> {
        let zone = self.zone.as_deref();
        zone.filter(|_| self.calls >= CALLS_MIN && now >= self.stays_until)
    }
}

#[cfg(test)]
mod tests;
