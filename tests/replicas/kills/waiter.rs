//! The one behind the holder that is killed.

use std::time::Duration;

use fermata_client::{Client, LockGuard, LockRequest, SessionRequest};
use fermata_proto::{CreateLockRefRequest, OpenSessionRequest};
use tokio::task::JoinHandle;
use tonic_types::StatusExt as _;

use super::super::sprayed::Sprayed;
use super::super::world::World;
use super::holder::boot;
use super::{KEY, ask};

/// Where it is connected, and what it lives by.
#[derive(Clone, Copy)]
pub enum Waiter {
    /// To another replica than the holder, with a TTL of its own.
    Elsewhere(Duration),
    /// The same, in a session that the other replica keeps.
    ElsewhereInSession,
    /// The Rust client, connected to the replica of the holder first, with a TTL of its own.
    SameReplica(Duration),
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
    /// Adds its entry to the queue; what is returned waits.
    pub async fn start(self, world: &World, home: usize, other: usize) -> JoinHandle<Got> {
        let endpoints = [home, other].map(|n| world.replicas[n].endpoint());
        let client = || Client::connect(&endpoints).unwrap();
        let next = world.at(other);
        match self {
            Waiter::Elsewhere(ttl) => {
                let own = CreateLockRefRequest {
                    ttl: Some(ttl.try_into().unwrap()),
                    ..ask("")
                };
                wait_at(next, own).await
            }
            Waiter::ElsewhereInSession => {
                let mut client = world.replicas[other].client();
                let opened = client.open_session(OpenSessionRequest::default()).await;
                wait_at(next, ask(&opened.unwrap().into_inner().session)).await
            }
            Waiter::SameReplica(ttl) => {
                let request = LockRequest::new(KEY).ttl(ttl);
                let mut entry = client().enqueue(request).await.unwrap();
                tokio::spawn(async move { Got::of_guard(entry.wait(None).await.unwrap()) })
            }
            Waiter::ThereInSession(ttl) => {
                let client = client();
                let open = move || {
                    let client = client.clone();
                    async move { client.open_session(SessionRequest::new().ttl(ttl)).await }
                };
                let session = open().await.unwrap();
                let mut entry = session.enqueue(KEY).await.unwrap();
                tokio::spawn(async move {
                    let mut waited = entry.wait(None).await.map_err(|error| error.to_string());
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

/// Makes its entry again where that was lost with the replica that served the key, before the row knew of it.
async fn wait_at(next: Sprayed, own: CreateLockRefRequest) -> JoinHandle<Got> {
    let mut entry = next.create(own.clone()).await.unwrap();
    tokio::spawn(async move {
        let acquired = loop {
            match next.acquire(&entry).await {
                Ok(acquired) => break acquired,
                Err(status) => {
                    let info = status.get_details_error_info();
                    let reason = info.map(|info| info.reason);
                    assert_eq!(reason.as_deref(), Some("NO_LONGER_KEPT"), "{status}");
                }
            }
            eprintln!("its entry is made again");
            entry = next.create(own.clone()).await.unwrap();
        };
        Got {
            at: boot(),
            lock_ref: acquired.lock_ref,
            fence: acquired.fencing_token,
            _guard: None,
        }
    })
}
