//! The searches that must find nothing.

use std::io::Write as _;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model, Property};

use super::figures;
use super::progress::Progress;
use super::setup::{Off, Setup};
use super::step::Action;
use super::truth::Broken;
use super::world::World;

const PROMISES: &str = "what clients are told is kept";
const PROGRESS: &str = "all can come to their end, if nothing more goes wrong";
const SERVED: &str = "all are done";
/// The steps of a bounded search.
const STEPS_MAX: usize = 100_000;
/// Fewer in all are not what was searched here before.
const STATES_MIN: usize = 400_000;

struct Search(Setup, Progress);

impl Model for Search {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.0)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        world.actions(&self.0, actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        Some(world.after(&self.0, action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        if self.0.off.is_some() {
            // Who is deposed unawares stands still: that is not what is looked for.
            let kept = |_: &Search, world: &World| world.truth.broken.is_none();
            return vec![Property::always(PROMISES, kept)];
        }
        vec![
            Property::always(PROMISES, |_, world: &World| world.truth.broken.is_none()),
            Property::always(PROGRESS, |search: &Search, world: &World| {
                search.1.may_end_well(&search.0, world)
            }),
            Property::sometimes(SERVED, |_, world: &World| world.is_finished()),
        ]
    }
}

/// How many states it went through, and whether those are all. Panics where something is found.
fn search(setup: Setup) -> (usize, bool) {
    match try_search(setup) {
        Ok(done) => done,
        Err(found) => panic!("{}", found.how),
    }
}

/// What a search found.
struct Found {
    broken: Option<Broken>,
    how: String,
}

fn try_search(setup: Setup) -> Result<(usize, bool), Found> {
    let began = Instant::now();
    let name = setup.name;
    let steps_max = setup.steps_max;
    let mut checker = Search(setup.clone(), Progress::default())
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyFailures);
    let (discoveries, states, closed) = match steps_max {
        None => {
            let done = checker.spawn_bfs().join();
            (done.discoveries(), done.unique_state_count(), true)
        }
        Some(steps) => {
            checker = checker.target_state_count(steps);
            let done = checker.spawn_dfs().join();
            let closed = done.state_count() < steps;
            (done.discoveries(), done.unique_state_count(), closed)
        }
    };
    // Past libtest, which hides what passing tests print.
    let _ = writeln!(
        std::io::stderr(),
        "model: {name}: {states} states in {:.1} s",
        began.elapsed().as_secs_f64()
    );
    for (promise, path) in discoveries {
        if promise == SERVED {
            continue;
        }
        let mut lines = Vec::new();
        let steps = path.into_vec();
        for (_, action) in &steps {
            lines.push(format!("{action:?}"));
        }
        let last = steps.last().map(|(world, _)| world);
        return Err(Found {
            broken: last.and_then(|world| world.truth.broken),
            how: format!(
                "{name}: not \"{promise}\"\n  {}\n{last:#?}",
                lines.join("\n  ")
            ),
        });
    }
    Ok((states, closed))
}

/// Searches that are made with write-through and with write-back.
fn refused_release(name: &'static str) -> Setup {
    Setup::new(name)
        .carry(3)
        .puts(0)
        .trusts_refusals()
        .faults(|f| {
            f.answers_lost = 1;
            f.sessions = 1;
        })
}

fn unclaimed_at_the_next_home(name: &'static str) -> Setup {
    Setup::new(name).puts(0).faults(|f| {
        f.answers_lost = 1;
        f.hand_overs = 1;
        f.unclaimed = 1;
    })
}

fn much_goes_wrong(name: &'static str) -> Setup {
    Setup::new(name)
        .carry(1)
        .faults(|f| {
            f.ends = 1;
            f.sessions = 1;
            f.given_up = 1;
            f.unknown_swaps = 1;
            f.unknown_writes = 1;
            f.hand_overs = 1;
            f.unclaimed = 1;
        })
        .bounded(STEPS_MAX)
}

fn searches() -> Vec<Setup> {
    vec![
        Setup::new("nothing goes wrong"),
        Setup::new("two sections, misrouted")
            .sections(2)
            .faults(|f| f.misrouted = 1),
        Setup::new("a put of unknown outcome").faults(|f| f.unknown_writes = 1),
        Setup::new("a swap of unknown outcome").faults(|f| f.unknown_swaps = 1),
        Setup::new("a session ends").faults(|f| f.sessions = 1),
        Setup::new("a replica ends").faults(|f| f.ends = 1),
        Setup::new("memory is lost").faults(|f| f.memory_lost = 1),
        Setup::new("two sections, the key is forgotten")
            .sections(2)
            .faults(|f| f.forgotten = 1),
        Setup::new("a call is given up").faults(|f| f.given_up = 1),
        Setup::new("a hand-over").faults(|f| f.hand_overs = 1),
        Setup::new("an unclaimed holder").faults(|f| f.unclaimed = 1),
        Setup::new("by force").faults(|f| f.forced = 1),
        Setup::new("a wrong clock").faults(|f| f.wrong_clocks = 1),
        Setup::new("the store fails for a moment").faults(|f| f.store_failures = 1),
        Setup::new("the store fails, a swap of unknown outcome, one given up")
            .clients(1)
            .sections(2)
            .faults(|f| {
                f.store_failures = 1;
                f.unknown_swaps = 1;
                f.given_up = 1;
            }),
        Setup::new("puts that ride with releases, one given up")
            .carry(3)
            .puts(0)
            .faults(|f| f.given_up = 1),
        Setup::new("a hand-over of unknown outcome")
            .clients(1)
            .sections(2)
            .faults(|f| {
                f.hand_overs = 1;
                f.unknown_swaps = 1;
            }),
        Setup::new("a session ends, a put of unknown outcome").faults(|f| {
            f.sessions = 1;
            f.unknown_writes = 1;
        }),
        Setup::new("a put in doubt is read, and its session ends")
            .reads_in_doubt()
            .without_known_value()
            .faults(|f| {
                f.sessions = 1;
                f.unknown_writes = 1;
            })
            .bounded(STEPS_MAX),
        Setup::new("puts in doubt are read, narrow fences, one given up, a replica ends")
            .clients(1)
            .sections(2)
            .narrow()
            .reads_in_doubt()
            .faults(|f| {
                f.ends = 1;
                f.given_up = 1;
                f.unknown_writes = 2;
            })
            .bounded(STEPS_MAX),
        Setup::new("two puts, narrow fences, one given up")
            .puts(2)
            .narrow()
            .faults(|f| f.given_up = 1),
        Setup::new("two puts, values read, memory is lost")
            .clients(1)
            .puts(2)
            .without_known_value()
            .faults(|f| {
                f.memory_lost = 1;
                f.given_up = 1;
            }),
        Setup::new("a replica ends, a swap of unknown outcome")
            .clients(1)
            .sections(2)
            .faults(|f| {
                f.ends = 1;
                f.unknown_swaps = 1;
            }),
        Setup::new("three clients").clients(3),
        Setup::new("an answer is lost").faults(|f| f.answers_lost = 1),
        Setup::new("puts that ride with releases, an answer is lost")
            .carry(3)
            .puts(0)
            .faults(|f| f.answers_lost = 1),
        refused_release("a release whose answer is lost, refused after its session ended"),
        unclaimed_at_the_next_home("an answer is lost, a hand-over, an unclaimed holder"),
        Setup::new("one session, which ends")
            .one_session()
            .sections(2)
            .puts(0)
            .faults(|f| f.sessions = 1),
        much_goes_wrong("much goes wrong"),
        Setup::new("three clients, much goes wrong")
            .clients(3)
            .faults(|f| {
                f.memory_lost = 1;
                f.sessions = 1;
                f.given_up = 1;
                f.unknown_swaps = 1;
            })
            .bounded(STEPS_MAX),
    ]
}

/// Those that take long, for those who wait for them: with FERMATA_MODEL_WIDE.
fn wide_searches() -> Vec<Setup> {
    if std::env::var_os("FERMATA_MODEL_WIDE").is_none() {
        return Vec::new();
    }
    vec![
        Setup::new("write-back: puts that ride with releases, a replica ends")
            .write_back()
            .carry(3)
            .puts(0)
            .faults(|f| f.ends = 1),
        Setup::new("write-back: three sections, a wrong clock, memory is lost")
            .write_back()
            .clients(1)
            .sections(3)
            .faults(|f| {
                f.wrong_clocks = 1;
                f.memory_lost = 1;
            }),
        refused_release(
            "write-back: a release whose answer is lost, refused after its session ended",
        )
        .write_back(),
        unclaimed_at_the_next_home(
            "write-back: an answer is lost, a hand-over, an unclaimed holder",
        )
        .write_back(),
    ]
}

/// Of a home that answers from memory.
fn write_back_searches() -> Vec<Setup> {
    vec![
        Setup::new("write-back: nothing goes wrong").write_back(),
        Setup::new("write-back: two sections, a put each, one client")
            .write_back()
            .clients(1)
            .sections(3)
            .faults(|f| f.ends = 1),
        Setup::new("write-back: two sections without puts")
            .write_back()
            .puts(0)
            .sections(2)
            .bounded(STEPS_MAX),
        Setup::new("write-back: a replica ends")
            .write_back()
            .faults(|f| f.ends = 1),
        Setup::new("write-back: memory is lost")
            .write_back()
            .faults(|f| f.memory_lost = 1),
        Setup::new("write-back: two sections, the key is forgotten")
            .write_back()
            .sections(2)
            .puts(0)
            .faults(|f| f.forgotten = 1)
            .bounded(STEPS_MAX),
        Setup::new("write-back: three sections, the key is forgotten, a put of unknown outcome")
            .write_back()
            .clients(1)
            .sections(3)
            .faults(|f| {
                f.forgotten = 1;
                f.unknown_writes = 1;
            })
            .bounded(STEPS_MAX),
        Setup::new("write-back: a swap of unknown outcome")
            .write_back()
            .faults(|f| f.unknown_swaps = 1),
        Setup::new("write-back: a session ends")
            .write_back()
            .faults(|f| f.sessions = 1),
        Setup::new("write-back: a hand-over")
            .write_back()
            .faults(|f| f.hand_overs = 1),
        Setup::new("write-back: a call is given up")
            .write_back()
            .faults(|f| f.given_up = 1),
        Setup::new("write-back: a replica stops, a swap of unknown outcome")
            .write_back()
            .faults(|f| {
                f.stops = 1;
                f.unknown_swaps = 1;
            }),
        Setup::new("write-back: a replica stops, and ends before that is known")
            .write_back()
            .clients(1)
            .sections(2)
            .faults(|f| {
                f.stops = 1;
                f.ends = 1;
                f.unknown_swaps = 1;
            }),
        Setup::new("write-back: puts in doubt are read, a hand-over")
            .write_back()
            .clients(1)
            .sections(2)
            .reads_in_doubt()
            .faults(|f| {
                f.hand_overs = 1;
                f.unknown_writes = 2;
            })
            .bounded(STEPS_MAX),
        Setup::new("write-back: by force")
            .write_back()
            .faults(|f| f.forced = 1),
        Setup::new("write-back: the store fails for a moment")
            .write_back()
            .faults(|f| f.store_failures = 1),
        Setup::new("write-back: a replica ends, a swap of unknown outcome")
            .write_back()
            .clients(1)
            .sections(2)
            .faults(|f| {
                f.ends = 1;
                f.unknown_swaps = 1;
            }),
        Setup::new("write-back: a hand-over of unknown outcome")
            .write_back()
            .clients(1)
            .sections(2)
            .faults(|f| {
                f.hand_overs = 1;
                f.unknown_swaps = 1;
            }),
        Setup::new("write-back: puts that ride with releases, memory is lost")
            .write_back()
            .carry(3)
            .puts(0)
            .faults(|f| f.memory_lost = 1),
        Setup::new("write-back: four sections, memory is lost")
            .write_back()
            .clients(1)
            .sections(4)
            .faults(|f| f.memory_lost = 1),
        Setup::new("write-back: two puts, narrow fences")
            .write_back()
            .clients(1)
            .puts(2)
            .narrow()
            .faults(|f| {
                f.ends = 1;
                f.given_up = 1;
            }),
        Setup::new("write-back: three clients, a replica ends")
            .write_back()
            .clients(3)
            .puts(0)
            .faults(|f| f.ends = 1)
            .bounded(STEPS_MAX),
        Setup::new("write-back: an answer is lost")
            .write_back()
            .faults(|f| f.answers_lost = 1),
        Setup::new("write-back: puts that ride with releases, an answer is lost, memory is lost")
            .write_back()
            .carry(3)
            .puts(0)
            .faults(|f| {
                f.answers_lost = 1;
                f.memory_lost = 1;
            })
            .bounded(STEPS_MAX),
        Setup::new("write-back: one session, which ends, and a replica ends")
            .write_back()
            .one_session()
            .puts(0)
            .faults(|f| {
                f.sessions = 1;
                f.ends = 1;
            }),
        much_goes_wrong("write-back: much goes wrong").write_back(),
    ]
}

/// Those of these searches that FERMATA_MODEL_ONE asks for: the one of that name, else all whose names have it in them.
fn asked_for(all: Vec<Setup>) -> Vec<Setup> {
    let Ok(one) = std::env::var("FERMATA_MODEL_ONE") else {
        return all;
    };
    let mut every = [searches(), write_back_searches(), wide_searches()].into_iter();
    let is_a_name = every.any(|some| some.iter().any(|setup| setup.name == one));
    let is_asked_for = |setup: &Setup| match is_a_name {
        true => setup.name == one,
        false => setup.name.contains(one.as_str()),
    };
    all.into_iter().filter(is_asked_for).collect()
}

/// Searches these, and looks that they are as many states as there were.
fn search_all(all: Vec<Setup>) {
    let done: Vec<(usize, bool)> = asked_for(all).into_iter().map(search).collect();
    if std::env::var_os("FERMATA_MODEL_ONE").is_some() {
        return;
    }
    let states: usize = done.iter().map(|(states, _)| states).sum();
    let closed = done.iter().filter(|(_, closed)| *closed).count();
    figures::note("model", &format!("{states} {} {closed}", done.len()));
    assert!(states >= STATES_MIN, "{states} states");
}

#[test]
fn a_home_that_answers_from_memory_keeps_its_promises() {
    search_all([write_back_searches(), wide_searches()].concat());
}

#[test]
fn a_home_that_takes_events_in_keeps_its_promises() {
    search_all(searches());
}

/// That only the home decides (H1), and that a replica which others take for gone answers nothing (H2), is what
/// all the others rest on.
#[test]
fn without_h1_or_h2_clients_are_told_what_is_not_so() {
    if std::env::var_os("FERMATA_MODEL_ONE").is_some() {
        return;
    }
    let h1 = Setup::new("H1 is switched off").off(Off::H1);
    let h2 = Setup::new("H2 is switched off").off(Off::H2);
    for setup in [h1.clone(), h1.write_back(), h2] {
        let setup = setup.puts(0).faults(|f| {
            f.misrouted = 1;
            f.sessions = 1;
        });
        let name = setup.name;
        let Err(found) = try_search(setup) else {
            panic!("{name}: nothing was found");
        };
        let how: Vec<&str> = found.how.lines().take(40).collect();
        println!("{:?}\n{}", found.broken, how.join("\n"));
        let seen = [
            Broken::TwoHolders,
            Broken::OutOfOrder,
            Broken::FenceNotAbove,
            Broken::AnsweredAfterItsEnd,
            Broken::AcknowledgedTooLate,
            Broken::OldValue,
        ];
        assert!(
            found.broken.is_some_and(|broken| seen.contains(&broken)),
            "{name}: {}",
            found.how
        );
    }
}
