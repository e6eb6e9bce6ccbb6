//! What every store promises. A store calls [`keeps_its_promises`] with a way to make an empty one.

mod shared;

use std::future::Future;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use fermata::lock::State;
use fermata::store::{Cell, Listed, SessionRow, SessionSwap, Store, Swap, Written};

use crate::world::{
    Random, apply, id, id_in, key, replica_row, session, table, with_entry, without_holder,
};

pub use shared::*;

/// Makes the tests of the contract for one kind of store: a module of them, from an async function that
/// makes an empty store for the promise with this name.
macro_rules! keeps_its_promises {
    ($empty_store:path) => {
        $crate::contract::keeps_its_promises!($empty_store:
            a_swap_takes_effect_on_the_version_it_names_only,
            a_conflict_shows_the_state_and_changes_nothing,
            of_two_racing_writers_exactly_one_applies,
            random_states_read_back_whole,
            keys_and_tables_do_not_touch_each_other,
            live_keys_are_listed_in_order_and_by_page,
            the_later_timestamp_wins_whatever_comes_first,
            of_equal_timestamps_the_larger_value_wins_and_a_deletion_over_all,
            a_deleted_value_is_not_a_missing_one,
            a_session_changes_by_its_epoch_only,
            only_a_closed_session_is_forgotten,
            sessions_are_listed_in_order_and_by_page,
            an_announced_replica_is_listed,
            heartbeats_never_go_back,
            a_forgotten_replica_does_not_come_back,
            who_is_asked_sees_a_hand_over_request_until_they_answer,
            some_hundreds_of_hand_over_requests_are_seen_at_once_and_the_others_after_them,
            a_shared_store_has_a_clock,
        );
    };
    ($empty_store:path: $($promise:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $promise() {
                let empty = $empty_store(stringify!($promise));
                $crate::contract::with_store(empty, $crate::contract::$promise).await;
            }
        )*
    };
}
pub(crate) use keeps_its_promises;

/// An empty store and what must live as long.
pub struct Fresh<G> {
    pub store: Arc<dyn Store>,
    pub _guard: G,
}

/// Without a store there is nothing to keep: a kind of store that this machine cannot run says so itself.
pub async fn with_store<G, E, M, T>(empty_store: E, promise: impl FnOnce(Arc<dyn Store>) -> T)
where
    E: Future<Output = M>,
    M: Into<Option<Fresh<G>>>,
    T: Future<Output = ()>,
{
    let Some(fresh) = empty_store.await.into() else {
        return;
    };
    assert!(fresh.store.ready().is_ok());
    promise(Arc::clone(&fresh.store)).await;
}

fn cell(timestamp: u64, value: Option<&'static str>) -> Cell {
    Cell {
        value: value.map(|text| Bytes::from_static(text.as_bytes())),
        timestamp,
    }
}

pub async fn a_swap_takes_effect_on_the_version_it_names_only(store: Arc<dyn Store>) {
    assert_eq!(store.load(&id("k")).await.unwrap(), None);
    let none = State::default();
    let one = with_entry(&none, 1);
    let two = with_entry(&one, 2);
    apply(&*store, &id("k"), &none, &one).await;
    assert_eq!(store.load(&id("k")).await.unwrap(), Some(one.clone()));
    apply(&*store, &id("k"), &one, &two).await;
    assert_eq!(store.load(&id("k")).await.unwrap(), Some(two.clone()));
    // A key that was used and given back is not a fresh one.
    let three = without_holder(&without_holder(&two));
    let three = State {
        version: 3,
        ..three
    };
    apply(&*store, &id("k"), &two, &three).await;
    assert_eq!(store.load(&id("k")).await.unwrap(), Some(three));
    let swap = store.compare_and_swap(&id("k"), &none, &one).await;
    assert!(matches!(swap, Swap::Conflict(Some(_))), "{swap:?}");
}

pub async fn a_conflict_shows_the_state_and_changes_nothing(store: Arc<dyn Store>) {
    let none = State::default();
    let one = with_entry(&none, 1);
    let two = with_entry(&one, 2);
    let shown = |swap| match swap {
        Swap::Conflict(state) => state,
        other => panic!("{other:?}"),
    };
    // A key that the store does not have.
    let swap = store.compare_and_swap(&id("k"), &one, &two).await;
    assert_eq!(shown(swap), None);
    assert_eq!(store.load(&id("k")).await.unwrap(), None);

    apply(&*store, &id("k"), &none, &one).await;
    apply(&*store, &id("k"), &one, &two).await;
    // One that comes too late, and one from a future that never was.
    let stale = with_entry(&one, 3);
    let swap = store.compare_and_swap(&id("k"), &one, &stale).await;
    assert_eq!(shown(swap), Some(two.clone()));
    let ahead = with_entry(&stale, 4);
    let ahead_by_one = with_entry(&ahead, 5);
    let swap = store
        .compare_and_swap(&id("k"), &ahead, &ahead_by_one)
        .await;
    assert_eq!(shown(swap), Some(two.clone()));
    assert_eq!(store.load(&id("k")).await.unwrap(), Some(two));
}

pub async fn of_two_racing_writers_exactly_one_applies(store: Arc<dyn Store>) {
    let mut state = State::default();
    for round in 0..50u128 {
        let racers = [
            with_entry(&state, 2 * round + 1),
            with_entry(&state, 2 * round + 2),
        ];
        let key = id("k");
        let (a, b) = tokio::join!(
            store.compare_and_swap(&key, &state, &racers[0]),
            store.compare_and_swap(&key, &state, &racers[1]),
        );
        let winner = match (a, b) {
            (Swap::Applied, Swap::Conflict(Some(seen))) => {
                assert_eq!(seen, racers[0]);
                0
            }
            (Swap::Conflict(Some(seen)), Swap::Applied) => {
                assert_eq!(seen, racers[1]);
                1
            }
            other => panic!("round {round}: {other:?}"),
        };
        let kept = store.load(&key).await.unwrap();
        assert_eq!(kept.as_ref(), Some(&racers[winner]));
        state = racers[winner].clone();
    }
}

pub async fn random_states_read_back_whole(store: Arc<dyn Store>) {
    let mut random = Random::seeded("random_states_read_back_whole");
    for key in ["a", "b", "c"] {
        let mut state = State::default();
        for _ in 0..60 {
            let next = random.successor(&state);
            apply(&*store, &id(key), &state, &next).await;
            let kept = store.load(&id(key)).await.unwrap();
            assert_eq!(kept, Some(next.clone()));
            state = next;
        }
    }
}

/// Keys that a careless store would mix up or put in another order.
const ODD_KEYS: [&str; 14] = [
    " ",
    "#",
    "/",
    "a",
    "a ",
    "a#1",
    "a/",
    "a/b",
    "aa",
    "ab",
    "default",
    "é",
    "日本",
    "\u{10FFFF}",
];

pub async fn keys_and_tables_do_not_touch_each_other(store: Arc<dyn Store>) {
    let none = State::default();
    let tables = ["default", "d", "default_2"];
    let mut ids = Vec::new();
    for table in tables {
        ids.extend(ODD_KEYS.map(|key| id_in(table, key)));
    }
    for (number, id) in (0u128..).zip(&ids) {
        let state = with_entry(&none, number);
        let swap = store.compare_and_swap(id, &none, &state).await;
        assert!(matches!(swap, Swap::Applied), "{id}: {swap:?}");
        let value = Some(Bytes::from(id.to_string()));
        let cell = Cell {
            value,
            timestamp: 1,
        };
        let written = store.write_data(id, cell).await;
        assert!(matches!(written, Written::Done), "{id}: {written:?}");
    }
    for (number, id) in (0u128..).zip(&ids) {
        let state = store.load(id).await.unwrap().unwrap();
        assert_eq!(state, with_entry(&none, number), "{id}");
        let cell = store.read_data(id).await.unwrap().unwrap();
        assert_eq!(cell.value, Some(Bytes::from(id.to_string())), "{id}");
    }
}

pub async fn live_keys_are_listed_in_order_and_by_page(store: Arc<dyn Store>) {
    let none = State::default();
    let mut expected = ODD_KEYS.map(key).to_vec();
    expected.sort();
    // Written backwards, each with as many entries as its number; other tables beside it.
    for (number, key) in expected.iter().enumerate().rev() {
        for name in ["default", "d", "default_2"] {
            let id = id_in(name, key.as_str());
            let mut state = none.clone();
            for entry in 0..=number as u128 {
                let next = with_entry(&state, entry);
                let swap = store.compare_and_swap(&id, &state, &next).await;
                assert!(matches!(swap, Swap::Applied), "{id}: {swap:?}");
                state = next;
            }
        }
    }
    // One that nobody wants any more.
    let one = with_entry(&none, 1);
    apply(&*store, &id("a gone one"), &none, &one).await;
    apply(&*store, &id("a gone one"), &one, &without_holder(&one)).await;

    let default = table("default");
    for page in [1, 3, expected.len(), 100] {
        let mut seen = Vec::new();
        loop {
            let listed = store.list_live(&default, seen.last(), page).await.unwrap();
            assert!(listed.len() <= page);
            for one in &listed {
                let id = id_in("default", one.key.as_str());
                assert_eq!(store.load(&id).await.unwrap().as_ref(), Some(&one.state));
            }
            let last = listed.len() < page;
            seen.extend(listed.into_iter().map(|one| one.key));
            if last {
                break;
            }
        }
        assert_eq!(seen, expected, "pages of {page}");
    }
    // From a key that is not listed, and of a table that has none.
    let after = store
        .list_live(&default, Some(&key("a!")), 1)
        .await
        .unwrap();
    assert_eq!(after[0].key, key("a#1"));
    let other = store.list_live(&table("other"), None, 9).await.unwrap();
    assert!(other.is_empty());
    // All at once, in any order.
    let seen = Mutex::new(Vec::new());
    let look = |one: Listed| seen.lock().unwrap().push((one.key, one.state));
    store.each_live(&default, &look).await.unwrap();
    let mut seen = seen.into_inner().unwrap();
    seen.sort_by(|(one, _), (other, _)| one.cmp(other));
    for (key, state) in &seen {
        let id = id_in("default", key.as_str());
        assert_eq!(store.load(&id).await.unwrap().as_ref(), Some(state));
    }
    let seen: Vec<_> = seen.into_iter().map(|(key, _)| key).collect();
    assert_eq!(seen, expected);
}

async fn write(store: &dyn Store, cell: Cell) {
    let written = store.write_data(&id("k"), cell).await;
    assert!(matches!(written, Written::Done), "{written:?}");
}

pub async fn the_later_timestamp_wins_whatever_comes_first(store: Arc<dyn Store>) {
    assert_eq!(store.read_data(&id("k")).await.unwrap(), None);
    write(&*store, cell(10, Some("ten"))).await;
    write(&*store, cell(9, Some("zzz"))).await;
    write(&*store, cell(8, None)).await;
    let kept = store.read_data(&id("k")).await.unwrap();
    assert_eq!(kept, Some(cell(10, Some("ten"))));
    write(&*store, cell(11, Some("a"))).await;
    let kept = store.read_data(&id("k")).await.unwrap();
    assert_eq!(kept, Some(cell(11, Some("a"))));
    let latest = cell(i64::MAX as u64, Some(""));
    write(&*store, latest.clone()).await;
    assert_eq!(store.read_data(&id("k")).await.unwrap(), Some(latest));
}

pub async fn of_equal_timestamps_the_larger_value_wins_and_a_deletion_over_all(
    store: Arc<dyn Store>,
) {
    let kept = async |expected| {
        let kept = store.read_data(&id("k")).await.unwrap();
        assert_eq!(kept, Some(cell(5, expected)));
    };
    write(&*store, cell(5, Some("b"))).await;
    write(&*store, cell(5, Some("a"))).await;
    kept(Some("b")).await;
    write(&*store, cell(5, Some("ba"))).await;
    kept(Some("ba")).await;
    write(&*store, cell(5, None)).await;
    kept(None).await;
    write(&*store, cell(5, Some("zzz"))).await;
    kept(None).await;
}

pub async fn a_deleted_value_is_not_a_missing_one(store: Arc<dyn Store>) {
    write(&*store, cell(1, Some(""))).await;
    let empty = store.read_data(&id("k")).await.unwrap();
    assert_eq!(empty, Some(cell(1, Some(""))));
    write(&*store, cell(2, None)).await;
    let deleted = store.read_data(&id("k")).await.unwrap();
    assert_eq!(deleted, Some(cell(2, None)));
}

pub async fn a_session_changes_by_its_epoch_only(store: Arc<dyn Store>) {
    let one = session(1, 1, true);
    let two = session(1, 2, true);
    assert_eq!(store.load_session(one.id).await.unwrap(), None);
    let conflict = store.swap_session(1, &two).await;
    assert!(matches!(conflict, SessionSwap::Conflict(None)));
    let applied = store.swap_session(0, &one).await;
    assert!(matches!(applied, SessionSwap::Applied));
    assert_eq!(store.load_session(one.id).await.unwrap(), Some(one.clone()));
    for expected in [0, 2] {
        match store.swap_session(expected, &two).await {
            SessionSwap::Conflict(seen) => assert_eq!(seen, Some(one.clone())),
            other => panic!("{other:?}"),
        }
    }
    let applied = store.swap_session(1, &two).await;
    assert!(matches!(applied, SessionSwap::Applied));
    assert_eq!(store.load_session(one.id).await.unwrap(), Some(two));
}

pub async fn only_a_closed_session_is_forgotten(store: Arc<dyn Store>) {
    let open = session(1, 1, true);
    let closed = session(1, 2, false);
    store.forget_session(open.id).await.unwrap();
    store.swap_session(0, &open).await;
    store.forget_session(open.id).await.unwrap();
    assert_eq!(
        store.load_session(open.id).await.unwrap(),
        Some(open.clone())
    );
    store.swap_session(1, &closed).await;
    store.forget_session(open.id).await.unwrap();
    assert_eq!(store.load_session(open.id).await.unwrap(), None);
}

pub async fn sessions_are_listed_in_order_and_by_page(store: Arc<dyn Store>) {
    let numbers = [1u128, 2, 255, 256, 1 << 90, u128::MAX];
    for number in numbers.iter().rev() {
        let applied = store.swap_session(0, &session(*number, 1, true)).await;
        assert!(matches!(applied, SessionSwap::Applied));
    }
    let closed = session(255, 2, false);
    store.swap_session(1, &closed).await;
    for page in [1, 2, 6, 100] {
        let mut seen = Vec::new();
        loop {
            let after = seen.last().map(|row: &SessionRow| row.id);
            let listed = store.list_sessions(after, page).await.unwrap();
            assert!(listed.len() <= page);
            let last = listed.len() < page;
            seen.extend(listed);
            if last {
                break;
            }
        }
        let ids: Vec<_> = seen.iter().map(|row| row.id.0.as_u128()).collect();
        assert_eq!(ids, numbers, "pages of {page}");
        assert_eq!(seen[2], closed);
    }
    let seen = Mutex::new(Vec::new());
    let look = |row: SessionRow| seen.lock().unwrap().push(row.id.0.as_u128());
    store.each_session(&look).await.unwrap();
    let mut seen = seen.into_inner().unwrap();
    seen.sort_unstable();
    assert_eq!(seen, numbers, "in any order");
}

pub async fn an_announced_replica_is_listed(store: Arc<dyn Store>) {
    for number in [5, 3] {
        store.announce_replica(&replica_row(number)).await.unwrap();
    }
    let listed = store.list_replicas().await.unwrap();
    if store.is_exclusive() {
        assert_eq!(listed, [replica_row(3)]);
    } else {
        assert_eq!(listed, [replica_row(3), replica_row(5)]);
    }
}
