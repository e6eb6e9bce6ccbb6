//! The cost of many locks that are held and not used.

use fermata_client::{Client, ClientOptions, LockGuard, LockRequest, Session, SessionRequest};
use fermata_command::output::{Table, colour};
use fermata_command::{Failure, Remote, Span, exit};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde::Serialize;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::connect::AT_ONCE;
use super::report::print;
use super::run::{millis, rate, rounded};

/// Guards of one client of the library: it watches at most half of its 6,400 streams.
const GUARDS_PER_CLIENT: usize = 3_000;
/// Sessions of one client of the library, whose renewals share a stream.
const SESSIONS_PER_CLIENT: usize = 100;

/// The cost of idle locks: memory, and statements a second
///
/// Opens sessions on the first endpoint, keeps them alive, and takes locks in them, each on a key of its own. After the
/// warm-up the memory of the replicas, and their statements to the store, are measured for a time without other calls.
/// At the end all sessions are closed; after Ctrl-C they expire.
#[derive(Debug, clap::Args)]
pub(super) struct IdleArgs {
    /// The number of locks
    #[arg(long, value_name = "N", default_value = "100000",
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    locks: u32,

    /// The number of sessions
    #[arg(long, value_name = "N", default_value = "1000",
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    sessions: u32,

    /// Hold the locks as guards of the Rust library, which watches each of them
    #[arg(long)]
    guards: bool,

    /// The TTL of each session
    #[arg(long, value_name = "SPAN", default_value = "30s")]
    ttl: Span,

    /// How long to measure
    #[arg(long, value_name = "SPAN", default_value = "30s")]
    duration: Span,

    /// How long to wait before the measurement, until the locks are durable
    #[arg(long, value_name = "SPAN", default_value = "10s")]
    warm_up: Span,

    /// The beginning of the keys
    #[arg(long, value_name = "TEXT", default_value = "bench/idle")]
    key_prefix: String,

    #[command(flatten)]
    remote: Remote,
}

/// The report. As JSON its fields are stable.
#[derive(Debug, Serialize)]
pub(super) struct IdleReport {
    version: &'static str,
    endpoints: Vec<String>,
    locks: u32,
    sessions: u32,
    guards: bool,
    ttl_ms: u64,
    /// The time to take all locks.
    taken_in_ms: u64,
    elapsed_ms: u64,
    reads_per_s: f64,
    /// Plain writes and lightweight transactions.
    writes_per_s: f64,
    /// Of all replicas, before the first session.
    resident_bytes_before: u64,
    resident_bytes: u64,
    pub(super) bytes_per_lock: f64,
}

/// Measures, prints the report, and closes the sessions, which takes as long as taking the locks.
pub(super) async fn run(args: IdleArgs) -> Result<u8, Failure> {
    let mut sessions = Vec::new();
    let measured = measure(&args, &mut sessions).await;
    let printed =
        measured.and_then(|report| print(&report, args.remote.format(), || text(&report)));
    let closed = stream::iter(sessions).map(Session::close);
    let closed: Vec<_> = closed.buffer_unordered(AT_ONCE).collect().await;
    let failed: Vec<_> = closed.into_iter().filter_map(Result::err).collect();
    if let Some(error) = failed.first() {
        let count = failed.len();
        eprintln!("fermata-bench: {count} sessions were not closed, and expire: {error}");
    }
    printed.map(|()| 0)
}

pub(super) async fn measure(
    args: &IdleArgs,
    sessions: &mut Vec<Session>,
) -> Result<IdleReport, Failure> {
    let endpoints = args.remote.endpoints();
    let options = args.remote.client_options(ClientOptions::default())?;
    let client = || Client::connect_with([&endpoints[0]], options.clone());
    let first = client()?;
    let before = Activity::of(&first).await?;
    let begun = Instant::now();
    let clients = match args.guards {
        true => (args.locks as usize).div_ceil(GUARDS_PER_CLIENT),
        false => (args.sessions as usize).div_ceil(SESSIONS_PER_CLIENT),
    };
    let clients: Vec<Client> = (0..clients).map(|_| client()).collect::<Result<_, _>>()?;
    let request = SessionRequest::new().ttl(args.ttl.duration());
    for number in 0..args.sessions as usize {
        let client = &clients[number % clients.len()];
        sessions.push(client.open_session(request.clone()).await?);
    }
    let guards = take(args, &clients, sessions).await?;
    let taken_in = begun.elapsed();
    sleep(args.warm_up.duration()).await;
    let then = Activity::of(&first).await?;
    let begun = Instant::now();
    sleep(args.duration.duration()).await;
    let elapsed = begun.elapsed();
    let now = Activity::of(&first).await?;
    let ended = sessions.iter().filter(|one| one.valid_until().is_none());
    let lost = guards.iter().filter(|guard| !guard.is_valid());
    let (ended, lost) = (ended.count(), lost.count());
    if ended + lost > 0 {
        let message = format!("{ended} sessions expired, and {lost} guards lost their locks");
        return Err(Failure::new(exit::UNAVAILABLE, message));
    }
    let bytes = now.resident_bytes.saturating_sub(before.resident_bytes);
    Ok(IdleReport {
        version: env!("CARGO_PKG_VERSION"),
        locks: args.locks,
        sessions: args.sessions,
        guards: args.guards,
        ttl_ms: millis(args.ttl.duration()),
        taken_in_ms: millis(taken_in),
        elapsed_ms: millis(elapsed),
        reads_per_s: rate(now.reads.saturating_sub(then.reads), elapsed),
        writes_per_s: rate(now.writes.saturating_sub(then.writes), elapsed),
        resident_bytes_before: before.resident_bytes,
        resident_bytes: now.resident_bytes,
        bytes_per_lock: rounded(bytes as f64 / f64::from(args.locks), 1),
        endpoints,
    })
}

/// Takes all locks. The guards, where they were asked for.
async fn take(
    args: &IdleArgs,
    clients: &[Client],
    sessions: &[Session],
) -> Result<Vec<LockGuard>, Failure> {
    let table = args.remote.table();
    let take = async |number: u32| {
        let at = number as usize % sessions.len();
        let (client, session) = (&clients[at % clients.len()], &sessions[at]);
        let request = LockRequest::new(format!("{}/{number}", args.key_prefix)).table(&table);
        Ok::<_, Failure>(match args.guards {
            true => Some(session.lock(request).await?),
            false => {
                let request_id = Uuid::new_v4();
                let created = client.create_lock_ref(&request, session.text(), request_id);
                created.await.map(|_| None)?
            }
        })
    };
    stream::iter(0..args.locks)
        .map(take)
        .buffer_unordered(AT_ONCE)
        .try_filter_map(|guard| std::future::ready(Ok(guard)))
        .try_collect()
        .await
}

/// The statements of all replicas since they started, and their memory.
#[derive(Default)]
struct Activity {
    reads: u64,
    writes: u64,
    resident_bytes: u64,
}

impl Activity {
    /// Of replicas without an endpoint here as well.
    async fn of(client: &Client) -> Result<Activity, Failure> {
        let mut sum = Activity::default();
        for one in client.describe_activity(1).await? {
            if !one.answered {
                let id = one.replica.unwrap_or_default().replica;
                let message = format!("replica {id} does not answer, so nothing can be counted");
                return Err(Failure::new(exit::UNAVAILABLE, message));
            }
            let store = one.store.unwrap_or_default();
            sum.reads += store.reads;
            sum.writes += store.writes + store.transactions;
            sum.resident_bytes += one.resident_bytes;
        }
        Ok(sum)
    }
}

fn text(report: &IdleReport) -> String {
    let columns = [
        "LOCKS",
        "SESSIONS",
        "READS/S",
        "WRITES/S",
        "MIB BEFORE",
        "MIB",
        "BYTES A LOCK",
    ];
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    let mut table = Table::new(&columns);
    table.row(vec![
        report.locks.to_string(),
        report.sessions.to_string(),
        format!("{:.1}", report.reads_per_s),
        format!("{:.1}", report.writes_per_s),
        mib(report.resident_bytes_before),
        mib(report.resident_bytes),
        format!("{:.0}", report.bytes_per_lock),
    ]);
    table.render(colour()) + "statements and memory of all replicas, heartbeats among them\n"
}
