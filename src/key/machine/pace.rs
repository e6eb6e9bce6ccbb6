//! The number of recent holders. The same number of waiters may be granted the key before the next commit (H5).

use std::time::Duration;

use crate::session::Observed;

/// Ends of holders, counted by spans of time.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Pace {
    /// The beginning of the present span, and the ends in it.
    present: Option<(Observed, usize)>,
    /// Ends in the span directly before.
    before: usize,
}

impl Pace {
    /// Forgets spans that no longer count.
    pub fn forget(&mut self, now: Observed, span: Duration) {
        if let Some((began, _)) = self.present
            && now.since(began) >= span * 2
        {
            *self = Pace::default();
        }
    }

    /// A holder ended.
    pub fn ended(&mut self, now: Observed, span: Duration) {
        match &mut self.present {
            Some((began, ended)) if now.since(*began) < span => *ended += 1,
            Some((began, ended)) => {
                let is_next = now.since(*began) < span * 2;
                self.before = if is_next { *ended } else { 0 };
                self.present = Some((now, 1));
            }
            None => self.present = Some((now, 1)),
        }
    }

    /// Grants allowed ahead of the row: the ends within a span, at least one.
    pub fn volatile(&self, now: Observed, span: Duration) -> usize {
        let lately = match self.present {
            Some((began, ended)) if now.since(began) < span => ended.max(self.before),
            Some((began, ended)) if now.since(began) < span * 2 => ended,
            Some(_) | None => 0,
        };
        lately.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Observer;

    const SPAN: Duration = Duration::from_millis(100);

    fn at(ms: u64) -> Observed {
        Observer::new(Duration::MAX).observe(Duration::from_millis(ms))
    }

    #[test]
    fn as_many_may_be_granted_ahead_as_ended_within_a_span() {
        let mut pace = Pace::default();
        assert_eq!(pace.volatile(at(0), SPAN), 1);
        for ms in [10, 30, 50] {
            pace.ended(at(ms), SPAN);
        }
        assert_eq!(pace.volatile(at(60), SPAN), 3);
        pace.ended(at(120), SPAN);
        pace.ended(at(125), SPAN);
        // Of the span that began at 120 ms it has seen two; of the one before three.
        assert_eq!(pace.volatile(at(130), SPAN), 3);
        assert_eq!(pace.volatile(at(230), SPAN), 2);
        assert_eq!(pace.volatile(at(1_000), SPAN), 1);
    }
}
