//! What `fermata serve` promises as a process: the real binary, real sockets, real signals.

mod counter;
mod liveness;
mod process;
