//! The calls of other replicas: served here, or answered with the home. Never forwarded.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use fermata_proto::codec::of_undecodable;
use fermata_proto::{RenewLocksRequest, WatchLockRequest};
use futures_util::{Stream, StreamExt, stream};
use prost::Message as _;
use tokio::time::Instant;
use tonic::service::Interceptor;
use tonic::{Request, Response, Status};
use uuid::Uuid;

use super::peer::{PeerClient, PeerSecret, id_bytes, message_bytes_max, session_ids};
use super::peer_proto::hint_request::What;
use super::peer_proto::peer_server::{Peer, PeerServer};
use super::peer_proto::{
    DescribeActivityRequest, DescribeActivityResponse, DescribeKeyRequest, DescribeKeyResponse,
    Elsewhere, EndSessionsRequest, EndSessionsResponse, Ended, Exhausted, ForwardRequest,
    ForwardResponse, ForwardWatchRequest, ForwardWatchResponse, ForwardedRenewals, HintRequest,
    HintResponse, ListKeysRequest, ListKeysResponse, Method, Refusal, RenewSessionRequest,
    RenewSessionResponse, Renewed, Unable, forward_response, forward_watch_response,
    renew_session_response,
};
use crate::access::Login;
use crate::clock::{Clock as _, Ids, SystemClock};
use crate::engine::{Engine, EngineError};
use crate::limits::Limits;
use crate::lock::{ReplicaId, SessionId};
use crate::log_throttle::LogThrottle;
use crate::rpc::budget::ConnectionInfo;
use crate::rpc::calls::{
    AcquireLock, CallContext, CloseSession, CreateLockRef, CriticalDelete, CriticalGet,
    CriticalPut, EndSession, ForceRelease, KeepAlive, OpenSession, ReleaseLock, RenewSession,
    UnaryCall,
};
use crate::rpc::deadline::{Deadline, by, by_or, until};
use crate::rpc::listing_turns::listing_turn;
use crate::rpc::part_limit::{Part, PartLimit};
use crate::rpc::stopping::Stopping;
use crate::rpc::watch;
use crate::rpc::{answer, locks, parse, status};

/// How many calls another replica may have in flight on one connection: all waits of its clients.
pub const STREAMS_MAX: u32 = 100_000;

/// The service between replicas, on an engine.
#[derive(Clone)]
pub struct PeerRpc {
    engine: Engine,
    limits: Arc<Limits>,
    ids: Arc<dyn Ids>,
    stopping: Stopping,
    /// The turns of the parts of RenewLocks.
    parts: Arc<PartLimit>,
}

/// Admits callers with the secret.
#[derive(Clone)]
pub struct KnowsSecret {
    secret: PeerSecret,
    refused: Arc<LogThrottle>,
}

impl Interceptor for KnowsSecret {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        if self.secret.is_shown(request.metadata()) {
            return Ok(request);
        }
        let what = "a call without the secret of the replicas was refused";
        if let Some(times) = self.refused.met(SystemClock.boot(), what) {
            let connection = request.extensions().get::<ConnectionInfo>();
            let from = connection.and_then(|info| info.origin.as_ref());
            let from = from.map_or("", |origin| &*origin.from);
            tracing::warn!(from, times, "{what}");
        }
        Err(status::no_peer())
    }
}

impl PeerRpc {
    /// On this engine.
    pub fn new(engine: Engine, stopping: Stopping, ids: Arc<dyn Ids>) -> PeerRpc {
        PeerRpc {
            limits: Arc::new(engine.limits().clone()),
            engine,
            ids,
            stopping,
            parts: Arc::new(PartLimit::of_replicas()),
        }
    }

    /// Serves callers with the secret of `client`.
    pub fn guarded(
        self,
        client: &PeerClient,
    ) -> tonic::service::interceptor::InterceptedService<PeerServer<PeerRpc>, KnowsSecret> {
        let limits = Arc::clone(&self.limits);
        let bytes_max = message_bytes_max(&limits);
        let server = PeerServer::new(self)
            .max_decoding_message_size(bytes_max)
            .max_encoding_message_size(bytes_max);
        let knows_secret = KnowsSecret {
            secret: client.secret().clone(),
            refused: Arc::default(),
        };
        tonic::service::interceptor::InterceptedService::new(server, knows_secret)
    }

    fn context(
        &self,
        deadline: Deadline,
        (identity, share_of): (&str, &str),
        zone: &str,
    ) -> CallContext {
        CallContext {
            deadline,
            login: Login::passed_on(identity, share_of),
            zone: zone.into(),
            limits: Arc::clone(&self.limits),
            connection: None,
            ids: Arc::clone(&self.ids),
        }
    }

    fn answer_by<T>(&self, request: &Request<T>) -> Instant {
        Deadline::of_request(request.extensions()).answer_within(self.limits.call_max())
    }

    /// Nothing is done for a caller that addresses another replica.
    fn is_meant(&self, to: &[u8]) -> Result<(), Unable> {
        let here = self.engine.replica();
        match Uuid::from_slice(to) {
            Ok(meant) if ReplicaId(meant) == here => Ok(()),
            Ok(_) | Err(_) => Err(Unable {
                nothing_done: true,
                why: format!("the call is addressed to another replica; this is {here}"),
            }),
        }
    }

    async fn serve<C: UnaryCall>(&self, request: Bytes, context: &CallContext) -> ForwardResponse {
        use forward_response::Outcome;
        let call = match C::Ask::decode(request) {
            Ok(ask) => C::parse(ask, context).map_err(|invalid| status::of_invalid(&invalid)),
            Err(error) => Err(of_undecodable(&error)),
        };
        let call = match call {
            Ok(call) => call,
            Err(status) => return without_key(Outcome::Refusal(refusal(&status))),
        };
        let target = call.target();
        target.record();
        let outcome = self.outcome(call, context).await;
        let home = target
            .key_id()
            .filter(|_| matches!(outcome, Outcome::Answer(_)));
        let home = home.and_then(|id| self.engine.served_here(&id, &context.zone));
        ForwardResponse {
            outcome: Some(outcome),
            term: home.map_or(0, |home| home.term),
        }
    }

    /// Renews many lockRefs, each with an outcome of its own. Each has half of the time, so that the answer is in time for a
    /// distant caller.
    async fn renew_locks(&self, request: Bytes, context: &CallContext) -> ForwardResponse {
        use forward_response::Outcome;
        let context = &CallContext {
            deadline: context.deadline.halved(),
            ..context.clone()
        };
        let lock_refs = match RenewLocksRequest::decode(request) {
            Ok(ask) => parse::lock_refs(&ask.lock_refs, &context.limits)
                .map(|()| ask.lock_refs)
                .map_err(|invalid| status::of_invalid(&invalid)),
            Err(error) => Err(of_undecodable(&error)),
        };
        let lock_refs = match lock_refs {
            Ok(lock_refs) => lock_refs,
            Err(status) => return without_key(Outcome::Refusal(refusal(&status))),
        };
        let renewals = lock_refs.into_iter();
        let renewals = renewals.map(|lock_ref| -> Part<'_, ForwardResponse> {
            Box::new(move || {
                Box::pin(async move {
                    without_key(match AcquireLock::renewal(lock_ref, context) {
                        Ok(call) => self.outcome(call, context).await,
                        Err(invalid) => Outcome::Refusal(refusal(&status::of_invalid(&invalid))),
                    })
                })
            })
        });
        let by = context.deadline.answer_within(context.limits.call_max());
        let renewals = self.parts.all(renewals.collect(), by).await;
        let answer = ForwardedRenewals { renewals }.encode_to_vec();
        without_key(Outcome::Answer(answer.into()))
    }

    async fn outcome<C: UnaryCall>(
        &self,
        call: C,
        context: &CallContext,
    ) -> forward_response::Outcome {
        use forward_response::Outcome;
        let made = async { Ok(call.serve(&self.engine).await) };
        match by_or(call.answer_by(context), || call.late(), made).await {
            Ok(Ok(answer)) => Outcome::Answer(answer.encode_to_vec().into()),
            // The asking replica may have a right clock, and takes the key over for that. (Not in the middle of a section.)
            Ok(Err(error @ EngineError::ClockOff)) if !call.is_write() => Outcome::Unable(Unable {
                nothing_done: true,
                why: error.to_string(),
            }),
            Ok(Err(error)) => match not_here(&error) {
                Some(NotHere::Elsewhere(elsewhere)) => Outcome::Elsewhere(elsewhere),
                Some(NotHere::Unable(unable)) => Outcome::Unable(unable),
                None => match call.failed(error) {
                    Ok(answer) => Outcome::Answer(answer.encode_to_vec().into()),
                    Err(status) => Outcome::Refusal(refusal(&status)),
                },
            },
            Err(late) => Outcome::Refusal(refusal(&late)),
        }
    }
}

/// An error that says nothing about the call itself.
enum NotHere {
    Elsewhere(Elsewhere),
    Unable(Unable),
}

fn not_here(error: &EngineError) -> Option<NotHere> {
    match error {
        EngineError::Elsewhere { home, version } => Some(NotHere::Elsewhere(Elsewhere {
            home: id_bytes(home.0),
            version: *version,
        })),
        EngineError::Stopping | EngineError::Silent | EngineError::Fenced => {
            Some(NotHere::Unable(Unable {
                nothing_done: false,
                why: error.to_string(),
            }))
        }
        EngineError::UnknownTable(_)
        | EngineError::NeverIssued
        | EngineError::Ended(_)
        | EngineError::EndedDuringWrite(_)
        | EngineError::SessionEnded
        | EngineError::GrantSuperseded
        | EngineError::SupersededDuringWrite
        | EngineError::NoGrant
        | EngineError::Releasing
        | EngineError::ReleasingDuringWrite
        | EngineError::CallNoNotAbove { .. }
        | EngineError::RequestMismatch { .. }
        | EngineError::NotInProtocol { .. }
        | EngineError::RowBusy { .. }
        | EngineError::StaleLock { .. }
        | EngineError::Exhausted { .. }
        | EngineError::ShareUsed { .. }
        | EngineError::Overloaded { .. }
        | EngineError::KeyUsedUp(_)
        | EngineError::WriteUnknown(_)
        | EngineError::ClockOff
        | EngineError::Unavailable(_) => None,
    }
}

fn without_key(outcome: forward_response::Outcome) -> ForwardResponse {
    ForwardResponse {
        outcome: Some(outcome),
        term: 0,
    }
}

fn refusal(status: &Status) -> Refusal {
    Refusal {
        code: status.code().into(),
        message: status.message().to_owned(),
        details: Bytes::copy_from_slice(status.details()),
    }
}

type News = Pin<Box<dyn Stream<Item = Result<ForwardWatchResponse, Status>> + Send>>;

fn news(outcome: forward_watch_response::Outcome) -> Result<ForwardWatchResponse, Status> {
    Ok(ForwardWatchResponse {
        outcome: Some(outcome),
    })
}

#[tonic::async_trait]
impl Peer for PeerRpc {
    async fn forward(
        &self,
        request: Request<ForwardRequest>,
    ) -> Result<Response<ForwardResponse>, Status> {
        let deadline = Deadline::of_request(request.extensions());
        let ask = request.into_inner();
        let method = ask.method();
        let context = self.context(deadline, (&ask.identity, &ask.share_of), &ask.zone);
        let response = match self.is_meant(&ask.to) {
            Err(unable) => without_key(forward_response::Outcome::Unable(unable)),
            Ok(()) => match method {
                Method::CreateLockRef => self.serve::<CreateLockRef>(ask.request, &context).await,
                Method::AcquireLock => self.serve::<AcquireLock>(ask.request, &context).await,
                Method::ReleaseLock => self.serve::<ReleaseLock>(ask.request, &context).await,
                Method::CriticalGet => self.serve::<CriticalGet>(ask.request, &context).await,
                Method::CriticalPut => self.serve::<CriticalPut>(ask.request, &context).await,
                Method::CriticalDelete => self.serve::<CriticalDelete>(ask.request, &context).await,
                Method::OpenSession => self.serve::<OpenSession>(ask.request, &context).await,
                Method::RenewSession => self.serve::<RenewSession>(ask.request, &context).await,
                Method::KeepAlive => self.serve::<KeepAlive>(ask.request, &context).await,
                Method::CloseSession => self.serve::<CloseSession>(ask.request, &context).await,
                Method::ForceRelease => self.serve::<ForceRelease>(ask.request, &context).await,
                Method::EndSession => self.serve::<EndSession>(ask.request, &context).await,
                Method::RenewLocks => self.renew_locks(ask.request, &context).await,
                Method::Unspecified => without_key(forward_response::Outcome::Unable(Unable {
                    nothing_done: true,
                    why: "this version does not know the method".to_owned(),
                })),
            },
        };
        Ok(Response::new(response))
    }

    type ForwardWatchStream = News;

    async fn forward_watch(
        &self,
        request: Request<ForwardWatchRequest>,
    ) -> Result<Response<News>, Status> {
        use forward_watch_response::Outcome;
        let deadline = Deadline::of_request(request.extensions());
        let ask = request.into_inner();
        let once = |outcome| {
            let said: News = Box::pin(stream::iter([news(outcome)]));
            Ok(Response::new(said))
        };
        if let Err(unable) = self.is_meant(&ask.to) {
            return once(Outcome::Unable(unable));
        }
        let parsed = match WatchLockRequest::decode(ask.request) {
            Ok(WatchLockRequest { lock_ref: text }) => parse::lock_ref(&text, &ask.identity)
                .map(|lock_ref| (lock_ref, text))
                .map_err(Status::from),
            Err(error) => Err(of_undecodable(&error)),
        };
        let (lock_ref, text) = match parsed {
            Ok(parsed) => parsed,
            Err(invalid) => return once(Outcome::Refusal(refusal(&invalid))),
        };
        let answer_by = deadline.answer_within(self.limits.call_max());
        let opened = async { Ok(self.engine.watch(&lock_ref).await) };
        let watched = match by(answer_by, opened).await {
            Ok(Ok(watched)) => watched,
            Ok(Err(error)) => {
                return once(match not_here(&error) {
                    Some(NotHere::Elsewhere(elsewhere)) => Outcome::Elsewhere(elsewhere),
                    Some(NotHere::Unable(unable)) => Outcome::Unable(unable),
                    None => Outcome::Refusal(refusal(&status::of_engine(&error))),
                });
            }
            Err(late) => return once(Outcome::Refusal(refusal(&late))),
        };
        let begun = stream::iter([news(Outcome::News(Bytes::new()))]);
        let messages = watch::stream(text, watched);
        let messages = messages.map(|one| news(Outcome::News(one.encode_to_vec().into())));
        let mut stopping = self.stopping.clone();
        let messages = messages.take_until(async move { stopping.stopped().await });
        let ended = stream::iter([news(Outcome::Unable(Unable {
            nothing_done: true,
            why: "the replica is stopping, or the watch has ended".to_owned(),
        }))]);
        let all = begun.chain(messages).chain(ended);
        let all = all.take_until(until(deadline.answer_by()));
        Ok(Response::new(Box::pin(all)))
    }

    async fn hint(&self, request: Request<HintRequest>) -> Result<Response<HintResponse>, Status> {
        match request.into_inner().what {
            Some(What::HandedOver(key)) => {
                let id = parse::key_id(&key.key, &key.table, &self.limits)?;
                let handed_over = self.engine.handed_over(id, key.term);
                handed_over.map_err(|error| status::of_engine(&error))?;
            }
            Some(What::SessionGiven(session)) => {
                if let Ok(session) = Uuid::from_slice(&session) {
                    self.engine.session_given(SessionId(session));
                }
            }
            Some(What::SessionDisconnected(session)) => {
                if let Ok(session) = Uuid::from_slice(&session) {
                    self.engine.disconnected(SessionId(session));
                }
            }
            Some(What::Leaving(id)) => {
                if let Ok(id) = Uuid::from_slice(&id) {
                    self.engine.note_leaving(ReplicaId(id));
                }
            }
            None => {}
        }
        Ok(Response::new(HintResponse {}))
    }

    async fn end_sessions(
        &self,
        request: Request<EndSessionsRequest>,
    ) -> Result<Response<EndSessionsResponse>, Status> {
        let sessions = session_ids(&request.into_inner().sessions);
        let left = self.engine.sessions_ended_elsewhere(sessions).await;
        Ok(Response::new(EndSessionsResponse {
            left: left.into_iter().map(|one| id_bytes(one.0)).collect(),
        }))
    }

    async fn describe_activity(
        &self,
        request: Request<DescribeActivityRequest>,
    ) -> Result<Response<DescribeActivityResponse>, Status> {
        let keys_max = usize::try_from(request.into_inner().keys_max).unwrap_or(0);
        let did = self
            .engine
            .activity(keys_max.min(self.limits.page_size_max));
        let did = did.map_err(|error| status::of_engine(&error))?;
        // It is another replica that answers.
        let answered = answer::activity(did, ReplicaId(Uuid::nil()));
        Ok(Response::new(DescribeActivityResponse {
            activity: answered.encode_to_vec().into(),
        }))
    }

    async fn describe_key(
        &self,
        request: Request<DescribeKeyRequest>,
    ) -> Result<Response<DescribeKeyResponse>, Status> {
        let _turn = listing_turn(&request, self.answer_by(&request)).await?;
        let ask = request.into_inner();
        Ok(Response::new(match self.is_meant(&ask.to) {
            Ok(()) => locks::describe_served(&self.engine, &self.limits, ask)?,
            // It serves nothing any more.
            Err(_) => DescribeKeyResponse::default(),
        }))
    }

    async fn list_keys(
        &self,
        request: Request<ListKeysRequest>,
    ) -> Result<Response<ListKeysResponse>, Status> {
        let _turn = listing_turn(&request, self.answer_by(&request)).await?;
        let ask = request.into_inner();
        Ok(Response::new(match self.is_meant(&ask.to) {
            Ok(()) => locks::list_served(&self.engine, &self.limits, ask).await?,
            // It serves nothing any more.
            Err(_) => ListKeysResponse::default(),
        }))
    }

    async fn renew_session(
        &self,
        request: Request<RenewSessionRequest>,
    ) -> Result<Response<RenewSessionResponse>, Status> {
        use renew_session_response::Outcome;
        let deadline = Deadline::of_request(request.extensions());
        let ask = request.into_inner();
        let outcome = match self.is_meant(&ask.to) {
            Err(unable) => Outcome::Unable(unable),
            Ok(()) => {
                let session = Uuid::from_slice(&ask.session).unwrap_or(Uuid::nil());
                let renew = async { Ok(self.engine.renew_kept(SessionId(session)).await) };
                let answer_by = deadline.answer_within(self.limits.call_max());
                renewed(by(answer_by, renew).await?)
            }
        };
        Ok(Response::new(RenewSessionResponse {
            outcome: Some(outcome),
        }))
    }
}

fn renewed(
    renewed: Result<crate::engine::Renewed, EngineError>,
) -> renew_session_response::Outcome {
    use renew_session_response::Outcome;
    let error = match renewed {
        Ok(renewed) => {
            return Outcome::Renewed(Renewed {
                ttl: Some(answer::duration(renewed.ttl)),
                valid_for: Some(answer::duration(renewed.valid_for)),
                disconnect_grace: renewed.disconnect_grace.map(answer::duration),
            });
        }
        Err(error) => error,
    };
    match (not_here(&error), &error) {
        (Some(NotHere::Elsewhere(elsewhere)), _) => Outcome::Elsewhere(elsewhere),
        (Some(NotHere::Unable(unable)), _) => Outcome::Unable(unable),
        (None, EngineError::SessionEnded) => Outcome::Ended(Ended {}),
        (None, EngineError::Exhausted { limit, .. }) => {
            Outcome::Exhausted(Exhausted { limit: *limit })
        }
        (None, other) => Outcome::Unable(Unable {
            nothing_done: false,
            why: other.to_string(),
        }),
    }
}
