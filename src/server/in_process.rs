//! LockService for callers in this process: what a connection brings to it, without connections.

use tonic::service::Routes;
use tower::Layer as _;

use super::Server;
use crate::rpc::call_layer::{CallLayer, Calls};
use crate::rpc::stopping::{Stop, Stopping};

/// The LockService of one engine, called without sockets and HTTP/2; all else is as for any caller. Streams end when
/// this is dropped.
pub struct InProcess {
    service: Calls<Routes>,
    _end_streams: Stop,
}

impl Server {
    /// For callers in this process only. Whoever stops the engine waits for their calls first.
    pub fn in_process(self) -> InProcess {
        let (end_streams, stopping) = Stopping::pair();
        let layer = CallLayer::new(self.engine.limits(), stopping.clone());
        InProcess {
            service: layer.layer(Routes::new(self.lock_service(stopping)).prepare()),
            _end_streams: end_streams,
        }
    }
}

impl InProcess {
    /// What a generated client takes in the place of a channel. Clones share it.
    pub fn service(&self) -> Calls<Routes> {
        self.service.clone()
    }
}
