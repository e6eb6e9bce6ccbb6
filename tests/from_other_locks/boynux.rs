//! Boynux's lock in PHP: the bakery in two column families, Choosing and Numbers, and ten steps by each process.

use fermata_client::{Client, LockRequest, public_part};

use super::calls::{acquire_lock, create_lock_ref, release_lock};
use super::served::{BAKERY, LONG, Queue, Resource, Served, TABLES};

async fn create(client: &Client) -> String {
    create_lock_ref(client, BAKERY, "row").await
}

async fn is_held(client: &Client, lock_ref: &str) -> bool {
    acquire_lock(client, lock_ref).await.is_some()
}

#[tokio::test]
async fn the_ten_steps_are_three_calls() {
    let served = Served::start();
    let client = &served.client;

    // 1. Look whether somebody draws a number. 2. Show that one draws a number oneself.
    // 3. Take the last number and add one. 4. Write it beside one's id. 5. Show that one draws no more.
    // Here one call does that, and makes the id.
    let first = create(client).await;
    let second = create(client).await;
    let third = create(client).await;

    // 6. Wait for all that draw a number. 7. Wait for all with lower numbers.
    // 8. Of two with one number the lower id goes first.
    // Here a call answers whether that is so by now. With `wait` it answers once it is.
    assert!(is_held(client, &first).await);
    assert!(!is_held(client, &second).await);
    assert!(!is_held(client, &third).await);
    let queue = served.queue(BAKERY, "row").await;
    let name = |lock_ref: &str| public_part(lock_ref).to_owned();
    assert_eq!(queue.holder, Some(name(&first)));
    assert_eq!(queue.waiters, [name(&second), name(&third)]);

    // 9. Nobody goes before: enter. 10. Leave, and remove one's cells from both column families.
    assert!(!release_lock(client, &first).await);
    assert!(is_held(client, &second).await);
    assert!(!is_held(client, &third).await);
    assert!(!release_lock(client, &second).await);
    assert!(is_held(client, &third).await);
    assert!(!release_lock(client, &third).await);
    assert_eq!(served.queue(BAKERY, "row").await, Queue::default());
}

/// Step 8.
#[tokio::test]
async fn who_draws_a_number_at_one_moment_goes_in_one_order_all_the_same() {
    let served = Served::start();
    let client = &served.client;
    let mut left = futures_util::future::join_all((0..8).map(|_| create(client))).await;
    let queue = served.queue(BAKERY, "row").await;
    let order: Vec<String> = queue.holder.into_iter().chain(queue.waiters).collect();
    assert_eq!(order.len(), left.len());
    for name in &order {
        let mut holders = Vec::new();
        for lock_ref in &left {
            if is_held(client, lock_ref).await {
                holders.push(lock_ref.clone());
            }
        }
        let [holder] = &holders[..] else {
            panic!("{holders:?} hold it");
        };
        assert_eq!(public_part(holder), name);
        assert!(!release_lock(client, holder).await);
        left.retain(|lock_ref| lock_ref != holder);
    }
}

/// What that lock is for: updates that take their turns.
#[tokio::test]
async fn updates_of_many_take_their_turns() {
    let served = Served::start();
    for table in TABLES {
        let resource = Resource::default();
        served
            .contend(5, |client| {
                let resource = resource.clone();
                async move {
                    for _ in 0..4 {
                        let request = LockRequest::new("row").table(table).wait(LONG);
                        let guard = client.lock(request).await.unwrap();
                        resource.update().await;
                        guard.release().await.unwrap();
                    }
                }
            })
            .await;
        assert_eq!(resource.updates(), 20, "{table}");
    }
}
