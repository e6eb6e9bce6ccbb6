//! The zones that a key is used from (H8).

use std::time::Duration;

use super::time::nanos;

/// A key moves to another zone once so many more calls came from there than from elsewhere: those of eight sections.
const CALLS_MIN: u8 = 32;
/// For so long a key stays where it came to.
const STAYS_AT_LEAST: Duration = Duration::from_secs(1);
/// For so long a key stays that was fetched from a home that cannot be called from here.
const STAYS_FOR: Duration = Duration::from_secs(60);

/// The other zone that a key may move to, by Boyer and Moore's vote: each call from there counts for it, and each from elsewhere
/// against it. So a zone that has most of the calls gets the key, though others call between; who has half of them or
/// less, seldom.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Users {
    zone: Option<Box<str>>,
    /// How many calls came from there beyond those from elsewhere.
    calls: u8,
    /// In which term these calls came.
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
    /// `None` where nothing is known.
    pub fn to_packed(&self) -> Option<PackedUsers> {
        (*self != Users::default()).then(|| PackedUsers {
            zone: self.zone.as_deref().map(str::to_owned),
            calls: self.calls.into(),
            stays_until: nanos(self.stays_until),
            term: self.term,
        })
    }

    /// What was packed.
    pub fn of_packed(packed: PackedUsers) -> Users {
        Users {
            zone: packed.zone.map(String::into_boxed_str),
            calls: u8::try_from(packed.calls).unwrap_or(u8::MAX),
            stays_until: Duration::from_nanos(packed.stays_until),
            term: packed.term,
        }
    }

    /// A call was served `here`, in this term, that came from this zone.
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
mod tests;
