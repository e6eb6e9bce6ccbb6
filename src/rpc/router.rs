//! Takes the calls of clients to where they belong: puts [`super::route`], the engine of this replica and the
//! way to the others together.

use std::sync::Arc;

use tokio::time::Instant;
use tonic::{Request, Response, Status, Streaming};
use tracing::Span;

use super::calls::{About, Call, Edge};
use super::deadline::{Deadline, by, by_or};
use super::homes::{Home, Homes};
use super::peer::PeerClient;
use super::route::{Step, There, route};
use crate::engine::{Engine, EngineError, Ids, Peer, Presence, Watch};
use crate::limits::Limits;
use crate::lock::{LockRef, SessionId};
use crate::proto::WatchLockRequest;
use crate::proto::peer::ForwardWatchResponse;

/// Cheap to clone.
#[derive(Clone)]
pub struct Router {
    engine: Engine,
    limits: Arc<Limits>,
    ids: Arc<dyn Ids>,
    peers: Option<Arc<PeerClient>>,
    homes: Arc<Homes>,
}

impl Router {
    /// `ids` makes the request_ids that callers leave out; `peers` is `None` where there are no other replicas.
    pub fn new(engine: Engine, ids: Arc<dyn Ids>, peers: Option<Arc<PeerClient>>) -> Router {
        Router {
            limits: Arc::new(engine.limits().clone()),
            engine,
            ids,
            peers,
            homes: Arc::new(Homes::default()),
        }
    }

    /// The engine of this replica.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The limits in force.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What goes with a call of this deadline.
    pub fn edge(&self, deadline: Deadline) -> Edge {
        Edge {
            deadline,
            identity: String::new(),
            limits: Arc::clone(&self.limits),
            ids: Arc::clone(&self.ids),
        }
    }

    /// Makes a call where it belongs, within its deadline.
    pub async fn call<C: Call>(
        &self,
        request: Request<C::Ask>,
    ) -> Result<Response<C::Answer>, Status> {
        let edge = self.edge(Deadline::of_request(request.extensions()));
        let call = C::parse(request.into_inner(), &edge)?;
        let answer_by = call.answer_by(&edge);
        self.make(&call, &edge, answer_by).await.map(Response::new)
    }

    /// The same until an instant of its own.
    pub async fn make<C: Call>(
        &self,
        call: &C,
        edge: &Edge,
        answer_by: Instant,
    ) -> Result<C::Answer, Status> {
        let about = call.about();
        about.record(&Span::current());
        let step = Making {
            router: self,
            about,
            call,
            edge,
            answer_by,
        };
        let late = || call.late();
        by_or(answer_by, late, route(&self.engine, &self.homes, &step)).await
    }

    /// A stream ended that the client of a session gave signs of life on: tells whoever keeps that session.
    pub fn disconnected(&self, session: SessionId) {
        let Some(Home::There(keeper)) = self.homes.of(&About::Session(session)) else {
            return self.engine.disconnected(session);
        };
        if let (Some(peers), Presence::Live(peer)) = (&self.peers, self.engine.presence(keeper)) {
            peers.session_disconnected(&peer, session);
        }
    }

    /// Watches a lockRef where its home is.
    pub async fn watch(&self, lock_ref: &LockRef, edge: &Edge) -> Result<Watched, Status> {
        let step = Watching {
            router: self,
            about: About::Place(lock_ref.clone()),
            lock_ref,
            edge,
        };
        let answer_by = edge.deadline.answer_by_or(self.limits.call_max());
        by(answer_by, route(&self.engine, &self.homes, &step)).await
    }
}

/// A unary call on its way.
struct Making<'a, C> {
    router: &'a Router,
    about: About,
    call: &'a C,
    edge: &'a Edge,
    answer_by: Instant,
}

impl<C: Call> Step for Making<'_, C> {
    type Answer = C::Answer;

    fn about(&self) -> &About {
        &self.about
    }

    fn is_write(&self) -> bool {
        self.call.is_write()
    }

    fn failed(&self, error: EngineError) -> Result<C::Answer, Status> {
        self.call.failed(error)
    }

    async fn here(&self) -> Result<C::Answer, EngineError> {
        self.call.here(&self.router.engine).await
    }

    async fn there(&self, peer: &Peer) -> There<C::Answer> {
        match &self.router.peers {
            Some(peers) => {
                let forward = peers.forward(peer, self.call, self.edge, self.answer_by);
                forward.await
            }
            None => no_way(),
        }
    }
}

fn no_way<A>() -> There<A> {
    There::NotAsked("this replica has no secret to call others with".to_owned())
}

/// Where the news of a watched lockRef come from.
pub enum Watched {
    /// From this replica.
    Here(Watch),
    /// From another one.
    There(Streaming<ForwardWatchResponse>),
}

/// A watch that is to begin.
struct Watching<'a> {
    router: &'a Router,
    about: About,
    lock_ref: &'a LockRef,
    edge: &'a Edge,
}

impl Step for Watching<'_> {
    type Answer = Watched;

    fn about(&self) -> &About {
        &self.about
    }

    fn is_write(&self) -> bool {
        false
    }

    async fn here(&self) -> Result<Watched, EngineError> {
        let watch = self.router.engine.watch(self.lock_ref).await?;
        Ok(Watched::Here(watch))
    }

    async fn there(&self, peer: &Peer) -> There<Watched> {
        let Some(peers) = &self.router.peers else {
            return no_way();
        };
        let ask = WatchLockRequest {
            lock_ref: self.lock_ref.to_string(),
        };
        match peers.watch(peer, &ask, self.edge).await {
            There::Answered(stream) => There::Answered(Watched::There(stream)),
            There::Refused(refusal) => There::Refused(refusal),
            There::Elsewhere { home, version } => There::Elsewhere { home, version },
            There::NotAsked(why) => There::NotAsked(why),
            There::Unknown(why) => There::Unknown(why),
        }
    }
}
