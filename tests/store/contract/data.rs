//! What every store promises of the values of keys.

use bytes::Bytes;
use fermata::store::{Cell, Store, Written};

use crate::world::id;

fn cell(timestamp: u64, value: Option<&'static str>) -> Cell {
    Cell {
        value: value.map(|text| Bytes::from_static(text.as_bytes())),
        timestamp,
    }
}

async fn write(store: &Store, key: &str, cell: Cell) {
    let written = store.data.write_data(&id(key), cell).await;
    assert!(matches!(written, Written::Done), "{written:?}");
}

pub async fn the_later_timestamp_wins_whatever_comes_first(store: Store) {
    assert_eq!(store.data.read_data(&id("later")).await.unwrap(), None);
    write(&store, "later", cell(10, Some("ten"))).await;
    write(&store, "later", cell(9, Some("zzz"))).await;
    write(&store, "later", cell(8, None)).await;
    let kept = store.data.read_data(&id("later")).await.unwrap();
    assert_eq!(kept, Some(cell(10, Some("ten"))));
    write(&store, "later", cell(11, Some("a"))).await;
    let kept = store.data.read_data(&id("later")).await.unwrap();
    assert_eq!(kept, Some(cell(11, Some("a"))));
    let latest = cell(i64::MAX as u64, Some(""));
    write(&store, "later", latest.clone()).await;
    assert_eq!(
        store.data.read_data(&id("later")).await.unwrap(),
        Some(latest)
    );
}

pub async fn of_equal_timestamps_the_larger_value_wins_and_a_deletion_over_all(store: Store) {
    let kept = async |expected| {
        let kept = store.data.read_data(&id("equal")).await.unwrap();
        assert_eq!(kept, Some(cell(5, expected)));
    };
    write(&store, "equal", cell(5, Some("b"))).await;
    write(&store, "equal", cell(5, Some("a"))).await;
    kept(Some("b")).await;
    write(&store, "equal", cell(5, Some("ba"))).await;
    kept(Some("ba")).await;
    write(&store, "equal", cell(5, None)).await;
    kept(None).await;
    write(&store, "equal", cell(5, Some("zzz"))).await;
    kept(None).await;
}

pub async fn a_deleted_value_is_not_a_missing_one(store: Store) {
    write(&store, "deleted", cell(1, Some(""))).await;
    let empty = store.data.read_data(&id("deleted")).await.unwrap();
    assert_eq!(empty, Some(cell(1, Some(""))));
    write(&store, "deleted", cell(2, None)).await;
    let deleted = store.data.read_data(&id("deleted")).await.unwrap();
    assert_eq!(deleted, Some(cell(2, None)));
}
