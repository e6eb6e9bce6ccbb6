//! Where calls go. `A` ranks first for every key; `B` and `C` are others.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use tonic::Code;
use tonic_types::StatusExt as _;
use uuid::Uuid;

use super::*;
use crate::lock::{Key, KeyId, LockRef, SessionId, TableName};

const A: ReplicaId = ReplicaId(Uuid::from_u128(0xa));
const B: ReplicaId = ReplicaId(Uuid::from_u128(0xb));
const C: ReplicaId = ReplicaId(Uuid::from_u128(0xc));
const D: ReplicaId = ReplicaId(Uuid::from_u128(0xd));
const HERE: ReplicaId = ReplicaId(Uuid::from_u128(0));

fn letter(id: ReplicaId) -> char {
    char::from_digit(id.0.as_u128() as u32, 16).unwrap()
}

/// What one of them says: `Ok` is its answer.
type Said = Result<&'static str, ForwardOutcome<&'static str>>;

fn elsewhere(home: ReplicaId, version: u64) -> Said {
    Err(ForwardOutcome::Elsewhere { home, version })
}

fn not_asked() -> Said {
    Err(ForwardOutcome::NotAsked("refused".to_owned()))
}

fn unknown() -> Said {
    Err(ForwardOutcome::Unknown("cut".to_owned()))
}

fn refused() -> Said {
    Err(ForwardOutcome::Refused(Status::failed_precondition("over")))
}

/// A call, what everybody will say to it, and what was done.
struct World {
    target: Target,
    is_write: bool,
    changes: bool,
    ranked: Presence,
    down: Vec<ReplicaId>,
    says: Mutex<HashMap<ReplicaId, VecDeque<Said>>>,
    done: Mutex<Vec<String>>,
    homes: Homes,
}

fn live(id: ReplicaId) -> Presence {
    Presence::Live(Arc::new(Peer {
        id,
        name: String::new(),
        zone: String::new(),
        address: String::new(),
        peer_address: "h:1".to_owned(),
    }))
}

fn entry() -> LockRef {
    LockRef::parse("default/a#3.00000000000000000000000000@7", "").unwrap()
}

impl World {
    fn new() -> World {
        World {
            target: Target::LockRef(entry()),
            is_write: false,
            changes: false,
            ranked: live(A),
            down: Vec::new(),
            says: Mutex::default(),
            done: Mutex::default(),
            homes: Homes::default(),
        }
    }

    fn create() -> World {
        World {
            changes: true,
            target: Target::Key(KeyId {
                table: TableName::default_table(),
                key: Key::parse("a", 64).unwrap(),
            }),
            ..World::new()
        }
    }

    fn session() -> World {
        World {
            target: Target::Session(SessionId(Uuid::from_u128(7))),
            ..World::new()
        }
    }

    fn write() -> World {
        World {
            is_write: true,
            ..World::new()
        }
    }

    fn says(self, id: ReplicaId, said: impl IntoIterator<Item = Said>) -> World {
        self.says
            .lock()
            .unwrap()
            .insert(id, said.into_iter().collect());
        self
    }

    fn down(mut self, id: ReplicaId) -> World {
        self.down.push(id);
        self
    }

    fn did(&self, what: String) {
        self.done.lock().unwrap().push(what);
    }

    /// Who was asked, and who was taken over from, since the last time.
    fn done(&self) -> String {
        std::mem::take(&mut *self.done.lock().unwrap()).join(" ")
    }

    /// The next thing that it says; the last is said for ever.
    fn next(&self, id: ReplicaId) -> Said {
        let mut says = self.says.lock().unwrap();
        let said = says.get_mut(&id).expect("nobody asks it");
        match (said.len(), &said[0]) {
            (1, Ok(answer)) => Ok(answer),
            (1, Err(ForwardOutcome::Elsewhere { home, version })) => elsewhere(*home, *version),
            _ => said.pop_front().unwrap(),
        }
    }

    /// The call is done, and these were asked for it.
    async fn is_done_by(&self, asked: &str) {
        assert_eq!(self.route().await.unwrap(), "done");
        assert_eq!(self.done(), asked);
    }

    async fn route(&self) -> Result<&'static str, Status> {
        route(self, &self.homes, self).await
    }
}

impl RouteView for World {
    fn ranked(&self, _key: NameHash) -> Presence {
        self.ranked.clone()
    }

    fn presence(&self, id: ReplicaId) -> Presence {
        match id {
            HERE => Presence::Local,
            id if self.down.contains(&id) => Presence::Down,
            id => live(id),
        }
    }

    async fn take_over(&self, _about: &Target, from: ReplicaId) -> Result<(), EngineError> {
        self.did(format!("take-over:{}", letter(from)));
        Ok(())
    }
}

impl RoutedCall for World {
    type Answer = &'static str;

    fn target(&self) -> &Target {
        &self.target
    }

    fn is_write(&self) -> bool {
        self.is_write
    }

    fn changes(&self) -> bool {
        self.changes
    }

    async fn serve_locally(&self) -> Result<&'static str, EngineError> {
        self.did("here".to_owned());
        match self.next(HERE) {
            Ok(answer) => Ok(answer),
            Err(ForwardOutcome::Elsewhere { home, version }) => {
                Err(EngineError::Elsewhere { home, version })
            }
            Err(_) => Err(EngineError::SessionEnded),
        }
    }

    async fn forward(&self, peer: &Peer) -> ForwardOutcome<&'static str> {
        self.did(letter(peer.id).to_string());
        match self.next(peer.id) {
            Ok(answer) => ForwardOutcome::Answered(answer),
            Err(there) => there,
        }
    }
}

#[tokio::test]
async fn a_replica_without_others_does_everything_itself() {
    let mut world = World::new().says(HERE, [Ok("done")]);
    world.ranked = Presence::Local;
    world.is_done_by("here").await;
}

#[tokio::test]
async fn a_call_goes_to_the_replica_that_ranks_first_for_its_key() {
    for world in [World::new(), World::create(), World::write()] {
        let world = world.says(A, [Ok("done")]);
        world.is_done_by("a").await;
    }
}

#[tokio::test]
async fn a_session_is_looked_for_here_first_and_then_where_it_is_kept() {
    let world = World::session()
        .says(HERE, [elsewhere(B, 1)])
        .says(B, [Ok("done")]);
    world.is_done_by("here b").await;
    // It was remembered.
    world.is_done_by("b").await;
}

#[tokio::test]
async fn who_has_it_is_asked_and_remembered() {
    let world = World::new()
        .says(A, [elsewhere(B, 5)])
        .says(B, [Ok("done")]);
    world.is_done_by("a b").await;
    world.is_done_by("b").await;
}

#[tokio::test]
async fn what_this_replica_has_itself_is_remembered_too() {
    let world = World::new()
        .says(A, [elsewhere(HERE, 5)])
        .says(HERE, [Ok("done")]);
    world.is_done_by("a here").await;
    world.is_done_by("here").await;
}

#[tokio::test]
async fn where_to_ask_is_followed_three_times_and_then_looked_up_here() {
    let world = World::new()
        .says(A, [elsewhere(B, 1)])
        .says(B, [elsewhere(C, 2)])
        .says(C, [elsewhere(D, 3)])
        .says(D, [elsewhere(B, 4)])
        .says(HERE, [Ok("done")]);
    world.is_done_by("a b c d here").await;
}

#[tokio::test]
async fn what_is_not_newer_is_not_followed() {
    let world = World::new()
        .says(A, [elsewhere(B, 5)])
        .says(B, [elsewhere(A, 5)])
        .says(HERE, [Ok("done")]);
    world.is_done_by("a b here").await;
}

#[tokio::test]
async fn a_create_is_made_here_where_the_one_that_ranks_first_gives_no_answer() {
    for silence in [not_asked(), unknown()] {
        let world = World::create().says(A, [silence]).says(HERE, [Ok("done")]);
        world.is_done_by("a here").await;
    }
}

#[tokio::test]
async fn a_home_that_sends_heartbeats_and_cannot_be_called_is_asked_through_the_store() {
    for silence in [not_asked(), unknown()] {
        let world = World::new()
            .says(A, [silence])
            .says(HERE, [elsewhere(A, 5), Ok("done")]);
        world.is_done_by("a here take-over:a here").await;
    }
}

#[tokio::test]
async fn a_call_that_may_have_been_done_is_not_said_to_be_undone_by_who_is_asked_next() {
    for (world, silence, reason) in [
        (World::create(), not_asked(), "SESSION_CLOSED"),
        (World::create(), unknown(), "OUTCOME_UNKNOWN"),
        // It changes nothing.
        (World::new(), unknown(), "SESSION_CLOSED"),
    ] {
        let world = world.says(A, [silence]).says(HERE, [refused()]);
        let answered = world.route().await.unwrap_err();
        assert_eq!(answered.get_details_error_info().unwrap().reason, reason);
        assert_eq!(world.done(), "a here");
    }
}

#[tokio::test]
async fn a_home_that_is_down_is_not_called() {
    let world = World::new()
        .down(B)
        .says(A, [elsewhere(B, 5)])
        .says(HERE, [elsewhere(B, 5), Ok("done")]);
    world.is_done_by("a here take-over:b here").await;
}

#[tokio::test]
async fn a_remembered_home_that_is_down_is_looked_for_as_usual() {
    let world = World::new()
        .says(A, [elsewhere(B, 5), Ok("done")])
        .says(B, [Ok("done")]);
    world.route().await.unwrap();
    world.done();
    let world = world.down(B);
    world.is_done_by("a").await;
}

#[tokio::test]
async fn a_write_that_may_have_been_done_is_not_sent_once_more() {
    let world = World::write().says(A, [unknown()]);
    let status = world.route().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("write it again"), "{status:?}");
    assert_eq!(world.done(), "a");
}

#[tokio::test]
async fn a_write_that_was_certainly_not_sent_goes_another_way() {
    let world = World::write()
        .says(A, [not_asked()])
        .says(HERE, [elsewhere(A, 5), refused()]);
    let status = world.route().await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert_eq!(world.done(), "a here take-over:a here");
}

#[tokio::test]
async fn a_refusal_is_passed_on_as_it_is() {
    let world = World::new().says(A, [refused()]);
    let status = world.route().await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::FailedPrecondition, "over")
    );
    assert_eq!(world.done(), "a");
}

#[tokio::test]
async fn replicas_that_do_not_agree_cost_a_retry_and_no_endless_way() {
    let world = World::new()
        .says(A, [elsewhere(HERE, 5)])
        .says(HERE, [elsewhere(HERE, 5)]);
    let status = world.route().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    let world = World::new()
        .says(A, [elsewhere(HERE, 5)])
        .says(HERE, [elsewhere(A, 5)]);
    let status = world.route().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(world.done(), "a here");
}
