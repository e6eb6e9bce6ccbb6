//! Sessions with a `disconnect_grace`: what the end of a KeepAlive stream means to them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata::clock::SystemIds;
use fermata::engine::LeaseId;
use fermata::rpc::lock_service::LockServiceRpc;
use fermata::rpc::route::Router;
use fermata::rpc::stopping::Stopping;
use fermata_client::public_part;
use fermata_proto::lock_service_server::LockServiceServer;
use fermata_proto::*;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Code, Request, Streaming};

use crate::ask;
use crate::world::{Client, World, create, done, in_ms};

/// Beside a TTL of 30 s.
const GRACE: Duration = Duration::from_millis(1_000);

fn wire(span: Duration) -> Option<prost_types::Duration> {
    Some(prost_types::Duration::try_from(span).unwrap())
}

/// A session, and a lockRef in it that holds this key.
async fn hold(client: &mut Client, key: &str) -> (String, String) {
    let ask = OpenSessionRequest {
        disconnect_grace: wire(GRACE),
        ..Default::default()
    };
    let opened = done(client.open_session(ask)).await;
    assert_eq!(opened.disconnect_grace, wire(GRACE));
    assert_eq!(opened.valid_for, wire(GRACE));
    assert_eq!(opened.ttl, wire(Duration::from_secs(30)));
    let held = done(client.create_lock_ref(ask::create_in(key, &opened.session))).await;
    assert_eq!(held.state(), LockState::Held);
    assert_eq!(held.valid_for, wire(GRACE));
    (opened.session, held.lock_ref)
}

/// A KeepAlive stream for one session.
struct Alive {
    session: String,
    asks: Option<mpsc::Sender<KeepAliveRequest>>,
    answers: Streaming<KeepAliveResponse>,
}

impl Alive {
    async fn open(client: &mut Client, session: &str) -> Alive {
        Alive::open_as(client, session, Request::new).await
    }

    async fn open_as(
        client: &mut Client,
        session: &str,
        request: impl FnOnce(
            ReceiverStream<KeepAliveRequest>,
        ) -> Request<ReceiverStream<KeepAliveRequest>>,
    ) -> Alive {
        let (asks, queue) = mpsc::channel(1);
        let answers = client.keep_alive(request(ReceiverStream::new(queue)));
        Alive {
            session: session.to_owned(),
            asks: Some(asks),
            answers: done(answers).await,
        }
    }

    /// A renewal, answered.
    async fn ping(&mut self) {
        let asks = self.asks.as_ref().unwrap();
        asks.send(ask::keep_alive(&self.session)).await.unwrap();
        let answer = self.answers.next().await.unwrap().unwrap();
        assert_eq!(answer.reason(), EndReason::Unspecified);
        assert_eq!(answer.valid_for, wire(GRACE));
        assert_eq!(answer.disconnect_grace, wire(GRACE));
    }
}

/// Waits for the lock, for less than the TTL of who has it.
async fn acquire(client: &mut Client, lock_ref: &str) {
    let acquired = done(client.acquire_lock(ask::wait(lock_ref, 20))).await;
    assert_eq!(acquired.state(), LockState::Held);
}

/// How a stream ends.
#[derive(Clone, Copy, Debug)]
enum End {
    HalfClosed,
    GivenUp,
    ConnectionClosed,
    Deadline,
    Refused,
}

#[tokio::test]
async fn however_a_stream_ends_its_session_ends_after_its_grace_and_not_before() {
    use End::{ConnectionClosed, Deadline, GivenUp, HalfClosed, Refused};
    let world = World::new().await;
    let mut next = world.client().await;
    for end in [HalfClosed, GivenUp, ConnectionClosed, Deadline, Refused] {
        let key = format!("{end:?}");
        let mut own = world.client().await;
        let (session, _) = hold(&mut own, &key).await;
        let waiting = create(&mut next, &key).await;
        let mut stream = match end {
            Deadline => Alive::open_as(&mut own, &session, |asks| in_ms(asks, 600)).await,
            HalfClosed | GivenUp | ConnectionClosed | Refused => {
                Alive::open(&mut own, &session).await
            }
        };
        let sent = Instant::now();
        stream.ping().await;
        let kept = match end {
            HalfClosed => {
                stream.asks = None;
                Some(stream)
            }
            Deadline => Some(stream),
            Refused => {
                let asks = stream.asks.as_ref().unwrap();
                asks.send(ask::keep_alive("nonsense")).await.unwrap();
                Some(stream)
            }
            GivenUp => {
                drop(stream);
                None
            }
            ConnectionClosed => {
                drop((stream, std::mem::replace(&mut own, next.clone())));
                None
            }
        };
        acquire(&mut next, &waiting.lock_ref).await;
        assert!(sent.elapsed() >= GRACE, "{end:?}: {:?}", sent.elapsed());
        let ended = own.renew_session(ask::renew_session(&session)).await;
        let code = ended.unwrap_err().code();
        assert_eq!(code, Code::FailedPrecondition, "{end:?}");
        drop(kept);
    }
}

#[tokio::test]
async fn a_session_lives_on_where_another_stream_takes_the_place_of_one_that_ended() {
    let world = World::new().await;
    let mut client = world.client().await;
    let (session, held) = hold(&mut client, "a").await;
    let mut stream = Alive::open(&mut client, &session).await;
    stream.ping().await;
    // The end of the first is seen after the second began, as where its connection was lost in silence.
    let mut another = Alive::open(&mut client, &session).await;
    another.ping().await;
    drop(stream);
    let began = Instant::now();
    while began.elapsed() < 3 * GRACE {
        sleep(GRACE / 8).await;
        another.ping().await;
    }
    // And nothing at all for longer than the grace, while it is open.
    sleep(2 * GRACE).await;
    let got = done(client.critical_get(ask::critical_get(&held))).await;
    assert_eq!(got.valid_for, wire(GRACE));
    let renewed = done(client.renew_session(ask::renew_session(&session))).await;
    assert_eq!(renewed.disconnect_grace, wire(GRACE));
    assert_eq!(renewed.valid_for, wire(GRACE));
    let mut admin = world.admin().await;
    let listed = done(admin.list_sessions(ListSessionsRequest::default()))
        .await
        .sessions;
    assert_eq!(listed[0].session_id, public_part(&session));
    assert_eq!(listed[0].disconnect_grace, wire(GRACE));
}

#[tokio::test]
async fn a_server_that_stops_disconnects_nobody() {
    let world = World::new().await;
    // Its streams end, and its engine goes on, as at another replica.
    let (stop, stopping) = Stopping::pair();
    let router = Router::new(world.engine.clone(), Arc::new(SystemIds), None);
    let service = LockServiceRpc::new(router, stopping);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let server = tonic::transport::Server::builder()
        .add_service(LockServiceServer::new(service))
        .serve_with_incoming(TcpListenerStream::new(listener));
    let server = tokio::spawn(server);
    let mut client = Client::connect(address).await.unwrap();
    let (session, _) = hold(&mut client, "a").await;
    let mut stream = Alive::open(&mut client, &session).await;
    stream.ping().await;
    stop.now();
    let answered = stream.answers.next().await.unwrap().unwrap_err();
    assert_eq!(answered.code(), Code::Unavailable);
    drop((stream, client));
    server.abort();
    sleep(2 * GRACE).await;
    let lease = LeaseId::Session(fermata::lock::SessionId::parse(&session, "").unwrap());
    assert_eq!(world.engine.renew(&lease).await.unwrap().valid_for, GRACE);
}
