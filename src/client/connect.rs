//! The client: its endpoints, and how one call is made: on one of them, with a deadline, repeated
//! where repeating can help.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

use super::clock::{BootClock, Clock, Moment};
use super::error::ConnectError;
use super::retry::{Backoff, Verdict, judge};
use crate::proto::clients::lock_admin_client::LockAdminClient;
use crate::proto::clients::lock_service_client::LockServiceClient;

/// The largest answer taken. Values are at most 64 MiB by any configuration.
const ANSWER_BYTES_MAX: usize = 65 * 1024 * 1024;
/// The server is told this much less than what is left, so that its answer still comes in time.
const DEADLINE_MARGIN: Duration = Duration::from_millis(100);

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// How long one operation may take in all, its repeats included; a wait for a lock aside. 15 s: where a
    /// replica crashes, its locks go on at another one after the replica TTL (10 s by default), so that it takes
    /// more than that to see them go on. Where the service has another TTL, this should be half as much again.
    pub timeout: Duration,
    /// How long one attempt of it may take before it is repeated, on another endpoint if there is one. 5 s.
    pub attempt_timeout: Duration,
    /// How long making a connection may take. 3 s.
    pub connect_timeout: Duration,
    /// A connection with calls in flight is checked this often, and given up when it does not answer
    /// for as long again. 5 s.
    pub ping_interval: Duration,
    /// A guard that is held for longer than this watches its lock on the server, to hear at once of an
    /// end by force. Shorter sections spare the stream. 500 ms.
    pub watch_after: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            timeout: Duration::from_secs(15),
            attempt_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(3),
            ping_interval: Duration::from_secs(5),
            watch_after: Duration::from_millis(500),
        }
    }
}

/// A client of the lock service. Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    /// Each with the endpoint that it connects to, for messages.
    channels: Vec<(String, Channel)>,
    /// The channel in use. One at a time: calls for a key are best made at one replica.
    current: AtomicUsize,
    options: ClientOptions,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("endpoints", &self.shared.channels.len())
            .field("options", &self.shared.options)
            .finish_non_exhaustive()
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
    timeout: Duration,
}

impl Attempt {
    pub(super) fn locks(&self) -> LockServiceClient<Channel> {
        LockServiceClient::new(self.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    pub(super) fn admin(&self) -> LockAdminClient<Channel> {
        LockAdminClient::new(self.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// A request with the deadline of this attempt.
    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(self.timeout);
        request
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
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(ConnectError::NoRuntime);
        }
        let channels = endpoints
            .into_iter()
            .map(|endpoint| {
                let channel = channel(endpoint.as_ref(), &options)?;
                Ok((endpoint.as_ref().to_owned(), channel))
            })
            .collect::<Result<Vec<_>, _>>()?;
        if channels.is_empty() {
            return Err(ConnectError::NoEndpoint);
        }
        Ok(Client::from_parts(channels, options, Arc::new(BootClock)))
    }

    /// A client over a channel that was made elsewhere.
    pub fn from_channel(channel: Channel, options: ClientOptions) -> Client {
        Client::from_channel_and_clock(channel, options, Arc::new(BootClock))
    }

    /// The same, with a clock of one's own.
    pub fn from_channel_and_clock(
        channel: Channel,
        options: ClientOptions,
        clock: Arc<dyn Clock>,
    ) -> Client {
        Client::from_parts(vec![("the channel".to_owned(), channel)], options, clock)
    }

    /// The same over several channels, one to each replica, each with its name for messages.
    pub fn from_channels_and_clock(
        channels: impl IntoIterator<Item = (String, Channel)>,
        options: ClientOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Client, ConnectError> {
        let channels: Vec<_> = channels.into_iter().collect();
        if channels.is_empty() {
            return Err(ConnectError::NoEndpoint);
        }
        Ok(Client::from_parts(channels, options, clock))
    }

    fn from_parts(
        channels: Vec<(String, Channel)>,
        options: ClientOptions,
        clock: Arc<dyn Clock>,
    ) -> Client {
        Client {
            shared: Arc::new(Shared {
                channels,
                current: AtomicUsize::new(0),
                options,
                clock,
            }),
        }
    }

    /// The options in force.
    pub fn options(&self) -> &ClientOptions {
        &self.shared.options
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

    /// The number of the channel in use, and an attempt on it.
    pub(super) fn attempt(&self, timeout: Duration) -> (usize, Attempt) {
        let at = self.shared.current.load(Ordering::Relaxed);
        let (_, channel) = self.shared.channels[at % self.shared.channels.len()].clone();
        (at, Attempt { channel, timeout })
    }

    /// Goes on to the next endpoint, unless another call has left `failed` already.
    pub(super) fn leave(&self, failed: usize) {
        let next = failed.wrapping_add(1) % self.shared.channels.len();
        let _another_left_it = self.shared.current.compare_exchange(
            failed,
            next,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }

    /// One attempt of `op`, given up after `timeout`.
    pub(super) async fn once<T, F, Fut>(
        &self,
        timeout: Duration,
        mut op: F,
    ) -> Result<Answer<T>, Status>
    where
        F: FnMut(Attempt) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        let answered = timeout.saturating_sub(DEADLINE_MARGIN).max(timeout / 2);
        let (at, attempt) = self.attempt(answered);
        let sent = self.now();
        let result = match tokio::time::timeout(timeout, op(attempt)).await {
            Ok(result) => result,
            Err(_) => Err(Status::deadline_exceeded(format!(
                "no answer within {timeout:?}"
            ))),
        };
        match result {
            Ok(response) => Ok(Answer {
                message: response.into_inner(),
                sent,
            }),
            Err(status) => {
                if matches!(judge(&status), Verdict::Repeat { .. }) {
                    self.leave(at);
                }
                Err(self.named(at, status))
            }
        }
    }

    /// A status that was made here, out of a broken connection, says no more than that: adds the endpoint
    /// and the first cause.
    fn named(&self, at: usize, status: Status) -> Status {
        let Some(cause) = status.source().map(first_cause) else {
            return status;
        };
        let (endpoint, _) = &self.shared.channels[at % self.shared.channels.len()];
        let mut named = Status::new(
            status.code(),
            format!("{endpoint}: {}: {cause}", status.message()),
        );
        named.set_source(Arc::new(status));
        named
    }

    /// Attempts of `op` until one succeeds, one fails for good, or `total` is up.
    pub(super) async fn repeat<T, F, Fut>(
        &self,
        total: Duration,
        mut op: F,
    ) -> Result<Answer<T>, Status>
    where
        F: FnMut(Attempt) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        let end = self.now().after(total);
        let mut backoff = Backoff::new();
        loop {
            let left = self.now().until(end);
            let timeout = left.min(self.shared.options.attempt_timeout);
            let status = match self.once(timeout, &mut op).await {
                Ok(answer) => return Ok(answer),
                Err(status) => status,
            };
            let Verdict::Repeat { not_before } = judge(&status) else {
                return Err(status);
            };
            let pause = backoff.next(not_before);
            if pause >= self.now().until(end) {
                return Err(status);
            }
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
        self.repeat(self.shared.options.timeout, op).await
    }

    /// Runs something that nobody waits for. Without a runtime it is left undone: TTLs see to it.
    pub(super) fn in_background(work: impl Future<Output = ()> + Send + 'static) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(work);
        }
    }
}

fn first_cause(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

fn channel(endpoint: &str, options: &ClientOptions) -> Result<Channel, ConnectError> {
    Ok(parse_endpoint(endpoint)?
        .connect_timeout(options.connect_timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(options.ping_interval)
        .keep_alive_timeout(options.ping_interval)
        .connect_lazy())
}

/// `http://host:port`; the scheme may be left out.
pub(crate) fn parse_endpoint(endpoint: &str) -> Result<Endpoint, ConnectError> {
    let invalid = |why: String| ConnectError::InvalidEndpoint {
        endpoint: endpoint.to_owned(),
        why,
    };
    let uri = if endpoint.contains("://") {
        endpoint.to_owned()
    } else {
        format!("http://{endpoint}")
    };
    if !uri.starts_with("http://") {
        return Err(invalid("only http:// is spoken so far".to_owned()));
    }
    let parsed = Endpoint::from_shared(uri).map_err(|error| invalid(error.to_string()))?;
    if parsed.uri().port().is_none() {
        return Err(invalid("it names no port".to_owned()));
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_endpoint_names_its_fault() {
        for good in ["http://127.0.0.1:7450", "127.0.0.1:7450", "http://[::1]:1"] {
            assert!(Client::connect([good]).is_ok(), "{good}");
        }
        for (bad, why) in [
            ("https://a:1", "only http"),
            ("http://a", "no port"),
            ("http://a b:1", ""),
            ("", ""),
        ] {
            match Client::connect([bad]) {
                Err(ConnectError::InvalidEndpoint { why: answered, .. }) => {
                    assert!(answered.contains(why), "{bad}: {answered}");
                }
                other => panic!("{bad}: {other:?}"),
            }
        }
        let none: [&str; 0] = [];
        assert_eq!(Client::connect(none).err(), Some(ConnectError::NoEndpoint));
    }

    #[test]
    fn outside_a_runtime_there_is_no_client_and_no_panic() {
        assert_eq!(
            Client::connect(["http://127.0.0.1:1"]).err(),
            Some(ConnectError::NoRuntime)
        );
    }
}
