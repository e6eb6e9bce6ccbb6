//! A node that nobody reaches, and that reaches nobody, though all of them run: what is sent is lost, and no
//! connection breaks. As the other faults, but in a network of its own, on nodes of its own.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::counters::Counters;
use super::faults::count_through;
use super::network;
use super::replica::PATIENCE;
use super::support;
use super::world::{self, World};

/// The one that is cut off.
const NODE: usize = 3;
const OTHERS: [usize; 2] = [1, 2];

fn address(node: usize) -> String {
    format!("127.0.0.{node}")
}

/// What a node believes of another one, by the last word about it in its log: `UP` or `DOWN`.
fn belief(world: &World, node: usize, other: usize) -> Option<String> {
    let log = std::fs::read(world.node_log(node)).unwrap();
    let log = String::from_utf8_lossy(&log);
    let answered = format!("InetAddress /{}:7000 is now ", address(other));
    let mut words = log.lines().filter_map(|line| line.split_once(&answered));
    words.next_back().map(|(_, word)| word.to_owned())
}

/// Waits until the node believes this of each of the others, and each of them of the node.
async fn all_believe(world: &World, expected: &str) {
    let until = Instant::now() + PATIENCE;
    let of_others = OTHERS.map(|other| (NODE, other));
    for (node, other) in of_others.into_iter().chain(OTHERS.map(|node| (node, NODE))) {
        while belief(world, node, other).as_deref() != Some(expected) {
            assert!(
                Instant::now() < until,
                "node {node} does not believe node {other} {expected}"
            );
            sleep(Duration::from_millis(100)).await;
        }
    }
}

#[test]
fn a_node_that_is_cut_off_from_everybody_is_worked_around() {
    // The module is named so that it comes last: the shared nodes are ended for it, and started once only.
    let alone = world::alone();
    // What is missing is fetched now: there is no way out of the network below. Who does not get it is told there.
    let _ = support::Tools::find(&|line| eprintln!("{line}"));
    network::in_own_network(&address(NODE), support::own_group(NODE), || async move {
        let Some(mut world) = World::of_alone(alone, 3).await else {
            return;
        };
        let what = "a node is cut off";
        count_through(&mut world, what, async |world: &mut World, _: &Counters| {
            all_believe(world, "UP").await;
            network::cut();
            // For longer than the TTL of replicas: nodes wait for each other before they believe so.
            all_believe(world, "DOWN").await;
            network::heal();
        })
        .await;
        all_believe(&world, "UP").await;
    });
}
