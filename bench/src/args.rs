//! The flags of `fermata-bench`, and the plan that they make.

use std::path::PathBuf;
use std::time::Duration;

use fermata_client::ClientOptions;
use fermata_command::output::Format;
use fermata_command::{Failure, Remote, Span};

use super::baseline::{Baseline, BaselineArgs};
use super::counters::VALUE_BYTES_MIN;
use super::crowd::WaitersArgs;
use super::failure::EXIT_STATUS;
use super::handover::HandoverArgs;
use super::idle::IdleArgs;
use super::keys::{KeyChoice, Near};
use super::load;
use super::workload::Form;

/// The benchmark of Fermata: measures a running server
///
/// Workers lock, read, write and release over real connections as fast as they are answered, and each
/// kind of call is timed. `fermata-bench section --workers 1,16,64` is a good start.
///
/// Every section increments a counter under its lock. Afterwards the counters are read: an increment
/// that was acknowledged and is missing is reported as lost. Errors are counted by status code and never
/// left out. Ctrl-C ends early with the report of what was measured; a second one does not wait for
/// calls in flight.
#[derive(Debug, clap::Parser)]
#[command(name = "fermata-bench", version, after_help = EXIT_STATUS)]
pub(super) struct Args {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum Benchmark {
    Section(SectionArgs),
    Lock(LockArgs),
    Handover(HandoverArgs),
    Waiters(WaitersArgs),
    Idle(IdleArgs),
}

/// Whole critical sections: lock, read, write, release
///
/// Each section is CreateLockRef, AcquireLock if the answer says WAITING, CriticalGet, CriticalPut of the
/// number that was read plus one, and ReleaseLock.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXIT_STATUS)]
struct SectionArgs {
    /// The same in two calls: the create reads the value, and the release writes it
    #[arg(long)]
    short: bool,

    /// The size of a value, in bytes; the first 8 of them are the counter
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = parse_value_size)]
    value_size: usize,

    #[command(flatten)]
    load: LoadArgs,

    #[command(flatten)]
    baseline: BaselineArgs,
}

/// Locks alone: nothing is read or written under them
///
/// Each round is CreateLockRef, AcquireLock if the answer says WAITING, and ReleaseLock.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXIT_STATUS)]
struct LockArgs {
    #[command(flatten)]
    load: LoadArgs,
}

#[derive(Debug, Clone, clap::Args)]
struct LoadArgs {
    /// How many sections are in flight at once; several numbers run one after the other
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,16,64",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=100_000))]
    workers: Vec<usize>,

    /// Which keys: own for each worker, one for all, a new one for each section, drawn by a Zipf distribution, or drawn mostly
    /// from a part of them
    #[arg(long, value_enum, default_value_t = KeyChoice::Own)]
    keys: KeyChoice,

    /// How many keys --keys zipf and near draw from, or new may use [default: 1000, of new 100000]
    #[arg(long, value_name = "N",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=10_000_000))]
    key_count: Option<usize>,

    /// How uneven --keys zipf draws: 0 is even
    #[arg(long, value_name = "S", default_value = "0.99", value_parser = parse_skew)]
    zipf_skew: f64,

    /// With --keys near: which part of the keys is near this client, as 1/3. Each client of a run has another part
    #[arg(long, value_name = "PART/PARTS", default_value = "1/3", value_parser = Near::parse_part)]
    near_part: (usize, usize),

    /// With --keys near: how often a section is on a key of that part, of 1; else on one of the others
    #[arg(long, value_name = "SHARE", default_value = "0.9", value_parser = parse_share)]
    near_share: f64,

    /// How the keys begin. Two benchmarks at once need different ones for exact counters
    #[arg(long, value_name = "TEXT", default_value = "bench")]
    key_prefix: String,

    /// The TTL of each lockRef
    #[arg(long, value_name = "SPAN", default_value = "30s")]
    ttl: Span,

    /// How long to do nothing while the lock is held: what a section of real work takes
    #[arg(long, value_name = "SPAN", default_value = "0s")]
    hold: Span,

    /// So many sections a second in all, whether the ones before have ended or not: an open loop
    ///
    /// They are due at equal distances, and how long one took counts from when it was due: a stall makes all slow that
    /// came meanwhile. --workers says how many may be in flight; what was due and found none free before the end is counted as
    /// not begun. Without a rate the loop is closed: a worker begins a section when its last one ends.
    #[arg(long, value_name = "N", value_parser = parse_rate)]
    rate: Option<f64>,

    /// Find the highest rate at which 99.9 % of the sections take less than this
    ///
    /// Each rate that is tried is a run of its own: the first is --rate, or 100, then twice as much until one is too high, then
    /// the middle, to within a twentieth.
    #[arg(long, value_name = "SPAN")]
    p999_below: Option<Span>,

    /// How long to measure
    #[arg(long, value_name = "SPAN", default_value = "10s")]
    duration: Span,

    /// How long to run before that
    #[arg(long, value_name = "SPAN", default_value = "2s")]
    warm_up: Span,

    /// How many HTTP/2 connections the workers share [default: one for 16 workers]
    #[arg(long, value_name = "N",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    connections: Option<usize>,

    /// Send calls in frames, over one Pipeline for each connection, rather than each by itself
    #[arg(long)]
    pipeline: bool,

    /// Beside the sections keep so many sessions open, each with a lock and of --ttl, and time their renewals
    ///
    /// Each is renewed three times in its TTL, at the first endpoint; how long that took counts from when it was due.
    #[arg(long, value_name = "N", default_value = "0",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(0..=100_000))]
    sessions: usize,

    /// Also time fdatasync in this directory, before and after: name one on the disk of the server
    #[arg(long, value_name = "DIR")]
    disk_probe: Option<PathBuf>,

    #[command(flatten)]
    remote: Remote,
}

/// Which benchmark.
#[derive(Debug)]
pub(super) enum What {
    /// Sections, or locks alone.
    Load {
        plan: Box<Plan>,
        format: Format,
    },
    Handover(HandoverArgs),
    Waiters(WaitersArgs),
    Idle(IdleArgs),
}

/// What to do.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) form: Form,
    /// The servers to call.
    pub(super) endpoints: Vec<String>,
    /// How they are called.
    pub(super) options: ClientOptions,
    pub(super) workers: Vec<usize>,
    pub(super) connections: Option<usize>,
    /// Whether calls go over Pipelines.
    pub(super) pipeline: bool,
    pub(super) keys: KeyChoice,
    pub(super) key_count: usize,
    pub(super) zipf_skew: f64,
    pub(super) near: Near,
    pub(super) key_prefix: String,
    pub(super) table: String,
    pub(super) call_within: Duration,
    pub(super) ttl: Duration,
    /// How many sessions are renewed beside the sections.
    pub(super) sessions: usize,
    pub(super) hold: Duration,
    pub(super) value_bytes: usize,
    pub(super) span: load::Span,
    pub(super) disk_probe: Option<PathBuf>,
    /// Where the highest rate is looked for: what 99.9 % of the sections must stay under.
    pub(super) p999_below: Option<Duration>,
    /// Sections of the full form or the short one, on own keys only.
    pub(super) baseline: Option<Baseline>,
}

impl Args {
    /// What to do, and how to print.
    pub(super) fn plan(self) -> Result<What, Failure> {
        let (form, value_bytes, baseline, load) = match self.benchmark {
            Benchmark::Handover(args) => return Ok(What::Handover(args)),
            Benchmark::Waiters(args) => return Ok(What::Waiters(args)),
            Benchmark::Idle(args) => return Ok(What::Idle(args)),
            Benchmark::Section(SectionArgs {
                short,
                value_size,
                load,
                baseline,
            }) => {
                let form = if short { Form::Short } else { Form::Full };
                (form, value_size, Some(baseline), load)
            }
            Benchmark::Lock(LockArgs { load }) => (Form::Lock, 0, None, load),
        };
        let remote = load.remote;
        let baseline = match &baseline {
            Some(args) => args.baseline()?,
            None => None,
        };
        if baseline.is_some() && load.keys != KeyChoice::Own {
            return Err(Failure::usage("--baseline is for --keys own"));
        }
        if baseline.is_some() && !load.hold.duration().is_zero() {
            return Err(Failure::usage(
                "--hold is not for --baseline, whose sections hold for no longer than their calls take",
            ));
        }
        let is_open = load.rate.is_some() || load.p999_below.is_some();
        if baseline.is_some() && is_open {
            return Err(Failure::usage(
                "--rate and --p999-below are not for --baseline, whose workers begin a section when their last one ends",
            ));
        }
        let options = remote.client_options(ClientOptions::default())?;
        let call_within = options.timeout;
        let plan = Plan {
            form,
            endpoints: remote.endpoints(),
            options,
            workers: load.workers,
            connections: load.connections,
            pipeline: load.pipeline,
            keys: load.keys,
            key_count: load.key_count.unwrap_or(match load.keys {
                KeyChoice::New => 100_000,
                _ => 1_000,
            }),
            zipf_skew: load.zipf_skew,
            near: Near {
                part: load.near_part.0,
                parts: load.near_part.1,
                share: load.near_share,
            },
            key_prefix: load.key_prefix,
            table: remote.table(),
            call_within,
            ttl: load.ttl.duration(),
            sessions: load.sessions,
            hold: load.hold.duration(),
            value_bytes,
            span: load::Span {
                warm_up: load.warm_up.duration(),
                duration: load.duration.duration(),
                rate: load.rate,
            },
            p999_below: load.p999_below.map(Span::duration),
            disk_probe: load.disk_probe,
            baseline,
        };
        Ok(What::Load {
            plan: Box::new(plan),
            format: remote.format(),
        })
    }
}

fn parse_value_size(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(bytes) if bytes >= VALUE_BYTES_MIN => Ok(bytes),
        _ => Err(format!(
            "it must be a number of bytes, {VALUE_BYTES_MIN} or more"
        )),
    }
}

fn parse_rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (0.001..=1_000_000.0).contains(&rate) => Ok(rate),
        _ => Err("it must be a number of sections a second from 0.001 to 1000000".to_owned()),
    }
}

fn parse_share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("it must be a number from 0 to 1".to_owned()),
    }
}

fn parse_skew(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(skew) if (0.0..=10.0).contains(&skew) => Ok(skew),
        _ => Err("it must be a number from 0 to 10".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn parse(line: &str) -> Result<(Plan, Format), String> {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        let args = Args::try_parse_from(words).map_err(|error| error.to_string())?;
        match args.plan() {
            Ok(What::Load { plan, format }) => Ok((*plan, format)),
            Ok(other) => panic!("{other:?}"),
            Err(failure) => Err(failure.to_string()),
        }
    }

    #[test]
    fn flags_make_a_plan() {
        let (plan, output) = parse(
            "section --short --endpoint a:1 --endpoint http://b:2 --workers 1,8 --keys zipf --key-count 50 \
             --zipf-skew 1.2 --value-size 100 --duration 1m --warm-up 500ms --ttl 5s --output json",
        )
        .unwrap();
        assert_eq!(output, Format::Json);
        assert_eq!(plan.form, Form::Short);
        assert_eq!(plan.endpoints, ["a:1", "http://b:2"]);
        assert_eq!(plan.workers, [1, 8]);
        assert_eq!((plan.key_count, plan.zipf_skew), (50, 1.2));
        assert_eq!(plan.value_bytes, 100);
        assert_eq!(plan.span.duration, Duration::from_secs(60));
        assert_eq!(plan.span.warm_up, Duration::from_millis(500));
        assert_eq!(plan.ttl, Duration::from_secs(5));
    }

    #[test]
    fn a_baseline_is_found_by_its_flags() {
        let (plan, _) =
            parse("section --baseline music --contact-points a,b:9142 --keyspace locks --rounds 3")
                .unwrap();
        let settings = plan.baseline.unwrap().settings();
        assert_eq!(settings.contact_points, ["a", "b:9142"]);
        assert_eq!((settings.keyspace.as_str(), settings.rounds), ("locks", 3));
        assert!(parse("section").unwrap().0.baseline.is_none());
    }

    #[test]
    fn everything_has_a_default() {
        let (plan, output) = parse("section").unwrap();
        assert_eq!((plan.form, output), (Form::Full, Format::Text));
        assert_eq!(plan.workers, [1, 16, 64]);
        assert_eq!(plan.endpoints, ["http://127.0.0.1:7450"]);
        assert_eq!(parse("lock").unwrap().0.form, Form::Lock);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            "",
            "section --workers 0",
            "section --workers 1,x",
            "section --value-size 7",
            "section --zipf-skew -1",
            "section --zipf-skew nan",
            "section --duration 10",
            "section --connections 0",
            "lock --value-size 10",
            "section --baseline music",
            "section --baseline other --contact-points a",
            "section --contact-points a",
            "section --rounds 3",
            "section --baseline music --contact-points a --rounds 0",
            "section --baseline music --contact-points a --keyspace a-b",
            "section --baseline music --contact-points a --keys one",
            "section --sessions x",
            "section --baseline fermata --contact-points a",
            "lock --baseline music --contact-points a",
        ] {
            assert!(parse(line).is_err(), "{line:?}");
        }
    }
}
