//! The outcome of requests without a result, and of failed connections.

use scylla::errors::{
    BrokenConnectionErrorKind, ConnectionError, ConnectionPoolError,
    ConnectionSetupRequestErrorKind as SetupError, DbError, ExecutionError, MetadataError,
    NewSessionError, PrepareError, RequestAttemptError,
};
use scylla::frame::frame_errors::FrameHeaderParseError;

use crate::fault::{ConnectFault, Fault};
use fermata_tls as tls;

pub(super) fn not_connected(error: NewSessionError, is_encrypted: bool) -> ConnectFault {
    let NewSessionError::MetadataError(MetadataError::ConnectionPoolError(
        ConnectionPoolError::Broken {
            last_connection_error: last,
        },
    )) = &error
    else {
        return ConnectFault::Unreachable(error.to_string());
    };
    if let Some(why) =
        broken_by(last).and_then(|broken| tls::distrust(broken, "the node", tls::NAMED_CA))
    {
        return ConnectFault::Refused(why);
    }
    let ConnectionError::ConnectionSetupRequestError(failed) = last else {
        return ConnectFault::Unreachable(last.to_string());
    };
    match failed.get_error() {
        SetupError::DbError(_, said) => ConnectFault::Refused(said.clone()),
        SetupError::MissingAuthentication => {
            ConnectFault::Refused("the node requires a user and a password".to_owned())
        }
        SetupError::BrokenConnection(_) if !is_encrypted => ConnectFault::Unreachable(format!(
            "{last} (perhaps the node requires TLS, which is not configured)"
        )),
        // The node closed the connection before we sent anything, and the driver lost what it said by that.
        SetupError::BrokenConnection(_) => ConnectFault::Unreachable(format!(
            "{last} (perhaps the node refused our certificate, or requires one and got none)"
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

/// What became of a request that was sent once: a transaction, or a read.
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

/// Whether a transaction of which a node said so may have taken effect, or may yet. Of a read it does not matter, and a
/// plain write is judged by [`fault_of_repeated`].
///
/// A node works on a transaction in rounds: it prepares, reads, proposes, and where its proposal is not accepted by all
/// it begins again; once it is, it commits. What is said after the first proposal says nothing about that: a minority
/// that accepted it is enough for somebody else to finish it. So only what is said before the first round is certain.
fn node_may_have_done_it(said: &DbError) -> bool {
    match said {
        // By the parser, or whoever checks the statement and its values against the schema: before the first round.
        DbError::SyntaxError
        | DbError::Invalid
        | DbError::AlreadyExists { .. }
        | DbError::ConfigError
        | DbError::ProtocolError => false,
        // By whoever checks the user: before the first round.
        DbError::AuthenticationError | DbError::Unauthorized => false,
        // The node does not know the statement: it was not executed.
        DbError::Unprepared { .. } => false,
        // No statement of ours calls a function.
        DbError::FunctionFailure { .. } => false,
        // Before each round, where too few nodes are up; and by the commit of Paxos v1, after the decision.
        DbError::Unavailable { .. } => true,
        // By the commit of Paxos v1, where too many hints wait for a node that is down: after the decision.
        DbError::Overloaded => true,
        // By the read of each round.
        DbError::IsBootstrapping => true,
        // Write type CAS: accepted or not. Another: decided, and not everywhere yet, so a read of a majority
        // may miss it.
        DbError::WriteTimeout { .. } | DbError::WriteFailure { .. } => true,
        // The read of a round: nothing was proposed in that one.
        DbError::ReadTimeout { .. } | DbError::ReadFailure { .. } => true,
        // ScyllaDB: by the coordinator or a replica, and in which round it does not say.
        DbError::RateLimitReached { .. } => true,
        // Anything. 0x1700, CAS_WRITE_UNKNOWN, is among the others.
        DbError::TruncateError | DbError::ServerError | DbError::Other(_) => true,
        // One that a later driver brings.
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

#[cfg(test)]
mod tests {
    use scylla::errors::{OperationType, WriteType};
    use scylla::statement::Consistency;

    use super::*;

    fn of_swap(said: DbError) -> Fault {
        let attempt = RequestAttemptError::DbError(said, "so it said".to_owned());
        fault(ExecutionError::LastAttemptError(attempt))
    }

    #[test]
    fn a_swap_is_of_unknown_outcome_whatever_is_said_once_it_may_be_proposed() {
        let consistency = Consistency::Quorum;
        let said = [
            DbError::Unavailable {
                consistency,
                required: 2,
                alive: 1,
            },
            DbError::Overloaded,
            DbError::IsBootstrapping,
            DbError::WriteTimeout {
                consistency,
                received: 1,
                required: 2,
                write_type: WriteType::Cas,
            },
            DbError::ReadTimeout {
                consistency,
                received: 1,
                required: 2,
                data_present: true,
            },
            DbError::RateLimitReached {
                op_type: OperationType::Write,
                rejected_by_coordinator: true,
            },
            DbError::ServerError,
            DbError::Other(0x1700),
        ];
        for said in said {
            let fault = of_swap(said.clone());
            assert!(matches!(fault, Fault::Unknown(_)), "{said:?}: {fault:?}");
        }
    }

    #[test]
    fn a_swap_that_was_refused_before_it_began_was_not_done() {
        for said in [DbError::Invalid, DbError::Unauthorized] {
            let fault = of_swap(said.clone());
            assert!(matches!(fault, Fault::Refused(_)), "{said:?}: {fault:?}");
        }
        let unprepared = DbError::Unprepared {
            statement_id: bytes::Bytes::new(),
        };
        assert!(matches!(of_swap(unprepared), Fault::NotStarted(_)));
        let unreached = fault(ExecutionError::EmptyPlan);
        assert!(matches!(unreached, Fault::NotStarted(_)));
    }
}
