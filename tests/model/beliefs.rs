//! Searches over clocks: nothing is broken, and each care that is left out breaks something.

use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model, Path};

use crate::clocks::{BELIEF, Care, Clocks, Happening, Moment, ONE_HOME};

fn clocks() -> Clocks {
    Clocks {
        until: 6,
        renewals: 1,
        heartbeats: 1,
        unseen: 0,
        loads: true,
        left_out: None,
    }
}

/// How many moments there are, and how long that took. Every one of them was seen.
pub fn search_all(threads: usize) -> (usize, f64) {
    let began = Instant::now();
    let checker = clocks()
        .checker()
        .threads(threads)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let discoveries = checker.discoveries();
    for promise in [BELIEF, ONE_HOME] {
        if let Some(path) = discoveries.get(promise) {
            panic!("not \"{promise}\"\n  {}", trace(path.clone()).join("\n  "));
        }
    }
    assert_eq!(discoveries.len(), 2, "nobody is sure, or granted the lock");
    (checker.unique_state_count(), began.elapsed().as_secs_f64())
}

fn trace(path: Path<Moment, Happening>) -> Vec<String> {
    let steps = path.into_vec();
    let lines = steps.iter().zip(steps.iter().skip(1));
    let lines = lines.filter_map(|((_, happening), (after, _))| {
        Some(format!(
            "{}: {}",
            after.when(),
            happening.as_ref()?.words(after)
        ))
    });
    let rates = steps.first().map(|(moment, _)| moment.rates());
    rates.into_iter().chain(lines).collect()
}

fn breaks(care: Care, promise: &'static str) {
    let left_out = Clocks {
        // Evidence is older the less it is looked at.
        loads: care != Care::Epoch,
        left_out: Some(care),
        ..clocks()
    };
    let checker = left_out
        .checker()
        .finish_when(HasDiscoveries::AnyOf([promise].into()))
        .spawn_bfs()
        .join();
    let mut discoveries = checker.discoveries();
    let Some(path) = discoveries.remove(promise) else {
        panic!("{care:?} is left out, and \"{promise}\" is kept");
    };
    println!(
        "{care:?} is left out: not \"{promise}\"\n  {}",
        trace(path).join("\n  ")
    );
}

#[test]
fn with_every_care_nobody_is_sure_for_too_long() {
    let (moments, _) = search_all(1);
    assert!(moments > 10_000, "{moments} moments");
}

#[test]
fn a_client_that_counts_from_the_answer_is_sure_for_too_long() {
    breaks(Care::FromSending, BELIEF);
}

#[test]
fn a_client_whose_clock_is_slow_is_sure_for_too_long() {
    breaks(Care::TenPercentOff, BELIEF);
}

#[test]
fn a_heartbeat_that_counts_from_its_acknowledgement_is_valid_for_too_long() {
    breaks(Care::HeartbeatFromSending, BELIEF);
}

#[test]
fn an_observer_whose_clock_is_fast_evicts_too_soon() {
    breaks(Care::TenPercentMore, BELIEF);
}

#[test]
fn old_evidence_ends_an_entry_that_was_taken_anew() {
    breaks(Care::Epoch, BELIEF);
}

#[test]
fn an_entry_in_doubt_is_promised_for_too_long() {
    breaks(Care::Doubt, BELIEF);
}

#[test]
fn a_home_without_heartbeats_answers_after_it_was_taken_over() {
    breaks(Care::FencedForGood, ONE_HOME);
}
