//! The `fermata` binary.

use std::process::ExitCode;

use fermata::cli;

/// That of the C library takes its time where tens of thousands of streams and calls come and go.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    cli::run(std::env::args_os()).await
}
