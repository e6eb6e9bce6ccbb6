//! What many waiters on one key cost the store.

use std::time::Duration;

use fermata_client::ClientOptions;
use fermata_command::output::{Table, colour};
use fermata_command::{Failure, Remote, Span};
use futures_util::StreamExt as _;
use futures_util::stream;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::failure::EXIT_STATUS;
use super::interrupt::Interrupt;
use super::report::print;
use super::run::{millis, rate};
use super::service::{Did, Replica, Service, ServiceError};

/// Each waits in an open call, which keeps its entry alive.
const TTL: Duration = Duration::from_secs(60);
/// How many take an entry at once.
const AT_ONCE: usize = 64;
/// How many wait on one connection.
const PER_CONNECTION: usize = 500;

/// What many waiters on one key ask of the store
///
/// One client holds a key, and so many others wait for it in open AcquireLock calls, spread over the endpoints.
/// When all of them wait, what the replicas ask of the store is counted for a while. On Cassandra these are
/// statements; the embedded store counts none.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXIT_STATUS)]
pub(super) struct WaitersArgs {
    /// How many wait; several numbers run one after the other
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "0,10,100,1000",
          value_parser = clap::value_parser!(u32).range(0..=100_000))]
    waiters: Vec<u32>,

    /// How long to count
    #[arg(long, value_name = "SPAN", default_value = "10s")]
    duration: Span,

    /// How long to leave them alone before that
    #[arg(long, value_name = "SPAN", default_value = "5s")]
    warm_up: Span,

    /// How the key begins
    #[arg(long, value_name = "TEXT", default_value = "bench/waiters")]
    key_prefix: String,

    #[command(flatten)]
    remote: Remote,
}

/// What was counted. As JSON its fields are stable.
#[derive(Debug, Serialize)]
struct CrowdReport {
    version: &'static str,
    endpoints: Vec<String>,
    duration_ms: u64,
    runs: Vec<CrowdRun>,
    interrupted: bool,
}

#[derive(Debug, Serialize)]
struct CrowdRun {
    waiters: u32,
    elapsed_ms: u64,
    did: Did,
    reads_per_s: f64,
    writes_per_s: f64,
    transactions_per_s: f64,
}

impl CrowdRun {
    fn new(waiters: u32, did: Did, elapsed: Duration) -> CrowdRun {
        CrowdRun {
            waiters,
            elapsed_ms: millis(elapsed),
            reads_per_s: rate(did.store_reads, elapsed),
            writes_per_s: rate(did.store_writes, elapsed),
            transactions_per_s: rate(did.store_transactions, elapsed),
            did,
        }
    }
}

/// Runs it, and says it.
pub(super) async fn run(args: WaitersArgs) -> Result<u8, Failure> {
    let remote = &args.remote;
    let endpoints = remote.endpoints();
    let options = remote.client_options(ClientOptions::default())?;
    let service = Service::connect(&endpoints, &options).await?;
    let mut interrupt = Interrupt::listen();
    let mut report = CrowdReport {
        version: env!("CARGO_PKG_VERSION"),
        endpoints,
        duration_ms: millis(args.duration.duration()),
        runs: Vec::new(),
        interrupted: false,
    };
    let table = remote.table();
    for &waiters in &args.waiters {
        let key = format!("{}/{}", args.key_prefix, Uuid::simple(Uuid::new_v4()));
        tokio::select! {
            run = with(&args, &table, &service, &key, waiters) => report.runs.push(run?),
            () = interrupt.pressed() => {
                report.interrupted = true;
                break;
            }
        }
    }
    print(&report, remote.format(), || text(&report))?;
    Ok(0)
}

/// So many on this key. All have left when it returns.
async fn with(
    args: &WaitersArgs,
    table: &str,
    service: &Service,
    key: &str,
    waiters: u32,
) -> Result<CrowdRun, ServiceError> {
    let first = &service.first;
    let held = first.create(table, key, "", TTL).await?;
    // Its own wait: an open call of the holder.
    let lease = first.keep(vec![held.session.clone()], TTL / 3);
    let counted = async {
        // On connections of their own: open calls must not hold up what is asked beside.
        let mut replicas = Vec::new();
        let connections = (waiters as usize).div_ceil(PER_CONNECTION).max(1);
        for replica in service
            .replicas
            .iter()
            .cycle()
            .take(connections.max(service.replicas.len()))
        {
            replicas.push(replica.again().await?);
        }
        let replicas = replicas.iter().cycle().take(waiters as usize).cloned();
        let entries: Vec<(Replica, String)> = stream::iter(replicas.collect::<Vec<_>>())
            .map(|replica| async move {
                let created = replica.create(table, key, "", TTL).await?;
                Ok::<_, ServiceError>((replica, created.lock_ref))
            })
            .buffer_unordered(AT_ONCE)
            .collect::<Vec<_>>()
            .await
            .into_iter()
            .collect::<Result<_, _>>()?;
        let mut waits = JoinSet::new();
        for (replica, lock_ref) in &entries {
            let (replica, lock_ref) = (replica.clone(), lock_ref.clone());
            waits.spawn(async move { replica.acquire(&lock_ref).await.map(drop) });
        }
        let counting = async {
            sleep(args.warm_up.duration()).await;
            let waiting = first.waiters_of(table, key).await?;
            if waiting != waiters {
                let asked = waiters;
                return Err(ServiceError::NotWaiting { waiting, asked });
            }
            let before = service.did().await?;
            let begun = Instant::now();
            sleep(args.duration.duration()).await;
            let did = service.did().await?.since(before);
            Ok::<_, ServiceError>(CrowdRun::new(waiters, did, begun.elapsed()))
        };
        let run = tokio::select! {
            run = counting => run,
            // Nobody's turn comes while it is held.
            Some(ended) = waits.join_next() => match ended {
                Ok(Err(error)) => Err(error),
                Ok(Ok(())) | Err(_) => Err(ServiceError::Overtaken),
            },
        };
        waits.shutdown().await;
        let left = stream::iter(entries)
            .map(|(replica, lock_ref)| async move { replica.release(&lock_ref).await })
            .buffer_unordered(AT_ONCE);
        let left: Vec<Result<(), ServiceError>> = left.collect().await;
        left.into_iter().collect::<Result<(), _>>()?;
        run
    };
    let run = counted.await;
    drop(lease);
    first.release(&held.lock_ref).await?;
    run
}

fn text(report: &CrowdReport) -> String {
    let mut table = Table::new(&["WAITERS", "READS/S", "WRITES/S", "TRANSACTIONS/S"]);
    for run in &report.runs {
        table.row(vec![
            run.waiters.to_string(),
            format!("{:.1}", run.reads_per_s),
            format!("{:.1}", run.writes_per_s),
            format!("{:.1}", run.transactions_per_s),
        ]);
    }
    let mut text = table.render(colour());
    text.push_str("statements of all replicas of the service, heartbeats among them\n");
    if report.interrupted {
        text.push_str("interrupted\n");
    }
    text
}
