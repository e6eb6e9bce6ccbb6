//! Follows one lockRef by WatchLock, over broken connections.

use std::time::Duration;

use fermata_proto as proto;
use tokio::time::sleep;
use tonic::{Code, Status, Streaming};

use super::connect::Client;
use super::connections::LongCallStream;
use super::fault::Fault;
use super::lost::{Lost, LostReason};
use super::not_grpc;
use super::retry::Backoff;

/// What a watch tells.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Seen {
    /// It waits, and may wait so long still.
    Waiting {
        position: u32,
        estimate: Option<Duration>,
    },
    /// It holds its key, with this grant.
    Held {
        lock_ref: String,
        fencing_token: u64,
    },
    /// It has ended.
    Lost(Lost),
    /// It was taken over and has a newer grant than the one that is watched.
    Superseded,
}

/// A watch that is open.
struct Open {
    news: Streaming<proto::WatchLockResponse>,
    _stream: Option<LongCallStream>,
}

/// A watch that is opened again whenever it breaks.
pub(super) struct Watcher {
    client: Client,
    lock_ref: String,
    /// The endpoint that it was opened at last.
    at: usize,
    stream: Option<Open>,
    backoff: Backoff,
}

impl Watcher {
    pub(super) fn new(client: &Client, lock_ref: &str) -> Watcher {
        Watcher {
            client: client.clone(),
            lock_ref: lock_ref.to_owned(),
            at: client.connections().current(),
            stream: None,
            backoff: Backoff::new(),
        }
    }

    /// Asks for this one when the watch is opened next (the same entry, with another grant).
    pub(super) fn follow(&mut self, lock_ref: &str) {
        lock_ref.clone_into(&mut self.lock_ref);
    }

    /// The next thing worth telling; never returns where the server has no such stream. May be dropped
    /// and called again.
    pub(super) async fn next(&mut self) -> Seen {
        loop {
            let status = match self.message().await {
                Ok(Some(message)) => {
                    self.backoff.reset();
                    match seen(message) {
                        Some(seen) => return seen,
                        None => continue,
                    }
                }
                // The server ends the stream when it stops.
                Ok(None) => Status::unavailable("the stream has ended"),
                Err(status) => not_grpc::of_answer(status),
            };
            self.stream = None;
            match Fault::new(&status) {
                Fault::Ended(lost) => return Seen::Lost(lost),
                Fault::NotFound(error) => {
                    return Seen::Lost(Lost::new(LostReason::NeverIssued, error.message));
                }
                Fault::Superseded(_) => {
                    sleep(self.backoff.next(None)).await;
                    return Seen::Superseded;
                }
                Fault::Other(_) if status.code() == Code::Unimplemented => {
                    return std::future::pending().await;
                }
                Fault::Unavailable(error) => {
                    tracing::debug!(%error, "a watch is opened again, at another endpoint if there is one");
                    self.client.leave(self.at);
                    sleep(self.backoff.next(error.retry_after)).await;
                }
                Fault::Invalid(error)
                | Fault::Limit(error)
                | Fault::Denied(error)
                | Fault::Overtaken(error)
                | Fault::Other(error) => {
                    tracing::debug!(%error, "a watch is opened again");
                    sleep(self.backoff.next(error.retry_after)).await;
                }
            }
        }
    }

    async fn message(&mut self) -> Result<Option<proto::WatchLockResponse>, Status> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                let client = &self.client;
                let permit = client.connections().watch_permit().await;
                let (at, attempt) = client.long_attempt(client.options().timeout, permit);
                self.at = at;
                // No deadline: the watch lasts as long as the lockRef.
                let request = attempt.stream_request(proto::WatchLockRequest {
                    lock_ref: self.lock_ref.clone(),
                });
                let news = attempt.locks().watch_lock(request).await?.into_inner();
                let _stream = attempt.into_stream();
                self.stream.insert(Open { news, _stream })
            }
        };
        stream.news.message().await
    }
}

fn seen(message: proto::WatchLockResponse) -> Option<Seen> {
    match proto::LockState::try_from(message.state) {
        Ok(proto::LockState::Waiting) => Some(Seen::Waiting {
            position: message.position,
            estimate: message
                .estimated_wait
                .and_then(|estimate| estimate.try_into().ok()),
        }),
        Ok(proto::LockState::Held) => Some(Seen::Held {
            lock_ref: message.lock_ref,
            fencing_token: message.fencing_token,
        }),
        Ok(proto::LockState::Lost) => {
            Some(Seen::Lost(Lost::from_wire(message.reason, &message.detail)))
        }
        Ok(proto::LockState::Unspecified | proto::LockState::Released) | Err(_) => None,
    }
}
