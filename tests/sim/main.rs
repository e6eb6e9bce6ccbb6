//! Deterministic simulation: the real engine, services and client on a network, a store and clocks that one seed
//! rules. What is simulated and what is not, and how a seed is repeated, is in docs/simulation.md.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod beliefs;
mod client;
mod clocks;
mod counter;
mod faults;
#[path = "../support/history/mod.rs"]
mod history;
mod log;
mod log_tap;
mod net;
#[path = "../support/nodes/mod.rs"]
mod nodes;
mod replica;
#[path = "../support/rng.rs"]
mod rng;
mod rows;
mod seeds;
mod store;
mod system;
mod world;

use seeds::Ran;

/// Around the trace of one seed.
const BEGINS: &str = "---- the trace begins ----\n";
const ENDS: &str = "---- the trace ends ----\n";

/// One seed, where one is asked for; with its trace.
#[test]
fn one() {
    let Ok(seed) = std::env::var(seeds::ONE) else {
        return;
    };
    let outcome = world::run(seed.parse().expect("a number"));
    print!("{BEGINS}{}{ENDS}", outcome.trace);
    let violations = &outcome.violations;
    println!(
        "seed {seed}: {} operations, {} faults, {} violations",
        outcome.operations,
        outcome.faults,
        violations.len()
    );
    assert!(violations.is_empty(), "\n{}", violations.join("\n"));
}

#[test]
fn no_promise_is_broken_by_many_seeds() {
    if std::env::var_os(seeds::ONE).is_none() {
        seeds::all();
    }
}

#[test]
fn one_seed_gives_one_trace_byte_for_byte() {
    if std::env::var_os(seeds::ONE).is_some() {
        return;
    }
    for seed in 1_000_000..1_000_004 {
        let first = Ran::of(seed);
        assert!(first.trace().len() > 10_000, "{}", first.said);
        assert!(first.is_good, "{}", first.said);
        for _ in 0..2 {
            same(seed, first.trace(), Ran::of(seed).trace());
        }
        let other = Ran::of(seed + 1_000);
        assert!(other.is_good, "{}", other.said);
        assert_ne!(first.trace(), other.trace(), "the seed does not matter");
    }
}

/// Byte for byte.
fn same(seed: u64, a: &str, b: &str) {
    if a == b {
        return;
    }
    let differs = a.lines().zip(b.lines()).position(|(a, b)| a != b);
    let at = differs.unwrap_or(a.lines().count().min(b.lines().count()));
    let around = |text: &str| {
        let lines = text.lines().skip(at.saturating_sub(5)).take(8);
        lines.collect::<Vec<_>>().join("\n")
    };
    panic!(
        "seed {seed} gives two traces, from line {at} on:\n{}\n---- and\n{}",
        around(a),
        around(b)
    );
}
