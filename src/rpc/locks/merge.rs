//! Merges rows and the memory of homes to one page of keys. Pure: asks nobody.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use fermata_proto::LockSummary;

use crate::engine::Page;
use crate::lock::ReplicaId;

/// A key that is to be listed.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedKey {
    /// The term of its home.
    pub term: u64,
    /// What is listed.
    pub summary: LockSummary,
}

/// A key, as its row says.
#[derive(Clone, Debug)]
pub struct ListedRow {
    /// Its home.
    pub home: Option<ReplicaId>,
    /// The key.
    pub key: ListedKey,
}

/// What one replica has in memory.
#[derive(Clone, Debug)]
pub struct OfHome {
    /// Which replica.
    pub home: ReplicaId,
    /// The keys that it serves, in order. `next` is the last one if there are more.
    pub keys: Page<ListedKey, String>,
    /// Keys that it serves and does not list, though their rows name it.
    pub left_out: BTreeSet<String>,
}

/// The first `limit` keys of all of them, in the order of their bytes. What was left out of one of the lists is left to the
/// next page, so that no key is passed by.
pub fn merge(
    rows: Page<ListedRow, String>,
    homes: Vec<OfHome>,
    limit: usize,
) -> Page<ListedKey, String> {
    let ends = homes.iter().filter_map(|home| home.keys.next.as_ref());
    let end = ends.chain(rows.next.as_ref()).min().cloned();
    let mut merged: BTreeMap<String, ListedKey> = BTreeMap::new();
    for row in rows.items {
        let key = &row.key.summary.key;
        let is_left_out =
            |home: &OfHome| Some(home.home) == row.home && home.left_out.contains(key);
        if !homes.iter().any(is_left_out) {
            merged.insert(key.clone(), row.key);
        }
    }
    // A home in a later term knows better, and any home better than its row.
    for listed in homes.into_iter().flat_map(|home| home.keys.items) {
        match merged.entry(listed.summary.key.clone()) {
            Entry::Vacant(vacant) => drop(vacant.insert(listed)),
            Entry::Occupied(mut occupied) if listed.term >= occupied.get().term => {
                occupied.insert(listed);
            }
            Entry::Occupied(_) => {}
        }
    }
    if let Some(end) = &end {
        merged.retain(|key, _| key <= end);
    }
    let is_cut = merged.len() > limit;
    let items: Vec<ListedKey> = merged.into_values().take(limit).collect();
    let next = match is_cut {
        true => items.last().map(|last| last.summary.key.clone()),
        false => end,
    };
    Page { items, next }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn replica(number: u128) -> ReplicaId {
        ReplicaId(Uuid::from_u128(number))
    }

    fn key(key: &str, term: u64, waiters: u32) -> ListedKey {
        ListedKey {
            term,
            summary: LockSummary {
                key: key.to_owned(),
                waiters,
                ..LockSummary::default()
            },
        }
    }

    fn page<T>(items: Vec<T>, next: Option<&str>) -> Page<T, String> {
        let next = next.map(str::to_owned);
        Page { items, next }
    }

    /// A key of this home, as its row says.
    fn row(home: u128, listed: ListedKey) -> ListedRow {
        ListedRow {
            home: Some(replica(home)),
            key: listed,
        }
    }

    fn home(number: u128, keys: Page<ListedKey, String>, left_out: &[&str]) -> OfHome {
        OfHome {
            home: replica(number),
            keys,
            left_out: left_out.iter().map(|&key| key.to_owned()).collect(),
        }
    }

    fn names(page: &Page<ListedKey, String>) -> Vec<&str> {
        let items = page.items.iter();
        items.map(|one| one.summary.key.as_str()).collect()
    }

    #[test]
    fn what_only_memory_has_is_listed_and_what_only_its_row_has_is_not() {
        let rows = vec![
            row(1, key("a", 1, 0)),
            row(1, key("c", 1, 0)),
            row(2, key("d", 1, 0)),
        ];
        let first = home(1, page(vec![key("b", 1, 3), key("c", 1, 5)], None), &["a"]);
        let merged = merge(page(rows, None), vec![first], 9);
        // Whom nobody could ask keeps its rows.
        assert_eq!(names(&merged), ["b", "c", "d"]);
        assert_eq!(merged.items[1].summary.waiters, 5);
        assert_eq!(merged.next, None);
    }

    #[test]
    fn a_home_says_nothing_of_rows_that_name_another_one() {
        let rows = vec![row(2, key("a", 2, 0))];
        let former = home(1, page(Vec::new(), None), &["a"]);
        assert_eq!(names(&merge(page(rows, None), vec![former], 9)), ["a"]);
    }

    #[test]
    fn the_latest_term_counts() {
        let former = home(1, page(vec![key("a", 1, 1)], None), &[]);
        let present = home(2, page(vec![key("a", 2, 2)], None), &[]);
        for homes in [
            vec![former.clone(), present.clone()],
            vec![present, former.clone()],
        ] {
            let merged = merge(page(Vec::new(), None), homes, 9);
            assert_eq!(merged.items, [key("a", 2, 2)]);
        }
        // Its row says already who comes next.
        let rows = vec![row(2, key("a", 2, 7))];
        let merged = merge(page(rows, None), vec![former], 9);
        assert_eq!(merged.items, [key("a", 2, 7)]);
    }

    #[test]
    fn a_page_ends_where_the_first_of_its_lists_was_cut() {
        let rows = vec![row(1, key("a", 1, 0)), row(1, key("d", 1, 0))];
        let keys = page(vec![key("b", 1, 0), key("c", 1, 0)], Some("c"));
        let merged = merge(page(rows, Some("d")), vec![home(1, keys, &[])], 9);
        assert_eq!(names(&merged), ["a", "b", "c"]);
        assert_eq!(merged.next.as_deref(), Some("c"));
    }

    #[test]
    fn a_page_has_no_more_than_was_asked_for_and_the_next_goes_on_there() {
        let rows = vec![row(1, key("a", 1, 0)), row(1, key("d", 1, 0))];
        let keys = page(vec![key("b", 1, 0), key("c", 1, 0)], None);
        let merged = merge(page(rows, None), vec![home(1, keys, &[])], 3);
        assert_eq!(names(&merged), ["a", "b", "c"]);
        assert_eq!(merged.next.as_deref(), Some("c"));
    }

    #[test]
    fn a_page_whose_rows_fitted_nothing_goes_on_behind_them() {
        let merged = merge(page(Vec::new(), Some("m")), Vec::new(), 3);
        assert_eq!((merged.items.len(), merged.next.as_deref()), (0, Some("m")));
    }
}
