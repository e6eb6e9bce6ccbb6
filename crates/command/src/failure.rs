//! The failure of a command: its message and its exit status.

use std::io;

use fermata_client::{
    CallError, ConnectError, CreateError, CriticalError, LockError, LostReason, ReleaseError,
    SessionError, WaitError,
};
use nix::sys::signal::Signal;

use crate::exit;

/// A failed command.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The exit status.
    pub code: u8,
    /// For people; may be empty.
    pub message: String,
}

impl Failure {
    /// A failure with this exit status.
    pub fn new(code: u8, message: impl Into<String>) -> Failure {
        Failure {
            code,
            message: message.into(),
        }
    }

    /// A malformed command line.
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure::new(exit::USAGE, message)
    }

    /// A command that did its work, but cannot print that.
    pub fn unprinted(done: &str, error: io::Error) -> Failure {
        let failure = Failure::from(error);
        match failure.code {
            exit::IO => {
                let message = format!("{done}, but the result cannot be printed: {failure}");
                Failure { message, ..failure }
            }
            _ => failure,
        }
    }

    /// Ended by a signal.
    pub fn signal(signal: Signal, message: impl Into<String>) -> Failure {
        Failure::new(status_of_signal(signal as i32), message)
    }
}

/// The status that a shell gives to a process ended by a signal.
pub fn status_of_signal(signal: i32) -> u8 {
    u8::try_from(i32::from(exit::SIGNAL).saturating_add(signal)).unwrap_or(u8::MAX)
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            // The reader has enough, as with any other program.
            io::ErrorKind::BrokenPipe => Failure::signal(Signal::SIGPIPE, ""),
            _ => Failure::new(exit::IO, error.to_string()),
        }
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Failure {
        let words = error.to_string();
        Failure::usage(match error {
            ConnectError::NoCa { .. } => format!("{words}; name it with --ca, or FERMATA_CA_FILE"),
            ConnectError::NoEndpoint
            | ConnectError::InvalidEndpoint { .. }
            | ConnectError::NotEncrypted { .. }
            | ConnectError::NoRuntime => words,
        })
    }
}

impl From<CreateError> for Failure {
    fn from(error: CreateError) -> Failure {
        let code = match error {
            CreateError::Invalid(_) => exit::USAGE,
            CreateError::NotFound(_) => exit::NO_INPUT,
            CreateError::SessionEnded(_) => exit::FAILED,
            CreateError::Limit(_) => exit::TEMPORARY,
            CreateError::Denied(_) => exit::DENIED,
            CreateError::Unavailable(_) | CreateError::Other(_) => exit::UNAVAILABLE,
        };
        let words = match error {
            CreateError::Unavailable(_) => {
                format!("{error}. If an entry was made all the same, it ends with its TTL")
            }
            CreateError::Invalid(_)
            | CreateError::NotFound(_)
            | CreateError::SessionEnded(_)
            | CreateError::Limit(_)
            | CreateError::Denied(_)
            | CreateError::Other(_) => error.to_string(),
        };
        Failure::new(code, words)
    }
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Failure {
        let code = match error {
            SessionError::Ended(_) => exit::FAILED,
            SessionError::Invalid(_) => exit::USAGE,
            SessionError::Limit(_) => exit::TEMPORARY,
            SessionError::Denied(_) => exit::DENIED,
            SessionError::Unavailable(_) | SessionError::Other(_) => exit::UNAVAILABLE,
        };
        Failure::new(code, error.to_string())
    }
}

impl From<WaitError> for Failure {
    fn from(error: WaitError) -> Failure {
        let code = match error {
            WaitError::TimedOut { .. } => exit::TIMED_OUT,
            WaitError::Lost(_) => exit::FAILED,
            WaitError::Invalid(_) => exit::USAGE,
            WaitError::Limit(_) => exit::TEMPORARY,
            WaitError::Denied(_) => exit::DENIED,
            WaitError::Unavailable(_) | WaitError::Other(_) => exit::UNAVAILABLE,
        };
        Failure::new(code, error.to_string())
    }
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Failure {
        match error {
            LockError::Create(error) => error.into(),
            LockError::Wait(error) => error.into(),
        }
    }
}

impl From<CriticalError> for Failure {
    fn from(error: CriticalError) -> Failure {
        let code = match error {
            // Its table was replaced.
            CriticalError::Lost(ref lost) if lost.reason == LostReason::NeverIssued => {
                exit::NO_INPUT
            }
            CriticalError::Lost(_) => exit::FAILED,
            CriticalError::Invalid(_) => exit::USAGE,
            CriticalError::Limit(_) | CriticalError::Overtaken(_) => exit::TEMPORARY,
            CriticalError::Denied(_) => exit::DENIED,
            CriticalError::Unavailable(_)
            | CriticalError::Superseded(_)
            | CriticalError::WriteUnknown(_)
            | CriticalError::Other(_) => exit::UNAVAILABLE,
        };
        Failure::new(code, error.to_string())
    }
}

impl From<ReleaseError> for Failure {
    fn from(error: ReleaseError) -> Failure {
        let code = match error {
            ReleaseError::Lost(_) => exit::FAILED,
            ReleaseError::Invalid(_) => exit::USAGE,
            ReleaseError::Limit(_) => exit::TEMPORARY,
            ReleaseError::Denied(_) => exit::DENIED,
            ReleaseError::Unavailable(_)
            | ReleaseError::WriteUnknown(_)
            | ReleaseError::Other(_) => exit::UNAVAILABLE,
        };
        Failure::new(code, error.to_string())
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Failure {
        let code = match error {
            CallError::Invalid(_) => exit::USAGE,
            CallError::NotFound(_) | CallError::Ended(_) => exit::NO_INPUT,
            CallError::Limit(_) => exit::TEMPORARY,
            CallError::Denied(_) => exit::DENIED,
            CallError::Unavailable(_) | CallError::Other(_) => exit::UNAVAILABLE,
        };
        Failure::new(code, error.to_string())
    }
}
