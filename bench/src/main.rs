//! How fast is a running server, over real sockets? `fermata-bench`.
//!
//! It calls the generated client directly, so that each call is timed by itself and nothing is repeated
//! behind its back. Beside it can be measured what the same work costs by MUSIC's statements.
//!
//! Nothing of the server lives here, or is linked.

mod args;
mod arrivals;
mod baseline;
mod cells;
mod connect;
mod counters;
mod crowd;
mod disk;
mod failure;
mod handover;
mod idle;
mod interrupt;
mod keys;
mod load;
mod measure;
mod music;
mod progress;
mod puts;
mod report;
mod rounds;
mod rounds_table;
mod run;
mod sections;
mod service;
mod sessions;
mod table;
#[cfg(test)]
mod tests;
mod workload;

use std::process::ExitCode;

use clap::Parser as _;
use fermata_command::{Failure, exit};

use self::args::{Args, What};

/// As the server and its commands have it: that of the C library would be measured as well.
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
    match args.plan()? {
        What::Load { plan, format } => sections::run(&plan, format).await,
        What::Handover(args) => handover::run(args).await,
        What::Waiters(args) => crowd::run(args).await,
        What::Idle(args) => idle::run(args).await,
    }
}
