//! The wiki's page on locking a row: the bakery in 19 steps, with the column families `choosing` and `number`. The client counts
//! to `max_clients` and has to be one of them.

use std::time::Duration;

use fermata_client::{LockRequest, public_part};
use uuid::Uuid;

use super::served::{BAKERY, LONG, Queue, Served};

fn row() -> LockRequest {
    LockRequest::new("lock_id").table(BAKERY)
}

#[tokio::test]
async fn a_row_is_locked_as_in_the_19_steps() {
    let served = Served::start();
    let client = &served.client;

    // 1. choosing[client_id] := 1. 2. Read all numbers. 3. One's own is their highest and one.
    // 4. number[client_id] := that. 5. Delete choosing[client_id].
    let mut first = client.enqueue(row()).await.unwrap();
    let mut second = client.enqueue(row()).await.unwrap();
    assert_eq!((first.position(), second.position()), (0, 1));

    // 6, 7. Read who is choosing, and all numbers. 8 to 12. Wait for each that was choosing.
    // 13 to 17. Wait for each with a lower number.
    let guard = first.wait(Some(LONG)).await.unwrap();
    let refused = second.wait(Some(Duration::ZERO)).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the wait timed out with 1 ahead in the queue"
    );

    // 18. The critical section.
    assert!(guard.is_valid());
    let queue = served.queue(BAKERY, "lock_id").await;
    let name = |lock_ref: &str| Some(public_part(lock_ref).to_owned());
    assert_eq!(queue.holder, name(&guard.lock_ref()));
    assert_eq!(queue.waiters.first(), name(second.lock_ref()).as_ref());

    // 19. Delete number[client_id]. The next one enters.
    let (next, released) = tokio::join!(second.wait(Some(LONG)), guard.release());
    released.unwrap();
    next.unwrap().release().await.unwrap();
    assert_eq!(served.queue(BAKERY, "lock_id").await, Queue::default());
}

/// "Any operation that fails must be repeated until it succeeds."
#[tokio::test]
async fn an_operation_that_fails_is_repeated() {
    let mut served = Served::start();
    // A repeated create finds its number again.
    let request_id = Uuid::new_v4();
    let mut names = Vec::new();
    for _ in 0..2 {
        let client = &served.client;
        let created = client.create_lock_ref(&row(), "", request_id).await;
        names.push(public_part(&created.unwrap().lock_ref).to_owned());
        served.serve.kill_and_restart();
    }
    assert_eq!(names[0], names[1]);
    let queue = served.queue(BAKERY, "lock_id").await;
    assert_eq!(queue.holder, Some(names.remove(0)));
    assert_eq!(queue.waiters, [""; 0]);

    // A wait goes on over a server that is killed.
    let (client, other) = (
        served.client.clone(),
        LockRequest::new("other").table(BAKERY),
    );
    let guard = client.lock(other.clone()).await.unwrap();
    let mut entry = client.enqueue(other).await.unwrap();
    let waiting = tokio::spawn(async move { entry.wait(Some(LONG)).await });
    served.serve.kill_and_restart();
    guard.release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    guard.release().await.unwrap();
}

/// The first of the page's open issues: whoever crashes with a number blocks all others for ever.
#[tokio::test]
async fn who_crashes_with_a_number_blocks_others_for_its_ttl_only() {
    let served = Served::start();
    let holder = served.holding_process(BAKERY, "lock_id", "2s");
    let mut entry = served.client.enqueue(row()).await.unwrap();
    assert_eq!(entry.position(), 1);
    drop(holder);
    let guard = entry.wait(Some(LONG)).await.unwrap();
    guard.release().await.unwrap();
}
