//! The put of a section alone: one write at QUORUM, with no lock, sent straight to Cassandra. No section on Cassandra that
//! puts a value can take less.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::counters::encode;
use super::measure::{Failure, Phase};
use super::music::{Music, failed, now_ms, read_counter};
use super::workload::{Worker, Workload};

/// One worker, on a key of its own, which no other writes to: it knows the counter without reading it.
#[derive(Debug)]
pub(super) struct PutsWorker {
    music: Arc<Music>,
    workload: Arc<Workload>,
    /// The puts so far, and the counter. After one of unknown outcome the counter goes on all the same: what is stored
    /// is then at most what was asked for.
    puts: u64,
    times: Vec<(Phase, Duration)>,
}

impl PutsWorker {
    pub(super) fn new(music: Arc<Music>, workload: Arc<Workload>) -> PutsWorker {
        PutsWorker {
            music,
            workload,
            puts: 0,
            times: Vec::with_capacity(2),
        }
    }
}

impl Worker for PutsWorker {
    fn pick(&mut self, turn: usize) -> usize {
        turn
    }

    async fn section(&mut self, key: usize) -> Result<(), Failure> {
        self.times.clear();
        let workload = Arc::clone(&self.workload);
        let begun = Instant::now();
        let next = workload.counters.begin(key, self.puts, self.puts);
        self.puts = next;
        let value = encode(next, workload.value_bytes);
        let lock_ref = i64::try_from(next).unwrap_or(i64::MAX);
        let name = workload.keys.name(key);
        let put = self.music.put(name, lock_ref, &value, now_ms()).await;
        put.map_err(|fault| failed(Phase::Put, fault))?;
        self.times.push((Phase::Put, begun.elapsed()));
        workload.counters.acknowledged(key);
        self.times.push((Phase::Section, begun.elapsed()));
        Ok(())
    }

    fn times(&self) -> &[(Phase, Duration)] {
        &self.times
    }

    async fn read(&mut self, key: usize) -> Result<u64, Failure> {
        read_counter(&self.music, self.workload.keys.name(key)).await
    }
}
