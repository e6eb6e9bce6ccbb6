//! MUSIC's statements on a real node, and sections of them in turns with sections of a server.

#[path = "../../../tests/support/cassandra/mod.rs"]
mod support;

use fermata_cassandra::{CassandraOptions, Driver, Fault, Keyspace};

use super::Music;
use crate::baseline::System;
use crate::interrupt::Interrupt;
use crate::plan::tests::plan;
use crate::sections::measure;
use crate::tests::server::server;

const NOW_MS: i64 = 1_800_000_000_000;

async fn a_queue_serves_its_entries_in_order(music: &Music) {
    assert_eq!(music.guard("k").await, Ok(0));
    assert_eq!(music.peek("k").await, Ok(None));
    assert_eq!(music.enqueue("k", 0, NOW_MS).await, Ok(true));
    let late = music.enqueue("k", 0, NOW_MS).await;
    assert_eq!(late, Ok(false), "the guard is 1");
    assert_eq!(music.enqueue("k", 1, NOW_MS).await, Ok(true));

    assert_eq!(music.peek("k").await, Ok(Some(1)));
    assert_eq!(music.get("k").await, Ok(None));
    assert_eq!(music.put("k", 1, "one".into(), NOW_MS).await, Ok(()));
    assert_eq!(music.release("k", 1).await, Ok(true));
    assert_eq!(music.release("k", 1).await, Ok(false), "it is gone");

    assert_eq!(music.peek("k").await, Ok(Some(2)));
    assert_eq!(music.get("k").await, Ok(Some(b"one".to_vec())));
    assert_eq!(music.put("k", 2, "two".into(), NOW_MS).await, Ok(()));
    // The first one goes on writing, a minute later.
    let late = music.put("k", 1, "late".into(), NOW_MS + 60_000).await;
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
    let options = "--workers 1,4 --warm-up 0s --duration 1s --baseline music --rounds 2";
    let node = format!("--contact-points {} --keyspace bench", node.contact_point());
    let plan = plan(&format!(
        "section --endpoint {} {options} {node}",
        server.endpoint
    ))
    .unwrap();
    let report = measure(&plan, Interrupt::listen()).await.unwrap();
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
    assert_eq!(report.comparisons.len(), 2);
    let tables = "DROP TABLE bench.music_lock_00000007";
    assert!(driver.change_schema(tables).await.is_err(), "it was left");
}
