//! The searches that must find nothing: with all rules on, every promise holds in every world there is.
//!
//! A closed search has seen all of them. A bounded one ends after so many steps; `FERMATA_MODEL_STATES` makes it go on
//! for that many.

use std::io::{Write, stderr};

use crate::beliefs;
use crate::figures;
use crate::search::{Report, search};
use crate::setup::{Fault, Setup};
use crate::world::REPLICAS;

/// The steps of a bounded search, where nobody says otherwise.
const STEPS_MAX: usize = 500_000;
/// What all searches together look at, at least.
const STATES_MIN: usize = 1_000_000;
/// How many threads search.
const THREADS: usize = 2;

fn configurations() -> Vec<Setup> {
    vec![
        Setup::new("nothing goes wrong").sections(2),
        Setup::new("an eviction, a put given up")
            .fault(Fault::Evict, 1)
            .fault(Fault::GivenUp, 1),
        Setup::new("an eviction, clocks apart")
            .clocks([0, 50])
            .fault(Fault::Evict, 1),
        Setup::new("a take-over").fault(Fault::Move, 1),
        Setup::new("a replica and a client crash")
            .fault(Fault::Crash, 1)
            .fault(Fault::ClientCrash, 1),
        Setup::new("a replica crashes, an unknown swap")
            .fault(Fault::Crash, 1)
            .fault(Fault::UnknownSwap, 1),
        Setup::new("two swaps of unknown outcome").fault(Fault::UnknownSwap, 2),
        Setup::new("two puts, narrow fences, one given up")
            .puts(2)
            .narrow()
            .fault(Fault::GivenUp, 1),
        Setup::new("two puts, a write of unknown outcome")
            .puts(2)
            .fault(Fault::UnknownWrite, 1),
        Setup::new("a foreign release, a put given up")
            .fault(Fault::Foreign, 1)
            .fault(Fault::GivenUp, 1),
        Setup::new("a waiter leaves, a create is repeated")
            .fault(Fault::Leave, 1)
            .fault(Fault::Retry, 1),
        Setup::new("three clients").clients(3),
        Setup::new("a take-over, memory lost")
            .fault(Fault::Move, 1)
            .fault(Fault::Forget, 1)
            .bounded(STEPS_MAX),
        Setup::new("three clients, much goes wrong")
            .clients(3)
            .fault(Fault::Evict, 1)
            .fault(Fault::GivenUp, 1)
            .fault(Fault::UnknownSwap, 1)
            .bounded(STEPS_MAX),
        Setup::new("two puts, all goes wrong")
            .puts(2)
            .fault(Fault::Evict, 1)
            .fault(Fault::Move, 1)
            .fault(Fault::Crash, 1)
            .fault(Fault::GivenUp, 1)
            .fault(Fault::UnknownSwap, 1)
            .fault(Fault::UnknownWrite, 1)
            .bounded(STEPS_MAX),
    ]
}

#[test]
fn no_promise_is_broken() {
    let steps_max = std::env::var("FERMATA_MODEL_STATES").ok().map(|text| {
        text.parse::<usize>()
            .expect("FERMATA_MODEL_STATES is a number of steps")
    });
    let mut reports = Vec::new();
    for mut setup in configurations() {
        if setup.steps_max.is_some() {
            setup.steps_max = steps_max.or(setup.steps_max);
        }
        let report = search(setup, THREADS);
        if let Some((promise, lines)) = &report.broken {
            let name = report.setup.name;
            panic!("{name}: not \"{promise}\"\n  {}", lines.join("\n  "));
        }
        // One that is bounded is closed where it is given room enough.
        assert!(report.closed || report.setup.steps_max.is_some());
        let served = report.all_served || !report.closed;
        assert!(served, "{}: nobody is served", report.setup.name);
        println!("{}: {} states", report.setup.name, report.states);
        reports.push(report);
    }
    let mut rows: Vec<Row> = reports.iter().map(Row::of).collect();
    let (states, seconds) = beliefs::search_all(THREADS);
    rows.push(Row {
        name: "one section, clocks apart",
        clients: 1,
        states,
        closed: true,
        seconds,
    });
    print_table(&rows);
    let states: usize = rows.iter().map(|row| row.states).sum();
    let closed = rows.iter().filter(|row| row.closed).count();
    figures::note("model", &format!("{states} {} {closed}", rows.len()));
    assert!(states >= STATES_MIN, "{states} states");
}

/// A line of the table.
struct Row {
    name: &'static str,
    clients: u8,
    states: usize,
    closed: bool,
    seconds: f64,
}

impl Row {
    fn of(report: &Report) -> Row {
        Row {
            name: report.setup.name,
            clients: report.setup.clients,
            states: report.states,
            closed: report.closed,
            seconds: report.seconds,
        }
    }
}

/// Past the test's own output, which is shown only where it fails.
fn print_table(rows: &[Row]) {
    let mut table = format!(
        "\n{:<40} {:>7} {:>8} {:>10} {:>8} {:>8}\n",
        "configuration", "clients", "replicas", "states", "", "seconds"
    );
    for row in rows {
        table += &format!(
            "{:<40} {:>7} {REPLICAS:>8} {:>10} {:>8} {:>8.1}\n",
            row.name,
            row.clients,
            row.states,
            if row.closed { "closed" } else { "bounded" },
            row.seconds
        );
    }
    let states: usize = rows.iter().map(|row| row.states).sum();
    let seconds: f64 = rows.iter().map(|row| row.seconds).sum();
    table += &format!("{:<40} {:>27} {:>17.1}\n", "all", states, seconds);
    stderr().write_all(table.as_bytes()).unwrap();
}
