use std::time::Duration;

use uuid::Uuid;

use super::*;
use crate::key::machine::{Call, CommitRules, Context, Effect, KeyLimits, Loaded, SwapOutcome};
use crate::key::{CommitMode, KeyState, NewEntry};
use crate::lock::{CoreLimits, Fence, Key, Mode, ReplicaId, TableName, Tag};
use crate::session::Observer;

const SESSION: SessionId = SessionId(Uuid::from_u128(7));

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn now() -> Observed {
    Observer::new(Duration::MAX).observe(seconds(100))
}

/// A key that a session holds, used last 50 s after boot.
fn held() -> KeyCell {
    let cell = KeyCell::new(Arc::new(KeyId {
        table: TableName::default_table(),
        key: Key::parse("k", 64).unwrap(),
    }));
    let limits = KeyLimits {
        core: CoreLimits::default(),
        calls_max: 8,
        waits_per_lock_ref_max: 2,
        critical_calls_max: 2,
        known_value_bytes_max: 100,
        session_claim_ttl: seconds(10),
    };
    let cx = Context {
        replica: ReplicaId(Uuid::from_u128(1)),
        now: now(),
        now_us: Some(1_000),
        sure_until: seconds(1_000),
        is_alone: true,
        value_is_due: false,
        commit: CommitRules {
            mode: CommitMode::WriteThrough,
            keep_after: Duration::from_millis(100),
        },
        limits: &limits,
    };
    let entry = NewEntry {
        tag: Tag::from_bits(2),
        mode: Mode::Exclusive,
        liveness: Liveness::Session(SESSION),
        identity: "".into(),
        owner: "".into(),
        created_at_ms: 0,
    };
    let call = Call::Create {
        entry: Box::new(entry),
        read_value: false,
    };
    let loaded = Loaded {
        state: Arc::<KeyState>::default(),
        past: None,
    };
    let mut effects = Vec::new();
    let mut slot = cell.slot();
    for event in [
        Event::Call {
            id: CallId(1),
            call,
        },
        Event::Loaded(Ok(loaded)),
        Event::Swapped(SwapOutcome::Applied),
    ] {
        slot.machine.on(&cx, event, &mut effects);
    }
    let held = |effect: &Effect| {
        matches!(
            effect,
            Effect::Answer {
                answer: Ok(Answer::Held { .. }),
                ..
            }
        )
    };
    assert!(effects.iter().any(held), "{effects:?}");
    slot.sessions.insert(Seq(1), SESSION);
    slot.next_call = 2;
    slot.used = seconds(50);
    slot.home_since = Some(seconds(49));
    slot.served = Some((Seq(1), seconds(50)));
    slot.read_at = Some(seconds(48));
    slot.granted_after = Some((Seq(1), seconds(3)));
    slot.users.note("b", "a", 7, seconds(9));
    drop(slot);
    cell
}

fn pack(cell: &KeyCell, unused_since: u64) -> bool {
    cell.pack(seconds(unused_since), now(), seconds(1))
}

#[test]
fn one_that_is_packed_is_the_same_when_it_is_needed() {
    let cell = held();
    assert!(!pack(&cell, 49), "it was used since");
    let machine = cell.slot().machine.clone();
    assert!(pack(&cell, 50) && cell.is_packed());
    assert!(!pack(&cell, 50), "it is packed already");
    let mut slot = cell.slot();
    assert_eq!(slot.machine, machine);
    assert_eq!(slot.sessions, BTreeMap::from([(Seq(1), SESSION)]));
    assert_eq!((slot.next_call, slot.used), (2, seconds(50)));
    assert_eq!(slot.home_since, Some(seconds(49)));
    assert_eq!(slot.served, Some((Seq(1), seconds(50))));
    assert_eq!(slot.read_at, Some(seconds(48)));
    assert_eq!(
        (slot.waited(Seq(1)), slot.waited(Seq(2))),
        (Some(seconds(3)), None)
    );
    let mut users = Users::default();
    users.note("b", "a", 7, seconds(9));
    assert_eq!(slot.users, users);
    assert!(!slot.is_lost && !slot.removed);
    // Who looked at it leaves it packed, who used it does not.
    slot.is_queued = true;
    drop(slot);
    assert!(cell.is_packed() && cell.slot().is_queued);
    cell.slot().used = seconds(60);
    assert!(!cell.is_packed());
    assert!(!pack(&cell, 59) && pack(&cell, 60));
}

#[test]
fn one_that_anything_waits_for_is_not_packed() {
    let changes: [fn(&mut Slot); 8] = [
        |slot| slot.is_lost = true,
        |slot| slot.removed = true,
        |slot| slot.silence = Silence::Due,
        |slot| slot.silence = Silence::Until(seconds(200)),
        |slot| slot.alarm = Some((now(), 1)),
        |slot| slot.noted.waiters = 1,
        |slot| {
            slot.lost_sessions.insert(Seq(9), SESSION);
        },
        |slot| {
            let (listener, _) = oneshot::channel();
            let open = PendingCall {
                listener: Listener::Answer(listener),
                share_of: None,
                makes: None,
            };
            slot.calls.insert(CallId(2), open);
        },
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let cell = held();
        change(&mut cell.slot());
        assert!(!pack(&cell, 50), "{number}");
    }
}

#[test]
fn what_is_asked_of_all_keys_unpacks_none() {
    let cell = held();
    // Whoever unpacks these loses the key.
    *cell.state.lock().unwrap() = CellState::Packed {
        slot: b"none of these".as_slice().into(),
        idle_since: None,
        forget_at: None,
    };
    assert!(cell.is_to_hand_over());
    assert!(!cell.is_lost() && !cell.is_silent(seconds(50)) && !cell.has_volatile());
    let cell = held();
    assert!(cell.is_to_hand_over() && !cell.has_volatile());
    let mut slot = cell.slot();
    slot.start_over();
    drop(slot);
    assert!(cell.is_lost() && cell.is_silent(seconds(50)));
}

#[test]
fn a_panic_while_it_was_looked_at_loses_it() {
    let cell = held();
    assert!(pack(&cell, 50));
    let looks = std::panic::AssertUnwindSafe(|| {
        let _slot = cell.slot();
        panic!("a test wants it so");
    });
    std::panic::catch_unwind(looks).unwrap_err();
    let slot = cell.slot();
    assert!(slot.is_lost && slot.machine.state().is_none());
    assert_eq!(slot.lost_sessions.len(), 1);
}

#[test]
fn bytes_that_nobody_packed_are_as_a_panic() {
    let slot = Slot::unpacked(b"none of these");
    assert!(slot.is_lost && slot.silence == Silence::Due);
}

#[test]
fn news_of_a_grant_that_nobody_watches_any_more_are_lost() {
    let cell = held();
    let grant = Fence(7);
    let status = EntryStatus::Held { grant };
    let (news, heard) = watch::channel(None);
    let open = PendingCall {
        listener: Listener::Watch { begun: None, news },
        share_of: None,
        makes: None,
    };
    let mut slot = cell.slot();
    slot.calls.insert(CallId(1), open);
    assert_eq!(slot.notify(CallId(1), status.clone()), None);
    assert_eq!(*heard.borrow(), Some(status.clone()));
    let lost = Event::AnswerLost { grant };
    assert_eq!(slot.notify(CallId(2), status), Some(lost));
}
