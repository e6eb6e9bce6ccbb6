//! What libraries take from the operating system without asking us: randomness (for ids, hash maps, Tokio's own
//! choices) and the clocks (for the `date` of answers, and how long HTTP/2 remembers a stream). In the thread of
//! a simulation both come from its seed; everywhere else from the system, as ever.
//!
//! The linker takes these two in the place of the C library's, for the whole program.
#![allow(
    unsafe_code,
    reason = "functions of the C library are replaced, and called"
)]

use std::cell::Cell;
use std::time::Duration;

use nix::libc;

use super::rng::Rng;

/// What all clocks of a simulation begin with: small, so that no wait of the system ever lasts until then.
const BEGIN: Duration = Duration::from_secs(1);

thread_local! {
    /// The state of the generator, in the thread of a simulation.
    static RANDOM: Cell<Option<u64>> = const { Cell::new(None) };
    static NOW: Cell<Duration> = const { Cell::new(BEGIN) };
}

/// From here on this thread gets the seed's randomness, and time as [`advance`] says.
pub fn take_over(seed: u64) {
    RANDOM.set(Some(seed));
    NOW.set(BEGIN);
}

/// So much of the simulation has ended.
pub fn advance(since_begin: Duration) {
    NOW.set(BEGIN + since_begin);
}

/// Fills a buffer with random bytes, as the C library's does.
///
/// # Safety
/// `buffer` has room for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(
    buffer: *mut libc::c_void,
    bytes: usize,
    flags: libc::c_uint,
) -> isize {
    let Some(state) = RANDOM.get() else {
        // SAFETY: the caller's own promise is passed on.
        return unsafe { libc::syscall(libc::SYS_getrandom, buffer, bytes, flags) as isize };
    };
    if bytes == 0 {
        // A library asks, once a process, whether there is such a function.
        return 0;
    }
    let mut rng = Rng::new(state);
    let mut next = rng.fork();
    RANDOM.set(Some(rng.next()));
    // SAFETY: the caller promises room for so many bytes, and nobody else has them meanwhile.
    let out = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), bytes) };
    for chunk in out.chunks_mut(8) {
        chunk.copy_from_slice(&next.next().to_le_bytes()[..chunk.len()]);
    }
    isize::try_from(bytes).unwrap_or(isize::MAX)
}

/// Tells the time, as the C library's does.
///
/// # Safety
/// `to` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(
    id: libc::clockid_t,
    to: *mut libc::timespec,
) -> libc::c_int {
    if RANDOM.get().is_none() {
        // SAFETY: the caller's own promise is passed on.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, id, to) as libc::c_int };
    }
    let now = NOW.get();
    let answered = libc::timespec {
        tv_sec: now.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(now.subsec_nanos() as i32),
    };
    // SAFETY: the caller promises that it may be written to.
    unsafe { to.write(answered) };
    0
}
