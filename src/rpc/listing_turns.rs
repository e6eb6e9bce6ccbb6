//! Listings take turns, because each may scan all rows.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};
use tonic::{Request, Status};

use super::budget::Account;
use super::status;
use crate::engine::EngineError;

/// The turns of all connections, and those of the address of a call. Cheap to clone.
#[derive(Clone)]
pub struct ListingTurns {
    all: Arc<Semaphore>,
    max: u64,
    of_share: Option<Arc<Semaphore>>,
}

/// One turn, until it is dropped.
pub struct ListingTurn {
    _of_share: Option<OwnedSemaphorePermit>,
    _of_all: Option<OwnedSemaphorePermit>,
}

impl ListingTurns {
    /// So many at once.
    pub fn new(max: usize) -> ListingTurns {
        ListingTurns {
            all: Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS))),
            max: u64::try_from(max).unwrap_or(u64::MAX),
            of_share: None,
        }
    }

    /// For a call on this connection, whose address has half of the turns. (Another replica lists for many clients.)
    pub fn on(self, account: Option<&Account>) -> ListingTurns {
        let of_share = account.and_then(Account::listings);
        ListingTurns { of_share, ..self }
    }
}

/// The turn of a call that lists: of its address first, then of all. To be taken once the call is allowed and complete: others
/// wait until it is given back.
pub async fn listing_turn<T>(
    request: &Request<T>,
    answer_by: Instant,
) -> Result<Option<ListingTurn>, Status> {
    let Some(turns) = request.extensions().get::<ListingTurns>() else {
        return Ok(None);
    };
    let turn = async {
        // They are never closed.
        let of_share = match &turns.of_share {
            Some(of_share) => Arc::clone(of_share).acquire_owned().await.ok(),
            None => None,
        };
        ListingTurn {
            _of_share: of_share,
            _of_all: Arc::clone(&turns.all).acquire_owned().await.ok(),
        }
    };
    let turn = timeout_at(answer_by, turn).await;
    turn.map(Some).map_err(|_elapsed| {
        status::of_engine(&EngineError::Exhausted {
            what: "listings_max",
            limit: turns.max,
        })
    })
}
