//! What a watcher is told, and when. On a paused clock.

use futures_util::StreamExt;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::*;
use crate::lock::{EndReason, EndedAs, Fence};

/// News that a test sends by hand.
struct Sent(mpsc::UnboundedReceiver<WatchEvent>);

impl News for Sent {
    async fn next(&mut self) -> Option<WatchEvent> {
        self.0.recv().await
    }

    fn valid_for(&self) -> Duration {
        Duration::from_secs(9)
    }

    fn durable(&self) -> bool {
        true
    }
}

type Messages = Pin<Box<dyn Stream<Item = WatchLockResponse>>>;

fn watched() -> (mpsc::UnboundedSender<WatchEvent>, Messages) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let messages = stream("default/a#3.secret".to_owned(), Sent(receiver));
    (sender, Box::pin(messages))
}

fn waiting(position: usize) -> WatchEvent {
    WatchEvent::Waiting {
        position,
        estimate: None,
    }
}

async fn next(messages: &mut Messages) -> WatchLockResponse {
    messages.next().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn positions_are_merged_to_ten_a_second_and_the_latest_is_told() {
    let (news, mut messages) = watched();
    let started = Instant::now();
    tokio::spawn(async move {
        for position in (0..1000).rev() {
            news.send(waiting(position)).unwrap();
            sleep(Duration::from_millis(1)).await;
        }
        std::future::pending::<()>().await;
    });
    let mut count = 0;
    let mut last = u32::MAX;
    while last != 0 {
        let answer = next(&mut messages).await;
        assert_eq!(answer.state(), LockState::Waiting);
        assert!(answer.position < last);
        last = answer.position;
        count += 1;
    }
    assert!((5..=12).contains(&count), "{count} messages");
    assert!(started.elapsed() < Duration::from_millis(1_200));
}

#[tokio::test(start_paused = true)]
async fn held_and_lost_are_told_at_once_and_lost_is_the_last() {
    let (news, mut messages) = watched();
    news.send(waiting(1)).unwrap();
    assert_eq!(next(&mut messages).await.position, 1);
    let started = Instant::now();
    news.send(waiting(0)).unwrap();
    news.send(WatchEvent::Held { grant: Fence(77) }).unwrap();
    let held = next(&mut messages).await;
    assert_eq!(held.state(), LockState::Held);
    assert_eq!(held.lock_ref, "default/a#3.secret@77");
    assert_eq!(held.fencing_token, 77);
    assert_eq!(held.valid_for.unwrap().seconds, 9);
    news.send(WatchEvent::Lost(EndedAs::Lost(EndReason::Forced {
        by: "ann".into(),
        why: "wedged".into(),
    })))
    .unwrap();
    let lost = next(&mut messages).await;
    assert_eq!(lost.state(), LockState::Lost);
    assert_eq!(lost.reason(), fermata_proto::EndReason::Forced);
    assert!(lost.detail.contains("ann") && lost.detail.contains("wedged"));
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert!(messages.next().await.is_none());
}
