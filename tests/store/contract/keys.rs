//! What every store promises of the states of keys.

use std::sync::Mutex;

use bytes::Bytes;
use fermata::key::{Home, KeyState, Reserved};
use fermata::lock::{Fence, Key, KeyId, ReplicaId, Seq};
use fermata::store::{Cell, Store, StoreError, Swap, Written};

use crate::world::{Random, apply, id, id_in, key, replica, table, with_entry, without_holder};

pub async fn a_swap_takes_effect_on_the_version_it_names_only(store: Store) {
    assert_eq!(store.keys.load(&id("swap")).await.unwrap(), None);
    let none = KeyState::default();
    let one = with_entry(&none, 1);
    let two = with_entry(&one, 2);
    apply(&*store.keys, &id("swap"), &none, &one).await;
    assert_eq!(
        store.keys.load(&id("swap")).await.unwrap(),
        Some(one.clone())
    );
    apply(&*store.keys, &id("swap"), &one, &two).await;
    assert_eq!(
        store.keys.load(&id("swap")).await.unwrap(),
        Some(two.clone())
    );
    // A key that was used and given back is not a fresh one.
    let three = without_holder(&without_holder(&two));
    let three = KeyState {
        version: 3,
        ..three
    };
    apply(&*store.keys, &id("swap"), &two, &three).await;
    assert_eq!(store.keys.load(&id("swap")).await.unwrap(), Some(three));
    let swap = store.keys.compare_and_swap(&id("swap"), &none, &one).await;
    assert!(matches!(swap, Swap::Conflict(Some(_))), "{swap:?}");
}

pub async fn a_conflict_shows_the_state_and_changes_nothing(store: Store) {
    let none = KeyState::default();
    let one = with_entry(&none, 1);
    let two = with_entry(&one, 2);
    let shown = |swap| match swap {
        Swap::Conflict(state) => state,
        other => panic!("{other:?}"),
    };
    // A key that the store does not have.
    let swap = store
        .keys
        .compare_and_swap(&id("conflict"), &one, &two)
        .await;
    assert_eq!(shown(swap), None);
    assert_eq!(store.keys.load(&id("conflict")).await.unwrap(), None);

    apply(&*store.keys, &id("conflict"), &none, &one).await;
    apply(&*store.keys, &id("conflict"), &one, &two).await;
    // One that comes too late, and one from a future that never was.
    let stale = with_entry(&one, 3);
    let swap = store
        .keys
        .compare_and_swap(&id("conflict"), &one, &stale)
        .await;
    assert_eq!(shown(swap), Some(two.clone()));
    let ahead = with_entry(&stale, 4);
    let ahead_by_one = with_entry(&ahead, 5);
    let swap = store
        .keys
        .compare_and_swap(&id("conflict"), &ahead, &ahead_by_one)
        .await;
    assert_eq!(shown(swap), Some(two.clone()));
    assert_eq!(store.keys.load(&id("conflict")).await.unwrap(), Some(two));
}

/// What is stored under this key in the end. Nodes at work on lost races may have no time for a read: it is repeated.
async fn settled(store: &Store, id: &KeyId) -> Option<KeyState> {
    for _ in 0..10 {
        match store.keys.load_settled(id).await {
            Err(StoreError::Unavailable(_)) => {}
            read => return read.unwrap(),
        }
    }
    panic!("the nodes answered none of ten reads");
}

pub async fn of_two_racing_writers_exactly_one_applies(store: Store) {
    let mut state = KeyState::default();
    for round in 0..50u128 {
        let racers = [
            with_entry(&state, 2 * round + 1),
            with_entry(&state, 2 * round + 2),
        ];
        let key = id("race");
        let (a, b) = tokio::join!(
            store.keys.compare_and_swap(&key, &state, &racers[0]),
            store.keys.compare_and_swap(&key, &state, &racers[1]),
        );
        let kept = settled(&store, &key).await;
        let winner = racers.iter().position(|racer| kept.as_ref() == Some(racer));
        let winner = winner.unwrap_or_else(|| panic!("round {round}: {a:?}, {b:?}, {kept:?}"));
        let (won, lost) = match winner {
            0 => (a, b),
            _ => (b, a),
        };
        // A store that took long was asked twice: then it does not know.
        assert!(
            matches!(won, Swap::Applied | Swap::Unknown(_)),
            "round {round}: {won:?}"
        );
        match lost {
            Swap::Conflict(seen) => assert_eq!(seen, kept, "round {round}"),
            Swap::Unknown(_) => {}
            other => panic!("round {round}: {other:?}"),
        }
        state = racers[winner].clone();
    }
}

pub async fn random_states_read_back_whole(store: Store) {
    let mut random = Random::seeded("random_states_read_back_whole");
    for key in ["random a", "random b", "random c"] {
        let mut state = KeyState::default();
        for _ in 0..60 {
            let next = random.successor(&state);
            apply(&*store.keys, &id(key), &state, &next).await;
            let kept = store.keys.load(&id(key)).await.unwrap();
            assert_eq!(kept, Some(next.clone()));
            state = next;
        }
    }
}

/// What each part becomes and goes back to: none, some, another, none.
pub async fn the_home_and_what_it_reserves_read_back_through_every_change(store: Store) {
    let home = |number, term| {
        Some(Home {
            replica: replica(number),
            term,
        })
    };
    let reserved = |seq_end, fence_end, volatile_end| Reserved {
        seq_end: Seq(seq_end),
        fence_end,
        volatile_end: Seq(volatile_end),
    };
    let queue = with_entry(&with_entry(&KeyState::default(), 1), 2);
    let idle = KeyState {
        grant: Fence::NONE,
        kept: None,
        entries: [].into(),
        ..queue.clone()
    };
    let ungranted = KeyState {
        grant: Fence::NONE,
        ..queue.clone()
    };
    // After the others were released.
    let later = with_entry(
        &KeyState {
            home: home(1, 1),
            ..idle.clone()
        },
        3,
    );
    let last = i64::MAX as u64;
    let steps = [
        (&queue, home(1, 1), reserved(3, 1_016, 0), Some(Seq(1))),
        // As a home reserves, and with the holder durable again.
        (&queue, home(1, 1), reserved(4_099, 600_001_016, 2), None),
        (
            &queue,
            home(1, 1),
            reserved(4_099, 600_001_016, 2),
            Some(Seq(1)),
        ),
        // Another home, to which nothing was granted yet; and all as large as it may be.
        (&ungranted, home(2, 2), reserved(last, last, last), None),
        (&idle, home(0, last), reserved(3, 1_016, 0), None),
        (&idle, None, reserved(3, 1_016, 0), None),
        (&later, home(2, 3), later.reserved, Some(Seq(3))),
    ];
    let mut old = KeyState::default();
    for (number, (state, home, reserved, kept)) in steps.into_iter().enumerate() {
        let new = KeyState {
            version: old.version + 1,
            home,
            reserved,
            kept,
            ..state.clone()
        };
        assert_eq!(new.check(), Ok(()), "step {number}");
        apply(&*store.keys, &id("home"), &old, &new).await;
        let kept = store.keys.load(&id("home")).await.unwrap();
        assert_eq!(kept.as_ref(), Some(&new), "step {number}");
        let kept = store.keys.load_settled(&id("home")).await.unwrap();
        assert_eq!(kept.as_ref(), Some(&new), "step {number}");
        old = new;
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

pub async fn keys_and_tables_do_not_touch_each_other_and_live_keys_are_listed(store: Store) {
    let none = KeyState::default();
    let mut expected = ODD_KEYS.map(key).to_vec();
    expected.sort();
    // Written backwards, each with as many entries as its number; a value beside it.
    let mut states = Vec::new();
    for (number, key) in expected.iter().enumerate().rev() {
        for name in ["default", "d", "default_2"] {
            let id = id_in(name, key.as_str());
            let mut state = none.clone();
            for entry in 0..=number as u128 {
                let next = with_entry(&state, 100 * states.len() as u128 + entry);
                apply(&*store.keys, &id, &state, &next).await;
                state = next;
            }
            let cell = Cell {
                value: Some(Bytes::from(id.to_string())),
                timestamp: 1,
            };
            let written = store.data.write_data(&id, cell).await;
            assert!(matches!(written, Written::Done), "{id}: {written:?}");
            states.push((id, state));
        }
    }
    for (id, state) in states {
        let kept = store.keys.load(&id).await.unwrap();
        assert_eq!(kept, Some(state), "{id}");
        let cell = store.data.read_data(&id).await.unwrap().unwrap();
        assert_eq!(cell.value, Some(Bytes::from(id.to_string())), "{id}");
    }
    // One that nobody wants any more.
    let one = with_entry(&none, 1);
    apply(&*store.keys, &id("a gone one"), &none, &one).await;
    apply(&*store.keys, &id("a gone one"), &one, &without_holder(&one)).await;

    let default = table("default");
    for page in [1, 3, expected.len(), 100] {
        let mut seen = Vec::new();
        loop {
            let listed = store
                .keys
                .list_live(&default, "", seen.last(), page)
                .await
                .unwrap();
            assert!(listed.len() <= page);
            for one in &listed {
                let id = id_in("default", one.key.as_str());
                assert_eq!(
                    store.keys.load(&id).await.unwrap().as_ref(),
                    Some(&one.state)
                );
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
        .keys
        .list_live(&default, "", Some(&key("a!")), 1)
        .await
        .unwrap();
    assert_eq!(after[0].key, key("a#1"));
    for (prefix, after) in [
        ("a", None),
        ("a#", None),
        ("a", Some("a!")),
        ("b", Some("a")),
        ("zz", None),
    ] {
        let after = after.map(key);
        let listed = store.keys.list_live(&default, prefix, after.as_ref(), 100);
        let listed: Vec<Key> = listed
            .await
            .unwrap()
            .into_iter()
            .map(|one| one.key)
            .collect();
        let is_wanted = |one: &&Key| {
            one.as_str().starts_with(prefix) && after.as_ref().is_none_or(|after| *one > after)
        };
        let wanted: Vec<Key> = expected.iter().filter(is_wanted).cloned().collect();
        assert_eq!(listed, wanted, "{prefix} above {after:?}");
    }
    let other = store
        .keys
        .list_live(&table("other"), "", None, 9)
        .await
        .unwrap();
    assert!(other.is_empty());
    // All at once, in any order.
    let seen = Mutex::new(Vec::new());
    let look = |key: Key, home: Option<ReplicaId>| seen.lock().unwrap().push((key, home));
    store.keys.each_live(&default, &look).await.unwrap();
    let mut seen = seen.into_inner().unwrap();
    seen.sort_by(|(one, _), (other, _)| one.cmp(other));
    for (key, home) in &seen {
        let id = id_in("default", key.as_str());
        let state = store.keys.load(&id).await.unwrap().unwrap();
        assert!(home.is_some());
        assert_eq!(state.home.map(|home| home.replica), *home);
    }
    let seen: Vec<_> = seen.into_iter().map(|(key, _)| key).collect();
    assert_eq!(seen, expected);
}
