//! The KeepAlive stream: each sign of life is answered, in order.
//!
//! Nothing is read from the client while [`RENEWALS_MAX`] renewals are under way or their answers are not
//! taken: a slow store, or a client that does not read, fills the window of the stream and nothing else.
//! (Of thousands of small frames that are not read h2 makes an end of the connection; before that the
//! oldest renewal has failed, and the stream with it, unless they come by the thousand a second.)

use futures_util::{Stream, StreamExt, stream};
use tokio::time::{Instant, sleep_until};
use tonic::{Status, Streaming};

use super::calls::{Call as _, Edge, KeepAlive};
use super::deadline::later;
use super::router::Router;
use super::status;
use super::stopping::Stopping;
use crate::proto::{KeepAliveRequest, KeepAliveResponse};

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
    router: Router,
    asks: Streaming<KeepAliveRequest>,
    edge: Edge,
    stopping: Stopping,
) -> impl Stream<Item = Result<KeepAliveResponse, Status>> + Send {
    let message_bytes_max = router.limits().message_bytes_max;
    let deadline = edge.deadline;
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
            let (router, edge) = (router.clone(), edge.clone());
            let mut stopping = stopping.clone();
            let call_max = later(Instant::now(), router.limits().call_max());
            let answer_by = deadline.answer_by().map_or(call_max, |at| at.min(call_max));
            async move {
                match asked {
                    Asked::Renew(ask) => tokio::select! {
                        biased;
                        answer = renew(&router, ask, &edge, answer_by) => answer,
                        () = stopping.stopped() => Err(status::stopping()),
                    },
                    Asked::Fail(status) => Err(status),
                }
            }
        })
        .buffered(RENEWALS_MAX)
}

async fn renew(
    router: &Router,
    ask: KeepAliveRequest,
    edge: &Edge,
    answer_by: Instant,
) -> Result<KeepAliveResponse, Status> {
    let sign = KeepAlive::parse(ask, edge)?;
    router.make(&sign, edge, answer_by).await
}
