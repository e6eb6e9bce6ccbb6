//! Pipeline: each call on it means what it means by itself.

mod room;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fermata::access::NewToken;
use fermata_proto::pipeline_answer::Outcome;
use fermata_proto::pipeline_call::Call;
use fermata_proto::*;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, Streaming};

use crate::access::by;
use crate::ask;
use crate::each_call::status_of;
use crate::lever::Mode;
use crate::world::{Client, World, create, done, fields, has_retry_info, hold, refused};

/// A Pipeline that a test sends frames on.
pub struct Pipe {
    frames: Option<mpsc::Sender<PipelineRequest>>,
    answers: Streaming<PipelineResponse>,
    last_id: u64,
    /// Answers that were not asked for yet.
    come: BTreeMap<u64, PipelineAnswer>,
}

/// The frames that a client sends.
type SentFrames = ReceiverStream<PipelineRequest>;

impl Pipe {
    pub async fn open(client: &mut Client) -> Pipe {
        Pipe::opened(client, Request::new).await
    }

    /// Of whoever has this token.
    pub async fn open_by(client: &mut Client, token: &NewToken) -> Pipe {
        Pipe::opened(client, |frames| by(token, frames)).await
    }

    async fn opened(
        client: &mut Client,
        ask: impl FnOnce(SentFrames) -> Request<SentFrames>,
    ) -> Pipe {
        let (frames, sent) = mpsc::channel(4_096);
        let ask = ask(ReceiverStream::new(sent));
        let answers = client.pipeline(ask).await.unwrap();
        Pipe {
            frames: Some(frames),
            answers: answers.into_inner(),
            last_id: 0,
            come: BTreeMap::new(),
        }
    }

    /// Sends one frame; the ids of its calls.
    pub fn send(&mut self, calls: impl IntoIterator<Item = Call>) -> Vec<u64> {
        self.send_within(calls, None)
    }

    fn send_within(
        &mut self,
        calls: impl IntoIterator<Item = Call>,
        timeout: Option<Duration>,
    ) -> Vec<u64> {
        let calls: Vec<_> = calls
            .into_iter()
            .map(|call| {
                self.last_id += 1;
                PipelineCall {
                    call_id: self.last_id,
                    traceparent: String::new(),
                    timeout: timeout.map(|timeout| timeout.try_into().unwrap()),
                    call: Some(call),
                }
            })
            .collect();
        let ids = calls.iter().map(|call| call.call_id).collect();
        self.frame(calls);
        ids
    }

    fn frame(&mut self, calls: Vec<PipelineCall>) {
        self.send_frame(calls, Vec::new());
    }

    fn give_up(&mut self, given_up: Vec<u64>) {
        self.send_frame(Vec::new(), given_up);
    }

    fn send_frame(&mut self, calls: Vec<PipelineCall>, given_up: Vec<u64>) {
        let frames = self.frames.as_ref().unwrap();
        let frame = PipelineRequest { calls, given_up };
        frames.try_send(frame).unwrap();
    }

    /// The answer to this call.
    async fn answer(&mut self, id: u64) -> Result<PipelineAnswer, Status> {
        loop {
            if let Some(answer) = self.come.remove(&id) {
                return Ok(answer);
            }
            let frame = timeout(Duration::from_secs(20), self.answers.message());
            let frame = frame.await.expect("no answer came in 20 s")?;
            let frame = frame.ok_or_else(|| Status::aborted("the stream has ended"))?;
            assert!(!frame.answers.is_empty());
            let answers = frame.answers.into_iter();
            self.come
                .extend(answers.map(|answer| (answer.call_id, answer)));
        }
    }

    /// What comes of this call.
    async fn outcome(&mut self, id: u64) -> Result<Outcome, Status> {
        match self.answer(id).await?.outcome.unwrap() {
            Outcome::Error(error) => Err(status_of(&error)),
            outcome => Ok(outcome),
        }
    }

    pub async fn made(&mut self, call: Call) -> Result<Outcome, Status> {
        let id = self.send([call])[0];
        self.outcome(id).await
    }

    /// What the stream ends with.
    async fn ends(&mut self) -> Result<(), Status> {
        while self.answers.message().await?.is_some() {}
        Ok(())
    }
}

fn get_ask(key: &str) -> Call {
    Call::Get(ask::get(key))
}

fn put_ask(lock_ref: &str, value: &'static str) -> Call {
    Call::CriticalPut(ask::critical_put(lock_ref, value))
}

fn wait_ask(lock_ref: &str, seconds: i64) -> Call {
    Call::AcquireLock(ask::wait(lock_ref, seconds))
}

fn renew_ask(session: &str) -> Call {
    Call::RenewSession(ask::renew_session(session))
}

fn look_ask(lock_ref: &str) -> Call {
    Call::AcquireLock(ask::acquire(lock_ref))
}

/// A key that is held, an entry that waits for it, and a Pipeline.
async fn held_and_waiting() -> (World, CreateLockRefResponse, String, Pipe) {
    let world = World::new().await;
    let mut client = world.client().await;
    let held = hold(&mut client, "a").await;
    let waiter = create(&mut client, "a").await.lock_ref;
    let pipe = Pipe::open(&mut client).await;
    (world, held, waiter, pipe)
}

fn is_acquired(outcome: Result<Outcome, Status>, state: LockState) {
    let is_it = matches!(&outcome, Ok(Outcome::AcquireLock(lock)) if lock.state() == state);
    assert!(is_it, "{outcome:?}");
}

#[tokio::test]
async fn a_call_is_answered_when_it_is_done_and_not_in_its_turn() {
    let (_world, held, waiter, mut pipe) = held_and_waiting().await;
    let ids = pipe.send([
        wait_ask(&waiter, 60),
        put_ask(&held.lock_ref, "one"),
        Call::CreateLockRef(ask::create("other")),
    ]);
    let put = pipe.outcome(ids[1]).await;
    assert!(matches!(put, Ok(Outcome::CriticalPut(_))), "{put:?}");
    // This replica serves it.
    assert_eq!(pipe.answer(ids[2]).await.unwrap().home, None);
    assert!(pipe.come.is_empty());
    let release = Call::ReleaseLock(ask::release(&held.lock_ref));
    pipe.made(release).await.unwrap();
    is_acquired(pipe.outcome(ids[0]).await, LockState::Held);
}

#[tokio::test]
async fn the_end_of_the_stream_is_the_disconnect_of_those_it_renewed() {
    let world = World::new().await;
    let mut client = world.client().await;
    let open = OpenSessionRequest {
        disconnect_grace: ask::seconds(1),
        ..Default::default()
    };
    let session = done(client.open_session(open)).await.session;
    done(client.create_lock_ref(ask::create_in("a", &session))).await;
    let waiter = create(&mut client, "a").await.lock_ref;
    let mut pipe = Pipe::open(&mut client).await;
    for _ in 0..8 {
        let renewed = pipe.made(Call::KeepAlive(ask::keep_alive(&session))).await;
        let Ok(Outcome::KeepAlive(renewed)) = renewed else {
            panic!("{renewed:?}");
        };
        assert_eq!(renewed.reason(), EndReason::Unspecified);
        sleep(Duration::from_millis(250)).await;
    }
    let waits = done(client.acquire_lock(ask::acquire(&waiter))).await;
    assert_eq!(waits.state(), LockState::Waiting);
    drop(pipe);
    let held = done(client.acquire_lock(ask::wait(&waiter, 15))).await;
    assert_eq!(held.state(), LockState::Held);
}

#[tokio::test]
async fn a_call_that_names_nothing_is_refused_and_the_others_go_on() {
    let world = World::new().await;
    let mut pipe = Pipe::open(&mut world.client().await).await;
    let call = |call_id| PipelineCall {
        call_id,
        traceparent: String::new(),
        timeout: None,
        call: Some(Call::CreateLockRef(ask::create("a"))),
    };
    let nothing = PipelineCall {
        call: None,
        ..call(1)
    };
    let backwards = PipelineCall {
        timeout: ask::seconds(-1),
        ..call(2)
    };
    pipe.frame(vec![nothing, backwards, call(3)]);
    for (id, field, reason) in [(1, "call", "MISSING"), (2, "timeout", "OUT_OF_RANGE")] {
        let status = refused(pipe.outcome(id), Code::InvalidArgument, reason).await;
        assert_eq!(fields(&status), [field]);
    }
    let Ok(Outcome::CreateLockRef(created)) = pipe.outcome(3).await else {
        panic!("it is well made");
    };
    assert_eq!(created.state(), LockState::Held);
}

#[tokio::test]
async fn a_frame_that_is_too_much_ends_the_stream() {
    let world = World::new().await;
    let mut client = world.client().await;
    type Sends = fn(&mut Pipe);
    let sends: [(&[&str], Sends); 4] = [
        (&["calls"], |pipe| {
            pipe.send((0..257).map(|_| get_ask("")));
        }),
        (&["given_up"], |pipe| pipe.give_up(vec![1; 1_025])),
        // Nor are half a million empty ones decoded to be counted.
        (&[], |pipe| {
            pipe.frame(vec![PipelineCall::default(); 500_000]);
        }),
        (&[""], |pipe| {
            let put = || Call::CriticalPut(ask::critical_put("", vec![7; 600 * 1024]));
            pipe.send([put(), put()]);
        }),
    ];
    for (field, send) in sends {
        let mut pipe = Pipe::open(&mut client).await;
        send(&mut pipe);
        let status = refused(pipe.ends(), Code::InvalidArgument, "TOO_LARGE").await;
        assert_eq!(fields(&status), field);
    }
}

#[tokio::test]
async fn so_many_calls_may_wait_and_the_release_comes_through() {
    let world = World::new().await;
    let mut client = world.client().await;
    let held = hold(&mut client, "a").await;
    let mut pipe = Pipe::open(&mut client).await;
    let mut waiters = Vec::new();
    for _ in 0..520 {
        waiters.push(create(&mut client, "a").await.lock_ref);
    }
    let mut ids = Vec::new();
    for lock_ref in &waiters {
        // What they will read is not counted before it is read.
        let wait = AcquireLockRequest {
            read_value: true,
            ..ask::wait(lock_ref, 60)
        };
        ids.extend(pipe.send([Call::AcquireLock(wait)]));
    }
    for id in &ids[512..] {
        let wait = pipe.outcome(*id);
        let status = refused(wait, Code::ResourceExhausted, "LIMIT_REACHED").await;
        assert!(has_retry_info(&status));
    }
    assert!(pipe.come.is_empty());
    let release = Call::ReleaseLock(ask::release(&held.lock_ref));
    pipe.made(release).await.unwrap();
    is_acquired(pipe.outcome(ids[0]).await, LockState::Held);
    // Which made room for one more.
    let waits = pipe.made(wait_ask(&waiters[512], 0)).await;
    is_acquired(waits, LockState::Waiting);
}

#[tokio::test]
async fn two_calls_in_flight_with_one_id_end_the_stream() {
    let (world, held, _, mut pipe) = held_and_waiting().await;
    world.store.send_replace(Mode::Hangs);
    let twice = |call: Call| PipelineCall {
        call_id: 7,
        traceparent: String::new(),
        timeout: None,
        call: Some(call),
    };
    pipe.frame(vec![twice(get_ask("b")), twice(look_ask(&held.lock_ref))]);
    let status = refused(pipe.ends(), Code::InvalidArgument, "CONFLICTING").await;
    assert_eq!(fields(&status), ["call_id"]);
}

#[tokio::test]
async fn a_renewal_is_answered_between_what_is_large() {
    let world = World::new().await;
    let mut client = world.client().await;
    let held = hold(&mut client, "a").await;
    let value = vec![7; 1024 * 1024];
    done(client.critical_put(ask::critical_put(&held.lock_ref, value.clone()))).await;
    let mut pipe = Pipe::open(&mut client).await;
    let large = pipe.send((0..12).map(|_| get_ask("a")));
    // Nothing is taken meanwhile, so all of them wait.
    sleep(Duration::from_millis(500)).await;
    let small = pipe.send([renew_ask(&held.session)])[0];
    sleep(Duration::from_millis(300)).await;
    pipe.outcome(small).await.unwrap();
    assert!(pipe.come.len() < 12, "{}", pipe.come.len());
    for id in large {
        let Ok(Outcome::Get(got)) = pipe.outcome(id).await else {
            panic!("it was well made");
        };
        assert!(got.value == value);
    }
}

#[tokio::test]
async fn what_was_read_is_answered_before_the_server_stops() {
    let (mut world, held, waiter, mut pipe) = held_and_waiting().await;
    let wait = pipe.send([wait_ask(&waiter, 60)])[0];
    // It was read with the frame before.
    pipe.made(get_ask("a")).await.unwrap();
    world.store.send_replace(Mode::Hangs);
    let put = pipe.send([put_ask(&held.lock_ref, "one")])[0];
    pipe.made(renew_ask(&held.session)).await.unwrap();
    let stopped = world.stop();
    refused(pipe.outcome(wait), Code::Unavailable, "STOPPING").await;
    // While that put goes on, what comes is refused at once, and not left unread.
    let late = pipe.made(Call::CreateLockRef(ask::create("late")));
    refused(late, Code::Unavailable, "STOPPING").await;
    world.store.send_replace(Mode::Works);
    let put = pipe.outcome(put).await;
    assert!(matches!(put, Ok(Outcome::CriticalPut(_))), "{put:?}");
    refused(pipe.ends(), Code::Unavailable, "STOPPING").await;
    stopped.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_call_is_answered_within_its_own_time() {
    let (world, held, _, mut pipe) = held_and_waiting().await;
    world.store.send_replace(Mode::Hangs);
    let begun = Instant::now();
    let put = put_ask(&held.lock_ref, "one");
    let id = pipe.send_within([put], Some(Duration::from_millis(300)))[0];
    refused(pipe.outcome(id), Code::Unavailable, "OUTCOME_UNKNOWN").await;
    // Not when any call ends, 10 s after it was begun.
    assert!(begun.elapsed() < Duration::from_secs(5));
    world.store.send_replace(Mode::Works);
}
