//! Calls of other programs go to the home of their key, with the token of the client that passes them on.

use fermata_proto::lock_service_client::LockServiceClient;
use fermata_proto::{CreateLockRefRequest, PipelineRequest, WatchLockRequest};
use tower::util::BoxCloneService;

use super::fake::Act;
use super::*;

type Program =
    LockServiceClient<BoxCloneService<http::Request<Body>, http::Response<Body>, Infallible>>;

/// A program whose calls this client passes on.
fn program(client: &Client) -> Program {
    let client = client.clone();
    let passed = service_fn(move |call| {
        let client = client.clone();
        async move { Ok(client.pass_on(call).await) }
    });
    LockServiceClient::new(BoxCloneService::new(passed))
}

/// Two replicas, of which the second one is the home of all keys. The first one is reached unless it is down.
fn two(first_is_down: bool) -> (Fake, Fake, Client) {
    let (first, to_first, _) = serve(None);
    let (home, to_home, _) = serve(None);
    for replica in [&first, &home] {
        replica.state().home = Some("home:1".to_owned());
    }
    let nowhere = || Endpoint::from_static("http://127.0.0.1:1").connect_lazy();
    let to_first: Box<dyn Fn() -> Channel + Send + Sync> = match first_is_down {
        true => Box::new(nowhere),
        false => Box::new(to_first),
    };
    let replicas = [
        ("http://first:1".to_owned(), to_first),
        ("http://home:1".to_owned(), Box::new(to_home)),
    ];
    let clock = Arc::new(FakeClock::new());
    let client = Client::from_connectors_and_clock(replicas, ClientOptions::default(), clock);
    (first, home, client.unwrap())
}

async fn create(program: &mut Program) -> Result<String, Status> {
    let create = CreateLockRefRequest {
        key: "k".to_owned(),
        ..Default::default()
    };
    let created = program.create_lock_ref(create).await?;
    Ok(created.into_inner().lock_ref)
}

#[tokio::test]
async fn the_next_call_about_a_key_goes_to_its_home() {
    let (first, home, client) = two(false);
    let mut program = program(&client);
    create(&mut program).await.unwrap();
    assert_eq!((first.count("create"), home.count("create")), (1, 0));
    create(&mut program).await.unwrap();
    assert_eq!((first.count("create"), home.count("create")), (1, 1));
    // The caller repeats it, and it goes to the replica in use.
    home.next("create", Act::Refuse(Status::unavailable("it stops")));
    let refused = create(&mut program).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::Unavailable, "it stops")
    );
    create(&mut program).await.unwrap();
    assert_eq!((first.count("create"), home.count("create")), (2, 2));
}

#[tokio::test]
async fn a_deadline_of_a_program_moves_no_other_one_to_another_replica() {
    let (first, home, client) = two(false);
    first.next("create", Act::Hang);
    let mut program = program(&client);
    let mut impatient = tonic::Request::new(CreateLockRefRequest {
        key: "k".to_owned(),
        ..Default::default()
    });
    impatient.set_timeout(Duration::from_millis(50));
    let late = program.create_lock_ref(impatient).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded, "{late}");
    create(&mut program).await.unwrap();
    assert_eq!(home.count("create"), 0);
}

#[tokio::test]
async fn a_call_that_reaches_no_replica_goes_to_the_next_one() {
    let (_, home, client) = two(true);
    create(&mut program(&client)).await.unwrap();
    assert_eq!(home.count("create"), 1);
}

#[tokio::test]
async fn a_program_reads_why_no_replica_is_reached() {
    let nowhere = || Endpoint::from_static("http://127.0.0.1:1").connect_lazy();
    let replicas = [("http://127.0.0.1:1".to_owned(), nowhere)];
    let clock = Arc::new(FakeClock::new());
    let client = Client::from_connectors_and_clock(replicas, ClientOptions::default(), clock);
    let refused = create(&mut program(&client.unwrap())).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    let said = refused.message();
    assert!(
        said.contains("http://127.0.0.1:1") && said.contains("refused"),
        "{said}"
    );
}

#[tokio::test]
async fn a_watch_makes_room_for_another_once_its_program_drops_it() {
    let world = World::with(ClientOptions {
        waits_per_connection: 1,
        wait_connections_max: 2,
        ..ClientOptions::default()
    });
    let mut program = program(&world.client);
    let lock_ref = create(&mut program).await.unwrap();
    let watch = WatchLockRequest { lock_ref };
    let first = program.watch_lock(watch.clone()).await.unwrap();
    let refused = program.watch_lock(watch.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    drop(first);
    while let Err(refused) = program.watch_lock(watch.clone()).await {
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn calls_to_several_replicas_come_by_themselves() {
    let (_, _, client) = two(false);
    let frames = tokio_stream::pending::<PipelineRequest>();
    let refused = program(&client).pipeline(frames).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
}
