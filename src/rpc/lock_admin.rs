//! LockAdmin: shows locks and their holders, and ends an entry or a session by force.

use std::sync::Arc;
use std::time::Duration;

use fermata_proto::lock_admin_server::LockAdmin;
use fermata_proto::{
    BackupRequest, DescribeActivityRequest, DescribeActivityResponse, DescribeLockRequest,
    DescribeLockResponse, EndSessionRequest, EndSessionResponse, ForceReleaseRequest,
    ForceReleaseResponse, ListLocksRequest, ListLocksResponse, ListReplicasRequest,
    ListReplicasResponse, ListSessionsRequest, ListSessionsResponse, ListTablesRequest,
    ListTablesResponse, ReplicaActivity, ReplicaInfo, SetLogFilterRequest, SetLogFilterResponse,
    Table,
};
use futures_util::{StreamExt as _, stream};
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use tracing::{Instrument as _, Span};
use uuid::Uuid;

use super::backup::{BackupStream, Backups};
use super::calls::{ByForce, EndSession, ForceRelease};
use super::deadline::{Deadline, by, within};
use super::listing_turns::listing_turn;
use super::locks::{ASKED_AT_ONCE, DescribeLock, ListLocks, asked_within};
use super::page::{self, Listing};
use super::parse::{FieldProblem, Invalid};
use super::route::Router;
use super::stopping::Stopping;
use super::{access_check, answer, status};
use crate::access::{Scope, Verb, Verbs};
use crate::lock::{ReplicaId, SessionId};
use crate::trace;

/// How many keys of each replica are described by default.
const BUSIEST_DEFAULT: usize = 20;
/// LockAdmin on an engine.
#[derive(Clone)]
pub struct LockAdminRpc {
    router: Router,
    backups: Backups,
    stopping: Stopping,
    log_filter: Option<LogFilterSetter>,
}

/// Puts a filter of log events in force, and returns the one before, or why it is malformed.
pub type LogFilterSetter = Arc<dyn Fn(&str) -> Result<String, String> + Send + Sync>;

/// The size of such a filter, in bytes.
const LOG_FILTER_BYTES_MAX: usize = 1024;

impl LockAdminRpc {
    /// By this router, until this replica stops.
    pub fn new(router: Router, stopping: Stopping) -> Self {
        LockAdminRpc {
            backups: Backups::new(),
            stopping,
            router,
            log_filter: None,
        }
    }

    /// With a log whose filter can be set.
    #[must_use]
    pub fn with_log_filter(self, log_filter: Option<LogFilterSetter>) -> Self {
        LockAdminRpc { log_filter, ..self }
    }

    /// Whether the caller may see all of that.
    fn may_see<T>(&self, request: &Request<T>, scope: Scope<'_>) -> Result<(), Status> {
        let context = self.router.context(request);
        let access = self.router.access();
        access.check_scope(&context.login, Verb::Admin.into(), scope)
    }

    /// The activity of every other live replica: each is asked for a moment.
    async fn elsewhere(
        &self,
        keys_max: usize,
        within: Duration,
    ) -> Result<Vec<ReplicaActivity>, Status> {
        let peers = self.router.engine().live_peers();
        let peers = peers.map_err(|error| status::of_engine(&error))?;
        let asked = peers.into_iter().map(|peer| async move {
            let answered = match self.router.peers() {
                Some(peers) => peers.activity(&peer, keys_max, within).await,
                None => None,
            };
            answered.unwrap_or_else(|| ReplicaActivity {
                replica: Some(ReplicaInfo {
                    replica: peer.id.to_string(),
                    ..ReplicaInfo::default()
                }),
                ..ReplicaActivity::default()
            })
        });
        Ok(stream::iter(asked).buffered(ASKED_AT_ONCE).collect().await)
    }

    /// In a task of its own: it is in the audit log even if the caller hangs up.
    async fn force<C: ByForce>(
        &self,
        request: Request<C::Ask>,
    ) -> Result<Response<C::Answer>, Status> {
        let context = self.router.context(&request);
        let force = C::parse(request.into_inner(), &context)?;
        let (router, span) = (self.router.clone(), Span::current());
        let made = async move {
            let answer_by = force.answer_by(&context);
            let came = router.make(&force, &context, answer_by).await;
            let answer = came.as_ref().map(|served| &served.answer);
            access_check::forced(&context.login, &force, answer);
            came
        };
        let came = tokio::spawn(trace::carried(made.instrument(span))).await;
        let served = came.map_err(|_| status::outcome_unknown())??;
        Ok(served.into_response())
    }

    fn answer_by<T>(&self, request: &Request<T>) -> Instant {
        Deadline::of_request(request.extensions()).answer_within(self.router.limits().call_max())
    }
}

#[tonic::async_trait]
impl LockAdmin for LockAdminRpc {
    async fn list_tables(
        &self,
        request: Request<ListTablesRequest>,
    ) -> Result<Response<ListTablesResponse>, Status> {
        let ask = request.into_inner();
        let size = page::size(ask.page_size, self.router.limits())?;
        let listing = Listing::new("ListTables", &[]);
        let after: Option<String> = listing.after(&ask.page_token)?;
        let tables = self.router.engine().tables();
        let tables = tables.iter().chain(self.router.leaderless().names());
        let mut names: Vec<String> = tables.map(ToString::to_string).collect();
        names.sort();
        names.dedup();
        let above = |name: &String| after.as_ref().is_none_or(|after| name > after);
        let mut names = names.into_iter().filter(above).peekable();
        let tables: Vec<Table> = names
            .by_ref()
            .take(size)
            .map(|name| Table { name })
            .collect();
        let next_page_token = match (tables.last(), names.peek()) {
            (Some(last), Some(_)) => listing.token(&last.name),
            (None, _) | (_, None) => String::new(),
        };
        Ok(Response::new(ListTablesResponse {
            tables,
            next_page_token,
        }))
    }

    async fn list_locks(
        &self,
        request: Request<ListLocksRequest>,
    ) -> Result<Response<ListLocksResponse>, Status> {
        let answer_by = self.answer_by(&request);
        let list = ListLocks::parse(request.get_ref().clone(), self.router.limits())?;
        self.may_see(&request, list.scope())?;
        let _turn = listing_turn(&request, answer_by).await?;
        let listed = within(answer_by, list.answer(&self.router, answer_by)).await?;
        Ok(Response::new(listed))
    }

    async fn describe_lock(
        &self,
        request: Request<DescribeLockRequest>,
    ) -> Result<Response<DescribeLockResponse>, Status> {
        let answer_by = self.answer_by(&request);
        let describe = DescribeLock::parse(request.get_ref().clone(), self.router.limits())?;
        // Whoever may lock the key may see for whom it waits.
        let login = self.router.context(&request).login;
        let either = [Verb::Lock.into(), Verb::Admin.into()];
        let access = self.router.access();
        access.check_any(&login, &either, Scope::Key(describe.id()))?;
        trace::record("table", &describe.id().table);
        let _turn = listing_turn(&request, answer_by).await?;
        let shown = within(answer_by, describe.answer(&self.router, answer_by)).await?;
        Ok(Response::new(shown))
    }

    async fn force_release(
        &self,
        request: Request<ForceReleaseRequest>,
    ) -> Result<Response<ForceReleaseResponse>, Status> {
        self.force::<ForceRelease>(request).await
    }

    async fn end_session(
        &self,
        request: Request<EndSessionRequest>,
    ) -> Result<Response<EndSessionResponse>, Status> {
        self.force::<EndSession>(request).await
    }

    async fn list_sessions(
        &self,
        request: Request<ListSessionsRequest>,
    ) -> Result<Response<ListSessionsResponse>, Status> {
        self.may_see(&request, Scope::Everything)?;
        let answer_by = self.answer_by(&request);
        let _turn = listing_turn(&request, answer_by).await?;
        let ask = request.into_inner();
        let size = page::size(ask.page_size, self.router.limits())?;
        let listing = Listing::new("ListSessions", &[]);
        let after = listing.after::<Uuid>(&ask.page_token)?.map(SessionId);
        let found = within(answer_by, self.router.engine().list_sessions(after, size)).await?;
        let (sessions, next) = page::filled(found, |found| found.row.id, answer::session);
        Ok(Response::new(ListSessionsResponse {
            sessions,
            next_page_token: next.map_or_else(String::new, |id| listing.token(&id.to_string())),
        }))
    }

    async fn list_replicas(
        &self,
        request: Request<ListReplicasRequest>,
    ) -> Result<Response<ListReplicasResponse>, Status> {
        self.may_see(&request, Scope::Everything)?;
        let answer_by = self.answer_by(&request);
        let _turn = listing_turn(&request, answer_by).await?;
        let ask = request.into_inner();
        let size = page::size(ask.page_size, self.router.limits())?;
        let listing = Listing::new("ListReplicas", &[]);
        let after = listing.after::<Uuid>(&ask.page_token)?.map(ReplicaId);
        let found = within(answer_by, self.router.engine().list_replicas(after, size)).await?;
        let answering = self.router.engine().replica();
        let (replicas, next) =
            page::filled(found, |row| row.id, |row| answer::replica(row, answering));
        Ok(Response::new(ListReplicasResponse {
            replicas,
            next_page_token: next.map_or_else(String::new, |id| listing.token(&id.to_string())),
        }))
    }

    async fn describe_activity(
        &self,
        request: Request<DescribeActivityRequest>,
    ) -> Result<Response<DescribeActivityResponse>, Status> {
        self.may_see(&request, Scope::Everything)?;
        let answer_by = self.answer_by(&request);
        let _turn = listing_turn(&request, answer_by).await?;
        let keys_max = request.into_inner().keys_max;
        let keys_max = page::most("keys_max", keys_max, BUSIEST_DEFAULT, self.router.limits())?;
        let did = self.router.engine().activity(keys_max);
        let did = did.map_err(|error| status::of_engine(&error))?;
        let mut replicas = vec![answer::activity(did, self.router.engine().replica())];
        // One that is silent leaves its place in the answer empty, and costs no more than that.
        let within = asked_within(answer_by);
        replicas.append(&mut by(answer_by, self.elsewhere(keys_max, within)).await?);
        Ok(Response::new(DescribeActivityResponse { replicas }))
    }

    async fn set_log_filter(
        &self,
        request: Request<SetLogFilterRequest>,
    ) -> Result<Response<SetLogFilterResponse>, Status> {
        self.may_see(&request, Scope::Everything)?;
        let login = self.router.context(&request).login;
        let filter = request.into_inner().filter;
        let problem = |problem| Invalid {
            field: "filter",
            problem,
        };
        if filter.len() > LOG_FILTER_BYTES_MAX {
            return Err(problem(FieldProblem::TooLarge {
                given: filter.len(),
                unit: "bytes",
                max: LOG_FILTER_BYTES_MAX,
                limit: "fixed",
            })
            .into());
        }
        let set = self.log_filter.as_ref();
        let set = set.map_or_else(
            || Err("this server has no log".to_owned()),
            |set| set(&filter),
        );
        let previous = set.map_err(|why| problem(FieldProblem::Malformed(why)))?;
        access_check::log_filter_changed(&login, &filter, &previous);
        Ok(Response::new(SetLogFilterResponse {
            replica: self.router.engine().replica().to_string(),
            previous,
        }))
    }

    type BackupStream = BackupStream;

    async fn backup(
        &self,
        request: Request<BackupRequest>,
    ) -> Result<Response<BackupStream>, Status> {
        // It has every value.
        let context = self.router.context(&request);
        let both = Verbs::from(Verb::Admin).and(true, Verb::Read);
        let who = (self.router.access().clone(), context.login, both);
        let parts = self
            .backups
            .begin(self.router.engine(), self.stopping.clone(), who);
        Ok(Response::new(parts.await?))
    }
}
