//! A lock service of one key, in memory, that does to each call what the test has prepared for it.

mod pipeline;
mod state;

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fermata_proto::lock_service_server::LockService;
use fermata_proto::*;
use futures_util::StreamExt as _;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_stream::Stream;
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_types::{ErrorDetails, StatusExt};

use state::{State, bare, span};

/// What happens to one call.
#[derive(Clone)]
pub enum Act {
    /// It is refused and has no effect.
    Refuse(Status),
    /// It takes effect, and its answer is lost.
    LoseAnswer,
    /// It takes effect, and its answer comes this late.
    Late(Duration),
    /// Nothing is known of it.
    Hang,
}

#[derive(Clone)]
pub struct Fake {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    breaks: Arc<Notify>,
    pipeline_breaks: Arc<Notify>,
}

impl Default for Fake {
    fn default() -> Self {
        Fake {
            state: Arc::new(Mutex::new(State::new())),
            changed: Arc::new(Notify::new()),
            breaks: Arc::new(Notify::new()),
            pipeline_breaks: Arc::new(Notify::new()),
        }
    }
}

/// A refusal with a reason for programs.
pub fn refusal(code: Code, reason: &str, words: &str) -> Status {
    let info = ErrorDetails::with_error_info(
        reason,
        DOMAIN,
        std::collections::HashMap::<String, String>::new(),
    );
    Status::with_error_details(code, words, info)
}

/// A refusal of a call for its number.
pub fn not_above(given: u64, last: u64) -> Status {
    let numbers = [("given", given), ("last", last)];
    let metadata = numbers.map(|(name, number)| (name.to_owned(), number.to_string()));
    let info = ErrorDetails::with_error_info("CALL_NO_NOT_ABOVE", DOMAIN, metadata);
    Status::with_error_details(Code::FailedPrecondition, "not above the last one", info)
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Fake {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn next(&self, method: &'static str, act: Act) {
        self.state().acts.entry(method).or_default().push_back(act);
    }

    pub fn always(&self, method: &'static str, act: Act) {
        self.state().always.insert(method, act);
    }

    pub fn always_all(&self, methods: &[&'static str], act: Act) {
        for method in methods {
            self.always(method, act.clone());
        }
    }

    /// The same of all later calls of a method about one lockRef.
    pub fn always_about(&self, method: &'static str, lock_ref: &str, act: Act) {
        let about = (method, bare(lock_ref).to_owned());
        self.state().always_about.insert(about, act);
    }

    /// How often a method was called.
    pub fn count(&self, method: &str) -> usize {
        let named = |call: &&String| call.split(' ').next() == Some(method);
        self.state().calls.iter().filter(named).count()
    }

    /// The calls of a method.
    pub fn calls(&self, method: &str) -> Vec<String> {
        let named = |call: &&String| call.split(' ').next() == Some(method);
        self.state().calls.iter().filter(named).cloned().collect()
    }

    /// Puts somebody else into the queue.
    pub fn occupy(&self) -> String {
        let mut state = self.state();
        state.next += 1;
        let lock_ref = format!("default/k#{}.00000000", state.next);
        state.queue.push_back((lock_ref.clone(), String::new()));
        lock_ref
    }

    /// Ends an entry.
    pub fn end(&self, lock_ref: &str, reason: &'static str, words: &str) {
        let mut state = self.state();
        let lock_ref = bare(lock_ref).to_owned();
        state.queue.retain(|(entry, _)| *entry != lock_ref);
        state.ended.insert(lock_ref, (reason, words.to_owned()));
        drop(state);
        self.changed.notify_waiters();
    }

    /// Gives the present holder a new grant, as a take-over does.
    pub fn take_over(&self) {
        self.state().grant += 1_000;
        self.changed.notify_waiters();
    }

    /// Ends the KeepAlive streams that are open.
    pub fn break_streams(&self) {
        self.breaks.notify_waiters();
    }

    /// Ends the Pipelines that are open.
    pub fn break_pipelines(&self) {
        self.pipeline_breaks.notify_waiters();
    }

    /// Serves one call as prepared.
    async fn act<T>(
        &self,
        method: &'static str,
        call: String,
        effect: impl FnOnce(&mut State) -> Result<T, Status>,
    ) -> Result<Response<T>, Status> {
        let act = {
            let mut state = self.state();
            state.calls.push(format!("{method} {call}"));
            let next = state.acts.get_mut(method).and_then(VecDeque::pop_front);
            let about = call.split(['@', ' ']).next().unwrap_or_default();
            let about = (method, about.to_owned());
            let of_it = || state.always_about.get(&about).cloned();
            next.or_else(of_it)
                .or_else(|| state.always.get(method).cloned())
        };
        match act {
            Some(Act::Refuse(status)) => return Err(status),
            Some(Act::Hang) => std::future::pending().await,
            Some(Act::Late(late)) => {
                let answer = effect(&mut self.state());
                self.changed.notify_waiters();
                sleep(late).await;
                return answer.map(Response::new);
            }
            Some(Act::LoseAnswer) => {
                let _lost = effect(&mut self.state());
                self.changed.notify_waiters();
                return Err(Status::unavailable("the connection broke"));
            }
            None => {}
        }
        let answer = effect(&mut self.state());
        self.changed.notify_waiters();
        let mut response = Response::new(answer?);
        if let Some(home) = &self.state().home {
            let home = home.parse().unwrap();
            response.metadata_mut().insert(HOME_ADDRESS, home);
        }
        Ok(response)
    }
}

/// A KeepAlive stream that counts as open.
struct OpenStream(Fake);

impl OpenStream {
    fn new(fake: &Fake) -> OpenStream {
        let mut state = fake.state();
        state.streams += 1;
        state.streams_open += 1;
        OpenStream(fake.clone())
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.state().streams_open -= 1;
    }
}

#[tonic::async_trait]
impl LockService for Fake {
    async fn create_lock_ref(
        &self,
        request: Request<CreateLockRefRequest>,
    ) -> Result<Response<CreateLockRefResponse>, Status> {
        let zone = request.metadata().get("fermata-zone");
        let zone = zone.map(|zone| zone.to_str().unwrap().to_owned());
        let request = request.into_inner();
        let call = request.request_id.clone();
        self.act("create", call, |state| {
            state.zone = zone;
            let known = |(_, id): &&(String, String)| *id == request.request_id;
            let known = state.queue.iter().find(known).cloned();
            let already_existed = known.is_some();
            let lock_ref = known.map_or_else(
                || {
                    state.next += 1;
                    let lock_ref = format!("default/k#{}.00000000", state.next);
                    state
                        .queue
                        .push_back((lock_ref.clone(), request.request_id.clone()));
                    lock_ref
                },
                |(lock_ref, _)| lock_ref,
            );
            let acquired = state.acquired(&lock_ref)?;
            Ok(CreateLockRefResponse {
                lock_ref: acquired.lock_ref,
                state: acquired.state,
                position: acquired.position,
                fencing_token: acquired.fencing_token,
                session: if request.session.is_empty() {
                    lock_ref
                } else {
                    request.session
                },
                ttl: span(state.ttl),
                valid_for: state.lock_valid_for(),
                durable: state.durable(),
                already_existed,
                exists: request.read_value && state.value.is_some(),
                value: state
                    .value
                    .clone()
                    .filter(|_| request.read_value)
                    .unwrap_or_default(),
            })
        })
        .await
    }

    async fn acquire_lock(
        &self,
        request: Request<AcquireLockRequest>,
    ) -> Result<Response<AcquireLockResponse>, Status> {
        let request = request.into_inner();
        let wait = crate::calls::wire::from_wire(request.wait);
        let lock_ref = request.lock_ref.clone();
        self.act("acquire", format!("{wait:?}"), |_| Ok(())).await?;
        let refused = self.state().always.get("long acquire").cloned();
        if let Some(Act::Refuse(status)) = refused
            && !wait.is_zero()
        {
            return Err(status);
        }
        let turn = async {
            loop {
                let changed = self.changed.notified();
                let now = self.state().acquired(&lock_ref);
                match now {
                    Ok(acquired) if acquired.state == i32::from(LockState::Waiting) => {}
                    other => return other,
                }
                changed.await;
            }
        };
        let mut answer = match timeout(wait, turn).await {
            Ok(answer) => answer?,
            Err(_) => self.state().acquired(&lock_ref)?,
        };
        let value = self.state().value.clone();
        if let Some(value) = value.filter(|_| request.read_value) {
            (answer.value, answer.exists) = (value, true);
        }
        Ok(Response::new(answer))
    }

    async fn renew_locks(
        &self,
        request: Request<RenewLocksRequest>,
    ) -> Result<Response<RenewLocksResponse>, Status> {
        let lock_refs = request.into_inner().lock_refs;
        let number = lock_refs.len().to_string();
        self.act("renew_locks", number, |state| {
            let renewed = lock_refs
                .iter()
                .map(|lock_ref| match state.acquired(lock_ref) {
                    Ok(acquired) => lock_renewal::Outcome::Renewed(acquired),
                    Err(status) => lock_renewal::Outcome::Error(LockError {
                        code: status.code().into(),
                        message: status.message().to_owned(),
                        details: status.details().to_vec().into(),
                        ..LockError::default()
                    }),
                });
            let renewals = renewed.map(|outcome| LockRenewal {
                outcome: Some(outcome),
            });
            Ok(RenewLocksResponse {
                renewals: renewals.collect(),
            })
        })
        .await
    }

    async fn release_lock(
        &self,
        request: Request<ReleaseLockRequest>,
    ) -> Result<Response<ReleaseLockResponse>, Status> {
        let request = request.into_inner();
        self.act("release", request.lock_ref.clone(), |state| {
            let entry = bare(&request.lock_ref).to_owned();
            if let (Some(refusal), Some(_)) = (&state.refuses_puts, &request.put) {
                return Err(refusal.clone());
            }
            match state.ended.get(&entry) {
                Some(("RELEASED", _)) => {
                    return Ok(ReleaseLockResponse {
                        already_released: true,
                    });
                }
                Some((reason, words)) => {
                    return Err(refusal(Code::FailedPrecondition, reason, words));
                }
                None => {}
            }
            if let Some(put) = request.put {
                state.holder(&request.lock_ref, request.call_no)?;
                state.value = (!put.delete).then_some(put.value);
            }
            state.queue.retain(|(queued, _)| *queued != entry);
            state
                .ended
                .insert(entry, ("RELEASED", "it was released".to_owned()));
            Ok(ReleaseLockResponse::default())
        })
        .await
    }

    async fn critical_get(
        &self,
        request: Request<CriticalGetRequest>,
    ) -> Result<Response<CriticalGetResponse>, Status> {
        let request = request.into_inner();
        self.act("get", String::new(), |state| {
            state.holder(&request.lock_ref, request.call_no)?;
            Ok(CriticalGetResponse {
                exists: state.value.is_some(),
                value: state.value.clone().unwrap_or_default(),
                valid_for: state.lock_valid_for(),
                durable: state.durable(),
            })
        })
        .await
    }

    async fn critical_put(
        &self,
        request: Request<CriticalPutRequest>,
    ) -> Result<Response<CriticalPutResponse>, Status> {
        let request = request.into_inner();
        self.act("put", String::new(), |state| {
            state.holder(&request.lock_ref, request.call_no)?;
            state.value = Some(request.value);
            Ok(CriticalPutResponse {
                valid_for: state.lock_valid_for(),
                durable: state.durable(),
            })
        })
        .await
    }

    async fn critical_delete(
        &self,
        request: Request<CriticalDeleteRequest>,
    ) -> Result<Response<CriticalDeleteResponse>, Status> {
        let request = request.into_inner();
        self.act("delete", String::new(), |state| {
            state.holder(&request.lock_ref, request.call_no)?;
            state.value = None;
            Ok(CriticalDeleteResponse {
                valid_for: state.lock_valid_for(),
                durable: state.durable(),
            })
        })
        .await
    }

    type WatchLockStream = Answers<WatchLockResponse>;

    async fn watch_lock(
        &self,
        request: Request<WatchLockRequest>,
    ) -> Result<Response<Self::WatchLockStream>, Status> {
        let lock_ref = request.into_inner().lock_ref;
        self.act("watch", lock_ref.clone(), |_| Ok(())).await?;
        let (notify, answered) = tokio::sync::mpsc::channel(16);
        let fake = self.clone();
        tokio::spawn(async move {
            loop {
                let changed = fake.changed.notified();
                let status = fake.state().acquired(&lock_ref);
                let (message, ended) = match status {
                    Ok(now) => (
                        WatchLockResponse {
                            state: now.state,
                            lock_ref: now.lock_ref,
                            position: now.position,
                            fencing_token: now.fencing_token,
                            valid_for: now.valid_for,
                            estimated_wait: fake.state().estimated(now.position),
                            ..WatchLockResponse::default()
                        },
                        false,
                    ),
                    Err(status) => {
                        let info = status.get_details_error_info();
                        let reason = info.map_or_else(String::new, |info| info.reason);
                        let reason = format!("END_REASON_{reason}");
                        let reason = EndReason::from_str_name(&reason).unwrap_or_default();
                        (
                            WatchLockResponse {
                                state: LockState::Lost.into(),
                                reason: reason.into(),
                                detail: status.message().to_owned(),
                                ..WatchLockResponse::default()
                            },
                            true,
                        )
                    }
                };
                if notify.send(Ok(message)).await.is_err() || ended {
                    return;
                }
                changed.await;
            }
        });
        let answered = tokio_stream::wrappers::ReceiverStream::new(answered);
        Ok(Response::new(Box::pin(answered)))
    }

    async fn open_session(
        &self,
        request: Request<OpenSessionRequest>,
    ) -> Result<Response<OpenSessionResponse>, Status> {
        let request = request.into_inner();
        let session = format!("session-{}", request.request_id);
        self.act("open_session", request.request_id, |state| {
            let grace = request.disconnect_grace;
            state.disconnect_grace = grace.and_then(|grace| grace.try_into().ok());
            Ok(OpenSessionResponse {
                session,
                disconnect_grace: grace,
                ttl: span(state.ttl),
                valid_for: state.valid_for(),
            })
        })
        .await
    }

    async fn renew_session(
        &self,
        request: Request<RenewSessionRequest>,
    ) -> Result<Response<RenewSessionResponse>, Status> {
        let session = request.into_inner().session;
        self.act("renew", session.clone(), |state| {
            state.renewed(&session)?;
            Ok(RenewSessionResponse {
                disconnect_grace: state.disconnect_grace.and_then(span),
                ttl: span(state.ttl),
                valid_for: state.valid_for_of(&session),
                durable: false,
            })
        })
        .await
    }

    type KeepAliveStream = Answers<KeepAliveResponse>;

    async fn keep_alive(
        &self,
        request: Request<Streaming<KeepAliveRequest>>,
    ) -> Result<Response<Self::KeepAliveStream>, Status> {
        let open = OpenStream::new(self);
        let fake = self.clone();
        let answers = request.into_inner().then(move |asked| {
            let fake = fake.clone();
            async move {
                let session = asked?.session;
                let answer = fake.act("keep_alive", session.clone(), |state| {
                    Ok(match state.renewed(&session) {
                        Ok(()) if state.says_nothing => KeepAliveResponse {
                            session: session.clone(),
                            valid_for: span(Duration::ZERO),
                            ..KeepAliveResponse::default()
                        },
                        Ok(()) => KeepAliveResponse {
                            session: session.clone(),
                            ttl: span(state.ttl),
                            valid_for: state.valid_for_of(&session),
                            disconnect_grace: state.disconnect_grace.and_then(span),
                            ..KeepAliveResponse::default()
                        },
                        Err(_) => KeepAliveResponse {
                            session: session.clone(),
                            reason: EndReason::Forced.into(),
                            ..KeepAliveResponse::default()
                        },
                    })
                });
                answer.await.map(Response::into_inner)
            }
        });
        let breaks = Arc::clone(&self.breaks);
        let answers = answers.take_until(async move { breaks.notified().await });
        let answers = answers.inspect(move |_| {
            let _ = &open;
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn close_session(
        &self,
        request: Request<CloseSessionRequest>,
    ) -> Result<Response<CloseSessionResponse>, Status> {
        let session = request.into_inner().session;
        self.act("close_session", session, |_| {
            Ok(CloseSessionResponse::default())
        })
        .await
    }

    async fn get(&self, _: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        self.act("read", String::new(), |state| {
            Ok(GetResponse {
                exists: state.value.is_some(),
                value: state.value.clone().unwrap_or_default(),
            })
        })
        .await
    }

    type PipelineStream = Answers<PipelineResponse>;

    async fn pipeline(
        &self,
        request: Request<Streaming<PipelineRequest>>,
    ) -> Result<Response<Self::PipelineStream>, Status> {
        self.act("pipeline", String::new(), |_| Ok(())).await?;
        let answers = pipeline::answers(self, request);
        let breaks = Arc::clone(&self.pipeline_breaks);
        let answers = answers.take_until(async move { breaks.notified().await });
        Ok(Response::new(Box::pin(answers)))
    }
}
