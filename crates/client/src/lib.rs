//! The client of Fermata: locks with fencing tokens, kept alive in the background.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use fermata_client::{Client, LockRequest};
//!
//! # async fn charge(_order: u32, _fencing_token: u64) {}
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect(["http://127.0.0.1:7450"])?;
//! let request = LockRequest::new("orders/42").owner("billing on host-7");
//! let guard = client.lock(request.wait(Duration::from_secs(60))).await?;
//!
//! let before = guard.get().await?;
//! // The protected system must refuse a fencing token below the highest one that it has seen: this process
//! // may be paused at any point, and continue after the next holder was granted the lock.
//! charge(42, guard.fencing_token()).await;
//! guard.put("charged").await?;
//! guard.release().await?;
//! # let _ = before;
//! # Ok(())
//! # }
//! ```
//!
//! Two calls do the same: the first reads the value with the lock, the second writes it with the release.
//!
//! ```no_run
//! # use fermata_client::{Client, LockRequest, Mutation};
//! # async fn example(client: Client) -> Result<(), Box<dyn std::error::Error>> {
//! let guard = client.lock(LockRequest::new("counter").read_value()).await?;
//! let before = guard.granted_value().cloned().flatten().unwrap_or_default();
//! let after = [&before[..], b"+1"].concat();
//! guard.release_with(Mutation::Put(after.into())).await?;
//! # Ok(())
//! # }
//! ```
//!
//! What the caller must still check:
//! - **Use the fencing token.** A guard knows that it is valid *now*, but not whether it will be when an effect reaches another
//!   system. Only that system can check this, by the token.
//! - **Watch for the loss.** [`LockGuard::lost`] resolves before another client can have the lock (unless an operator ended the
//!   lock by force). Stop the protected work then.
//! - On a table with write-back a lock is not durable in its first moments ([`LockGuard::durable`]). If the replica that serves
//!   its key crashes then, the lock is lost ([`LostReason::NoLongerKept`]). Values written under it stay.
//! - Only `Ok` of [`LockGuard::put`] says that the value was written. After an error it may have been written or not
//!   ([`CriticalError`]).
//!
//! The crate has four layers. Each layer uses the layers below it: `transport` (endpoints, connections, the Pipeline, retries),
//! `calls` ([`Client`]), `lease` ([`Session`]), `lock` ([`QueueEntry`], [`LockGuard`], [`Lock`]). It shares only the contract
//! (`fermata_proto`) with the server.

mod calls;
mod clock;
mod lease;
mod lock;
mod secret_text;
#[cfg(test)]
mod tests;
mod transport;

pub use calls::answer::{Acquired, Created, LockStatus, Mutation, Renewed, Value};
pub use calls::call_numbers::CallNumbers;
pub use calls::client::Client;
pub use calls::error::{
    CallError, CreateError, CriticalError, LockError, ReleaseError, SessionError, WaitError,
};
pub use calls::fault::{ServerError, WaitFailure};
pub use calls::lost::{Lost, LostReason};
pub use calls::request::{LockRequest, SessionRequest};
pub use clock::{BootClock, Clock, Moment};
pub use fermata_tls::FileError;
pub use lease::session::Session;
pub use lock::entry::QueueEntry;
pub use lock::guard::{GuardState, LockGuard};
pub use lock::progress::Progress;
pub use lock::scoped::{Lock, LockContext, RelockError};
pub use secret_text::public_part;
pub use transport::call_metadata::{CallMetadata, InvalidZone, TraceContext, Zone};
pub use transport::endpoint::{ConnectError, Dialer};
pub use transport::options::ClientOptions;
pub use transport::pipeline::{Answering, Call, Pipeline};
pub use transport::tls::Tls;
pub use transport::token::{InvalidToken, Token};
