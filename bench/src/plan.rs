//! The options of a run of sections, and the plan that they make.

use clap::builder::RangedU64ValueParser;
use fermata_client::ClientOptions;
use fermata_command::output::Format;
use fermata_command::{Failure, Remote, Span};
use serde::Serialize;

use super::baseline::{Baseline, BaselineArgs};
use super::counters::VALUE_BYTES_MIN;
use super::keys::{KeyChoice, Part};

/// The end of `--help`.
pub(super) const EXIT_STATUS: &str = "Exit status: 0 no errors and every counter exact; 1 errors, lost increments, \
    sections cut off or, at a rate, not begun (the report says which); 64 wrong usage; 69 no server or no Cassandra is \
    reached; 74 the report cannot be printed.";

/// The calls of a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Form {
    /// CreateLockRef, AcquireLock if waiting, CriticalGet, CriticalPut, ReleaseLock.
    Full,
    /// CreateLockRef that reads the value, AcquireLock if waiting, ReleaseLock that writes it.
    Short,
    /// CreateLockRef, AcquireLock if waiting, ReleaseLock.
    Lock,
}

/// Whole critical sections: lock, read, write, release
///
/// A section is CreateLockRef, AcquireLock if the answer is WAITING, CriticalGet, CriticalPut of the number that was
/// read plus one, and ReleaseLock.
#[derive(Debug, clap::Args)]
#[command(after_help = EXIT_STATUS)]
pub(super) struct SectionArgs {
    /// Sections of two calls: CreateLockRef reads the value, ReleaseLock writes it
    #[arg(long)]
    short: bool,

    /// The size of a value in bytes; its first 8 bytes are the counter
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = parse_value_size)]
    value_size: usize,

    #[command(flatten)]
    load: LoadArgs,

    #[command(flatten)]
    baseline: BaselineArgs,

    #[command(flatten)]
    remote: Remote,
}

/// Locks alone, without a value
///
/// A section is CreateLockRef, AcquireLock if the answer is WAITING, and ReleaseLock.
#[derive(Debug, clap::Args)]
#[command(after_help = EXIT_STATUS)]
pub(super) struct LockArgs {
    #[command(flatten)]
    load: LoadArgs,

    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, Clone, clap::Args, Serialize)]
pub(super) struct LoadArgs {
    /// The number of workers; several numbers are run one after the other
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,16,64",
          value_parser = RangedU64ValueParser::<usize>::new().range(1..=100_000))]
    pub(super) workers: Vec<usize>,

    /// The keys: own for each worker, one for all, a new one for each section, or drawn mostly near this client
    #[arg(long, value_enum, default_value_t = KeyChoice::Own)]
    pub(super) keys: KeyChoice,

    /// The number of keys for --keys near, and the largest number for --keys new
    #[arg(long, value_name = "N", default_value = "100000",
          value_parser = RangedU64ValueParser::<usize>::new().range(1..=10_000_000))]
    pub(super) key_count: usize,

    /// With --keys near: this client's part of the keys. Nine of ten sections are on it; give each client another part
    #[arg(long, value_name = "PART/PARTS", default_value = "1/3")]
    pub(super) near_part: Part,

    /// The beginning of the keys. Benchmarks at the same time need different ones for exact counters
    #[arg(long, value_name = "TEXT", default_value = "bench")]
    pub(super) key_prefix: String,

    /// The TTL of each lockRef
    #[arg(long, value_name = "SPAN", default_value = "30s")]
    pub(super) ttl: Span,

    /// How long each lock is held without a call
    #[arg(long, value_name = "SPAN", default_value = "0s")]
    pub(super) hold: Span,

    /// Sections a second in all, whether earlier ones have ended or not: an open loop
    ///
    /// Sections are due at equal distances, and the time of a section counts from when it was due: a stall makes all
    /// later ones slow. --workers is the highest number in flight; sections that found no free worker before the end are
    /// counted as not begun. Without a rate the loop is closed: a worker begins a section when its last one ends.
    #[arg(long, value_name = "N", value_parser = parse_rate)]
    pub(super) rate: Option<f64>,

    /// How long to measure
    #[arg(long, value_name = "SPAN", default_value = "10s")]
    pub(super) duration: Span,

    /// How long to run before the measurement
    #[arg(long, value_name = "SPAN", default_value = "2s")]
    pub(super) warm_up: Span,

    /// The number of HTTP/2 connections that the workers share [default: one for 16 workers]
    #[arg(long, value_name = "N",
          value_parser = RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    pub(super) connections: Option<usize>,

    /// Send calls in frames, over one Pipeline for each connection
    #[arg(long)]
    pub(super) pipeline: bool,

    /// The number of sessions to keep open meanwhile, each with a lock; their renewals are timed
    ///
    /// A session is renewed three times in its TTL, at the first endpoint. The time of a renewal counts from when it was
    /// due.
    #[arg(long, value_name = "N", default_value = "0",
          value_parser = RangedU64ValueParser::<usize>::new().range(0..=100_000))]
    pub(super) sessions: usize,
}

/// All that a run of sections is told. As JSON it is the settings of the report.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Plan {
    pub(super) form: Form,
    pub(super) endpoints: Vec<String>,
    pub(super) table: String,
    /// 0 where nothing is written.
    pub(super) value_bytes: usize,
    #[serde(flatten)]
    pub(super) load: LoadArgs,
    pub(super) baseline: Option<Baseline>,
    #[serde(skip)]
    pub(super) options: ClientOptions,
    #[serde(skip)]
    pub(super) format: Format,
}

impl SectionArgs {
    pub(super) fn plan(self) -> Result<Plan, Failure> {
        let form = if self.short { Form::Short } else { Form::Full };
        let baseline = self.baseline.baseline()?;
        let load = &self.load;
        let is_plain = load.keys == KeyChoice::Own && load.hold.duration().is_zero();
        if baseline.is_some() && (!is_plain || load.rate.is_some()) {
            let message = "--baseline needs --keys own, and takes neither --hold nor --rate";
            return Err(Failure::usage(message));
        }
        Plan::new(form, self.value_size, self.load, baseline, &self.remote)
    }
}

impl LockArgs {
    pub(super) fn plan(self) -> Result<Plan, Failure> {
        Plan::new(Form::Lock, 0, self.load, None, &self.remote)
    }
}

impl Plan {
    fn new(
        form: Form,
        value_bytes: usize,
        load: LoadArgs,
        baseline: Option<Baseline>,
        remote: &Remote,
    ) -> Result<Plan, Failure> {
        Ok(Plan {
            form,
            endpoints: remote.endpoints(),
            table: remote.table(),
            value_bytes,
            load,
            baseline,
            options: remote.client_options(ClientOptions::default())?,
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

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use clap::Parser;

    use super::*;

    #[derive(clap::Parser)]
    enum Line {
        Section(SectionArgs),
        Lock(LockArgs),
    }

    /// The plan of a command line.
    pub(crate) fn plan(line: &str) -> Result<Plan, String> {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        let plan = match Line::try_parse_from(words).map_err(|error| error.to_string())? {
            Line::Section(args) => args.plan(),
            Line::Lock(args) => args.plan(),
        };
        plan.map_err(|failure| failure.to_string())
    }

    #[test]
    fn options_make_a_plan() {
        let plan = plan(
            "section --short --endpoint a:1 --endpoint http://b:2 --workers 1,8 --keys near --key-count 50 \
             --near-part 2/3 --value-size 100 --duration 1m --warm-up 500ms --ttl 5s --output json",
        )
        .unwrap();
        assert_eq!((plan.form, plan.format), (Form::Short, Format::Json));
        assert_eq!(plan.endpoints, ["a:1", "http://b:2"]);
        assert_eq!((plan.load.workers, plan.value_bytes), (vec![1, 8], 100));
        assert_eq!((plan.load.keys, plan.load.key_count), (KeyChoice::Near, 50));
        assert_eq!(plan.load.duration.duration(), Duration::from_secs(60));
        assert_eq!(plan.load.warm_up.duration(), Duration::from_millis(500));
    }

    #[test]
    fn a_baseline_is_found_by_its_options() {
        let line = "section --baseline music --contact-points a,b:9142 --keyspace locks --rounds 3";
        let baseline = plan(line).unwrap().baseline.unwrap();
        assert_eq!(baseline.cluster.contact_points, ["a", "b:9142"]);
        assert_eq!(baseline.cluster.keyspace.to_string(), "locks");
        assert_eq!(baseline.rounds, 3);
        assert!(plan("section").unwrap().baseline.is_none());
    }

    #[test]
    fn everything_has_a_default() {
        let section = plan("section").unwrap();
        assert_eq!((section.form, section.format), (Form::Full, Format::Text));
        assert_eq!(section.load.workers, [1, 16, 64]);
        assert_eq!(plan("lock").unwrap().form, Form::Lock);
    }

    #[test]
    fn options_without_sense_are_refused() {
        for line in [
            "",
            "section --workers 0",
            "section --workers 1,x",
            "section --value-size 7",
            "section --near-part 4/3",
            "section --duration 10",
            "section --connections 0",
            "section --rate 0",
            "lock --value-size 10",
            "section --baseline music",
            "section --baseline other --contact-points a",
            "section --contact-points a",
            "section --rounds 3",
            "section --baseline music --contact-points a --rounds 0",
            "section --baseline music --contact-points a --keyspace a-b",
            "section --baseline music --contact-points a --keys one",
            "section --baseline music --contact-points a --rate 5",
            "section --baseline fermata --contact-points a",
            "lock --baseline music --contact-points a",
        ] {
            assert!(plan(line).is_err(), "{line:?}");
        }
    }
}
