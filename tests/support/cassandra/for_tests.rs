//! The cluster as tests take it: started when the first one wants it, and the rules for leaving it out.
#![allow(clippy::panic, reason = "a test fails by panicking")]

use std::io::Write;
use std::sync::{Arc, OnceLock};

use super::{Cluster, ClusterError};

/// `off` leaves out what needs Cassandra.
const TEST_CASSANDRA: &str = "FERMATA_TEST_CASSANDRA";
/// `1` makes a failure of what this machine lacks.
const REQUIRE_CASSANDRA: &str = "FERMATA_REQUIRE_CASSANDRA";

/// The cluster of this test program, until the program ends; `None` where it is left out, and says so once
/// on stderr, past libtest, which hides what passing tests print. Blocks while it starts.
///
/// # Panics
///
/// If it cannot be started, or is left out where it is required.
pub fn cluster(nodes: usize) -> Option<Arc<Cluster>> {
    static CLUSTER: OnceLock<Result<Arc<Cluster>, String>> = OnceLock::new();
    let started = CLUSTER.get_or_init(|| {
        if std::env::var_os(TEST_CASSANDRA).is_some_and(|value| value == "off") {
            say("SKIPPED: the tests that need Cassandra, by FERMATA_TEST_CASSANDRA=off");
            return Err(String::new());
        }
        match Cluster::up(nodes, &say) {
            Ok(cluster) => Ok(Arc::new(cluster)),
            Err(ClusterError::Missing(what)) if !is_required() => {
                say(&format!("SKIPPED: the tests that need Cassandra: {what}"));
                Err(String::new())
            }
            Err(error) => Err(error.to_string()),
        }
    });
    match started {
        Ok(cluster) => Some(Arc::clone(cluster)),
        Err(why) if why.is_empty() => None,
        Err(why) => panic!("no Cassandra: {why}"),
    }
}

fn is_required() -> bool {
    std::env::var_os(REQUIRE_CASSANDRA).is_some_and(|value| value == "1")
}

fn say(line: &str) {
    // Nowhere to say it: nothing is lost.
    let _ = writeln!(std::io::stderr(), "cassandra: {line}");
}
