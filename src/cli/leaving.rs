//! Giving a lock, or an entry in the queue, back before the process ends: for as long as that may hold up the end.

use std::time::Duration;

use fermata_client::{
    CallNumbers, Client, LockGuard, LostReason, QueueEntry, ReleaseError, ServerError,
};
use fermata_command::{Failure, Span, exit};
use nix::sys::signal::Signal;
use tokio::time::{Instant, timeout};

use super::aside::Aside;
use super::signals::{AFTER_SIGNAL_MAX, Signals};

/// How long releasing an entry of the queue may hold up the end of the process, where no server answers.
const GIVE_UP_MAX: Duration = Duration::from_secs(2);
/// How long it is asked at least what became of a release that was done in the background.
const ASKED_FOR_MIN: Duration = Duration::from_secs(1);

/// What is given back is of this key.
#[derive(Clone, Copy)]
pub struct Leaving<'a> {
    client: &'a Client,
    pub key: &'a str,
    aside: &'a Aside,
}

/// How long a lock lives that is not released.
#[derive(Clone, Copy)]
pub enum Lives {
    /// So long without a renewal.
    Renewed(Duration),
    /// So long without a connection.
    Connected(Duration),
}

impl Lives {
    pub fn of(guard: &LockGuard) -> Lives {
        match guard.disconnect_grace() {
            Some(grace) => Lives::Connected(grace),
            None => Lives::Renewed(guard.ttl()),
        }
    }

    pub fn span(self) -> Duration {
        match self {
            Lives::Renewed(span) | Lives::Connected(span) => span,
        }
    }
}

/// Why it was not given back.
enum NotGivenBack {
    /// Nobody answered for so long.
    Silent(Duration),
    Failed(ReleaseError),
}

impl<'a> Leaving<'a> {
    pub fn new(client: &'a Client, key: &'a str, aside: &'a Aside) -> Leaving<'a> {
        Leaving { client, key, aside }
    }

    /// Gives the lock back, for no longer than it lives; `after` this signal, where one came. That it could not be told to the
    /// server is no failure of the command: the lock ends by itself.
    pub async fn release(
        self,
        guard: LockGuard,
        after: Option<Signal>,
        signals: &mut Signals,
    ) -> Result<(), Failure> {
        let (lives, ttl, lock_ref) = (Lives::of(&guard), guard.ttl(), guard.lock_ref());
        let mut denied = None;
        let releasing = async {
            match timeout(ttl, guard.release()).await {
                Ok(released) => released.map_err(NotGivenBack::Failed),
                Err(_) => Err(NotGivenBack::Silent(ttl)),
            }
        };
        let named = (self.key, &*lock_ref);
        let releasing = self.unless_denied(named, releasing, (lives.span(), after), &mut denied);
        let why = match finish(releasing, after, signals).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(NotGivenBack::Failed(ReleaseError::Lost(lost)))) => {
                return Err(Failure::new(
                    exit::LOCK_LOST,
                    format!(
                        "the lock on {} was lost before its release: {lost}",
                        self.key
                    ),
                ));
            }
            Ok(Err(NotGivenBack::Failed(error))) => error.to_string(),
            Ok(Err(NotGivenBack::Silent(span))) => {
                format!("no answer within {}", Span::from_duration(span))
            }
            Err(signal) => match denied {
                Some(denied) => ReleaseError::Denied(denied).to_string(),
                None => format!("{signal} came before an answer"),
            },
        };
        self.aside.say(format!("{}: {why}", self.left(lives)));
        Ok(())
    }

    /// What is left where a lock could not be released. (Who cannot be told of it may think that it is renewed.)
    pub fn left(self, lives: Lives) -> String {
        let (key, span) = (self.key, Span::from_duration(lives.span()));
        let until = match lives {
            Lives::Connected(_) => "after this process",
            Lives::Renewed(_) => {
                "after its last renewal, some 15 s later where the connection stays open"
            }
        };
        format!("{key} could not be released, and ends {span} {until}")
    }

    /// Releases an entry of the queue, but not for long, `after` this signal, where one came. False where that is left to its TTL.
    pub async fn give_up(
        self,
        entry: QueueEntry,
        after: Option<Signal>,
        signals: &mut Signals,
    ) -> bool {
        finish(self.give_up_unheard(entry, after), after, signals).await == Ok(true)
    }

    /// The same, of who hears signals itself.
    pub async fn give_up_unheard(self, entry: QueueEntry, after: Option<Signal>) -> bool {
        let (ttl, lock_ref) = (entry.ttl(), entry.lock_ref().to_owned());
        let what = format!("the queue entry of {}", self.key);
        let giving_up = async {
            match timeout(GIVE_UP_MAX, entry.give_up()).await {
                Ok(given_up) => given_up.map(|_| ()).map_err(NotGivenBack::Failed),
                Err(_) => Err(NotGivenBack::Silent(GIVE_UP_MAX)),
            }
        };
        let denied = &mut None;
        let given_up = self.unless_denied((&what, &lock_ref), giving_up, (ttl, after), denied);
        given_up.await.is_ok()
    }

    /// Where that is not allowed, as while a token or a rule is replaced, the client tries further in the background: that is
    /// waited for, for as long as it lives, and as a call may take. `denied` is set once that is so.
    async fn unless_denied(
        self,
        (what, lock_ref): (&str, &str),
        releasing: impl Future<Output = Result<(), NotGivenBack>>,
        (ttl, after): (Duration, Option<Signal>),
        denied: &mut Option<ServerError>,
    ) -> Result<(), NotGivenBack> {
        let begun = Instant::now();
        let refused = match releasing.await {
            Err(NotGivenBack::Failed(ReleaseError::Denied(refused))) => refused,
            released => return released,
        };
        *denied = Some(refused.clone());
        let within = ttl.min(self.client.options().timeout);
        let left = || within.saturating_sub(begun.elapsed());
        // A signal leaves it no more.
        let tried_for = after.map_or(left(), |_| left().min(AFTER_SIGNAL_MAX));
        if !self.until_given_back(what, &refused, tried_for).await {
            return Err(NotGivenBack::Failed(ReleaseError::Denied(refused)));
        }
        // What became of it: whoever ended it by force meanwhile may have done so at any time before.
        let numbers = CallNumbers::default();
        let asking = self.client.release_lock(lock_ref, None, &numbers);
        let asked_for = left().max(ASKED_FOR_MIN);
        match timeout(asked_for, asking).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(ReleaseError::Lost(lost))) if lost.reason != LostReason::Forced => Ok(()),
            Ok(Err(error)) => Err(NotGivenBack::Failed(error)),
            Err(_) => Err(NotGivenBack::Silent(asked_for)),
        }
    }

    /// Waits for what the client gives back in the background, as this was denied, where there is any, for `left` at most and as
    /// long as a call may take. False where it is still there.
    pub async fn until_given_back(self, what: &str, denied: &ServerError, left: Duration) -> bool {
        if timeout(Duration::ZERO, self.client.given_back())
            .await
            .is_ok()
        {
            return true;
        }
        let within = left.min(self.client.options().timeout);
        // Not to the millisecond.
        let tenths = u64::try_from(within.as_millis().div_ceil(100)).unwrap_or(u64::MAX);
        let span = Span::from_millis(tenths.saturating_mul(100));
        self.aside.say(format!(
            "{what} cannot be released: {denied}; trying again for {span}"
        ));
        timeout(within, self.client.given_back()).await.is_ok()
    }
}

/// What `work` gives; the first signal where one leaves it no more time.
async fn finish<T>(
    work: impl Future<Output = T>,
    after: Option<Signal>,
    signals: &mut Signals,
) -> Result<T, Signal> {
    match after {
        Some(first) => signals.finish_after(first, work).await,
        None => signals.finish_soon(work).await,
    }
}
