//! The measurements: a latency histogram for each phase of a section, and every error.

use std::collections::BTreeMap;
use std::time::Duration;

use fermata_cassandra::Fault;
use fermata_command::{Failure, exit};
use hdrhistogram::Histogram;
use tokio::time::Instant;
use tonic::{Code, Status};

/// The significant digits of a latency: percentiles are exact within a thousandth.
const DIGITS: u8 = 3;

/// A part of a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// CreateLockRef.
    Create,
    /// AcquireLock until HELD, where CreateLockRef answered WAITING.
    Acquire,
    /// CriticalGet.
    Get,
    /// CriticalPut.
    Put,
    /// ReleaseLock.
    Release,
    /// RenewSession, of a session beside the sections.
    Renew,
    /// The whole section.
    Section,
}

impl Phase {
    pub(super) const ALL: [Phase; 7] = [
        Phase::Create,
        Phase::Acquire,
        Phase::Get,
        Phase::Put,
        Phase::Release,
        Phase::Renew,
        Phase::Section,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Phase::Create => "create",
            Phase::Acquire => "acquire",
            Phase::Get => "get",
            Phase::Put => "put",
            Phase::Release => "release",
            Phase::Renew => "renew",
            Phase::Section => "section",
        }
    }
}

/// A failed call, which ends its section.
#[derive(Debug)]
pub(super) struct FailedCall {
    pub(super) phase: Phase,
    /// The kind of failure, as a status code.
    pub(super) code: String,
    pub(super) message: String,
}

impl From<(Phase, Status)> for FailedCall {
    fn from((phase, status): (Phase, Status)) -> FailedCall {
        FailedCall {
            phase,
            code: code_name(status.code()),
            message: status.message().to_owned(),
        }
    }
}

impl From<(Phase, Fault)> for FailedCall {
    fn from((phase, fault): (Phase, Fault)) -> FailedCall {
        let code = match fault {
            Fault::Refused(_) | Fault::NotStarted(_) => "NOT_STARTED",
            Fault::Unknown(_) => "UNKNOWN_OUTCOME",
        };
        FailedCall {
            phase,
            code: code.to_owned(),
            message: fault.to_string(),
        }
    }
}

/// A status code as gRPC writes it: `NOT_FOUND`.
fn code_name(code: Code) -> String {
    let mut name = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

/// Errors of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Errors {
    pub(super) count: u64,
    /// The message of the first one.
    pub(super) message: String,
}

/// The measurements of a run.
#[derive(Debug)]
pub(super) struct Measured {
    /// In microseconds, by the order of [`Phase::ALL`].
    latencies: [Histogram<u64>; Phase::ALL.len()],
    /// By phase and code.
    errors: BTreeMap<(Phase, String), Errors>,
}

impl Measured {
    pub(super) fn new() -> Result<Measured, Failure> {
        let empty = histogram()?;
        Ok(Measured {
            latencies: std::array::from_fn(|_| empty.clone()),
            errors: BTreeMap::new(),
        })
    }

    pub(super) fn record(&mut self, phase: Phase, took: Duration) {
        record(&mut self.latencies[phase as usize], took);
    }

    pub(super) fn fail(&mut self, failed: FailedCall) {
        let message = failed.message;
        let errors = self.errors.entry((failed.phase, failed.code));
        errors.or_insert(Errors { count: 0, message }).count += 1;
    }

    /// The phases that happened, with their latencies in microseconds.
    pub(super) fn phases(&self) -> impl Iterator<Item = (Phase, &Histogram<u64>)> {
        let all = Phase::ALL.into_iter().zip(&self.latencies);
        all.filter(|(_, latencies)| !latencies.is_empty())
    }

    /// The number of finished sections.
    pub(super) fn sections(&self) -> u64 {
        self.latencies[Phase::Section as usize].len()
    }

    pub(super) fn errors(&self) -> impl Iterator<Item = (Phase, &str, &Errors)> {
        let errors = self.errors.iter();
        errors.map(|((phase, code), errors)| (*phase, code.as_str(), errors))
    }
}

/// The times of the calls of one section, in their order.
pub(super) type Times = Vec<(Phase, Duration)>;

/// Makes a call, and notes the time until its answer.
pub(super) async fn clocked<T, E>(
    times: &mut Times,
    phase: Phase,
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, FailedCall>
where
    FailedCall: From<(Phase, E)>,
{
    let begun = Instant::now();
    match call.await {
        Ok(answer) => {
            times.push((phase, begun.elapsed()));
            Ok(answer)
        }
        Err(error) => Err((phase, error).into()),
    }
}

/// An empty histogram, which grows as needed.
pub(super) fn histogram() -> Result<Histogram<u64>, Failure> {
    // Never seen: these digits are valid.
    Histogram::new(DIGITS).map_err(|error| Failure::new(exit::FAILED, error.to_string()))
}

/// Records a latency in microseconds.
pub(super) fn record(latencies: &mut Histogram<u64>, took: Duration) {
    let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
    let recorded = latencies.record(us);
    debug_assert!(recorded.is_ok(), "a histogram that grows takes any value");
}
