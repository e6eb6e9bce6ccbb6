//! Whether all clients can still come to their end.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use super::setup::Setup;
use super::step::Action;
use super::world::World;

/// More worlds are not tried to find out whether one of them can still end well.
const TRIED_MAX: usize = 100_000;

/// Worlds from which all come to their end, by their hash.
#[derive(Default)]
pub struct Progress {
    hasher: RandomState,
    ends_well: Mutex<HashSet<u64>>,
}

impl Progress {
    /// Whether there is a way to the end on which nothing more goes wrong. This is asked of every world, so no cycle
    /// and no dead end hides a client that waits for ever.
    pub fn may_end_well(&self, setup: &Setup, world: &World) -> bool {
        let mut tried = HashSet::from([self.hasher.hash_one(world)]);
        // The way to where we are, each with what was not tried yet.
        let mut way: Vec<(u64, World, Vec<Action>)> = Vec::new();
        let mut next = Some(world.clone());
        loop {
            if let Some(world) = next.take() {
                let hash = self.hasher.hash_one(&world);
                if world.is_finished() || world.truth.broken.is_some() || self.is_known(hash) {
                    self.know(way.iter().map(|(hash, ..)| *hash).chain([hash]));
                    return true;
                }
                assert!(tried.len() < TRIED_MAX, "no end of it in sight: {world:?}");
                let mut actions = Vec::new();
                world.actions(setup, &mut actions);
                actions.retain(|action| !world.is_fault(*action));
                way.push((hash, world, actions));
            }
            let Some((_, world, actions)) = way.last_mut() else {
                return false;
            };
            match actions.pop() {
                Some(action) => {
                    let after = world.after(setup, action);
                    if tried.insert(self.hasher.hash_one(&after)) {
                        next = Some(after);
                    }
                }
                None => {
                    way.pop();
                }
            }
        }
    }

    fn is_known(&self, hash: u64) -> bool {
        let known = self.ends_well.lock();
        let known = known.unwrap_or_else(PoisonError::into_inner);
        known.contains(&hash)
    }

    fn know(&self, hashes: impl Iterator<Item = u64>) {
        let known = self.ends_well.lock();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        known.extend(hashes);
    }
}
