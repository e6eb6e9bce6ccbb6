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
use crate::lever::Mode;
use crate::world::{Client, World, code_and_reason, create, fields, has_retry_info, hold};

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
        let given_up = Vec::new();
        let frames = self.frames.as_ref().unwrap();
        let frame = PipelineRequest { calls, given_up };
        frames.try_send(frame).unwrap();
    }

    fn give_up(&mut self, given_up: Vec<u64>) {
        let calls = Vec::new();
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
            self.come.extend(
                frame
                    .answers
                    .into_iter()
                    .map(|answer| (answer.call_id, answer)),
            );
        }
    }

    pub async fn made(&mut self, call: Call) -> Result<Outcome, Status> {
        let id = self.send([call])[0];
        outcome(self.answer(id).await?)
    }

    /// The status that the stream ends with.
    async fn ends(&mut self) -> Option<Status> {
        loop {
            match self.answers.message().await {
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(status) => return Some(status),
            }
        }
    }
}

pub fn outcome(answer: PipelineAnswer) -> Result<Outcome, Status> {
    match answer.outcome.unwrap() {
        Outcome::Error(error) => {
            let code = Code::from_i32(error.code);
            Err(Status::with_details(code, error.message, error.details))
        }
        outcome => Ok(outcome),
    }
}

pub fn create_ask(key: &str) -> CreateLockRefRequest {
    CreateLockRefRequest {
        key: key.to_owned(),
        read_value: true,
        ..Default::default()
    }
}

pub fn wait_ask(lock_ref: &str, seconds: i64) -> AcquireLockRequest {
    AcquireLockRequest {
        lock_ref: lock_ref.to_owned(),
        wait: Some(prost_types::Duration { seconds, nanos: 0 }),
        ..Default::default()
    }
}

pub fn put_ask(lock_ref: &str, value: &'static str) -> CriticalPutRequest {
    CriticalPutRequest {
        lock_ref: lock_ref.to_owned(),
        value: value.into(),
        call_no: 0,
    }
}

pub fn release_ask(lock_ref: &str) -> ReleaseLockRequest {
    ReleaseLockRequest {
        lock_ref: lock_ref.to_owned(),
        ..Default::default()
    }
}

fn get_ask(key: &str) -> Call {
    Call::Get(GetRequest {
        key: key.to_owned(),
        ..Default::default()
    })
}

fn renew_ask(session: &str) -> Call {
    Call::RenewSession(RenewSessionRequest {
        session: session.to_owned(),
    })
}

fn look_ask(lock_ref: &str) -> Call {
    Call::AcquireLock(AcquireLockRequest {
        lock_ref: lock_ref.to_owned(),
        ..Default::default()
    })
}

#[tokio::test]
async fn a_call_is_answered_when_it_is_done_and_not_in_its_turn() {
    let world = World::new().await;
    let mut client = world.client().await;
    let held = hold(&mut client, "a").await;
    let waiter = create(&mut client, "a").await;
    let mut pipe = Pipe::open(&mut client).await;
    let ids = pipe.send([
        Call::AcquireLock(wait_ask(&waiter.lock_ref, 60)),
        Call::CriticalPut(put_ask(&held.lock_ref, "one")),
        Call::CreateLockRef(create_ask("other")),
    ]);
    assert!(matches!(
        outcome(pipe.answer(ids[1]).await.unwrap()),
        Ok(Outcome::CriticalPut(_))
    ));
    let other = pipe.answer(ids[2]).await.unwrap();
    // This replica serves it.
    assert_eq!(other.home, None);
    assert!(pipe.come.is_empty());
    pipe.made(Call::ReleaseLock(release_ask(&held.lock_ref)))
        .await
        .unwrap();
    let Ok(Outcome::AcquireLock(acquired)) = outcome(pipe.answer(ids[0]).await.unwrap()) else {
        panic!("it waits no more");
    };
    assert_eq!(acquired.state(), LockState::Held);
}

#[tokio::test]
async fn the_end_of_the_stream_is_the_disconnect_of_those_it_renewed() {
    let world = World::new().await;
    let mut client = world.client().await;
    let ask = OpenSessionRequest {
        disconnect_grace: Some(prost_types::Duration {
            seconds: 1,
            nanos: 0,
        }),
        ..Default::default()
    };
    let session = client.open_session(ask).await.unwrap().into_inner().session;
    let ask = CreateLockRefRequest {
        session: session.clone(),
        ..create_ask("a")
    };
    client.create_lock_ref(ask).await.unwrap();
    let waiter = create(&mut client, "a").await;
    let mut pipe = Pipe::open(&mut client).await;
    let begun = Instant::now();
    for _ in 0..8 {
        let session = session.clone();
        let renewed = pipe
            .made(Call::KeepAlive(KeepAliveRequest { session }))
            .await;
        let Ok(Outcome::KeepAlive(renewed)) = renewed else {
            panic!("{renewed:?}");
        };
        assert_eq!(renewed.reason(), EndReason::Unspecified);
        sleep(Duration::from_millis(250)).await;
    }
    let waiting = AcquireLockRequest {
        lock_ref: waiter.lock_ref.clone(),
        ..Default::default()
    };
    let state = client.acquire_lock(waiting).await.unwrap().into_inner();
    assert_eq!(
        state.state(),
        LockState::Waiting,
        "after {:?}",
        begun.elapsed()
    );
    drop(pipe);
    let held = client.acquire_lock(wait_ask(&waiter.lock_ref, 15)).await;
    assert_eq!(held.unwrap().into_inner().state(), LockState::Held);
}

#[tokio::test]
async fn a_call_that_names_nothing_is_refused_and_the_others_go_on() {
    let world = World::new().await;
    let mut pipe = Pipe::open(&mut world.client().await).await;
    pipe.frame(vec![
        PipelineCall {
            call_id: 1,
            timeout: None,
            call: None,
        },
        PipelineCall {
            call_id: 2,
            timeout: Some(prost_types::Duration {
                seconds: -1,
                nanos: 0,
            }),
            call: Some(Call::CreateLockRef(create_ask("a"))),
        },
        PipelineCall {
            call_id: 3,
            timeout: None,
            call: Some(Call::CreateLockRef(create_ask("a"))),
        },
    ]);
    let refused = outcome(pipe.answer(1).await.unwrap()).unwrap_err();
    assert_eq!(fields(&refused), ["call"]);
    assert_eq!(
        code_and_reason(Err::<(), _>(refused)),
        (Code::InvalidArgument, "MISSING".to_owned())
    );
    let refused = outcome(pipe.answer(2).await.unwrap()).unwrap_err();
    assert_eq!(fields(&refused), ["timeout"]);
    let Ok(Outcome::CreateLockRef(created)) = outcome(pipe.answer(3).await.unwrap()) else {
        panic!("it is well made");
    };
    assert_eq!(created.state(), LockState::Held);
}

#[tokio::test]
async fn a_frame_that_is_too_much_ends_the_stream() {
    let world = World::new().await;
    let mut client = world.client().await;
    let mut pipe = Pipe::open(&mut client).await;
    pipe.send((0..257).map(|_| Call::Get(GetRequest::default())));
    let status = pipe.ends().await.unwrap();
    assert_eq!(fields(&status), ["calls"]);
    let mut pipe = Pipe::open(&mut client).await;
    pipe.give_up(vec![1; 1_025]);
    let status = pipe.ends().await.unwrap();
    assert_eq!(fields(&status), ["given_up"]);
    let mut pipe = Pipe::open(&mut client).await;
    pipe.send((0..257).map(|_| Call::Get(GetRequest::default())));
    let status = pipe.ends().await.unwrap();
    assert_eq!(
        code_and_reason(Err::<(), _>(status)),
        (Code::InvalidArgument, "TOO_LARGE".to_owned())
    );
    // Nor are half a million empty ones decoded to be counted.
    let mut pipe = Pipe::open(&mut client).await;
    pipe.frame(vec![PipelineCall::default(); 500_000]);
    let status = pipe.ends().await.unwrap();
    assert_eq!(
        code_and_reason(Err::<(), _>(status)),
        (Code::InvalidArgument, "TOO_LARGE".to_owned())
    );
    let mut pipe = Pipe::open(&mut client).await;
    let value = "x".repeat(600 * 1024);
    let put = CriticalPutRequest {
        value: value.into(),
        ..Default::default()
    };
    pipe.send([Call::CriticalPut(put.clone()), Call::CriticalPut(put)]);
    let status = pipe.ends().await.unwrap();
    assert_eq!(
        code_and_reason(Err::<(), _>(status)),
        (Code::InvalidArgument, "TOO_LARGE".to_owned())
    );
}

#[tokio::test]
async fn so_many_calls_may_wait_and_the_release_comes_through() {
    let world = World::new().await;
    let mut client = world.client().await;
    let held = hold(&mut client, "a").await;
    let mut pipe = Pipe::open(&mut client).await;
    let mut waiters = Vec::new();
    for _ in 0..520 {
        let created = pipe.made(Call::CreateLockRef(create_ask("a"))).await;
        let Ok(Outcome::CreateLockRef(created)) = created else {
            panic!("{created:?}");
        };
        waiters.push(created.lock_ref);
    }
    let mut ids = Vec::new();
    for lock_ref in &waiters {
        // What they will read is not counted before it is read.
        let wait = AcquireLockRequest {
            read_value: true,
            ..wait_ask(lock_ref, 60)
        };
        ids.extend(pipe.send([Call::AcquireLock(wait)]));
    }
    for id in &ids[512..] {
        let refused = outcome(pipe.answer(*id).await.unwrap()).unwrap_err();
        assert!(has_retry_info(&refused));
        assert_eq!(
            code_and_reason(Err::<(), _>(refused)),
            (Code::ResourceExhausted, "LIMIT_REACHED".to_owned())
        );
    }
    assert!(pipe.come.is_empty());
    let release = Call::ReleaseLock(release_ask(&held.lock_ref));
    pipe.made(release).await.unwrap();
    let acquired = outcome(pipe.answer(ids[0]).await.unwrap()).unwrap();
    assert!(matches!(acquired, Outcome::AcquireLock(lock) if lock.state() == LockState::Held));
    // Which made room for one more.
    let waits = Call::AcquireLock(wait_ask(&waiters[512], 0));
    let acquired = pipe.made(waits).await.unwrap();
    assert!(matches!(acquired, Outcome::AcquireLock(lock) if lock.state() == LockState::Waiting));
}

#[tokio::test]
async fn two_calls_in_flight_with_one_id_end_the_stream() {
    let world = World::new().await;
    let mut client = world.client().await;
    let held = hold(&mut client, "a").await;
    let mut pipe = Pipe::open(&mut client).await;
    world.store.send_replace(Mode::Hangs);
    let twice = |call: Call| PipelineCall {
        call_id: 7,
        timeout: None,
        call: Some(call),
    };
    pipe.frame(vec![twice(get_ask("b")), twice(look_ask(&held.lock_ref))]);
    let status = pipe.ends().await.unwrap();
    assert_eq!(fields(&status), ["call_id"]);
    assert_eq!(
        code_and_reason(Err::<(), _>(status)),
        (Code::InvalidArgument, "CONFLICTING".to_owned())
    );
}

#[tokio::test]
async fn a_renewal_is_answered_between_what_is_large() {
    let world = World::new().await;
    let mut client = world.client().await;
    let held = hold(&mut client, "a").await;
    let large = CriticalPutRequest {
        lock_ref: held.lock_ref.clone(),
        value: vec![7; 1024 * 1024].into(),
        call_no: 0,
    };
    client.critical_put(large).await.unwrap();
    let mut pipe = Pipe::open(&mut client).await;
    let get = || {
        Call::Get(GetRequest {
            key: "a".to_owned(),
            ..Default::default()
        })
    };
    let large = pipe.send((0..12).map(|_| get()));
    let renew = Call::RenewSession(RenewSessionRequest {
        session: held.session.clone(),
    });
    // Nothing is taken meanwhile, so all of them wait.
    sleep(Duration::from_millis(500)).await;
    let small = pipe.send([renew])[0];
    sleep(Duration::from_millis(300)).await;
    assert!(outcome(pipe.answer(small).await.unwrap()).is_ok());
    assert!(pipe.come.len() < 12, "{}", pipe.come.len());
    for id in large {
        let Ok(Outcome::Get(got)) = outcome(pipe.answer(id).await.unwrap()) else {
            panic!("it was well made");
        };
        assert_eq!(got.value.len(), 1024 * 1024);
    }
}

#[tokio::test]
async fn what_was_read_is_answered_before_the_server_stops() {
    let mut world = World::new().await;
    let mut client = world.client().await;
    let held = hold(&mut client, "a").await;
    let waiter = create(&mut client, "a").await;
    let mut pipe = Pipe::open(&mut client).await;
    let wait = pipe.send([Call::AcquireLock(wait_ask(&waiter.lock_ref, 60))])[0];
    // It was read with the frame before.
    pipe.made(Call::Get(GetRequest {
        key: "a".to_owned(),
        ..Default::default()
    }))
    .await
    .unwrap();
    world.store.send_replace(Mode::Hangs);
    let put = pipe.send([Call::CriticalPut(put_ask(&held.lock_ref, "one"))])[0];
    let renew = RenewSessionRequest {
        session: held.session.clone(),
    };
    pipe.made(Call::RenewSession(renew)).await.unwrap();
    let stopped = world.stop();
    let waited = outcome(pipe.answer(wait).await.unwrap()).unwrap_err();
    assert_eq!(
        code_and_reason(Err::<(), _>(waited)),
        (Code::Unavailable, "STOPPING".to_owned())
    );
    // While that put goes on, what comes is refused at once, and not left unread.
    let late = pipe.made(Call::CreateLockRef(create_ask("late"))).await;
    assert_eq!(
        code_and_reason(late.map(drop)),
        (Code::Unavailable, "STOPPING".to_owned())
    );
    world.store.send_replace(Mode::Works);
    let put = outcome(pipe.answer(put).await.unwrap());
    assert!(matches!(put, Ok(Outcome::CriticalPut(_))), "{put:?}");
    let last = pipe.ends().await.unwrap();
    assert_eq!(
        code_and_reason(Err::<(), _>(last)),
        (Code::Unavailable, "STOPPING".to_owned())
    );
    stopped.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_call_is_answered_within_its_own_time() {
    let world = World::new().await;
    let mut client = world.client().await;
    let held = hold(&mut client, "a").await;
    let mut pipe = Pipe::open(&mut client).await;
    world.store.send_replace(Mode::Hangs);
    let put = Call::CriticalPut(put_ask(&held.lock_ref, "one"));
    let begun = Instant::now();
    let id = pipe.send_within([put], Some(Duration::from_millis(300)))[0];
    let late = outcome(pipe.answer(id).await.unwrap()).unwrap_err();
    // Not when any call ends, 10 s after it was begun.
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(
        code_and_reason(Err::<(), _>(late)),
        (Code::Unavailable, "OUTCOME_UNKNOWN".to_owned())
    );
    world.store.send_replace(Mode::Works);
}
