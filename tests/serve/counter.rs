//! Counters under the lock, with the server killed on the way: nothing acknowledged is lost, nothing is
//! done twice, fences only rise.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fermata_proto::{
    AcquireLockRequest, CreateLockRefRequest, CriticalGetRequest, CriticalPutRequest, LockState,
    ReleaseLockRequest,
};
use tonic::{Code, Response, Status};
use uuid::Uuid;

use super::history::{RecordedRequest, Recorder};
use super::process::{Client, Serve};

const CLIENTS: usize = 16;
const TIMES: u32 = 100;
const KILLS: usize = 5;

/// One increment as its writer saw it: the sum it wrote, and the fence it wrote under.
struct Increment {
    sum: u32,
    fence: u64,
}

/// How a step of a section ended other than well.
enum Trouble {
    /// The server was not there, or did not know the outcome: the same call again.
    Again,
    /// The lockRef has ended: start a new section.
    Lost,
}

impl From<Status> for Trouble {
    fn from(status: Status) -> Self {
        match status.code() {
            Code::Unavailable | Code::Unknown | Code::Cancelled | Code::DeadlineExceeded => {
                Trouble::Again
            }
            Code::FailedPrecondition => Trouble::Lost,
            _ => panic!("not a status that a kill explains: {status:?}"),
        }
    }
}

/// How often each client has counted, as the value of the key holds it.
fn parse(value: &[u8]) -> [u32; CLIENTS] {
    let mut counts = [0; CLIENTS];
    if !value.is_empty() {
        let text = std::str::from_utf8(value).unwrap();
        let (text, _) = text.split_once(';').unwrap();
        for (count, part) in counts.iter_mut().zip(text.split(',')) {
            *count = part.parse().unwrap();
        }
    }
    counts
}

/// Under one fence only: what is read says which write it was.
fn print(counts: &[u32; CLIENTS], fence: u64) -> String {
    format!("{};{fence}", counts.map(|n| n.to_string()).join(","))
}

/// One of the clients, and where its calls are noted.
struct Counting {
    client: Client,
    name: Arc<str>,
    history: Recorder,
}

impl Counting {
    /// One try of a call.
    async fn tried<Q: RecordedRequest + Clone, F>(
        &mut self,
        ask: &Q,
        make: impl FnOnce(Client, Q) -> F,
    ) -> Result<Q::Answer, Trouble>
    where
        F: Future<Output = Result<Response<Q::Answer>, Status>>,
    {
        let answer = make(self.client.clone(), ask.clone());
        let answer = self.history.tried(&self.name, ask, answer).await;
        answer.map_err(Trouble::from)
    }
}

/// The lockRef with its grant, and its fence.
async fn acquire(client: &mut Counting, lock_ref: &str) -> Result<(String, u64), Trouble> {
    loop {
        let request = AcquireLockRequest {
            lock_ref: lock_ref.to_owned(),
            wait: Some(prost_types::Duration {
                seconds: 5,
                nanos: 0,
            }),
            read_value: false,
            give_up: false,
        };
        let acquire = async |mut client: Client, request| client.acquire_lock(request).await;
        match client.tried(&request, acquire).await {
            Ok(answer) => {
                if answer.state() == LockState::Held {
                    return Ok((answer.lock_ref, answer.fencing_token));
                }
            }
            Err(Trouble::Again) => pause().await,
            Err(Trouble::Lost) => return Err(Trouble::Lost),
        }
    }
}

async fn pause() {
    tokio::time::sleep(Duration::from_millis(20)).await;
}

/// One section: counts once for client `me`, unless an earlier section of unknown outcome had.
async fn section(
    client: &mut Counting,
    me: usize,
    target: u32,
) -> Result<Option<Increment>, Trouble> {
    let request_id = Uuid::new_v4().to_string();
    let lock_ref = loop {
        let request = CreateLockRefRequest {
            key: "counter".to_owned(),
            request_id: request_id.clone(),
            ttl: Some(prost_types::Duration {
                seconds: 10,
                nanos: 0,
            }),
            ..CreateLockRefRequest::default()
        };
        let create = async |mut client: Client, request| client.create_lock_ref(request).await;
        match client.tried(&request, create).await {
            Ok(answer) => break answer.lock_ref,
            Err(Trouble::Again) => pause().await,
            Err(Trouble::Lost) => return Err(Trouble::Lost),
        }
    };
    let (mut held, mut fence) = acquire(client, &lock_ref).await?;
    let mut counts = loop {
        let request = CriticalGetRequest {
            lock_ref: held.clone(),
            call_no: 0,
        };
        let get = async |mut client: Client, request| client.critical_get(request).await;
        match client.tried(&request, get).await {
            Ok(answer) => break parse(&answer.value),
            // Taken over by the process that came after: the same entry, with a newer grant.
            Err(_) => (held, fence) = acquire(client, &lock_ref).await?,
        }
    };
    let mut done = None;
    if counts[me] < target {
        counts[me] += 1;
        assert_eq!(counts[me], target, "client {me} counted twice");
        loop {
            let request = CriticalPutRequest {
                lock_ref: held.clone(),
                value: print(&counts, fence).into_bytes().into(),
                call_no: 0,
            };
            let put = async |mut client: Client, request| client.critical_put(request).await;
            match client.tried(&request, put).await {
                Ok(_) => break,
                // The same section, so the same value: a put of unknown outcome is repeated.
                Err(_) => (held, fence) = acquire(client, &lock_ref).await?,
            }
        }
        done = Some(Increment {
            sum: counts.iter().sum(),
            fence,
        });
    }
    loop {
        let request = ReleaseLockRequest {
            lock_ref: held.clone(),
            ..ReleaseLockRequest::default()
        };
        let release = async |mut client: Client, request| client.release_lock(request).await;
        match client.tried(&request, release).await {
            Ok(_) | Err(Trouble::Lost) => return Ok(done),
            Err(Trouble::Again) => pause().await,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_is_exact_though_the_server_is_killed_five_times() {
    let mut serve = Serve::start();
    let history = Recorder::new();
    let total = CLIENTS * TIMES as usize;
    let finished = Arc::new(AtomicUsize::new(0));
    let mut clients = Vec::new();
    for me in 0..CLIENTS {
        let mut client = Counting {
            client: serve.client(),
            name: format!("client {me}").into(),
            history: history.clone(),
        };
        let finished = Arc::clone(&finished);
        clients.push(tokio::spawn(async move {
            let mut seen = Vec::new();
            for target in 1..=TIMES {
                loop {
                    if let Ok(increment) = section(&mut client, me, target).await {
                        seen.extend(increment);
                        break;
                    }
                }
                finished.fetch_add(1, Ordering::Relaxed);
            }
            seen
        }));
    }
    for kill in 1..=KILLS {
        // Spread over the run by progress, not by time.
        while finished.load(Ordering::Relaxed) < kill * total / (KILLS + 1) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::task::block_in_place(|| serve.kill_and_restart());
    }
    let mut increments = Vec::new();
    for client in clients {
        increments.extend(client.await.unwrap());
    }

    history.check("a server that is killed");

    let value = serve
        .client()
        .get(fermata_proto::GetRequest {
            key: "counter".to_owned(),
            table: String::new(),
        })
        .await
        .unwrap()
        .into_inner()
        .value;
    assert_eq!(parse(&value), [TIMES; CLIENTS]);
    assert_eq!(parse(&value).iter().sum::<u32>() as usize, total);
    increments.sort_by_key(|increment| increment.sum);
    assert!(increments.len() > total - CLIENTS * KILLS);
    for pair in increments.windows(2) {
        assert!(pair[0].sum < pair[1].sum, "two sections wrote the same sum");
        assert!(
            pair[0].fence < pair[1].fence,
            "the fence of sum {} is not above that of sum {}",
            pair[1].sum,
            pair[0].sum
        );
    }
}
