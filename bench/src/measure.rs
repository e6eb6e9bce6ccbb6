//! What is measured: a latency histogram for each phase of a section, and every error.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::{CreationError, Histogram};
use tonic::{Code, Status};

/// How many significant digits a latency keeps.
const DIGITS: u8 = 3;

/// A part of a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// CreateLockRef.
    Create,
    /// AcquireLock until it says HELD, where CreateLockRef did not.
    Acquire,
    /// CriticalGet.
    Get,
    /// CriticalPut.
    Put,
    /// ReleaseLock.
    Release,
    /// RenewSession, of a session beside the sections.
    Renew,
    /// All of a section.
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

/// A call that did not succeed, which ends its section.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) phase: Phase,
    /// What kind of failure: a status code, for one.
    pub(super) code: &'static str,
    pub(super) message: String,
}

impl Failure {
    /// What a server answered.
    pub(super) fn answered(phase: Phase, status: &Status) -> Failure {
        Failure {
            phase,
            code: code_name(status.code()),
            message: status.message().to_owned(),
        }
    }
}

/// Errors of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Errors {
    pub(super) count: u64,
    /// What the first one said.
    pub(super) message: String,
}

/// What one worker, or all of them, measured.
#[derive(Debug)]
pub(super) struct Measured {
    /// In microseconds, by the order of [`Phase::ALL`].
    latencies: [Histogram<u64>; Phase::ALL.len()],
    /// By phase and code.
    errors: BTreeMap<(Phase, &'static str), Errors>,
}

impl Measured {
    /// The error is never seen: the number of digits is one that histograms take.
    pub(super) fn new() -> Result<Measured, CreationError> {
        let empty = || Histogram::new(DIGITS);
        Ok(Measured {
            latencies: [
                empty()?,
                empty()?,
                empty()?,
                empty()?,
                empty()?,
                empty()?,
                empty()?,
            ],
            errors: BTreeMap::new(),
        })
    }

    pub(super) fn record(&mut self, phase: Phase, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        if let Some(latencies) = self.latencies.get_mut(phase as usize) {
            let recorded = latencies.record(us);
            debug_assert!(recorded.is_ok(), "such a histogram grows as needed");
        }
    }

    pub(super) fn fail(&mut self, failure: &Failure) {
        let kind = (failure.phase, failure.code);
        let errors = self.errors.entry(kind).or_insert_with(|| Errors {
            count: 0,
            message: failure.message.clone(),
        });
        errors.count += 1;
    }

    /// Takes in what another one measured.
    pub(super) fn add(&mut self, other: &Measured) {
        for (all, more) in self.latencies.iter_mut().zip(&other.latencies) {
            let added = all.add(more);
            debug_assert!(added.is_ok(), "such a histogram grows as needed");
        }
        for (kind, more) in &other.errors {
            let errors = self.errors.entry(*kind).or_insert_with(|| Errors {
                count: 0,
                message: more.message.clone(),
            });
            errors.count += more.count;
        }
    }

    /// The phases that happened, with their latencies in microseconds.
    pub(super) fn phases(&self) -> impl Iterator<Item = (Phase, &Histogram<u64>)> {
        let all = Phase::ALL.into_iter().zip(&self.latencies);
        all.filter(|(_, latencies)| !latencies.is_empty())
    }

    /// How many sections were finished.
    pub(super) fn sections(&self) -> u64 {
        let latencies = self.latencies.get(Phase::Section as usize);
        latencies.map_or(0, Histogram::len)
    }

    pub(super) fn errors(&self) -> impl Iterator<Item = (Phase, &'static str, &Errors)> {
        let errors = self.errors.iter();
        errors.map(|((phase, code), errors)| (*phase, *code, errors))
    }
}

/// A status code as gRPC writes it.
fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_add_up_and_phases_that_never_happened_are_left_out() {
        let mut all = Measured::new().unwrap();
        let mut one = Measured::new().unwrap();
        let ms = Duration::from_millis;
        all.record(Phase::Create, ms(1));
        one.record(Phase::Create, ms(3));
        one.record(Phase::Section, ms(90_000));
        one.record(Phase::Section, Duration::ZERO);
        all.add(&one);
        let phases: Vec<_> = all.phases().map(|(p, l)| (p, l.len(), l.max())).collect();
        assert_eq!(phases.len(), 2);
        assert_eq!((phases[0].0, phases[0].1), (Phase::Create, 2));
        assert_eq!((phases[1].0, phases[1].1), (Phase::Section, 2));
        assert!((3000..3010).contains(&phases[0].2));
        assert_eq!(all.sections(), 2);
    }

    #[test]
    fn errors_are_counted_by_phase_and_code_and_keep_their_first_message() {
        let mut all = Measured::new().unwrap();
        for (phase, status) in [
            (Phase::Put, Status::unavailable("first")),
            (Phase::Put, Status::unavailable("second")),
            (Phase::Create, Status::unavailable("third")),
        ] {
            let mut one = Measured::new().unwrap();
            one.fail(&Failure::answered(phase, &status));
            all.add(&one);
        }
        let errors: Vec<_> = all
            .errors()
            .map(|(phase, code, e)| (phase.name(), code, e.count, e.message.as_str()))
            .collect();
        let expected = [
            ("create", "UNAVAILABLE", 1, "third"),
            ("put", "UNAVAILABLE", 2, "first"),
        ];
        assert_eq!(errors, expected);
    }
}
