//! Which replicas go silent, come back, and are fenced.

use std::sync::Arc;

use super::world::{Faults, Machine, Replica, TTL, ms, options, start, start_on, wait, within};
use crate::clock::Clock as _;
use crate::membership::{NotSure, Options, Presence, Starter};
use crate::store::ReplicaState;

#[tokio::test(start_paused = true)]
async fn a_replica_stays_sure_while_its_rounds_come_through() {
    let all = start(3).await;
    for _ in 0..600 {
        wait(100).await;
        assert!(all.iter().all(Replica::is_sure));
        let until = all[0].membership.sure_until().unwrap();
        let left = until - all[0].machine.boot();
        assert!(left > ms(3_900) && left <= TTL / 10 * 9, "{left:?}");
    }
    assert!(
        all[0].machine.tables().swaps.is_empty(),
        "no swap is needed"
    );
}

#[tokio::test(start_paused = true)]
async fn a_store_that_was_away_for_longer_than_the_ttl_fences_nobody() {
    let ways: [fn(&mut Faults); 2] = [|faults| faults.hangs = true, |faults| faults.refuses = true];
    for away in ways {
        let all = start(3).await;
        for one in &all {
            one.machine.fail(away);
        }
        wait(4_600).await;
        for one in &all {
            assert_eq!(one.membership.is_sure(), Err(NotSure::Silent));
        }
        wait(1_400).await;
        for one in &all {
            one.machine.heal();
        }
        within(2_000, "all are sure again", || {
            all.iter().all(Replica::is_sure)
        })
        .await;
        wait(20_000).await;
        for one in &all {
            assert!(one.is_sure() && !one.is_fenced());
            assert_eq!(one.state(), Some(ReplicaState::Up(2)), "one swap each");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_paused_replica_is_declared_down_and_finds_out_before_it_is_sure() {
    let all = start(3).await;
    let [a, b, c] = &all[..] else { panic!() };
    a.machine.pause();
    within(6_000, "it is declared down", || {
        let is_down = a.state() == Some(ReplicaState::Down);
        assert!(!(is_down && a.is_sure()), "sure by its clock");
        is_down
    })
    .await;
    assert_eq!(a.membership.is_sure(), Err(NotSure::Silent));
    wait(600).await;
    for other in [b, c] {
        assert_eq!(other.membership.presence(a.id()), Presence::Down);
        assert!(other.membership.declare_down(a.id()).await.unwrap());
    }
    a.machine.resume();
    let mut fenced = a.membership.fenced();
    for _ in 0..200 {
        assert!(a.membership.is_sure().is_err());
        wait(5).await;
    }
    assert!(*fenced.wait_for(|fenced| *fenced).await.unwrap());
    assert_eq!(a.membership.is_sure(), Err(NotSure::Fenced));
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_was_paused_for_less_than_the_ttl_comes_back_by_itself() {
    let all = start(1).await;
    all[0].machine.pause();
    wait(4_700).await;
    all[0].machine.resume();
    within(1_500, "it is sure again", || all[0].is_sure()).await;
    assert_eq!(all[0].state(), Some(ReplicaState::Up(2)));
    wait(20_000).await;
    assert!(all.iter().all(Replica::is_sure));
}

#[tokio::test(start_paused = true)]
async fn a_machine_whose_clock_stood_still_is_fenced_by_its_next_round() {
    let all = start(2).await;
    let [a, b] = &all[..] else { panic!() };
    a.machine.freeze();
    wait(60_000).await;
    assert!(b.membership.declare_down(a.id()).await.unwrap());
    a.machine.resume();
    assert!(a.is_sure(), "it cannot know");
    within(600, "it is fenced", || a.is_fenced()).await;
}

#[tokio::test(start_paused = true)]
async fn of_two_observers_that_race_one_declares_and_both_know() {
    let all = start(3).await;
    let [a, b, c] = &all[..] else { panic!() };
    a.machine.pause();
    for other in [b, c] {
        other.machine.fail(|faults| faults.delay_ms_max = 50);
    }
    within(6_000, "both observe the silence", || {
        [b, c]
            .iter()
            .all(|other| !matches!(other.membership.presence(a.id()), Presence::Live(_)))
    })
    .await;
    let (one, other) = tokio::join!(
        b.membership.declare_down(a.id()),
        c.membership.declare_down(a.id())
    );
    assert!(one.unwrap() && other.unwrap());
    assert_eq!(a.machine.tables().swaps, [(a.id(), ReplicaState::Down)]);
}

#[tokio::test(start_paused = true)]
async fn many_that_ask_for_the_same_replica_declare_it_once() {
    let all = start(2).await;
    let [a, b] = &all[..] else { panic!() };
    b.machine.fail(|faults| faults.loses_swaps = true);
    a.machine.pause();
    wait(7_000).await;
    assert_eq!(b.membership.presence(a.id()), Presence::Suspected);
    assert!(
        b.membership.declare_down(a.id()).await.is_err(),
        "not by its row"
    );
    b.machine.heal();
    let asked = (0..100).map(|_| b.membership.declare_down(a.id()));
    let asked = futures_util::future::join_all(asked).await;
    assert!(asked.into_iter().any(|down| down.is_ok_and(|down| down)));
    assert!(b.membership.declare_down(a.id()).await.unwrap());
    assert_eq!(a.machine.tables().swaps, [(a.id(), ReplicaState::Down)]);
}

#[tokio::test(start_paused = true)]
async fn one_that_lives_is_not_declared_down() {
    let all = start(2).await;
    assert!(!all[0].membership.declare_down(all[1].id()).await.unwrap());
    assert!(!all[0].membership.declare_down(all[0].id()).await.unwrap());
    assert!(all[0].machine.tables().swaps.is_empty());
}

#[tokio::test(start_paused = true)]
async fn one_whose_heartbeats_get_lost_goes_on_by_its_life() {
    let all = start(2).await;
    let [a, b] = &all[..] else { panic!() };
    a.machine.fail(|faults| faults.loses_heartbeats = true);
    let mut unsure = 0;
    for _ in 0..6_000 {
        wait(10).await;
        unsure += u32::from(!a.is_sure());
    }
    assert!(unsure < 120, "{unsure} of 6000");
    assert!(matches!(b.membership.presence(a.id()), Presence::Live(_)));
    assert!(!a.is_fenced());
}

#[tokio::test(start_paused = true)]
async fn one_whose_writes_get_lost_is_declared_down_and_fenced_by_what_it_reads() {
    let all = start(2).await;
    let [a, b] = &all[..] else { panic!() };
    a.machine
        .fail(|faults| (faults.loses_heartbeats, faults.loses_swaps) = (true, true));
    within(7_000, "it is down", || {
        b.membership.presence(a.id()) == Presence::Down
    })
    .await;
    assert!(!a.is_sure());
    within(600, "it is fenced", || a.is_fenced()).await;
}

#[tokio::test(start_paused = true)]
async fn one_that_cannot_read_its_row_goes_on_by_its_life() {
    let all = start(2).await;
    let [a, b] = &all[..] else { panic!() };
    a.machine.fail(|faults| faults.loses_lists = true);
    wait(60_000).await;
    assert!(matches!(a.state(), Some(ReplicaState::Up(10..20))));
    assert!(!a.is_fenced());
    assert!(matches!(b.membership.presence(a.id()), Presence::Live(_)));
}

#[tokio::test(start_paused = true)]
async fn a_process_that_hangs_is_declared_down() {
    let all = start(2).await;
    let [a, b] = &all[..] else { panic!() };
    a.machine.moves.send_replace(false);
    within(7_000, "it is down", || {
        b.membership.presence(a.id()) == Presence::Down
    })
    .await;
    within(600, "it is fenced", || a.is_fenced()).await;
}

#[tokio::test(start_paused = true)]
async fn one_that_stops_is_down_for_the_others_at_once() {
    let all = start(2).await;
    let [a, b] = &all[..] else { panic!() };
    a.membership.stop().await.unwrap();
    assert_eq!(a.membership.is_sure(), Err(NotSure::Stopped));
    assert_eq!(a.state(), Some(ReplicaState::Stopped));
    within(600, "it is down", || {
        b.membership.presence(a.id()) == Presence::Down
    })
    .await;
    assert!(!a.is_fenced());
}

#[tokio::test(start_paused = true)]
async fn a_stop_of_unknown_outcome_is_tried_again_and_given_up_in_bounded_time() {
    let all = start(1).await;
    all[0].machine.fail(|faults| faults.swaps_unheard = true);
    let stop = all[0].membership.stop();
    let heal = async {
        wait(100).await;
        all[0].machine.heal();
    };
    let (stopped, ()) = tokio::join!(stop, heal);
    stopped.unwrap();
    assert_eq!(all[0].state(), Some(ReplicaState::Stopped));

    let all = start(1).await;
    all[0].machine.fail(|faults| faults.hangs = true);
    let stopped = tokio::time::timeout(ms(11_000), all[0].membership.stop());
    assert!(stopped.await.unwrap().is_err());
    assert_eq!(all[0].membership.is_sure(), Err(NotSure::Stopped));
}

#[tokio::test(start_paused = true)]
async fn a_restarted_replica_lives_while_the_one_before_is_declared_down() {
    let mut all = start(2).await;
    let gone = all.remove(0);
    let (machine, id) = (Arc::clone(&gone.machine), gone.id());
    drop(gone);
    let again = start_on(&machine, "fermata-1").await;
    within(7_000, "the one before is down", || {
        again.membership.presence(id) == Presence::Down
    })
    .await;
    assert!(again.is_sure() && all[0].is_sure());
}

/// One whose TTL is as short as the time after which it gives a request up.
async fn start_short() -> Replica {
    let machine = Machine::new(&Arc::default(), 1);
    let (options, hand_overs) = options(&machine, "a");
    let options = Options {
        replica_ttl: ms(2_000),
        ..options
    };
    Replica {
        membership: Starter::new(options).unwrap().start().await.unwrap(),
        machine,
        hand_overs,
    }
}

#[tokio::test(start_paused = true)]
async fn one_round_without_an_answer_does_not_hold_up_the_next_ones() {
    let one = start_short().await;
    one.machine.fail(|faults| faults.hangs = true);
    wait(300).await;
    one.machine.heal();
    for _ in 0..100 {
        wait(50).await;
        assert_eq!(one.membership.is_sure(), Ok(()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_replica_stays_sure_though_hand_over_requests_cannot_be_read() {
    let one = start_short().await;
    one.machine.fail(|faults| faults.hangs_requests = true);
    for _ in 0..100 {
        wait(100).await;
        assert_eq!(one.membership.is_sure(), Ok(()));
    }
}
