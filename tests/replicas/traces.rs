//! A contended section that is called at one replica, while another one is the home of its key, is one trace.

use std::time::Duration;

use fermata_proto::lock_admin_client::LockAdminClient;
use fermata_proto::{
    AcquireLockRequest, CreateLockRefRequest, CriticalPutRequest, DescribeLockRequest, LockState,
    ReleaseLockRequest,
};
use tonic::Request;

use fermata_client::{ClientOptions, LockRequest, TraceContext};

use super::calls::seconds;
use super::collector::{Collected, Collector, listing};
use super::replica::Client;
use super::world::World;

const TRACE: u128 = 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c;
const TTL: Duration = Duration::from_secs(20);

fn context(trace: u128) -> String {
    format!("00-{trace:032x}-b7ad6b7169203331-01")
}

/// A request of the traced caller.
fn traced<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    let context = context(TRACE).parse().unwrap();
    request.metadata_mut().insert("traceparent", context);
    request
}

async fn create(
    client: &mut Client,
    key: &str,
    request: fn(CreateLockRefRequest) -> Request<CreateLockRefRequest>,
) -> String {
    let create = CreateLockRefRequest {
        key: key.to_owned(),
        ttl: Some(seconds(TTL)),
        ..Default::default()
    };
    let created = client.create_lock_ref(request(create)).await.unwrap();
    created.into_inner().lock_ref
}

async fn acquire(
    client: &mut Client,
    lock_ref: String,
    request: fn(AcquireLockRequest) -> Request<AcquireLockRequest>,
) -> String {
    let acquire = AcquireLockRequest {
        lock_ref,
        wait: Some(seconds(Duration::from_secs(10))),
        ..Default::default()
    };
    let acquired = client
        .acquire_lock(request(acquire))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(acquired.state(), LockState::Held);
    acquired.lock_ref
}

fn release(lock_ref: String) -> ReleaseLockRequest {
    ReleaseLockRequest {
        lock_ref,
        ..Default::default()
    }
}

/// Whether the trace has a span of this name at this instance, with a parent of that name.
fn has(trace: &[Collected], instance: &str, name: &str, parent: &str) -> bool {
    let mut of_name = trace
        .iter()
        .filter(|one| one.instance == instance && one.span.name == name);
    of_name.any(|one| {
        let is_parent = |other: &Collected| other.span.span_id == one.span.parent_span_id;
        trace
            .iter()
            .any(|other| is_parent(other) && other.span.name == parent)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_contended_section_across_two_replicas_is_one_trace() {
    let (collector, endpoint) = Collector::start().await;
    let Some(world) = World::of_traced(2, &endpoint).await else {
        return;
    };
    let mut at = [0, 1].map(|replica| world.replicas[replica].client());
    // A key whose home is the first replica.
    let mut admin = LockAdminClient::new(world.replicas[0].channel());
    let mut keys = (0..).map(|n| format!("traced-{n}"));
    let (key, held) = loop {
        let key = keys.next().unwrap();
        let held = create(&mut at[0], &key, Request::new).await;
        let describe = DescribeLockRequest {
            key: key.clone(),
            ..Default::default()
        };
        let described = admin.describe_lock(describe).await.unwrap().into_inner();
        let home = described.home.unwrap();
        if world.replicas[0].endpoint().ends_with(&home.address) {
            break (key, held);
        }
    };
    let held = acquire(&mut at[0], held, Request::new).await;

    let waiting = create(&mut at[1], &key, traced).await;
    let mut second = at[1].clone();
    let section = tokio::spawn(async move {
        let granted = acquire(&mut second, waiting, traced).await;
        let put = CriticalPutRequest {
            lock_ref: granted.clone(),
            value: "traced".into(),
            call_no: 0,
        };
        second.critical_put(traced(put)).await.unwrap();
        second.release_lock(traced(release(granted))).await.unwrap();
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    at[0].release_lock(release(held)).await.unwrap();
    section.await.unwrap();

    let trace = collector.trace(TRACE.to_be_bytes(), |trace| {
        let ended = trace
            .iter()
            .filter(|one| one.span.name.ends_with("/ReleaseLock"));
        ended.count() == 1 && trace.iter().any(|one| one.span.name == "write value")
    });
    let trace = trace.await;
    let text = listing(&trace);
    eprintln!("{text}");
    let (home, called) = ("replica-0", "replica-1");
    for method in ["CreateLockRef", "AcquireLock", "CriticalPut", "ReleaseLock"] {
        let method = format!("fermata.v1.LockService/{method}");
        assert!(has(&trace, called, "forward", &method), "{method}:\n{text}");
    }
    let forwarded = "fermata.internal.v1.Peer/Forward";
    assert!(has(&trace, home, forwarded, "forward"), "{text}");
    assert!(has(&trace, home, "wait for grant", forwarded), "{text}");
    assert!(has(&trace, home, "write value", forwarded), "{text}");
    // The statement of it.
    assert!(has(&trace, home, "write value", "write value"), "{text}");
    let granted = trace.iter().filter(|one| one.events().contains(&"granted"));
    assert_eq!(granted.count(), 1, "{text}");
    // Nothing of the other client, which is not traced.
    let creates = trace
        .iter()
        .filter(|one| one.span.name.ends_with("/CreateLockRef"));
    assert_eq!(creates.count(), 1, "{text}");
}

/// Over its Pipeline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_section_of_the_rust_client_is_in_the_trace_of_its_program() {
    let (collector, endpoint) = Collector::start().await;
    let Some(world) = World::of_traced(1, &endpoint).await else {
        return;
    };
    let options = ClientOptions {
        traces: Some(TraceContext::new(|| Some(context(!TRACE)))),
        ..ClientOptions::default()
    };
    let client = fermata_client::Client::connect_with([world.replicas[0].endpoint()], options);
    let guard = client.unwrap().lock(LockRequest::new("k")).await.unwrap();
    guard.put("traced").await.unwrap();
    guard.release().await.unwrap();
    let methods = ["CreateLockRef", "CriticalPut", "ReleaseLock"];
    let trace = collector.trace((!TRACE).to_be_bytes(), |trace| {
        let mut names = trace.iter().map(|one| &*one.span.name);
        methods
            .iter()
            .all(|method| names.any(|name| name.ends_with(method)))
    });
    eprintln!("{}", listing(&trace.await));
}
