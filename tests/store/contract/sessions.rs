//! What every store promises of sessions.

use std::sync::Mutex;

use fermata::store::{SessionRow, SessionSwap, Store};

use crate::world::session;

pub async fn a_session_changes_by_its_epoch_only(store: Store) {
    let one = session(1, 1, true);
    let two = session(1, 2, true);
    assert_eq!(store.sessions.load_session(one.id).await.unwrap(), None);
    let conflict = store.sessions.swap_session(1, &two).await;
    assert!(matches!(conflict, SessionSwap::Conflict(None)));
    let applied = store.sessions.swap_session(0, &one).await;
    assert!(matches!(applied, SessionSwap::Applied));
    assert_eq!(
        store.sessions.load_session(one.id).await.unwrap(),
        Some(one.clone())
    );
    for expected in [0, 2] {
        match store.sessions.swap_session(expected, &two).await {
            SessionSwap::Conflict(seen) => assert_eq!(seen, Some(one.clone())),
            other => panic!("{other:?}"),
        }
    }
    let applied = store.sessions.swap_session(1, &two).await;
    assert!(matches!(applied, SessionSwap::Applied));
    assert_eq!(
        store.sessions.load_session(one.id).await.unwrap(),
        Some(two)
    );
}

pub async fn only_a_closed_session_is_forgotten(store: Store) {
    let open = session(2, 1, true);
    let closed = session(2, 2, false);
    store.sessions.forget_session(open.id).await.unwrap();
    store.sessions.swap_session(0, &open).await;
    store.sessions.forget_session(open.id).await.unwrap();
    assert_eq!(
        store.sessions.load_session(open.id).await.unwrap(),
        Some(open.clone())
    );
    store.sessions.swap_session(1, &closed).await;
    store.sessions.forget_session(open.id).await.unwrap();
    assert_eq!(store.sessions.load_session(open.id).await.unwrap(), None);
}

pub async fn sessions_are_listed_in_order_and_by_page(store: Store) {
    let numbers = [1u128, 2, 255, 256, 1 << 90, u128::MAX];
    for number in numbers.iter().rev() {
        let applied = store
            .sessions
            .swap_session(0, &session(*number, 1, true))
            .await;
        assert!(matches!(applied, SessionSwap::Applied));
    }
    let closed = session(255, 2, false);
    store.sessions.swap_session(1, &closed).await;
    for page in [1, 2, 6, 100] {
        let mut seen = Vec::new();
        loop {
            let after = seen.last().map(|row: &SessionRow| row.id);
            let listed = store.sessions.list_sessions(after, page).await.unwrap();
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
    store.sessions.each_session(&look).await.unwrap();
    let mut seen = seen.into_inner().unwrap();
    seen.sort_unstable();
    assert_eq!(seen, numbers, "in any order");
}
