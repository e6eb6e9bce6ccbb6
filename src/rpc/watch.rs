//! The WatchLock stream: the status of a lockRef, as it changes.
//!
//! HELD and LOST are sent at once. Positions change as fast as a queue moves, so they are merged to one message per
//! [`POSITION_EVERY`], always the latest.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use fermata_proto::{LockState, WatchLockResponse};
use futures_util::{Stream, StreamExt as _, stream};
use tokio::time::Instant;

use super::deadline::until;
use super::{answer, status};
use crate::engine::{Watch, WatchEvent, describe_end};
use crate::lock::with_grant;
use crate::protocol::LeaderlessWatch;

/// At most one position is sent in this time.
const POSITION_EVERY: Duration = Duration::from_millis(100);

/// The source of news.
pub trait News: Send + 'static {
    /// As [`Watch::next`].
    fn next(&mut self) -> impl Future<Output = Option<WatchEvent>> + Send;
    /// As [`Watch::valid_for`].
    fn valid_for(&self) -> Duration;
    /// As [`Watch::durable`].
    fn durable(&self) -> bool;
}

impl News for Watch {
    fn next(&mut self) -> impl Future<Output = Option<WatchEvent>> + Send {
        Watch::next(self)
    }

    fn valid_for(&self) -> Duration {
        Watch::valid_for(self)
    }

    fn durable(&self) -> bool {
        Watch::durable(self)
    }
}

impl News for LeaderlessWatch {
    async fn next(&mut self) -> Option<WatchEvent> {
        let (event, valid_for) = self.events.next().await?;
        self.valid_for = valid_for;
        Some(event)
    }

    fn valid_for(&self) -> Duration {
        self.valid_for
    }

    fn durable(&self) -> bool {
        true
    }
}

/// The next piece of news, and its source. It is never dropped half way, so nothing is missed.
type Coming<N> = Pin<Box<dyn Future<Output = (N, Option<WatchEvent>)> + Send>>;

fn coming<N: News>(mut news: N) -> Coming<N> {
    Box::pin(async move {
        let next = news.next().await;
        (news, next)
    })
}

struct WatchStream<N> {
    /// As its client gave it.
    lock_ref: String,
    coming: Coming<N>,
    /// The latest position that was not sent yet.
    position: Option<(usize, Option<Duration>)>,
    /// When the next position may be sent.
    position_at: Instant,
}

/// The messages about a lockRef, as its client gave it. Ends after LOST, and without it when this replica has no more news of the
/// lockRef: another one may have it.
pub fn stream<N: News>(lock_ref: String, news: N) -> impl Stream<Item = WatchLockResponse> + Send {
    let watching = WatchStream {
        lock_ref,
        coming: coming(news),
        position: None,
        position_at: Instant::now(),
    };
    stream::unfold(Some(watching), |watching| async move {
        watching?.notify().await
    })
}

/// A message, and the rest of the stream.
type NextMessage<N> = Option<(WatchLockResponse, Option<WatchStream<N>>)>;

impl<N: News> WatchStream<N> {
    async fn notify(mut self) -> NextMessage<N> {
        loop {
            let position = self.position;
            let position_at = self.position_at;
            tokio::select! {
                biased;
                (news, next) = &mut self.coming => match next {
                    Some(WatchEvent::Waiting { position, estimate }) => {
                        self.position = Some((position, estimate));
                        self.coming = coming(news);
                    }
                    Some(WatchEvent::Held { grant }) => {
                        let held = WatchLockResponse {
                            state: LockState::Held.into(),
                            lock_ref: with_grant(&self.lock_ref, Some(grant)),
                            fencing_token: grant.0,
                            valid_for: Some(answer::duration(news.valid_for())),
                            durable: news.durable(),
                            ..WatchLockResponse::default()
                        };
                        self.position = None;
                        self.coming = coming(news);
                        return Some((held, Some(self)));
                    }
                    Some(WatchEvent::Lost(ended)) => {
                        let lost = WatchLockResponse {
                            state: LockState::Lost.into(),
                            lock_ref: self.lock_ref.clone(),
                            reason: status::end_reason(&ended).into(),
                            detail: describe_end(&ended),
                            ..WatchLockResponse::default()
                        };
                        return Some((lost, None));
                    }
                    // Without LOST: the engine stops, or is not the home any more.
                    None => return None,
                },
                () = until(position.map(|_| position_at)) => {
                    let (position, estimate) = position.unwrap_or_default();
                    let waiting = WatchLockResponse {
                        state: LockState::Waiting.into(),
                        lock_ref: with_grant(&self.lock_ref, None),
                        position: answer::count(position),
                        estimated_wait: estimate.map(answer::duration),
                        ..WatchLockResponse::default()
                    };
                    self.position = None;
                    self.position_at = Instant::now() + POSITION_EVERY;
                    return Some((waiting, Some(self)));
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "watch_test.rs"]
mod tests;
