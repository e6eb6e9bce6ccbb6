//! `fermata bench`: how fast is a running server, over real sockets?
//!
//! It calls the generated client directly, so that each call is timed by itself and nothing is repeated
//! behind its back.

mod args;
mod connect;
mod counters;
mod disk;
mod interrupt;
mod keys;
mod load;
mod measure;
mod progress;
mod report;
mod table;
#[cfg(test)]
mod tests;
mod workload;

use std::sync::Arc;

pub use self::args::Args;
use self::args::Plan;
use self::connect::{ConnectError, connect, connections_for};
use self::counters::Counters;
use self::disk::ProbeError;
use self::interrupt::Interrupt;
use self::keys::Keys;
use self::report::{DiskReport, Report, Run, millis};
use self::workload::{Caller, Form, Workload};
use super::exit;
use super::failure::Failure;
use super::output::{Format, print_text};
use super::remote::Remote;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
enum BenchError {
    /// Start the server, or name another endpoint.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Name a directory that can be written to.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// Never seen: the histograms are of a valid kind.
    #[error("cannot measure: {0}")]
    Measure(#[from] hdrhistogram::CreationError),
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Failure {
        let code = match error {
            BenchError::Connect(ConnectError::Endpoint(_)) => exit::USAGE,
            BenchError::Connect(ConnectError::Unreachable { .. }) => exit::UNAVAILABLE,
            BenchError::Probe(_) => exit::IO,
            BenchError::Measure(_) => exit::SOFTWARE,
        };
        Failure::new(code, error.to_string())
    }
}

/// Runs the command.
pub async fn run(args: Args, before: &Remote) -> Result<u8, Failure> {
    let (plan, format) = args.plan(before);
    let report = measure(&plan).await?;
    match format {
        Format::Text => print_text(&table::text(&report))?,
        Format::Json => {
            let mut text = serde_json::to_string_pretty(&report).map_err(std::io::Error::from)?;
            text.push('\n');
            print_text(&text)?;
        }
    }
    Ok(if report.clean { 0 } else { exit::NOT_CLEAN })
}

/// All runs of a plan, one after the other; ends early when interrupted.
async fn measure(plan: &Plan) -> Result<Report, BenchError> {
    let mut interrupt = Interrupt::listen();
    // A server that is not there is told at once, and not after the disk was probed.
    connect(&plan.endpoints, plan.endpoints.len()).await?;
    let before = match &plan.disk_probe {
        Some(directory) => Some((directory, disk::probe(directory).await?)),
        None => None,
    };
    let mut runs = Vec::new();
    for &workers in &plan.workers {
        let run = measure_one(plan, workers, &mut interrupt).await?;
        let interrupted = run.interrupted;
        runs.push(run);
        if interrupted {
            break;
        }
    }
    let disk = match before {
        Some((directory, before)) => Some(DiskReport {
            directory: directory.display().to_string(),
            before,
            after: disk::probe(directory).await?,
        }),
        None => None,
    };
    let counted = plan.form != Form::Lock;
    Ok(Report {
        settings: plan.settings(),
        clean: runs.iter().all(|run| run.is_clean(counted)),
        runs,
        disk,
    })
}

/// One run, on connections of its own.
async fn measure_one(
    plan: &Plan,
    workers: usize,
    interrupt: &mut Interrupt,
) -> Result<Run, BenchError> {
    let connections = plan.connections.unwrap_or(connections_for(workers));
    let clients = connect(&plan.endpoints, connections).await?;
    let keys = Keys::new(
        plan.keys,
        &plan.key_prefix,
        workers,
        plan.key_count,
        plan.zipf_skew,
    );
    let workload = Arc::new(Workload {
        form: plan.form,
        table: plan.table.clone(),
        call_within: plan.call_within,
        counters: Counters::new(keys.count()),
        keys,
        ttl: plan.ttl,
        value_bytes: plan.value_bytes,
    });
    let callers = clients.iter().cycle();
    let callers = callers.map(|client| Caller::new(client.clone(), Arc::clone(&workload)));
    let outcome = load::run(&workload, callers, workers, plan.span, interrupt).await?;
    Ok(Run::new(workers, clients.len(), outcome))
}

impl Plan {
    fn settings(&self) -> report::Settings {
        let zipf = self.keys == keys::KeyChoice::Zipf;
        report::Settings {
            version: env!("CARGO_PKG_VERSION"),
            form: self.form,
            endpoints: self.endpoints.clone(),
            table: self.table.clone(),
            keys: self.keys,
            key_count: zipf.then_some(self.key_count),
            zipf_skew: zipf.then_some(self.zipf_skew),
            value_bytes: (self.form != Form::Lock).then_some(self.value_bytes),
            ttl_ms: millis(self.ttl),
            warm_up_ms: millis(self.span.warm_up),
            duration_ms: millis(self.span.duration),
            load_loop: "closed",
        }
    }
}
