//! The one behind the holder that is killed.

use std::time::Duration;

use fermata::client::{Client, LockGuard, LockRequest, SessionRequest};
use fermata::proto::{CreateLockRefRequest, OpenSessionRequest};
use tokio::task::JoinHandle;

use super::super::replica::Replica;
use super::super::sprayed::Sprayed;
use super::{KEY, ask, boot};

/// Where it is connected, and what it lives by.
#[derive(Clone, Copy)]
pub enum Waiter {
    /// To another replica than the holder, with a TTL of its own.
    Elsewhere(Duration),
    /// The same, in a session that the other replica keeps.
    ElsewhereInSession,
    /// The Rust client, connected to the replica of the holder first, with a TTL of its own.
    There(Duration),
    /// The same, in a session, which that replica keeps. When it loses the session it opens another one.
    ThereInSession(Duration),
}

/// What it got.
pub struct Got {
    pub lock_ref: String,
    pub fence: u64,
    /// By the clock since boot.
    pub at: Duration,
    /// Keeps it, where the Rust client has it.
    _guard: Option<LockGuard>,
}

impl Got {
    fn of_guard(guard: LockGuard) -> Got {
        Got {
            at: boot(),
            lock_ref: guard.lock_ref(),
            fence: guard.fencing_token(),
            _guard: Some(guard),
        }
    }
}

impl Waiter {
    /// Takes its place in the queue; what is returned waits.
    pub async fn start(self, home: &Replica, other: &Replica) -> JoinHandle<Got> {
        let client = || Client::connect([home.endpoint(), other.endpoint()]).unwrap();
        match self {
            Waiter::Elsewhere(ttl) => {
                let own = CreateLockRefRequest {
                    ttl: Some(ttl.try_into().unwrap()),
                    ..ask("")
                };
                wait_at(other, own).await
            }
            Waiter::ElsewhereInSession => {
                let mut client = other.client();
                let opened = client.open_session(OpenSessionRequest::default()).await;
                wait_at(other, ask(&opened.unwrap().into_inner().session)).await
            }
            Waiter::There(ttl) => {
                let request = LockRequest::new(KEY).ttl(ttl);
                let mut place = client().place(request).await.unwrap();
                tokio::spawn(async move { Got::of_guard(place.wait(None).await.unwrap()) })
            }
            Waiter::ThereInSession(ttl) => {
                let client = client();
                let open = move || {
                    let client = client.clone();
                    async move { client.open_session(SessionRequest::new().ttl(ttl)).await }
                };
                let session = open().await.unwrap();
                let mut place = session.place(KEY).await.unwrap();
                tokio::spawn(async move {
                    let mut waited = place.wait(None).await.map_err(|error| error.to_string());
                    loop {
                        match waited {
                            Ok(guard) => break Got::of_guard(guard),
                            Err(error) => eprintln!("it begins anew: {error}"),
                        }
                        let session = open().await.unwrap();
                        let locked = session.lock(KEY).await;
                        waited = locked.map_err(|error| error.to_string());
                    }
                })
            }
        }
    }
}

async fn wait_at(replica: &Replica, own: CreateLockRefRequest) -> JoinHandle<Got> {
    let next = Sprayed::new(std::iter::once(replica.channel()));
    let place = next.create(own).await.unwrap();
    tokio::spawn(async move {
        let acquired = next.acquire(&place).await.unwrap();
        Got {
            at: boot(),
            lock_ref: acquired.lock_ref,
            fence: acquired.fencing_token,
            _guard: None,
        }
    })
}
