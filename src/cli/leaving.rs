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

/// What is given back is of this key.
#[derive(Clone, Copy)]
pub struct Leaving<'a> {
    client: &'a Client,
    pub key: &'a str,
    aside: &'a Aside,
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
        let ttl = guard.ttl();
        let begun = Instant::now();
        let lock_ref = guard.lock_ref();
        let releasing = self.give_back((self.key, &lock_ref), guard.release(), ttl, (ttl, after));
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
            Err(signal) => format!("{signal} came before an answer"),
        };
        let left = ttl
            .saturating_sub(begun.elapsed())
            .as_millis()
            .div_ceil(1000);
        let expires = match u64::try_from(left).unwrap_or(u64::MAX) {
            0 => "has expired by now".to_owned(),
            left => format!("expires in at most {}", Span::from_secs(left)),
        };
        let said = format!("{} could not be released and {expires}: {why}", self.key);
        self.aside.say(said);
        Ok(())
    }

    /// Releases an entry of the queue, but not for long, `after` this signal, where one came. False where that is left to its TTL.
    pub async fn give_up(
        self,
        entry: QueueEntry,
        after: Option<Signal>,
        signals: &mut Signals,
    ) -> bool {
        let ttl = entry.ttl();
        let what = format!("the queue entry of {}", self.key);
        let lock_ref = entry.lock_ref().to_owned();
        let giving_up = async { entry.give_up().await.map(|_| ()) };
        let giving_up = self.give_back((&what, &lock_ref), giving_up, GIVE_UP_MAX, (ttl, after));
        matches!(finish(giving_up, after, signals).await, Ok(Ok(())))
    }

    /// Where that is not allowed, as while a token or a rule is replaced, the client tries further in the background: that is
    /// waited for, for as long as it lives, and as a call may take.
    async fn give_back(
        self,
        (what, lock_ref): (&str, &str),
        releasing: impl Future<Output = Result<(), ReleaseError>>,
        answered_within: Duration,
        (ttl, after): (Duration, Option<Signal>),
    ) -> Result<(), NotGivenBack> {
        let begun = Instant::now();
        let denied = match timeout(answered_within, releasing).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(ReleaseError::Denied(denied))) => denied,
            Ok(Err(error)) => return Err(NotGivenBack::Failed(error)),
            Err(_) => return Err(NotGivenBack::Silent(answered_within)),
        };
        let left = ttl.saturating_sub(begun.elapsed());
        // A signal leaves it no more.
        let left = after.map_or(left, |_| left.min(AFTER_SIGNAL_MAX));
        if !self.until_given_back(what, &denied, left).await {
            return Err(NotGivenBack::Failed(ReleaseError::Denied(denied)));
        }
        // Whoever ended it by force meanwhile may have done so at any time before.
        let numbers = CallNumbers::default();
        match self.client.release_lock(lock_ref, None, &numbers).await {
            Err(ReleaseError::Lost(lost)) if lost.reason == LostReason::Forced => {
                Err(NotGivenBack::Failed(ReleaseError::Lost(lost)))
            }
            Ok(_) | Err(_) => Ok(()),
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
        let span = Span::from_duration(within);
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
