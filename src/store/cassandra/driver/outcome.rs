//! What became of a request that got no result, and of a connection that was not made.

use scylla::errors::{
    BrokenConnectionErrorKind, ConnectionError, ConnectionPoolError,
    ConnectionSetupRequestErrorKind as SetupError, DbError, ExecutionError, MetadataError,
    NewSessionError, PrepareError, RequestAttemptError,
};
use scylla::frame::frame_errors::FrameHeaderParseError;

use crate::store::cassandra::fault::{ConnectFault, Fault};
use crate::tls;

pub(super) fn not_connected(error: NewSessionError, is_encrypted: bool) -> ConnectFault {
    let NewSessionError::MetadataError(MetadataError::ConnectionPoolError(
        ConnectionPoolError::Broken {
            last_connection_error: last,
        },
    )) = &error
    else {
        return ConnectFault::Unreachable(error.to_string());
    };
    if let Some(why) = broken_by(last).and_then(|broken| tls::distrust(broken, "the node")) {
        return ConnectFault::Refused(why);
    }
    let ConnectionError::ConnectionSetupRequestError(failed) = last else {
        return ConnectFault::Unreachable(last.to_string());
    };
    match failed.get_error() {
        SetupError::DbError(_, said) => ConnectFault::Refused(said.clone()),
        SetupError::MissingAuthentication => {
            ConnectFault::Refused("it asks for a user and a password".to_owned())
        }
        SetupError::BrokenConnection(_) if !is_encrypted => ConnectFault::Unreachable(format!(
            "{last} (a node that wants TLS breaks off like this; none was asked for)"
        )),
        // The node closed the connection before we sent anything, and the driver lost what it said by that.
        SetupError::BrokenConnection(_) => ConnectFault::Unreachable(format!(
            "{last} (a node that refuses our certificate, or that we have none, breaks off like this)"
        )),
        _ => ConnectFault::Unreachable(last.to_string()),
    }
}

/// What the system said when a connection broke.
fn broken_by(error: &ConnectionError) -> Option<&std::io::Error> {
    let broken = match error {
        ConnectionError::IoError(io) => return Some(io),
        ConnectionError::BrokenConnection(broken) => broken,
        ConnectionError::ConnectionSetupRequestError(failed) => match failed.get_error() {
            SetupError::BrokenConnection(broken) => broken,
            _ => return None,
        },
        _ => return None,
    };
    match broken.downcast_ref()? {
        BrokenConnectionErrorKind::WriteError(io)
        | BrokenConnectionErrorKind::FrameHeaderParseError(FrameHeaderParseError::HeaderIoError(
            io,
        )) => Some(io),
        _ => None,
    }
}

pub(super) fn not_prepared(error: PrepareError) -> Fault {
    let what = error.to_string();
    match error {
        PrepareError::AllAttemptsFailed {
            first_attempt: RequestAttemptError::DbError(said, _),
        } if is_refusal(&said) => Fault::Refused(what),
        _ => Fault::NotStarted(what),
    }
}

/// What became of a request that was sent once.
pub(super) fn fault(error: ExecutionError) -> Fault {
    let what = error.to_string();
    match error {
        _ if may_have_happened(&error) => Fault::Unknown(what),
        ExecutionError::LastAttemptError(RequestAttemptError::DbError(said, _))
            if is_refusal(&said) =>
        {
            Fault::Refused(what)
        }
        _ => Fault::NotStarted(what),
    }
}

/// What became of a request that may have been sent more than once: the error is that of the last try only.
pub(super) fn fault_of_repeated(error: ExecutionError) -> Fault {
    let what = error.to_string();
    match error {
        ExecutionError::BadQuery(_)
        | ExecutionError::EmptyPlan
        | ExecutionError::PrepareError(_) => Fault::NotStarted(what),
        ExecutionError::ConnectionPoolError(_)
        | ExecutionError::LastAttemptError(_)
        | ExecutionError::RequestTimeout(_)
        | ExecutionError::UseKeyspaceError(_)
        | ExecutionError::SchemaAgreementError(_)
        | ExecutionError::MetadataError(_) => Fault::Unknown(what),
        // One that a later driver brings.
        _ => Fault::Unknown(what),
    }
}

/// Whether it is the node that said so, which therefore does not hang.
pub(super) fn is_answer(error: &ExecutionError) -> bool {
    matches!(
        error,
        ExecutionError::LastAttemptError(RequestAttemptError::DbError(..))
    )
}

/// Whether a request that ended so may have taken effect, or may yet. Every error is named; the last arms
/// are for those that a later driver brings, which may be anything.
fn may_have_happened(error: &ExecutionError) -> bool {
    match error {
        ExecutionError::BadQuery(_)
        | ExecutionError::EmptyPlan
        | ExecutionError::PrepareError(_)
        | ExecutionError::ConnectionPoolError(_) => false,
        ExecutionError::RequestTimeout(_)
        | ExecutionError::UseKeyspaceError(_)
        | ExecutionError::SchemaAgreementError(_)
        | ExecutionError::MetadataError(_) => true,
        ExecutionError::LastAttemptError(attempt) => match attempt {
            RequestAttemptError::SerializationError(_)
            | RequestAttemptError::CqlRequestSerialization(_)
            | RequestAttemptError::UnableToAllocStreamId
            | RequestAttemptError::RepreparedIdChanged { .. }
            | RequestAttemptError::RepreparedIdMissingInBatch => false,
            RequestAttemptError::BrokenConnectionError(_)
            | RequestAttemptError::BodyExtensionsParseError(_)
            | RequestAttemptError::CqlResultParseError(_)
            | RequestAttemptError::CqlErrorParseError(_)
            | RequestAttemptError::UnexpectedResponse(_)
            | RequestAttemptError::NonfinishedPagingState => true,
            RequestAttemptError::DbError(said, _) => node_may_have_done_it(said),
            _ => true,
        },
        _ => true,
    }
}

fn node_may_have_done_it(said: &DbError) -> bool {
    match said {
        // Refused before anything was sent to a replica.
        DbError::SyntaxError
        | DbError::Invalid
        | DbError::AlreadyExists { .. }
        | DbError::FunctionFailure { .. }
        | DbError::AuthenticationError
        | DbError::Unauthorized
        | DbError::ConfigError
        | DbError::Unavailable { .. }
        | DbError::Overloaded
        | DbError::IsBootstrapping
        | DbError::Unprepared { .. }
        | DbError::ProtocolError => false,
        // Write type CAS: accepted or not. Another: decided, and not everywhere yet, so a read of a majority
        // may miss it.
        DbError::WriteTimeout { .. } | DbError::WriteFailure { .. } => true,
        // The reading phase of a CAS: nothing was proposed; what was in flight before may be.
        DbError::ReadTimeout { .. } | DbError::ReadFailure { .. } => true,
        DbError::RateLimitReached {
            rejected_by_coordinator,
            ..
        } => !rejected_by_coordinator,
        // 0x1700, CAS_WRITE_UNKNOWN, is among the others.
        DbError::TruncateError | DbError::ServerError | DbError::Other(_) => true,
        _ => true,
    }
}

/// Whether a node would say the same if it were asked again.
fn is_refusal(said: &DbError) -> bool {
    matches!(
        said,
        DbError::SyntaxError
            | DbError::Invalid
            | DbError::AlreadyExists { .. }
            | DbError::FunctionFailure { .. }
            | DbError::AuthenticationError
            | DbError::Unauthorized
            | DbError::ConfigError
            | DbError::ProtocolError
    )
}
