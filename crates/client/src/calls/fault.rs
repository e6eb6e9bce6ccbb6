//! The errors that servers answer with, and their meaning for a lockRef.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fermata_proto::EndReason;
use parking_lot::Mutex;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::lost::{Lost, LostReason, with_reason};
use crate::transport::retry::{Verdict, judge, retry_delay};

/// The error in the answer of a server, or in place of a missing answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerError {
    /// The gRPC status code.
    pub code: Code,
    /// The message of the server, with the wrong fields of the request (`google.rpc.BadRequest`).
    pub message: String,
    /// The machine-readable reason (`google.rpc.ErrorInfo`); empty if there is none.
    pub reason: String,
    /// The time to wait before a repeat (`google.rpc.RetryInfo`).
    pub retry_after: Option<Duration>,
}

impl ServerError {
    /// The reason of a refusal: no rule allows the call to this identity.
    pub const NOT_ALLOWED: &str = "NOT_ALLOWED";
    /// The reason of a refusal: the call's number is not above the last one under its grant.
    pub const CALL_NO_NOT_ABOVE: &str = "CALL_NO_NOT_ABOVE";
    /// The reason of a refusal: the live lockRef has a newer grant.
    pub const GRANT_SUPERSEDED: &str = "GRANT_SUPERSEDED";

    pub(crate) fn new(status: &Status) -> ServerError {
        let info = status.get_details_error_info();
        let reason = info.map_or_else(String::new, |info| info.reason);
        let mut message = match (status.message(), &*reason) {
            ("", "") => status.code().description().to_owned(),
            ("", reason) => reason.to_owned(),
            (message, _) => message.to_owned(),
        };
        let bad = status.get_details_bad_request();
        for wrong in bad.into_iter().flat_map(|bad| bad.field_violations) {
            // The message often says the same in other words; then once is enough.
            if !message.contains(&wrong.description) {
                message.push_str(&format!("; {}: {}", wrong.field, wrong.description));
            }
        }
        ServerError {
            code: status.code(),
            message,
            reason,
            retry_after: retry_delay(status),
        }
    }
}

impl From<Lost> for ServerError {
    /// The end of a lockRef as a server would answer it.
    fn from(lost: Lost) -> ServerError {
        ServerError {
            code: Code::FailedPrecondition,
            message: lost.detail,
            reason: lost.reason.as_str().to_owned(),
            retry_after: None,
        }
    }
}

impl From<ServerError> for Lost {
    /// The end of a lockRef, or of a session, that the server does not know.
    fn from(unknown: ServerError) -> Lost {
        // The reason is said beside these words.
        Lost::new(LostReason::NeverIssued, unknown.message)
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        with_reason(f, &self.message, &self.reason)
    }
}

impl std::error::Error for ServerError {}

/// The failure of the last attempt; nothing once a later one succeeded.
#[derive(Default)]
pub(crate) struct LastFailure(Mutex<Option<ServerError>>);

impl LastFailure {
    pub(crate) fn note(&self, error: ServerError) {
        *self.0.lock() = Some(error);
    }

    pub(crate) fn forget(&self) {
        *self.0.lock() = None;
    }

    pub(crate) fn get(&self) -> Option<ServerError> {
        self.0.lock().clone()
    }
}

/// Why a wait in progress is stuck. Cheap to clone.
#[derive(Clone, Default)]
pub struct WaitFailure(pub(crate) Arc<LastFailure>);

impl WaitFailure {
    /// The failure of the wait's last call; `None` while its calls are answered.
    pub fn get(&self) -> Option<ServerError> {
        self.0.get()
    }
}

impl std::fmt::Debug for WaitFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("WaitFailure").field(&self.get()).finish()
    }
}

/// The meaning of a failed call for a lockRef, before an operation makes its own error of it.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// The lockRef or the session has ended.
    Ended(Lost),
    /// The lockRef has a newer grant.
    Superseded(ServerError),
    /// Another call under the grant went first, with a number as high or higher.
    Overtaken(ServerError),
    /// The request is malformed.
    Invalid(ServerError),
    /// There is no such table, or no such lockRef.
    NotFound(ServerError),
    /// A limit is reached.
    Limit(ServerError),
    /// The server does not allow this, or does not know the client.
    Denied(ServerError),
    /// The call could not be done in time; its outcome may be unknown.
    Unavailable(ServerError),
    /// Anything else.
    Other(ServerError),
}

impl Fault {
    pub(crate) fn new(status: &Status) -> Fault {
        let error = ServerError::new(status);
        match status.code() {
            Code::FailedPrecondition if error.reason == ServerError::GRANT_SUPERSEDED => {
                Fault::Superseded(error)
            }
            Code::FailedPrecondition if error.reason == ServerError::CALL_NO_NOT_ABOVE => {
                Fault::Overtaken(error)
            }
            Code::FailedPrecondition => match end_reason(&error.reason) {
                Some(reason) => Fault::Ended(Lost::new(reason, error.message)),
                None => Fault::Other(error),
            },
            Code::InvalidArgument | Code::OutOfRange => Fault::Invalid(error),
            Code::NotFound => Fault::NotFound(error),
            Code::ResourceExhausted => Fault::Limit(error),
            Code::PermissionDenied | Code::Unauthenticated => Fault::Denied(error),
            Code::Ok
            | Code::Cancelled
            | Code::Unknown
            | Code::DeadlineExceeded
            | Code::AlreadyExists
            | Code::Aborted
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss => match judge(status) {
                Verdict::Repeat { .. } => Fault::Unavailable(error),
                Verdict::Final => Fault::Other(error),
            },
        }
    }

    /// The refusal of this attempt, if it was refused before it did anything. It says nothing about earlier attempts.
    pub(crate) fn refusal(self) -> Result<ServerError, Fault> {
        match self {
            Fault::Superseded(error)
            | Fault::Overtaken(error)
            | Fault::Invalid(error)
            | Fault::Limit(error)
            | Fault::Denied(error) => Ok(error),
            Fault::Ended(_) | Fault::NotFound(_) | Fault::Unavailable(_) | Fault::Other(_) => {
                Err(self)
            }
        }
    }

    /// The end of the named lockRef or session, if that is the fault.
    pub(crate) fn ended(self) -> Result<Lost, Fault> {
        match self {
            Fault::Ended(lost) => Ok(lost),
            Fault::NotFound(error) => Ok(error.into()),
            other => Err(other),
        }
    }
}

/// An EndReason by its name, with or without the enum's prefix.
fn end_reason(name: &str) -> Option<LostReason> {
    let reason = EndReason::from_str_name(name)
        .or_else(|| EndReason::from_str_name(&format!("END_REASON_{name}")))?;
    Some(LostReason::from(reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_ref_that_is_not_known_names_its_reason_once() {
        let fault = Fault::NotFound(ServerError {
            code: Code::NotFound,
            message: "this lockRef or entry was never issued".to_owned(),
            reason: "NEVER_ISSUED".to_owned(),
            retry_after: None,
        });
        let lost = fault.ended().unwrap();
        assert_eq!(
            lost.to_string(),
            "this lockRef or entry was never issued (NEVER_ISSUED)"
        );
    }
}
