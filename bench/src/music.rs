//! Sections without the service, straight to Cassandra: by MUSIC's statements, or the put of a section alone.

mod statements;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use fermata_cassandra::Fault;
use tokio::time::Instant;

pub(super) use self::statements::Music;
use super::baseline::System;
use super::counters::{decode, encode};
use super::measure::{FailedCall, Phase, Times, clocked};
use super::workload::{Worker, Workload};

/// The attempts at a lockRef, since the guard is read at ONE and may be an old one.
const CREATES_MAX: usize = 4;

/// One worker, on a key of its own.
#[derive(Debug)]
pub(super) struct MusicWorker {
    system: System,
    music: Arc<Music>,
    workload: Arc<Workload>,
    /// A lockRef that may still be in the queue of its key after an error. It would block the key, so it is removed before the
    /// next section; MUSIC itself leaves that to a lease.
    left: Option<(usize, i64)>,
    /// The acknowledged puts, where the put is alone. No counter is read then.
    puts: u64,
    times: Times,
}

impl Worker for MusicWorker {
    async fn section(&mut self, turn: usize) -> Result<(), FailedCall> {
        self.times.clear();
        let workload = Arc::clone(&self.workload);
        let key = workload.keys.pick(turn);
        let name = workload.keys.name(key).unwrap_or_default();
        self.remove_left().await?;
        let begun = Instant::now();
        if self.system == System::Puts {
            let lock_ref = i64::try_from(self.puts + 1).unwrap_or(i64::MAX);
            self.puts = self.put(key, lock_ref, self.puts).await?;
        } else {
            let lock_ref = self.create(key).await?;
            // Until it is released.
            self.left = Some((key, lock_ref));
            self.acquire(name, lock_ref).await?;
            let get = clocked(&mut self.times, Phase::Get, self.music.get(name));
            let found = decode(&get.await?.unwrap_or_default());
            self.put(key, lock_ref, found).await?;
            let release = self.music.release(name, lock_ref);
            clocked(&mut self.times, Phase::Release, release).await?;
            self.left = None;
        }
        self.times.push((Phase::Section, begun.elapsed()));
        Ok(())
    }

    fn times(&self) -> &Times {
        &self.times
    }

    /// Without the lock: nobody else has the key.
    async fn read(&mut self, key: usize) -> Result<u64, FailedCall> {
        let name = self.workload.keys.name(key).unwrap_or_default();
        let value = self.music.get(name).await;
        let value = value.map_err(|fault| (Phase::Get, fault))?;
        Ok(decode(&value.unwrap_or_default()))
    }
}

impl MusicWorker {
    pub(super) fn new(system: System, music: &Arc<Music>, workload: &Arc<Workload>) -> MusicWorker {
        MusicWorker {
            system,
            music: Arc::clone(music),
            workload: Arc::clone(workload),
            left: None,
            puts: 0,
            times: Times::new(),
        }
    }

    /// Reads the guard, and puts the lockRef after it into the queue.
    async fn create(&mut self, key: usize) -> Result<i64, FailedCall> {
        let begun = Instant::now();
        let failed = |fault: Fault| FailedCall::from((Phase::Create, fault));
        let name = self.workload.keys.name(key).unwrap_or_default();
        for _ in 0..CREATES_MAX {
            let guard = self.music.guard(name).await.map_err(failed)?;
            let lock_ref = guard.saturating_add(1);
            match self.music.enqueue(name, guard, now_ms()).await {
                Ok(true) => {
                    self.times.push((Phase::Create, begun.elapsed()));
                    return Ok(lock_ref);
                }
                Ok(false) => {}
                Err(fault) => {
                    self.left = Some((key, lock_ref));
                    return Err(failed(fault));
                }
            }
        }
        Err(FailedCall {
            phase: Phase::Create,
            code: "CONFLICT".to_owned(),
            message: format!("{CREATES_MAX} guards in a row were old ones"),
        })
    }

    /// Reads the head of the queue until it is this lockRef. An answer may be old.
    async fn acquire(&mut self, name: &str, lock_ref: i64) -> Result<(), FailedCall> {
        let begun = Instant::now();
        loop {
            let first = self.music.peek(name).await;
            let first = first.map_err(|fault| (Phase::Acquire, fault))?;
            if first == Some(lock_ref) {
                self.times.push((Phase::Acquire, begun.elapsed()));
                return Ok(());
            }
            if begun.elapsed() > self.workload.plan.options.timeout {
                return Err(FailedCall {
                    phase: Phase::Acquire,
                    code: "NOT_FIRST".to_owned(),
                    message: format!("lockRef {lock_ref} waits for {first:?} on a key of its own"),
                });
            }
        }
    }

    /// Writes the counter after `found`, and returns it.
    async fn put(&mut self, key: usize, lock_ref: i64, found: u64) -> Result<u64, FailedCall> {
        let workload = Arc::clone(&self.workload);
        let name = workload.keys.name(key).unwrap_or_default();
        let next = workload.counters.begin(key, lock_ref.unsigned_abs(), found);
        let value = encode(next, workload.plan.value_bytes);
        let put = self.music.put(name, lock_ref, value, now_ms());
        clocked(&mut self.times, Phase::Put, put).await?;
        workload.counters.acknowledged(key);
        Ok(next)
    }

    async fn remove_left(&mut self) -> Result<(), FailedCall> {
        if let Some((key, lock_ref)) = self.left {
            let name = self.workload.keys.name(key).unwrap_or_default();
            let removed = self.music.release(name, lock_ref).await;
            removed.map_err(|fault| (Phase::Release, fault))?;
            self.left = None;
        }
        Ok(())
    }
}

fn now_ms() -> i64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    let since_1970 = since_1970.unwrap_or_default();
    i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX)
}
