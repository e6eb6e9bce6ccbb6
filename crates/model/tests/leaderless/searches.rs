//! The searches: those that must find nothing, and those that must find a violation.

use std::io::Write as _;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model, Property};

use super::figures;
use super::off::Off;
use super::progress::Progress;
use super::setup::{Faults, Op, Setup};
use super::step::Action;
use super::world::{Broken, World};

const PROMISES: &str = "what clients are told is kept";
const PROGRESS: &str = "all can come to their end, if nothing more goes wrong";
const SERVED: &str = "all are done";
/// The steps of a bounded search, and of a wide one.
const STEPS_MAX: usize = 100_000;
const WIDE_STEPS_MAX: usize = 2_000_000;
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
        let kept = |_: &Search, world: &World| world.truth.broken.is_none();
        let mut properties = vec![Property::always(PROMISES, kept)];
        if self.0.off.is_none() {
            properties.push(Property::always(PROGRESS, |search: &Search, world| {
                search.1.may_end_well(&search.0, world)
            }));
            let served = |_: &Search, world: &World| world.is_finished();
            properties.push(Property::sometimes(SERVED, served));
        }
        properties
    }
}

/// What a search found.
struct Found {
    broken: Option<Broken>,
    how: String,
}

/// How many states it went through, and whether those are all.
fn try_search(setup: Setup) -> Result<(usize, bool), Found> {
    let began = Instant::now();
    let name = setup.name;
    let checker = Search(setup.clone(), Progress::default())
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyFailures);
    let (discoveries, states, closed) = match setup.steps_max {
        None => {
            let done = checker.spawn_bfs().join();
            (done.discoveries(), done.unique_state_count(), true)
        }
        Some(steps) => {
            let done = checker.target_state_count(steps).spawn_dfs().join();
            let closed = done.state_count() < steps;
            (done.discoveries(), done.unique_state_count(), closed)
        }
    };
    // Past libtest, which hides what passing tests print.
    let _ = writeln!(
        std::io::stderr(),
        "leaderless: {name}: {states} states in {:.1} s",
        began.elapsed().as_secs_f64()
    );
    for (promise, path) in discoveries {
        if promise == SERVED {
            continue;
        }
        let steps = path.into_vec();
        let told = |(world, action): &(World, Option<Action>)| action.map(|a| world.told(a));
        let lines: Vec<String> = steps.iter().filter_map(told).collect();
        let broken = steps
            .last()
            .and_then(|(world, _)| world.truth.broken.clone());
        let lines = lines.join("\n  ");
        return Err(Found {
            how: format!("{name}: not \"{promise}\": {broken:?}\n  {lines}"),
            broken,
        });
    }
    Ok((states, closed))
}

fn bakery_searches() -> Vec<Setup> {
    vec![
        Setup::bakery("bakery: nothing goes wrong"),
        Setup::bakery("bakery: two clients crash").faults(|f| f.crashes = 2),
        Setup::bakery("bakery: a call is cut").faults(|f| f.cuts = 1),
        Setup::bakery("bakery: a call goes on unheard")
            .plan(&[])
            .faults(|f| f.unheard = 1)
            .bounded(STEPS_MAX),
        Setup::bakery("bakery: a TTL passes").faults(|f| f.expiries = 1),
        Setup::bakery("bakery: a choice takes too long").faults(|f| f.late = 1),
        Setup::bakery("bakery: a write of unknown outcome, a renewal").faults(|f| {
            f.unknown_writes = 1;
            f.ages = 1;
        }),
        Setup::bakery("bakery: a TTL passes, a renewal").faults(renewal_is_late),
        Setup::bakery("bakery: a TTL passes, a renewal is cut, bounded")
            .faults(renewal_is_cut)
            .bounded(STEPS_MAX),
        Setup::bakery("bakery: one random number, a client crashes")
            .same_ids()
            .faults(|f| f.crashes = 1),
        Setup::bakery("bakery: three clients, a client crashes, bounded")
            .clients(3)
            .plan(&[])
            .faults(|f| f.crashes = 1)
            .bounded(STEPS_MAX),
        much_goes_wrong(Setup::bakery("bakery: much goes wrong")),
    ]
}

fn wide_bakery_searches() -> Vec<Setup> {
    vec![
        Setup::bakery("bakery: three clients").clients(3).plan(&[]),
        Setup::bakery("bakery: a TTL passes, a renewal is cut, longer")
            .faults(renewal_is_cut)
            .bounded(WIDE_STEPS_MAX),
        Setup::bakery("bakery: a call goes on unheard, longer")
            .faults(|f| f.unheard = 1)
            .bounded(WIDE_STEPS_MAX),
        Setup::bakery("bakery: a client crashes, a call is cut")
            .plan(&[])
            .faults(|f| {
                f.crashes = 1;
                f.cuts = 1;
            }),
        Setup::bakery("bakery: a TTL passes, a write of unknown outcome, a renewal").faults(|f| {
            f.expiries = 1;
            f.unknown_writes = 1;
            f.ages = 1;
        }),
        Setup::bakery("bakery: a choice takes too long, a client crashes").faults(|f| {
            f.late = 1;
            f.crashes = 1;
        }),
        Setup::bakery("bakery: a TTL passes, a call goes on unheard")
            .plan(&[])
            .faults(|f| {
                f.expiries = 1;
                f.unheard = 1;
            })
            .bounded(WIDE_STEPS_MAX),
        much_goes_wrong(Setup::bakery("bakery: much goes wrong, longer")).bounded(WIDE_STEPS_MAX),
    ]
}

fn renewal_is_late(faults: &mut Faults) {
    faults.expiries = 1;
    faults.ages = 1;
}

fn renewal_is_cut(faults: &mut Faults) {
    faults.expiries = 1;
    faults.cuts = 1;
    faults.ages = 1;
}

fn much_goes_wrong(setup: Setup) -> Setup {
    let setup = setup.clients(3).reads_in_doubt().bounded(STEPS_MAX);
    setup.faults(|f| {
        f.crashes = 1;
        f.cuts = 1;
        f.unheard = 1;
        f.unknown_writes = 1;
        f.unknown_swaps = 1;
        f.expiries = 1;
        f.late = 1;
        f.ages = 1;
    })
}

fn music_searches() -> Vec<Setup> {
    let (plan, reads) = (&[Op::Get, Op::Put], &[Op::Put, Op::Get]);
    vec![
        Setup::music("music: nothing goes wrong", plan),
        Setup::music("music: a client crashes, a write of unknown outcome", reads).faults(|f| {
            f.crashes = 1;
            f.unknown_writes = 1;
        }),
        Setup::music("music: a client crashes, a swap of unknown outcome", plan).faults(|f| {
            f.crashes = 1;
            f.unknown_swaps = 1;
        }),
        Setup::music("music: swaps of unknown outcome", &[Op::Put]).faults(|f| f.unknown_swaps = 2),
        Setup::music("music: a call is cut", plan).faults(|f| f.cuts = 1),
        Setup::music("music: a put is cut, and read", reads)
            .reads_in_doubt()
            .faults(|f| f.cuts = 1),
        Setup::music("music: a put goes on unheard, and is read", reads)
            .reads_in_doubt()
            .faults(|f| f.unheard = 1),
        Setup::music("music: a put that rides with a release is cut", &[])
            .carry()
            .faults(|f| f.cuts = 1),
        Setup::music(
            "music: a put that rides with a release goes on unheard",
            &[],
        )
        .carry()
        .faults(|f| f.unheard = 1),
        Setup::music("music: a TTL passes", reads).faults(|f| f.expiries = 1),
        Setup::music("music: a TTL passes, a renewal", &[Op::Acquire, Op::Put])
            .faults(renewal_is_late),
        Setup::music(
            "music: a TTL passes, a renewal is cut, bounded",
            &[Op::Acquire, Op::Put],
        )
        .faults(renewal_is_cut)
        .bounded(STEPS_MAX),
        Setup::music(
            "music: three clients, a client crashes, bounded",
            &[Op::Put],
        )
        .clients(3)
        .faults(|f| f.crashes = 1)
        .bounded(STEPS_MAX),
        much_goes_wrong(Setup::music("music: much goes wrong", plan)),
    ]
}

fn wide_music_searches() -> Vec<Setup> {
    let (plan, reads) = (&[Op::Get, Op::Put], &[Op::Put, Op::Get]);
    vec![
        Setup::music("music: three clients", &[Op::Put]).clients(3),
        Setup::music("music: a call goes on unheard", plan).faults(|f| f.unheard = 1),
        Setup::music(
            "music: a TTL passes, a renewal is cut",
            &[Op::Acquire, Op::Put],
        )
        .faults(renewal_is_cut),
        Setup::music("music: a TTL passes, a put is cut, and read", reads)
            .reads_in_doubt()
            .faults(|f| {
                f.expiries = 1;
                f.cuts = 1;
            }),
        Setup::music("music: a TTL passes, a put goes on unheard", &[Op::Put]).faults(|f| {
            f.expiries = 1;
            f.unheard = 1;
        }),
        Setup::music(
            "music: a client crashes, a call is cut, a swap of unknown outcome",
            plan,
        )
        .faults(|f| {
            f.crashes = 1;
            f.cuts = 1;
            f.unknown_swaps = 1;
        }),
        much_goes_wrong(Setup::music("music: much goes wrong, longer", plan))
            .bounded(WIDE_STEPS_MAX),
    ]
}

/// Each rule, with what must go wrong for it to be missed.
fn rules_off() -> Vec<Setup> {
    let crash = |setup: Setup| setup.faults(|f| f.crashes = 1);
    vec![
        Setup::bakery("off: nobody shows that it chooses").off(Off::Flag),
        Setup::bakery("off: equal numbers are not ordered").off(Off::Ties),
        Setup::bakery("off: numbers are read from one node")
            .off(Off::ChoiceOfMajority)
            .faults(|f| f.lags = 1),
        Setup::bakery("off: the end of a choice shows before its number").off(Off::OnePartition),
        Setup::bakery("off: a late choice counts")
            .off(Off::LateChoice)
            .faults(|f| f.late = 1),
        crash(Setup::bakery("off: expired numbers are forgotten").off(Off::Last)),
        Setup::bakery("off: no floor")
            .off(Off::Floor)
            .faults(renewal_is_late),
        Setup::bakery("off: a number below the floor does not count")
            .off(Off::BelowFloor)
            .faults(renewal_is_late),
        Setup::bakery("off: contenders have one random number")
            .same_ids()
            .faults(renewal_is_late),
        crash(Setup::music("off: no read settles a swap", &[Op::Put]).off(Off::Settled))
            .faults(|f| f.unknown_swaps = 1),
        crash(Setup::music("off: the queue is read from one node", &[]).off(Off::QueueOfMajority))
            .clients(3)
            .faults(|f| f.lags = 1),
        Setup::music("off: a number is the client's own", &[]).off(Off::Number),
        Setup::music("off: a renewal is no swap", &[Op::Acquire])
            .off(Off::Renewal)
            .faults(renewal_is_late),
        crash(
            Setup::music(
                "off: a value in doubt is not written again",
                &[Op::Get, Op::Get, Op::Put, Op::Put],
            )
            .off(Off::Sync),
        ),
        crash(
            Setup::music("off: a timestamp is that of a clock", &[Op::Put, Op::Get])
                .off(Off::Timestamp),
        ),
        Setup::music("off: a read is not noted", &[Op::Put, Op::Get])
            .reads_in_doubt()
            .off(Off::ReadNote)
            .faults(|f| f.unheard = 1),
    ]
}

/// Those of these searches that FERMATA_MODEL_ONE asks for.
fn asked_for(all: Vec<Setup>) -> impl Iterator<Item = Setup> {
    let one = std::env::var("FERMATA_MODEL_ONE").unwrap_or_default();
    all.into_iter()
        .filter(move |setup| setup.name.contains(&one))
}

fn search_all(all: Vec<Setup>) {
    let (mut states, mut searches, mut closed) = (0, 0, 0);
    let mut found = Vec::new();
    for setup in asked_for(all) {
        match try_search(setup) {
            Ok((more, is_closed)) => {
                states += more;
                searches += 1;
                closed += usize::from(is_closed);
            }
            Err(Found { how, .. }) => found.push(how),
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    if std::env::var_os("FERMATA_MODEL_ONE").is_some() {
        return;
    }
    assert!(states >= STATES_MIN, "{states} states");
    figures::note("model", &format!("{states} {searches} {closed}"));
}

/// Those that take long, half an hour in all and several GB: with FERMATA_MODEL_WIDE=all.
fn with_wide(some: Vec<Setup>, wide: fn() -> Vec<Setup>) -> Vec<Setup> {
    match std::env::var_os("FERMATA_MODEL_WIDE") {
        Some(value) if value == "all" => [some, wide()].concat(),
        Some(_) | None => some,
    }
}

#[test]
fn the_bakery_keeps_its_promises() {
    search_all(with_wide(bakery_searches(), wide_bakery_searches));
}

#[test]
fn music_keeps_its_promises() {
    search_all(with_wide(music_searches(), wide_music_searches));
}

#[test]
fn without_a_rule_clients_are_told_what_is_not_so() {
    let mut missed = Vec::new();
    for setup in asked_for(rules_off()) {
        let name = setup.name;
        match try_search(setup) {
            Err(found) if found.broken.is_some() => println!("{}", found.how),
            _ => missed.push(name),
        }
    }
    assert!(missed.is_empty(), "nothing was found: {missed:?}");
}
