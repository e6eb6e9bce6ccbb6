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

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::Arc;

pub use self::args::Args;
use self::args::{Output, Plan};
pub use self::connect::ConnectError;
use self::connect::{connect, connections_for};
use self::counters::Counters;
pub use self::disk::ProbeError;
use self::interrupt::Interrupt;
use self::keys::Keys;
use self::report::{DiskReport, Report, Run, millis};
use self::workload::{Form, Workload};
use super::exit;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// Start the server, or name another endpoint.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Name a directory that can be written to.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// The report could not be written.
    #[error("cannot write the report: {0}")]
    Output(#[from] io::Error),
    /// Never seen: the histograms are of a valid kind.
    #[error("cannot measure: {0}")]
    Measure(#[from] hdrhistogram::CreationError),
}

impl BenchError {
    /// What the process ends with.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            BenchError::Connect(_) => exit::UNAVAILABLE.into(),
            BenchError::Probe(_) => exit::OS.into(),
            BenchError::Output(_) | BenchError::Measure(_) => ExitCode::FAILURE,
        }
    }
}

/// Runs the command.
pub async fn run(args: Args) -> Result<ExitCode, BenchError> {
    let (plan, output) = args.plan();
    let report = measure(&plan).await?;
    let mut stdout = io::stdout().lock();
    match output {
        Output::Text => stdout.write_all(table::text(&report).as_bytes())?,
        Output::Json => {
            serde_json::to_writer_pretty(&mut stdout, &report).map_err(io::Error::from)?;
            writeln!(stdout)?;
        }
    }
    stdout.flush()?;
    Ok(if report.clean {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
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
        counters: Counters::new(keys.count()),
        keys,
        ttl: plan.ttl,
        value_bytes: plan.value_bytes,
    });
    let outcome = load::run(workload, &clients, workers, plan.span, interrupt).await?;
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
