//! The leaderless protocols on real stores: what each one promises, also where the outcome of a request is unknown.

mod faulty;
mod promises;
#[path = "../../support/rng.rs"]
mod rng;
mod rows;
mod sections;
mod world;

use std::sync::Arc;

use fermata::protocol::ProtocolKind;
use fermata::store::CellStore;
use fermata::store::embedded::{EmbeddedOptions, EmbeddedStore};
use tempfile::TempDir;

/// Makes the tests of a protocol on one kind of store.
macro_rules! protocol_keeps_its_promises {
    ($room:ident, $kind:ident, $cells_for:path: $($module:ident::$promise:ident,)*) => {
        mod $room {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $promise() {
                    if let Some((cells, _guard)) = $cells_for().await {
                        let world = super::world::World::new(stringify!($promise), super::ProtocolKind::$kind, cells);
                        super::$module::$promise(world).await;
                    }
                }
            )*
        }
    };
    // What a queue promises.
    ($room:ident, $kind:ident, $cells_for:path; $($module:ident::$promise:ident,)*) => {
        protocol_keeps_its_promises!($room, $kind, $cells_for:
            promises::the_first_holds_the_key_and_the_others_follow_in_order,
            promises::a_repeated_create_finds_its_entry,
            promises::an_entry_without_renewal_ends_after_its_ttl,
            promises::a_renewed_entry_stays,
            promises::a_release_is_told_to_whoever_asks_later,
            promises::an_entry_that_an_operator_ended_is_told_so,
            promises::a_watch_shows_each_change,
            promises::keys_with_entries_are_listed_and_described,
            promises::a_session_is_refused,
            $($module::$promise,)*
        );
    };
}

/// A queue with a fence.
macro_rules! music_keeps_its_promises {
    ($room:ident, $cells_for:path) => {
        protocol_keeps_its_promises!($room, Music, $cells_for;
            promises::the_next_holder_reads_the_last_write_and_an_earlier_holder_writes_no_more,
            promises::a_number_is_used_once,
            promises::a_release_with_a_put_may_be_repeated,
            promises::an_entry_that_ended_stays_so_whatever_its_client_had_in_flight,
            sections::counters_are_exact_while_requests_fail_and_holders_vanish,
        );
    };
}

/// A queue without one.
macro_rules! bakery_keeps_its_promises {
    ($room:ident, $cells_for:path) => {
        protocol_keeps_its_promises!($room, Bakery, $cells_for;
            promises::a_value_without_a_fence_needs_leave,
            promises::a_holder_reads_what_the_one_before_it_wrote,
            promises::an_entry_that_ended_stays_so_whatever_its_client_had_in_flight,
            sections::one_holder_at_a_time_while_requests_fail,
        );
    };
}

/// Lock columns: without an order and a fence.
macro_rules! column_prefix_keeps_its_promises {
    ($room:ident, $cells_for:path) => {
        protocol_keeps_its_promises!($room, ColumnPrefix, $cells_for:
            promises::a_renewed_entry_stays,
            promises::a_release_is_told_to_whoever_asks_later,
            promises::a_watch_shows_each_change,
            promises::a_session_is_refused,
            promises::a_value_without_a_fence_needs_leave,
            promises::a_holder_reads_what_the_one_before_it_wrote,
            promises::a_release_with_a_put_may_be_repeated,
            promises::an_entry_that_ended_stays_so_whatever_its_client_had_in_flight,
            sections::one_holder_at_a_time_while_requests_fail,
            rows::one_holds_and_others_wait_until_it_is_gone,
            rows::a_repeated_create_finds_its_lock,
            rows::a_holder_without_renewal_loses_its_row_after_its_ttl,
            rows::a_holder_that_an_operator_ended_is_told_so,
            rows::locked_rows_are_listed_and_described,
            rows::a_waiter_that_was_released_never_holds,
            rows::a_row_is_read_with_its_lock_and_changed_with_its_release,
            rows::of_two_locks_with_one_id_the_second_is_refused,
            rows::stale_columns_are_an_error_or_are_removed,
            rows::columns_of_other_programs_count,
            rows::an_operator_removes_all_lock_columns,
            rows::a_lock_column_that_came_late_is_none,
            rows::a_renewal_that_came_late_is_none,
            rows::a_renewal_that_overtakes_an_earlier_one_keeps_its_promise,
        );
    };
}

async fn embedded() -> Option<(Arc<dyn CellStore>, TempDir)> {
    let directory = TempDir::new().unwrap();
    let store = EmbeddedStore::open(EmbeddedOptions::new(directory.path())).unwrap();
    Some((Arc::new(store).cells(), directory))
}

music_keeps_its_promises!(music_embedded, super::embedded);
music_keeps_its_promises!(music_cassandra, crate::cassandra::cells_for);
bakery_keeps_its_promises!(bakery_embedded, super::embedded);
bakery_keeps_its_promises!(bakery_cassandra, crate::cassandra::cells_for);
column_prefix_keeps_its_promises!(column_prefix_embedded, super::embedded);
column_prefix_keeps_its_promises!(column_prefix_cassandra, crate::cassandra::rows_for);
