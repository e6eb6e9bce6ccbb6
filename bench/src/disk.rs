//! The disk by itself: how long 4 KiB appended and synced take, so that the figures of a server with its
//! data there can be related to it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;
use tokio::time::Instant;

/// How long one probe takes.
const PROBE: Duration = Duration::from_secs(2);
/// How much is appended before each sync.
const APPEND_BYTES: usize = 4096;

/// What one probe found. Times are those of a write and its fdatasync, in microseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Disk {
    pub(super) syncs: u64,
    pub(super) p50_us: u64,
    pub(super) p99_us: u64,
    pub(super) max_us: u64,
}

/// The disk could not be probed.
#[derive(Debug, thiserror::Error)]
#[error("cannot probe the disk in {}: {source}", directory.display())]
pub struct ProbeError {
    directory: PathBuf,
    source: io::Error,
}

/// Probes the disk that a directory is on, with a file of its own that it removes.
pub(super) async fn probe(directory: &Path) -> Result<Disk, ProbeError> {
    let file = directory.join(format!("fermata-disk-probe-{}", std::process::id()));
    let probed = tokio::task::spawn_blocking(move || {
        let probed = appends(&file, PROBE);
        // Where it could not even be made, there is nothing to remove.
        let _ = std::fs::remove_file(&file);
        probed
    });
    probed
        .await
        .unwrap_or_else(|error| Err(io::Error::other(error)))
        .map_err(|source| ProbeError {
            directory: directory.to_owned(),
            source,
        })
}

fn appends(path: &Path, time: Duration) -> io::Result<Disk> {
    let mut file: File = OpenOptions::new()
        .append(true)
        .create_new(true)
        .open(path)?;
    let block = [0x5a; APPEND_BYTES];
    let mut latencies = Histogram::<u64>::new(3).map_err(io::Error::other)?;
    let start = Instant::now();
    while start.elapsed() < time {
        let begun = Instant::now();
        file.write_all(&block)?;
        file.sync_data()?;
        let us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        latencies.record(us).map_err(io::Error::other)?;
    }
    Ok(Disk {
        syncs: latencies.len(),
        p50_us: latencies.value_at_quantile(0.5),
        p99_us: latencies.value_at_quantile(0.99),
        max_us: latencies.max(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_counts_its_syncs() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("probe");
        let disk = appends(&path, Duration::from_millis(20)).unwrap();
        assert!(disk.syncs > 0 && disk.p50_us <= disk.p99_us && disk.p99_us <= disk.max_us);
        let bytes = std::fs::metadata(&path).unwrap().len();
        assert_eq!(bytes, disk.syncs * APPEND_BYTES as u64);
    }

    #[tokio::test]
    async fn a_directory_that_is_not_there_is_named() {
        let error = probe(Path::new("/nowhere/at/all")).await.unwrap_err();
        assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
    }
}
