//! How far away the nodes are.

use std::time::Duration;

/// The fastest of so many is remembered, and of those since.
pub(crate) const FASTEST_OF: usize = 1_024;

/// How long the fastest answer took lately: none waited behind others less.
#[derive(Debug, Default)]
pub(crate) struct Fastest {
    before: Option<Duration>,
    now: Option<Duration>,
    answers: usize,
}

impl Fastest {
    /// One more answer.
    pub fn note(&mut self, after: Duration) {
        self.now = Some(self.now.map_or(after, |fastest| fastest.min(after)));
        self.answers += 1;
        if self.answers == FASTEST_OF {
            self.answers = 0;
            self.before = self.now.take();
        }
    }

    /// That of the fastest lately; `None` before the first.
    pub fn so_far(&self) -> Option<Duration> {
        self.before.into_iter().chain(self.now).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_is_forgotten_when_the_nodes_are_farther_than_they_were() {
        let mut fastest = Fastest::default();
        fastest.note(Duration::from_millis(5));
        for _ in 0..2 * FASTEST_OF {
            fastest.note(Duration::from_millis(200));
        }
        assert_eq!(fastest.so_far(), Some(Duration::from_millis(200)));
    }
}
