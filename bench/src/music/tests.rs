//! MUSIC's statements on a real node, and sections of them in turns with sections of a server.

#[path = "../../../tests/support/cassandra/mod.rs"]
mod support;

use std::time::Duration;

use fermata_cassandra::{CassandraOptions, Driver, Fault, Keyspace};

use super::Music;
use crate::baseline::{Baseline, System};
use crate::keys::KeyChoice;
use crate::sections::measure;
use crate::tests::plan;
use crate::tests::server::server;

const NOW_MS: i64 = 1_800_000_000_000;

async fn a_queue_serves_its_entries_in_order(music: &Music) {
    assert_eq!(music.guard("k").await, Ok(0));
    assert_eq!(music.peek("k").await, Ok(None));
    assert_eq!(music.enqueue("k", 0, "first", NOW_MS).await, Ok(true));
    let late = music.enqueue("k", 0, "late", NOW_MS).await;
    assert_eq!(late, Ok(false), "the guard is 1");
    assert_eq!(music.enqueue("k", 1, "second", NOW_MS).await, Ok(true));

    assert_eq!(music.peek("k").await, Ok(Some(1)));
    assert_eq!(music.get("k").await, Ok(None));
    assert_eq!(music.put("k", 1, b"one", NOW_MS).await, Ok(()));
    assert_eq!(music.release("k", 1).await, Ok(true));
    assert_eq!(music.release("k", 1).await, Ok(false), "it is gone");

    assert_eq!(music.peek("k").await, Ok(Some(2)));
    assert_eq!(music.get("k").await, Ok(Some(b"one".to_vec())));
    assert_eq!(music.put("k", 2, b"two", NOW_MS).await, Ok(()));
    // The first one goes on writing, a minute later.
    let late = music.put("k", 1, b"late", NOW_MS + 60_000).await;
    assert_eq!(late, Ok(()));
    assert_eq!(music.get("k").await, Ok(Some(b"two".to_vec())));
    assert_eq!(music.release("k", 2).await, Ok(true));
    assert_eq!(music.guard("k").await, Ok(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn music_takes_turns_with_the_service_and_leaves_no_table() {
    let node = tokio::task::spawn_blocking(|| support::for_tests::lone(&[]));
    let Some(node) = node.await.unwrap() else {
        return;
    };
    let keyspace = Keyspace::parse("bench").unwrap();
    let cluster = CassandraOptions::new(vec![node.contact_point()], keyspace);
    let driver = Driver::connect(&cluster).await.unwrap();
    let replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}";
    let create = format!("CREATE KEYSPACE bench WITH replication = {replication}");
    driver.change_schema(&create).await.unwrap();

    let music = Music::make(&cluster, 7).await.unwrap();
    let taken = Music::make(&cluster, 7).await.map(drop);
    assert!(matches!(taken, Err(Fault::Refused(_))), "{taken:?}");
    a_queue_serves_its_entries_in_order(&music).await;
    music.drop_tables().await.unwrap();

    let server = server().await;
    let mut plan = plan(vec![server.endpoint.clone()]);
    plan.keys = KeyChoice::Own;
    plan.workers = vec![1, 4];
    plan.span.duration = Duration::from_secs(1);
    plan.baseline = Some(Baseline {
        system: System::Music,
        cluster,
        rounds: 2,
    });
    let report = measure(&plan).await.unwrap();
    assert!(report.clean, "{report:?}");
    // Who begins changes from round to round.
    let order = [
        System::Fermata,
        System::Music,
        System::Music,
        System::Fermata,
    ];
    let turns: Vec<System> = report.runs.iter().map(|run| run.system).collect();
    assert_eq!(turns, [order, order].concat());
    let ratios = report.comparisons.iter().map(|one| one.ratio);
    let ratios: Vec<bool> = ratios.map(|ratio| ratio.is_some()).collect();
    assert_eq!(ratios, [true, true]);
    let tables = "DROP TABLE bench.music_lock_00000007";
    assert!(driver.change_schema(tables).await.is_err(), "it was left");
}
