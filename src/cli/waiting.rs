//! Waiting for a lock on the command line: it shows how it goes, and a signal releases the entry.

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fermata_client::{
    CallError, Client, CreateError, LockGuard, LockRequest, Progress, QueueEntry, ServerError,
    SessionError, SessionRequest, WaitError, WaitFailure,
};
use fermata_command::output::one_line;
use fermata_command::{Failure, Span, exit};
use nix::sys::signal::Signal;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::aside::Aside;
use super::leaving::Leaving;
use super::signals::{Signals, ends_a_wait};
use super::waiting_line::Line;

/// How often the progress is looked at.
const TICK: Duration = Duration::from_millis(200);
/// Who holds the key is asked this often …
const HOLDER_EVERY: Duration = Duration::from_secs(5);
/// … and is to be said within this.
const HOLDER_WITHIN: Duration = Duration::from_secs(1);

/// More seconds than this are no wait that anybody means, and no time that can be added.
const SECONDS_MAX: Duration = Duration::from_secs(u32::MAX as u64);

/// How to take the lock.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Taking the lock")]
pub struct LockFlags {
    /// Do not wait: exit with 75 if others hold the lock
    #[arg(
        short = 'n',
        long = "try",
        visible_alias = "nonblock",
        conflicts_with = "wait"
    )]
    pub once: bool,

    /// Wait this long at most, then exit with 124; a bare number is seconds, as 1.5. Until a server is reached
    /// --timeout counts instead, with --try as well. (Of flock, --timeout is the same as --wait; here it is
    /// how long a call to the server may take) [default: without end]
    #[arg(short = 'w', long, value_name = "SPAN", value_parser = span_or_seconds)]
    pub wait: Option<Span>,

    /// Exit with this status, and not with 75 or 124, if others hold the lock
    #[arg(short = 'E', long, value_name = "STATUS")]
    pub conflict_exit_code: Option<u8>,

    /// Say nothing while it waits, nor that others hold the lock
    #[arg(short = 'q', long)]
    pub quiet: bool,

    /// The lock lives this long without a renewal from here (sent each third of it, or each 10 s), and some 15 s
    /// longer where this process is stopped, or its machine gone, while the connection stays open
    /// [default: the server's, 30s; of lock 60s]
    #[arg(long, value_name = "SPAN")]
    pub ttl: Option<Span>,

    /// What it is where none is given, and where the server allows as much.
    #[arg(skip)]
    default_ttl: Option<Duration>,

    /// If this process crashes the next one has the lock after this, not only after the TTL: 100ms to the
    /// TTL. In return the lock counts as lost once no server answered for 0.9 of it
    #[arg(long, value_name = "SPAN")]
    pub disconnect_grace: Option<Span>,

    /// A label for people who look at the locks (default: user@host)
    #[arg(long, value_name = "TEXT")]
    pub owner: Option<String>,
}

/// As `flock` takes it as well.
fn span_or_seconds(text: &str) -> Result<Span, String> {
    let span = seconds(text).or_else(|| text.parse().ok());
    span.ok_or_else(|| {
        format!(
            "{text:?} is no span of time; write seconds, or numbers with units: 1.5, 500ms, 1m30s"
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
    let span = Duration::try_from_secs_f64(seconds).ok()?;
    (span <= SECONDS_MAX).then(|| Span::from_duration(span))
}

impl LockFlags {
    /// With this TTL, where none was given; with the server's own where it allows none as long.
    #[must_use]
    pub fn or_ttl(self, ttl: Duration) -> LockFlags {
        LockFlags {
            default_ttl: Some(ttl),
            ..self
        }
    }

    fn asked_ttl(&self) -> Option<Duration> {
        self.ttl.map(Span::duration).or(self.default_ttl)
    }

    /// What to ask the server for.
    pub fn request(&self, table: &str, key: &str) -> LockRequest {
        let request = LockRequest::new(key).table(table).owner(self.owner());
        match self.asked_ttl() {
            // Else it is the session's.
            Some(ttl) if self.disconnect_grace.is_none() => request.ttl(ttl),
            Some(_) | None => request,
        }
    }

    /// Takes an entry; of a server that allows no TTL as long as the default with its own.
    async fn enqueue(
        &self,
        client: &Client,
        table: &str,
        key: &str,
    ) -> Result<QueueEntry, Failure> {
        let taken = self.enqueue_as_asked(client, table, key).await;
        let is_default = self.ttl.is_none() && self.default_ttl.is_some();
        match taken {
            Err(NoEntryTaken { is_of_ttl, .. }) if is_default && is_of_ttl => {
                let with_its_own = LockFlags {
                    default_ttl: None,
                    ..self.clone()
                };
                let taken = with_its_own.enqueue_as_asked(client, table, key).await;
                taken.map_err(|not_taken| not_taken.failure)
            }
            taken => taken.map_err(|not_taken| not_taken.failure),
        }
    }

    /// In a session of its own where it shall live by its connection.
    async fn enqueue_as_asked(
        &self,
        client: &Client,
        table: &str,
        key: &str,
    ) -> Result<QueueEntry, NoEntryTaken> {
        let request = self.request(table, key);
        let Some(grace) = self.disconnect_grace else {
            return Ok(client.enqueue(request).await?);
        };
        let mut opening = SessionRequest::new()
            .disconnect_grace(grace.duration())
            .owner(self.owner());
        if let Some(ttl) = self.asked_ttl() {
            opening = opening.ttl(ttl);
        }
        let session = client.open_session(opening).await?;
        Ok(session.enqueue(request).await?)
    }

    fn owner(&self) -> String {
        self.owner
            .clone()
            .unwrap_or_else(fermata_command::remote::who)
    }

    fn limit(&self) -> Option<Duration> {
        if self.once {
            return Some(Duration::ZERO);
        }
        self.wait.map(Span::duration)
    }

    /// Others hold the lock, and it is not waited for any longer.
    fn conflict(&self, key: &str, position: u32, silent: Option<ServerError>) -> Failure {
        let (status, message) = match (self.wait, silent) {
            (None, _) => (
                exit::TEMPORARY,
                format!("{key} is locked by others ({position} ahead)"),
            ),
            (Some(wait), None) => (
                exit::TIMED_OUT,
                format!("{key} is still locked by others after {wait} (--wait; {position} ahead)"),
            ),
            (Some(wait), Some(why)) => (
                exit::TIMED_OUT,
                format!(
                    "{key} was not locked within {wait} (--wait; {position} ahead when a server answered last): {why}"
                ),
            ),
        };
        let message = if self.quiet { String::new() } else { message };
        Failure::new(self.conflict_exit_code.unwrap_or(status), message)
    }

    /// Takes the lock, or gives its entry in the queue up.
    pub async fn lock(
        &self,
        client: &Client,
        table: &str,
        key: &str,
        signals: &mut Signals,
        aside: &Aside,
    ) -> Result<LockGuard, Failure> {
        let limit = self.limit();
        let end = limit.map(|limit| client.clock().now().after(limit));
        let leaving = Leaving::new(client, key, aside);
        let mut entry = take_entry(self.enqueue(client, table, key), leaving, signals).await?;
        let failing = entry.wait_failure();
        let limit = end.map(|end| client.clock().now().until(end));
        let shown = limit != Some(Duration::ZERO) && !self.quiet;
        let watched = AwaitedKey {
            table,
            key,
            shown,
            aside,
            failing: &failing,
        };
        let waited = wait(client, &mut entry, &watched, limit, signals).await;
        match waited {
            Ok(guard) => Ok(guard),
            Err(Unlocked::Signal(signal)) => {
                let is_released = leaving.give_up(entry, Some(signal), signals).await;
                let what = what_became(is_released);
                let words = format!("{signal} while waiting for {key}; {what}");
                Err(Failure::signal(signal, words))
            }
            Err(Unlocked::Wait(error)) => {
                let failure = match error {
                    WaitError::TimedOut { position } => self.conflict(key, position, failing.get()),
                    error => Failure::from(error),
                };
                if !leaving.give_up(entry, None, signals).await {
                    aside.say(what_became(false).to_owned());
                }
                Err(failure)
            }
        }
    }
}

/// Why no entry was taken.
struct NoEntryTaken {
    failure: Failure,
    /// The server does not allow this TTL.
    is_of_ttl: bool,
}

impl NoEntryTaken {
    fn is_of_ttl(malformed: &ServerError) -> bool {
        malformed.fields.iter().any(|wrong| wrong.field == "ttl")
    }
}

impl From<CreateError> for NoEntryTaken {
    fn from(error: CreateError) -> NoEntryTaken {
        NoEntryTaken {
            is_of_ttl: matches!(&error, CreateError::Invalid(wrong) if NoEntryTaken::is_of_ttl(wrong)),
            failure: error.into(),
        }
    }
}

impl From<SessionError> for NoEntryTaken {
    fn from(error: SessionError) -> NoEntryTaken {
        NoEntryTaken {
            is_of_ttl: matches!(&error, SessionError::Invalid(wrong) if NoEntryTaken::is_of_ttl(wrong)),
            failure: error.into(),
        }
    }
}

/// What became of an entry that was given up.
fn what_became(is_released: bool) -> &'static str {
    match is_released {
        true => "the queue entry is released",
        false => "the queue entry could not be released, and expires by itself",
    }
}

/// Takes an entry. A signal meanwhile gives it back as soon as the server has said which one it is.
async fn take_entry(
    creating: impl Future<Output = Result<QueueEntry, Failure>>,
    leaving: Leaving<'_>,
    signals: &mut Signals,
) -> Result<QueueEntry, Failure> {
    tokio::pin!(creating);
    let signal = loop {
        tokio::select! {
            created = &mut creating => return created,
            signal = signals.next() => if ends_a_wait(signal) {
                break signal;
            },
        }
    };
    let giving_up = async {
        let entry = creating.await?;
        Ok::<_, Failure>(leaving.give_up_unheard(entry, Some(signal)).await)
    };
    let left = match signals.finish_after(signal, giving_up).await {
        Ok(Ok(is_released)) => what_became(is_released),
        Ok(Err(_)) => "no queue entry was made, or it expires by itself",
        Err(_) => "no server answered: if a queue entry was made, it expires by itself",
    };
    let what = format!(
        "{signal} while joining the queue of {}; {left}",
        leaving.key
    );
    Err(Failure::signal(signal, what))
}

/// Why a wait did not end with the lock.
enum Unlocked {
    Signal(Signal),
    Wait(WaitError),
}

/// What is waited for.
struct AwaitedKey<'a> {
    table: &'a str,
    key: &'a str,
    /// Whether it is told how that goes, …
    shown: bool,
    /// … and where.
    aside: &'a Aside,
    /// Why no server answers, where that is so.
    failing: &'a WaitFailure,
}

/// Who holds the key, as far as that is known.
enum HolderName {
    Named(String),
    Unknown,
    /// It may not be seen, and is not asked for again.
    Hidden,
}

/// Who holds the key is on its way to be known.
type Asking = Pin<Box<dyn Future<Output = HolderName> + Send>>;

impl AwaitedKey<'_> {
    /// Asks who holds the key.
    fn ask(&self, client: &Client) -> Asking {
        let (client, table, key) = (client.clone(), self.table.to_owned(), self.key.to_owned());
        Box::pin(async move {
            let described = timeout(HOLDER_WITHIN, client.describe_lock(&table, &key, 1)).await;
            let holders = match described {
                Ok(Ok(lock)) => lock.holders,
                Ok(Err(CallError::Denied(_))) => return HolderName::Hidden,
                Ok(Err(_)) | Err(_) => return HolderName::Unknown,
            };
            let owner = holders.into_iter().next().map(|holder| holder.owner);
            match owner.map(|owner| one_line(&owner)) {
                Some(owner) if !owner.is_empty() => HolderName::Named(owner),
                Some(_) | None => HolderName::Unknown,
            }
        })
    }
}

async fn answered(asking: &mut Option<Asking>) -> HolderName {
    match asking {
        Some(asking) => asking.await,
        None => std::future::pending().await,
    }
}

async fn wait(
    client: &Client,
    entry: &mut QueueEntry,
    watched: &AwaitedKey<'_>,
    limit: Option<Duration>,
    signals: &mut Signals,
) -> Result<LockGuard, Unlocked> {
    let reported: Mutex<Option<Progress>> = Mutex::new(None);
    let mut line = Line::new((watched.key, watched.aside), client.clock().now());
    let mut asking = watched.shown.then(|| watched.ask(client));
    let mut asked_at = client.clock().now();
    let mut is_named = false;
    let mut is_hidden = false;
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let waiting = entry.wait_with(limit, |progress| {
        *reported.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress);
    });
    tokio::pin!(waiting);
    let waited = loop {
        tokio::select! {
            biased;
            result = &mut waiting => break result.map_err(Unlocked::Wait),
            signal = signals.next() => if ends_a_wait(signal) {
                break Err(Unlocked::Signal(signal));
            },
            holder = answered(&mut asking) => {
                asking = None;
                is_named = true;
                is_hidden = matches!(holder, HolderName::Hidden);
                line.holder = match holder {
                    HolderName::Named(owner) => Some(owner),
                    HolderName::Unknown | HolderName::Hidden => None,
                };
                let reported = *reported.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(reported) = reported && watched.shown {
                    line.show(reported, client.clock().now(), watched.failing.get());
                }
            }
            _ = tick.tick() => {
                let reported = *reported.lock().unwrap_or_else(PoisonError::into_inner);
                let now = client.clock().now();
                // The first line is to name who holds it, as far as that is known at once.
                let waits_for_name = !is_named && asking.is_some();
                if let Some(reported) = reported && watched.shown && !waits_for_name {
                    line.show(reported, client.clock().now(), watched.failing.get());
                }
                let is_due = asking.is_none() && asked_at.until(now) >= HOLDER_EVERY;
                if watched.shown && is_due && !is_hidden {
                    asked_at = now;
                    asking = Some(watched.ask(client));
                }
            }
        }
    };
    line.end().await;
    waited
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
        for text in [
            "",
            ".",
            "1.2.3",
            "-1",
            "1e3",
            "inf",
            "1.5s",
            "30x",
            "999999999999",
        ] {
            let said = span_or_seconds(text).unwrap_err();
            assert!(said.contains("write seconds"), "{said}");
        }
    }
}
