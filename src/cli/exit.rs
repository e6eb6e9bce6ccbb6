//! The exit statuses of `serve` and `check`, those of sysexits.h where it has one.

/// A part of the server cannot be used: the store does not open.
pub const UNAVAILABLE: u8 = 69;
/// The server failed while it ran.
pub const SOFTWARE: u8 = 70;
/// An address cannot be listened on, or signals not be received.
pub const OS: u8 = 71;
/// The configuration is not valid.
pub const CONFIG: u8 = 78;
/// Added to a signal's number: ended at once by it.
pub const SIGNAL: i32 = 128;
