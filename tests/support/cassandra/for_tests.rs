//! The cluster as tests take it: started when the first one wants it, and the rules for leaving it out.
#![allow(clippy::panic, reason = "a test fails by panicking")]

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Cluster, ClusterError, Lone, Network, Purpose};

/// `off` leaves out what needs Cassandra.
const TEST_CASSANDRA: &str = "FERMATA_TEST_CASSANDRA";
/// `1` makes a failure of what this machine lacks.
const REQUIRE_CASSANDRA: &str = "FERMATA_REQUIRE_CASSANDRA";

/// What came of the first start; started anew where it was ended for [`cluster_alone`].
static CLUSTER: Mutex<Option<Started>> = Mutex::new(None);

type Started = Result<Option<Arc<Cluster>>, String>;

/// The cluster of this test program, until the program ends; `None` where it is left out, and says so once
/// on stderr, past libtest, which hides what passing tests print. Blocks while it starts.
///
/// # Panics
///
/// If it cannot be started, or is left out where it is required.
pub fn cluster(nodes: usize) -> Option<Arc<Cluster>> {
    let mut cluster = CLUSTER.lock().unwrap_or_else(PoisonError::into_inner);
    let start = || {
        unless_left_out(|| Cluster::up(nodes, Purpose::Tests, Network::Here, &say).map(Arc::new))
    };
    let started = cluster.get_or_insert_with(start).clone();
    drop(cluster);
    started.unwrap_or_else(|why| panic!("no Cassandra: {why}"))
}

/// A cluster of its own, while the one of this test program is ended: nobody may be using that. The same rules;
/// and it takes root.
///
/// # Panics
///
/// If it cannot be started, or is left out where it is required.
pub fn cluster_alone(nodes: usize) -> Option<Arc<Cluster>> {
    let mut cluster = CLUSTER.lock().unwrap_or_else(PoisonError::into_inner);
    cluster.take_if(|started| matches!(started, Ok(Some(_))));
    let start = || Cluster::up_alone(nodes, Purpose::Tests, &say).map(Arc::new);
    let started = unless_left_out(start);
    drop(cluster);
    started.unwrap_or_else(|why| panic!("no Cassandra: {why}"))
}

/// A node of a cluster of its own, with these settings; the same rules.
///
/// # Panics
///
/// If it cannot be started, or is left out where it is required.
pub fn lone(settings: &[(&str, String)]) -> Option<Lone> {
    let started = unless_left_out(|| Lone::up(settings, &say));
    started.unwrap_or_else(|why| panic!("no Cassandra: {why}"))
}

fn unless_left_out<T>(
    start: impl FnOnce() -> Result<T, ClusterError>,
) -> Result<Option<T>, String> {
    if std::env::var_os(TEST_CASSANDRA).is_some_and(|value| value == "off") {
        say("SKIPPED: the tests that need Cassandra, by FERMATA_TEST_CASSANDRA=off");
        return Ok(None);
    }
    match start() {
        Ok(started) => Ok(Some(started)),
        Err(ClusterError::Missing(what)) if !is_required() => {
            say(&format!("SKIPPED: the tests that need Cassandra: {what}"));
            Ok(None)
        }
        Err(error @ ClusterError::InUse { .. }) if !is_required() => {
            say(&format!(
                "SKIPPED: what needs nodes that nobody shares: {error}"
            ));
            Ok(None)
        }
        Err(error) => Err(error.to_string()),
    }
}

fn is_required() -> bool {
    std::env::var_os(REQUIRE_CASSANDRA).is_some_and(|value| value == "1")
}

/// Says it past libtest.
fn say(line: &str) {
    // Nowhere to say it: nothing is lost.
    let _ = writeln!(std::io::stderr(), "cassandra: {line}");
}
