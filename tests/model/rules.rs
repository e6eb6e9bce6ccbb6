//! The search can fail: each rule of the engine, switched off, gives a short trace that breaks a promise.

use crate::search::{EXCLUSIVITY, LATEST_STATE, PROGRESS, STATE, search, search_for};
use crate::setup::{Fault, Rule, Setup};

/// A trace longer than this nobody reads.
const LINES_MAX: usize = 40;

/// Without the rule the promise is broken. (With it none is: that is what the configurations are for.)
fn breaks(rule: Rule, setup: Setup, promise: &'static str) {
    let without = search_for(setup.off(rule), Some(promise), 1);
    let Some((_, lines)) = without.broken else {
        panic!("{rule:?} is off, and it holds that {promise}");
    };
    let trace = lines.join("\n  ");
    println!("{rule:?} is off: not \"{promise}\"\n  {trace}");
    assert!(lines.len() <= LINES_MAX, "{rule:?}: {} lines", lines.len());
}

/// With all rules on no promise is broken: the small worlds of this file, so that it is known soon.
fn keeps(setup: Setup) {
    let with = search(setup, 1);
    if let Some((promise, lines)) = with.broken {
        panic!("not \"{promise}\"\n  {}", lines.join("\n  "));
    }
    assert!(with.closed);
}

fn setup() -> Setup {
    Setup::new("one rule off")
}

#[test]
fn with_all_rules_on_a_put_that_is_given_up_breaks_nothing() {
    keeps(setup().fault(Fault::GivenUp, 1));
}

#[test]
fn with_all_rules_on_an_eviction_breaks_nothing() {
    keeps(setup().fault(Fault::Evict, 1));
}

#[test]
fn two_writers_of_a_fence_lose_an_acknowledged_put() {
    breaks(Rule::OneWriter, setup().puts(2), LATEST_STATE);
}

#[test]
fn a_take_over_without_agreement_loses_an_acknowledged_put() {
    let setup = setup().clients(1).fault(Fault::Move, 1);
    breaks(Rule::HandOver, setup, LATEST_STATE);
}

#[test]
fn an_agreement_that_is_not_final_loses_an_acknowledged_put() {
    let setup = setup().clients(1).fault(Fault::Move, 1);
    breaks(Rule::FinalHandOver, setup, LATEST_STATE);
}

#[test]
fn a_home_that_forgets_its_fence_loses_an_acknowledged_put() {
    let setup = setup().clients(1).puts(2).fault(Fault::Forget, 1);
    breaks(Rule::KeptMemory, setup, LATEST_STATE);
}

#[test]
fn without_the_sync_a_holder_reads_two_values() {
    breaks(Rule::Sync, setup().fault(Fault::Evict, 1), LATEST_STATE);
}

#[test]
fn without_the_sync_what_a_former_holder_writes_counts() {
    breaks(Rule::Sync, setup().fault(Fault::Evict, 1), EXCLUSIVITY);
}

#[test]
fn a_fence_synced_from_two_reads_shows_two_values() {
    let setup = setup().fault(Fault::Evict, 1).fault(Fault::UnknownWrite, 1);
    breaks(Rule::OneSyncRead, setup, LATEST_STATE);
}

#[test]
fn a_release_that_hides_an_open_write_shows_the_next_holder_two_values() {
    let setup = setup().fault(Fault::GivenUp, 1);
    breaks(Rule::OpenWriteTold, setup, LATEST_STATE);
}

#[test]
fn a_swap_of_unknown_outcome_that_counts_as_applied_grants_the_lock_to_who_has_no_entry() {
    let setup = setup().fault(Fault::UnknownSwap, 1);
    breaks(Rule::CommittedGrant, setup, EXCLUSIVITY);
}

#[test]
fn what_is_not_decided_again_after_a_conflict_undoes_what_was_committed() {
    breaks(Rule::DecidedAgain, setup(), STATE);
}

#[test]
fn a_late_put_without_its_number_overwrites_its_successor() {
    let setup = setup().clients(1).puts(2).fault(Fault::GivenUp, 1);
    breaks(Rule::CallNo, setup, LATEST_STATE);
}

#[test]
fn a_late_put_without_its_grant_lands_after_a_take_over() {
    let setup = setup()
        .clients(1)
        .fault(Fault::GivenUp, 1)
        .fault(Fault::Move, 1);
    breaks(Rule::GrantInCall, setup, LATEST_STATE);
}

/// No cycle and no dead end hides a waiter that is never woken.
#[test]
fn a_waiter_that_relies_on_a_hint_waits_for_ever() {
    let setup = setup().fault(Fault::LostHint, 1);
    breaks(Rule::Polling, setup, PROGRESS);
}

/// So it is the lost hint that matters there.
#[test]
fn hints_are_enough_where_none_is_lost() {
    let report = search(setup().off(Rule::Polling), 1);
    assert!(report.closed, "{:?}", report.broken);
}
