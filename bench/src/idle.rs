//! What many locks cost that are held and not used.

use std::time::Duration;

use fermata_client::{Client, ClientOptions, LockGuard, LockRequest, Session, SessionRequest};
use fermata_command::output::{Table, colour};
use fermata_command::{Failure, Remote, Span};
use futures_util::stream;
use futures_util::{StreamExt as _, TryStreamExt as _};
use indicatif::{ProgressBar, ProgressStyle};
use nix::sys::signal::Signal;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::failure::EXIT_STATUS;
use super::interrupt::Interrupt;
use super::report::print;
use super::run::{millis, rate, tenths};
use super::service::{Did, Kept, Replica, Service, ServiceError};

/// How many locks are taken at once.
const AT_ONCE: usize = 64;
/// How many sessions are closed at once.
const CLOSED_AT_ONCE: usize = 8;
/// How many guards one client of the library has: as many as it watches at once.
const GUARDS_PER_CLIENT: usize = 3_000;
/// How often it is looked whether the replicas have work left, and how often in a row they must have none.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const QUIET_LOOKS: u32 = 3;
/// So many transactions between two looks are none: those of replicas about themselves.
const TRANSACTIONS_A_LOOK: u64 = 5;
/// It is waited no longer for that.
const SETTLED_WITHIN: Duration = Duration::from_secs(300);
/// How many sessions one stream keeps alive.
const PER_STREAM: usize = 100;

/// What idle locks cost: memory, and statements a second
///
/// Opens so many sessions on the first endpoint, kept alive by streams, and takes so many locks in them, each on a
/// key of its own. Then nothing is done but to keep them alive, while the memory of the replicas and what they ask
/// of the store are looked at. In the end all sessions are closed.
///
/// With --guards the locks are guards of the Rust library, which watches each of them.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXIT_STATUS)]
pub(super) struct IdleArgs {
    /// How many locks
    #[arg(long, value_name = "N", default_value = "100000",
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    locks: u32,

    /// In how many sessions
    #[arg(long, value_name = "N", default_value = "1000",
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    sessions: u32,

    /// Hold them as a program does that uses the Rust library
    #[arg(long)]
    guards: bool,

    /// The TTL of each session
    #[arg(long, value_name = "SPAN", default_value = "30s")]
    ttl: Span,

    /// How long to look
    #[arg(long, value_name = "SPAN", default_value = "30s")]
    duration: Span,

    /// How the keys begin
    #[arg(long, value_name = "TEXT", default_value = "bench/idle")]
    key_prefix: String,

    #[command(flatten)]
    remote: Remote,
}

/// What was seen. As JSON its fields are stable.
#[derive(Debug, Serialize)]
struct IdleReport {
    version: &'static str,
    endpoints: Vec<String>,
    locks: u32,
    sessions: u32,
    /// Whether they were held by the Rust library.
    guards: bool,
    ttl_ms: u64,
    /// How long it took to take all of them.
    taken_in_ms: u64,
    /// Whether replicas had nothing left to do for them when the look began.
    settled: bool,
    elapsed_ms: u64,
    did: Did,
    reads_per_s: f64,
    /// Plain writes and lightweight transactions.
    writes_per_s: f64,
    /// Of all replicas, before the first session.
    resident_bytes_before: u64,
    resident_bytes: u64,
    bytes_per_lock: f64,
}

/// Runs it, and says it.
pub(super) async fn run(args: IdleArgs) -> Result<u8, Failure> {
    let remote = &args.remote;
    let endpoints = remote.endpoints();
    let options = remote.client_options(ClientOptions::default())?;
    let service = Service::connect(&endpoints, &options).await?;
    let mut interrupt = Interrupt::listen();
    let mut opened = Vec::new();
    let table = remote.table();
    let measured = tokio::select! {
        measured = measure(&args, &table, &service, &mut opened) => Some(measured),
        () = interrupt.pressed() => None,
    };
    // Before all is closed again, which takes as long as it took to take it.
    let answered = match measured {
        None => Err(Failure::signal(
            Signal::SIGINT,
            "interrupted before anything was measured",
        )),
        Some(measured) => measured.map_err(Failure::from).and_then(|mut report| {
            report.endpoints = endpoints;
            print(&report, remote.format(), || text(&report))
        }),
    };
    let line = line(opened.len(), "sessions closed");
    let closed = stream::iter(opened)
        .map(|session| service.first.close_session(session))
        .buffer_unordered(CLOSED_AT_ONCE)
        .inspect(|_| line.inc(1))
        .filter_map(|closed| std::future::ready(closed.err()));
    let failed: Vec<ServiceError> = tokio::select! {
        failed = closed.collect() => failed,
        () = interrupt.pressed() => Vec::new(),
    };
    line.finish_and_clear();
    if let Some(error) = failed.first() {
        let count = failed.len();
        eprintln!("fermata-bench: {count} sessions were not closed, and expire: {error}");
    }
    answered.map(|()| 0)
}

fn line(len: usize, what: &'static str) -> ProgressBar {
    let line = ProgressBar::new(len as u64);
    if let Ok(style) = ProgressStyle::with_template("{pos}/{len} {msg}  {elapsed}") {
        line.set_style(style);
    }
    line.set_message(what);
    line
}

/// Takes all locks, by their numbers and keys.
async fn take_all<T, F>(
    args: &IdleArgs,
    take: impl Fn(usize, String) -> F,
) -> Result<Vec<T>, ServiceError>
where
    F: Future<Output = Result<T, ServiceError>>,
{
    let progress = line(args.locks as usize, "locks taken");
    let take = |number: u32| take(number as usize, format!("{}/{number}", args.key_prefix));
    let taken = stream::iter(0..args.locks)
        .map(take)
        .buffer_unordered(AT_ONCE)
        .inspect_ok(|_| progress.inc(1))
        .try_collect()
        .await;
    progress.finish_and_clear();
    taken
}

async fn take_by_calls(
    args: &IdleArgs,
    table: &str,
    first: &Replica,
    opened: &mut Vec<String>,
) -> Result<Vec<Kept>, ServiceError> {
    let ttl = args.ttl.duration();
    let mut kept = Vec::new();
    while opened.len() < args.sessions as usize {
        let more = PER_STREAM.min(args.sessions as usize - opened.len());
        let mut sessions = Vec::with_capacity(more);
        for _ in 0..more {
            sessions.push(first.open_session(ttl).await?);
        }
        opened.extend(sessions.iter().cloned());
        kept.push(first.keep(sessions, ttl / 3));
    }
    let sessions: &[String] = opened;
    take_all(args, |number, key| async move {
        let session = &sessions[number % sessions.len()];
        first.create(table, &key, session, ttl).await.map(drop)
    })
    .await?;
    Ok(kept)
}

async fn take_guards(
    args: &IdleArgs,
    table: &str,
    first: &Replica,
    opened: &mut Vec<String>,
) -> Result<Vec<LockGuard>, ServiceError> {
    let ttl = args.ttl.duration();
    // A client has room for so many watches.
    let clients = (args.locks as usize).div_ceil(GUARDS_PER_CLIENT);
    let clients = clients.min(args.sessions as usize).max(1);
    let clients: Result<Vec<Client>, _> = (0..clients).map(|_| first.client()).collect();
    let clients = clients.map_err(|error| ServiceError::Library(error.to_string()))?;
    let mut sessions: Vec<Session> = Vec::new();
    for number in 0..args.sessions as usize {
        let client = &clients[number % clients.len()];
        let session = client.open_session(SessionRequest::new().ttl(ttl)).await;
        let session = session.map_err(|error| ServiceError::Library(error.to_string()))?;
        opened.push(session.text().to_owned());
        sessions.push(session);
    }
    let sessions = &sessions;
    take_all(args, |number, key| async move {
        let session = &sessions[number % sessions.len()];
        let locked = session.lock(LockRequest::new(key).table(table)).await;
        locked.map_err(|error| ServiceError::Library(error.to_string()))
    })
    .await
}

async fn measure(
    args: &IdleArgs,
    table: &str,
    service: &Service,
    opened: &mut Vec<String>,
) -> Result<IdleReport, ServiceError> {
    let first = &service.first;
    let ttl = args.ttl.duration();
    let before = service.did().await?;
    let begun = Instant::now();
    let (mut kept, mut guards) = (Vec::new(), Vec::new());
    match args.guards {
        false => kept = take_by_calls(args, table, first, opened).await?,
        true => guards = take_guards(args, table, first, opened).await?,
    }
    let taken_in = begun.elapsed();
    let (then, settled) = settle(service).await?;
    let begun = Instant::now();
    sleep(args.duration.duration()).await;
    let elapsed = begun.elapsed();
    let did = service.did().await?.since(then);
    let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
    if lost > 0 {
        return Err(ServiceError::Lost(lost));
    }
    drop(kept);
    let open = did.sessions.saturating_sub(before.sessions);
    if open < u64::from(args.sessions) {
        return Err(ServiceError::Expired {
            open,
            opened: u64::from(args.sessions),
        });
    }
    let more = did.resident_bytes.saturating_sub(before.resident_bytes);
    Ok(IdleReport {
        version: env!("CARGO_PKG_VERSION"),
        endpoints: Vec::new(),
        locks: args.locks,
        sessions: args.sessions,
        guards: args.guards,
        ttl_ms: millis(ttl),
        taken_in_ms: millis(taken_in),
        settled,
        elapsed_ms: millis(elapsed),
        reads_per_s: rate(did.store_reads, elapsed),
        writes_per_s: rate(did.store_writes + did.store_transactions, elapsed),
        resident_bytes_before: before.resident_bytes,
        resident_bytes: did.resident_bytes,
        bytes_per_lock: tenths(more as f64 / f64::from(args.locks)),
        did,
    })
}

/// Waits until the last of them left nothing to do: with write-back each lock becomes durable by a transaction a while after
/// it was taken. What the replicas did until then, and whether that was all.
async fn settle(service: &Service) -> Result<(Did, bool), ServiceError> {
    let until = Instant::now() + SETTLED_WITHIN;
    let mut quiet_looks = 0;
    let mut before = service.did().await?;
    loop {
        sleep(LOOK_EVERY).await;
        let did = service.did().await?;
        let is_quiet = did.since(before).store_transactions <= TRANSACTIONS_A_LOOK;
        quiet_looks = if is_quiet { quiet_looks + 1 } else { 0 };
        if quiet_looks == QUIET_LOOKS {
            return Ok((did, true));
        }
        if Instant::now() >= until {
            return Ok((did, false));
        }
        before = did;
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
    let mut text = table.render(colour());
    text.push_str("statements and memory of all replicas of the service, heartbeats among them\n");
    if !report.settled {
        text.push_str(
            "locks were still becoming durable: their transactions are among the writes\n",
        );
    }
    text
}
