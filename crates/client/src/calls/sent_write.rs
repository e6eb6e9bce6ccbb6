//! The attempts of one write. An attempt without an answer may have taken effect; this doubt stays under a new grant (H7).

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fermata_proto::DOMAIN;
use tonic::{Code, ConnectError, Response, Status};
use tonic_types::{ErrorInfo, StatusExt};

use super::call_numbers::{CallNumbers, NotAbove, repeated};
use crate::transport::local_status::causes;
use crate::transport::not_grpc::NotGrpc;
use crate::transport::pipeline::NotSent;

/// The reasons of UNAVAILABLE that say that nothing was done.
const NOTHING_DONE: [&str; 4] = ["ELSEWHERE", "STOPPING", "MESSAGE_LATE", "CLOCK_OFF"];

/// The attempts of one write, over all its repeats and grants.
#[derive(Debug, Default)]
pub(crate) struct SentWrite {
    in_doubt: AtomicBool,
    /// The number of the last attempt; 0 before the first.
    number: AtomicU64,
}

impl SentWrite {
    /// Whether an attempt may have taken effect without a clear answer.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.in_doubt.load(Ordering::Relaxed)
    }

    /// The number of the next attempt, to be taken before the attempt. After an attempt that may have been done, the number is
    /// below the numbers of later calls, so that the repeat does not overwrite a later write of another process with the lockRef.
    pub(crate) fn number(&self, numbers: &CallNumbers) -> u64 {
        let number = match self.is_in_doubt() {
            true => repeated(self.number.load(Ordering::Relaxed)),
            false => numbers.next(),
        };
        self.number.store(number, Ordering::Relaxed);
        number
    }

    /// Makes one attempt. If its future is dropped, the attempt stays in doubt.
    pub(crate) async fn attempt<T>(
        &self,
        attempt: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<Response<T>, Status> {
        let before = self.in_doubt.swap(true, Ordering::Relaxed);
        let answer = attempt.await;
        if !matches!(&answer, Err(status) if may_have_taken_effect(status)) {
            self.in_doubt.store(before, Ordering::Relaxed);
        }
        answer
    }
}

/// Whether a write with this failure may have taken effect.
fn may_have_taken_effect(status: &Status) -> bool {
    if never_left(status) || NotGrpc::is_refusal(status) {
        return false;
    }
    let info = status.get_details_error_info();
    let Some(info) = info.filter(|info| info.domain == DOMAIN) else {
        return true;
    };
    let is_unknown = |info: &ErrorInfo| info.metadata.get("write").is_some_and(|w| w == "unknown");
    // Of a release the store may have done the write, and not the rest of it.
    is_unknown(&info)
        || NotAbove::of(status).is_some_and(|refused| refused.came_before())
        || status.code() == Code::Unavailable && !NOTHING_DONE.contains(&&*info.reason)
}

/// Whether the call had no connection to leave on.
fn never_left(status: &Status) -> bool {
    causes(status).any(|cause| cause.is::<ConnectError>() || cause.is::<NotSent>())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;
    use std::time::Duration;

    use fermata_proto::GetRequest;
    use fermata_proto::lock_service_client::LockServiceClient;
    use tokio::net::{TcpSocket, TcpStream};
    use tokio::time::timeout;
    use tonic_types::ErrorDetails;

    use super::*;
    use crate::tests::fake::not_above;
    use crate::transport::pipeline::not_in_time;
    use crate::{ClientOptions, Dialer};

    fn answered(code: Code, reason: &str, write: Option<&str>) -> Status {
        let write = write.map(|write| ("write".to_owned(), write.to_owned()));
        let metadata: HashMap<String, String> = write.into_iter().collect();
        let details = ErrorDetails::with_error_info(reason, DOMAIN, metadata);
        Status::with_error_details(code, "", details)
    }

    #[test]
    fn only_a_refusal_of_the_server_itself_says_that_nothing_was_written() {
        let mut refused = Status::unavailable("refused");
        let refusal = ConnectError(Box::new(std::io::Error::other("refused")));
        refused.set_source(Arc::new(refusal));
        let mut broken = Status::unavailable("broken");
        broken.set_source(Arc::new(std::io::Error::other("reset")));
        let precondition = Code::FailedPrecondition;
        let (exhausted, unavailable) = (Code::ResourceExhausted, Code::Unavailable);
        let unknown = Some("unknown");
        for (status, expected) in [
            (refused, false),
            (not_in_time(), false),
            (broken, true),
            (Status::unavailable("of a proxy"), true),
            (Status::deadline_exceeded("no answer"), true),
            (answered(precondition, "GRANT_SUPERSEDED", None), false),
            (answered(precondition, "GRANT_SUPERSEDED", unknown), true),
            (answered(exhausted, "LIMIT_REACHED", None), false),
            (answered(unavailable, "ELSEWHERE", None), false),
            (answered(unavailable, "CLOCK_OFF", None), false),
            (answered(unavailable, "STORE_UNAVAILABLE", None), true),
            (answered(unavailable, "OUTCOME_UNKNOWN", unknown), true),
            (not_above(7, 9), false),
            // The same call came before.
            (not_above(7, 7), true),
        ] {
            assert_eq!(may_have_taken_effect(&status), expected, "{status:?}");
        }
    }

    /// As that of a machine that is gone.
    #[tokio::test]
    async fn a_call_whose_connection_took_too_long_has_not_left() {
        let span = Duration::from_millis(200);
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let silent = socket.listen(1).unwrap();
        let address = silent.local_addr().unwrap();
        // Once its queue is full, what comes is dropped.
        let mut queued = Vec::new();
        while let Ok(connected) = timeout(span, TcpStream::connect(address)).await {
            queued.push(connected.unwrap());
            assert!(queued.len() < 1_000, "it takes all");
        }
        let endpoint = format!("http://{address}");
        let options = ClientOptions {
            connect_timeout: span,
            ..ClientOptions::default()
        };
        let dialer = Dialer::new(&endpoint, &options).unwrap();
        let mut client = LockServiceClient::new(dialer.lazy());
        let status = client.get(GetRequest::default()).await.unwrap_err();
        assert!(format!("{status:?}").contains("TimedOut"), "{status:?}");
        assert!(!may_have_taken_effect(&status), "{status:?}");
    }

    #[tokio::test]
    async fn what_is_in_doubt_stays_so_whatever_is_refused_later() {
        let sent = SentWrite::default();
        let attempt = |status: Status| sent.attempt(async { Err::<Response<()>, _>(status) });
        let refusal = || answered(Code::FailedPrecondition, "GRANT_SUPERSEDED", None);
        let _refused = attempt(refusal()).await;
        assert!(!sent.is_in_doubt());
        let _lost = attempt(Status::unavailable("the answer was lost")).await;
        let _refused = attempt(refusal()).await;
        assert!(sent.is_in_doubt());
    }

    #[tokio::test]
    async fn an_attempt_that_is_given_up_is_in_doubt() {
        let sent = SentWrite::default();
        let attempt = sent.attempt(std::future::pending::<Result<Response<()>, Status>>());
        let given_up = tokio::time::timeout(std::time::Duration::ZERO, attempt).await;
        assert!(given_up.is_err() && sent.is_in_doubt());
    }
}
