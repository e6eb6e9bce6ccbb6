//! Sessions that are kept alive beside the sections, each with a lock, and how long their renewals take.

use std::sync::Arc;
use std::time::Duration;

use fermata_proto::{
    CloseSessionRequest, CreateLockRefRequest, OpenSessionRequest, RenewSessionRequest,
};
use futures_util::{StreamExt as _, stream};
use hdrhistogram::CreationError;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tonic::{Code, Status};
use uuid::Uuid;

use super::connect::{UnaryClient, by_itself};
use super::measure::{Failure, Measured, Phase};
use super::workload::Workload;

/// How many are opened at once.
const AT_ONCE: usize = 32;
/// A session is renewed so many times in its TTL.
const RENEWALS_IN_TTL: u32 = 3;

/// Sessions that are renewed until this ends.
pub(super) struct KeptSessions {
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
    measured: Arc<Mutex<Measured>>,
}

/// One of them.
struct KeptSession {
    client: UnaryClient,
    workload: Arc<Workload>,
    session: String,
    measured: Arc<Mutex<Measured>>,
}

impl KeptSessions {
    /// Opens so many with the workload's TTL; renewals that are due after the warm-up are timed. The keys of
    /// their locks begin so.
    pub(super) async fn open(
        client: &UnaryClient,
        workload: &Arc<Workload>,
        (prefix, count): (&str, usize),
        warm_up: Duration,
    ) -> Result<KeptSessions, CreationError> {
        let measured = Arc::new(Mutex::new(Measured::new()?));
        let measure_from = Instant::now() + warm_up;
        let every = workload.ttl / RENEWALS_IN_TTL;
        let (stop, stopped) = watch::channel(false);
        let open = |number: usize| {
            let mut kept = KeptSession {
                client: client.clone(),
                workload: Arc::clone(workload),
                session: String::new(),
                measured: Arc::clone(&measured),
            };
            async move {
                match kept.begin(prefix, number).await {
                    Ok(()) => Some((number, kept)),
                    Err(status) => {
                        kept.failed(&status);
                        None
                    }
                }
            }
        };
        let mut opened = stream::iter((0..count).map(open)).buffer_unordered(AT_ONCE);
        let mut tasks = JoinSet::new();
        while let Some(kept) = opened.next().await {
            // Each from when it is open, spread over the time between two renewals.
            if let Some((number, kept)) = kept {
                let first = Instant::now() + every.mul_f64(number as f64 / count as f64);
                tasks.spawn(kept.renew((first, every), measure_from, stopped.clone()));
            }
        }
        drop(opened);
        Ok(KeptSessions {
            stop,
            tasks,
            measured,
        })
    }

    /// Renews each for a last time, and closes it. What was measured; a session that was lost is an error among that.
    pub(super) async fn end(mut self, into: &mut Measured) {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
        into.add(&self.measured.lock());
    }
}

impl KeptSession {
    /// Opens it, and takes a lock by it.
    async fn begin(&mut self, prefix: &str, number: usize) -> Result<(), Status> {
        let within = self.workload.call_within;
        let open = OpenSessionRequest {
            ttl: self.workload.ttl.try_into().ok(),
            request_id: Uuid::new_v4().to_string(),
            ..Default::default()
        };
        let opened = self.client.open_session(by_itself(open, within)).await?;
        self.session = opened.into_inner().session;
        let create = CreateLockRefRequest {
            key: format!("{}/session/{number}", prefix),
            table: self.workload.table.clone(),
            session: self.session.clone(),
            request_id: Uuid::new_v4().to_string(),
            ..Default::default()
        };
        let create = by_itself(create, within);
        self.client.create_lock_ref(create).await.map(drop)
    }

    async fn renew(
        mut self,
        (first, every): (Instant, Duration),
        measure_from: Instant,
        mut stopped: watch::Receiver<bool>,
    ) {
        let mut due = first;
        loop {
            let is_last = tokio::select! {
                () = sleep_until(due) => false,
                _ = stopped.wait_for(|stopped| *stopped) => true,
            };
            let ask = RenewSessionRequest {
                session: self.session.clone(),
            };
            let ask = by_itself(ask, self.workload.call_within);
            match self.client.renew_session(ask).await {
                Ok(_) if due >= measure_from && !is_last => {
                    let took = due.elapsed();
                    let mut measured = self.measured.lock();
                    measured.record(Phase::Renew, took);
                }
                Ok(_) => {}
                Err(status) => {
                    self.failed(&status);
                    // It is lost.
                    if matches!(status.code(), Code::NotFound | Code::FailedPrecondition) {
                        return;
                    }
                }
            }
            if is_last {
                break;
            }
            due += every;
        }
        let close = CloseSessionRequest {
            session: self.session.clone(),
        };
        let close = by_itself(close, self.workload.call_within);
        if let Err(status) = self.client.close_session(close).await {
            self.failed(&status);
        }
    }

    fn failed(&self, status: &Status) {
        let mut measured = self.measured.lock();
        measured.fail(&Failure::answered(Phase::Renew, status));
    }
}
