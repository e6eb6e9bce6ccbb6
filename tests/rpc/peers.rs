//! What replicas say to each other: a real replica that is called by others, and one that says what a test wants.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata::clock::SystemIds;
use fermata::engine::{Engine, EngineOptions, Peer, PeerError, Peers as _};
use fermata::limits::Limits;
use fermata::lock::{ReplicaId, SessionId};
use fermata::rpc::calls::{
    AcquireLock, CallContext, CreateLockRef, KeepAlive, OpenSession, ReleaseLock, Served, UnaryCall,
};
use fermata::rpc::deadline::Deadline;
use fermata::rpc::peer::{ForwardOutcome, PeerClient};
use fermata::rpc::peer_proto::peer_client::PeerClient as RawClient;
use fermata::rpc::peer_proto::{
    Elsewhere, HintRequest, Method, Refusal, Unable, forward_response, forward_watch_response,
};
use fermata::server::{PeerSecret, Server, ServerError, Stopped, bind};
use fermata::store::embedded::{EmbeddedOptions, EmbeddedStore};
use fermata_proto::lock_admin_client::LockAdminClient;
use fermata_proto::lock_service_client::LockServiceClient;
use fermata_proto::{
    CreateLockRefRequest, LockState, OpenSessionRequest, ReleaseLockRequest, WatchLockResponse,
};
use prost::Message as _;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request};
use uuid::Uuid;

use crate::ask;
use crate::says::Says;
use crate::world::{done, options};

const SOON: Duration = Duration::from_secs(1);
const SECRET: &str = "the secret of this test";
const GRACE: Duration = Duration::from_millis(1_000);

pub fn client() -> PeerClient {
    PeerClient::new(PeerSecret::parse(SECRET).unwrap(), &Limits::default())
}

fn context() -> CallContext {
    CallContext {
        deadline: Deadline::of_headers(&http::HeaderMap::new()),
        login: fermata::access::Login::passed_on("ann", ""),
        connection: None,
        zone: "west".into(),
        limits: Arc::new(Limits::default()),
        ids: Arc::new(SystemIds),
    }
}

fn within(ms: u64) -> tokio::time::Instant {
    tokio::time::Instant::now() + Duration::from_millis(ms)
}

pub fn peer(id: ReplicaId, address: impl ToString) -> Peer {
    Peer {
        id,
        name: String::new(),
        zone: String::new(),
        address: String::new(),
        peer_address: address.to_string(),
    }
}

/// A replica that serves clients and other replicas.
pub struct Called {
    pub engine: Engine,
    clients: String,
    pub peer: Peer,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<Result<Stopped, ServerError>>,
    _directory: TempDir,
}

impl Called {
    pub async fn start() -> Called {
        Called::by(client()).await
    }

    /// One that speaks as this client does.
    pub async fn by(peers: PeerClient) -> Called {
        let directory = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(EmbeddedOptions::new(directory.path())).unwrap();
        let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let peer_listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let clients = format!("http://{}", listener.local_addr().unwrap());
        let address = peer_listener.local_addr().unwrap().to_string();
        let peers = Arc::new(peers);
        let engine = Engine::start(EngineOptions {
            peers: peers.clone(),
            peer_address: address.clone(),
            ..options(Arc::new(store).store())
        })
        .await
        .unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let server = Server::new(engine.clone(), Arc::new(SystemIds))
            .with_peers(peers, vec![peer_listener])
            .serve_tcp(vec![listener], async {
                let _ = stopped.await;
            });
        Called {
            peer: peer(engine.replica(), address),
            engine,
            clients,
            stop: Some(stop),
            server: tokio::spawn(server),
            _directory: directory,
        }
    }

    async fn raw(&self) -> RawClient<Channel> {
        let address = format!("http://{}", self.peer.peer_address);
        RawClient::connect(address).await.unwrap()
    }

    async fn ask<C: UnaryCall>(&self, ask: C::Ask, ms: u64) -> ForwardOutcome<C::Answer> {
        forward::<C>(&client(), &self.peer, ask, ms).await
    }

    /// A lockRef of this key, made by another replica's call.
    async fn create(&self, key: &str) -> String {
        answered(self.ask::<CreateLockRef>(ask::create(key), 5_000).await).lock_ref
    }
}

pub async fn forward<C: UnaryCall>(
    client: &PeerClient,
    to: &Peer,
    ask: C::Ask,
    ms: u64,
) -> ForwardOutcome<C::Answer> {
    let there = forward_served::<C>(client, to, ask, ms).await;
    there.and_then(|served| ForwardOutcome::Answered(served.answer))
}

pub async fn forward_served<C: UnaryCall>(
    client: &PeerClient,
    to: &Peer,
    ask: C::Ask,
    ms: u64,
) -> ForwardOutcome<Served<C::Answer>> {
    let call = C::parse(ask, &context()).unwrap();
    client.forward(to, &call, &context(), within(ms)).await
}

pub fn answered<A: std::fmt::Debug>(there: ForwardOutcome<A>) -> A {
    match there {
        ForwardOutcome::Answered(answer) => answer,
        other => panic!("{other:?}"),
    }
}

/// A lockRef that was never issued.
fn unknown_ref() -> ReleaseLockRequest {
    ask::release("default/a#9.00000000000000000000000000")
}

#[tokio::test]
async fn only_who_knows_the_secret_is_heard() {
    let called = Called::start().await;
    let mut raw = called.raw().await;
    for shown in [None, Some("another secret, as long"), Some(SECRET)] {
        let mut request = Request::new(HintRequest::default());
        if let Some(shown) = shown {
            let value = MetadataValue::from_bytes(shown.as_bytes());
            let metadata = request.metadata_mut();
            metadata.insert_bin("fermata-peer-secret-bin", value);
        }
        let hinted = raw.hint(request).await;
        let code = hinted.map_or_else(|status| status.code(), |_| Code::Ok);
        let expected = match shown == Some(SECRET) {
            true => Code::Ok,
            false => Code::Unauthenticated,
        };
        assert_eq!(code, expected, "{shown:?}");
    }
    let stranger = PeerClient::new(
        PeerSecret::parse("not the secret of it").unwrap(),
        &Limits::default(),
    );
    let there = forward::<ReleaseLock>(&stranger, &called.peer, unknown_ref(), 5_000).await;
    assert!(matches!(there, ForwardOutcome::NotAsked(_)), "{there:?}");
}

#[tokio::test]
async fn clients_cannot_speak_as_replicas_nor_replicas_as_clients() {
    let called = Called::start().await;
    let mut raw = RawClient::connect(called.clients.clone()).await.unwrap();
    let hint = raw.hint(HintRequest::default()).await.unwrap_err();
    assert_eq!(hint.code(), Code::Unimplemented);
    let address = format!("http://{}", called.peer.peer_address);
    let mut locks = LockServiceClient::connect(address).await.unwrap();
    let create = CreateLockRefRequest::default();
    let create = locks.create_lock_ref(create).await.unwrap_err();
    assert_eq!(create.code(), Code::Unimplemented);
}

#[tokio::test]
async fn a_call_that_is_passed_on_is_served_as_if_it_had_come_there() {
    let called = Called::start().await;
    let lock_ref = called.create("a").await;
    assert!(lock_ref.contains('@'), "it holds: {lock_ref}");
    let mut admin = LockAdminClient::connect(called.clients.clone())
        .await
        .unwrap();
    let described = done(admin.describe_lock(ask::describe("a"))).await;
    // Its caller came along.
    assert_eq!(described.holders[0].identity, "ann");
    let released = called
        .ask::<ReleaseLock>(ask::release(&lock_ref), 5_000)
        .await;
    assert!(!answered(released).already_released);
}

#[tokio::test]
async fn a_refusal_is_told_word_for_word_with_all_its_details() {
    let called = Called::start().await;
    let mut direct = LockServiceClient::connect(called.clients.clone())
        .await
        .unwrap();
    let answered = direct.release_lock(unknown_ref()).await.unwrap_err();
    match called.ask::<ReleaseLock>(unknown_ref(), 5_000).await {
        ForwardOutcome::Refused(status) => {
            assert_eq!(status.code(), answered.code());
            assert_eq!(status.message(), answered.message());
            assert_eq!(status.details(), answered.details());
            assert!(!status.details().is_empty());
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_replica_serves_nothing_that_was_meant_for_another() {
    let called = Called::start().await;
    let earlier = Peer {
        id: ReplicaId(Uuid::from_u128(1)),
        ..called.peer.clone()
    };
    let there = forward::<CreateLockRef>(&client(), &earlier, ask::create("a"), 5_000).await;
    assert!(matches!(there, ForwardOutcome::NotAsked(_)), "{there:?}");
    assert_eq!(called.engine.counts().swaps, 0);
}

#[tokio::test]
async fn a_wait_that_is_passed_on_ends_before_its_caller_stops_listening() {
    let called = Called::start().await;
    called.create("a").await;
    let ask = ask::wait(&called.create("a").await, 60);
    let begun = Instant::now();
    let waited = answered(called.ask::<AcquireLock>(ask, 1_000).await);
    assert_eq!(waited.state(), LockState::Waiting);
    let took = begun.elapsed();
    assert!(took > SOON / 2 && took < SOON, "{took:?}");
}

#[tokio::test]
async fn a_watch_that_is_passed_on_tells_all_of_it() {
    let called = Called::start().await;
    let lock_ref = called.create("a").await;
    let ask = ask::watch(&lock_ref);
    let watch = client().watch(&called.peer, &ask, &context()).await;
    let mut news = answered(watch);
    let mut next = async || match news.message().await.unwrap().unwrap().outcome.unwrap() {
        forward_watch_response::Outcome::News(news) => {
            WatchLockResponse::decode(news).unwrap().state()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(next().await, LockState::Held);
    called
        .ask::<ReleaseLock>(ask::release(&lock_ref), 5_000)
        .await;
    assert_eq!(next().await, LockState::Lost);
}

#[tokio::test]
async fn a_replica_that_stops_answers_those_that_wait_through_others() {
    let mut called = Called::start().await;
    called.create("a").await;
    let call = AcquireLock::parse(ask::wait(&called.create("a").await, 60), &context()).unwrap();
    let (client, context) = (client(), context());
    let waiting = client.forward(&called.peer, &call, &context, within(60_000));
    tokio::pin!(waiting);
    let early = tokio::time::timeout(Duration::from_millis(300), &mut waiting).await;
    assert!(early.is_err(), "it waits");
    called.stop.take().unwrap().send(()).unwrap();
    let there = waiting.await;
    assert!(matches!(there, ForwardOutcome::Unknown(_)), "{there:?}");
    assert_eq!(called.server.await.unwrap().unwrap(), Stopped::Clean);
}

#[tokio::test]
async fn a_replica_that_is_gone_was_certainly_not_asked() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = peer(
        ReplicaId(Uuid::from_u128(1)),
        listener.local_addr().unwrap(),
    );
    drop(listener);
    let client = client();
    let there = forward::<ReleaseLock>(&client, &peer, unknown_ref(), 60_000).await;
    assert!(matches!(there, ForwardOutcome::NotAsked(_)), "{there:?}");
    let nowhere = Peer {
        peer_address: String::new(),
        ..peer
    };
    let there = forward::<ReleaseLock>(&client, &nowhere, unknown_ref(), 60_000).await;
    assert!(matches!(there, ForwardOutcome::NotAsked(_)), "{there:?}");
}

#[tokio::test]
async fn a_replica_that_is_paused_is_noticed_within_seconds_whatever_the_deadline() {
    // The system accepts for it.
    let paused = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = peer(ReplicaId(Uuid::from_u128(1)), paused.local_addr().unwrap());
    let begun = Instant::now();
    let client = client();
    let there = forward::<ReleaseLock>(&client, &peer, unknown_ref(), 60_000).await;
    assert!(matches!(there, ForwardOutcome::Unknown(_)), "{there:?}");
    // Not once more by each of the calls that come then.
    let there = forward::<ReleaseLock>(&client, &peer, unknown_ref(), 60_000).await;
    assert!(matches!(there, ForwardOutcome::NotAsked(_)), "{there:?}");
    assert!(begun.elapsed() < 4 * SOON, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_replica_tells_another_what_it_did_and_one_that_does_not_is_not_waited_for() {
    let called = Called::start().await;
    called.create("k").await;
    called.create("k").await;
    let answered = client().activity(&called.peer, 9, SOON).await.unwrap();
    let info = answered.replica.unwrap();
    assert_eq!(info.replica, called.peer.id.to_string());
    assert!(answered.answered && !info.answering);
    assert_eq!((answered.keys, answered.grants.unwrap().at_once), (1, 1));
    assert_eq!(answered.busiest_keys.len(), 1);
    let none = client().activity(&called.peer, 0, SOON).await.unwrap();
    assert_eq!(none.busiest_keys.len(), 0);
    let (_says, silent) = Says::start(None).await;
    assert_eq!(client().activity(&silent, 9, SOON).await, None);
}

#[tokio::test]
async fn what_a_replica_says_is_understood() {
    use forward_response::Outcome;
    let home = Uuid::from_u128(7);
    let elsewhere = Elsewhere {
        home: home.as_bytes().to_vec().into(),
        version: 5,
    };
    let unable = |nothing_done| {
        Outcome::Unable(Unable {
            nothing_done,
            why: String::new(),
        })
    };
    let refusal = Refusal {
        code: Code::FailedPrecondition.into(),
        ..Default::default()
    };
    type There = ForwardOutcome<fermata_proto::ReleaseLockResponse>;
    type Expected = fn(&There) -> bool;
    let at_home: Expected =
        |there| matches!(there, There::Elsewhere { home, version: 5 } if home.0.as_u128() == 7);
    let is_refused: Expected = |there| matches!(there, There::Refused(status) if status.code() == Code::FailedPrecondition);
    let not_asked: Expected = |there| matches!(there, There::NotAsked(_));
    let unknown: Expected = |there| matches!(there, There::Unknown(_));
    for (outcome, expected) in [
        (Some(Outcome::Elsewhere(elsewhere)), at_home),
        (Some(Outcome::Refusal(refusal)), is_refused),
        (Some(unable(true)), not_asked),
        (Some(unable(false)), unknown),
        (None, unknown),
        (Some(Outcome::Answer(vec![0xff].into())), unknown),
    ] {
        let (says, peer) = Says::start(outcome.clone()).await;
        let there = forward::<ReleaseLock>(&client(), &peer, unknown_ref(), 5_000).await;
        assert!(expected(&there), "{outcome:?}: {there:?}");
        let heard = says.heard.lock().await;
        assert_eq!(heard.len(), 1);
        assert_eq!(heard[0].method(), Method::ReleaseLock);
        assert_eq!(&heard[0].to[..], peer.id.0.as_bytes());
        let carried = ReleaseLockRequest::decode(heard[0].request.clone()).unwrap();
        assert_eq!(carried, unknown_ref());
    }
}

#[tokio::test]
async fn a_status_from_the_way_there_says_nothing_about_a_session() {
    let (_says, peer) = Says::start(None).await;
    let session = SessionId(Uuid::from_u128(3));
    let renewed = client().renew_session(&peer, session).await;
    assert!(
        matches!(renewed, Err(PeerError::Unreachable(_))),
        "{renewed:?}"
    );
}

#[tokio::test]
async fn a_stream_at_another_replica_counts_as_one_here_and_its_end_is_told() {
    let called = Called::start().await;
    let open = OpenSessionRequest {
        disconnect_grace: prost_types::Duration::try_from(GRACE).ok(),
        ..Default::default()
    };
    let session = answered(called.ask::<OpenSession>(open, 5_000).await).session;
    let ping = || {
        let session = session.clone();
        called.ask::<KeepAlive>(ask::keep_alive(&session), 5_000)
    };
    let id = SessionId::parse(&session, "ann").unwrap();
    let teller = client();
    // One that comes from an older stream, late.
    teller.session_disconnected(&called.peer, id);
    let began = Instant::now();
    while began.elapsed() < 2 * GRACE {
        let answer = answered(ping().await);
        let grace = prost_types::Duration::try_from(GRACE).ok();
        assert_eq!((answer.valid_for, answer.disconnect_grace), (grace, grace));
        tokio::time::sleep(GRACE / 8).await;
    }
    teller.session_disconnected(&called.peer, id);
    let answered = Instant::now();
    // Long before its TTL has passed.
    while called.engine.counts().sessions > 0 {
        assert!(answered.elapsed() < 20 * SOON);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(answered.elapsed() >= GRACE, "{:?}", answered.elapsed());
}

#[tokio::test]
async fn a_create_is_one_call_wherever_it_is_made() {
    let (says, peer) = Says::start(None).await;
    let call = CreateLockRef::parse(ask::create("a"), &context()).unwrap();
    for _ in 0..2 {
        client()
            .forward(&peer, &call, &context(), within(5_000))
            .await;
    }
    let heard = says.heard.lock().await;
    let id = |one| CreateLockRefRequest::decode(one).unwrap().request_id;
    let ids: Vec<String> = heard.iter().map(|one| id(one.request.clone())).collect();
    assert!(heard.iter().all(|one| one.zone == "west"));
    assert!(!ids[0].is_empty() && ids[0] == ids[1], "{ids:?}");
}
