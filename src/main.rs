//! The `fermata` binary.

use std::process::ExitCode;

use fermata::cli;

#[tokio::main]
async fn main() -> ExitCode {
    cli::run(std::env::args_os()).await
}
