//! MUSIC's listing and slides: createLockRef, acquireLock, criticalGet, criticalPut, releaseLock.

use std::time::Duration;

use bytes::Bytes;
use fermata_client::{
    CallNumbers, Client, CriticalError, LockRequest, LostReason, Mutation, public_part,
};

use super::calls::{acquire_lock, create_lock_ref, release_lock};
use super::served::{BAKERY, HOMES, LONG, MUSIC, Queue, Served, UNFENCED};

fn number(value: &[u8]) -> u64 {
    std::str::from_utf8(value).unwrap().parse().unwrap()
}

fn put(number: u64) -> Mutation {
    Mutation::Put(Bytes::from(number.to_string()))
}

/// The listing, call by call.
async fn add_one(client: &Client, table: &str) {
    // lockRef = createLockRef(key)
    let lock_ref = create_lock_ref(client, table, "counter").await;
    // while acquireLock(lockRef, key) is not true: skip
    let granted = loop {
        match acquire_lock(client, &lock_ref).await {
            Some((granted, _)) => break granted,
            None => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    let numbers = CallNumbers::default();
    // v1 = criticalGet(lockRef, key): the latest value
    let read = client.critical_get(&granted, &numbers).await.unwrap();
    let before = read.map_or(0, |value| number(&value));
    // v2 = v1 + 1, criticalPut(lockRef, key, v2)
    let written = client.critical_write(&granted, put(before + 1), &numbers);
    written.await.unwrap();
    // releaseLock(lockRef)
    assert!(!release_lock(client, &granted).await);
}

#[tokio::test]
async fn the_listing_counts_exactly() {
    let served = Served::start();
    for table in [HOMES, MUSIC, UNFENCED] {
        served
            .contend(4, |client| async move {
                for _ in 0..5 {
                    add_one(&client, table).await;
                }
            })
            .await;
        let value = served.client.get(table, "counter").await.unwrap();
        assert_eq!(number(&value.unwrap()), 20, "{table}");
    }
}

/// The same with the library, in two calls.
#[tokio::test]
async fn the_listing_takes_two_calls_of_the_library() {
    let served = Served::start();
    for table in [HOMES, MUSIC, UNFENCED] {
        served
            .contend(4, |client| async move {
                for _ in 0..5 {
                    let request = LockRequest::new("counter").table(table).wait(LONG);
                    let guard = client.lock(request.read_value()).await.unwrap();
                    let read = guard.granted_value().cloned().flatten();
                    let before = read.map_or(0, |value| number(&value));
                    guard.release_with(put(before + 1)).await.unwrap();
                }
            })
            .await;
        let value = served.client.get(table, "counter").await.unwrap();
        assert_eq!(number(&value.unwrap()), 20, "{table}");
    }
}

/// Where nothing fences earlier holders off.
#[tokio::test]
async fn a_table_without_a_fence_guards_no_value_unless_it_is_told_to() {
    let served = Served::start();
    let client = &served.client;
    let lock_ref = create_lock_ref(client, BAKERY, "counter").await;
    let (granted, token) = acquire_lock(client, &lock_ref).await.unwrap();
    assert_eq!(token, 0);
    let numbers = CallNumbers::default();
    let refused = client.critical_write(&granted, put(1), &numbers).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("allow_unfenced"), "{refused}");
    assert_eq!(client.get(BAKERY, "counter").await.unwrap(), None);
}

/// The slide with the lock table: three references for Emp0, two for Emp1, sorted by when they were made.
#[tokio::test]
async fn the_first_row_of_each_key_holds_it() {
    let served = Served::start();
    let client = &served.client;
    for table in [HOMES, MUSIC] {
        let mut rows = Vec::new();
        for key in ["Emp0", "Emp1", "Emp0", "Emp1", "Emp0"] {
            rows.push(create_lock_ref(client, table, key).await);
        }
        let of_key = |key: &str| -> Vec<&String> {
            let begin = format!("{table}/{key}#");
            rows.iter().filter(|row| row.starts_with(&begin)).collect()
        };
        for (key, count) in [("Emp0", 3), ("Emp1", 2)] {
            let mut rows = of_key(key);
            assert_eq!(rows.len(), count);
            let mut tokens = vec![0];
            while !rows.is_empty() {
                // acquireLock reads the topmost row, and is true for this one alone.
                let (_, token) = acquire_lock(client, rows[0]).await.unwrap();
                for behind in &rows[1..] {
                    assert_eq!(acquire_lock(client, behind).await, None, "{table}");
                }
                tokens.push(token);
                // releaseLock deletes the row, if it is there.
                assert!(!release_lock(client, rows[0]).await);
                assert!(release_lock(client, rows[0]).await);
                rows.remove(0);
            }
            assert!(tokens.is_sorted_by(|before, after| before < after));
            // No reference, no row: nothing is left to clean up.
            assert_eq!(served.queue(table, key).await, Queue::default());
        }
    }
}

/// What the slides leave open: a holder that is thought gone, and writes.
#[tokio::test]
async fn a_write_of_an_earlier_holder_is_refused() {
    let served = Served::start();
    let client = &served.client;
    for table in [HOMES, MUSIC] {
        let numbers = CallNumbers::default();
        let first = create_lock_ref(client, table, "counter").await;
        let (first, first_token) = acquire_lock(client, &first).await.unwrap();
        let written = client.critical_write(&first, put(1), &numbers);
        written.await.unwrap();

        let forced = client.force_release(public_part(&first), "it hangs", "ops");
        forced.await.unwrap();
        let second = create_lock_ref(client, table, "counter").await;
        let (second, token) = acquire_lock(client, &second).await.unwrap();
        assert!(token > first_token, "{table}");
        let of_second = CallNumbers::default();
        let read = client.critical_get(&second, &of_second).await.unwrap();
        assert_eq!(number(&read.unwrap()), 1, "{table}");
        let written = client.critical_write(&second, put(2), &of_second);
        written.await.unwrap();

        let late = client.critical_write(&first, put(9), &numbers).await;
        let Err(CriticalError::Lost(lost)) = late else {
            panic!("{table}: {late:?}");
        };
        assert_eq!(lost.reason, LostReason::Forced, "{table}");
        let value = client.get(table, "counter").await.unwrap();
        assert_eq!(number(&value.unwrap()), 2, "{table}");
        assert!(!release_lock(client, &second).await);
    }
}
