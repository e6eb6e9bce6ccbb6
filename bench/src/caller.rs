//! A client of the service that does sections. Like the Rust library it calls the home of a key, once an answer has named it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use fermata_command::Failure;
use fermata_proto::{
    CreateLockRefRequest, CriticalGetRequest, CriticalPutRequest, HOME_ADDRESS, LockState,
    Mutation, ReleaseLockRequest,
};
use tokio::time::{Instant, sleep};
use tonic::metadata::MetadataMap;
use uuid::Uuid;

use super::connect::Connection;
use super::counters::{decode, encode};
use super::measure::{FailedCall, Phase, Times, clocked};
use super::plan::{Form, Plan};
use super::workload::{Worker, Workload};

/// The connections of a run, and the home of each key.
#[derive(Debug)]
pub(super) struct Replicas {
    /// By replica, one or more to each.
    connections: Vec<Vec<Connection>>,
    /// By key: the number of a replica. The keys are spread over the replicas until answers name their homes.
    homes: Vec<AtomicUsize>,
}

impl Replicas {
    /// Opens this many connections, and at least one to each endpoint.
    pub(super) async fn connect(
        plan: &Plan,
        connections: usize,
        keys: usize,
    ) -> Result<Replicas, Failure> {
        let mut replicas = vec![Vec::new(); plan.endpoints.len()];
        for number in 0..connections.max(replicas.len()) {
            let at = number % replicas.len();
            let endpoint = &plan.endpoints[at];
            let opened = Connection::open(endpoint, &plan.options, plan.load.pipeline).await?;
            replicas[at].push(opened);
        }
        let count = replicas.len();
        Ok(Replicas {
            connections: replicas,
            homes: (0..keys).map(|key| AtomicUsize::new(key % count)).collect(),
        })
    }

    pub(super) fn count(&self) -> usize {
        self.connections.iter().map(Vec::len).sum()
    }

    /// The connection of this worker to a replica.
    fn connection(&self, replica: usize, worker: usize) -> Connection {
        let there = &self.connections[replica];
        there[worker / self.connections.len() % there.len()].clone()
    }

    fn at(&self, address: &str) -> Option<usize> {
        let is_there = |there: &Vec<Connection>| there.iter().any(|one| one.address == address);
        self.connections.iter().position(is_there)
    }
}

/// A client of the service.
#[derive(Debug)]
pub(super) struct Caller {
    number: usize,
    replicas: Arc<Replicas>,
    workload: Arc<Workload>,
    /// The number of the replica that is called, and the connection to it.
    at: usize,
    connection: Connection,
    /// The key and request_id of a create without an answer. The next section repeats it, and so finds the same entry.
    unanswered: Option<(usize, Uuid)>,
    times: Times,
}

/// A lock that is held.
struct Held {
    lock_ref: String,
    fencing_token: u64,
    /// Empty where it was not asked for.
    value: Bytes,
}

impl Worker for Caller {
    async fn section(&mut self, turn: usize) -> Result<(), FailedCall> {
        self.times.clear();
        let workload = Arc::clone(&self.workload);
        let key = match self.unanswered {
            Some((key, _)) => key,
            None => workload.keys.pick(turn),
        };
        let begun = Instant::now();
        let form = workload.plan.form;
        let held = self.take(key, form == Form::Short).await?;
        let lock_ref = held.lock_ref.clone();
        let hold = workload.plan.load.hold.duration();
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

    fn times(&self) -> &Times {
        &self.times
    }

    /// As the holder of the key.
    async fn read(&mut self, key: usize) -> Result<u64, FailedCall> {
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
    pub(super) fn new(number: usize, replicas: &Arc<Replicas>, workload: &Arc<Workload>) -> Caller {
        let at = number % replicas.connections.len();
        Caller {
            number,
            replicas: Arc::clone(replicas),
            workload: Arc::clone(workload),
            at,
            connection: replicas.connection(at, number),
            unanswered: None,
            times: Times::new(),
        }
    }

    fn go_to(&mut self, replica: usize) {
        if replica != self.at {
            self.at = replica;
            self.connection = self.replicas.connection(replica, self.number);
        }
    }

    /// Goes to the home that an answer names. An answer without a name comes from the home.
    fn follow(&mut self, key: usize, metadata: &MetadataMap) {
        let named = metadata.get(HOME_ADDRESS).map(|home| home.to_str());
        let home = match named {
            None => Some(self.at),
            Some(address) => address.ok().and_then(|address| self.replicas.at(address)),
        };
        if let Some(home) = home {
            self.replicas.homes[key].store(home, Relaxed);
            self.go_to(home);
        }
    }

    /// Locks a key.
    async fn take(&mut self, key: usize, read_value: bool) -> Result<Held, FailedCall> {
        let workload = Arc::clone(&self.workload);
        let Some(name) = workload.keys.name(key) else {
            return Err(FailedCall {
                phase: Phase::Create,
                code: "NO_KEY".to_owned(),
                message: "all new keys are used: --key-count is too low".to_owned(),
            });
        };
        let request_id = match self.unanswered {
            Some((unanswered, request_id)) if unanswered == key => request_id,
            _ => Uuid::new_v4(),
        };
        let create = CreateLockRefRequest {
            key: name.to_owned(),
            table: workload.plan.table.clone(),
            request_id: request_id.to_string(),
            ttl: workload.plan.load.ttl.duration().try_into().ok(),
            owner: "fermata-bench".to_owned(),
            read_value,
            ..CreateLockRefRequest::default()
        };
        self.unanswered = Some((key, request_id));
        self.go_to(self.replicas.homes[key].load(Relaxed));
        let call = self.connection.create_lock_ref(create);
        let created = clocked(&mut self.times, Phase::Create, call).await?;
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
        let call = self.connection.acquire_lock(&created.lock_ref, read_value);
        match clocked(&mut self.times, Phase::Acquire, call).await {
            Ok(acquired) => Ok(Held {
                lock_ref: acquired.lock_ref,
                fencing_token: acquired.fencing_token,
                value: acquired.value,
            }),
            Err(failed) => {
                self.give_up(created.lock_ref).await;
                Err(failed)
            }
        }
    }

    async fn get(&mut self, lock_ref: &str) -> Result<u64, FailedCall> {
        let call = self.connection.critical_get(CriticalGetRequest {
            lock_ref: lock_ref.to_owned(),
            call_no: 0,
        });
        let got = clocked(&mut self.times, Phase::Get, call).await?;
        Ok(decode(&got.into_inner().value))
    }

    /// Get, put and release.
    async fn increment(&mut self, key: usize, held: Held) -> Result<(), FailedCall> {
        let found = self.get(&held.lock_ref).await?;
        let workload = Arc::clone(&self.workload);
        let next = workload.counters.begin(key, held.fencing_token, found);
        let call = self.connection.critical_put(CriticalPutRequest {
            lock_ref: held.lock_ref.clone(),
            value: encode(next, workload.plan.value_bytes),
            call_no: 0,
        });
        clocked(&mut self.times, Phase::Put, call).await?;
        workload.counters.acknowledged(key);
        self.release(held.lock_ref, None).await
    }

    /// Release, with the put in it.
    async fn increment_at_release(&mut self, key: usize, held: Held) -> Result<(), FailedCall> {
        let workload = Arc::clone(&self.workload);
        let found = decode(&held.value);
        let next = workload.counters.begin(key, held.fencing_token, found);
        let put = Mutation {
            value: encode(next, workload.plan.value_bytes),
            delete: false,
        };
        self.release(held.lock_ref, Some(put)).await?;
        workload.counters.acknowledged(key);
        Ok(())
    }

    async fn release(&mut self, lock_ref: String, put: Option<Mutation>) -> Result<(), FailedCall> {
        let call = self.connection.release_lock(ReleaseLockRequest {
            lock_ref,
            put,
            call_no: 0,
        });
        clocked(&mut self.times, Phase::Release, call)
            .await
            .map(drop)
    }

    /// Frees the key after an error, so that others need not wait for the TTL. The section has failed already, and the lockRef
    /// may have ended, so the answer does not count.
    async fn give_up(&mut self, lock_ref: String) {
        let release = ReleaseLockRequest {
            lock_ref,
            ..ReleaseLockRequest::default()
        };
        let _ = self.connection.release_lock(release).await;
    }
}
