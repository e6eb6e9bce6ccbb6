//! The KeepAlive stream: each renewal is answered, in order.
//!
//! The stream is not read while [`RENEWALS_MAX`] renewals are in flight or have untaken answers. So a slow store, or a client
//! that does not read, fills only the window of the stream. (h2 ends a connection with thousands of small unread frames. Below a
//! thousand renewals a second, the oldest renewal fails and is answered before that.)
//!
//! A session with a `disconnect_grace` ends soon after its stream. So a stream remembers the sessions of its renewals, and
//! reports its end.

use std::collections::BTreeMap;
use std::sync::Arc;

use fermata_proto::{EndReason, KeepAliveRequest, KeepAliveResponse};
use futures_util::{Stream, StreamExt, stream};
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::{Code, Status, Streaming};

use super::calls::{CallContext, KeepAlive, UnaryCall as _};
use super::deadline::{later, until};
use super::route::Router;
use super::status;
use super::stopping::Stopping;
use crate::lock::SessionId;

/// How many renewals of one stream may be in flight: one slow session does not hold up the others, and
/// the answers keep their order.
const RENEWALS_MAX: usize = 256;

/// The sessions that a stream remembers: the latest renewed ones. A closed session is not renewed any more, and makes room for
/// others.
struct Remembered {
    max: usize,
    /// Each with the number of its last renewal.
    sessions: BTreeMap<SessionId, u64>,
    renewals: u64,
}

impl Remembered {
    fn new(max: usize) -> Remembered {
        Remembered {
            max,
            sessions: BTreeMap::new(),
            renewals: 0,
        }
    }

    fn note(&mut self, session: SessionId) {
        self.renewals += 1;
        let is_new = self.sessions.insert(session, self.renewals).is_none();
        if !is_new || self.sessions.len() <= self.max {
            return;
        }
        let oldest = self.sessions.iter().min_by_key(|(_, renewal)| **renewal);
        if let Some(oldest) = oldest.map(|(session, _)| *session) {
            self.sessions.remove(&oldest);
        }
    }

    fn forget(&mut self, session: &SessionId) {
        self.sessions.remove(session);
    }
}

/// The sessions with renewals on a stream, of KeepAlive or Pipeline. Kept by the stream and by each renewal in flight: no earlier
/// renewal may follow the report of the end, since it would say that the client is there.
pub(super) struct Connected {
    router: Router,
    stopping: Stopping,
    sessions: Mutex<Remembered>,
}

impl Connected {
    /// For a stream with so many renewals in flight. It remembers twice as many sessions: a client may have as many without a
    /// disconnect_grace. The end of the stream is not reported for further ones; they live for their TTL.
    pub(super) fn new(router: Router, stopping: Stopping, renewals_max: usize) -> Connected {
        Connected {
            router,
            stopping,
            sessions: Mutex::new(Remembered::new(2 * renewals_max)),
        }
    }

    /// Whether the stream itself ends: its replica stops, or its deadline is there.
    fn is_ending(&self, context: &CallContext) -> bool {
        let deadline = context.deadline.answer_by();
        self.stopping.is_stopped() || deadline.is_some_and(|at| at <= Instant::now())
    }

    /// Makes one renewal. Its session is remembered before: it may take effect without an answer.
    pub(super) async fn renew(
        &self,
        ask: KeepAliveRequest,
        context: &CallContext,
        answer_by: Instant,
    ) -> Result<KeepAliveResponse, Status> {
        let renewal = KeepAlive::parse(ask, context)?;
        self.router.access().still_knows(&context.login)?;
        if let Some(session) = renewal.session() {
            self.sessions.lock().note(session);
        }
        let answer = match self.router.make(&renewal, context, answer_by).await {
            Ok(served) => served.answer,
            // It says something of this lease only: the others on the stream go on.
            Err(status) if is_of_one_lease(&status) && !self.is_ending(context) => {
                return Ok(renewal.nothing_safe(EndReason::Unspecified));
            }
            Err(status) => return Err(status),
        };
        if let Some(session) = renewal.session()
            && answer.disconnect_grace.is_none()
        {
            self.sessions.lock().forget(&session);
        }
        Ok(answer)
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        // That this replica stops is not the doing of its clients: they have their TTL to come back.
        if self.stopping.is_stopped() {
            return;
        }
        let sessions = std::mem::take(&mut self.sessions.lock().sessions);
        for session in sessions.into_keys() {
            self.router.disconnected(session);
        }
    }
}

/// Whether the next renewal may succeed where this one failed: a store, a replica, room or a rule was missing.
fn is_of_one_lease(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable | Code::ResourceExhausted | Code::PermissionDenied
    )
}

/// The input of the stream.
enum StreamInput {
    Renew(KeepAliveRequest),
    Fail(Status),
}

/// The answers to a stream of renewals. It ends when the client ends its side, a little before the deadline, and with a status
/// when the replica stops or a message makes no sense. A session that has ended, or whose state is unknown, ends nothing.
pub fn stream(
    router: Router,
    asks: Streaming<KeepAliveRequest>,
    context: CallContext,
    stopping: Stopping,
) -> impl Stream<Item = Result<KeepAliveResponse, Status>> + Send {
    let message_bytes_max = router.limits().message_bytes_max;
    let deadline = context.deadline;
    let access = router.access().clone();
    let connected = Arc::new(Connected::new(router, stopping.clone(), RENEWALS_MAX));
    let login = context.login.clone();
    let open = Some((asks, stopping.clone(), access));
    let asked = stream::unfold(open, move |open| {
        let login = login.clone();
        async move {
            let (mut asks, mut stopping, access) = open?;
            tokio::select! {
                biased;
                () = stopping.stopped() => Some((StreamInput::Fail(status::stopping()), None)),
                () = until(deadline.answer_by()) => None,
                status = access.until_refused(|| access.still_knows(&login)) => Some((StreamInput::Fail(status), None)),
                asked = asks.message() => match asked {
                    Ok(Some(ask)) => Some((StreamInput::Renew(ask), Some((asks, stopping, access)))),
                    Ok(None) => None,
                    Err(failed) => {
                        let answered = status::of_library(failed.code(), failed.message(), message_bytes_max);
                        Some((StreamInput::Fail(answered.unwrap_or(failed)), None))
                    }
                },
            }
        }
    });
    asked
        .map(move |asked| {
            let (connected, context) = (Arc::clone(&connected), context.clone());
            let mut stopping = stopping.clone();
            let call_max = later(Instant::now(), context.limits.call_max());
            let answer_by = deadline.answer_by().map_or(call_max, |at| at.min(call_max));
            async move {
                match asked {
                    StreamInput::Renew(ask) => tokio::select! {
                        biased;
                        answer = connected.renew(ask, &context, answer_by) => answer,
                        () = stopping.stopped() => Err(status::stopping()),
                    },
                    StreamInput::Fail(status) => Err(status),
                }
            }
        })
        .buffered(RENEWALS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_remembers_the_sessions_that_were_renewed_last() {
        let session = |number: u128| SessionId(uuid::Uuid::from_u128(number));
        let most = 8;
        let mut remembered = Remembered::new(8);
        for number in 0..most {
            remembered.note(session(number));
        }
        // The first one is renewed, and so the second one makes room.
        remembered.note(session(0));
        remembered.note(session(most));
        assert_eq!(remembered.sessions.len(), 8);
        assert!(remembered.sessions.contains_key(&session(0)));
        assert!(!remembered.sessions.contains_key(&session(1)));
        assert!(remembered.sessions.contains_key(&session(most)));
    }
}
