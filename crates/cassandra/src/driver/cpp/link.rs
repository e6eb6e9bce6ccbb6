//! A session with one node, and what was prepared in it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cassandra_cpp::{PreparedStatement, Session, Statement};
use tokio::time::timeout;

use super::outcome::unanswered;
use crate::driver::backend::{Silence, Unanswered};
use crate::fault::Fault;

/// How often a thread sees whether a session may be ended.
const ENDED_PAUSE: Duration = Duration::from_millis(20);
const QUIET_PAUSE: Duration = Duration::from_millis(500);
/// What the library may take for all that it does with a node that it is connected to again, but for the connection: it logs in,
/// names the keyspace and prepares all statements, each within 12 s.
const PREPARED_WITHIN: Duration = Duration::from_secs(36);

/// A session, and its statements by their texts: of a program there are some dozens.
///
/// Whoever uses any of it has one of these until that is done: the library ends a session with its last handle, and waits
/// then until all has ended that is in flight. That is done by a thread, and by no task.
///
/// It does not wait for what it does with a node that it is connected to again, but has that call a session that is no more,
/// which ends the process. So a session that lost its connection, or has it again, is ended only after what that may take.
#[derive(Debug)]
pub(super) struct Link {
    session: Session,
    prepared: Mutex<HashMap<Arc<str>, Arc<PreparedStatement>>>,
    quiet: Mutex<Quiet>,
}

/// Whether something may be in flight that nobody asked for.
#[derive(Clone, Copy, Debug)]
struct Quiet {
    has_connections: bool,
    /// When that changed, if it ever did.
    changed: Option<Instant>,
    after: Duration,
}

impl Quiet {
    fn read(&mut self, has_connections: bool, now: Instant) {
        if self.has_connections != has_connections {
            self.has_connections = has_connections;
            self.changed = Some(now);
        }
    }

    fn is_quiet(&self, now: Instant) -> bool {
        let has_been_for = |changed| now.saturating_duration_since(changed);
        self.changed
            .is_none_or(|changed| has_been_for(changed) >= self.after)
    }
}

impl Link {
    /// A session that is connected, to a node that a connection to may take so long.
    pub(super) fn new(session: Session, connect_timeout: Duration) -> Arc<Link> {
        Arc::new(Link {
            session,
            prepared: Mutex::default(),
            quiet: Mutex::new(Quiet {
                has_connections: true,
                changed: None,
                after: connect_timeout + PREPARED_WITHIN,
            }),
        })
    }

    fn quiet(&self) -> MutexGuard<'_, Quiet> {
        self.quiet.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all_prepared(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<PreparedStatement>>> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is a connection to the node. (The library computes more than that: some hundred microseconds.)
    pub(super) fn has_connections(&self) -> bool {
        let has = connections(&self.session);
        self.quiet().read(has, Instant::now());
        has
    }

    /// A request found no connection; there may be one again by now.
    pub(super) fn had_none(&self) {
        let now = Instant::now();
        let mut quiet = self.quiet();
        quiet.read(false, now);
        quiet.changed = Some(now);
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
        if let Some(known) = self.all_prepared().get(text).cloned() {
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
        self.all_prepared().insert(Arc::clone(text), known);
        Ok(prepared)
    }

    /// The node made something else of a statement than what is known here: it is prepared anew.
    pub(super) fn forget(&self, text: &str) {
        self.all_prepared().remove(text);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let session = self.session.clone();
        let prepared = std::mem::take(&mut *self.all_prepared());
        let mut quiet = *self.quiet();
        let end = move || {
            drop(prepared);
            // The other one is that of what is dropped here.
            while Arc::strong_count(&session.0) > 1 {
                thread::sleep(ENDED_PAUSE);
            }
            quiet.read(connections(&session), Instant::now());
            while !quiet.is_quiet(Instant::now()) {
                thread::sleep(QUIET_PAUSE);
                quiet.read(connections(&session), Instant::now());
            }
        };
        // Where no thread can be made it ends here and now.
        drop(thread::Builder::new().spawn(end));
    }
}

fn connections(session: &Session) -> bool {
    session.get_metrics().total_connections > 0
}

/// Nothing was sent.
pub(super) fn not_started(why: impl ToString, silence: Silence) -> Unanswered {
    Unanswered {
        fault: Fault::NotStarted(why.to_string()),
        silence,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_quiet_while_its_connection_stays_or_long_after_it_changed() {
        let after = Duration::from_secs(41);
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut quiet = Quiet {
            has_connections: true,
            changed: None,
            after,
        };
        quiet.read(true, at(1));
        assert!(quiet.is_quiet(at(1)));
        quiet.read(false, at(2));
        assert!(!quiet.is_quiet(at(42)));
        assert!(quiet.is_quiet(at(43)));
        quiet.read(true, at(50));
        assert!(!quiet.is_quiet(at(90)));
        quiet.read(true, at(90));
        assert!(quiet.is_quiet(at(91)));
    }
}
