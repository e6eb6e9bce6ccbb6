//! How long a key takes from the release of one client to the grant of the next.

use std::time::Duration;

use fermata_cassandra::Fault;
use fermata_client::ClientOptions;
use fermata_command::output::{Table, colour};
use fermata_command::{Failure, Remote, Span};
use hdrhistogram::Histogram;
use serde::Serialize;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::baseline::ClusterArgs;
use super::failure::{BenchError, EXIT_STATUS};
use super::interrupt::Interrupt;
use super::keys::Random;
use super::music::Music;
use super::report::print;
use super::run::{PhaseRow, millis};
use super::service::{Did, Replica, Service, ServiceError};

/// The longest pause, before it is stretched by chance.
const PAUSE_MAX: Duration = Duration::from_secs(20);
/// Long enough for any pause; each entry is released before.
const TTL: Duration = Duration::from_secs(60);

/// From the release of one client to the grant of the next
///
/// Two clients pass a key to and fro. The one that waits has its AcquireLock open; what is measured is the time
/// from sending ReleaseLock until the other one's AcquireLock says HELD. On the same replica: both call the
/// first endpoint, where the key has its home. Across replicas: one of them calls the second endpoint.
///
/// Beside it, in the same rounds: ReleaseLock of a key that nobody waits for, which with write-through is one change
/// of the store by way of the service; with --contact-points also a lightweight transaction sent straight to
/// Cassandra.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXIT_STATUS)]
pub(super) struct HandoverArgs {
    /// How often each way is measured
    #[arg(long, value_name = "N", default_value = "200",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rounds: u32,

    /// How long one waits before the other releases: a half more or less, by chance
    #[arg(long, value_name = "SPAN", default_value = "100ms")]
    pause: Span,

    /// How the keys begin
    #[arg(long, value_name = "TEXT", default_value = "bench/handover")]
    key_prefix: String,

    #[command(flatten)]
    remote: Remote,

    #[command(flatten)]
    cluster: ClusterArgs,
}

/// What was measured. As JSON its fields are stable.
#[derive(Debug, Serialize)]
struct HandoverReport {
    version: &'static str,
    endpoints: Vec<String>,
    rounds: u32,
    pause_ms: u64,
    /// ReleaseLock where nobody waits. As those below absent where no round was finished.
    change: Option<PhaseRow>,
    /// A lightweight transaction, straight. Absent without --contact-points.
    transaction: Option<PhaseRow>,
    same_replica: Option<PhaseRow>,
    /// Absent with one endpoint.
    across_replicas: Option<PhaseRow>,
    /// What the replicas did, in all rounds.
    did: Did,
    interrupted: bool,
}

/// Times, in microseconds.
struct Times(Histogram<u64>);

impl Times {
    fn new() -> Result<Times, hdrhistogram::CreationError> {
        Histogram::new(3).map(Times)
    }

    fn add(&mut self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        let recorded = self.0.record(us);
        debug_assert!(recorded.is_ok(), "such a histogram grows as needed");
    }

    fn row(&self, name: &'static str) -> Option<PhaseRow> {
        (!self.0.is_empty()).then(|| PhaseRow::of(name, &self.0))
    }
}

/// Runs it, and says it.
pub(super) async fn run(args: HandoverArgs) -> Result<u8, Failure> {
    if args.pause.duration() > PAUSE_MAX {
        return Err(Failure::usage("--pause may be 20s at most"));
    }
    let remote = &args.remote;
    let report = measure(&args, remote).await?;
    print(&report, remote.format(), || text(&report))?;
    Ok(0)
}

async fn measure(args: &HandoverArgs, remote: &Remote) -> Result<HandoverReport, Failure> {
    let mut interrupt = Interrupt::listen();
    let endpoints = remote.endpoints();
    let options = remote.client_options(ClientOptions::default())?;
    let service = Service::connect(&endpoints, &options).await?;
    let straight = match args.cluster.is_given() {
        false => None,
        true => {
            let options = args.cluster.options()?;
            let (tag, ..) = Uuid::new_v4().as_fields();
            Some(Music::make(&options, tag).await.map_err(BenchError::from)?)
        }
    };
    let measured = rounds(
        args,
        &remote.table(),
        &service,
        straight.as_ref(),
        &mut interrupt,
    )
    .await;
    if let Some(music) = &straight
        && let Err(fault) = music.drop_tables().await
    {
        eprintln!("fermata-bench: the tables music_… of this run could not be dropped: {fault}");
    }
    let mut report = measured?;
    report.endpoints = endpoints;
    Ok(report)
}

async fn rounds(
    args: &HandoverArgs,
    table: &str,
    service: &Service,
    straight: Option<&Music>,
    interrupt: &mut Interrupt,
) -> Result<HandoverReport, Failure> {
    let new = || Times::new().map_err(BenchError::from);
    let (mut change, mut transaction, mut same, mut across) = (new()?, new()?, new()?, new()?);
    let key = service.key_at_first(table, &args.key_prefix, TTL).await?;
    let here = service.first.again().await?;
    let there = service.replicas.get(1);
    let before = service.did().await?;
    let mut interrupted = false;
    let mut rounds = 0;
    let mut chance = Random::new();
    for round in 0..args.rounds {
        let pause = args.pause.duration();
        let pause = pause / 2 + pause.mul_f64(chance.unit());
        let one = async {
            let first = &service.first;
            same.add(pass(table, &key, [first, &here], pause, &mut change).await?);
            if let Some(there) = there {
                let pair = match round % 2 {
                    0 => [first, there],
                    _ => [there, first],
                };
                across.add(pass(table, &key, pair, pause, &mut change).await?);
            }
            if let Some(music) = straight {
                let took = send_straight(music, &format!("{key}/{round}")).await;
                transaction.add(took.map_err(BenchError::from)?);
            }
            Ok::<(), Failure>(())
        };
        tokio::select! {
            done = one => done?,
            () = interrupt.pressed() => {
                interrupted = true;
                break;
            }
        }
        rounds += 1;
    }
    let did = service.did().await?.since(before);
    Ok(HandoverReport {
        version: env!("CARGO_PKG_VERSION"),
        endpoints: Vec::new(),
        rounds,
        pause_ms: millis(args.pause.duration()),
        change: change.row("change"),
        transaction: transaction.row("transaction"),
        same_replica: same.row("same"),
        across_replicas: across.row("across"),
        did,
        interrupted,
    })
}

/// Passes a key from one client to the other: how long that took. The other one releases it then, which is a
/// change that nobody waits for, where it calls the home of the key.
async fn pass(
    table: &str,
    key: &str,
    [from, to]: [&Replica; 2],
    pause: Duration,
    change: &mut Times,
) -> Result<Duration, ServiceError> {
    let held = from.create(table, key, "", TTL).await?;
    let waiting = to.create(table, key, "", TTL).await?;
    let wait = async {
        let acquired = to.acquire(&waiting.lock_ref).await?;
        Ok::<_, ServiceError>((acquired, Instant::now()))
    };
    let release = async {
        sleep(pause).await;
        let begun = Instant::now();
        from.release(&held.lock_ref).await?;
        Ok::<_, ServiceError>(begun)
    };
    let ((acquired, granted), released) = tokio::try_join!(wait, release)?;
    let begun = Instant::now();
    to.release(&acquired.lock_ref).await?;
    if to.id == from.id {
        change.add(begun.elapsed());
    }
    Ok(granted.saturating_duration_since(released))
}

/// A lightweight transaction, as simple as one that changes a queue can be.
async fn send_straight(music: &Music, key: &str) -> Result<Duration, Fault> {
    let begun = Instant::now();
    music.enqueue(key, 0, "fermata-bench", 0).await?;
    Ok(begun.elapsed())
}

fn text(report: &HandoverReport) -> String {
    let mut table = Table::new(&[
        "",
        "COUNT",
        "P50 MS",
        "P90 MS",
        "P99 MS",
        "MAX MS",
        "P50 RATIO",
    ]);
    let ms = |us: u64| format!("{:.2}", us as f64 / 1_000.0);
    let rows = [
        ("transaction, straight", report.transaction.as_ref()),
        ("release, nobody waits", report.change.as_ref()),
        ("hand-over, same replica", report.same_replica.as_ref()),
        (
            "hand-over, across replicas",
            report.across_replicas.as_ref(),
        ),
    ];
    for (name, row) in rows {
        let Some(row) = row else { continue };
        table.row(vec![
            name.to_owned(),
            row.count.to_string(),
            ms(row.p50_us),
            ms(row.p90_us),
            ms(row.p99_us),
            ms(row.max_us),
            ratio(row, report.change.as_ref()),
        ]);
    }
    let mut text = table.render(colour());
    text.push('\n');
    if let Some(straight) = &report.transaction {
        text.push_str("to a transaction sent straight:");
        for (name, row) in [
            ("same replica", report.same_replica.as_ref()),
            ("across replicas", report.across_replicas.as_ref()),
        ] {
            if let Some(row) = row {
                text.push_str(&format!(" {name} {},", ratio(row, Some(straight))));
            }
        }
        text.pop();
        text.push('\n');
    }
    if report.interrupted {
        text.push_str("interrupted\n");
    }
    text
}

fn ratio(row: &PhaseRow, to: Option<&PhaseRow>) -> String {
    to.map_or_else(String::new, |to| {
        format!("{:.2}", row.p50_us as f64 / to.p50_us.max(1) as f64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &'static str, us: u64) -> PhaseRow {
        let mut times = Times::new().unwrap();
        times.add(Duration::from_micros(us));
        times.row(name).unwrap()
    }

    #[test]
    fn the_report_relates_each_way_to_one_change() {
        let report = HandoverReport {
            version: "0",
            endpoints: Vec::new(),
            rounds: 1,
            pause_ms: 100,
            change: Some(row("change", 8_000)),
            transaction: Some(row("transaction", 6_400)),
            same_replica: Some(row("same", 10_000)),
            across_replicas: Some(row("across", 12_000)),
            did: Did {
                turns_after_change: 4,
                ..Did::default()
            },
            interrupted: false,
        };
        let text = text(&report);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[2].starts_with("release, nobody waits"), "{text}");
        assert!(lines[2].ends_with("1.00"), "{text}");
        assert!(
            lines[3].ends_with("1.25") && lines[4].ends_with("1.50"),
            "{text}"
        );
        assert!(
            text.contains("same replica 1.56, across replicas 1.88"),
            "{text}"
        );
    }

    #[test]
    fn nothing_measured_is_no_row() {
        assert!(Times::new().unwrap().row("none").is_none());
    }
}
