//! The `fermata` binary.

use std::process::ExitCode;

use clap::Parser as _;
use fermata::cli;

#[tokio::main]
async fn main() -> ExitCode {
    cli::run(cli::Cli::parse()).await
}
