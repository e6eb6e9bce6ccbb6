//! The client against a server that misbehaves as the test says, in one process and on a paused clock.

pub(super) mod fake;
mod given_back;
mod held_lock;
mod homes;
mod made_again;
mod not_taken;
mod passed_on;
mod pipeline;
mod proxied;
mod repeats;
mod scoped;
mod volatile;
mod waiting;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fermata_proto::lock_service_server::LockServiceServer;
use hyper_util::rt::TokioIo;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::service::Routes;
use tonic::transport::{Channel, Endpoint, Server, Uri};
use tonic::{Code, Status};
use tower::layer::layer_fn;
use tower::service_fn;

use super::{Client, ClientOptions, CriticalError, LockGuard, Session, SessionRequest};
use crate::clock::fake::FakeClock;
use fake::{Act, Fake, refusal};

/// A fake server, and a client of it whose clock the test can move.
struct World {
    fake: Fake,
    client: Client,
    clock: Arc<FakeClock>,
    /// How many connections the client made.
    opened: Arc<AtomicUsize>,
}

impl World {
    fn new() -> World {
        World::with(ClientOptions::default())
    }

    fn with(options: ClientOptions) -> World {
        World::with_streams(options, None)
    }

    /// With a lock that was not waited for.
    async fn locked() -> (World, LockGuard) {
        let world = World::new();
        let guard = world.client.lock("k").await.unwrap();
        (world, guard)
    }

    async fn session(&self) -> Session {
        let opening = self.client.open_session(SessionRequest::new());
        opening.await.unwrap()
    }

    /// Until no entry is left in the queue.
    async fn until_nobody_waits(&self) {
        let nobody = async {
            while !self.fake.state().queue.is_empty() {
                tokio::time::sleep(secs(1) / 10).await;
            }
        };
        let nobody = tokio::time::timeout(secs(120), nobody).await;
        nobody.expect("an entry is left");
    }

    /// The server takes so many streams on one connection.
    fn with_streams(options: ClientOptions, streams_max: Option<u32>) -> World {
        World::build(options, streams_max, false)
    }

    /// The client knows a second endpoint, where nobody listens.
    fn with_nobody() -> World {
        World::build(ClientOptions::default(), None, true)
    }

    /// And a second endpoint, a server of its own.
    fn with_second() -> (World, Fake) {
        let (fake, connect, opened) = serve(None);
        let (second, connect_second, _) = serve(None);
        let replicas = vec![
            ("fake".to_owned(), connect),
            ("second".to_owned(), connect_second),
        ];
        let world = World::of(fake, opened, replicas, ClientOptions::default());
        (world, second)
    }

    fn build(options: ClientOptions, streams_max: Option<u32>, nobody_too: bool) -> World {
        let (fake, connect, opened) = serve(streams_max);
        let mut replicas = vec![("fake".to_owned(), connect)];
        if nobody_too {
            let refuse = service_fn(|_: Uri| async {
                Err::<TokioIo<tokio::io::DuplexStream>, _>(std::io::Error::other("nobody listens"))
            });
            let endpoint = Endpoint::from_static("http://nobody:1");
            let nobody = move || endpoint.connect_with_connector_lazy(refuse);
            replicas.push(("nobody".to_owned(), Box::new(nobody)));
        }
        World::of(fake, opened, replicas, options)
    }

    fn of(
        fake: Fake,
        opened: Arc<AtomicUsize>,
        replicas: Vec<(String, Connect)>,
        options: ClientOptions,
    ) -> World {
        let clock = Arc::new(FakeClock::new());
        let client =
            Client::from_connectors_and_clock(replicas, options, Arc::clone(&clock) as _).unwrap();
        World {
            fake,
            client,
            clock,
            opened,
        }
    }
}

type Connect = Box<dyn Fn() -> Channel + Send + Sync>;

/// A fake server, what makes connections to it, and how many were made.
fn serve(streams_max: Option<u32>) -> (Fake, Connect, Arc<AtomicUsize>) {
    let fake = Fake::default();
    let (connections, incoming) = mpsc::unbounded_channel::<tokio::io::DuplexStream>();
    let incoming = tokio_stream::StreamExt::map(
        UnboundedReceiverStream::new(incoming),
        Ok::<_, std::io::Error>,
    );
    let behind = fake.clone();
    let server = Server::builder()
        .max_concurrent_streams(streams_max)
        .layer(layer_fn(move |routes: Routes| {
            proxied(routes, behind.clone())
        }))
        .add_service(LockServiceServer::new(fake.clone()))
        .serve_with_incoming(incoming);
    tokio::spawn(server);
    let opened = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&opened);
    let connect = service_fn(move |_: Uri| {
        count.fetch_add(1, Ordering::Relaxed);
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let sent = connections.send(theirs);
        async move {
            sent.map_err(|_| std::io::Error::other("no server"))?;
            Ok::<_, std::io::Error>(TokioIo::new(ours))
        }
    });
    let channel =
        move || Endpoint::from_static("http://fake:1").connect_with_connector_lazy(connect.clone());
    (fake, Box::new(channel), opened)
}

/// A server behind a proxy, which answers some calls with a page.
fn proxied(
    routes: Routes,
    fake: Fake,
) -> impl Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible, Future: Send>
+ Clone
+ Send
+ 'static {
    service_fn(move |call: http::Request<Body>| {
        let (mut routes, fake) = (routes.clone(), fake.clone());
        async move {
            let page = fake.state().page;
            let Some((_, status, page)) = page.filter(|(end, ..)| call.uri().path().ends_with(end))
            else {
                return routes.call(call).await;
            };
            if fake.state().is_passed_on {
                let _ = routes.call(call).await;
            }
            fake.state().calls.push(format!("page {status}"));
            let answer = http::Response::builder().status(status);
            Ok(answer.body(Body::new(page.to_owned())).unwrap())
        }
    })
}

/// A call that comes to nothing.
fn away() -> Act {
    Act::Refuse(Status::unavailable("away"))
}

/// A call that is refused for a limit.
fn limited() -> Act {
    let words = "too many calls";
    Act::Refuse(refusal(Code::ResourceExhausted, "LIMIT_REACHED", words))
}

/// What may have been written, or may not.
#[track_caller]
fn is_in_doubt(put: &Result<(), CriticalError>) {
    let is_it = matches!(put, Err(CriticalError::WriteUnknown(_)));
    assert!(is_it, "{put:?}");
}

/// So many seconds.
fn secs(number: u64) -> Duration {
    Duration::from_secs(number)
}
