//! The time from the release of one client to the grant of the next.

use std::time::Duration;

use fermata_client::ClientOptions;
use fermata_command::{Failure, Remote, Span, exit};
use fermata_proto::{
    CreateLockRefRequest, CreateLockRefResponse, HOME_ADDRESS, ReleaseLockRequest,
};
use serde::Serialize;
use tokio::time::{Instant, sleep};
use tonic::{Response, Status};
use uuid::Uuid;

use super::connect::{Connection, address_of};
use super::measure::{histogram, record};
use super::report::{latencies, print};
use super::run::PhaseRow;

/// The time from the release of one client to the grant of the next
///
/// Two clients pass a key to and fro. The measured time begins when one sends ReleaseLock, and ends when the open
/// AcquireLock of the other answers HELD. On the same replica: both call the home of the key. Across replicas: one of them
/// calls another endpoint. Beside these times: ReleaseLock of a key that nobody waits for.
#[derive(Debug, clap::Args)]
pub(super) struct HandoverArgs {
    /// How often each way is measured
    #[arg(long, value_name = "N", default_value = "200",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rounds: u32,

    /// The mean time in the queue before the release: each time is a half more or less, by chance
    #[arg(long, value_name = "SPAN", default_value = "100ms")]
    pause: Span,

    /// The beginning of the keys
    #[arg(long, value_name = "TEXT", default_value = "bench/handover")]
    key_prefix: String,

    #[command(flatten)]
    remote: Remote,
}

/// The report. As JSON its fields are stable.
#[derive(Debug, Serialize)]
pub(super) struct HandoverReport {
    version: &'static str,
    endpoints: Vec<String>,
    rounds: u32,
    pause: Span,
    /// ReleaseLock of a key that nobody waits for.
    pub(super) change: PhaseRow,
    pub(super) same_replica: PhaseRow,
    /// Absent with one endpoint.
    across_replicas: Option<PhaseRow>,
}

/// Measures, and prints the report.
pub(super) async fn run(args: HandoverArgs) -> Result<u8, Failure> {
    let report = measure(&args).await?;
    print(&report, args.remote.format(), || {
        let rows = [&report.change, &report.same_replica];
        latencies(rows.into_iter().chain(&report.across_replicas))
    })?;
    Ok(0)
}

pub(super) async fn measure(args: &HandoverArgs) -> Result<HandoverReport, Failure> {
    let endpoints = args.remote.endpoints();
    let options = args.remote.client_options(ClientOptions::default())?;
    let key = format!("{}/{}", args.key_prefix, Uuid::new_v4().simple());
    let home = home_of(&key, args, &endpoints, &options).await?;
    let here = HandoverClient::connect(args, home, &options).await?;
    let other = HandoverClient::connect(args, home, &options).await?;
    let there = match endpoints.iter().find(|endpoint| endpoint.as_str() != home) {
        Some(endpoint) => Some(HandoverClient::connect(args, endpoint, &options).await?),
        None => None,
    };
    let (mut change, mut same, mut across) = (histogram()?, histogram()?, histogram()?);
    for round in 0..args.rounds {
        let (passed, released) = pass(&key, args.pause, [&here, &other]).await?;
        record(&mut same, passed);
        record(&mut change, released);
        if let Some(there) = &there {
            let pair = match round % 2 {
                0 => [&here, there],
                _ => [there, &here],
            };
            let (passed, _) = pass(&key, args.pause, pair).await?;
            record(&mut across, passed);
        }
    }
    let across = PhaseRow::of("hand-over, across replicas", &across);
    Ok(HandoverReport {
        version: env!("CARGO_PKG_VERSION"),
        endpoints,
        rounds: args.rounds,
        pause: args.pause,
        change: PhaseRow::of("release, nobody waits", &change),
        same_replica: PhaseRow::of("hand-over, same replica", &same),
        across_replicas: there.map(|_| across),
    })
}

/// The endpoint that serves a key.
async fn home_of<'a>(
    key: &str,
    args: &HandoverArgs,
    endpoints: &'a [String],
    options: &ClientOptions,
) -> Result<&'a str, Failure> {
    let first = HandoverClient::connect(args, &endpoints[0], options).await?;
    let created = first.create(key).await?;
    let home = created.metadata().get(HOME_ADDRESS).cloned();
    first.release(created.into_inner().lock_ref).await?;
    // An answer of the home names none.
    let Some(home) = home else {
        return Ok(&endpoints[0]);
    };
    let home = home.to_str().unwrap_or_default();
    let found = endpoints
        .iter()
        .find(|endpoint| address_of(endpoint) == home);
    found.map(String::as_str).ok_or_else(|| {
        Failure::usage(format!(
            "the home of the key is {home}, name that as an --endpoint too"
        ))
    })
}

/// Passes a key from one client to the other, which releases it then. The times of the hand-over and of that release.
async fn pass(
    key: &str,
    pause: Span,
    [from, to]: [&HandoverClient; 2],
) -> Result<(Duration, Duration), Failure> {
    let held = from.create(key).await?.into_inner();
    let waiting = to.create(key).await?.into_inner();
    let wait = async {
        to.acquire(&waiting.lock_ref).await?;
        Ok::<_, Failure>(Instant::now())
    };
    let release = async {
        sleep(pause.duration().mul_f64(0.5 + rand::random::<f64>())).await;
        let begun = Instant::now();
        from.release(held.lock_ref).await?;
        Ok(begun)
    };
    let (granted, released) = tokio::try_join!(wait, release)?;
    let begun = Instant::now();
    to.release(waiting.lock_ref).await?;
    let passed = granted.saturating_duration_since(released);
    Ok((passed, begun.elapsed()))
}

/// A client of one replica.
struct HandoverClient {
    endpoint: String,
    connection: Connection,
    table: String,
    ttl: Duration,
}

impl HandoverClient {
    async fn connect(
        args: &HandoverArgs,
        endpoint: &str,
        options: &ClientOptions,
    ) -> Result<HandoverClient, Failure> {
        Ok(HandoverClient {
            endpoint: endpoint.to_owned(),
            connection: Connection::open(endpoint, options, false).await?,
            table: args.remote.table(),
            // More than the longest pause and the calls around it.
            ttl: 2 * (args.pause.duration() + options.timeout),
        })
    }

    async fn create(&self, key: &str) -> Result<Response<CreateLockRefResponse>, Failure> {
        let create = CreateLockRefRequest {
            key: key.to_owned(),
            table: self.table.clone(),
            request_id: Uuid::new_v4().to_string(),
            ttl: self.ttl.try_into().ok(),
            owner: "fermata-bench".to_owned(),
            ..CreateLockRefRequest::default()
        };
        let created = self.connection.clone().create_lock_ref(create).await;
        created.map_err(|status| self.failed("CreateLockRef", &status))
    }

    async fn acquire(&self, lock_ref: &str) -> Result<(), Failure> {
        let acquired = self.connection.clone().acquire_lock(lock_ref, false).await;
        acquired
            .map(drop)
            .map_err(|status| self.failed("AcquireLock", &status))
    }

    async fn release(&self, lock_ref: String) -> Result<(), Failure> {
        let release = ReleaseLockRequest {
            lock_ref,
            ..ReleaseLockRequest::default()
        };
        let released = self.connection.clone().release_lock(release).await;
        released
            .map(drop)
            .map_err(|status| self.failed("ReleaseLock", &status))
    }

    fn failed(&self, call: &str, status: &Status) -> Failure {
        let message = format!("{call} failed at {}: {}", self.endpoint, status.message());
        Failure::new(exit::UNAVAILABLE, message)
    }
}
