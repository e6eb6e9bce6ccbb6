//! The client: its endpoints, and how one call is made: on one of them, with a deadline, repeated
//! where repeating can help.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use fermata_proto::lock_admin_client::LockAdminClient;
use fermata_proto::lock_service_client::LockServiceClient;
use tokio::runtime::Handle;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status, TimeoutExpired};
use tonic_health::pb::health_client::HealthClient;

use super::alert::refused_certificate;
use super::answer::Acquired;
use super::background::Background;
use super::call_metadata::CallMetadata;
use super::clock::{BootClock, Clock, Moment};
use super::confirms::Confirms;
use super::connections::{Connect, Connections, LongCallLimits, LongCallPermit, LongCallStream};
use super::endpoint::connector;
use super::error::ConnectError;
use super::fault::{ServerError, no_answer_within, rounded};
use super::homes::{self, Homes};
use super::keep_alive::{KeepAliveLink, KeepAlives};
use super::last_failure::LastFailure;
use super::not_grpc;
use super::options::ClientOptions;
use super::pipeline::{Call, Pipeline};
use super::retry::{Backoff, Verdict, is_for_elsewhere, judge};

/// The largest answer taken. Values are at most 64 MiB by any configuration.
pub(super) const ANSWER_BYTES_MAX: usize = 65 * 1024 * 1024;
/// The server is told this much less than what is left, so that its answer still comes in time.
const DEADLINE_MARGIN: Duration = Duration::from_millis(100);
/// What is left for an attempt that is made sooner than the pause before it would end.
const LAST_ATTEMPT: Duration = Duration::from_millis(500);
/// A client of the lock service. Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct Client {
    shared: Arc<ClientShared>,
}

struct ClientShared {
    connections: Connections,
    homes: Homes,
    keep_alives: KeepAlives,
    confirms: Confirms,
    background: Background,
    /// Of attempts that were repeated, or may be.
    last_failure: LastFailure,
    /// A server answered a call.
    has_answered: AtomicBool,
    options: ClientOptions,
    clock: Arc<dyn Clock>,
    /// The one that the client was made in.
    runtime: Option<Handle>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("endpoints", &self.shared.connections.len())
            .field("options", &self.shared.options)
            .finish_non_exhaustive()
    }
}

/// What the last attempt says, where it was cut short by the end of the whole: of that it is to speak.
fn of_all_attempts(status: Status, total: Duration, took: Duration) -> Status {
    match status.code() {
        Code::DeadlineExceeded => no_answer_within(total),
        _ => {
            let words = format!("{} (tried for {})", status.message(), rounded(took));
            let details = Bytes::copy_from_slice(status.details());
            let metadata = status.metadata().clone();
            let mut tried =
                Status::with_details_and_metadata(status.code(), words, details, metadata);
            // By it a call that did not come through differs from one that was answered.
            tried.set_source(Arc::new(status));
            tried
        }
    }
}

fn metadata_of(options: &ClientOptions) -> CallMetadata {
    CallMetadata {
        zone: options.zone.clone(),
        token: options.token.clone(),
    }
}

/// An answer, with when it was asked for.
pub(super) struct Answer<T> {
    pub(super) message: T,
    /// Before the request left.
    pub(super) sent: Moment,
}

/// What one attempt is made with.
pub(super) struct Attempt {
    channel: Channel,
    /// Of a call that does not stay open.
    pipeline: Option<Pipeline>,
    timeout: Duration,
    /// Of a call that stays open: held for as long as that does.
    stream: Option<LongCallStream>,
    metadata: CallMetadata,
}

impl Attempt {
    pub(super) fn locks(&self) -> LockServiceClient<Channel> {
        LockServiceClient::new(self.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    pub(super) fn admin(&self) -> LockAdminClient<Channel> {
        LockAdminClient::new(self.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    pub(super) fn health(&self) -> HealthClient<Channel> {
        HealthClient::new(self.channel.clone())
    }

    /// A request with the deadline of this attempt.
    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(self.timeout);
        self.metadata.put_on(&mut request);
        request
    }

    /// A request of a call that stays open, without a deadline.
    pub(super) fn stream_request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        self.metadata.put_on_stream(&mut request);
        request
    }

    /// Makes a call of the contract that one answer ends: over the Pipeline, unless it stays open.
    pub(super) async fn call<C: Call>(self, message: C) -> Result<Response<C::Answer>, Status> {
        match &self.pipeline {
            Some(pipeline) => pipeline.call(message, self.timeout).await,
            None => C::by_itself(self.locks(), self.request(message)).await,
        }
    }

    /// The stream of a call that stays open.
    pub(super) fn into_stream(self) -> Option<LongCallStream> {
        self.stream
    }
}

impl Client {
    /// A client of one or several replicas of one service. Connects when it is first used. Must be called
    /// inside a Tokio runtime.
    pub fn connect<E>(endpoints: impl IntoIterator<Item = E>) -> Result<Client, ConnectError>
    where
        E: AsRef<str>,
    {
        Client::connect_with(endpoints, ClientOptions::default())
    }

    /// The same with other than the default options.
    pub fn connect_with<E>(
        endpoints: impl IntoIterator<Item = E>,
        options: ClientOptions,
    ) -> Result<Client, ConnectError>
    where
        E: AsRef<str>,
    {
        let replicas = endpoints
            .into_iter()
            .map(|endpoint| {
                let connect = connector(endpoint.as_ref(), &options)?;
                Ok((endpoint.as_ref().to_owned(), connect))
            })
            .collect::<Result<Vec<_>, _>>()?;
        Client::checked(replicas, options, Arc::new(BootClock))
    }

    /// A client of several replicas with a clock of one's own. Each replica has a name for messages, and what makes a
    /// new connection to it, which connects when it is first used.
    pub fn from_connectors_and_clock<C>(
        connectors: impl IntoIterator<Item = (String, C)>,
        options: ClientOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Client, ConnectError>
    where
        C: Fn() -> Channel + Send + Sync + 'static,
    {
        let replicas = connectors
            .into_iter()
            .map(|(name, connect)| (name, Connect::new(connect)))
            .collect();
        Client::checked(replicas, options, clock)
    }

    fn checked(
        replicas: Vec<(String, Connect)>,
        options: ClientOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Client, ConnectError> {
        if replicas.is_empty() {
            return Err(ConnectError::NoEndpoint);
        }
        if Handle::try_current().is_err() {
            return Err(ConnectError::NoRuntime);
        }
        Ok(Client::from_parts(replicas, options, clock))
    }

    fn from_parts(
        replicas: Vec<(String, Connect)>,
        options: ClientOptions,
        clock: Arc<dyn Clock>,
    ) -> Client {
        let limits = LongCallLimits {
            per_connection: options.waits_per_connection,
            connections_max: options.wait_connections_max,
        };
        Client {
            shared: Arc::new(ClientShared {
                connections: Connections::new(replicas, limits, &metadata_of(&options)),
                homes: Homes::default(),
                keep_alives: KeepAlives::default(),
                confirms: Confirms::default(),
                background: Background::default(),
                last_failure: LastFailure::default(),
                has_answered: AtomicBool::new(false),
                options,
                clock,
                runtime: Handle::try_current().ok(),
            }),
        }
    }

    /// The options in force.
    pub fn options(&self) -> &ClientOptions {
        &self.shared.options
    }

    /// Why nothing comes: what the last attempt of a call failed with, where that is repeated; `None` once a server answered.
    pub fn last_failure(&self) -> Option<ServerError> {
        self.shared.last_failure.get()
    }

    /// Whether a server ever answered a call of this client, or of a clone of it, other than that it be made again.
    pub fn has_answered(&self) -> bool {
        self.shared.has_answered.load(Ordering::Relaxed)
    }

    fn note_answer(&self) {
        self.shared.has_answered.store(true, Ordering::Relaxed);
        self.shared.last_failure.forget();
    }

    /// The clock that validity is counted on.
    pub fn clock(&self) -> &dyn Clock {
        &*self.shared.clock
    }

    pub(super) fn shared_clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.shared.clock)
    }

    pub(super) fn now(&self) -> Moment {
        self.shared.clock.now()
    }

    /// When an operation that begins now is to have ended.
    pub(super) fn end(&self) -> Moment {
        self.now().after(self.options().timeout)
    }

    /// The number of the replica in use, and an attempt at it.
    pub(super) fn attempt(&self, timeout: Duration) -> (usize, Attempt) {
        let at = self.shared.connections.current();
        (at, self.attempt_at(at, timeout))
    }

    fn metadata(&self) -> CallMetadata {
        metadata_of(&self.shared.options)
    }

    fn attempt_at(&self, at: usize, timeout: Duration) -> Attempt {
        Attempt {
            channel: self.shared.connections.calls(at),
            pipeline: (self.shared.options.pipeline).then(|| self.shared.connections.pipeline(at)),
            timeout,
            stream: None,
            metadata: self.metadata(),
        }
    }

    /// The same for a call that stays open, on a connection for such.
    pub(super) fn long_attempt(
        &self,
        timeout: Duration,
        permit: LongCallPermit,
    ) -> (usize, Attempt) {
        let at = self.shared.connections.current();
        (at, self.long_attempt_at(at, timeout, permit))
    }

    fn long_attempt_at(&self, at: usize, timeout: Duration, permit: LongCallPermit) -> Attempt {
        let stream = self.shared.connections.long_call(at, permit);
        Attempt {
            channel: stream.channel(),
            pipeline: None,
            timeout,
            stream: Some(stream),
            metadata: self.metadata(),
        }
    }

    /// The number of the replica that a call about this key is made at: its home, or the one in use.
    pub(super) fn best(&self, key: Option<&str>) -> usize {
        let home = key.and_then(|key| self.shared.homes.of(key));
        home.unwrap_or_else(|| self.shared.connections.current())
    }

    /// Remembers who the home of a key is, as an answer of this replica says.
    fn note_home<T>(&self, at: usize, key: &str, response: &Response<T>) {
        let shared = &self.shared;
        let Some(address) = homes::address(response.metadata()) else {
            // It is the one that answered, over a Pipeline.
            if at == shared.connections.current() {
                shared.homes.forget(key);
            }
            return;
        };
        let home = shared.connections.at_address(address);
        let other = home.filter(|at| *at != shared.connections.current());
        let term = homes::term(response.metadata());
        shared.homes.note(key, other, term);
    }

    /// A call about this key is made at the replica in use, until an answer says who its home is.
    pub(super) fn forget_home(&self, key: &str) {
        self.shared.homes.forget(key);
    }

    /// Asks whether a lock is held still, together with others.
    pub(super) async fn confirm(
        &self,
        lock_ref: String,
        timeout: Duration,
    ) -> Result<Acquired, Status> {
        self.shared.confirms.ask(self, lock_ref, timeout).await
    }

    /// Goes on to the next endpoint, unless another call has left `failed` already.
    pub(super) fn leave(&self, failed: usize) {
        self.shared.connections.leave(failed);
    }

    pub(super) fn connections(&self) -> &Connections {
        &self.shared.connections
    }

    /// The KeepAlive stream of this client, for as long as somebody has it.
    pub(super) fn keep_alive(&self) -> Arc<KeepAliveLink> {
        self.shared.keep_alives.link(self)
    }

    /// One attempt of `op`, given up after `timeout`: at the home of this key, where that is known; with a permit, of a call
    /// that stays open.
    pub(super) async fn once_on<T, F, Fut>(
        &self,
        key: Option<&str>,
        permit: Option<LongCallPermit>,
        timeout: Duration,
        op: F,
    ) -> Result<Answer<T>, Status>
    where
        F: FnOnce(Attempt) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        let at = self.best(key);
        let result = self.once_at(at, permit, timeout, op).await;
        if let Some(key) = key {
            match &result {
                Ok((response, _)) => self.note_home(at, key, response),
                Err(status) if is_for_elsewhere(status) => {
                    self.forget_home(key);
                }
                Err(_) => {}
            }
        }
        let (response, sent) = result?;
        Ok(Answer {
            message: response.into_inner(),
            sent,
        })
    }

    /// One attempt of `op` at the replica with this number, and when it was sent.
    pub(super) async fn once_at<T, F, Fut>(
        &self,
        at: usize,
        permit: Option<LongCallPermit>,
        timeout: Duration,
        op: F,
    ) -> Result<(Response<T>, Moment), Status>
    where
        F: FnOnce(Attempt) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        let answered = timeout.saturating_sub(DEADLINE_MARGIN).max(timeout / 2);
        let attempt = match permit {
            None => self.attempt_at(at, answered),
            Some(permit) => self.long_attempt_at(at, answered, permit),
        };
        let token = self.metadata().sent_token();
        let sent = self.now();
        let result = match tokio::time::timeout(timeout, op(attempt)).await {
            Ok(result) => result.map_err(not_grpc::of_answer),
            Err(_) => Err(no_answer_within(timeout)),
        };
        match result {
            Ok(response) => {
                self.note_answer();
                Ok((response, sent))
            }
            Err(status) => {
                let status = match is_of_deadline(&status) {
                    true => no_answer_within(timeout),
                    false if status.code() == Code::Unauthenticated => {
                        self.metadata().refused(status, token.as_ref())
                    }
                    false => status,
                };
                let status = self.named(at, status);
                match judge(&status) {
                    Verdict::Repeat { elsewhere, .. } => {
                        if elsewhere {
                            self.leave(at);
                        }
                        self.shared.last_failure.note(ServerError::new(&status));
                    }
                    Verdict::Final => self.note_answer(),
                }
                Err(status)
            }
        }
    }

    /// A status that was made here, out of a broken connection, says no more than that: adds the endpoint
    /// and the first cause.
    pub(super) fn named(&self, at: usize, status: Status) -> Status {
        let Some(cause) = status.source().map(first_cause) else {
            return status;
        };
        let endpoint = self.shared.connections.name(at);
        let message = status.message();
        // Of a Unix socket both are the same words.
        let mut words = match (message.contains(&cause), cause.contains(message)) {
            (true, _) => format!("{endpoint}: {message}"),
            (false, true) => format!("{endpoint}: {cause}"),
            (false, false) => format!("{endpoint}: {message}: {cause}"),
        };
        if self.shared.connections.hears_tls(at) {
            words.push_str(" (the server speaks TLS: https://)");
        }
        if let Some(why) = refused_certificate(&cause) {
            words.push_str(&format!(" ({why})"));
        }
        let mut named = Status::new(status.code(), words);
        named.set_source(Arc::new(status));
        named
    }

    /// Attempts of `op` until one succeeds, one fails for good, or `total` is up; at the home of this key.
    pub(super) async fn repeat<T, F, Fut>(
        &self,
        key: Option<&str>,
        total: Duration,
        mut op: F,
    ) -> Result<Answer<T>, Status>
    where
        F: FnMut(Attempt) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        let begun = self.now();
        let end = begun.after(total);
        let mut backoff = Backoff::new();
        let mut before: Option<Status> = None;
        loop {
            let left = self.now().until(end);
            let timeout = left.min(self.shared.options.attempt_timeout);
            let status = match self.once_on(key, None, timeout, &mut op).await {
                Ok(answer) => return Ok(answer),
                Err(status) => status,
            };
            let Verdict::Repeat { not_before, .. } = judge(&status) else {
                return Err(status);
            };
            if self.shared.connections.all_hear_tls() {
                return Err(status);
            }
            // One that was cut short says less than the one before; but where that was a refusal, this one may have been done.
            let is_cut_short = timeout < self.shared.options.attempt_timeout
                && status.code() == Code::DeadlineExceeded;
            let status = match before.take() {
                Some(before) if is_cut_short && before.code() != Code::ResourceExhausted => before,
                _ => status,
            };
            let left = self.now().until(end);
            let pause = match backoff.next(not_before) {
                // Where nobody asked to be left alone for longer the last attempt comes near the end.
                pause if not_before.is_none() && pause >= left && left > LAST_ATTEMPT => {
                    left - LAST_ATTEMPT
                }
                pause => pause,
            };
            if pause >= left {
                return Err(of_all_attempts(status, total, begun.until(self.now())));
            }
            before = Some(status.clone());
            tracing::debug!(code = ?status.code(), ?pause, "repeating a call");
            tokio::time::sleep(pause).await;
        }
    }

    /// The same within the client's own timeout.
    pub(super) async fn call<T, F, Fut>(&self, op: F) -> Result<Answer<T>, Status>
    where
        F: FnMut(Attempt) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        self.repeat(None, self.shared.options.timeout, op).await
    }

    /// The same, at the home of this key.
    pub(super) async fn call_about<T, F, Fut>(&self, key: &str, op: F) -> Result<Answer<T>, Status>
    where
        F: FnMut(Attempt) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        self.repeat(Some(key), self.shared.options.timeout, op)
            .await
    }

    /// Room for releases that nobody waits for.
    pub(super) fn background(&self) -> &Background {
        &self.shared.background
    }

    /// Runs something that nobody waits for, in the runtime that the client was made in, whatever thread asks for it. Once
    /// that has ended it is left undone: TTLs see to it.
    pub(super) fn in_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.shared.runtime {
            let undone = self.shared.background.begin();
            runtime.spawn(async move {
                work.await;
                drop(undone);
            });
        }
    }

    /// Returns once nothing is given back in the background any more, by this client or a clone of it: locks, entries and sessions
    /// that were dropped, or whose release was not answered. Each is tried until a server says what became of it, or refuses it
    /// for good, or it has ended by itself. For a process that is about to end, which ends that as well; to be bounded by whoever waits.
    pub async fn given_back(&self) {
        self.shared.background.done().await;
    }
}

/// Whether the transport gave the attempt up at its deadline, which is a moment before the client itself does.
fn is_of_deadline(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<TimeoutExpired>() {
            return true;
        }
        cause = error.source();
    }
    false
}

fn first_cause(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
