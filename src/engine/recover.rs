//! What a start does before the first call, in a store that one process has for itself: every older replica is gone, so
//! what it served is taken over at once (H3) and begins a fresh TTL.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::StreamExt;

use super::api::EngineError;
use super::sessions::Sessions;
use super::shell::KeyShell;
use crate::key::machine::Call;
use crate::lock::{KeyId, TableName};
use crate::store::{KeyStore, SessionRow, SessionSwap, StoreError};

const PAGE: usize = 1_000;
const AT_ONCE: usize = 256;

/// What was found and taken over.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Recovered {
    pub keys: usize,
    pub sessions: usize,
}

/// Takes over all sessions, then all keys with a live entry.
pub(super) async fn recover(
    shell: &Arc<KeyShell>,
    sessions: &Sessions,
    keys: &dyn KeyStore,
    tables: &BTreeSet<TableName>,
) -> Result<Recovered, EngineError> {
    let mut recovered = Recovered::default();
    let closed = take_sessions(sessions, &mut recovered).await?;
    for table in tables {
        take_keys(shell, keys, table, &mut recovered).await?;
    }
    for row in closed {
        let forgotten = sessions.rows.forget_session(row.id).await;
        forgotten.map_err(failed)?;
    }
    Ok(recovered)
}

fn failed(error: StoreError) -> EngineError {
    EngineError::Unavailable(error.to_string())
}

/// Takes over the open sessions; the closed ones, to be forgotten once nothing lives by them.
async fn take_sessions(
    sessions: &Sessions,
    recovered: &mut Recovered,
) -> Result<Vec<SessionRow>, EngineError> {
    let mut closed = Vec::new();
    let mut after = None;
    loop {
        let rows = sessions.rows.list_sessions(after, PAGE).await;
        let rows = rows.map_err(failed)?;
        after = rows.last().map(|row| row.id);
        let last_page = rows.len() < PAGE;
        let (open, ended): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.open);
        closed.extend(ended);
        recovered.sessions += open.len();
        let mut taken = futures_util::stream::iter(open)
            .map(|row| take_session(sessions, row))
            .buffer_unordered(AT_ONCE);
        while let Some(result) = taken.next().await {
            result?;
        }
        if last_page {
            return Ok(closed);
        }
    }
}

/// Takes an open session over. A limit that was lowered since ends none.
async fn take_session(sessions: &Sessions, row: SessionRow) -> Result<(), EngineError> {
    let expected = row.epoch;
    let row = SessionRow {
        replica: sessions.local.id,
        epoch: expected.saturating_add(1),
        ..row
    };
    match sessions.rows.swap_session(expected, &row).await {
        SessionSwap::Applied => {
            let table = &sessions.table;
            table.keep(&row, sessions.time.now(), table.reserve_own());
            Ok(())
        }
        SessionSwap::Conflict(_) => Err(EngineError::Unavailable(
            "another process changes the sessions".to_owned(),
        )),
        SessionSwap::Unknown(error) | SessionSwap::NotStarted(error) => Err(failed(error)),
    }
}

async fn take_keys(
    shell: &Arc<KeyShell>,
    store: &dyn KeyStore,
    table: &TableName,
    recovered: &mut Recovered,
) -> Result<(), EngineError> {
    let mut after = None;
    loop {
        let keys = store.list_live(table, "", after.as_ref(), PAGE).await;
        let keys = keys.map_err(failed)?;
        after = keys.last().map(|listed| listed.key.clone());
        let last_page = keys.len() < PAGE;
        recovered.keys += keys.len();
        let mut taken = futures_util::stream::iter(keys)
            .map(|listed| {
                let id = Arc::new(KeyId {
                    table: table.clone(),
                    key: listed.key,
                });
                let from = listed.state.home.map_or(shell.local.id, |home| home.replica);
                async move {
                    match shell.asked(&id, Call::TakeOver { from }).await {
                        // Of a limit that was lowered since: it is taken over by its next call.
                        Err(error @ EngineError::Exhausted { .. }) => {
                            tracing::warn!(key = %id, %error, "could not recover a key; its next call retries");
                            Ok(())
                        }
                        taken => taken.map(drop),
                    }
                }
            })
            .buffer_unordered(AT_ONCE);
        while let Some(result) = taken.next().await {
            result?;
        }
        if last_page {
            return Ok(());
        }
    }
}
