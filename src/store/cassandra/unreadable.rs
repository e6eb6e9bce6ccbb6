//! Rows that listings leave out.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often it is said that a row cannot be read.
const SAID_EVERY: Duration = Duration::from_secs(60);

/// Rows that could not be read, and when that was said last.
#[derive(Debug, Default)]
pub(super) struct Unreadable {
    said: Mutex<Option<Instant>>,
}

impl Unreadable {
    /// A row is left out for this. Listings are made all the time: said once a minute.
    pub(super) fn note(&self, what: &str) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.is_none_or(|at| at.elapsed() >= SAID_EVERY) {
            *said = Some(Instant::now());
            tracing::warn!(what, "a row cannot be read; it is left out of listings");
        }
    }
}
