//! What every store promises. A store calls [`keeps_its_promises`] with a way to make one, and says so where several
//! replicas share it.

mod cells;
mod data;
mod keys;
mod sessions;
mod shared;

use std::future::Future;

use fermata::store::Store;

pub use cells::*;
pub use data::*;
pub use keys::*;
pub use sessions::*;
pub use shared::*;

/// Makes the tests of the contract for one kind of store: a module of them, from an async function that makes a store
/// for the promise with this name. Only those that list what a store has need one to themselves.
macro_rules! keeps_its_promises {
    ($store_for:path) => {
        $crate::contract::keeps_its_promises!($store_for:
            a_swap_takes_effect_on_the_version_it_names_only,
            a_conflict_shows_the_state_and_changes_nothing,
            of_two_racing_writers_exactly_one_applies,
            random_states_read_back_whole,
            the_home_and_what_it_reserves_read_back_through_every_change,
            keys_and_tables_do_not_touch_each_other_and_live_keys_are_listed,
            the_later_timestamp_wins_whatever_comes_first,
            of_equal_timestamps_the_larger_value_wins_and_a_deletion_over_all,
            a_deleted_value_is_not_a_missing_one,
            a_session_changes_by_its_epoch_only,
            only_a_closed_session_is_forgotten,
            sessions_are_listed_in_order_and_by_page,
        );
    };
    // What it promises beside that where several replicas share it.
    ($store_for:path, shared) => {
        $crate::contract::keeps_its_promises!($store_for);
        $crate::contract::keeps_its_promises!($store_for:
            a_replica_is_listed_and_announced_again_until_its_life_changes,
            heartbeats_never_go_back,
            a_life_changes_only_from_what_it_is,
            of_two_who_change_a_life_exactly_one_does,
            a_replica_that_is_down_does_not_come_back,
            a_replica_that_is_up_is_not_forgotten_and_one_that_was_does_not_come_back,
            who_is_asked_sees_a_hand_over_request_until_it_is_forgotten,
            some_hundreds_of_hand_over_requests_are_seen_at_once_and_the_others_after_them,
            a_shared_store_has_a_clock,
        );
    };
    ($store_for:path: $($promise:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $promise() {
                let store = $store_for(stringify!($promise));
                $crate::contract::with_store(store, $crate::contract::$promise).await;
            }
        )*
    };
}
pub(crate) use keeps_its_promises;

/// A store and what must live as long.
pub struct Fresh<G> {
    pub store: Store,
    pub _guard: G,
}

/// Without a store there is nothing to keep: a kind of store that this machine cannot run says so itself.
pub async fn with_store<G, E, M, T>(store: E, promise: impl FnOnce(Store) -> T)
where
    E: Future<Output = M>,
    M: Into<Option<Fresh<G>>>,
    T: Future<Output = ()>,
{
    let Some(fresh) = store.await.into() else {
        return;
    };
    assert!(fresh.store.health.ready().is_ok());
    promise(fresh.store.clone()).await;
}
