//! A replica that says what a test wants.

use std::sync::Arc;

use fermata::engine::Peer;
use fermata::lock::ReplicaId;
use fermata::rpc::peer_proto::peer_server::{Peer as PeerService, PeerServer};
use fermata::rpc::peer_proto::{
    DescribeActivityRequest, DescribeActivityResponse, DescribeKeyRequest, DescribeKeyResponse,
    EndSessionsRequest, EndSessionsResponse, ForwardRequest, ForwardResponse, ForwardWatchRequest,
    ForwardWatchResponse, HintRequest, HintResponse, ListKeysRequest, ListKeysResponse,
    RenewSessionRequest, RenewSessionResponse, forward_response,
};
use futures_util::stream;
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tonic::{Request, Response, Status};
use uuid::Uuid;

use crate::peers::peer;

/// A replica that says the same to all.
#[derive(Clone)]
pub struct Says {
    outcome: Option<forward_response::Outcome>,
    pub heard: Arc<Mutex<Vec<ForwardRequest>>>,
}

impl Says {
    pub async fn start(outcome: Option<forward_response::Outcome>) -> (Says, Peer) {
        let says = Says {
            outcome,
            heard: Arc::default(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = peer(
            ReplicaId(Uuid::from_u128(1)),
            listener.local_addr().unwrap(),
        );
        let incoming = stream::unfold(listener, |listener| async {
            Some((listener.accept().await.map(|(io, _)| io), listener))
        });
        let service = PeerServer::new(says.clone());
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(Box::pin(incoming)));
        (says, peer)
    }
}

#[tonic::async_trait]
impl PeerService for Says {
    async fn forward(
        &self,
        request: Request<ForwardRequest>,
    ) -> Result<Response<ForwardResponse>, Status> {
        assert!(request.metadata().contains_key("grpc-timeout"));
        self.heard.lock().await.push(request.into_inner());
        let outcome = self.outcome.clone();
        Ok(Response::new(ForwardResponse { outcome, term: 0 }))
    }

    type ForwardWatchStream = stream::Empty<Result<ForwardWatchResponse, Status>>;

    async fn forward_watch(
        &self,
        _request: Request<ForwardWatchRequest>,
    ) -> Result<Response<Self::ForwardWatchStream>, Status> {
        Ok(Response::new(stream::empty()))
    }

    async fn hint(&self, _request: Request<HintRequest>) -> Result<Response<HintResponse>, Status> {
        Ok(Response::new(HintResponse {}))
    }

    async fn end_sessions(
        &self,
        _request: Request<EndSessionsRequest>,
    ) -> Result<Response<EndSessionsResponse>, Status> {
        Ok(Response::new(EndSessionsResponse::default()))
    }

    async fn renew_session(
        &self,
        _request: Request<RenewSessionRequest>,
    ) -> Result<Response<RenewSessionResponse>, Status> {
        Err(Status::failed_precondition(
            "as a proxy in between would say",
        ))
    }

    async fn describe_activity(
        &self,
        _request: Request<DescribeActivityRequest>,
    ) -> Result<Response<DescribeActivityResponse>, Status> {
        // Never, for as long as anybody asks.
        std::future::pending().await
    }

    async fn describe_key(
        &self,
        _request: Request<DescribeKeyRequest>,
    ) -> Result<Response<DescribeKeyResponse>, Status> {
        std::future::pending().await
    }

    async fn list_keys(
        &self,
        _request: Request<ListKeysRequest>,
    ) -> Result<Response<ListKeysResponse>, Status> {
        std::future::pending().await
    }
}
