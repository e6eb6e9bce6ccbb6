//! Backup: what the store had at one moment, as a stream of parts.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use fermata_proto::BackupResponse;
use futures_util::Stream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

use super::status;
use super::stopping::Stopping;
use crate::engine::{BackupParts, Engine};

/// One at a time: each reads all that there is, and keeps the pages that are replaced meanwhile.
#[derive(Clone)]
pub struct Backups(Arc<Semaphore>);

impl Backups {
    /// None is being made.
    pub fn new() -> Backups {
        Backups(Arc::new(Semaphore::new(1)))
    }

    /// Begins one.
    pub async fn begin(&self, engine: &Engine, stopping: Stopping) -> Result<BackupStream, Status> {
        let turn = Arc::clone(&self.0).try_acquire_owned();
        let turn = turn.map_err(|_| status::one_backup())?;
        let parts = engine.back_up().await;
        let parts = parts.map_err(|error| status::of_engine(&error))?;
        let Some(parts) = parts else {
            return Err(status::no_backups());
        };
        Ok(BackupStream {
            parts: Some(parts),
            stopped: Box::pin(async move {
                let mut stopping = stopping;
                stopping.stopped().await;
            }),
            _turn: turn,
        })
    }
}

/// The parts of one, until all were taken, this replica stops, or it fails.
pub struct BackupStream {
    parts: Option<BackupParts>,
    stopped: Pin<Box<dyn Future<Output = ()> + Send>>,
    _turn: OwnedSemaphorePermit,
}

impl Stream for BackupStream {
    type Item = Result<BackupResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let Some(parts) = &mut this.parts else {
            return Poll::Ready(None);
        };
        let failed = match this.stopped.as_mut().poll(cx) {
            Poll::Ready(()) => status::stopping(),
            Poll::Pending => match parts.poll_next(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => {
                    this.parts = None;
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
        Poll::Ready(Some(Err(failed)))
    }
}
