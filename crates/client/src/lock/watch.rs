//! Follows one lockRef by WatchLock, over broken connections.

use std::time::Duration;

use fermata_proto as proto;
use tokio::time::sleep;
use tonic::{Code, Status, Streaming};

use crate::calls::client::Client;
use crate::calls::fault::Fault;
use crate::calls::lost::Lost;
use crate::transport::connections::LongCallStream;
use crate::transport::not_grpc;
use crate::transport::retry::{Backoff, Verdict, judge};

/// An event of a watch.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It waits, with an estimate of the time that is left.
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
    /// It was taken over, and has a newer grant than the watched one.
    Superseded,
}

/// A watch that is open.
struct Open {
    news: Streaming<proto::WatchLockResponse>,
    _stream: Option<LongCallStream>,
}

/// A watch that is opened again whenever it breaks.
pub(crate) struct Watcher {
    client: Client,
    lock_ref: String,
    /// The endpoint that it was opened at last.
    at: usize,
    stream: Option<Open>,
    backoff: Backoff,
}

impl Watcher {
    pub(crate) fn new(client: &Client, lock_ref: &str) -> Watcher {
        Watcher {
            client: client.clone(),
            lock_ref: lock_ref.to_owned(),
            at: client.connections().current(),
            stream: None,
            backoff: Backoff::new(),
        }
    }

    /// The next watch follows this lockRef (the same entry, with another grant).
    pub(crate) fn follow(&mut self, lock_ref: &str) {
        lock_ref.clone_into(&mut self.lock_ref);
    }

    /// The next event; never, if the server has no such stream. May be dropped and called again.
    pub(crate) async fn next(&mut self) -> Seen {
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
                Fault::NotFound(error) => return Seen::Lost(error.into()),
                Fault::Superseded(_) => {
                    sleep(self.backoff.next(None)).await;
                    return Seen::Superseded;
                }
                Fault::Other(_) if status.code() == Code::Unimplemented => {
                    return std::future::pending().await;
                }
                Fault::Unavailable(error)
                | Fault::Invalid(error)
                | Fault::Limit(error)
                | Fault::Denied(error)
                | Fault::Overtaken(error)
                | Fault::Other(error) => {
                    if let Verdict::Repeat {
                        elsewhere: true, ..
                    } = judge(&status)
                    {
                        self.client.leave(self.at);
                    }
                    tracing::debug!(%error, "a watch failed; opening it again");
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
                let (at, attempt) = client.long_attempt(permit);
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
