//! Backup: the contents of the store at one moment, as a stream of parts.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use fermata_proto::BackupResponse;
use futures_util::Stream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

use super::stopping::Stopping;
use super::{AccessCheck, access_check, status};
use crate::access::{Login, Scope, Verbs};
use crate::engine::{BackupParts, Engine};

/// One at a time: each reads all that there is, and keeps the pages that are replaced meanwhile.
#[derive(Clone)]
pub struct Backups(Arc<Semaphore>);

impl Backups {
    /// None is being made.
    pub fn new() -> Backups {
        Backups(Arc::new(Semaphore::new(1)))
    }

    /// Begins a backup for a caller with these permissions on everything, for as long as it has them.
    pub async fn begin(
        &self,
        engine: &Engine,
        stopping: Stopping,
        (access, login, verbs): (AccessCheck, Login, Verbs),
    ) -> Result<BackupStream, Status> {
        access.check_scope(&login, verbs, Scope::Everything)?;
        let turn = Arc::clone(&self.0).try_acquire_owned();
        let turn = turn.map_err(|_| status::one_backup())?;
        let parts = engine.back_up().await;
        let parts = parts.map_err(|error| status::of_engine(&error))?;
        let Some(parts) = parts else {
            return Err(status::no_backups());
        };
        access_check::backup_begun(&login);
        let of = login.clone();
        Ok(BackupStream {
            parts: Some(parts),
            to_end: Box::pin(async move {
                let mut stopping = stopping;
                let may = || access.check_scope(&login, verbs, Scope::Everything);
                tokio::select! {
                    biased;
                    () = stopping.stopped() => status::stopping(),
                    refused = access.until_refused(may) => refused,
                }
            }),
            login: of,
            came: Err(None),
            _turn: turn,
        })
    }
}

/// The parts of a backup, until all were taken, this replica stops, its caller loses the permission, or it fails.
pub struct BackupStream {
    parts: Option<BackupParts>,
    to_end: Pin<Box<dyn Future<Output = Status> + Send>>,
    login: Login,
    /// Its end; without a status if the caller went away.
    came: Result<(), Option<Status>>,
    _turn: OwnedSemaphorePermit,
}

impl Drop for BackupStream {
    fn drop(&mut self) {
        let came = self.came.as_ref().map_err(Option::as_ref);
        access_check::backup_ended(&self.login, came.copied());
    }
}

impl Stream for BackupStream {
    type Item = Result<BackupResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let Some(parts) = &mut this.parts else {
            return Poll::Ready(None);
        };
        let failed = match this.to_end.as_mut().poll(cx) {
            Poll::Ready(status) => status,
            Poll::Pending => match parts.poll_next(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => {
                    this.parts = None;
                    this.came = Ok(());
                    return Poll::Ready(None);
                }
                Poll::Ready(Some(Ok(part))) => {
                    let part = BackupResponse { part };
                    return Poll::Ready(Some(Ok(part)));
                }
                Poll::Ready(Some(Err(error))) => status::of_engine(&error),
            },
        };
        this.parts = None;
        this.came = Err(Some(failed.clone()));
        Poll::Ready(Some(Err(failed)))
    }
}
