//! More is asked for than the store can do: what is done goes on, and the rest is refused early.

use std::time::Duration;

use fermata::engine::Begins;
use fermata_proto::pipeline_answer::Outcome;
use fermata_proto::pipeline_call::Call;
use fermata_proto::{
    CreateLockRefRequest, EndReason, ListSessionsRequest, LockState, OpenSessionRequest,
};
use tokio::sync::mpsc;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::access::token;
use crate::ask;
use crate::each_call::{AnyCall, Caller, Came, Holdings};
use crate::lever::{HANGING, Mode};
use crate::renewals::create_call;
use crate::world::{Client, World, done, in_ms};

/// For how long a call listens.
const LISTENS_MS: u64 = 3_000;

/// How many calls came to what.
#[derive(Debug, Default)]
struct Outcomes {
    done: usize,
    refused: usize,
    others: Vec<Status>,
}

impl Outcomes {
    fn came(&mut self, outcome: Result<(), Status>) {
        match outcome {
            Ok(()) => self.done += 1,
            Err(status) if is_overload(&status) => self.refused += 1,
            Err(status) => self.others.push(status),
        }
    }
}

/// Whether a call was refused since there is too much. Then its client is to come again, and not at once.
fn is_overload(status: &Status) -> bool {
    let details = status.get_error_details();
    let reason = details.error_info().map(|info| info.reason.as_str());
    if (status.code(), reason) != (Code::ResourceExhausted, Some("OVERLOADED")) {
        return false;
    }
    let again = details.retry_info().and_then(|info| info.retry_delay);
    assert!(again.is_some_and(|again| again >= Duration::from_millis(100)));
    true
}

/// A whole section on a key of its own.
async fn section(mut client: Client, key: String) -> Result<(), Status> {
    let held = client
        .create_lock_ref(in_ms(ask::create(&key), LISTENS_MS))
        .await?;
    client
        .release_lock(in_ms(ask::release(&held.into_inner().lock_ref), LISTENS_MS))
        .await?;
    Ok(())
}

/// As many as the store does, by so many at once.
async fn closed_loop(clients: &[Client], workers: usize, until: Instant) -> usize {
    let mut working = JoinSet::new();
    for worker in 0..workers {
        let client = clients[worker % clients.len()].clone();
        working.spawn(async move {
            let mut done = 0;
            while Instant::now() < until {
                let key = format!("closed/{worker}/{done}");
                section(client.clone(), key).await.unwrap();
                done += 1;
            }
            done
        });
    }
    working.join_all().await.into_iter().sum()
}

/// So many a second, whatever comes of them.
async fn open_loop(clients: &[Client], rate: f64, span: Duration) -> Outcomes {
    let mut going = JoinSet::new();
    let begun = Instant::now();
    let count = (rate * span.as_secs_f64()) as usize;
    for number in 0..count {
        sleep_until(begun + Duration::from_secs_f64(number as f64 / rate)).await;
        let client = clients[number % clients.len()].clone();
        going.spawn(section(client, format!("open/{number}")));
    }
    let mut outcomes = Outcomes::default();
    while let Some(outcome) = going.join_next().await {
        outcomes.came(outcome.unwrap());
    }
    outcomes
}

/// The TTL of sessions.
const TTL: Duration = Duration::from_secs(2);

/// A session that is renewed until it is told to stop; how often it was, and what the slowest answer took.
async fn renewed(
    mut client: Client,
    mut stop: tokio::sync::watch::Receiver<bool>,
) -> (usize, Duration) {
    let open = OpenSessionRequest {
        ttl: TTL.try_into().ok(),
        ..Default::default()
    };
    let session = done(client.open_session(open)).await.session;
    let (renewals, sent) = mpsc::channel(8);
    let answers = client.keep_alive(ReceiverStream::new(sent)).await.unwrap();
    let mut answers = answers.into_inner();
    let mut ticks = interval(Duration::from_millis(500));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut count, mut slowest) = (0, Duration::ZERO);
    loop {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return (count, slowest),
            _ = ticks.tick() => {}
        }
        let renewal = ask::keep_alive(&session);
        let sent = Instant::now();
        renewals.send(renewal).await.unwrap();
        let answer = answers.next().await.unwrap().unwrap();
        slowest = slowest.max(sent.elapsed());
        let left = answer.valid_for.unwrap();
        assert!(
            answer.reason() == EndReason::Unspecified && (left.seconds, left.nanos) > (0, 0),
            "{answer:?}"
        );
        count += 1;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_three_times_the_capacity_as_much_is_done_and_no_session_is_lost() {
    let world = World::new().await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(world.client().await);
    }
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut sessions = JoinSet::new();
    for _ in 0..20 {
        sessions.spawn(renewed(clients[0].clone(), stopped.clone()));
    }
    world.store.send_replace(Mode::Paced);
    let span = Duration::from_secs(5);
    let best = closed_loop(&clients, 64, Instant::now() + span).await;
    let capacity = best as f64 / span.as_secs_f64();
    let span = 2 * span;
    let outcomes = open_loop(&clients, 3.0 * capacity, span).await;
    assert!(outcomes.others.is_empty(), "{:?}", outcomes.others.first());
    // What was begun before the first refusals, and ended after the last call was made, is more than the rest of that.
    // A busy machine does less in the second half.
    let least = 0.8 * capacity * span.as_secs_f64();
    assert!(
        outcomes.done as f64 >= least && outcomes.refused > 0,
        "{} done, {} refused, {least} expected",
        outcomes.done,
        outcomes.refused
    );
    stop.send_replace(true);
    let renewals = sessions.join_all().await;
    // No client would give one up, and most of a TTL is left.
    let in_time = |(count, slowest): &(usize, Duration)| *count > 10 && *slowest < TTL / 2;
    assert!(renewals.iter().all(in_time), "{renewals:?}");
}

/// Begins as many calls as are ever begun at once, which hang in the store.
async fn fill(world: &World, begins: Begins) -> JoinSet<()> {
    let mut hang = JoinSet::new();
    while world.engine.is_overloaded(begins).is_none() {
        assert!(hang.len() < 100_000, "{begins:?} has no end");
        let engine = world.engine.clone();
        let (call, _secret) = create_call(&format!("{HANGING}{}", hang.len()));
        hang.spawn(async move {
            match begins {
                Begins::Entry => drop(engine.create(call).await),
                Begins::Read => drop(engine.read(&call.id, Duration::ZERO).await),
            }
        });
        yield_now().await;
    }
    hang
}

/// The calls that begin something.
fn beginnings() -> [Call; 4] {
    let with_value = CreateLockRefRequest {
        read_value: true,
        ..ask::create("refused")
    };
    let get = ask::get("refused");
    [
        Call::CreateLockRef(ask::create("refused")),
        Call::CreateLockRef(with_value),
        Call::OpenSession(OpenSessionRequest::default()),
        Call::Get(get),
    ]
}

/// By calls by themselves, and in frames of a Pipeline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_would_begin_something_is_refused_early_while_renewals_and_releases_go_on() {
    let world = World::new().await;
    let (mut client, mut admin) = (world.client().await, world.admin().await);
    let anybody = token("anybody");
    let mut callers = Caller::both(&client, &admin, &anybody).await;
    let mut held = Vec::new();
    for key in ["by itself", "in frames"] {
        held.push(Holdings::of(&mut client, &anybody, key).await);
    }
    world.store.send_replace(Mode::HangsInPart);
    let hang = [
        fill(&world, Begins::Entry).await,
        fill(&world, Begins::Read).await,
    ];
    for (caller, has) in callers.iter_mut().zip(&held) {
        let in_session = Call::CreateLockRef(ask::create_in("refused", &has.session));
        for call in beginnings().into_iter().chain([in_session]) {
            let refused = caller.carried(call.clone()).await.unwrap_err();
            assert!(is_overload(&refused), "{call:?}: {refused:?}");
        }
        for call in has.calls_that_keep() {
            if caller.makes(&call) {
                assert_eq!(caller.made(call.clone()).await, Came::Done, "{call:?}");
            }
        }
        // The next one gets the lock.
        let waits = Call::AcquireLock(ask::wait(&has.waiting.lock_ref, 60));
        let released = AnyCall::Carried(Call::ReleaseLock(ask::release(&has.held.lock_ref)));
        assert_eq!(caller.made(released).await, Came::Done);
        let Ok(Outcome::AcquireLock(next)) = caller.carried(waits).await else {
            panic!("it waits no more");
        };
        assert_eq!(next.state(), LockState::Held);
        let closed = AnyCall::Carried(Call::CloseSession(ask::close_session(&has.session)));
        assert_eq!(caller.made(closed).await, Came::Done);
    }
    // Nothing was done of what was refused.
    let listed = done(admin.list_sessions(ListSessionsRequest::default())).await;
    assert!(listed.sessions.is_empty());
    let queue = done(admin.describe_lock(ask::describe("refused"))).await;
    assert!(queue.holders.is_empty() && queue.last_fencing_token == 0);

    world.store.send_replace(Mode::Works);
    for hang in hang {
        hang.join_all().await;
    }
    for caller in &mut callers {
        for call in beginnings() {
            let done = async {
                while let Err(status) = caller.carried(call.clone()).await {
                    assert!(is_overload(&status), "{call:?}: {status:?}");
                    sleep(Duration::from_millis(20)).await;
                }
            };
            timeout(Duration::from_secs(60), done).await.unwrap();
        }
    }
}
