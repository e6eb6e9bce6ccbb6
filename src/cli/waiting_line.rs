//! What is said of a wait while it lasts.

use std::io::{self, IsTerminal};
use std::time::Duration;

use fermata_client::{Moment, Progress, ServerError};
use fermata_command::output::{moves_cursor, one_line};

use super::aside::Aside;

/// A line at least this often where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(30);

/// How the wait goes, for people: one line that changes on a terminal, else a new line now and then.
pub(super) struct Line<'a> {
    key: String,
    start: Moment,
    aside: &'a Aside,
    /// Whether stderr is a terminal that can show a line that changes.
    changes: bool,
    /// Who holds the key, as far as that may be seen.
    pub holder: Option<String>,
    /// Without a terminal: which position was said last, whether a server answered then, and when.
    said: Option<((u32, bool), Moment)>,
}

impl<'a> Line<'a> {
    pub fn new((key, aside): (&str, &'a Aside), start: Moment) -> Line<'a> {
        Line {
            key: one_line(key),
            start,
            aside,
            // One that cannot move its cursor gets a new line now and then, as a file does.
            changes: io::stderr().is_terminal() && moves_cursor(),
            holder: None,
            said: None,
        }
    }

    /// `failed`: the wait does not come through.
    pub fn show(&mut self, reported: Progress, now: Moment, failed: Option<ServerError>) {
        let silent = failed.map(|why| one_line(&why.to_string()));
        let others = match &silent {
            Some(why) => Others::Unseen(why),
            None => Others::Seen(self.holder.as_deref()),
        };
        let text = words(&self.key, reported, self.start.until(now), others);
        if self.changes {
            self.aside.show(text);
            return;
        }
        let seen = (reported.position, silent.is_none());
        let due = self
            .said
            .is_none_or(|(said, at)| said != seen || at.until(now) >= LINE_EVERY);
        if due {
            self.said = Some((seen, now));
            self.aside.say(text);
        }
    }

    /// What comes next on the terminal comes where this was.
    pub async fn end(self) {
        if self.changes {
            self.aside.clear().await;
        }
    }
}

/// What is known of who has the key.
enum Others<'a> {
    /// Who holds it, as far as that may be seen.
    Seen(Option<&'a str>),
    /// No server answers, for this reason.
    Unseen(&'a str),
}

/// What is told while a wait has taken `waited`. An estimate counts down from when it was told, and is
/// left out once it has run out.
fn words(key: &str, reported: Progress, waited: Duration, others: Others<'_>) -> String {
    let ahead = match reported.position {
        0 => "next in the queue".to_owned(),
        position => format!("{position} ahead in the queue"),
    };
    let held = match others {
        Others::Seen(None) => String::new(),
        Others::Seen(Some(holder)) => format!(", held by {holder}"),
        Others::Unseen(why) => {
            let waited = waited.as_secs();
            return format!(
                "waiting for {key}: {waited} s, {ahead} when a server answered last; trying again: {why}"
            );
        }
    };
    let since_reported = waited.saturating_sub(reported.waited);
    let left = reported.estimate.map_or(0, |estimate| {
        estimate.saturating_sub(since_reported).as_secs()
    });
    let waited = waited.as_secs();
    match left {
        0 => format!("waiting for {key}: {waited} s, {ahead}{held}"),
        left => {
            format!("waiting for {key}: {waited} s, about {left} s to go, {ahead}{held}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn reported(position: u32, estimate: Option<Duration>, waited_ms: u64) -> Progress {
        Progress {
            position,
            estimate,
            waited: ms(waited_ms),
        }
    }

    #[test]
    fn the_line_tells_the_entry_and_the_time() {
        assert_eq!(
            words(
                "orders-42",
                reported(2, None, 0),
                ms(12_900),
                Others::Seen(Some("billing@host-7"))
            ),
            "waiting for orders-42: 12 s, 2 ahead in the queue, held by billing@host-7"
        );
        assert_eq!(
            words("a", reported(0, None, 0), ms(0), Others::Seen(None)),
            "waiting for a: 0 s, next in the queue"
        );
        assert_eq!(
            words(
                "a",
                reported(1, Some(ms(9_000)), 0),
                ms(2_000),
                Others::Unseen("gone")
            ),
            "waiting for a: 2 s, 1 ahead in the queue when a server answered last; trying again: gone"
        );
    }

    #[test]
    fn the_line_counts_the_estimate_down_from_when_it_was_told() {
        let reported = reported(2, Some(ms(16_500)), 10_000);
        assert_eq!(
            words("a", reported, ms(12_400), Others::Seen(None)),
            "waiting for a: 12 s, about 14 s to go, 2 ahead in the queue"
        );
        assert_eq!(
            words("a", reported, ms(60_000), Others::Seen(None)),
            "waiting for a: 60 s, 2 ahead in the queue"
        );
    }
}
