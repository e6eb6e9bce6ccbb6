//! The wait for a lock on the command line: progress goes to stderr, and a signal releases the entry.

use std::convert::Infallible;
use std::time::Duration;

use fermata_client::{
    Client, LockGuard, LockRequest, Moment, Progress, QueueEntry, ServerError, SessionRequest,
    WaitError, WaitFailure, public_part,
};
use fermata_command::output::{one_line, say};
use fermata_command::remote::{LOCK_REF_VARIABLE, LOOK_EVERY, variable};
use fermata_command::{Failure, Span, exit};
use tokio::sync::watch;
use tokio::time::timeout;

use super::leaving::give_up;
use super::signals::{Signals, finish_after};

/// The longest interval between two reports of a wait. A new position, or the loss of the server, is reported at once.
const REPORTED_EVERY: Duration = Duration::from_secs(30);

/// The options for taking a lock.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Taking the lock")]
pub struct LockFlags {
    /// Exit with 75 if the lock is held
    #[arg(short = 'n', long = "try", alias = "nonblock", conflicts_with = "wait")]
    pub once: bool,

    /// Wait this long, then exit with 124
    #[arg(short = 'w', long, value_name = "SPAN", value_parser = span_or_seconds)]
    pub wait: Option<Span>,

    /// Exit with N when --try or --wait gets no lock
    #[arg(short = 'E', long, value_name = "N")]
    pub conflict_exit_code: Option<u8>,

    /// Print nothing about the wait
    #[arg(short = 'q', long)]
    pub quiet: bool,

    /// Lifetime of the lock without renewal
    #[arg(long, value_name = "SPAN")]
    pub ttl: Option<Span>,

    /// Lifetime of the lock once its connection ends
    #[arg(long, value_name = "SPAN")]
    pub disconnect_grace: Option<Span>,

    /// Label of the holder (default: user@host)
    #[arg(long, value_name = "TEXT")]
    pub owner: Option<String>,
}

/// A span, or seconds as `flock` has them.
fn span_or_seconds(text: &str) -> Result<Span, String> {
    let span = seconds(text).or_else(|| text.parse().ok());
    span.ok_or_else(|| {
        format!(
            "{text:?} is not a span of time; write seconds, or numbers with units: 1.5, 500ms, 1m30s"
        )
    })
}

/// `30`, or `1.5`.
fn seconds(text: &str) -> Option<Span> {
    if !text
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.')
    {
        return None;
    }
    let seconds: f64 = text.parse().ok()?;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .map(Span::from_duration)
}

impl LockFlags {
    /// With this default TTL.
    #[must_use]
    pub fn or_ttl(self, ttl: Duration) -> LockFlags {
        LockFlags {
            ttl: self.ttl.or(Some(Span::from_duration(ttl))),
            ..self
        }
    }

    /// Takes an entry; with --disconnect-grace in a session of its own.
    async fn enqueue(
        &self,
        client: &Client,
        table: &str,
        key: &str,
    ) -> Result<QueueEntry, Failure> {
        let owner = self.owner.clone();
        let owner = owner.unwrap_or_else(fermata_command::remote::who);
        let ttl = self.ttl.map(Span::duration);
        let request = LockRequest::new(key).table(table).owner(owner.clone());
        let Some(grace) = self.disconnect_grace else {
            let request = match ttl {
                Some(ttl) => request.ttl(ttl),
                None => request,
            };
            return Ok(client.enqueue(request).await?);
        };
        let mut opening = SessionRequest::new()
            .disconnect_grace(grace.duration())
            .owner(owner);
        if let Some(ttl) = ttl {
            opening = opening.ttl(ttl);
        }
        let session = client.open_session(opening).await?;
        Ok(session.enqueue(request).await?)
    }

    fn limit(&self) -> Option<Duration> {
        match self.once {
            true => Some(Duration::ZERO),
            false => self.wait.map(Span::duration),
        }
    }

    /// The failure of a wait that is over.
    async fn conflict(
        &self,
        awaited: &AwaitedKey<'_>,
        position: u32,
        silent: Option<ServerError>,
    ) -> Failure {
        let status = match self.wait {
            None => exit::TEMPORARY,
            Some(_) => exit::TIMED_OUT,
        };
        let status = self.conflict_exit_code.unwrap_or(status);
        if self.quiet {
            return Failure::new(status, "");
        }
        let key = awaited.key;
        let message = match (self.wait, silent) {
            (Some(wait), Some(why)) => format!(
                "{key} was not locked within {wait} (--wait; {position} ahead when a server answered last): {why}"
            ),
            (wait, _) => {
                let holder = awaited.holder().await;
                let holder = holder.unwrap_or_else(|| "others".to_owned());
                let still = wait.map_or_else(String::new, |wait| format!(" after {wait} (--wait)"));
                format!("{key} is locked by {holder}{still}; {position} ahead in the queue")
            }
        };
        Failure::new(status, message)
    }

    /// Takes the lock, or releases its entry in the queue.
    pub async fn lock(
        &self,
        client: &Client,
        table: &str,
        key: &str,
        signals: &mut Signals,
    ) -> Result<LockGuard, Failure> {
        let end = self.limit().map(|limit| client.clock().now().after(limit));
        let mut entry = take_entry(self.enqueue(client, table, key), key, signals).await?;
        let awaited = AwaitedKey {
            client,
            table,
            key,
            failing: entry.wait_failure(),
        };
        let limit = end.map(|end| client.clock().now().until(end));
        let is_reported = limit != Some(Duration::ZERO) && !self.quiet;
        let (report, reports) = watch::channel(None);
        let waiting = entry.wait_with(limit, |progress| {
            report.send_replace(Some(progress));
        });
        let waited = tokio::select! {
            biased;
            waited = waiting => waited,
            signal = signals.next_end() => {
                let is_released = finish_after(signal, give_up(entry)).await == Ok(true);
                let words = format!("{signal} while waiting for {key}; {}", what_became(is_released));
                return Err(Failure::signal(signal, words));
            }
            never = awaited.report(reports), if is_reported => match never {},
        };
        let error = match waited {
            Ok(guard) => return Ok(guard),
            Err(error) => error,
        };
        let is_released = signals.finish_soon(give_up(entry)).await == Ok(true);
        if !is_released {
            say(what_became(false));
        }
        Err(match error {
            WaitError::TimedOut { position } => {
                let silent = awaited.failing.get();
                self.conflict(&awaited, position, silent).await
            }
            error => Failure::from(error),
        })
    }
}

/// The fate of a released entry, in words.
fn what_became(is_released: bool) -> &'static str {
    match is_released {
        true => "the queue entry is released",
        false => "the queue entry could not be released, and expires by itself",
    }
}

/// Takes an entry. After a signal it is released as soon as the server has named it.
async fn take_entry(
    creating: impl Future<Output = Result<QueueEntry, Failure>>,
    key: &str,
    signals: &mut Signals,
) -> Result<QueueEntry, Failure> {
    tokio::pin!(creating);
    let signal = tokio::select! {
        created = &mut creating => return created,
        signal = signals.next_end() => signal,
    };
    let giving_up = async { Ok::<_, Failure>(give_up(creating.await?).await) };
    let left = match finish_after(signal, giving_up).await {
        Ok(Ok(is_released)) => what_became(is_released),
        Ok(Err(_)) => "no queue entry was made, or it expires by itself",
        Err(_) => "no server answered: if a queue entry was made, it expires by itself",
    };
    let what = format!("{signal} while joining the queue of {key}; {left}");
    Err(Failure::signal(signal, what))
}

/// A key with a wait.
struct AwaitedKey<'a> {
    client: &'a Client,
    table: &'a str,
    key: &'a str,
    /// Why no server answers the wait, if none does.
    failing: WaitFailure,
}

impl AwaitedKey<'_> {
    /// Reports the wait on stderr while polled.
    async fn report(&self, mut reports: watch::Receiver<Option<Progress>>) -> Infallible {
        let start = self.client.clock().now();
        let mut reported: Option<((u32, bool), Moment)> = None;
        loop {
            // The loss of a server is no change of these.
            let _ = timeout(LOOK_EVERY, reports.changed()).await;
            let Some(progress) = *reports.borrow_and_update() else {
                continue;
            };
            let (now, silent) = (self.client.clock().now(), self.failing.get());
            let news = (progress.position, silent.is_some());
            let is_due = reported
                .is_none_or(|(before, at)| before != news || at.until(now) >= REPORTED_EVERY);
            if !is_due {
                continue;
            }
            let others = match silent {
                Some(why) => format!(" when a server answered last; trying again: {why}"),
                None => match self.holder().await {
                    Some(holder) => format!(", held by {holder}"),
                    None => String::new(),
                },
            };
            let waited = start.until(now);
            say(&waiting_words(self.key, progress, waited, &others));
            reported = Some((news, now));
        }
    }

    /// The holder of the key, if this client may see it.
    async fn holder(&self) -> Option<String> {
        let described = self.client.describe_lock(self.table, self.key, 1);
        let lock = timeout(LOOK_EVERY, described).await.ok()?.ok()?;
        let holder = lock.holders.into_iter().next()?;
        let outer = variable(LOCK_REF_VARIABLE);
        if outer.is_some_and(|outer| public_part(&outer) == holder.name) {
            return Some(format!(
                "the lock that this command runs under ({LOCK_REF_VARIABLE})"
            ));
        }
        (!holder.owner.is_empty()).then(|| one_line(&holder.owner))
    }
}

/// A line about a wait of `waited` so far. An estimate counts down from its arrival.
fn waiting_words(key: &str, reported: Progress, waited: Duration, others: &str) -> String {
    let ahead = match reported.position {
        0 => "next in the queue".to_owned(),
        position => format!("{position} ahead in the queue"),
    };
    let since_reported = waited.saturating_sub(reported.waited);
    let left = reported.estimate.map_or(0, |estimate| {
        estimate.saturating_sub(since_reported).as_secs()
    });
    let left = match left {
        0 => String::new(),
        left => format!("about {left} s to go, "),
    };
    let waited = waited.as_secs();
    format!("waiting for {key}: {waited} s, {left}{ahead}{others}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_wait_is_given_as_flock_has_it_or_with_units() {
        for (text, waits) in [
            ("0", ms(0)),
            ("30", ms(30_000)),
            ("1.5", ms(1_500)),
            (".25", ms(250)),
            ("300ms", ms(300)),
            ("1m30s", ms(90_000)),
        ] {
            let span = span_or_seconds(text).map(Span::duration);
            assert_eq!(span, Ok(waits), "{text}");
        }
        for text in ["", ".", "1.2.3", "-1", "1e3", "inf", "1.5s", "30x"] {
            let said = span_or_seconds(text).unwrap_err();
            assert!(said.contains("write seconds"), "{said}");
        }
    }

    #[test]
    fn a_report_tells_the_position_the_time_and_what_is_left_of_an_estimate() {
        let reported = |position, estimate| Progress {
            position,
            estimate,
            waited: ms(10_000),
        };
        for (position, estimate, waited, others, words) in [
            (
                2,
                None,
                12_900,
                ", held by a@b",
                "12 s, 2 ahead in the queue, held by a@b",
            ),
            (0, None, 0, "", "0 s, next in the queue"),
            (
                2,
                Some(ms(16_500)),
                12_400,
                "",
                "12 s, about 14 s to go, 2 ahead in the queue",
            ),
            (
                2,
                Some(ms(16_500)),
                60_000,
                "",
                "60 s, 2 ahead in the queue",
            ),
        ] {
            let said = waiting_words("k", reported(position, estimate), ms(waited), others);
            assert_eq!(said, format!("waiting for k: {words}"));
        }
    }
}
