//! Sessions beside the sections, each with a lock, and the times of their renewals.

use std::sync::Arc;
use std::time::Duration;

use fermata_command::Failure;
use fermata_proto::{
    CloseSessionRequest, CreateLockRefRequest, OpenSessionRequest, RenewSessionRequest,
};
use futures_util::{StreamExt as _, stream};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tonic::{Code, Status};
use uuid::Uuid;

use super::connect::{AT_ONCE, Connection, Unary, timed};
use super::measure::{Measured, Phase};
use super::plan::Plan;

/// Renewals in the TTL of a session, as the Rust library makes them.
const RENEWALS_IN_TTL: u32 = 3;

/// Open sessions, which are renewed.
pub(super) struct Sessions {
    all: Vec<Session>,
    renewals: JoinSet<()>,
}

#[derive(Clone)]
struct Session {
    calls: Unary,
    /// The time for a call.
    within: Duration,
    text: String,
    measured: Arc<Mutex<Measured>>,
}

impl Sessions {
    /// Opens the sessions of a plan at its first endpoint. Renewals that are due after the warm-up are timed.
    pub(super) async fn open(
        plan: &Plan,
        measured: &Arc<Mutex<Measured>>,
    ) -> Result<Sessions, Failure> {
        let (mut all, mut renewals) = (Vec::new(), JoinSet::new());
        let count = plan.load.sessions;
        if count == 0 {
            return Ok(Sessions { all, renewals });
        }
        let connection = Connection::open(&plan.endpoints[0], &plan.options, false).await?;
        let unopened = Session {
            calls: connection.unary,
            within: plan.options.timeout,
            text: String::new(),
            measured: Arc::clone(measured),
        };
        let measure_from = Instant::now() + plan.load.warm_up.duration();
        let every = plan.load.ttl.duration() / RENEWALS_IN_TTL;
        let mut opened = stream::iter(0..count)
            .map(|number| unopened.clone().begin(plan, number))
            .buffer_unordered(AT_ONCE);
        while let Some(session) = opened.next().await {
            let Some(session) = session else { continue };
            // Spread over the time between two renewals.
            let first = Instant::now() + every.mul_f64(all.len() as f64 / count as f64);
            renewals.spawn(session.clone().renew(first, every, measure_from));
            all.push(session);
        }
        Ok(Sessions { all, renewals })
    }

    /// Renews each session a last time, and closes it. A session that was lost is an error.
    pub(super) async fn close(mut self) {
        self.renewals.shutdown().await;
        let closed = stream::iter(self.all).map(Session::close);
        closed.buffer_unordered(AT_ONCE).collect::<()>().await;
    }
}

impl Session {
    /// Opens it, and takes a lock in it.
    async fn begin(mut self, plan: &Plan, number: usize) -> Option<Session> {
        let begun = async {
            let open = OpenSessionRequest {
                ttl: plan.load.ttl.duration().try_into().ok(),
                request_id: Uuid::new_v4().to_string(),
                ..Default::default()
            };
            let opened = self.calls.open_session(timed(open, self.within)).await?;
            self.text = opened.into_inner().session;
            let create = CreateLockRefRequest {
                key: format!("{}/session/{number}", plan.load.key_prefix),
                table: plan.table.clone(),
                session: self.text.clone(),
                request_id: Uuid::new_v4().to_string(),
                ..Default::default()
            };
            self.calls.create_lock_ref(timed(create, self.within)).await
        };
        match begun.await {
            Ok(_) => Some(self),
            Err(status) => {
                self.failed(status);
                None
            }
        }
    }

    /// Until it is lost.
    async fn renew(mut self, first: Instant, every: Duration, measure_from: Instant) {
        let mut due = first;
        loop {
            sleep_until(due).await;
            match self.renew_once().await {
                Ok(()) if due >= measure_from => {
                    self.measured.lock().record(Phase::Renew, due.elapsed());
                }
                Ok(()) => {}
                Err(status) => {
                    let is_lost =
                        matches!(status.code(), Code::NotFound | Code::FailedPrecondition);
                    self.failed(status);
                    if is_lost {
                        return;
                    }
                }
            }
            due += every;
        }
    }

    async fn renew_once(&mut self) -> Result<(), Status> {
        let session = self.text.clone();
        let renew = timed(RenewSessionRequest { session }, self.within);
        self.calls.renew_session(renew).await.map(drop)
    }

    async fn close(mut self) {
        let session = self.text.clone();
        let close = timed(CloseSessionRequest { session }, self.within);
        let closed = match self.renew_once().await {
            Ok(()) => self.calls.close_session(close).await.map(drop),
            Err(status) => Err(status),
        };
        if let Err(status) = closed {
            self.failed(status);
        }
    }

    fn failed(&self, status: Status) {
        self.measured.lock().fail((Phase::Renew, status).into());
    }
}
