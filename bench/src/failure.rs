//! Why nothing was measured, and what the program exits with.

use fermata_cassandra::Fault;
use fermata_command::{Failure, exit};

use super::connect::ConnectError;
use super::disk::ProbeError;

/// How `--help` ends.
pub(super) const EXIT_STATUS: &str = "Exit status: 0 no errors and every counter exact; 1 errors, lost increments, \
    sections cut off or, at a rate, not begun (the report says which); 64 wrong usage; 69 no server or no Cassandra is \
    reached; 74 it cannot be printed, or the disk cannot be probed.";

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub(super) enum BenchError {
    /// Start the server, or name another endpoint.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Name a directory that can be written to.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// Start Cassandra, name other nodes, or make the keyspace.
    #[error("the tables of the baseline cannot be made in Cassandra: {0}")]
    Baseline(#[from] Fault),
    /// Never seen: the histograms are of a valid kind.
    #[error("cannot measure: {0}")]
    Measure(#[from] hdrhistogram::CreationError),
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Failure {
        let code = match error {
            BenchError::Connect(ConnectError::Endpoint(_)) => exit::USAGE,
            BenchError::Connect(ConnectError::Unreachable { .. }) => exit::UNAVAILABLE,
            BenchError::Baseline(_) => exit::UNAVAILABLE,
            BenchError::Probe(_) => exit::IO,
            BenchError::Measure(_) => exit::SOFTWARE,
        };
        Failure::new(code, error.to_string())
    }
}
