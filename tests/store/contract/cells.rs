//! What every store promises of cells. Each promise has keys of its own.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fermata::lock::{Key, KeyId, TableName};
use fermata::store::{CellChange, CellStore, CellSwap, Columns, Currency, Swap, Written};
use tokio::time::{Instant, sleep};

/// Makes the tests of cells for one kind of store, from an async function that makes its cells.
macro_rules! cells_keep_their_promises {
    ($cells_for:path) => {
        $crate::contract::cells_keep_their_promises!($cells_for:
            a_swap_of_cells_takes_effect_on_the_value_it_names_only,
            the_changes_of_a_swap_take_effect_together,
            of_racing_swaps_exactly_one_applies,
            the_later_write_of_a_cell_wins_whatever_comes_first,
            a_cell_with_a_ttl_ends_after_it_and_a_renewed_one_does_not,
            cells_are_read_by_name_and_by_range_in_order,
            partitions_with_cells_are_listed_in_order_and_by_page,
        );
    };
    ($cells_for:path: $($promise:ident,)*) => {
        mod cells {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $promise() {
                    let Some((cells, _guard)) = $cells_for().await else {
                        return;
                    };
                    $crate::contract::$promise(cells).await;
                }
            )*
        }
    };
}
pub(crate) use cells_keep_their_promises;

/// The table of cells.
pub const CELLS: &str = "cells";

fn id(key: &str) -> KeyId {
    KeyId {
        table: TableName::parse(CELLS).unwrap(),
        key: Key::parse(key, Key::BYTES_MAX).unwrap(),
    }
}

fn put(column: &str, value: &str) -> CellChange {
    CellChange::Put {
        column: column.to_owned(),
        value: Bytes::copy_from_slice(value.as_bytes()),
        ttl: None,
    }
}

fn put_for(column: &str, value: &str, ttl: Duration) -> CellChange {
    CellChange::Put {
        column: column.to_owned(),
        value: Bytes::copy_from_slice(value.as_bytes()),
        ttl: Some(ttl),
    }
}

fn delete(column: &str) -> CellChange {
    CellChange::Delete {
        column: column.to_owned(),
    }
}

fn swap(expected: Option<&str>, first: CellChange, others: Vec<CellChange>) -> CellSwap {
    CellSwap {
        expected: expected.map(|value| Bytes::copy_from_slice(value.as_bytes())),
        first,
        others,
    }
}

type Cells = Arc<dyn CellStore>;

/// Repeats a swap that the store had no time for, as its callers do.
async fn swapped(cells: &Cells, key: &str, swap: CellSwap) -> Result<(), Option<Bytes>> {
    match cells.swap_cells(&id(key), &swap).await {
        Swap::Applied => Ok(()),
        Swap::Conflict(met) => Err(met),
        Swap::Unknown(error) | Swap::NotStarted(error) => panic!("{error}"),
    }
}

async fn written(cells: &Cells, key: &str, changes: &[CellChange], timestamp: u64) {
    let written = cells.write_cells(&id(key), changes, timestamp).await;
    assert!(matches!(written, Written::Done), "{written:?}");
}

async fn read(cells: &Cells, key: &str, columns: &Columns) -> Vec<(String, String)> {
    let read = read_as(cells, key, columns, Currency::Acknowledged).await;
    let settled = read_as(cells, key, columns, Currency::Settled).await;
    assert_eq!(read, settled);
    read
}

async fn read_as(
    cells: &Cells,
    key: &str,
    columns: &Columns,
    currency: Currency,
) -> Vec<(String, String)> {
    let read = cells.read_cells(&id(key), columns, currency).await.unwrap();
    let text = |value: Bytes| String::from_utf8(value.to_vec()).unwrap();
    read.into_iter()
        .map(|cell| (cell.column, text(cell.value)))
        .collect()
}

/// The cells that [`all`] reads.
fn everything() -> Columns {
    Columns::Between("a".to_owned(), "z".to_owned())
}

async fn all(cells: &Cells, key: &str) -> Vec<(String, String)> {
    read(cells, key, &everything()).await
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(column, value): &(&str, &str)| ((*column).to_owned(), (*value).to_owned());
    pairs.iter().map(owned).collect()
}

pub async fn a_swap_of_cells_takes_effect_on_the_value_it_names_only(cells: Cells) {
    let of = |text: &'static str| Some(Bytes::from_static(text.as_bytes()));
    assert_eq!(
        swapped(&cells, "s", swap(Some("x"), put("c", "1"), vec![])).await,
        Err(None)
    );
    assert_eq!(
        swapped(&cells, "s", swap(None, put("c", "1"), vec![])).await,
        Ok(())
    );
    assert_eq!(
        swapped(&cells, "s", swap(None, put("c", "2"), vec![])).await,
        Err(of("1"))
    );
    assert_eq!(
        swapped(&cells, "s", swap(Some("2"), put("c", "3"), vec![])).await,
        Err(of("1"))
    );
    assert_eq!(all(&cells, "s").await, pairs(&[("c", "1")]));
    assert_eq!(
        swapped(&cells, "s", swap(Some("1"), put("c", "2"), vec![])).await,
        Ok(())
    );
    assert_eq!(
        swapped(&cells, "s", swap(Some("1"), delete("c"), vec![])).await,
        Err(of("2"))
    );
    assert_eq!(
        swapped(&cells, "s", swap(Some("2"), delete("c"), vec![])).await,
        Ok(())
    );
    assert_eq!(all(&cells, "s").await, []);
    assert_eq!(
        swapped(&cells, "s", swap(None, put("c", "4"), vec![])).await,
        Ok(())
    );
}

pub async fn the_changes_of_a_swap_take_effect_together(cells: Cells) {
    let others = vec![put("d", "1"), put_for("e", "1", Duration::from_secs(60))];
    swapped(&cells, "t", swap(None, put("c", "1"), others))
        .await
        .unwrap();
    let others = vec![put("d", "2"), delete("e"), put("f", "2")];
    let refused = swapped(&cells, "t", swap(Some("0"), put("c", "2"), others.clone())).await;
    refused.unwrap_err();
    assert_eq!(
        all(&cells, "t").await,
        pairs(&[("c", "1"), ("d", "1"), ("e", "1")])
    );
    swapped(&cells, "t", swap(Some("1"), put("c", "2"), others))
        .await
        .unwrap();
    assert_eq!(
        all(&cells, "t").await,
        pairs(&[("c", "2"), ("d", "2"), ("f", "2")])
    );
}

pub async fn of_racing_swaps_exactly_one_applies(cells: Cells) {
    for round in 0..5 {
        let key = format!("race-{round}");
        let race = (0..4).map(|racer: u32| {
            let (cells, key) = (Arc::clone(&cells), key.clone());
            tokio::spawn(async move {
                let first = put("c", &racer.to_string());
                let own = put(&format!("own{racer}"), "");
                let swap = swap(None, first, vec![own]);
                // One whose outcome is unknown is settled by the read below.
                matches!(cells.swap_cells(&id(&key), &swap).await, Swap::Applied)
            })
        });
        let mut applied = 0;
        for racer in race.collect::<Vec<_>>() {
            applied += usize::from(racer.await.unwrap());
        }
        assert!(applied <= 1);
        let columns = Columns::Between("a".to_owned(), "z".to_owned());
        let left = cells
            .read_cells(&id(&key), &columns, Currency::Settled)
            .await
            .unwrap();
        assert_eq!(left.len(), 2, "{left:?}");
        let winner = String::from_utf8(left[0].value.to_vec()).unwrap();
        assert_eq!(left[1].column, format!("own{winner}"));
    }
}

pub async fn the_later_write_of_a_cell_wins_whatever_comes_first(cells: Cells) {
    written(&cells, "w", &[put("c", "10"), put("d", "10")], 10).await;
    written(&cells, "w", &[put("c", "zz"), delete("d")], 9).await;
    assert_eq!(all(&cells, "w").await, pairs(&[("c", "10"), ("d", "10")]));
    // A deletion stays above what was before it, and above a put of the same moment.
    written(&cells, "w", &[delete("c")], 11).await;
    written(&cells, "w", &[put("c", "late")], 10).await;
    written(&cells, "w", &[put("c", "same")], 11).await;
    assert_eq!(all(&cells, "w").await, pairs(&[("d", "10")]));
    written(&cells, "w", &[put("c", "12")], 12).await;
    assert_eq!(all(&cells, "w").await, pairs(&[("c", "12"), ("d", "10")]));
    let columns = Columns::Named(vec!["c".to_owned()]);
    let read = cells
        .read_cells(&id("w"), &columns, Currency::Acknowledged)
        .await
        .unwrap();
    assert_eq!((read[0].timestamp, read[0].left), (12, None));
}

pub async fn a_cell_with_a_ttl_ends_after_it_and_a_renewed_one_does_not(cells: Cells) {
    let ttl = Duration::from_secs(3);
    let begun = Instant::now();
    let others = vec![put_for("d", "1", ttl)];
    swapped(&cells, "ttl", swap(None, put_for("c", "1", ttl), others))
        .await
        .unwrap();
    let columns = Columns::Named(vec!["c".to_owned()]);
    let read = cells
        .read_cells(&id("ttl"), &columns, Currency::Acknowledged)
        .await
        .unwrap();
    let left = read[0].left.unwrap();
    assert!(left <= ttl && left >= Duration::from_secs(1), "{left:?}");
    // Renewed by a swap of the value for itself.
    sleep(Duration::from_secs(1)).await;
    let renewed = swap(
        Some("1"),
        put_for("c", "1", Duration::from_secs(60)),
        vec![],
    );
    swapped(&cells, "ttl", renewed).await.unwrap();
    loop {
        let before = begun.elapsed();
        // One read: a cell may end between two.
        match read_as(&cells, "ttl", &everything(), Currency::Acknowledged).await {
            both if both.len() == 2 => assert!(before < 2 * ttl, "it did not end"),
            one => {
                assert_eq!(one, pairs(&[("c", "1")]));
                assert!(begun.elapsed() >= ttl, "it ended too early");
                break;
            }
        }
        sleep(Duration::from_millis(50)).await;
    }
    // For a swap it is not there any more.
    swapped(&cells, "ttl", swap(None, put("d", "2"), vec![]))
        .await
        .unwrap();
}

pub async fn cells_are_read_by_name_and_by_range_in_order(cells: Cells) {
    let columns = ["e/0001", "e/0002", "e/00ff", "e0", "r/ü", "value"];
    let changes: Vec<CellChange> = columns.iter().map(|column| put(column, "v")).collect();
    written(&cells, "o", &changes, 1).await;
    written(&cells, "o2", &[put("e/0003", "other")], 1).await;
    let names = async |columns: Columns| -> Vec<String> {
        let read = read(&cells, "o", &columns).await;
        read.into_iter().map(|(column, _)| column).collect()
    };
    assert_eq!(
        names(Columns::Between("e/".to_owned(), "e0".to_owned())).await,
        columns[..3]
    );
    let between = Columns::Between("e/0002".to_owned(), "e/00ff".to_owned());
    assert_eq!(names(between).await, ["e/0002"]);
    let named = ["value", "none", "e0"].map(str::to_owned).to_vec();
    assert_eq!(names(Columns::Named(named)).await, ["e0", "value"]);
}

pub async fn partitions_with_cells_are_listed_in_order_and_by_page(cells: Cells) {
    for key in ["list/b", "list/a", "list/c", "list/d", "lis"] {
        written(&cells, key, &[put("c", "v"), put("d", "v")], 1).await;
    }
    written(&cells, "list/c", &[delete("c"), delete("d")], 2).await;
    let table = TableName::parse(CELLS).unwrap();
    let page = cells
        .list_partitions(&table, "list/", None, 2)
        .await
        .unwrap();
    let texts: Vec<_> = page.iter().map(Key::as_str).collect();
    assert_eq!(texts, ["list/a", "list/b"]);
    let page = cells
        .list_partitions(&table, "list/", page.last(), 2)
        .await
        .unwrap();
    let texts: Vec<_> = page.iter().map(Key::as_str).collect();
    assert_eq!(texts, ["list/d"]);
}
