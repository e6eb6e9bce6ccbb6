//! The exit statuses, as in sysexits.h as far as possible.

/// The answer is no: the key has no value, or a benchmark had errors.
pub const NEGATIVE: u8 = 1;
/// The command line, or a request in it, is malformed.
pub const USAGE: u8 = 64;
/// A file has unexpected contents.
pub const DATA: u8 = 65;
/// There is no such table or lockRef.
pub const NO_INPUT: u8 = 66;
/// The store of the server does not open; no server answers a client.
pub const UNAVAILABLE: u8 = 69;
/// The server failed while it ran; the lock was lost while its command ran.
pub const FAILED: u8 = 70;
/// The system refuses: an address, signals, or the wait for a command.
pub const OS: u8 = 71;
/// A file exists already, or cannot be made.
pub const CANNOT_CREATE: u8 = 73;
/// Reading or writing a file, stdin or stdout failed.
pub const IO: u8 = 74;
/// Others hold the lock, or a limit is reached; a later try may succeed.
pub const TEMPORARY: u8 = 75;
/// Not allowed.
pub const DENIED: u8 = 77;
/// The configuration is not valid.
pub const CONFIG: u8 = 78;
/// The wait for the lock timed out.
pub const TIMED_OUT: u8 = 124;
/// The command exists, but cannot be run.
pub const NOT_EXECUTABLE: u8 = 126;
/// There is no such command.
pub const NOT_FOUND: u8 = 127;
/// Added to the number of a signal that ended the command.
pub const SIGNAL: u8 = 128;
