//! RowLockService: locks on rows, which no other replica needs to serve.

use std::collections::BTreeSet;

use fermata_proto::row_lock_service_server::RowLockService;
use fermata_proto::{
    self as proto, AcquireAndReadRowRequest, AcquireAndReadRowResponse, ReadLockColumnsRequest,
    ReadLockColumnsResponse, ReleaseAllRequest, ReleaseAllResponse, ReleaseExpiredRequest,
    ReleaseExpiredResponse, ReleaseWithMutationRequest, ReleaseWithMutationResponse, VerifyRequest,
    VerifyResponse,
};
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use super::calls::{CallContext, Target};
use super::deadline::within;
use super::parse::Invalid;
use super::route::Router;
use super::{access_check, answer, parse, status};
use crate::access::{Scope, Verb, Verbs};
use crate::engine::{CreateCall, EngineError, LiveBy};
use crate::limits::Limits;
use crate::lock::{KeyId, LockRef, Mode, Secret, TableName};
use crate::protocol::{AcquireRow, Backoff, ColumnPrefix, LockColumn, RowChange};
use crate::trace;

/// RowLockService on the rows of this replica's tables.
#[derive(Clone)]
pub struct RowLockServiceRpc {
    router: Router,
}

impl RowLockServiceRpc {
    /// By this router.
    pub fn new(router: Router) -> Self {
        RowLockServiceRpc { router }
    }

    /// The rows of a table.
    fn rows(&self, table: &TableName) -> Result<&ColumnPrefix, Status> {
        let tables = self.router.leaderless();
        tables.rows_of(table).ok_or_else(|| {
            let protocol = tables.of(table).map(|table| table.kind().name());
            let error = match protocol {
                None if !self.router.engine().tables().contains(table) => {
                    EngineError::UnknownTable(table.to_string())
                }
                protocol => EngineError::NotInProtocol {
                    protocol: protocol.unwrap_or("home"),
                    what: "lock columns: RowLockService is for the protocol column-prefix",
                },
            };
            status::of_engine(&error)
        })
    }

    /// The row of a call whose caller has these permissions, with the table's rows.
    fn row(
        &self,
        context: &CallContext,
        (key, table): (&str, &str),
        ways: &[Verbs],
    ) -> Result<(KeyId, &ColumnPrefix), Status> {
        let id = parse::key_id(key, table, self.router.limits())?;
        trace::record("table", &id.table);
        let access = self.router.access();
        access.check_any(&context.login, ways, Scope::Key(&id))?;
        let rows = self.rows(&id.table)?;
        Ok((id, rows))
    }

    fn answer_by(&self, context: &CallContext) -> Instant {
        let longest = self.router.limits().call_max();
        context.deadline.answer_within(longest)
    }

    /// The lockRef of a call whose caller has these permissions, with the table's rows.
    fn lock_ref(
        &self,
        context: &CallContext,
        text: &str,
        needs: Verbs,
    ) -> Result<(LockRef, &ColumnPrefix), Status> {
        let lock_ref = parse::lock_ref(text, context.identity())?;
        trace::record("entry", &lock_ref);
        let target = Target::LockRef(lock_ref.clone());
        self.router.access().check(&context.login, needs, &target)?;
        let rows = self.rows(&lock_ref.table)?;
        Ok((lock_ref, rows))
    }
}

/// The lock that a request asks for, and its secret.
fn asked(
    ask: AcquireAndReadRowRequest,
    id: KeyId,
    context: &CallContext,
) -> Result<(AcquireRow, Secret), Invalid> {
    let (limits, identity) = (&context.limits, context.identity());
    let request_id = parse::request_id(&ask.request_id, || context.ids.uuid())?;
    let secret = Secret::of_entry(identity, &id, request_id);
    let ttl_ms = parse::expire_after_ms(ask.expire_after.as_ref(), limits)?;
    let backoff = ask.backoff.unwrap_or_default();
    let call = CreateCall {
        tag: secret.tag(identity),
        id,
        live_by: LiveBy::Ttl(ttl_ms),
        mode: Mode::Exclusive,
        owner: parse::owner(ask.owner, limits)?,
        identity: identity.to_owned(),
        share_of: context.login.share_of(),
        read_value: ask.read_row,
        waited: context.deadline.age(),
    };
    let row = AcquireRow {
        call,
        ttl_ms,
        column_ttl_ms: parse::column_ttl_ms(ask.column_ttl.as_ref(), ttl_ms)?,
        lock_id: parse::lock_id(ask.lock_id, limits)?,
        fail_on_stale: ask.fail_on_stale,
        reads_row: ask.read_row,
        backoff: Backoff {
            retries: backoff.retries,
            pause: parse::pause("backoff.pause", backoff.pause.as_ref(), limits)?
                .unwrap_or_default(),
            pause_max: parse::pause("backoff.pause_max", backoff.pause_max.as_ref(), limits)?,
        },
    };
    Ok((row, secret))
}

/// Changes of data columns.
fn changes(
    mutations: Vec<proto::RowMutation>,
    rows: &ColumnPrefix,
    limits: &Limits,
) -> Result<Vec<RowChange>, Invalid> {
    parse::mutations(mutations.len())?;
    let mut names = BTreeSet::new();
    let changes = mutations.into_iter().map(|mutation| {
        let is_data = rows.is_data(&mutation.column);
        let is_new = names.insert(mutation.column.clone());
        parse::row_change(mutation, (is_data, is_new), limits)
    });
    let mut changes: Vec<RowChange> = changes.collect::<Result<_, _>>()?;
    // Their order means nothing, and each one is a statement of its own.
    changes.sort_by_key(|change| matches!(change, RowChange::Delete { .. }));
    Ok(changes)
}

fn lock_column(column: LockColumn, is_stale: bool) -> proto::LockColumn {
    let entry = column.entry.unwrap_or_default();
    proto::LockColumn {
        name: column.column,
        expire_time: answer::end_us(column.ends_at_us),
        stale: is_stale,
        trying: column.is_attempt,
        owner: entry.owner,
        identity: entry.identity,
    }
}

#[tonic::async_trait]
impl RowLockService for RowLockServiceRpc {
    async fn acquire_and_read_row(
        &self,
        request: Request<AcquireAndReadRowRequest>,
    ) -> Result<Response<AcquireAndReadRowResponse>, Status> {
        let context = self.router.context(&request);
        let ask = request.into_inner();
        let needs = Verbs::from(Verb::Lock).and(ask.read_row, Verb::Read);
        let (id, rows) = self.row(&context, (&ask.key, &ask.table), &[needs])?;
        let (ask, secret) = asked(ask, id, &context)?;
        let limits = self.router.limits();
        let longest = limits.wait_max() + limits.call_max();
        let answer_by = context.deadline.answer_within(longest);
        let until = context.deadline.wait_until().unwrap_or(answer_by);
        let acquired = within(answer_by, rows.acquire_row(&ask, until.min(answer_by))).await?;
        trace::record("entry", &acquired.lock_ref);
        let columns = acquired.columns.into_iter();
        // It counts from the start of the call, and the tries took their time.
        let (at, left) = acquired.held;
        let valid_for = left + context.deadline.age().saturating_sub(at.elapsed());
        Ok(Response::new(AcquireAndReadRowResponse {
            lock_ref: acquired.lock_ref.text(&secret),
            valid_for: Some(answer::duration(valid_for)),
            retries: acquired.retries,
            columns: columns
                .map(|(name, value)| proto::RowColumn { name, value })
                .collect(),
        }))
    }

    async fn release_with_mutation(
        &self,
        request: Request<ReleaseWithMutationRequest>,
    ) -> Result<Response<ReleaseWithMutationResponse>, Status> {
        let context = self.router.context(&request);
        let ask = request.into_inner();
        let needs = Verbs::from(Verb::Lock).and(!ask.mutations.is_empty(), Verb::Write);
        let (lock_ref, rows) = self.lock_ref(&context, &ask.lock_ref, needs)?;
        let changes = changes(ask.mutations, rows, self.router.limits())?;
        let answer_by = self.answer_by(&context);
        let already_released = within(answer_by, rows.release_row(&lock_ref, changes)).await?;
        Ok(Response::new(ReleaseWithMutationResponse {
            already_released,
        }))
    }

    async fn verify(
        &self,
        request: Request<VerifyRequest>,
    ) -> Result<Response<VerifyResponse>, Status> {
        let context = self.router.context(&request);
        let ask = request.into_inner();
        let (lock_ref, rows) = self.lock_ref(&context, &ask.lock_ref, Verb::Lock.into())?;
        let answer_by = self.answer_by(&context);
        let left = within(answer_by, rows.verify_row(&lock_ref, ask.fail_on_stale)).await?;
        Ok(Response::new(VerifyResponse {
            valid_for: Some(answer::duration(left)),
        }))
    }

    async fn read_lock_columns(
        &self,
        request: Request<ReadLockColumnsRequest>,
    ) -> Result<Response<ReadLockColumnsResponse>, Status> {
        let context = self.router.context(&request);
        let ask = request.into_inner();
        let ways = [Verb::Lock.into(), Verb::Admin.into()];
        let (id, rows) = self.row(&context, (&ask.key, &ask.table), &ways)?;
        let answer_by = self.answer_by(&context);
        let columns = within(answer_by, rows.read_lock_columns(&id)).await?;
        Ok(Response::new(ReadLockColumnsResponse {
            columns: columns
                .into_iter()
                .map(|(column, is_stale)| lock_column(column, is_stale))
                .collect(),
        }))
    }

    async fn release_expired(
        &self,
        request: Request<ReleaseExpiredRequest>,
    ) -> Result<Response<ReleaseExpiredResponse>, Status> {
        let context = self.router.context(&request);
        let ask = request.into_inner();
        let ways = [Verb::Lock.into()];
        let (id, rows) = self.row(&context, (&ask.key, &ask.table), &ways)?;
        let answer_by = self.answer_by(&context);
        let removed = within(answer_by, rows.release_expired(&id)).await?;
        let removed = removed.into_iter();
        Ok(Response::new(ReleaseExpiredResponse {
            removed: removed.map(|column| lock_column(column, true)).collect(),
        }))
    }

    async fn release_all(
        &self,
        request: Request<ReleaseAllRequest>,
    ) -> Result<Response<ReleaseAllResponse>, Status> {
        let context = self.router.context(&request);
        let ask = request.into_inner();
        let ways = [Verb::Admin.into()];
        let (id, rows) = self.row(&context, (&ask.key, &ask.table), &ways)?;
        let limits = self.router.limits();
        let why = parse::reason(ask.reason, limits)?;
        let by = parse::forced_by(ask.forced_by, limits)?;
        let answer_by = self.answer_by(&context);
        let came = within(answer_by, rows.release_all(&id, &by, &why)).await;
        let count = came.as_ref().map(Vec::len);
        access_check::row_forced(&context.login, &id, (&by, &why), count);
        let removed = came?.into_iter();
        Ok(Response::new(ReleaseAllResponse {
            removed: removed
                .map(|(column, is_stale)| lock_column(column, is_stale))
                .collect(),
        }))
    }
}
