//! What every store promises that several replicas share: signs of life, questions, a clock. One that a single process
//! has for itself promises none of it.

use std::sync::Arc;

use fermata::lock::{Fence, Seq};
use fermata::store::{Question, ReplicaRow, Store, Subject};
use futures_util::StreamExt;
use uuid::Uuid;

use crate::world::{id, id_in, replica, replica_row, session};

pub async fn beats_never_go_back(store: Arc<dyn Store>) {
    if store.is_exclusive() {
        return;
    }
    let announced = replica_row(3);
    let seen = async |beat, stopped| {
        let listed = store.list_replicas().await.unwrap();
        let expected = ReplicaRow {
            beat,
            stopped,
            ..announced.clone()
        };
        assert_eq!(listed, [expected]);
    };
    store.announce_replica(&announced).await.unwrap();
    seen(0, false).await;
    for (beat, latest) in [(1, 1), (2, 2), (1, 2), (700, 700), (5, 700)] {
        store.beat(announced.id, beat, false).await.unwrap();
        seen(latest, false).await;
    }
    store.beat(announced.id, 701, true).await.unwrap();
    seen(701, true).await;
    // What was sent before, and the announcement, come late.
    store.beat(announced.id, 699, false).await.unwrap();
    store.announce_replica(&announced).await.unwrap();
    seen(701, true).await;
}

pub async fn a_forgotten_replica_does_not_come_back(store: Arc<dyn Store>) {
    if store.is_exclusive() {
        return;
    }
    let (gone, other) = (replica_row(3), replica_row(5));
    for row in [&gone, &other] {
        store.announce_replica(row).await.unwrap();
        store.beat(row.id, 1 << 40, false).await.unwrap();
    }
    store.forget_replica(gone.id).await.unwrap();
    store.beat(gone.id, (1 << 40) + 1, false).await.unwrap();
    store.announce_replica(&gone).await.unwrap();
    // Nor is there one that was never announced.
    store.beat(replica(4), 1, false).await.unwrap();
    let listed = store.list_replicas().await.unwrap();
    let left: Vec<_> = listed.iter().map(|row| row.id).collect();
    assert_eq!(left, [other.id]);
}

fn about_place(request: u128, home: u128) -> Question {
    Question {
        id: Uuid::from_u128(request),
        home: replica(home),
        about: Subject::Place {
            key: id_in("orders", "日本/7"),
            seq: Seq(request as u64),
            fence: Fence(Fence::MAX),
            epoch: u32::MAX,
        },
    }
}

/// The questions put to a home, in the order of their ids.
async fn questions(store: &dyn Store, home: u128) -> Vec<Question> {
    let mut questions = store.questions(replica(home)).await.unwrap();
    questions.sort_by_key(|question| question.id);
    questions
}

pub async fn who_is_asked_sees_a_question_until_they_answer(store: Arc<dyn Store>) {
    if store.is_exclusive() {
        return;
    }
    let holder = about_place(1, 7);
    let waiter = Question {
        about: Subject::Place {
            key: id("k"),
            seq: Seq(9),
            fence: Fence::NONE,
            epoch: 0,
        },
        ..about_place(2, 7)
    };
    let session = Question {
        about: Subject::Session {
            session: session(1, 1, true).id,
            epoch: 3,
        },
        ..about_place(3, 7)
    };
    let key = Question {
        about: Subject::Key {
            key: id_in("orders", "日本/7"),
            version: u64::from(u32::MAX),
        },
        ..about_place(5, 7)
    };
    let declined = about_place(6, 7);
    let others = about_place(4, 8);
    assert_eq!(questions(&*store, 7).await, []);
    for question in [&session, &waiter, &others, &key, &declined, &holder] {
        assert_eq!(store.has_consent(question).await.unwrap(), None);
        store.ask_replica(question).await.unwrap();
        assert_eq!(store.has_consent(question).await.unwrap(), None);
    }
    let asked = [holder, waiter.clone(), session, key, declined.clone()];
    assert_eq!(questions(&*store, 7).await, asked);
    assert_eq!(questions(&*store, 8).await, std::slice::from_ref(&others));
    assert_eq!(questions(&*store, 9).await, []);
    store.consent(&waiter).await.unwrap();
    store.decline(&declined).await.unwrap();
    // What is repeated, by a retry, does not ask again.
    for question in [&waiter, &declined] {
        store.ask_replica(question).await.unwrap();
    }
    store.consent(&waiter).await.unwrap();
    store.decline(&declined).await.unwrap();
    for question in asked.iter().chain([&others]) {
        let answered = [&waiter, &declined].contains(&question);
        let expected = answered.then_some(*question == waiter);
        let consented = store.has_consent(question).await.unwrap();
        assert_eq!(consented, expected, "{question:?}");
    }
    let [holder, _, session, key, _] = asked;
    assert_eq!(questions(&*store, 7).await, [holder, session, key]);
    assert_eq!(questions(&*store, 8).await, [others]);
}

pub async fn some_hundreds_of_questions_are_seen_at_once_and_the_others_after_them(
    store: Arc<dyn Store>,
) {
    if store.is_exclusive() {
        return;
    }
    const ASKED: u128 = 1_100;
    // Many at once: they are not kept for long.
    let at_once = 50;
    futures_util::stream::iter(0..ASKED)
        .for_each_concurrent(at_once, |request| {
            let store = Arc::clone(&store);
            async move { store.ask_replica(&about_place(request, 7)).await.unwrap() }
        })
        .await;
    let mut answered = 0;
    loop {
        let some = store.questions(replica(7)).await.unwrap();
        assert!(some.len() <= 500, "{}", some.len());
        if some.is_empty() {
            break;
        }
        answered += some.len() as u128;
        futures_util::stream::iter(some)
            .for_each_concurrent(at_once, |question| {
                let store = Arc::clone(&store);
                async move { store.consent(&question).await.unwrap() }
            })
            .await;
    }
    assert_eq!(answered, ASKED);
}

pub async fn a_shared_store_has_a_clock(store: Arc<dyn Store>) {
    if store.is_exclusive() {
        return;
    }
    let now_us = || {
        let now = std::time::SystemTime::now();
        let now = now.duration_since(std::time::UNIX_EPOCH).unwrap();
        now.as_micros() as u64
    };
    for _ in 0..10 {
        let before = now_us();
        let clock = store.clock_us().await.unwrap().unwrap();
        let after = now_us();
        // The nodes are on this machine; a clock may be read in whole milliseconds.
        let about = before - 2_000..=after + 2_000;
        assert!(about.contains(&clock), "{clock} is not in {about:?}");
    }
}
