//! The search itself: stateright walks the worlds, and each promise is looked at in every one of them.

use std::collections::HashSet;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::action::Action;
use crate::setup::Setup;
use crate::truth::Broken;
use crate::words;
use crate::world::World;

pub const EXCLUSIVITY: &str = "only the holder's writes take effect";
pub const LATEST_STATE: &str = "a holder reads the latest value, and keeps reading it";
pub const ORDER: &str = "first come, first served";
pub const STATE: &str = "the lock's state is in order";
pub const PROGRESS: &str = "everybody gets its turn";
const SERVED: &str = "all clients are served";

/// More worlds are not tried to find out whether one of them can still end well.
const TRIED_MAX: usize = 100_000;

pub struct Search {
    setup: Setup,
    /// The one promise that is looked at; all of them, where none is named.
    promise: Option<&'static str>,
    hasher: RandomState,
    /// Worlds from which everybody gets through, by their hash.
    ends_well: Mutex<HashSet<u64>>,
}

impl Search {
    pub fn new(setup: Setup, promise: Option<&'static str>) -> Search {
        Search {
            setup,
            promise,
            hasher: RandomState::new(),
            ends_well: Mutex::default(),
        }
    }

    /// Whether everybody can still get through, if nothing more goes wrong and nobody helps by chance. This is asked
    /// of every world, so no cycle and no dead end hides a client that waits for ever.
    fn may_end_well(&self, world: &World) -> bool {
        let hash = |world: &World| self.hasher.hash_one(world);
        let known = |hash: u64| {
            let known = self.ends_well.lock();
            known
                .unwrap_or_else(PoisonError::into_inner)
                .contains(&hash)
        };
        let mut tried = HashSet::from([hash(world)]);
        // The way to where we are, each with what was not tried yet.
        let mut way: Vec<(u64, World, Vec<Action>)> = Vec::new();
        let mut next = Some(world.clone());
        loop {
            if let Some(world) = next.take() {
                let its_hash = hash(&world);
                if world.is_finished() || world.truth.broken.is_some() || known(its_hash) {
                    let known = self.ends_well.lock();
                    let mut known = known.unwrap_or_else(PoisonError::into_inner);
                    known.insert(its_hash);
                    known.extend(way.iter().map(|(hash, ..)| *hash));
                    return true;
                }
                assert!(tried.len() < TRIED_MAX, "no end of it in sight: {world:?}");
                let mut actions = Vec::new();
                world.actions(&self.setup, &mut actions);
                actions.retain(|a| !a.is_chance(&world, &self.setup) && !a.is_optional());
                actions.reverse();
                way.push((its_hash, world, actions));
            }
            let Some((_, world, actions)) = way.last_mut() else {
                return false;
            };
            match actions.pop() {
                Some(action) => {
                    let after = world.after(&self.setup, action);
                    if tried.insert(hash(&after)) {
                        next = Some(after);
                    }
                }
                None => {
                    way.pop();
                }
            }
        }
    }
}

impl Model for Search {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.setup)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        world.actions(&self.setup, actions);
        if self.setup.steps_max.is_some() {
            // Depth first, the last one is gone for first: another one in each world, the same in each run.
            let mut hasher = DefaultHasher::new();
            world.hash(&mut hasher);
            let first = hasher.finish() % actions.len().max(1) as u64;
            actions.rotate_left(first as usize);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        Some(world.after(&self.setup, action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn keeps(world: &World, broken: impl Fn(Broken) -> bool) -> bool {
            !world.truth.broken.is_some_and(broken)
        }
        let mut properties = vec![
            Property::always(EXCLUSIVITY, |_, world| {
                keeps(world, |b| b == Broken::Exclusivity)
            }),
            Property::always(LATEST_STATE, |_, world| {
                keeps(world, |b| b == Broken::LatestState)
            }),
            Property::always(ORDER, |_, world| keeps(world, |b| b == Broken::Order)),
            Property::always(STATE, |_, world| {
                keeps(world, |b| matches!(b, Broken::State(_)))
            }),
            Property::always(PROGRESS, |search: &Search, world| {
                search.may_end_well(world)
            }),
            // That there is something to break.
            Property::sometimes(SERVED, |_, world: &World| world.all_served()),
        ];
        if let Some(promise) = self.promise {
            properties.retain(|property| property.name == promise);
        }
        properties
    }
}

/// What came of a search.
pub struct Report {
    pub setup: Setup,
    pub states: usize,
    pub closed: bool,
    pub seconds: f64,
    pub all_served: bool,
    /// What was broken, and how it came to that: one line an action.
    pub broken: Option<(&'static str, Vec<String>)>,
}

/// Searches until a promise is broken.
pub fn search(setup: Setup, threads: usize) -> Report {
    search_for(setup, None, threads)
}

/// Searches until this promise is broken, and with one thread finds the shortest way to that.
pub fn search_for(setup: Setup, promise: Option<&'static str>, threads: usize) -> Report {
    let began = Instant::now();
    let mut checker = Search::new(setup.clone(), promise)
        .checker()
        .threads(threads)
        .finish_when(HasDiscoveries::AnyFailures);
    match setup.steps_max {
        None => report(setup, checker.spawn_bfs().join(), began),
        Some(steps) => {
            checker = checker.target_state_count(steps);
            report(setup, checker.spawn_dfs().join(), began)
        }
    }
}

fn report(setup: Setup, checker: impl Checker<Search>, began: Instant) -> Report {
    let mut discoveries = checker.discoveries();
    let all_served = discoveries.remove(SERVED).is_some();
    let broken = discoveries.into_iter().min_by_key(|(name, _)| *name);
    let broken = broken.map(|(name, path)| (name, words::trace(&setup, path.into_vec())));
    let steps_max = setup.steps_max.unwrap_or(usize::MAX);
    Report {
        states: checker.unique_state_count(),
        closed: broken.is_none() && checker.state_count() < steps_max,
        seconds: began.elapsed().as_secs_f64(),
        all_served,
        broken,
        setup,
    }
}
