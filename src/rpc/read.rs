//! Get: the value of a key, read without a lock.

use fermata_proto::{GetRequest, GetResponse};
use tonic::Status;

use super::calls::CallContext;
use super::deadline::within;
use super::route::Router;
use super::{answer, parse};
use crate::access::{Scope, Verb};
use crate::trace;

/// Reads as any replica may.
pub async fn read(
    router: &Router,
    ask: GetRequest,
    context: &CallContext,
) -> Result<GetResponse, Status> {
    let id = parse::key_id(&ask.key, &ask.table, router.limits())?;
    trace::record("table", &id.table);
    let (access, scope) = (router.access(), Scope::Key(&id));
    access.check_scope(&context.login, Verb::Read.into(), scope)?;
    let answer_by = context.deadline.answer_within(router.limits().call_max());
    let read = match router.leaderless().of(&id.table) {
        Some(protocol) => within(answer_by, protocol.read(&id)).await?,
        None => within(answer_by, router.engine().read(&id, context.deadline.age())).await?,
    };
    let (value, exists) = answer::value(Some(read));
    Ok(GetResponse { value, exists })
}
