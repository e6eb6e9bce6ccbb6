//! The calls of this replica to others.
//!
//! Each replica has two connections, made on first use: one for calls that may last, so that thousands of waits never delay a
//! release, and one for the other calls. Pings detect a silent replica within two seconds. It is then avoided for a while.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fermata_proto::{AcquireLockResponse, RenewLocksRequest, ReplicaActivity, WatchLockRequest};
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, ConnectError, Request, Response, Status, Streaming, TimeoutExpired};
use tracing::{Instrument as _, Span};

use super::outcome::{elsewhere, home_of, refused, unable};
use super::{
    Dial, ForwardOutcome, PeerSecret, PeerTls, connect, id_bytes, message_bytes_max, session_ids,
};
use crate::engine::{EngineError, KeyHome, Peer, PeerError, Peers, Renewed};
use crate::limits::Limits;
use crate::lock::{KeyId, ReplicaId, SessionId};
use crate::rpc::calls::{CallContext, Served, UnaryCall};
use crate::rpc::peer_proto::hint_request::What;
use crate::rpc::peer_proto::peer_client::PeerClient as Client;
use crate::rpc::peer_proto::{
    DescribeActivityRequest, EndSessionsRequest, ForwardRequest, ForwardResponse,
    ForwardWatchRequest, ForwardWatchResponse, ForwardedRenewals, HandedOver, HintRequest, Method,
    RenewSessionRequest, RenewSessionResponse, forward_response, forward_watch_response,
    renew_session_response,
};
use crate::trace;

/// How often other replicas are pinged, and how long each has to answer: one that is cut off or paused is noticed after both.
pub const PING_EVERY: Duration = Duration::from_secs(1);
/// How long a replica that could not be reached is not tried again.
const AVOID: Duration = Duration::from_secs(2);
/// How many replicas connections are kept to, and how many hints may be in flight; further ones are dropped.
const PEERS_MAX: usize = 256;
/// How long a hint may take, and the end of sessions, for which a replica takes a second itself.
const HINT: Duration = Duration::from_secs(2);
/// How long the engine waits for another replica's word on a session.
const RENEW: Duration = Duration::from_secs(5);

/// The connections to other replicas.
pub struct PeerClient {
    secret: PeerSecret,
    tls: Option<PeerTls>,
    dial: Option<Dial>,
    message_bytes_max: usize,
    links: Mutex<BTreeMap<ReplicaId, Link>>,
    hints: Arc<Semaphore>,
}

/// The connections to one replica.
struct Link {
    address: String,
    /// What is answered soon.
    calls: Channel,
    /// What may last.
    waits: Channel,
    /// It could not be reached; not to be tried before then.
    avoid_until: Option<Instant>,
}

/// The span of a call to another replica.
fn hop(to: &Peer) -> Span {
    if !trace::is_active() {
        return Span::none();
    }
    tracing::debug_span!(
        target: trace::TARGET,
        "forward",
        otel.kind = "client",
        fermata.replica = %to.id,
        server.address = to.peer_address,
    )
}

impl PeerClient {
    /// Nothing is connected yet. Must be used inside a Tokio runtime.
    pub fn new(secret: PeerSecret, limits: &Limits) -> PeerClient {
        PeerClient {
            secret,
            tls: None,
            dial: None,
            message_bytes_max: message_bytes_max(limits),
            links: Mutex::new(BTreeMap::new()),
            hints: Arc::new(Semaphore::new(PEERS_MAX)),
        }
    }

    /// The same under TLS, which all replicas of a service speak, or none does.
    #[must_use]
    pub fn with_tls(self, tls: PeerTls) -> PeerClient {
        PeerClient {
            tls: Some(tls),
            ..self
        }
    }

    /// The same over connections that are opened so, and not by TCP; TLS is not spoken on them.
    #[must_use]
    pub fn with_dial(self, dial: Dial) -> PeerClient {
        PeerClient {
            dial: Some(dial),
            ..self
        }
    }

    /// TLS between replicas, if they speak it.
    pub fn tls(&self) -> Option<&PeerTls> {
        self.tls.as_ref()
    }

    /// The secret of the service.
    pub(in crate::rpc) fn secret(&self) -> &PeerSecret {
        &self.secret
    }

    /// The activity of another replica; `None` if it does not answer in time.
    pub async fn activity(
        &self,
        to: &Peer,
        keys_max: usize,
        within: Duration,
    ) -> Option<ReplicaActivity> {
        let message = DescribeActivityRequest {
            keys_max: i32::try_from(keys_max).unwrap_or(i32::MAX),
        };
        let mut client = self.client(to, false).ok()?;
        let request = self.request(message, Some(Instant::now() + within));
        let answer = match client.describe_activity(request).await {
            Ok(answer) => answer.into_inner(),
            Err(status) => {
                tracing::debug!(replica = %to.id, %status, "another replica did not report its activity");
                return None;
            }
        };
        ReplicaActivity::decode(answer.activity).ok()
    }

    /// Has another replica make a call.
    pub async fn forward<C: UnaryCall>(
        &self,
        to: &Peer,
        call: &C,
        context: &CallContext,
        answer_by: Instant,
    ) -> ForwardOutcome<Served<C::Answer>> {
        let message = forwarded(to, C::METHOD, call.ask().as_ref(), context);
        let response = self.send(to, message, call.waits(), answer_by).await;
        response.and_then(|response| outcome(to, response))
    }

    /// Has another replica renew these lockRefs in one call, and returns the outcomes in order.
    pub async fn renew_locks(
        &self,
        to: &Peer,
        ask: &RenewLocksRequest,
        context: &CallContext,
        answer_by: Instant,
    ) -> ForwardOutcome<Vec<ForwardOutcome<Served<AcquireLockResponse>>>> {
        let message = forwarded(to, Method::RenewLocks, ask, context);
        let response = self.send(to, message, false, answer_by).await;
        let response = response.and_then(|response| outcome::<ForwardedRenewals>(to, response));
        response.and_then(|served| {
            let renewals = served.answer.renewals;
            if renewals.len() != ask.lock_refs.len() {
                return ForwardOutcome::Unknown(
                    "the answer does not cover each lockRef".to_owned(),
                );
            }
            let each = renewals.into_iter().map(|renewal| outcome(to, renewal));
            ForwardOutcome::Answered(each.collect())
        })
    }

    async fn send(
        &self,
        to: &Peer,
        message: ForwardRequest,
        waits: bool,
        answer_by: Instant,
    ) -> ForwardOutcome<ForwardResponse> {
        let mut client = match self.client(to, waits) {
            Ok(client) => client,
            Err(why) => return ForwardOutcome::NotAsked(why),
        };
        let mut request = self.request(message, Some(answer_by));
        let span = hop(to);
        trace::pass_on(&span, request.metadata_mut());
        match client.forward(request).instrument(span).await {
            Ok(response) => ForwardOutcome::Answered(response.into_inner()),
            Err(status) => self.failed(to, &status),
        }
    }

    /// Has another replica watch a lockRef. The first message was read: the watch has begun.
    pub async fn watch(
        &self,
        to: &Peer,
        ask: &WatchLockRequest,
        context: &CallContext,
    ) -> ForwardOutcome<Streaming<ForwardWatchResponse>> {
        let message = ForwardWatchRequest {
            to: id_bytes(to.id.0),
            request: ask.encode_to_vec().into(),
            identity: context.identity().to_owned(),
        };
        let mut client = match self.client(to, true) {
            Ok(client) => client,
            Err(why) => return ForwardOutcome::NotAsked(why),
        };
        let mut request = self.request(message, context.deadline.answer_by());
        let span = hop(to);
        trace::pass_on(&span, request.metadata_mut());
        let opened = async {
            let mut stream = client.forward_watch(request).await?.into_inner();
            let first = stream.message().await?;
            Ok((stream, first))
        };
        let (stream, first) = match opened.instrument(span).await {
            Ok(opened) => opened,
            Err(status) => return self.failed(to, &status),
        };
        match first.and_then(|first| first.outcome) {
            Some(forward_watch_response::Outcome::News(_)) => ForwardOutcome::Answered(stream),
            Some(forward_watch_response::Outcome::Refusal(refusal)) => {
                ForwardOutcome::Refused(refused(refusal))
            }
            Some(forward_watch_response::Outcome::Elsewhere(answer)) => elsewhere(&answer),
            Some(forward_watch_response::Outcome::Unable(answer)) => unable(answer),
            None => ForwardOutcome::NotAsked("the answer is of an unknown version".to_owned()),
        }
    }

    pub(super) fn client(&self, to: &Peer, waits: bool) -> Result<Client<Channel>, String> {
        let mut links = self.links.lock();
        let now = Instant::now();
        if let Some(link) = links.get_mut(&to.id)
            && link.address == to.peer_address
        {
            if link.avoid_until.is_some_and(|until| now < until) {
                return Err("the replica could not be reached a moment ago".to_owned());
            }
            link.avoid_until = None;
            return Ok(self.on(link, waits));
        }
        let link = Link {
            address: to.peer_address.clone(),
            calls: self.channel(&to.peer_address)?,
            waits: self.channel(&to.peer_address)?,
            avoid_until: None,
        };
        // The replica that had this address before is gone.
        links.retain(|_, link| link.address != to.peer_address);
        if links.len() >= PEERS_MAX {
            links.clear();
        }
        let client = self.on(&link, waits);
        links.insert(to.id, link);
        Ok(client)
    }

    fn on(&self, link: &Link, waits: bool) -> Client<Channel> {
        let channel = match waits {
            true => link.waits.clone(),
            false => link.calls.clone(),
        };
        Client::new(channel)
            .max_decoding_message_size(self.message_bytes_max)
            .max_encoding_message_size(self.message_bytes_max)
    }

    fn channel(&self, address: &str) -> Result<Channel, String> {
        if address.is_empty() {
            return Err("the replica announced no peer address".to_owned());
        }
        // A whole message fits the window of its stream.
        let window = u32::try_from(self.message_bytes_max).unwrap_or(i32::MAX as u32);
        let scheme = match self.tls {
            Some(_) => "https",
            None => "http",
        };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
            .map_err(|error| format!("{address} is not an address: {error}"))?;
        let endpoint = endpoint
            .initial_stream_window_size(window)
            .initial_connection_window_size(window.saturating_mul(4).min(i32::MAX as u32))
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_EVERY)
            // Also between calls: the next one then finds out before it is sent.
            .keep_alive_while_idle(true);
        Ok(match &self.dial {
            Some(dial) => connect::lazily_by(endpoint, Arc::clone(dial)),
            None => connect::lazily(endpoint, self.tls.clone()),
        })
    }

    /// A request with the secret, and the rest of its caller's time.
    pub(super) fn request<T>(&self, message: T, answer_by: Option<Instant>) -> Request<T> {
        let mut request = Request::new(message);
        self.secret.show(request.metadata_mut());
        if let Some(answer_by) = answer_by {
            request.set_timeout(answer_by.saturating_duration_since(Instant::now()));
        }
        request
    }

    fn failed<A>(&self, to: &Peer, status: &Status) -> ForwardOutcome<A> {
        match self.failure(to, status) {
            (true, why) => ForwardOutcome::NotAsked(why),
            (false, why) => ForwardOutcome::Unknown(why),
        }
    }

    /// A gRPC status is a failure of the way: the service answers in messages. Whether nothing was asked, and why.
    fn failure(&self, to: &Peer, status: &Status) -> (bool, String) {
        let why = match first_cause(status) {
            Some(cause) => format!("{}: {cause}", status.message()),
            None => status.message().to_owned(),
        };
        if matches!(status.code(), Code::Unauthenticated | Code::Unimplemented)
            && status.source().is_none()
        {
            tracing::warn!(replica = %to.id, address = to.peer_address, why, "another replica refuses calls");
            self.avoid(to);
            return (true, why);
        }
        if caused_by::<TimeoutExpired>(status) {
            return (false, "the deadline of the call passed".to_owned());
        }
        if status.source().is_some() {
            // The next call would wait for nothing, too.
            self.avoid(to);
        }
        // Without a connection nothing was sent.
        (caused_by::<ConnectError>(status), why)
    }

    /// Tells the keeper of a session that its client's stream here ended. Best effort: if the hint is lost, the session lives for
    /// its TTL. It takes the connection of the stream's renewals, so that it does not overtake them.
    pub fn session_disconnected(&self, to: &Peer, session: SessionId) {
        self.send_hint(to, What::SessionDisconnected(id_bytes(session.0)));
    }

    /// Beyond the bound hints are dropped.
    fn send_hint(&self, to: &Peer, what: What) {
        let Ok(in_flight) = Arc::clone(&self.hints).try_acquire_owned() else {
            return;
        };
        let Ok(mut client) = self.client(to, false) else {
            return;
        };
        let request = self.hint_request(what);
        tokio::spawn(async move {
            let hinted = timeout(HINT, client.hint(request)).await;
            tracing::trace!(?hinted, "hinted");
            drop(in_flight);
        });
    }

    fn hint_request(&self, what: What) -> Request<HintRequest> {
        let message = HintRequest { what: Some(what) };
        self.request(message, Some(Instant::now() + HINT))
    }

    /// The answer to a request of the engine, within the time of a hint.
    async fn answered<A>(
        &self,
        to: &Peer,
        call: impl Future<Output = Result<Response<A>, Status>>,
    ) -> Result<A, PeerError> {
        match timeout(HINT, call).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(self.unreachable(to, &status)),
            Err(_) => Err(PeerError::Unreachable("no answer in time".to_owned())),
        }
    }

    /// As [`PeerClient::failed`], for a request of the engine.
    fn unreachable(&self, to: &Peer, status: &Status) -> PeerError {
        PeerError::Unreachable(self.failure(to, status).1)
    }

    fn avoid(&self, to: &Peer) {
        let mut links = self.links.lock();
        if let Some(link) = links.get_mut(&to.id) {
            link.avoid_until = Some(Instant::now() + AVOID);
        }
    }
}

/// A call as it is forwarded.
fn forwarded(
    to: &Peer,
    method: Method,
    ask: &impl Message,
    context: &CallContext,
) -> ForwardRequest {
    ForwardRequest {
        to: id_bytes(to.id.0),
        method: method.into(),
        request: ask.encode_to_vec().into(),
        identity: context.identity().to_owned(),
        zone: context.zone.to_string(),
        share_of: match context.identity() {
            "" => context.login.share_of().to_string(),
            _ => String::new(),
        },
    }
}

/// The outcome of a forwarded call.
fn outcome<A: Message + Default>(
    to: &Peer,
    response: ForwardResponse,
) -> ForwardOutcome<Served<A>> {
    match response.outcome {
        Some(forward_response::Outcome::Answer(answer)) => match A::decode(answer) {
            Ok(answer) => ForwardOutcome::Answered(Served {
                answer,
                home: (response.term > 0).then(|| KeyHome {
                    id: to.id,
                    address: to.address.clone(),
                    term: response.term,
                }),
            }),
            Err(error) => ForwardOutcome::Unknown(error.to_string()),
        },
        Some(forward_response::Outcome::Refusal(refusal)) => {
            ForwardOutcome::Refused(refused(refusal))
        }
        Some(forward_response::Outcome::Elsewhere(answer)) => elsewhere(&answer),
        Some(forward_response::Outcome::Unable(answer)) => unable(answer),
        None => ForwardOutcome::Unknown("the answer is of an unknown version".to_owned()),
    }
}

fn caused_by<E: std::error::Error + 'static>(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<E>() {
            return true;
        }
        cause = error.source();
    }
    false
}

fn first_cause(status: &Status) -> Option<String> {
    let mut cause = status.source()?;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    Some(cause.to_string())
}

#[async_trait]
impl Peers for PeerClient {
    fn handed_over(&self, to: &Peer, key: &KeyId, term: u64) {
        let handed_over = HandedOver {
            table: key.table.to_string(),
            key: key.key.to_string(),
            term,
        };
        self.send_hint(to, What::HandedOver(handed_over));
    }

    fn session_given(&self, to: &Peer, session: SessionId) {
        self.send_hint(to, What::SessionGiven(id_bytes(session.0)));
    }

    async fn sessions_ended(
        &self,
        to: &Peer,
        sessions: &[SessionId],
    ) -> Result<Vec<SessionId>, PeerError> {
        let mut client = self.client(to, false).map_err(PeerError::Unreachable)?;
        let message = EndSessionsRequest {
            sessions: sessions.iter().map(|one| id_bytes(one.0)).collect(),
        };
        let request = self.request(message, Some(Instant::now() + HINT));
        let answer = self.answered(to, client.end_sessions(request)).await?;
        Ok(session_ids(&answer.left))
    }

    async fn leaving(&self, to: &Peer, id: ReplicaId) -> Result<(), PeerError> {
        let mut client = self.client(to, false).map_err(PeerError::Unreachable)?;
        let request = self.hint_request(What::Leaving(id_bytes(id.0)));
        self.answered(to, client.hint(request)).await.map(drop)
    }

    async fn renew_session(&self, to: &Peer, session: SessionId) -> Result<Renewed, PeerError> {
        let message = RenewSessionRequest {
            to: id_bytes(to.id.0),
            session: id_bytes(session.0),
        };
        let mut client = self.client(to, false).map_err(PeerError::Unreachable)?;
        let request = self.request(message, Some(Instant::now() + RENEW));
        match client.renew_session(request).await {
            Ok(response) => renewed(response.into_inner()),
            Err(status) => Err(self.unreachable(to, &status)),
        }
    }
}

fn renewed(response: RenewSessionResponse) -> Result<Renewed, PeerError> {
    use renew_session_response::Outcome;
    let words = || PeerError::Unreachable("the answer is of an unknown version".to_owned());
    match response.outcome.ok_or_else(words)? {
        Outcome::Renewed(renewed) => {
            let span = |span: Option<prost_types::Duration>| span.and_then(|s| s.try_into().ok());
            match (span(renewed.ttl), span(renewed.valid_for)) {
                (Some(ttl), Some(valid_for)) => Ok(Renewed {
                    ttl,
                    disconnect_grace: span(renewed.disconnect_grace),
                    valid_for,
                    durable: false,
                }),
                (None, _) | (_, None) => Err(words()),
            }
        }
        Outcome::Ended(_) => Err(PeerError::Refused(EngineError::SessionEnded)),
        Outcome::Elsewhere(answer) => {
            let home = home_of(&answer).ok_or_else(words)?;
            let version = answer.version;
            Err(PeerError::Refused(EngineError::Elsewhere { home, version }))
        }
        Outcome::Exhausted(answer) => Err(PeerError::Refused(EngineError::Exhausted {
            what: "lock_refs_per_session_max",
            limit: answer.limit,
        })),
        Outcome::Unable(answer) => Err(PeerError::Unreachable(answer.why)),
    }
}
