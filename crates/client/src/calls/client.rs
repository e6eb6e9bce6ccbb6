//! The client: its endpoints, and the attempts of one call. An attempt goes to one endpoint, with a deadline. It is repeated if a
//! repeat can help.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fermata_proto::lock_admin_client::LockAdminClient;
use fermata_proto::lock_service_client::LockServiceClient;
use tokio::runtime::Handle;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};
use tonic_health::pb::health_client::HealthClient;

use super::background::Background;
use super::fault::{LastFailure, ServerError};
use super::homes::{self, Homes};
use super::validity::{Promise, Validity};
use super::wire::from_wire;
use crate::clock::{BootClock, Clock, Moment};
use crate::transport::connections::{Connections, LongCallPermit, LongCallStream};
use crate::transport::endpoint::{Connect, ConnectError};
use crate::transport::local_status::{
    causes, in_other_words, is_of_deadline, no_answer_within, rounded,
};
use crate::transport::not_grpc;
use crate::transport::options::ClientOptions;
use crate::transport::pipeline::{ANSWER_BYTES_MAX, Call, Opener, Pipeline};
use crate::transport::retry::{Backoff, Verdict, judge};
use crate::transport::tls::refused_certificate;

/// The deadline sent to the server is this much shorter than the remaining time, so that its answer still comes in time.
const DEADLINE_MARGIN: Duration = Duration::from_millis(100);

/// A client of the lock service. Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct Client {
    shared: Arc<ClientShared>,
}

struct ClientShared {
    connections: Connections,
    homes: Homes,
    background: Background,
    /// The failure of the last attempt that was or may be repeated.
    last_failure: LastFailure,
    /// A server answered a call.
    has_answered: AtomicBool,
    options: ClientOptions,
    clock: Arc<dyn Clock>,
    /// The runtime that the client was made in.
    runtime: Handle,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("endpoints", &self.shared.connections.len())
            .field("options", &self.shared.options)
            .finish_non_exhaustive()
    }
}

/// The status of the last attempt, with the time that all attempts took.
fn of_all_attempts(status: Status, total: Duration, took: Duration) -> Status {
    match status.code() {
        Code::DeadlineExceeded => no_answer_within(total),
        _ => {
            let words = format!("{} (tried for {})", status.message(), rounded(took));
            // With a source: a call that did not come through differs by it from one that was answered.
            in_other_words(status, words)
        }
    }
}

/// An answer, and the time of its request.
pub(crate) struct Answer<T> {
    pub(crate) message: T,
    /// Before the request left.
    pub(crate) sent: Moment,
}

impl<T> Answer<T> {
    /// The validity of the lockRef or session in the answer.
    pub(crate) fn validity(&self, valid_for: Option<prost_types::Duration>) -> Validity {
        Validity::promised(self.sent, from_wire(valid_for))
    }

    /// The promise of an answer about a lock.
    pub(crate) fn promise(
        &self,
        valid_for: Option<prost_types::Duration>,
        durable: bool,
    ) -> Promise {
        Promise {
            validity: self.validity(valid_for),
            durable,
        }
    }
}

/// How often a call is made.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tries {
    /// Once, for this time at most.
    Once(Duration),
    /// Until an answer asks for no repeat, or this time has passed.
    For(Duration),
}

/// The connection of one attempt.
pub(crate) struct Attempt {
    opener: Opener,
    /// Of a call that does not stay open.
    pipeline: Option<Pipeline>,
    timeout: Duration,
    /// For a call that stays open: kept as long as the call.
    stream: Option<LongCallStream>,
}

impl Attempt {
    pub(crate) fn locks(&self) -> LockServiceClient<Channel> {
        self.opener.locks()
    }

    pub(crate) fn admin(&self) -> LockAdminClient<Channel> {
        LockAdminClient::new(self.opener.channel.clone())
            .max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    pub(crate) fn health(&self) -> HealthClient<Channel> {
        HealthClient::new(self.opener.channel.clone())
    }

    /// A request with the deadline of this attempt.
    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        self.opener.request(message, Some(self.timeout))
    }

    /// A request of a call that stays open, without a deadline.
    pub(crate) fn stream_request<T>(&self, message: T) -> Request<T> {
        self.opener.request(message, None)
    }

    /// Makes a call with one answer: over the Pipeline, unless the call stays open.
    pub(crate) async fn call<C: Call>(self, message: C) -> Result<Response<C::Answer>, Status> {
        match &self.pipeline {
            Some(pipeline) => pipeline.call(message, self.timeout).await,
            None => self.opener.by_itself(message, self.timeout).await,
        }
    }

    /// The stream of a call that stays open.
    pub(crate) fn into_stream(self) -> Option<LongCallStream> {
        self.stream
    }
}

impl Client {
    /// A client of one or several replicas of one service. Connects on first use. Must be called inside a Tokio runtime.
    pub fn connect<E>(endpoints: impl IntoIterator<Item = E>) -> Result<Client, ConnectError>
    where
        E: AsRef<str>,
    {
        Client::connect_with(endpoints, ClientOptions::default())
    }

    /// As [`Client::connect`], with these options.
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
                let connect = Connect::to(endpoint.as_ref(), &options)?;
                Ok((endpoint.as_ref().to_owned(), connect))
            })
            .collect::<Result<_, _>>()?;
        Client::of(replicas, options, Arc::new(BootClock))
    }

    /// A client with the caller's clock. Each replica has a name for messages, and a function that makes a new connection. A
    /// connection connects on first use.
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
        Client::of(replicas, options, clock)
    }

    fn of(
        replicas: Vec<(String, Connect)>,
        options: ClientOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Client, ConnectError> {
        if replicas.is_empty() {
            return Err(ConnectError::NoEndpoint);
        }
        let runtime = Handle::try_current().map_err(|_| ConnectError::NoRuntime)?;
        Ok(Client {
            shared: Arc::new(ClientShared {
                connections: Connections::new(replicas, &options),
                homes: Homes::default(),
                background: Background::default(),
                last_failure: LastFailure::default(),
                has_answered: AtomicBool::new(false),
                options,
                clock,
                runtime,
            }),
        })
    }

    /// The options in force.
    pub fn options(&self) -> &ClientOptions {
        &self.shared.options
    }

    /// The failure of the last attempt of a repeated call; `None` once a server answered.
    pub fn last_failure(&self) -> Option<ServerError> {
        self.shared.last_failure.get()
    }

    /// Whether a server ever answered a call of this client or a clone, except by a failure that is repeated.
    pub fn has_answered(&self) -> bool {
        self.shared.has_answered.load(Ordering::Relaxed)
    }

    fn note_answer(&self) {
        self.shared.has_answered.store(true, Ordering::Relaxed);
        self.shared.last_failure.forget();
    }

    /// The clock for validity.
    pub fn clock(&self) -> &dyn Clock {
        &*self.shared.clock
    }

    pub(crate) fn shared_clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.shared.clock)
    }

    pub(crate) fn now(&self) -> Moment {
        self.shared.clock.now()
    }

    /// The end of an operation that begins now.
    pub(crate) fn end(&self) -> Moment {
        self.now().after(self.options().timeout)
    }

    /// The tries of an operation that begins now.
    pub(crate) fn tries(&self) -> Tries {
        Tries::For(self.options().timeout)
    }

    fn attempt_at(&self, at: usize, timeout: Duration, permit: Option<LongCallPermit>) -> Attempt {
        let Self { shared } = self;
        let connections = &shared.connections;
        let stream = permit.map(|permit| connections.long_call(at, permit));
        let channel = match &stream {
            Some(stream) => stream.channel(),
            None => connections.calls(at),
        };
        let in_frames = shared.options.pipeline && stream.is_none();
        Attempt {
            opener: Opener {
                channel,
                metadata: shared.options.metadata(),
            },
            pipeline: in_frames.then(|| connections.pipeline(at)),
            timeout,
            stream,
        }
    }

    /// The number of the replica in use, and an attempt of a call that stays open on this replica.
    pub(crate) fn long_attempt(&self, permit: LongCallPermit) -> (usize, Attempt) {
        let at = self.shared.connections.current();
        (
            at,
            self.attempt_at(at, self.options().timeout, Some(permit)),
        )
    }

    /// The number of the home of this key, if known, or else of the replica in use.
    pub(crate) fn place_of(&self, key: Option<&str>) -> usize {
        let home = key.and_then(|key| self.shared.homes.of(key));
        home.unwrap_or_else(|| self.shared.connections.current())
    }

    /// Remembers the home of a key, as an answer of this replica names it.
    fn note_home<T>(&self, at: usize, key: &str, response: &Response<T>) {
        match homes::address(response.metadata()) {
            Some(address) => self.note_home_address(key, address),
            // Over a Pipeline: the replica that answered.
            None if at == self.shared.connections.current() => self.shared.homes.forget(key),
            None => {}
        }
    }

    /// Remembers the address of the home of a key.
    pub(crate) fn note_home_address(&self, key: &str, address: &str) {
        let shared = &self.shared;
        let home = shared.connections.at_address(address);
        let other = home.filter(|at| *at != shared.connections.current());
        shared.homes.note(key, other);
    }

    /// Leaves a replica that failed, and forgets that it was the home of a key.
    pub(crate) fn go_elsewhere(&self, failed: usize, key: Option<&str>) {
        self.leave(failed);
        if let Some(key) = key {
            self.shared.homes.forget(key);
        }
    }

    /// Switches to the next endpoint, unless another call has already switched from `failed`.
    pub(crate) fn leave(&self, failed: usize) {
        self.shared.connections.leave(failed);
    }

    pub(crate) fn connections(&self) -> &Connections {
        &self.shared.connections
    }

    /// One attempt of `op`, given up after `timeout`: at the home of this key, if known. With a permit the call stays open.
    pub(crate) async fn once<T, F, Fut>(
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
        let shared = &self.shared;
        let at = self.place_of(key);
        let answered = timeout.saturating_sub(DEADLINE_MARGIN).max(timeout / 2);
        let attempt = self.attempt_at(at, answered, permit);
        let metadata = shared.options.metadata();
        let token = metadata.sent_token();
        let sent = self.now();
        let result = match tokio::time::timeout(timeout, op(attempt)).await {
            Ok(result) => result.map_err(not_grpc::of_answer),
            Err(_) => Err(no_answer_within(timeout)),
        };
        let status = match result {
            Ok(response) => {
                self.note_answer();
                if let Some(key) = key {
                    self.note_home(at, key, &response);
                }
                let message = response.into_inner();
                return Ok(Answer { message, sent });
            }
            Err(status) if is_of_deadline(&status) => no_answer_within(timeout),
            Err(status) if status.code() == Code::Unauthenticated => {
                metadata.refused(status, token.as_ref())
            }
            Err(status) => status,
        };
        let status = self.named(at, status);
        match judge(&status) {
            Verdict::Repeat { elsewhere, .. } => {
                if elsewhere {
                    self.go_elsewhere(at, key);
                }
                shared.last_failure.note(ServerError::new(&status));
            }
            Verdict::Final => self.note_answer(),
        }
        Err(status)
    }

    /// Adds the endpoint and the first cause to a status of this client for a broken connection, which lacks both.
    pub(crate) fn named(&self, at: usize, status: Status) -> Status {
        let Some(cause) = causes(&status).last().map(ToString::to_string) else {
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
        in_other_words(status, words)
    }

    /// Attempts of `op` at the home of this key.
    pub(crate) async fn make<T, F, Fut>(
        &self,
        key: Option<&str>,
        tries: Tries,
        mut op: F,
    ) -> Result<Answer<T>, Status>
    where
        F: FnMut(Attempt) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        let total = match tries {
            Tries::Once(timeout) => return self.once(key, None, timeout, op).await,
            Tries::For(total) => total,
        };
        let attempt_timeout = self.options().attempt_timeout;
        let begun = self.now();
        let end = begun.after(total);
        let mut backoff = Backoff::new();
        let mut before: Option<Status> = None;
        loop {
            let timeout = self.now().until(end).min(attempt_timeout);
            let status = match self.once(key, None, timeout, &mut op).await {
                Ok(answer) => return Ok(answer),
                Err(status) => status,
            };
            let Verdict::Repeat { not_before, .. } = judge(&status) else {
                return Err(status);
            };
            if self.shared.connections.all_hear_tls() {
                return Err(status);
            }
            // An attempt that was cut short says less than the one before; but after a refusal, it may have been done.
            let is_cut_short = timeout < attempt_timeout && status.code() == Code::DeadlineExceeded;
            let status = match before.take() {
                Some(before) if is_cut_short && before.code() != Code::ResourceExhausted => before,
                _ => status,
            };
            let pause = backoff.next(not_before);
            if pause >= self.now().until(end) {
                return Err(of_all_attempts(status, total, begun.until(self.now())));
            }
            before = Some(status.clone());
            tracing::debug!(code = ?status.code(), ?pause, "repeating a call");
            tokio::time::sleep(pause).await;
        }
    }

    /// Attempts of a call without a key, within the client's own timeout.
    pub(crate) async fn call<T, F, Fut>(&self, op: F) -> Result<Answer<T>, Status>
    where
        F: FnMut(Attempt) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        self.make(None, self.tries(), op).await
    }

    /// Room for releases in the background.
    pub(crate) fn background(&self) -> &Background {
        &self.shared.background
    }

    /// Runs work in the background, in the runtime of the client, from any thread. After the end of that runtime the work is not
    /// done; entries and sessions then end by their TTL.
    pub(crate) fn in_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.shared.runtime.spawn(work);
    }
}
