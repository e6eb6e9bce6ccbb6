//! The command line.

pub mod bench;
pub mod check;
mod exit;
pub mod serve;
mod settings;

use std::process::ExitCode;

use clap::Parser;

/// Fermata.
#[derive(Debug, Parser)]
#[command(name = "fermata", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Serve(serve::Args),
    Check(check::Args),
    Bench(bench::Args),
}

/// Runs the command that was given.
pub async fn run(cli: Cli) -> ExitCode {
    match cli.command {
        Command::Serve(args) => serve::run(args).await.unwrap_or_else(|error| {
            eprintln!("fermata: {error}");
            error.exit_code()
        }),
        Command::Check(args) => check::run(args).await.unwrap_or_else(|error| {
            eprintln!("fermata: {error}");
            ExitCode::FAILURE
        }),
        Command::Bench(args) => bench::run(args).await.unwrap_or_else(|error| {
            eprintln!("fermata: {error}");
            error.exit_code()
        }),
    }
}
