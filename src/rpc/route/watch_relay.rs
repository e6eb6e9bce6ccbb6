//! A WatchLock at any home: relays the news of this replica or of another home, and of the next home after a change.

use std::pin::Pin;
use std::time::Duration;

use fermata_proto::{LockState, WatchLockResponse};
use futures_util::{Stream, StreamExt, stream};
use prost::Message as _;
use tokio::time::sleep;
use tonic::{Status, Streaming};

use super::router::{Router, WatchSource};
use crate::access::Verb;
use crate::lock::LockRef;
use crate::rpc::calls::{CallContext, Target};
use crate::rpc::deadline::until;
use crate::rpc::peer::refused;
use crate::rpc::peer_proto::forward_watch_response::Outcome;
use crate::rpc::peer_proto::{ForwardWatchResponse, Unable};
use crate::rpc::status;
use crate::rpc::stopping::Stopping;
use crate::rpc::watch;

/// The pause before a watch without news is opened again.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// The source of news.
enum Source {
    Local(Pin<Box<dyn Stream<Item = WatchLockResponse> + Send>>),
    Remote(Box<Streaming<ForwardWatchResponse>>),
}

/// The next event of a source.
enum Coming {
    News(WatchLockResponse),
    /// It ended by its deadline, which is a little before ours.
    End,
    /// A status for the client.
    Refused(Status),
    /// The watch goes on elsewhere.
    Broken,
}

struct Relay {
    router: Router,
    lock_ref: LockRef,
    /// As its client gave it.
    text: String,
    context: CallContext,
    stopping: Stopping,
    /// `None` until the home is found.
    source: Option<Source>,
    /// Whether the present source had news.
    brought: bool,
}

/// The messages about a lockRef, as its client gave it. Ends after LOST, a little before the deadline, and with a status if this
/// replica stops or no replica serves the lockRef.
pub async fn open(
    router: Router,
    (lock_ref, text): (LockRef, String),
    context: CallContext,
    stopping: Stopping,
) -> Result<impl Stream<Item = Result<WatchLockResponse, Status>> + Send, Status> {
    let mut relay = Relay {
        router,
        lock_ref,
        text,
        context,
        stopping,
        source: None,
        brought: false,
    };
    relay.find().await?;
    Ok(stream::unfold(Some(relay), |relay| async move {
        relay?.notify().await
    }))
}

impl Relay {
    async fn find(&mut self) -> Result<(), Status> {
        let watched = self.router.watch(&self.lock_ref, &self.text, &self.context);
        let watched = watched.await?;
        self.brought = false;
        self.source = Some(match watched {
            WatchSource::Local(news) => {
                Source::Local(Box::pin(watch::stream(self.text.clone(), news)))
            }
            WatchSource::Polled(news) => {
                Source::Local(Box::pin(watch::stream(self.text.clone(), news)))
            }
            WatchSource::Remote(stream) => Source::Remote(Box::new(stream)),
        });
        Ok(())
    }

    /// The next message, and the rest of the stream.
    async fn notify(mut self) -> Option<(Result<WatchLockResponse, Status>, Option<Relay>)> {
        let ended = until(self.context.deadline.answer_by());
        let mut stopping = self.stopping.clone();
        let (access, login) = (self.router.access().clone(), self.context.login.clone());
        let target = Target::LockRef(self.lock_ref.clone());
        tokio::select! {
            biased;
            () = stopping.stopped() => Some((Err(status::stopping()), None)),
            // A watch keeps its lockRef alive.
            refused = access.until_refused(|| access.check(&login, Verb::Lock.into(), &target)) => {
                Some((Err(refused), None))
            }
            coming = self.next() => match coming {
                Ok(Some(news)) => {
                    let goes_on = news.state() != LockState::Lost;
                    Some((Ok(news), goes_on.then_some(self)))
                }
                Ok(None) => None,
                Err(status) => Some((Err(status), None)),
            },
            () = ended => None,
        }
    }

    async fn next(&mut self) -> Result<Option<WatchLockResponse>, Status> {
        loop {
            let Some(source) = &mut self.source else {
                self.find().await?;
                continue;
            };
            match source.next().await {
                Coming::News(news) => {
                    self.brought = true;
                    return Ok(Some(news));
                }
                Coming::End if self.context.deadline.at().is_some() => return Ok(None),
                Coming::Refused(status) => return Err(status),
                Coming::End | Coming::Broken => {
                    self.source = None;
                    if !self.brought {
                        sleep(AGAIN_AFTER).await;
                    }
                }
            }
        }
    }
}

impl Source {
    async fn next(&mut self) -> Coming {
        match self {
            Source::Local(news) => match news.next().await {
                Some(news) => Coming::News(news),
                None => Coming::Broken,
            },
            Source::Remote(stream) => loop {
                let outcome = match stream.message().await {
                    Ok(Some(message)) => message.outcome,
                    Ok(None) => return Coming::End,
                    Err(_broken) => return Coming::Broken,
                };
                return match outcome {
                    // The watch began.
                    Some(Outcome::News(news)) if news.is_empty() => continue,
                    Some(Outcome::News(news)) => match WatchLockResponse::decode(news) {
                        Ok(news) => Coming::News(relayed(news)),
                        Err(_) => Coming::Broken,
                    },
                    Some(Outcome::Refusal(refusal)) => Coming::Refused(refused(refusal)),
                    Some(Outcome::Elsewhere(_) | Outcome::Unable(Unable { .. })) | None => {
                        Coming::Broken
                    }
                };
            },
        }
    }
}

/// The promise of the home counts from its own time, and the delay to here is unknown: of a volatile lock nothing is promised
/// here.
fn relayed(mut news: WatchLockResponse) -> WatchLockResponse {
    if !news.durable {
        news.valid_for = news.valid_for.map(|_| prost_types::Duration::default());
    }
    news
}
