//! A session with one node, and its prepared statements.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cassandra_cpp::{PreparedStatement, Session, Statement};
use parking_lot::Mutex;
use tokio::time::timeout;

use super::outcome::unanswered;
use crate::driver::backend::{Silence, Unanswered};
use crate::fault::Fault;

/// How often a thread sees whether nobody has a handle of a session any more.
const ENDED_PAUSE: Duration = Duration::from_millis(20);

/// A session, and its statements by their texts: of a program there are some dozens.
///
/// Whoever uses any of it has one of these until that is done: the library ends a session with its last handle, and waits
/// then until all has ended that is in flight. That is done by a thread, and by no task.
#[derive(Debug)]
pub(super) struct Link {
    session: Session,
    prepared: Mutex<HashMap<Arc<str>, Arc<PreparedStatement>>>,
}

impl Link {
    pub(super) fn new(session: Session) -> Arc<Link> {
        Arc::new(Link {
            session,
            prepared: Mutex::default(),
        })
    }

    /// Whether there is a connection to the node. (The library computes more than that: some hundred microseconds.)
    pub(super) fn has_connections(&self) -> bool {
        self.session.get_metrics().total_connections > 0
    }

    /// A statement that is not prepared.
    pub(super) fn statement(&self, text: &str) -> Statement {
        self.session.statement(text)
    }

    /// A statement as this node knows it. Preparing changes nothing.
    pub(super) async fn prepared(
        &self,
        text: &Arc<str>,
        within: Duration,
    ) -> Result<Arc<PreparedStatement>, Unanswered> {
        if let Some(known) = self.prepared.lock().get(text).cloned() {
            return Ok(known);
        }
        let begun = Instant::now();
        let preparing = timeout(within, self.session.prepare(&**text));
        let prepared = match preparing.await {
            Ok(Ok(prepared)) => Arc::new(prepared),
            Ok(Err(error)) => {
                let Unanswered { fault, silence } = unanswered(&error, begun.elapsed(), within);
                return Err(match fault {
                    Fault::Unknown(why) if silence == Silence::TimedOut => {
                        not_started(why, silence)
                    }
                    // Another node may be asked: nothing was executed.
                    Fault::Unknown(why) => not_started(why, Silence::Unreached),
                    fault @ (Fault::NotStarted(_) | Fault::Refused(_)) => {
                        Unanswered { fault, silence }
                    }
                });
            }
            Err(_) => {
                return Err(not_started(
                    "preparing a statement timed out",
                    Silence::TimedOut,
                ));
            }
        };
        let known = Arc::clone(&prepared);
        self.prepared.lock().insert(Arc::clone(text), known);
        Ok(prepared)
    }

    /// The node made something else of a statement than what is known here: it is prepared anew.
    pub(super) fn forget(&self, text: &str) {
        self.prepared.lock().remove(text);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let session = self.session.clone();
        let prepared = std::mem::take(&mut *self.prepared.lock());
        let end = move || {
            drop(prepared);
            // The other one is that of what is dropped here.
            while Arc::strong_count(&session.0) > 1 {
                thread::sleep(ENDED_PAUSE);
            }
        };
        // Where no thread can be made it ends here and now.
        drop(thread::Builder::new().spawn(end));
    }
}

/// Nothing was sent.
pub(super) fn not_started(why: impl ToString, silence: Silence) -> Unanswered {
    Unanswered {
        fault: Fault::NotStarted(why.to_string()),
        silence,
    }
}
