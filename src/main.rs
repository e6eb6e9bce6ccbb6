//! The `fermata` binary.

use std::time::Duration;

use fermata::cli;

/// That of the C library takes its time where tens of thousands of streams and calls come and go.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How often some of the memory that was freed goes back to the system.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(1);

/// How many threads may wait for the disk, reads of the embedded store above all; more reads wait for one of them.
const BLOCKING_THREADS_MAX: usize = 64;

/// How long the end waits for threads that block.
const BLOCKED_MAX: Duration = Duration::from_millis(500);

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => cli::end::end_without_threads(&error),
    };
    let status = runtime.block_on(async {
        tokio::spawn(give_memory_back());
        cli::run(std::env::args_os()).await
    });
    // What blocks for longer, as a resolver that does not answer, is left: nothing that was acknowledged depends on it.
    runtime.shutdown_timeout(BLOCKED_MAX);
    cli::end::end(status.into());
}

/// The allocator gives back what was freed only while more is asked for: a replica whose clients all became idle would keep
/// what they took at their busiest.
async fn give_memory_back() {
    loop {
        tokio::time::sleep(GIVE_BACK_EVERY).await;
        #[allow(unsafe_code)]
        // SAFETY: it may be called by any thread at any time; what is allocated stays where it is.
        unsafe {
            // What was freed a moment ago may be needed in the next one, and is kept.
            libmimalloc_sys::mi_collect(false);
        }
    }
}
