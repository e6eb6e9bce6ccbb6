//! The answers of a stream of calls, frame by frame.

use std::pin::Pin;
use std::task::{Context, Poll};

use fermata_proto::PipelineResponse;
use futures_util::Stream;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tonic::Status;

use crate::rpc::budget::Charge;

/// A frame of answers, which counts until it is taken.
pub(super) struct MadeFrame {
    pub(super) frame: PipelineResponse,
    pub(super) _charge: Option<Charge>,
}

/// The answers to a stream of calls. The calls that are in flight end with it.
pub struct Answers {
    pub(super) frames: mpsc::Receiver<Result<MadeFrame, Status>>,
    pub(super) task: AbortHandle,
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Stream for Answers {
    type Item = Result<PipelineResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let frame = self.frames.poll_recv(cx);
        frame.map(|frame| frame.map(|frame| frame.map(|made| made.frame)))
    }
}
