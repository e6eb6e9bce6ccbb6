//! Listings take turns: each may go over all that there is.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};
use tonic::{Request, Status};

use super::budget::{Account, OwnListings};
use super::status;
use crate::engine::EngineError;

/// Those of all connections, and those of the one that a call came on. Cheap to clone.
#[derive(Clone)]
pub struct ListingTurns {
    all: Arc<Semaphore>,
    max: u64,
    own: Option<OwnListings>,
}

/// One turn, until it is dropped.
pub struct ListingTurn {
    _of_connection: Option<OwnedSemaphorePermit>,
    _of_share: Option<OwnedSemaphorePermit>,
    _of_all: Option<OwnedSemaphorePermit>,
}

impl ListingTurns {
    /// So many at once.
    pub fn new(max: usize) -> ListingTurns {
        ListingTurns {
            all: Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS))),
            max: u64::try_from(max).unwrap_or(u64::MAX),
            own: None,
        }
    }

    /// For a call on this connection, of which one lists at once, and of its owner's half of the turns. (One of another replica
    /// lists for many clients.)
    pub fn on(self, account: Option<&Account>) -> ListingTurns {
        let own = account.and_then(Account::listings).cloned();
        ListingTurns { own, ..self }
    }
}

/// The turn of a call that lists: first of those on its connection, then of its owner's, then of all. To be taken once the call is known to be
/// allowed, and all of it is there: until it is given back others wait.
pub async fn listing_turn<T>(
    request: &Request<T>,
    answer_by: Instant,
) -> Result<Option<ListingTurn>, Status> {
    let Some(turns) = request.extensions().get::<ListingTurns>() else {
        return Ok(None);
    };
    let turn = async {
        // They are never closed.
        let (of_connection, of_share) = match &turns.own {
            Some(own) => (
                Arc::clone(&own.of_connection).acquire_owned().await.ok(),
                Arc::clone(&own.of_share).acquire_owned().await.ok(),
            ),
            None => (None, None),
        };
        ListingTurn {
            _of_connection: of_connection,
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
