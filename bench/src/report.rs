//! The report: what was run, and what was measured. As JSON its fields are stable: none is renamed or
//! removed, others may join.

use fermata_command::Failure;
use fermata_command::output::{Format, print_text};
use serde::Serialize;

use super::baseline::BaselineSettings;
use super::disk::Disk;
use super::keys::{KeyChoice, Near};
use super::rounds::Comparison;
use super::run::Run;
use super::workload::Form;

/// All runs of one command.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) settings: Settings,
    pub(super) runs: Vec<Run>,
    /// One for each number of workers, where there is a baseline.
    pub(super) comparisons: Vec<Comparison>,
    /// One for each number of workers, where the highest rate was looked for.
    pub(super) highest_rates: Vec<HighestRate>,
    /// Where the disk was probed.
    pub(super) disk: Option<DiskReport>,
    /// No errors, nothing unfinished, or due and not begun, and every counter exact.
    pub(super) clean: bool,
}

/// The highest rate at which 99.9 % of the sections took less than was asked for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct HighestRate {
    pub(super) workers: usize,
    /// In sections a second; absent where none was low enough.
    pub(super) rate: Option<f64>,
}

/// What the runs have in common.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Settings {
    pub(super) version: &'static str,
    pub(super) form: Form,
    pub(super) transport: Transport,
    pub(super) endpoints: Vec<String>,
    pub(super) table: String,
    pub(super) keys: KeyChoice,
    /// Zipf only.
    pub(super) key_count: Option<usize>,
    /// Zipf only.
    pub(super) zipf_skew: Option<f64>,
    pub(super) near: Option<Near>,
    /// Absent where nothing is written.
    pub(super) value_bytes: Option<usize>,
    /// How many were renewed beside the sections.
    pub(super) sessions: usize,
    pub(super) ttl_ms: u64,
    /// How long each holder did nothing.
    pub(super) hold_ms: u64,
    pub(super) warm_up_ms: u64,
    pub(super) duration_ms: u64,
    /// `closed`: a worker begins a section when its last one ends; `open`: they come at a rate.
    #[serde(rename = "loop")]
    pub(super) load_loop: &'static str,
    /// Where the highest rate was looked for: under which 99.9 % of the sections were to stay.
    pub(super) p999_below_ms: Option<u64>,
    /// Absent where only fermata is measured.
    pub(super) baseline: Option<BaselineSettings>,
}

impl Settings {
    pub(super) fn is_open(&self) -> bool {
        self.load_loop == "open"
    }
}

/// Which way the calls of fermata's sections went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Transport {
    /// Over connections to servers, each call by itself.
    Grpc,
    /// Over connections to servers, in frames.
    Pipeline,
}

/// The disk's own times, in the same session.
#[derive(Debug, Serialize)]
pub(super) struct DiskReport {
    pub(super) directory: String,
    /// 4 KiB appended, then fdatasync.
    pub(super) before: Disk,
    pub(super) after: Disk,
}

/// Prints a report as it was asked for.
pub(super) fn print(
    report: &impl Serialize,
    format: Format,
    text: impl FnOnce() -> String,
) -> Result<(), Failure> {
    match format {
        Format::Text => print_text(&text())?,
        Format::Json => {
            let mut text = serde_json::to_string_pretty(report).map_err(std::io::Error::from)?;
            text.push('\n');
            print_text(&text)?;
        }
    }
    Ok(())
}
