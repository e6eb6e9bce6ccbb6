//! `fermata schema`, the real binary on real nodes.

use std::process::Output;

use tokio::process::Command;

use super::raw::Raw;
use super::{MAKING, World};

/// `fermata schema` with these words, and none of the settings of whoever runs the tests.
pub fn schema(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fermata"));
    command.arg("schema").args(words);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FERMATA_C") {
            command.env_remove(name);
        }
    }
    command.args(["--driver", &super::driver::name()]);
    command
}

/// What it ended with, and what it said on stdout and on stderr.
pub fn ended(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

impl World {
    /// `fermata schema` on this cluster and this keyspace.
    async fn command(&self, words: &[&str]) -> (Option<i32>, String, String) {
        let points = self.cluster.contact_points().join(",");
        let mut command = schema(words);
        command.args(["--contact-points", &points]);
        command.args(["--keyspace", self.keyspace.as_str()]);
        ended(&command.output().await.unwrap())
    }

    /// The command that makes what is missing.
    fn remedy(&self) -> String {
        let driver = match super::driver::name() {
            name if name == "scylla" => String::new(),
            name => format!(" --driver {name}"),
        };
        format!(
            "fermata schema apply --contact-points {} --keyspace {}{driver}",
            self.cluster.contact_points().join(","),
            self.keyspace
        )
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_who_make_the_tables_at_once_both_succeed_and_the_check_is_good() {
    let Some(world) = World::empty().await else {
        return;
    };
    let (code, found, _) = world.command(&["check"]).await;
    assert_eq!(code, Some(78), "{found}");
    assert!(found.contains("there is no keyspace"), "{found}");
    let remedy = format!("{} --replication datacenter1=3\n", world.remedy());
    assert!(found.contains(&remedy), "{found}");

    let one = MAKING.lock().await;
    let apply = ["apply", "--replication", "datacenter1=3"];
    let (first, second) = tokio::join!(world.command(&apply), world.command(&apply));
    drop(one);
    for (code, _, answered) in [first, second] {
        assert_eq!(code, Some(0), "{answered}");
        assert!(
            answered.contains("every node knows schema version"),
            "{answered}"
        );
    }
    let (code, found, answered) = world.command(&["check"]).await;
    assert_eq!((code, found.as_str()), (Some(0), "good\n"), "{answered}");

    let (code, found, _) = world.command(&["check", "--table", "orders"]).await;
    assert_eq!(code, Some(78), "{found}");
    assert!(found.contains("there is no table lock_orders"), "{found}");
    let remedy = format!("{} --table orders\n", world.remedy());
    assert!(found.contains(&remedy), "{found}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn options_of_tables_that_were_made_otherwise_are_found_and_set() {
    let Some(world) = World::make(&["default"]).await else {
        return;
    };
    let raw = Raw::of(&world).await;
    raw.run(
        "ALTER TABLE \"@KEYSPACE@\".\"lock_default\" WITH read_repair = 'NONE' AND gc_grace_seconds = 60 \
         AND default_time_to_live = 60; \
         ALTER TABLE \"@KEYSPACE@\".\"data_default\" WITH speculative_retry = '99p'",
    )
    .await;
    let (code, found, _) = world.command(&["check"]).await;
    assert_eq!(code, Some(78), "{found}");
    for said in [
        "wrong: lock_default has gc_grace_seconds = 60: ",
        "wrong: lock_default has default_time_to_live = 60: ",
        "wrong: lock_default has read_repair = 'NONE': ",
        "advice: data_default has speculative_retry = '99p': ",
    ] {
        assert!(found.contains(said), "{found}");
    }
    world.apply(&["default"]).await.unwrap();
    let (code, found, _) = world.command(&["check"]).await;
    assert_eq!(code, Some(0), "{found}");
    for option in [
        "gc_grace_seconds",
        "default_time_to_live",
        "read_repair",
        "speculative_retry",
    ] {
        assert!(!found.contains(option), "{found}");
    }
}
