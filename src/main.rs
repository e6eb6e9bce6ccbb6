//! The `fermata` binary.

use std::time::Duration;

use fermata::cli;

/// The allocator of the C library is slow with tens of thousands of streams and calls.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The interval between two returns of freed memory to the system.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(1);

/// The maximum number of threads that wait for the disk, mostly for reads of the embedded store.
const BLOCKING_THREADS_MAX: usize = 64;

/// The longest wait for blocked threads at the end.
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
    // No acknowledged change depends on longer work, such as a resolver without an answer.
    runtime.shutdown_timeout(BLOCKED_MAX);
    cli::end::end(status.into());
}

/// The allocator returns freed memory only while more is requested: a replica would keep the memory of its busiest moment.
async fn give_memory_back() {
    loop {
        tokio::time::sleep(GIVE_BACK_EVERY).await;
        #[allow(unsafe_code)]
        // SAFETY: any thread may call it at any time; allocated memory stays in place.
        unsafe {
            // Memory that was freed a moment ago is kept: it may be needed again.
            libmimalloc_sys::mi_collect(false);
        }
    }
}
