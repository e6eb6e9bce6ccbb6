//! The outcome of requests without a result, and of failed connections.

use std::time::Duration;

use cassandra_cpp::{CassErrorCode as Code, Error, ErrorKind};

use crate::driver::backend::{Execution, Sending, Silence, Unanswered};
use crate::fault::{ConnectFault, Fault};

pub(super) fn code_of(error: &Error) -> Option<Code> {
    said(error).0
}

/// Whether another node may well answer what this one did not: not where the node refused the statement, or where too few
/// replicas answered the node.
pub(super) fn another_may(error: &Error, fault: &Fault) -> bool {
    let lacks_replicas = matches!(
        code_of(error),
        Some(
            Code::SERVER_WRITE_TIMEOUT
                | Code::SERVER_READ_TIMEOUT
                | Code::SERVER_READ_FAILURE
                | Code::SERVER_WRITE_FAILURE
        )
    );
    !lacks_replicas && !matches!(fault, Fault::Refused(_))
}

/// Its code, if it has one, and what is said.
fn said(error: &Error) -> (Option<Code>, String) {
    match error.kind() {
        ErrorKind::CassError(code, said) | ErrorKind::CassErrorResult(code, said, ..) => {
            (Some(*code), said.clone())
        }
        _ => (None, error.to_string()),
    }
}

/// Why there is no connection, in the words of the other library's where the reason is the same.
pub(super) fn not_connected(error: &Error, is_encrypted: bool) -> ConnectFault {
    use ConnectFault::{Refused, Unreachable};
    let (code, why) = said(error);
    let speaks_of = |words: &[&str]| words.iter().any(|word| why.contains(word));
    match code {
        Some(Code::SERVER_BAD_CREDENTIALS) if speaks_of(&["no auth provider"]) => {
            Refused("the node requires a user and a password".to_owned())
        }
        Some(Code::SSL_INVALID_PEER_CERT)
            if speaks_of(&["issuer", "signature", "self", "first certificate"]) =>
        {
            Refused(format!(
                "the node's certificate is not signed by the configured CA ({why})"
            ))
        }
        Some(Code::SSL_IDENTITY_MISMATCH) => Refused(format!(
            "the node's certificate does not name the address of the connection ({why})"
        )),
        Some(Code::SSL_PROTOCOL_ERROR) if speaks_of(&["alert protocol version"]) => {
            Refused(format!(
                "the node accepts no TLS version up to 1.2, the highest of this driver ({why})"
            ))
        }
        // Where a CA has the name of another one, OpenSSL 3 sends it along with our certificate.
        Some(Code::SSL_PROTOCOL_ERROR) if speaks_of(&["alert internal error"]) => Refused(format!(
            "the node refused our certificate, or one side's certificate is not signed by the CA that the other side trusts \
             ({why})"
        )),
        Some(Code::SSL_PROTOCOL_ERROR) if speaks_of(&["alert"]) => Refused(format!(
            "the node refused our certificate, or requires one and got none ({why})"
        )),
        Some(Code::SSL_PROTOCOL_ERROR) if speaks_of(&["version number", "unknown protocol"]) => {
            Refused(format!("the node does not speak TLS ({why})"))
        }
        Some(
            Code::SERVER_BAD_CREDENTIALS
            | Code::SERVER_UNAUTHORIZED
            | Code::SSL_INVALID_CERT
            | Code::SSL_INVALID_PRIVATE_KEY
            | Code::SSL_NO_PEER_CERT
            | Code::SSL_INVALID_PEER_CERT,
        ) => Refused(why),
        _ if !speaks_of(&["closed", "Read error"]) => Unreachable(why),
        _ if is_encrypted => Unreachable(format!(
            "{why} (perhaps the node refused our certificate, or requires one and got none)"
        )),
        _ => Unreachable(format!(
            "{why} (perhaps the node requires TLS, which is not configured)"
        )),
    }
}

/// What it means that the library found no node to send a request to, though this one was connected when it was handed over. It
/// says so, too, where the node answered that it is bootstrapping: it may do so in the second round of a transaction, after a
/// first one that others may bring to its end.
pub(super) fn if_begun(unanswered: Unanswered, execution: Execution) -> Unanswered {
    match execution.is_transaction() {
        true => Unanswered {
            fault: Fault::Unknown(unanswered.fault.to_string()),
            silence: Silence::Broken,
        },
        false => unanswered,
    }
}

/// What a request came to that was sent to several nodes: so far, at the one that answered last, and whether another one is
/// asked still.
pub(super) fn merged(so_far: Fault, last: Fault, sending: Sending, is_other_asked: bool) -> Fault {
    match (so_far, last, sending) {
        // What one of them may have done may have happened.
        (Fault::Unknown(why), _, Sending::Write) => Fault::Unknown(why),
        (_, Fault::Refused(why), Sending::Write) if is_other_asked => Fault::Unknown(why),
        (_, fault, _) => fault,
    }
}

/// What a request came to that took this long, of what it may take.
pub(super) fn unanswered(error: &Error, took: Duration, within: Duration) -> Unanswered {
    let (code, why) = said(error);
    let Some(code) = code else {
        // A text that is no UTF-8, or holds a zero: of an answer, or bound.
        return Unanswered {
            fault: Fault::Unknown(why),
            silence: Silence::Broken,
        };
    };
    let (fault, silence): (fn(String) -> Fault, Silence) = match code {
        // There was no connection, or no room in it: nothing was sent. (The library says so, too, where a node answered that it
        // is bootstrapping: see whoever calls this.)
        Code::LIB_NO_HOSTS_AVAILABLE
        | Code::LIB_NO_STREAMS
        | Code::LIB_REQUEST_QUEUE_FULL
        | Code::LIB_NO_AVAILABLE_IO_THREAD
        | Code::LIB_UNABLE_TO_CONNECT
        | Code::LIB_UNABLE_TO_INIT
        | Code::LIB_HOST_RESOLUTION => (Fault::NotStarted, Silence::Unreached),
        // It was not sent, since it cannot be.
        Code::LIB_BAD_PARAMS
        | Code::LIB_MESSAGE_ENCODE
        | Code::LIB_INDEX_OUT_OF_BOUNDS
        | Code::LIB_INVALID_ITEM_COUNT
        | Code::LIB_INVALID_VALUE_TYPE
        | Code::LIB_INVALID_STATEMENT_TYPE
        | Code::LIB_NAME_DOES_NOT_EXIST
        | Code::LIB_PARAMETER_UNSET
        | Code::LIB_INVALID_CUSTOM_TYPE
        | Code::LIB_UNABLE_TO_SET_KEYSPACE
        | Code::LIB_UNABLE_TO_DETERMINE_PROTOCOL
        | Code::LIB_NOT_IMPLEMENTED
        | Code::LIB_EXECUTION_PROFILE_INVALID => (Fault::NotStarted, Silence::Broken),
        // The library says so, too, of a request that was on its way when its connection broke.
        Code::LIB_REQUEST_TIMED_OUT => match took < within.mul_f32(0.9) {
            true => (Fault::Unknown, Silence::Broken),
            false => (Fault::Unknown, Silence::TimedOut),
        },
        // The node says that it would not, and never will.
        Code::SERVER_SYNTAX_ERROR
        | Code::SERVER_UNAUTHORIZED
        | Code::SERVER_INVALID_QUERY
        | Code::SERVER_ALREADY_EXISTS
        | Code::SERVER_BAD_CREDENTIALS
        | Code::SERVER_FUNCTION_FAILURE
        | Code::SERVER_PROTOCOL_ERROR => (Fault::Refused, Silence::Answered),
        // The node does not know the statement.
        Code::SERVER_UNPREPARED => (Fault::NotStarted, Silence::Answered),
        // A transaction may have been decided before its commit said so.
        // (ScyllaDB says CONFIG_ERROR to this library where a limit on the rate of requests is reached.)
        Code::SERVER_UNAVAILABLE
        | Code::SERVER_CONFIG_ERROR
        | Code::SERVER_OVERLOADED
        | Code::SERVER_IS_BOOTSTRAPPING
        | Code::SERVER_SERVER_ERROR
        | Code::SERVER_TRUNCATE_ERROR
        | Code::SERVER_WRITE_TIMEOUT
        | Code::SERVER_READ_TIMEOUT
        | Code::SERVER_READ_FAILURE
        | Code::SERVER_WRITE_FAILURE => (Fault::Unknown, Silence::Answered),
        // It may have been sent: all other codes of the library, and those of later versions.
        _ => (Fault::Unknown, Silence::Broken),
    };
    Unanswered {
        fault: fault(why),
        silence,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::backend::Level;

    const WITHIN: Duration = Duration::from_secs(1);

    fn error(code: Code) -> Error {
        ErrorKind::CassError(code, "so it said".to_owned()).into()
    }

    fn at_once(code: Code) -> Unanswered {
        unanswered(&error(code), Duration::ZERO, WITHIN)
    }

    #[test]
    fn a_swap_is_of_unknown_outcome_whatever_is_said_once_it_may_be_proposed() {
        for code in [
            Code::SERVER_UNAVAILABLE,
            Code::SERVER_CONFIG_ERROR,
            Code::SERVER_OVERLOADED,
            Code::SERVER_IS_BOOTSTRAPPING,
            Code::SERVER_SERVER_ERROR,
            Code::SERVER_TRUNCATE_ERROR,
            Code::SERVER_WRITE_TIMEOUT,
            Code::SERVER_READ_TIMEOUT,
            Code::SERVER_READ_FAILURE,
            Code::SERVER_WRITE_FAILURE,
        ] {
            let Unanswered { fault, silence } = at_once(code);
            assert!(matches!(fault, Fault::Unknown(_)), "{code:?}: {fault:?}");
            assert_eq!(silence, Silence::Answered, "{code:?}");
        }
    }

    #[test]
    fn a_request_that_may_have_been_sent_is_of_unknown_outcome() {
        for code in [
            Code::LIB_UNEXPECTED_RESPONSE,
            Code::LIB_WRITE_ERROR,
            Code::LIB_INVALID_DATA,
            Code::LIB_NOT_ENOUGH_DATA,
            Code::LIB_INTERNAL_ERROR,
            Code::SSL_CLOSED,
            Code::SSL_PROTOCOL_ERROR,
        ] {
            let Unanswered { fault, silence } = at_once(code);
            assert!(matches!(fault, Fault::Unknown(_)), "{code:?}: {fault:?}");
            assert_eq!(silence, Silence::Broken, "{code:?}");
        }
        let early = at_once(Code::LIB_REQUEST_TIMED_OUT);
        assert!(matches!(early.fault, Fault::Unknown(_)));
        assert_eq!(early.silence, Silence::Broken);
        let late = unanswered(&error(Code::LIB_REQUEST_TIMED_OUT), WITHIN, WITHIN);
        assert!(matches!(late.fault, Fault::Unknown(_)));
        assert_eq!(late.silence, Silence::TimedOut);
    }

    #[test]
    fn a_request_that_was_refused_or_never_sent_was_not_done() {
        for code in [
            Code::SERVER_SYNTAX_ERROR,
            Code::SERVER_UNAUTHORIZED,
            Code::SERVER_INVALID_QUERY,
            Code::SERVER_ALREADY_EXISTS,
            Code::SERVER_PROTOCOL_ERROR,
        ] {
            let fault = at_once(code).fault;
            assert!(matches!(fault, Fault::Refused(_)), "{code:?}: {fault:?}");
            assert!(!another_may(&error(code), &fault), "{code:?}");
        }
        for code in [
            Code::SERVER_UNPREPARED,
            Code::LIB_NO_HOSTS_AVAILABLE,
            Code::LIB_NO_STREAMS,
            Code::LIB_REQUEST_QUEUE_FULL,
            Code::LIB_BAD_PARAMS,
        ] {
            let fault = at_once(code).fault;
            assert!(matches!(fault, Fault::NotStarted(_)), "{code:?}: {fault:?}");
            assert!(another_may(&error(code), &fault), "{code:?}");
        }
    }

    #[test]
    fn a_transaction_may_have_begun_though_the_library_found_no_node_for_it() {
        let of = |level, sending| {
            let found = at_once(Code::LIB_NO_HOSTS_AVAILABLE);
            if_begun(found, Execution { level, sending })
        };
        let begun = of(Level::Majority, Sending::Once);
        assert!(matches!(begun.fault, Fault::Unknown(_)));
        assert_eq!(begun.silence, Silence::Broken);
        for (level, sending) in [
            (Level::Serial, Sending::Once),
            (Level::Majority, Sending::Write),
            (Level::Majority, Sending::Read),
        ] {
            let not_begun = of(level, sending);
            assert!(matches!(not_begun.fault, Fault::NotStarted(_)));
            assert_eq!(not_begun.silence, Silence::Unreached);
        }
    }

    #[test]
    fn a_write_that_one_node_may_have_done_may_have_happened_whatever_another_one_says() {
        let unknown = || Fault::Unknown("first".to_owned());
        let not_started = || Fault::NotStarted("second".to_owned());
        let refused = || Fault::Refused("second".to_owned());
        let is_unknown = |fault| matches!(fault, Fault::Unknown(_));
        assert!(is_unknown(merged(
            unknown(),
            not_started(),
            Sending::Write,
            false
        )));
        assert!(is_unknown(merged(
            unknown(),
            refused(),
            Sending::Write,
            false
        )));
        assert!(is_unknown(merged(
            not_started(),
            refused(),
            Sending::Write,
            true
        )));
        let alone = merged(not_started(), refused(), Sending::Write, false);
        assert!(matches!(alone, Fault::Refused(_)));
        let read = merged(unknown(), not_started(), Sending::Read, false);
        assert!(matches!(read, Fault::NotStarted(_)));
    }
}
