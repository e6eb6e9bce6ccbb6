//! A client whose calls go to all replicas in turn, as behind a balancer that knows nothing of locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fermata_proto::lock_service_client::LockServiceClient;
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};
use tonic_types::StatusExt as _;

use super::history::{RecordedRequest, Recorder};

/// How long one attempt may take, a wait aside.
const ATTEMPT: Duration = Duration::from_secs(5);
/// How long a call is repeated: more than any fault lasts.
const PATIENCE: Duration = Duration::from_secs(90);
/// The longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Cheap to clone; clones take turns together, and count together.
#[derive(Clone)]
pub struct Sprayed {
    channels: Arc<Vec<Channel>>,
    next: Arc<AtomicUsize>,
    /// It stays with a replica for as long as that serves it.
    stays: bool,
    /// It says what it repeats.
    tells: bool,
    /// How long a call is repeated.
    patience: Duration,
    repeats: Arc<AtomicUsize>,
    /// Where each try is noted, and as whose.
    history: Recorder,
    name: Arc<str>,
}

impl Sprayed {
    pub fn new(channels: impl Iterator<Item = Channel>, history: &Recorder) -> Sprayed {
        Sprayed {
            channels: Arc::new(channels.collect()),
            next: Arc::default(),
            stays: false,
            tells: true,
            patience: PATIENCE,
            repeats: Arc::default(),
            history: history.clone(),
            name: "a client".into(),
        }
    }

    /// Clients of which each stays with one replica, until that does not serve it.
    pub fn staying(self) -> Sprayed {
        Sprayed {
            stays: true,
            ..self
        }
    }

    /// Clients that do not say what they repeat, and do so for longer: faults may follow each other.
    pub fn patient(self, patience: Duration) -> Sprayed {
        Sprayed {
            tells: false,
            patience,
            ..self
        }
    }

    /// For one of the clients.
    pub fn of_client(&self, number: usize) -> Sprayed {
        let next = match self.stays {
            true => Arc::new(AtomicUsize::new(number)),
            false => Arc::clone(&self.next),
        };
        Sprayed {
            next,
            name: format!("client {number}").into(),
            ..self.clone()
        }
    }

    /// How many attempts were repeated so far.
    pub fn repeats(&self) -> usize {
        self.repeats.load(Ordering::Relaxed)
    }

    pub fn channel(&self) -> Channel {
        let turn = self
            .next
            .fetch_add(usize::from(!self.stays), Ordering::Relaxed);
        self.channels[turn % self.channels.len()].clone()
    }

    /// Makes a call at one replica after the other until one of them serves or refuses it.
    pub async fn call<Q, F>(
        &self,
        ask: Q,
        wait: Duration,
        make: impl Fn(LockServiceClient<Channel>, Request<Q>) -> F,
    ) -> Result<Q::Answer, Status>
    where
        Q: RecordedRequest + Clone,
        F: Future<Output = Result<Response<Q::Answer>, Status>>,
    {
        let begun = Instant::now();
        let mut pause = Duration::from_millis(20);
        loop {
            let status = match self.once(ask.clone(), wait, &make).await {
                Ok(answer) => return Ok(answer),
                Err(status) => status,
            };
            if !may_be_repeated(&status) {
                return Err(status);
            }
            assert!(
                begun.elapsed() < self.patience,
                "in vain for {:?}: {status:?}",
                self.patience
            );
            self.repeats.fetch_add(1, Ordering::Relaxed);
            if self.tells {
                println!(
                    "repeated after {:?}: {:?}: {}",
                    begun.elapsed(),
                    status.code(),
                    status.message()
                );
            }
            self.next
                .fetch_add(usize::from(self.stays), Ordering::Relaxed);
            let asked = status
                .get_details_retry_info()
                .and_then(|info| info.retry_delay);
            sleep(asked.unwrap_or_default().max(pause)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Makes a call once, at the replica whose turn it is.
    pub async fn once<Q, F>(
        &self,
        ask: Q,
        wait: Duration,
        make: impl Fn(LockServiceClient<Channel>, Request<Q>) -> F,
    ) -> Result<Q::Answer, Status>
    where
        Q: RecordedRequest + Clone,
        F: Future<Output = Result<Response<Q::Answer>, Status>>,
    {
        let mut request = Request::new(ask.clone());
        request.set_timeout(wait + ATTEMPT);
        let call = make(LockServiceClient::new(self.channel()), request);
        let answer = async {
            let answer = timeout(wait + ATTEMPT, call).await;
            answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer")))
        };
        self.history.tried(&self.name, &ask, answer).await
    }
}

/// Whether a refusal says nothing about what was asked.
pub fn may_be_repeated(status: &Status) -> bool {
    let made_here = std::error::Error::source(status).is_some();
    match status.code() {
        Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded => true,
        Code::Unknown | Code::Internal => made_here,
        _ => false,
    }
}
