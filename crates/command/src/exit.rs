//! The exit statuses, those of sysexits.h where it has one.

/// There is nothing to print: the key has no value.
pub const NO_VALUE: u8 = 1;
/// A benchmark had errors, or lost what was acknowledged.
pub const NOT_CLEAN: u8 = 1;
/// The command line makes no sense, or the server refused what it asked for as malformed.
pub const USAGE: u8 = 64;
/// A file is not what it should be.
pub const DATA: u8 = 65;
/// There is no such table or lockRef.
pub const NO_INPUT: u8 = 66;
/// A part of the server cannot be used: the store does not open. Of a client: no server could do it.
pub const UNAVAILABLE: u8 = 69;
/// The server failed while it ran.
pub const SOFTWARE: u8 = 70;
/// The lock was lost while its command ran.
pub const LOCK_LOST: u8 = 70;
/// An address cannot be listened on, signals not be received, or a command not be waited for.
pub const OS: u8 = 71;
/// A file is there already, or cannot be made.
pub const CANNOT_CREATE: u8 = 73;
/// Reading or writing a file, stdin or stdout failed.
pub const IO: u8 = 74;
/// Others hold the lock; it may be had later.
pub const TEMPORARY: u8 = 75;
/// Not allowed.
pub const DENIED: u8 = 77;
/// The configuration is not valid.
pub const CONFIG: u8 = 78;
/// The wait for the lock timed out.
pub const TIMED_OUT: u8 = 124;
/// The command exists and cannot be run.
pub const NOT_EXECUTABLE: u8 = 126;
/// There is no such command.
pub const NOT_FOUND: u8 = 127;
/// Added to a signal's number: ended at once by it.
pub const SIGNAL: u8 = 128;
