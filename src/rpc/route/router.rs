//! Brings the calls of clients to their homes, by [`route`], the engine of this replica and the client of other replicas.

use std::sync::Arc;

use fermata_proto::{AcquireLockResponse, RenewLocksRequest, WatchLockRequest};
use tokio::time::Instant;
use tonic::{Request, Response, Status, Streaming};

use super::homes::{Homes, KnownHome};
use super::hops::{self, RoutedCall, route};
use crate::access::{Login, Verb};
use crate::clock::Ids;
use crate::engine::{Engine, EngineError, Peer, Presence, Watch};
use crate::limits::Limits;
use crate::lock::{LockRef, SessionId};
use crate::protocol::{Leaderless, LeaderlessTables, LeaderlessWatch};
use crate::rpc::access_check::AccessCheck;
use crate::rpc::budget::ConnectionInfo;
use crate::rpc::calls::{AcquireLock, CallContext, Served, Target, UnaryCall};
use crate::rpc::deadline::{Deadline, by, by_or, within};
use crate::rpc::metrics::RequestMetrics;
use crate::rpc::peer::{ForwardOutcome, PeerClient};
use crate::rpc::peer_proto::ForwardWatchResponse;

/// The metadata with the zone of a client: its keys move there, rather than to the asked replica (H8).
const ZONE: &str = "fermata-zone";

/// Cheap to clone.
#[derive(Clone)]
pub struct Router {
    engine: Engine,
    limits: Arc<Limits>,
    ids: Arc<dyn Ids>,
    peers: Option<Arc<PeerClient>>,
    homes: Arc<Homes>,
    check: AccessCheck,
    leaderless: LeaderlessTables,
    metrics: RequestMetrics,
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
            check: AccessCheck::open(),
            leaderless: LeaderlessTables::default(),
            metrics: RequestMetrics::default(),
        }
    }

    /// Only for callers with permission by `check`.
    #[must_use]
    pub fn with_access(self, check: AccessCheck) -> Router {
        Router { check, ..self }
    }

    /// With these tables beside those of the engine.
    #[must_use]
    pub fn with_leaderless(self, leaderless: LeaderlessTables) -> Router {
        Router { leaderless, ..self }
    }

    /// Calls of a Pipeline count in these metrics.
    #[must_use]
    pub fn with_metrics(self, metrics: RequestMetrics) -> Router {
        Router { metrics, ..self }
    }

    /// The metrics of calls.
    pub fn metrics(&self) -> &RequestMetrics {
        &self.metrics
    }

    /// The tables without homes.
    pub fn leaderless(&self) -> &LeaderlessTables {
        &self.leaderless
    }

    /// The protocol of a target's table, unless the engine serves it.
    fn leaderless_of(&self, target: &Target) -> Option<&Arc<dyn Leaderless>> {
        self.leaderless.of(&target.key_id()?.table)
    }

    /// The check of permissions.
    pub fn access(&self) -> &AccessCheck {
        &self.check
    }

    /// The engine of this replica.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The way to other replicas, if there are any.
    pub fn peers(&self) -> Option<&PeerClient> {
        self.peers.as_deref()
    }

    /// The limits in force.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The zone of a call, if its client names it. One that is longer than any label counts as none.
    pub fn zone_of<T>(&self, request: &Request<T>) -> Option<Arc<str>> {
        let zone = request.metadata().get(ZONE)?.to_str().ok()?;
        (zone.len() <= self.limits.owner_bytes_max).then(|| zone.into())
    }

    /// The context of this call.
    pub fn context<T>(&self, request: &Request<T>) -> CallContext {
        let zone = self.zone_of(request);
        let login = request.extensions().get::<Login>();
        let connection = request.extensions().get::<ConnectionInfo>();
        CallContext {
            deadline: Deadline::of_request(request.extensions()),
            login: login.cloned().unwrap_or_else(Login::nobody),
            zone: zone.unwrap_or_else(|| self.engine.zone()),
            limits: Arc::clone(&self.limits),
            connection: connection.map(|connection| Arc::clone(&connection.account)),
            ids: Arc::clone(&self.ids),
        }
    }

    /// Makes a unary call, and names the home in the metadata of the answer.
    pub async fn unary<C: UnaryCall>(
        &self,
        request: Request<C::Ask>,
    ) -> Result<Response<C::Answer>, Status> {
        let context = self.context(&request);
        let served = self.call::<C>(request.into_inner(), &context).await?;
        Ok(served.into_response())
    }

    /// Makes a call at its home, within its deadline.
    pub async fn call<C: UnaryCall>(
        &self,
        ask: C::Ask,
        context: &CallContext,
    ) -> Result<Served<C::Answer>, Status> {
        let call = C::parse(ask, context)?;
        self.make(&call, context, call.answer_by(context)).await
    }

    /// The same until an instant of its own.
    pub async fn make<C: UnaryCall>(
        &self,
        call: &C,
        context: &CallContext,
        answer_by: Instant,
    ) -> Result<Served<C::Answer>, Status> {
        call.target().record();
        self.make_part(call, context, answer_by).await
    }

    /// As [`Router::make`], for one part of a call: the span does not name it.
    pub async fn make_part<C: UnaryCall>(
        &self,
        call: &C,
        context: &CallContext,
        answer_by: Instant,
    ) -> Result<Served<C::Answer>, Status> {
        let (login, needs, target) = (&context.login, call.needs(), call.target());
        let made = self.make_checked(call, context, answer_by);
        match call.waits() {
            false => {
                self.check.check(login, needs, &target)?;
                made.await
            }
            // The permission of a wait may end.
            true => tokio::select! {
                biased;
                refused = self.check.until_refused(|| self.check.check(login, needs, &target)) => Err(refused),
                came = made => came,
            },
        }
    }

    /// As [`Router::make_part`] without a check of permission: the secret of an entry is enough to end it.
    pub async fn make_checked<C: UnaryCall>(
        &self,
        call: &C,
        context: &CallContext,
        answer_by: Instant,
    ) -> Result<Served<C::Answer>, Status> {
        let routed = RoutedUnary {
            router: self,
            target: call.target(),
            call,
            context,
            answer_by,
        };
        let late = || call.late();
        if let Some(protocol) = self.leaderless_of(&routed.target) {
            let serving = async {
                let answer = match call.serve(&**protocol).await {
                    Ok(answer) => answer,
                    Err(error) => call.failed(error)?,
                };
                Ok(Served { answer, home: None })
            };
            return by_or(answer_by, late, serving).await;
        }
        by_or(answer_by, late, route(&self.engine, &self.homes, &routed)).await
    }

    /// The expected home of this, another replica; `None` for this one.
    pub fn expected(&self, target: &Target) -> Option<Arc<Peer>> {
        if self.leaderless_of(target).is_some() {
            return None;
        }
        let ranked = hops::ranked(&self.engine, target);
        match hops::expected(&self.engine, &self.homes, target, &ranked) {
            Presence::Live(peer) => Some(peer),
            Presence::Local | Presence::Suspected | Presence::Down | Presence::Unsure => None,
        }
    }

    /// Has the expected home of these lockRefs renew them in one call, and returns the results in order. `None` for one without a
    /// result: it is to be renewed alone.
    pub async fn renew_at(
        &self,
        peer: &Peer,
        calls: &[AcquireLock],
        context: &CallContext,
        answer_by: Instant,
    ) -> Vec<Option<Result<AcquireLockResponse, Status>>> {
        let ask = RenewLocksRequest {
            lock_refs: calls.iter().map(AcquireLock::lock_ref_text).collect(),
        };
        let came = match &self.peers {
            Some(peers) => peers.renew_locks(peer, &ask, context, answer_by).await,
            None => no_way(),
        };
        let ForwardOutcome::Answered(each) = came else {
            tracing::debug!(replica = %peer.id, ?came, "renewals were not forwarded in one call");
            return calls.iter().map(|_| None).collect();
        };
        let each = each.into_iter().map(|came| match came {
            ForwardOutcome::Answered(served) => Some(Ok(served.answer)),
            ForwardOutcome::Refused(refusal) => Some(Err(refusal)),
            ForwardOutcome::Elsewhere { .. }
            | ForwardOutcome::NotAsked(_)
            | ForwardOutcome::Unknown(_) => None,
        });
        each.collect()
    }

    /// The KeepAlive stream of a session's client ended: tells the keeper of the session.
    pub fn disconnected(&self, session: SessionId) {
        let Some(KnownHome::Remote(keeper)) = self.homes.of(&Target::Session(session)) else {
            return self.engine.disconnected(session);
        };
        if let (Some(peers), Presence::Live(peer)) = (&self.peers, self.engine.presence(keeper)) {
            peers.session_disconnected(&peer, session);
        }
    }

    /// Watches a lockRef at its home; `text` is the lockRef as its client gave it.
    pub async fn watch(
        &self,
        lock_ref: &LockRef,
        text: &str,
        context: &CallContext,
    ) -> Result<WatchSource, Status> {
        let target = Target::LockRef(lock_ref.clone());
        self.check
            .check(&context.login, Verb::Lock.into(), &target)?;
        if let Some(protocol) = self.leaderless_of(&target) {
            let answer_by = context.deadline.answer_within(self.limits.call_max());
            let watch = within(answer_by, protocol.watch(lock_ref)).await?;
            return Ok(WatchSource::Polled(watch));
        }
        let routed = RoutedWatch {
            router: self,
            target,
            lock_ref,
            text,
            context,
        };
        let answer_by = context.deadline.answer_within(self.limits.call_max());
        by(answer_by, route(&self.engine, &self.homes, &routed)).await
    }
}

/// A unary call on its way.
struct RoutedUnary<'a, C> {
    router: &'a Router,
    target: Target,
    call: &'a C,
    context: &'a CallContext,
    answer_by: Instant,
}

impl<C: UnaryCall> RoutedCall for RoutedUnary<'_, C> {
    type Answer = Served<C::Answer>;

    fn target(&self) -> &Target {
        &self.target
    }

    fn is_write(&self) -> bool {
        self.call.is_write()
    }

    fn changes(&self) -> bool {
        C::CHANGES
    }

    fn failed(&self, error: EngineError) -> Result<Self::Answer, Status> {
        let answer = self.call.failed(error)?;
        Ok(Served { answer, home: None })
    }

    async fn serve_locally(&self) -> Result<Self::Answer, EngineError> {
        let engine = &self.router.engine;
        let answer = self.call.serve(engine).await?;
        let id = self.target.key_id();
        let home = id.and_then(|id| engine.served_here(&id, &self.context.zone));
        Ok(Served { answer, home })
    }

    async fn forward(&self, peer: &Peer) -> ForwardOutcome<Self::Answer> {
        match &self.router.peers {
            Some(peers) => {
                let forward = peers.forward(peer, self.call, self.context, self.answer_by);
                forward.await
            }
            None => no_way(),
        }
    }
}

fn no_way<A>() -> ForwardOutcome<A> {
    ForwardOutcome::NotAsked(
        "this replica has no secret to call other replicas with (peers.secret_file)".to_owned(),
    )
}

/// The source of news of a watched lockRef.
pub enum WatchSource {
    /// From this replica.
    Local(Watch),
    /// From polls of the store.
    Polled(LeaderlessWatch),
    /// From another one.
    Remote(Streaming<ForwardWatchResponse>),
}

/// A watch that is to begin.
struct RoutedWatch<'a> {
    router: &'a Router,
    target: Target,
    lock_ref: &'a LockRef,
    text: &'a str,
    context: &'a CallContext,
}

impl RoutedCall for RoutedWatch<'_> {
    type Answer = WatchSource;

    fn target(&self) -> &Target {
        &self.target
    }

    async fn serve_locally(&self) -> Result<WatchSource, EngineError> {
        let watch = self.router.engine.watch(self.lock_ref).await?;
        Ok(WatchSource::Local(watch))
    }

    async fn forward(&self, peer: &Peer) -> ForwardOutcome<WatchSource> {
        let Some(peers) = &self.router.peers else {
            return no_way();
        };
        let ask = WatchLockRequest {
            lock_ref: self.text.to_owned(),
        };
        let watched = peers.watch(peer, &ask, self.context).await;
        watched.and_then(|stream| ForwardOutcome::Answered(WatchSource::Remote(stream)))
    }
}
