//! The KeepAlive stream: each sign of life is answered, in order.
//!
//! Nothing is read from the client while [`RENEWALS_MAX`] renewals are under way or their answers are not
//! taken: a slow store, or a client that does not read, fills the window of the stream and nothing else.
//! (Of thousands of small frames that are not read h2 makes an end of the connection; before that the
//! oldest renewal has failed, and the stream with it, unless they come by the thousand a second.)

use std::sync::Arc;

use futures_util::{Stream, StreamExt, stream};
use tokio::time::{Instant, sleep_until};
use tonic::{Status, Streaming};

use super::deadline::{Deadline, later, within};
use super::stopping::Stopping;
use super::{answer, parse, status};
use crate::engine::{Engine, EngineError, LeaseId, Renewed};
use crate::limits::Limits;
use crate::proto::{EndReason, KeepAliveRequest, KeepAliveResponse};

/// How many renewals of one stream may be under way: one slow session does not hold up the others, and
/// the answers keep their order.
const RENEWALS_MAX: usize = 256;

/// What the client's side of the stream brings.
enum Asked {
    Renew(KeepAliveRequest),
    Fail(Status),
}

/// The answers to a stream of signs of life. It ends where the client ends its side, a little before
/// the deadline, with a status when the replica stops, and with a status where a message makes no sense
/// or the store cannot be reached. A session that is over ends nothing.
pub fn stream(
    engine: Engine,
    limits: Arc<Limits>,
    asks: Streaming<KeepAliveRequest>,
    deadline: Deadline,
    stopping: Stopping,
) -> impl Stream<Item = Result<KeepAliveResponse, Status>> + Send {
    let message_bytes_max = limits.message_bytes_max;
    let open = Some((asks, stopping.clone()));
    let asked = stream::unfold(open, move |open| async move {
        let (mut asks, mut stopping) = open?;
        let end = async {
            match deadline.answer_by() {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = stopping.stopped() => Some((Asked::Fail(status::stopping()), None)),
            () = end => None,
            asked = asks.message() => match asked {
                Ok(Some(ask)) => Some((Asked::Renew(ask), Some((asks, stopping)))),
                Ok(None) => None,
                Err(failed) => {
                    let told = status::of_library(failed.code(), failed.message(), message_bytes_max);
                    Some((Asked::Fail(told.unwrap_or(failed)), None))
                }
            },
        }
    });
    asked
        .map(move |asked| {
            let engine = engine.clone();
            let mut stopping = stopping.clone();
            let call_max = later(Instant::now(), limits.call_max());
            let answer_by = deadline.answer_by().map_or(call_max, |at| at.min(call_max));
            async move {
                match asked {
                    Asked::Renew(ask) => tokio::select! {
                        biased;
                        answer = renew(&engine, ask, answer_by) => answer,
                        () = stopping.stopped() => Err(status::stopping()),
                    },
                    Asked::Fail(status) => Err(status),
                }
            }
        })
        .buffered(RENEWALS_MAX)
}

async fn renew(
    engine: &Engine,
    ask: KeepAliveRequest,
    answer_by: Instant,
) -> Result<KeepAliveResponse, Status> {
    let lease: LeaseId = parse::lease(&ask.session)?;
    // The engine's refusals are answers here, so they must not become a status within the deadline.
    let renewed = within(answer_by, async { Ok(engine.renew(&lease).await) }).await?;
    told(ask.session, renewed)
}

/// A session that is over is an answer; what says nothing about this session is a status.
fn told(
    session: String,
    renewed: Result<Renewed, EngineError>,
) -> Result<KeepAliveResponse, Status> {
    let over = |reason: EndReason| KeepAliveResponse {
        session: session.clone(),
        valid_for: Some(prost_types::Duration::default()),
        ttl: None,
        reason: reason.into(),
    };
    match renewed {
        Ok(renewed) => Ok(KeepAliveResponse {
            session,
            valid_for: Some(answer::duration(renewed.valid_for)),
            ttl: Some(answer::duration(renewed.ttl)),
            reason: EndReason::Unspecified.into(),
        }),
        Err(EngineError::SessionOver) => Ok(over(EndReason::SessionClosed)),
        Err(EngineError::Over(how) | EngineError::OverDuringWrite(how)) => {
            Ok(over(status::end_reason(&how)))
        }
        // Of another life of its key: whatever ended it is not kept, and the others must go on.
        Err(EngineError::NeverIssued) => Ok(over(EndReason::NoLongerKept)),
        // Its holder gives it back already.
        Err(EngineError::Releasing) => Ok(over(EndReason::Released)),
        Err(
            error @ (EngineError::UnknownTable(_)
            | EngineError::GrantSuperseded
            | EngineError::NoGrant
            | EngineError::CallNoNotAbove { .. }
            | EngineError::RequestMismatch { .. }
            | EngineError::Exhausted { .. }
            | EngineError::KeyUsedUp(_)
            | EngineError::Unavailable(_)
            | EngineError::Elsewhere { .. }
            | EngineError::Stopping),
        ) => Err(status::of_engine(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Over;

    #[test]
    fn a_session_that_is_over_is_an_answer_and_ends_no_stream() {
        for (error, reason) in [
            (EngineError::SessionOver, EndReason::SessionClosed),
            (EngineError::NeverIssued, EndReason::NoLongerKept),
            (
                EngineError::Over(Over::Ended(crate::lock::EndReason::Expired)),
                EndReason::Expired,
            ),
        ] {
            let answer = told("s".to_owned(), Err(error)).unwrap();
            assert_eq!(answer.reason(), reason);
            assert_eq!(answer.valid_for, Some(prost_types::Duration::default()));
            assert_eq!((answer.session.as_str(), answer.ttl), ("s", None));
        }
    }

    #[test]
    fn a_store_that_cannot_be_reached_does_not_make_a_session_look_over() {
        let lost = EngineError::Unavailable("no majority".to_owned());
        let status = told("s".to_owned(), Err(lost)).unwrap_err();
        assert_eq!(status.code(), tonic::Code::Unavailable);
    }
}
