//! More keys than a replica knows at once (H11).

use std::time::Duration;

use fermata::engine::{CreateCall, EngineError, KeyFilter, SessionCall};
use fermata::limits::Limits;
use fermata::lock::Key;
use futures_util::future::join_all;
use uuid::Uuid;

use super::world::{World, call, exhausted, key, session_call, soon};

async fn of(active_keys_max: usize) -> World {
    World::with(Limits {
        active_keys_max,
        ..Limits::default()
    })
    .await
}

#[tokio::test]
async fn idle_keys_are_forgotten_and_taken_over_from_itself_when_they_are_used_again() {
    let world = of(8).await;
    let names = || (0..100).map(|n| format!("k{n}"));
    let mut released = Vec::new();
    for name in names() {
        let held = world.create(&name).await.lock_ref;
        world.put(&held, &name).await.unwrap();
        world.release(&held).await.unwrap();
        assert!(world.engine.counts().active_keys <= 8);
        released.push(held);
    }
    for (name, before) in names().zip(&released) {
        // A repeated call to a forgotten key is answered as before.
        assert_eq!(world.release(before).await, Ok(true));
        let held = world.create(&name).await.lock_ref;
        assert!(held.grant > before.grant && held.seq > before.seq);
        assert_eq!(world.get(&held).await, Ok(Some(name.clone())));
        world.release(&held).await.unwrap();
    }
    assert!(world.engine.counts().active_keys <= 8);
    let mut taken_over = 0;
    for name in names() {
        taken_over += usize::from(world.state(&name).await.term() > 1);
    }
    // The others may have stayed all along.
    assert!(taken_over >= 92, "{taken_over} were forgotten");
}

#[tokio::test]
async fn a_key_for_which_there_is_no_room_is_refused_and_those_in_use_stay() {
    let world = of(2).await;
    let one = world.create("one").await.lock_ref;
    let two = world.create("two").await.lock_ref;
    let waiting = world.create("two").await.lock_ref;
    let full = exhausted("active_keys_max", 2);
    for _ in 0..3 {
        let refused = soon(world.engine.create(call("three", 30_000))).await;
        assert_eq!(refused.unwrap_err(), full);
    }
    world.put(&one, "1").await.unwrap();
    world.release(&two).await.unwrap();
    let waiting = world.acquire(&waiting).await;
    world.put(&waiting, "2").await.unwrap();
    // Still two are locked.
    let refused = soon(world.engine.create(call("three", 30_000))).await;
    assert_eq!(refused.unwrap_err(), full);
    world.release(&one).await.unwrap();
    let three = world.create("three").await.lock_ref;
    world.put(&three, "3").await.unwrap();
    // Values are read without a lock, and want no room.
    let read = soon(world.engine.read(&key("one"), Duration::ZERO))
        .await
        .unwrap();
    assert_eq!(read.bytes.unwrap(), "1");
}

fn call_by(identity: &str, id: &str) -> CreateCall {
    CreateCall {
        identity: identity.to_owned(),
        share_of: identity.into(),
        ..call(id, 30_000)
    }
}

fn call_from(machine: &str, id: &str) -> CreateCall {
    CreateCall {
        share_of: machine.into(),
        ..call(id, 30_000)
    }
}

const SHARE_USED: EngineError = share_used("active_keys_max", 1);

const fn share_used(what: &'static str, share: u64) -> EngineError {
    EngineError::ShareUsed { what, share }
}

#[tokio::test]
async fn one_client_leaves_a_tenth_of_the_keys_to_others_also_after_a_restart() {
    let greedy = "greedy";
    let world = of(20).await;
    let create =
        async |world: &World, who, id: &str| soon(world.engine.create(call_by(who, id))).await;
    // Keys that nobody locks are nobody's.
    for n in 0..40 {
        let used = create(&world, greedy, &format!("used {n}")).await.unwrap();
        world.release(&used.lock_ref).await.unwrap();
    }
    let mut held = Vec::new();
    for n in 0..18 {
        let created = create(&world, greedy, &format!("k{n}")).await;
        held.push(created.unwrap().lock_ref);
    }
    assert_eq!(
        create(&world, greedy, "more").await.unwrap_err(),
        SHARE_USED
    );
    // A queue that is there already takes no more room.
    create(&world, greedy, "k0").await.unwrap();

    let limits = Limits {
        active_keys_max: 20,
        ..Limits::default()
    };
    let world = world.restart_at_once(limits, |_| ()).await;
    // Answered once they are taken over.
    let mut behind = Vec::new();
    for n in 0..18 {
        let created = create(&world, greedy, &format!("k{n}")).await;
        behind.push(created.unwrap().lock_ref);
    }
    assert_eq!(
        create(&world, greedy, "again").await.unwrap_err(),
        SHARE_USED
    );
    for who in ["one", "two"] {
        create(&world, who, who).await.unwrap();
    }
    let full = exhausted("active_keys_max", 20);
    let three = "three";
    assert_eq!(create(&world, three, "three").await.unwrap_err(), full);
    for lock_ref in [&held[5], &behind[5]] {
        world.release(lock_ref).await.unwrap();
    }
    assert_eq!(
        create(&world, greedy, "once more").await.unwrap_err(),
        SHARE_USED
    );
    create(&world, three, "three").await.unwrap();
}

#[tokio::test]
async fn one_client_leaves_a_tenth_of_the_sessions_to_others_also_after_a_restart() {
    let limits = || Limits {
        sessions_max: 20,
        ..Limits::default()
    };
    let world = World::with(limits()).await;
    let open = async |world: &World, who: &str| {
        let call = SessionCall {
            identity: who.to_owned(),
            share_of: who.into(),
            ..session_call(Uuid::new_v4(), 600_000)
        };
        soon(world.engine.open_session(call)).await.map(|_| ())
    };
    let share_used = Err(share_used("sessions_max", 1));
    for _ in 0..18 {
        open(&world, "greedy").await.unwrap();
    }
    assert_eq!(open(&world, "greedy").await, share_used);
    let world = world.restart().await;
    assert_eq!(open(&world, "greedy").await, share_used);
    for who in ["one", "two"] {
        open(&world, who).await.unwrap();
    }
    let full = Err(exhausted("sessions_max", 20));
    assert_eq!(open(&world, "three").await, full);
}

#[tokio::test]
async fn without_identities_one_machine_leaves_a_tenth_of_the_keys_to_others() {
    let world = of(20).await;
    let create = async |from, id: &str| soon(world.engine.create(call_from(from, id))).await;
    let mut held = Vec::new();
    for n in 0..18 {
        // One behind the other, so that a key which goes on to the next entry is still its own.
        let id = format!("k{n}");
        held.push(create("10.0.0.1", &id).await.unwrap().lock_ref);
        create("10.0.0.1", &id).await.unwrap();
    }
    for lock_ref in &held {
        world.release(lock_ref).await.unwrap();
    }
    assert_eq!(create("10.0.0.1", "more").await.unwrap_err(), SHARE_USED);
    create("10.0.0.2", "other").await.unwrap();
    assert_eq!(create("10.0.0.2", "more").await.unwrap_err(), SHARE_USED);
    // A queue that is there takes no more room, whosever it is.
    create("10.0.0.2", "k0").await.unwrap();
}

#[tokio::test]
async fn without_identities_one_machine_leaves_a_tenth_of_a_queue_to_others() {
    let world = World::with(Limits {
        entries_per_key_max: 200,
        ..Limits::default()
    })
    .await;
    let create = async |from| soon(world.engine.create(call_from(from, "hot"))).await;
    let share_used = share_used("entries_per_key_max", 2);
    let first = call_from("10.0.0.1", "hot");
    let held = soon(world.engine.create(first.clone())).await.unwrap();
    // At once: none is answered before the others were asked for.
    let all = join_all((0..250).map(|_| create("10.0.0.1"))).await;
    let made = all.iter().filter(|one| one.is_ok()).count();
    assert!((177..=179).contains(&made), "{made}");
    assert_eq!(create("10.0.0.1").await.unwrap_err(), share_used);
    // A repeated call makes no new entry.
    let again = soon(world.engine.create(first)).await.unwrap();
    assert!(again.existed && again.lock_ref.seq == held.lock_ref.seq);
    for other in ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"] {
        for _ in 0..2 {
            create(other).await.unwrap();
        }
        assert_eq!(create(other).await.unwrap_err(), share_used, "{other}");
    }
    // Somebody who is known has a share of its own.
    soon(world.engine.create(call_by("known", "hot")))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_listing_whose_time_is_up_ends_its_page_and_says_where_it_goes_on() {
    let world = World::new().await;
    for n in 0..1_100 {
        world.create(&format!("k{n:04}")).await;
    }
    let contended = world.create("k1050").await;
    let mut filter = KeyFilter {
        table: key("k").table,
        after: None,
        prefix: "k".to_owned(),
        contended: true,
    };
    let page = world.engine.list_rows(&filter, 1, Duration::ZERO);
    let page = page.await.unwrap();
    assert!(page.items.is_empty());
    filter.after = page.next;
    assert_eq!(filter.after.as_ref().map(Key::as_str), Some("k0063"));
    let page = world.engine.list_rows(&filter, 1, Duration::from_secs(60));
    let page = page.await.unwrap();
    assert_eq!(page.items.len(), 1);
    assert_eq!(page.items[0].id.key.as_str(), "k1050");
    assert_eq!(page.items[0].entries.len(), 2, "{contended:?}");
}
