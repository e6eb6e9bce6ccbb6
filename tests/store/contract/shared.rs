//! What every store promises that several replicas share: rows of replicas, hand-over requests, a clock.

use std::sync::Arc;

use fermata::lock::{ReplicaId, SessionId};
use fermata::store::{
    ClusterStore, HandOverRequest, HandOverSubject, ReplicaRow, ReplicaState, StateSwap, Store,
};
use futures_util::StreamExt;
use uuid::Uuid;

use crate::world::{id, id_in, replica, replica_row};

/// Replicas of one promise, with numbers from 1: those of other promises may be in the same store.
struct Replicas {
    cluster: Arc<dyn ClusterStore>,
    promise: u128,
}

impl Replicas {
    fn of(store: Store, promise: u128) -> Replicas {
        Replicas {
            cluster: store.cluster.unwrap(),
            promise,
        }
    }

    fn row(&self, number: u128) -> ReplicaRow {
        replica_row(1_000 * self.promise + number)
    }

    fn id(&self, number: u128) -> ReplicaId {
        self.row(number).id
    }

    async fn announce(&self, numbers: &[u128]) {
        for number in numbers {
            let announced = self.cluster.announce_replica(&self.row(*number)).await;
            announced.unwrap();
        }
    }

    async fn listed(&self) -> Vec<ReplicaRow> {
        let mut listed = self.cluster.list_replicas().await.unwrap();
        listed.retain(|row| row.id.0.as_u128() / 1_000 == self.promise);
        listed
    }

    /// The lives of these replicas, in the order of their ids.
    async fn lives(&self) -> Vec<ReplicaState> {
        let listed = self.listed().await;
        listed.iter().map(|row| row.state).collect()
    }

    /// A swap of the state of replica 3 that is answered for sure.
    async fn swap(
        &self,
        expected: ReplicaState,
        next: ReplicaState,
    ) -> Result<(), Option<ReplicaState>> {
        match self.cluster.swap_state(self.id(3), expected, next).await {
            StateSwap::Applied => Ok(()),
            StateSwap::Conflict(met) => Err(met),
            other => panic!("{other:?}"),
        }
    }
}

pub async fn a_replica_is_listed_and_announced_again_until_its_life_changes(store: Store) {
    let replicas = Replicas::of(store, 1);
    assert_eq!(replicas.listed().await, []);
    replicas.announce(&[5, 3]).await;
    assert_eq!(replicas.listed().await, [replicas.row(3), replicas.row(5)]);
    let again = ReplicaRow {
        heartbeat: 8,
        ..replicas.row(3)
    };
    replicas.cluster.announce_replica(&again).await.unwrap();
    assert_eq!(replicas.listed().await, [again.clone(), replicas.row(5)]);
    for next in [ReplicaState::Up(2), ReplicaState::Down] {
        let before = replicas.lives().await[0];
        assert_eq!(replicas.swap(before, next).await, Ok(()));
        let announced = replicas.cluster.announce_replica(&again).await;
        assert!(announced.is_err(), "{next:?}");
        assert_eq!(replicas.lives().await, [next, ReplicaState::Up(1)]);
    }
}

pub async fn heartbeats_never_go_back(store: Store) {
    let replicas = Replicas::of(store, 2);
    let seen = async |heartbeat| {
        let expected = ReplicaRow {
            heartbeat,
            ..replicas.row(3)
        };
        assert_eq!(replicas.listed().await, [expected]);
    };
    replicas.announce(&[3]).await;
    seen(0).await;
    for (heartbeat, latest) in [(1, 1), (2, 2), (1, 2), (700, 700), (5, 700)] {
        let sent = replicas.cluster.heartbeat(replicas.id(3), heartbeat).await;
        sent.unwrap();
        seen(latest).await;
    }
    // The announcement comes late, once more.
    replicas.announce(&[3]).await;
    seen(700).await;
}

pub async fn a_life_changes_only_from_what_it_is(store: Store) {
    let replicas = Replicas::of(store, 3);
    let (up, down, stopped) = (ReplicaState::Up, ReplicaState::Down, ReplicaState::Stopped);
    assert_eq!(replicas.swap(up(1), down).await, Err(None));
    replicas.announce(&[3, 5]).await;
    for other in [up(2), down, stopped] {
        assert_eq!(replicas.swap(other, up(3)).await, Err(Some(up(1))));
    }
    assert_eq!(replicas.swap(up(1), up(2)).await, Ok(()));
    assert_eq!(replicas.swap(up(1), down).await, Err(Some(up(2))));
    assert_eq!(replicas.swap(up(2), stopped).await, Ok(()));
    assert_eq!(replicas.swap(up(2), up(3)).await, Err(Some(stopped)));
    assert_eq!(replicas.lives().await, [stopped, up(1)]);
    // What cannot be kept is refused before anybody is asked.
    for none in [up(0), up(u32::MAX)] {
        let swap = replicas.cluster.swap_state(replicas.id(5), up(1), none);
        let swap = swap.await;
        assert!(matches!(swap, StateSwap::NotStarted(_)), "{swap:?}");
    }
    assert_eq!(replicas.lives().await, [stopped, up(1)]);
}

/// An observer declares a replica down while that comes back.
pub async fn of_two_who_change_a_life_exactly_one_does(store: Store) {
    const ROUNDS: u128 = 30;
    let replicas = Replicas::of(store, 4);
    let mut known = 0;
    for round in 1..=ROUNDS {
        replicas.announce(&[round]).await;
        let (id, next) = (
            replicas.id(round),
            [ReplicaState::Down, ReplicaState::Up(2)],
        );
        let (down, up) = tokio::join!(
            replicas
                .cluster
                .swap_state(id, ReplicaState::Up(1), next[0]),
            replicas
                .cluster
                .swap_state(id, ReplicaState::Up(1), next[1]),
        );
        let listed = replicas.listed().await;
        let state = listed.iter().find(|row| row.id == id).unwrap().state;
        let applied = [&down, &up].map(|swap| matches!(swap, StateSwap::Applied));
        assert_ne!(applied, [true, true], "round {round}");
        for (applied, next) in applied.into_iter().zip(next) {
            assert!(!applied || state == next, "round {round}: {state:?}");
        }
        match (down, up) {
            (StateSwap::Applied, StateSwap::Conflict(met))
            | (StateSwap::Conflict(met), StateSwap::Applied) => {
                assert_eq!(met, Some(state), "round {round}");
                known += 1;
            }
            // The nodes of a busy machine may not say what became of one that others got in the way of.
            (StateSwap::Unknown(error), _) | (_, StateSwap::Unknown(error)) => println!("{error}"),
            other => panic!("round {round}: {other:?}"),
        }
    }
    assert!(known > ROUNDS / 2, "{known} of {ROUNDS} rounds");
}

pub async fn a_replica_that_is_down_does_not_come_back(store: Store) {
    let replicas = Replicas::of(store, 5);
    let (up, down) = (ReplicaState::Up, ReplicaState::Down);
    replicas.announce(&[3]).await;
    assert_eq!(replicas.swap(up(1), down).await, Ok(()));
    // It goes on as if nothing had been, or slept through it.
    let late = replicas.cluster.heartbeat(replicas.id(3), 9).await;
    late.unwrap();
    for state in [up(1), up(2)] {
        assert_eq!(replicas.swap(state, up(3)).await, Err(Some(down)));
    }
    let again = replicas.cluster.announce_replica(&replicas.row(3)).await;
    assert!(again.is_err());
    assert_eq!(replicas.lives().await, [down]);
}

pub async fn a_replica_that_is_up_is_not_forgotten_and_one_that_was_does_not_come_back(
    store: Store,
) {
    let replicas = Replicas::of(store, 6);
    let (up, down) = (ReplicaState::Up, ReplicaState::Down);
    let cluster = &replicas.cluster;
    replicas.announce(&[3, 4, 5]).await;
    let stopped = ReplicaState::Stopped;
    cluster.swap_state(replicas.id(4), up(1), stopped).await;
    for id in [3, 4, 5, 6].map(|number| replicas.id(number)) {
        cluster.heartbeat(id, 1 << 40).await.unwrap();
        cluster.forget_replica(id).await.unwrap();
    }
    assert_eq!(replicas.lives().await, [up(1), up(1)]);
    assert_eq!(replicas.swap(up(1), up(2)).await, Ok(()));
    cluster.forget_replica(replicas.id(3)).await.unwrap();
    assert_eq!(replicas.lives().await, [up(2), up(1)]);
    assert_eq!(replicas.swap(up(2), down).await, Ok(()));
    for _ in 0..2 {
        cluster.forget_replica(replicas.id(3)).await.unwrap();
    }
    // What was sent before, or by one that knows nothing of it, comes late.
    for id in [3, 4].map(|number| replicas.id(number)) {
        cluster.heartbeat(id, (1 << 40) + 1).await.unwrap();
    }
    assert_eq!(replicas.swap(up(2), up(3)).await, Err(None));
    let left: Vec<_> = replicas.listed().await.iter().map(|row| row.id).collect();
    assert_eq!(left, [replicas.id(5)]);
}

fn request(home: u128, term: u64, to: u128) -> HandOverRequest {
    HandOverRequest {
        home: replica(home),
        subject: HandOverSubject::Key {
            key: id_in("orders", "日本/7"),
            term,
        },
        to: replica(to),
    }
}

/// The hand-over requests sent to a home, in some order of their own.
async fn requests(cluster: &dyn ClusterStore, home: u128) -> Vec<HandOverRequest> {
    let mut requests = cluster.hand_over_requests(replica(home)).await.unwrap();
    requests.sort_by_key(|one| (one.subject.clone(), one.to));
    requests
}

pub async fn who_is_asked_sees_a_hand_over_request_until_it_is_forgotten(store: Store) {
    let cluster = store.cluster.unwrap();
    let of_other_key = HandOverRequest {
        subject: HandOverSubject::Key {
            key: id("k"),
            term: 1,
        },
        ..request(7, 1, 2)
    };
    let of_a_session = HandOverRequest {
        subject: HandOverSubject::Session {
            session: SessionId(Uuid::from_u128(9)),
            epoch: u32::MAX,
        },
        ..request(7, 1, 2)
    };
    let last_term = request(7, i64::MAX as u64, 1);
    let of_other_home = request(8, 1, 1);
    let mut asked = vec![
        of_other_key.clone(),
        of_a_session.clone(),
        request(7, 1, 1),
        request(7, 1, 2),
        last_term.clone(),
    ];
    asked.sort_by_key(|one| (one.subject.clone(), one.to));
    assert_eq!(requests(&*cluster, 7).await, []);
    // What is repeated, by a retry, asks once.
    for one in asked.iter().chain(&asked).chain([&of_other_home]) {
        cluster.request_hand_over(one).await.unwrap();
    }
    assert_eq!(requests(&*cluster, 7).await, asked);
    assert_eq!(
        requests(&*cluster, 8).await,
        std::slice::from_ref(&of_other_home)
    );
    assert_eq!(requests(&*cluster, 9).await, []);
    for gone in [&of_other_key, &last_term] {
        cluster.forget_hand_over_request(gone).await.unwrap();
        cluster.forget_hand_over_request(gone).await.unwrap();
    }
    // Nor is one forgotten that was never there.
    let unknown = request(8, 2, 1);
    cluster.forget_hand_over_request(&unknown).await.unwrap();
    assert_eq!(
        requests(&*cluster, 7).await,
        [request(7, 1, 1), request(7, 1, 2), of_a_session]
    );
    assert_eq!(requests(&*cluster, 8).await, [of_other_home]);
}

pub async fn some_hundreds_of_hand_over_requests_are_seen_at_once_and_the_others_after_them(
    store: Store,
) {
    const ASKED: u64 = 2_100;
    // Many at once: they are not kept for long.
    const AT_ONCE: usize = 50;
    let cluster = store.cluster.unwrap();
    futures_util::stream::iter(0..ASKED)
        .for_each_concurrent(AT_ONCE, |number| {
            let cluster = Arc::clone(&cluster);
            async move {
                let asked = cluster.request_hand_over(&request(17, number, 1)).await;
                asked.unwrap()
            }
        })
        .await;
    let mut answered = 0;
    loop {
        let some = cluster.hand_over_requests(replica(17)).await.unwrap();
        assert!(some.len() <= 2_000, "{}", some.len());
        if some.is_empty() {
            break;
        }
        answered += some.len() as u64;
        futures_util::stream::iter(some)
            .for_each_concurrent(AT_ONCE, |one| {
                let cluster = Arc::clone(&cluster);
                async move { cluster.forget_hand_over_request(&one).await.unwrap() }
            })
            .await;
    }
    assert_eq!(answered, ASKED);
}

pub async fn a_shared_store_has_a_clock(store: Store) {
    let cluster = store.cluster.unwrap();
    let now_us = || {
        let now = std::time::SystemTime::now();
        let now = now.duration_since(std::time::UNIX_EPOCH).unwrap();
        now.as_micros() as u64
    };
    for _ in 0..10 {
        let before = now_us();
        let clock = cluster.clock_us().await.unwrap();
        let after = now_us();
        // The nodes are on this machine; a clock may be read in whole milliseconds.
        let target = before - 2_000..=after + 2_000;
        assert!(target.contains(&clock), "{clock} is not in {target:?}");
    }
}
