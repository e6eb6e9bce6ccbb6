//! A section by MUSIC's statements, sent straight to Cassandra.

mod statements;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fermata_cassandra::Fault;
use tokio::time::Instant;

pub(super) use self::statements::Music;
use super::counters::{decode, encode};
use super::measure::{Failure, Phase};
use super::workload::{Worker, Workload};

/// How often a lockRef is asked for before it counts as an error: the guard that was read may be an old one.
const CREATES_MAX: usize = 4;
/// The label of an entry in the queue.
const OWNER: &str = "fermata-bench";

/// One worker, on a key of its own.
#[derive(Debug)]
pub(super) struct MusicWorker {
    music: Arc<Music>,
    workload: Arc<Workload>,
    /// A lockRef that may still be in the queue of its key after an error. Nobody would ever get past it, so it
    /// is removed before the next section; MUSIC itself leaves that to a lease.
    left: Option<(usize, i64)>,
    times: Vec<(Phase, Duration)>,
}

impl MusicWorker {
    pub(super) fn new(music: Arc<Music>, workload: Arc<Workload>) -> MusicWorker {
        MusicWorker {
            music,
            workload,
            left: None,
            times: Vec::with_capacity(Phase::ALL.len()),
        }
    }

    /// The guard, read, and the lockRef after it, put into the queue.
    async fn create(&mut self, key: usize) -> Result<i64, Failure> {
        let begun = Instant::now();
        let name = self.workload.keys.name(key);
        for _ in 0..CREATES_MAX {
            let guard = self.music.guard(name).await;
            let guard = guard.map_err(|fault| failed(Phase::Create, fault))?;
            let lock_ref = guard.saturating_add(1);
            match self.music.enqueue(name, guard, OWNER, now_ms()).await {
                Ok(true) => {
                    self.times.push((Phase::Create, begun.elapsed()));
                    return Ok(lock_ref);
                }
                Ok(false) => {}
                Err(fault) => {
                    self.left = Some((key, lock_ref));
                    return Err(failed(Phase::Create, fault));
                }
            }
        }
        Err(Failure {
            phase: Phase::Create,
            code: "CONFLICT",
            message: format!("{CREATES_MAX} guards in a row were old ones"),
        })
    }

    /// Asks whose turn it is until it is this one's: what was read may be old.
    async fn acquire(&mut self, name: &str, lock_ref: i64) -> Result<(), Failure> {
        let begun = Instant::now();
        loop {
            let first = self.music.peek(name).await;
            let first = first.map_err(|fault| failed(Phase::Acquire, fault))?;
            if first == Some(lock_ref) {
                self.times.push((Phase::Acquire, begun.elapsed()));
                return Ok(());
            }
            if begun.elapsed() > self.workload.call_within {
                return Err(Failure {
                    phase: Phase::Acquire,
                    code: "NOT_FIRST",
                    message: format!("lockRef {lock_ref} waits for {first:?} on a key of its own"),
                });
            }
        }
    }

    /// What the holder of a lockRef does.
    async fn increment(&mut self, key: usize, lock_ref: i64) -> Result<(), Failure> {
        let workload = Arc::clone(&self.workload);
        let name = workload.keys.name(key);
        self.acquire(name, lock_ref).await?;

        let begun = Instant::now();
        let found = self.music.get(name).await;
        let found = found.map_err(|fault| failed(Phase::Get, fault))?;
        self.times.push((Phase::Get, begun.elapsed()));

        let found = decode(&found.unwrap_or_default());
        let next = workload.counters.begin(key, lock_ref.unsigned_abs(), found);
        let value = encode(next, workload.value_bytes);
        let begun = Instant::now();
        let put = self.music.put(name, lock_ref, &value, now_ms()).await;
        put.map_err(|fault| failed(Phase::Put, fault))?;
        self.times.push((Phase::Put, begun.elapsed()));
        workload.counters.acknowledged(key);

        let begun = Instant::now();
        let released = self.music.release(name, lock_ref).await;
        released.map_err(|fault| failed(Phase::Release, fault))?;
        self.times.push((Phase::Release, begun.elapsed()));
        Ok(())
    }

    /// Removes what may have been left in the queue.
    async fn remove_left(&mut self) -> Result<(), Failure> {
        if let Some((key, lock_ref)) = self.left {
            let name = self.workload.keys.name(key);
            let removed = self.music.release(name, lock_ref).await;
            removed.map_err(|fault| failed(Phase::Release, fault))?;
            self.left = None;
        }
        Ok(())
    }
}

impl Worker for MusicWorker {
    fn pick(&mut self, turn: usize) -> usize {
        turn
    }

    async fn section(&mut self, key: usize) -> Result<(), Failure> {
        self.times.clear();
        self.remove_left().await?;
        let begun = Instant::now();
        let lock_ref = self.create(key).await?;
        let done = self.increment(key, lock_ref).await;
        match done {
            Ok(()) => self.times.push((Phase::Section, begun.elapsed())),
            Err(_) => self.left = Some((key, lock_ref)),
        }
        done
    }

    fn times(&self) -> &[(Phase, Duration)] {
        &self.times
    }

    /// Without the lock: nobody else has the key.
    async fn read(&mut self, key: usize) -> Result<u64, Failure> {
        read_counter(&self.music, self.workload.keys.name(key)).await
    }
}

/// The counter of a key, read at QUORUM.
pub(super) async fn read_counter(music: &Music, key: &str) -> Result<u64, Failure> {
    let value = music.get(key).await;
    let value = value.map_err(|fault| failed(Phase::Get, fault))?;
    Ok(decode(&value.unwrap_or_default()))
}

pub(super) fn failed(phase: Phase, fault: Fault) -> Failure {
    let code = match fault {
        Fault::Refused(_) | Fault::NotStarted(_) => "NOT_STARTED",
        Fault::Unknown(_) => "UNKNOWN_OUTCOME",
    };
    Failure {
        phase,
        code,
        message: fault.to_string(),
    }
}

pub(super) fn now_ms() -> i64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    let since_1970 = since_1970.unwrap_or_default();
    i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX)
}
