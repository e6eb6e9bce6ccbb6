//! The benchmark of Fermata: measures a running service over real connections.
//!
//! Sections are made with the generated client, so that each call is timed by itself and nothing is repeated unseen. MUSIC's
//! statements can take turns with them. Nothing of the server is linked here.

mod args;
mod arrivals;
mod baseline;
mod caller;
mod connect;
mod counters;
mod handover;
mod idle;
mod interrupt;
mod keys;
mod load;
mod measure;
mod music;
mod plan;
mod report;
mod rounds;
mod run;
mod sections;
mod sessions;
#[cfg(test)]
mod tests;
mod workload;

use std::process::ExitCode;

use clap::Parser as _;
use fermata_command::{Failure, exit};

use self::args::{Args, Benchmark};

/// The allocator of the server and its commands. That of the C library is slower, and would be measured as well.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let printed = error.print();
            return ExitCode::from(match (error.use_stderr(), printed) {
                (true, _) => exit::USAGE,
                (false, Ok(())) => 0,
                (false, Err(_)) => exit::IO,
            });
        }
    };
    ExitCode::from(run(args).await.unwrap_or_else(|failure| {
        if !failure.message.is_empty() {
            eprintln!("fermata-bench: {failure}");
        }
        failure.code
    }))
}

async fn run(args: Args) -> Result<u8, Failure> {
    match args.benchmark {
        Benchmark::Section(args) => sections::run(args.plan()?).await,
        Benchmark::Lock(args) => sections::run(args.plan()?).await,
        Benchmark::Handover(args) => handover::run(args).await,
        Benchmark::Idle(args) => idle::run(args).await,
    }
}
