//! What one worker does: whole sections, one after the other, and how long each call of them took.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use fermata_proto::{
    AcquireLockRequest, CreateLockRefRequest, CriticalGetRequest, CriticalPutRequest, HOME_ADDRESS,
    LockState, Mutation, ReleaseLockRequest,
};
use tokio::time::{Instant, sleep};
use tonic::metadata::MetadataMap;
use tonic::{Response, Status};
use uuid::Uuid;

use super::connect::{Client, Connected};
use super::counters::{Counters, decode, encode};
use super::keys::{Keys, Random};
use super::measure::{Failure, Phase};

/// How long one AcquireLock waits; it is repeated until the lock is held.
const WAIT: Duration = Duration::from_secs(30);

/// Which calls make a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Form {
    /// CreateLockRef, AcquireLock if waiting, CriticalGet, CriticalPut, ReleaseLock.
    Full,
    /// CreateLockRef that reads the value, AcquireLock if waiting, ReleaseLock that writes it.
    Short,
    /// CreateLockRef, AcquireLock if waiting, ReleaseLock.
    Lock,
}

/// What all workers of a run share.
#[derive(Debug)]
pub(super) struct Workload {
    pub(super) form: Form,
    pub(super) table: String,
    /// How long a call may take, a wait aside.
    pub(super) call_within: Duration,
    pub(super) keys: Keys,
    pub(super) counters: Counters,
    pub(super) ttl: Duration,
    /// How long a holder does nothing, once in a section.
    pub(super) hold: Duration,
    pub(super) value_bytes: usize,
}

/// Who does sections, one after the other.
pub(super) trait Worker: Send + 'static {
    /// The key for the section with this turn: the number of its worker, or of its arrival.
    fn pick(&mut self, turn: usize) -> usize;

    /// One section.
    fn section(&mut self, key: usize) -> impl Future<Output = Result<(), Failure>> + Send;

    /// How long the calls of the latest section took, as far as it came.
    fn times(&self) -> &[(Phase, Duration)];

    /// Reads a counter after the run.
    fn read(&mut self, key: usize) -> impl Future<Output = Result<u64, Failure>> + Send;
}

/// The connections of a run, and by which one each key's home is reached, as far as it is known: as a client with several
/// endpoints remembers it (H10).
#[derive(Debug)]
pub(super) struct Replicas {
    clients: Vec<Connected>,
    /// By key: one more than the number of the first connection to its home; 0 where that is not known.
    homes: Vec<AtomicUsize>,
}

impl Replicas {
    /// There is one client at least.
    pub(super) fn new(clients: Vec<Connected>, keys: usize) -> Replicas {
        Replicas {
            clients,
            homes: (0..keys).map(|_| AtomicUsize::new(0)).collect(),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.clients.len()
    }

    fn first_to(&self, address: &str) -> Option<usize> {
        self.clients.iter().position(|one| one.address == address)
    }

    fn note_home(&self, key: usize, first: usize) {
        if let Some(home) = self.homes.get(key) {
            home.store(first + 1, Relaxed);
        }
    }

    /// The number of the connection that this worker reaches a key's home by.
    fn to_home(&self, key: usize, worker: usize) -> Option<usize> {
        let first = self.homes.get(key)?.load(Relaxed).checked_sub(1)?;
        let address = &self.clients.get(first)?.address;
        let there = || {
            let all = self.clients.iter().enumerate();
            all.filter(|(_, one)| one.address == *address)
        };
        let (number, _) = there().nth(worker % there().count())?;
        Some(number)
    }
}

/// A client of the service.
#[derive(Debug)]
pub(super) struct Caller {
    /// The one in use: that of the home of the latest key.
    client: Client,
    /// Its number.
    at: usize,
    replicas: Arc<Replicas>,
    number: usize,
    workload: Arc<Workload>,
    random: Random,
    /// Of a create that was not answered: the next one on its key finds the same entry again.
    unanswered: Option<(usize, Uuid)>,
    times: Vec<(Phase, Duration)>,
}

/// A lockRef that holds its key.
struct Held {
    lock_ref: String,
    fencing_token: u64,
    /// Where it was asked for.
    value: Bytes,
}

impl Worker for Caller {
    fn pick(&mut self, turn: usize) -> usize {
        match self.unanswered {
            Some((key, _)) => key,
            None => self.workload.keys.pick(turn, &mut self.random),
        }
    }

    async fn section(&mut self, key: usize) -> Result<(), Failure> {
        self.times.clear();
        let begun = Instant::now();
        let form = self.workload.form;
        let held = self.take(key, form == Form::Short).await?;
        let lock_ref = held.lock_ref.clone();
        let hold = self.workload.hold;
        if !hold.is_zero() {
            sleep(hold).await;
        }
        let done = match form {
            Form::Full => self.increment(key, held).await,
            Form::Short => self.increment_at_release(key, held).await,
            Form::Lock => self.release(held.lock_ref, None).await,
        };
        match done {
            Ok(()) => self.times.push((Phase::Section, begun.elapsed())),
            Err(_) => self.give_up(lock_ref).await,
        }
        done
    }

    fn times(&self) -> &[(Phase, Duration)] {
        &self.times
    }

    /// As the holder of its key.
    async fn read(&mut self, key: usize) -> Result<u64, Failure> {
        let held = self.take(key, false).await?;
        let counter = self.get(&held.lock_ref).await;
        match counter {
            Ok(_) => self.release(held.lock_ref, None).await?,
            Err(_) => self.give_up(held.lock_ref).await,
        }
        counter
    }
}

impl Caller {
    /// The worker with this number, which begins with the client of the same number. There is one at least.
    pub(super) fn new(replicas: &Arc<Replicas>, number: usize, workload: Arc<Workload>) -> Caller {
        let at = number % replicas.count();
        Caller {
            client: replicas.clients[at].client.clone(),
            at,
            replicas: Arc::clone(replicas),
            number,
            workload,
            random: Random::new(),
            unanswered: None,
            times: Vec::with_capacity(Phase::ALL.len()),
        }
    }

    /// Goes where the home of a key is, where that is known.
    fn go_home(&mut self, key: usize) {
        let home = self.replicas.to_home(key, self.number);
        if let Some(at) = home.filter(|at| *at != self.at) {
            self.at = at;
            self.client = self.replicas.clients[at].client.clone();
        }
    }

    /// The same, where an answer says so and there is a connection. Who says nothing is the home.
    fn follow(&mut self, key: usize, metadata: &MetadataMap) {
        let here = &self.replicas.clients[self.at].address;
        let home = metadata.get(HOME_ADDRESS);
        let home = home.map_or(Some(&**here), |home| home.to_str().ok());
        if let Some(first) = home.and_then(|home| self.replicas.first_to(home)) {
            self.replicas.note_home(key, first);
            self.go_home(key);
        }
    }

    /// Waits for a key.
    async fn take(&mut self, key: usize, read_value: bool) -> Result<Held, Failure> {
        if key >= self.workload.keys.count() {
            let used = Status::out_of_range("all new keys are used: --key-count is too low");
            return Err(Failure::answered(Phase::Create, &used));
        }
        let request_id = match self.unanswered {
            Some((unanswered, request_id)) if unanswered == key => request_id,
            _ => self.random.uuid(),
        };
        let ask = CreateLockRefRequest {
            key: self.workload.keys.name(key).to_owned(),
            table: self.workload.table.clone(),
            request_id: request_id.to_string(),
            ttl: prost_types::Duration::try_from(self.workload.ttl).ok(),
            owner: "fermata-bench".to_owned(),
            read_value,
            ..CreateLockRefRequest::default()
        };
        self.unanswered = Some((key, request_id));
        self.go_home(key);
        let call = self.client.create_lock_ref(ask, self.workload.call_within);
        let created = timed_response(&mut self.times, Phase::Create, call).await?;
        self.follow(key, created.metadata());
        let created = created.into_inner();
        self.unanswered = None;
        if created.state() == LockState::Held {
            return Ok(Held {
                lock_ref: created.lock_ref,
                fencing_token: created.fencing_token,
                value: created.value,
            });
        }
        let begun = Instant::now();
        let held = self.acquire(&created.lock_ref, read_value).await;
        match held {
            Ok(_) => self.times.push((Phase::Acquire, begun.elapsed())),
            Err(_) => self.give_up(created.lock_ref).await,
        }
        held
    }

    async fn acquire(&mut self, lock_ref: &str, read_value: bool) -> Result<Held, Failure> {
        loop {
            let ask = AcquireLockRequest {
                lock_ref: lock_ref.to_owned(),
                wait: prost_types::Duration::try_from(WAIT).ok(),
                read_value,
                give_up: false,
            };
            let call = self
                .client
                .acquire_lock(ask, WAIT + self.workload.call_within);
            let acquired = call.await;
            let acquired = acquired.map_err(|status| Failure::answered(Phase::Acquire, &status))?;
            let acquired = acquired.into_inner();
            if acquired.state() == LockState::Held {
                return Ok(Held {
                    lock_ref: acquired.lock_ref,
                    fencing_token: acquired.fencing_token,
                    value: acquired.value,
                });
            }
        }
    }

    async fn get(&mut self, lock_ref: &str) -> Result<u64, Failure> {
        let ask = CriticalGetRequest {
            lock_ref: lock_ref.to_owned(),
            call_no: 0,
        };
        let call = self.client.critical_get(ask, self.workload.call_within);
        let got = timed(&mut self.times, Phase::Get, call).await?;
        Ok(decode(&got.value))
    }

    /// Get, put and release.
    async fn increment(&mut self, key: usize, held: Held) -> Result<(), Failure> {
        let found = self.get(&held.lock_ref).await?;
        let workload = Arc::clone(&self.workload);
        let next = workload.counters.begin(key, held.fencing_token, found);
        let ask = CriticalPutRequest {
            lock_ref: held.lock_ref.clone(),
            value: encode(next, workload.value_bytes),
            call_no: 0,
        };
        let call = self.client.critical_put(ask, self.workload.call_within);
        timed(&mut self.times, Phase::Put, call).await?;
        workload.counters.acknowledged(key);
        self.release(held.lock_ref, None).await
    }

    /// Release, with the put in it.
    async fn increment_at_release(&mut self, key: usize, held: Held) -> Result<(), Failure> {
        let workload = Arc::clone(&self.workload);
        let found = decode(&held.value);
        let next = workload.counters.begin(key, held.fencing_token, found);
        let put = Mutation {
            value: encode(next, workload.value_bytes),
            delete: false,
        };
        self.release(held.lock_ref, Some(put)).await?;
        workload.counters.acknowledged(key);
        Ok(())
    }

    async fn release(&mut self, lock_ref: String, put: Option<Mutation>) -> Result<(), Failure> {
        let ask = ReleaseLockRequest {
            lock_ref,
            put,
            call_no: 0,
        };
        let call = self.client.release_lock(ask, self.workload.call_within);
        timed(&mut self.times, Phase::Release, call).await?;
        Ok(())
    }

    /// Frees the key after an error, so that the others need not wait for the TTL. What comes of it is
    /// not counted: the section has failed already, and the lockRef may have ended.
    async fn give_up(&mut self, lock_ref: String) {
        let ask = ReleaseLockRequest {
            lock_ref,
            put: None,
            call_no: 0,
        };
        let _ = self
            .client
            .release_lock(ask, self.workload.call_within)
            .await;
    }
}

/// Makes a call and notes how long its answer took.
async fn timed<T>(
    times: &mut Vec<(Phase, Duration)>,
    phase: Phase,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Failure> {
    let answer = timed_response(times, phase, call).await?;
    Ok(answer.into_inner())
}

/// The same, with the metadata of the answer.
async fn timed_response<T>(
    times: &mut Vec<(Phase, Duration)>,
    phase: Phase,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<Response<T>, Failure> {
    let begun = Instant::now();
    match call.await {
        Ok(answer) => {
            times.push((phase, begun.elapsed()));
            Ok(answer)
        }
        Err(status) => Err(Failure::answered(phase, &status)),
    }
}
