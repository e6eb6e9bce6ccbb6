//! What a start does before the first call: in a store that only one process can have open, every older
//! replica is proved down, so what it served is taken over at once and begins a fresh TTL.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::oneshot;

use super::actor::Msg;
use super::api::EngineError;
use super::inner::Inner;
use crate::lock::{KeyId, TableName};
use crate::store::{SessionRow, SessionSwap, StoreError};

const PAGE: usize = 1_000;
const AT_ONCE: usize = 256;

/// What was found and taken over.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Recovered {
    pub keys: usize,
    pub sessions: usize,
}

/// Takes over all sessions, then all keys with a live entry.
pub(super) async fn recover(inner: &Arc<Inner>) -> Result<Recovered, EngineError> {
    let mut recovered = Recovered::default();
    let closed = take_sessions(inner, &mut recovered).await?;
    for table in &inner.tables {
        take_keys(inner, table, &mut recovered).await?;
    }
    for row in closed {
        inner.store.forget_session(row.id).await.map_err(failed)?;
    }
    Ok(recovered)
}

fn failed(error: StoreError) -> EngineError {
    EngineError::Unavailable(error.to_string())
}

/// Takes over the open sessions; the closed ones, to be forgotten once nothing lives by them.
async fn take_sessions(
    inner: &Arc<Inner>,
    recovered: &mut Recovered,
) -> Result<Vec<SessionRow>, EngineError> {
    let mut closed = Vec::new();
    let mut after = None;
    loop {
        let rows = inner
            .store
            .list_sessions(after, PAGE)
            .await
            .map_err(failed)?;
        after = rows.last().map(|row| row.id);
        let last_page = rows.len() < PAGE;
        let (open, ended): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.open);
        closed.extend(ended);
        recovered.sessions += open.len();
        let mut taken = futures_util::stream::iter(open)
            .map(|row| take_session(inner, row))
            .buffer_unordered(AT_ONCE);
        while let Some(result) = taken.next().await {
            result?;
        }
        if last_page {
            return Ok(closed);
        }
    }
}

async fn take_session(inner: &Arc<Inner>, row: SessionRow) -> Result<(), EngineError> {
    let expected = row.epoch;
    let row = SessionRow {
        replica: inner.replica,
        epoch: expected.saturating_add(1),
        ..row
    };
    match inner.store.swap_session(expected, &row).await {
        SessionSwap::Applied => {}
        SessionSwap::Conflict(_) => {
            return Err(EngineError::Unavailable(
                "another process changes the sessions".to_owned(),
            ));
        }
        SessionSwap::Unknown(error) | SessionSwap::NotStarted(error) => return Err(failed(error)),
    }
    // Over the limit only if that was lowered since: then the session ends, as if it had expired.
    if inner.leases.add_session(&row, Duration::ZERO).is_err() {
        tracing::warn!(session = %row.id, "more sessions than sessions_max; ending this one");
    }
    Ok(())
}

async fn take_keys(
    inner: &Arc<Inner>,
    table: &TableName,
    recovered: &mut Recovered,
) -> Result<(), EngineError> {
    let mut after = None;
    loop {
        let keys = inner
            .store
            .list_live(table, after.as_ref(), PAGE)
            .await
            .map_err(failed)?;
        after = keys.last().map(|listed| listed.key.clone());
        let last_page = keys.len() < PAGE;
        recovered.keys += keys.len();
        let mut settled = futures_util::stream::iter(keys)
            .map(|listed| {
                let id = Arc::new(KeyId {
                    table: table.clone(),
                    key: listed.key,
                });
                settle(inner, id)
            })
            .buffer_unordered(AT_ONCE);
        while let Some(result) = settled.next().await {
            result?;
        }
        if last_page {
            return Ok(());
        }
    }
}

async fn settle(inner: &Arc<Inner>, id: Arc<KeyId>) -> Result<(), EngineError> {
    let (reply, settled) = oneshot::channel();
    inner.keys.send(inner, &id, Msg::Settle { reply })?;
    settled.await.map_err(|_| super::actor::no_answer())
}
