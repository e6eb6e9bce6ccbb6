//! The subcommands of `fermata-bench`.

use super::handover::HandoverArgs;
use super::idle::IdleArgs;
use super::plan::{EXIT_STATUS, LockArgs, SectionArgs};

/// The benchmark of Fermata: measures a running service
///
/// Workers lock, read, write and release over real connections, and each kind of call is timed. Start with
/// `fermata-bench section --workers 1,16,64`.
///
/// Every section increments a counter under its lock. The counters are read at the end: an acknowledged increment
/// that is missing is reported as lost. All errors are counted, by status code. Ctrl-C ends a run of sections
/// early, with its report; a second Ctrl-C ends the program at once.
#[derive(Debug, clap::Parser)]
#[command(name = "fermata-bench", version, after_help = EXIT_STATUS)]
pub(super) struct Args {
    #[command(subcommand)]
    pub(super) benchmark: Benchmark,
}

#[derive(Debug, clap::Subcommand)]
pub(super) enum Benchmark {
    Section(SectionArgs),
    Lock(LockArgs),
    Handover(HandoverArgs),
    Idle(IdleArgs),
}
