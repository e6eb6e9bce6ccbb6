//! The HTTP port for operators: metrics of what clients did, liveness and readiness.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use fermata_proto::lock_admin_client::LockAdminClient;
use fermata_proto::{
    AcquireLockRequest, CreateLockRefRequest, DescribeActivityRequest, DescribeLockRequest,
    ForceReleaseRequest, ReleaseLockRequest,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::process::{Client, Serve};

/// An answer over HTTP.
pub struct Answer {
    pub status: u16,
    pub headers: String,
    pub body: String,
}

impl Answer {
    /// Of all that came over a connection.
    pub fn parse(text: &str) -> Answer {
        let (headers, body) = text.split_once("\r\n\r\n").unwrap();
        Answer {
            status: headers.split(' ').nth(1).unwrap().parse().unwrap(),
            headers: headers.to_lowercase(),
            body: body.to_owned(),
        }
    }
}

pub fn get(port: u16, path: &str, more: &str) -> Answer {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: fermata\r\nConnection: close\r\n{more}\r\n"
    )
    .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    Answer::parse(&text)
}

/// A scrape: the value of each series, by its name with labels.
struct Scrape(BTreeMap<String, f64>);

impl Scrape {
    fn of(serve: &Serve) -> Scrape {
        let answer = get(serve.http_port, "/metrics", "");
        assert_eq!(answer.status, 200);
        assert!(answer.headers.contains("text/plain; version=0.0.4"));
        let lines = answer.body.lines().filter(|line| !line.starts_with('#'));
        let series = lines.map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        });
        Scrape(series.collect())
    }

    fn value(&self, series: &str) -> f64 {
        let found = self.0.get(series);
        *found.unwrap_or_else(|| panic!("no {series} in {:#?}", self.0.keys()))
    }

    fn requests(&self, method: &str, reason: &str) -> f64 {
        let (service, method) = method.split_once('/').unwrap();
        self.value(&format!(
            "fermata_requests_total{{service=\"fermata.v1.{service}\",method=\"{method}\",reason=\"{reason}\"}}"
        ))
    }
}

/// Waits for this value of a series.
fn until(serve: &Serve, series: &str, value: f64) {
    let begun = Instant::now();
    loop {
        let now = Scrape::of(serve).0.get(series).copied();
        if now == Some(value) {
            return;
        }
        let waited = begun.elapsed();
        assert!(
            waited < Duration::from_secs(20),
            "{series} is {now:?}, not {value}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn serve() -> Serve {
    Serve::with(&[
        ("HTTP__LISTEN", "127.0.0.1:0"),
        ("TABLES__ORDERS__COMMIT", "write-back"),
    ])
}

const KEY: &str = "a-key-of-somebody";
const OWNER: &str = "the-label-of-somebody";

pub async fn create(client: &mut Client, table: &str, ttl: Duration) -> String {
    let create = CreateLockRefRequest {
        key: KEY.to_owned(),
        table: table.to_owned(),
        owner: OWNER.to_owned(),
        ttl: Some(ttl.try_into().unwrap()),
        ..Default::default()
    };
    let created = client.create_lock_ref(create).await.unwrap();
    created.into_inner().lock_ref
}

pub async fn acquire(client: &mut Client, lock_ref: &str) -> String {
    let acquire = AcquireLockRequest {
        lock_ref: lock_ref.to_owned(),
        wait: Some(Duration::from_secs(10).try_into().unwrap()),
        ..Default::default()
    };
    let acquired = client.acquire_lock(acquire).await.unwrap();
    acquired.into_inner().lock_ref
}

pub async fn release(client: &mut Client, lock_ref: String) -> Result<(), tonic::Status> {
    let release = ReleaseLockRequest {
        lock_ref,
        ..Default::default()
    };
    client.release_lock(release).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_clients_did_is_counted_by_table_and_reason_and_names_nobody() {
    const LONG: Duration = Duration::from_secs(60);
    let serve = serve();
    let mut client = serve.client();
    let first = create(&mut client, "", LONG).await;
    let second = create(&mut client, "", LONG).await;
    let third = create(&mut client, "", LONG).await;
    until(&serve, "fermata_locks_held{table=\"default\"}", 1.0);
    until(&serve, "fermata_lock_waiters{table=\"default\"}", 2.0);
    let first = acquire(&mut client, &first).await;
    release(&mut client, first.clone()).await.unwrap();
    let second = acquire(&mut client, &second).await;
    // The waiter ends by force, and the holder by its release.
    let mut admin = LockAdminClient::new(serve.channel());
    let described = admin.describe_lock(DescribeLockRequest {
        key: KEY.to_owned(),
        ..Default::default()
    });
    let queue = described.await.unwrap().into_inner();
    let force = ForceReleaseRequest {
        name: queue.waiters[0].name.clone(),
        reason: "a test".to_owned(),
        ..Default::default()
    };
    admin.force_release(force).await.unwrap();
    release(&mut client, second).await.unwrap();
    release(&mut client, third).await.unwrap_err();
    // In another table a holder expires.
    create(&mut client, "orders", Duration::from_secs(1)).await;
    until(
        &serve,
        "fermata_evictions_total{table=\"orders\",role=\"holder\",reason=\"expired\"}",
        1.0,
    );

    until(&serve, "fermata_locks_held{table=\"orders\"}", 0.0);
    let now = Scrape::of(&serve);
    let table = "table=\"default\"";
    for (series, value) in [
        (
            "grants_total{T,cause=\"at_once\",durability=\"durable\"}",
            1.0,
        ),
        (
            "grants_total{T,cause=\"after_wait\",durability=\"durable\"}",
            1.0,
        ),
        (
            "grants_total{table=\"orders\",cause=\"at_once\",durability=\"volatile\"}",
            1.0,
        ),
        ("evictions_total{T,role=\"waiter\",reason=\"forced\"}", 1.0),
        ("lock_wait_seconds_count{T}", 2.0),
        ("lock_hold_seconds_count{T}", 2.0),
        ("locks_held{T}", 0.0),
        ("lock_waiters{T}", 0.0),
        ("replica_ready", 1.0),
        ("keys", 2.0),
    ] {
        let series = format!("fermata_{}", series.replace('T', table));
        assert_eq!(now.value(&series), value, "{series}");
    }
    assert_eq!(now.requests("LockService/CreateLockRef", "OK"), 4.0);
    assert_eq!(now.requests("LockService/ReleaseLock", "OK"), 2.0);
    assert_eq!(now.requests("LockService/ReleaseLock", "FORCED"), 1.0);
    assert!(now.value("fermata_store_requests_total{data=\"locks\",operation=\"commit\"}") > 4.0);
    assert!(now.value("process_resident_memory_bytes") > 1e6);
    let names = now.0.keys().all(|name| {
        let is_ours = ["fermata_", "process_"]
            .iter()
            .any(|prefix| name.starts_with(prefix));
        is_ours && !name.contains(KEY) && !name.contains(OWNER)
    });
    assert!(names, "{:#?}", now.0.keys());

    // Operators read the same numbers by gRPC.
    let activity = admin
        .describe_activity(DescribeActivityRequest::default())
        .await;
    let activity = activity.unwrap().into_inner().replicas.remove(0);
    let grants = activity.grants.unwrap();
    assert_eq!((grants.at_once, grants.after_change), (2, 1));
    assert_eq!(activity.as_home.unwrap().volatile_grants, 1);
}

#[test]
fn the_page_about_metrics_names_each_of_them() {
    let page = include_str!("../../docs/metrics.md");
    let serve = serve();
    until(&serve, "fermata_replica_ready", 1.0);
    let shown = get(serve.http_port, "/metrics", "").body;
    let types = shown
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "));
    let names: Vec<&str> = types.map(|line| line.split(' ').next().unwrap()).collect();
    assert!(names.len() > 40, "{names:?}");
    for name in names {
        assert!(page.contains(&format!("`{name}`")), "{name}");
    }
}

#[test]
fn scrapers_get_the_form_that_they_ask_for_and_other_paths_nothing() {
    let serve = serve();
    let accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n";
    let answer = get(serve.http_port, "/metrics", accept);
    assert!(
        answer
            .headers
            .contains("application/openmetrics-text; version=1.0.0")
    );
    assert!(answer.body.ends_with("# EOF\n"));
    assert_eq!(get(serve.http_port, "/nothing", "").status, 404);
}

#[test]
fn readiness_follows_the_store_and_liveness_the_process() {
    let serve = serve();
    let begun = Instant::now();
    while get(serve.http_port, "/readyz", "").status != 200 {
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
    assert_eq!(get(serve.http_port, "/healthz", "").body, "ok\n");

    // A store that nothing listens for.
    let waiting = Serve::with(&[
        ("HTTP__LISTEN", "127.0.0.1:0"),
        ("STORE__KIND", "cassandra"),
        ("STORE__CASSANDRA__CONTACT_POINTS", "127.0.0.1:1"),
    ]);
    assert_eq!(get(waiting.http_port, "/healthz", "").status, 200);
    let begun = Instant::now();
    loop {
        let ready = get(waiting.http_port, "/readyz", "");
        assert_eq!(ready.status, 503);
        if ready.body.contains("waits for Cassandra") {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{}", ready.body);
    }
    assert_eq!(Scrape::of(&waiting).value("fermata_replica_ready"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_is_not_ready_and_still_scraped() {
    let serve = serve();
    let mut client = serve.client();
    let held = create(&mut client, "", Duration::from_secs(60)).await;
    let waiting = create(&mut client, "", Duration::from_secs(60)).await;
    let held = acquire(&mut client, &held).await;
    // A call in flight keeps it from its end.
    let wait = tokio::spawn(async move { acquire(&mut client, &waiting).await });
    until(&serve, "fermata_requests_in_flight", 1.0);
    kill(Pid::from_raw(serve.pid() as i32), Signal::SIGTERM).unwrap();
    let mut is_seen = false;
    // It listens until it has ended.
    while !is_seen && TcpStream::connect(("127.0.0.1", serve.http_port)).is_ok() {
        let ready = get(serve.http_port, "/readyz", "");
        is_seen = ready.status == 503 && ready.body == "stopping\n";
    }
    assert!(is_seen, "{held} {}", wait.is_finished());
}
