//! MUSIC's statements, as `fermata bench` sends them.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use fermata::store::{ClusterStore as _, Life};
use fermata_bench::Music;
use fermata_cassandra::Fault;
use serde_json::Value as Json;
use tokio::time::timeout;

use super::World;
use super::raw::Raw;

const FERMATA: &str = env!("CARGO_BIN_EXE_fermata");
/// Only a test that fails waits for so long.
const PATIENCE: Duration = Duration::from_secs(60);
const NOW_MS: i64 = 1_800_000_000_000;

/// Waits until it is the turn of a lockRef: a read at ONE may be old for a moment.
async fn its_turn(music: &Music, lock_ref: i64) {
    let turn = async { while music.peek("k").await != Ok(Some(lock_ref)) {} };
    timeout(PATIENCE, turn).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_of_music_serves_its_entries_in_order_and_leaves_no_table() {
    let Some(world) = World::make(&["default"]).await else {
        return;
    };
    let raw = Raw::of(&world).await;
    let tables = raw.tables().await;
    let music = Music::make(&world.options(), 7).await.unwrap();
    assert_eq!(raw.tables().await.len(), tables.len() + 2);
    let taken = Music::make(&world.options(), 7).await.map(drop);
    assert!(matches!(taken, Err(Fault::Refused(_))), "{taken:?}");

    assert_eq!(music.guard("k").await, Ok(0));
    assert_eq!(music.peek("k").await, Ok(None));
    assert_eq!(music.enqueue("k", 0, "first", NOW_MS).await, Ok(true));
    assert_eq!(
        music.enqueue("k", 0, "late", NOW_MS).await,
        Ok(false),
        "the guard is 1"
    );
    assert_eq!(music.enqueue("k", 1, "second", NOW_MS).await, Ok(true));

    its_turn(&music, 1).await;
    assert_eq!(music.get("k").await, Ok(None));
    assert_eq!(music.put("k", 1, b"one", NOW_MS).await, Ok(()));
    assert_eq!(music.release("k", 1).await, Ok(true));
    assert_eq!(music.release("k", 1).await, Ok(false), "it is gone");

    its_turn(&music, 2).await;
    assert_eq!(music.get("k").await, Ok(Some(b"one".to_vec())));
    assert_eq!(music.put("k", 2, b"two", NOW_MS).await, Ok(()));
    // The first one goes on writing, a minute later.
    let late = music.put("k", 1, b"late", NOW_MS + 60_000).await;
    assert_eq!(late, Ok(()));
    assert_eq!(music.get("k").await, Ok(Some(b"two".to_vec())));
    assert_eq!(music.release("k", 2).await, Ok(true));
    let guard = async { while music.guard("k").await != Ok(2) {} };
    timeout(PATIENCE, guard).await.unwrap();

    music.drop_tables().await.unwrap();
    assert_eq!(raw.tables().await, tables);
}

/// `fermata serve` on a store of its own.
struct Serve {
    child: Child,
    endpoint: String,
    _data: tempfile::TempDir,
}

impl Serve {
    fn start() -> Serve {
        let data = tempfile::tempdir().unwrap();
        let mut child = Command::new(FERMATA)
            .args(["serve", "--listen", "127.0.0.1:0", "--log-filter", "error"])
            .arg("--data-dir")
            .arg(data.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let endpoint = line
            .trim()
            .strip_prefix("listening on ")
            .unwrap()
            .to_owned();
        Serve {
            child,
            endpoint,
            _data: data,
        }
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `fermata bench section --baseline music` on the nodes of this world.
async fn bench(world: &World, more: &[&str]) -> Output {
    let bench = tokio::process::Command::new(FERMATA)
        .args(["bench", "section", "--baseline", "music"])
        .args(["--duration", "1s", "--warm-up", "500ms"])
        .args(["--output", "json", "--keyspace", world.keyspace.as_str()])
        .args([
            "--contact-points",
            &world.cluster.contact_points().join(","),
        ])
        .args(more)
        .env_remove("FERMATA_TABLE")
        .output();
    bench.await.unwrap()
}

/// The report of a benchmark without errors.
fn report(answered: &Output) -> Json {
    assert!(answered.status.success(), "{answered:?}");
    serde_json::from_slice(&answered.stdout).unwrap()
}

/// The turns of a report in their order: workers, round and system. Every counter of them is exact.
fn turns(report: &Json) -> Vec<(u64, u64, &str)> {
    let turns = report["runs"].as_array().unwrap().iter().map(|run| {
        let counters = &run["counter_check"];
        assert_eq!(counters["lost"], 0, "{run}");
        assert_eq!(counters["surplus"], 0, "{run}");
        assert!(counters["acknowledged"].as_u64() >= run["sections"].as_u64());
        assert_eq!(run["errors"], 0, "{run}");
        let system = run["system"].as_str().unwrap();
        (
            run["workers"].as_u64().unwrap(),
            run["round"].as_u64().unwrap(),
            system,
        )
    });
    turns.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_benchmark_takes_turns_with_music_and_compares() {
    let Some(world) = World::make(&["default"]).await else {
        return;
    };
    let raw = Raw::of(&world).await;
    let tables = raw.tables().await;
    let serve = Serve::start();
    let more = ["--rounds", "2", "--workers", "1,4", "--endpoint"];
    let answered = bench(&world, &[&more[..], &[&serve.endpoint]].concat()).await;
    let report = report(&answered);
    assert_eq!(report["settings"]["transport"], "grpc");

    // Who begins changes from round to round.
    let expected = [1, 4].map(|workers| {
        [
            (workers, 1, "fermata"),
            (workers, 1, "music"),
            (workers, 2, "music"),
            (workers, 2, "fermata"),
        ]
    });
    assert_eq!(turns(&report), expected.concat());

    for one in report["comparisons"].as_array().unwrap() {
        assert_eq!(one["rounds"], 2);
        let [ours, other] = ["fermata", "baseline"]
            .map(|side| one[side]["sections_per_s"]["median"].as_f64().unwrap());
        assert!(ours > 0.0 && other > 0.0, "{one}");
        assert!(one["ratio"]["median"].as_f64() > Some(0.0), "{one}");
        let phases = one["baseline"]["phases"].as_array().unwrap();
        assert_eq!(phases.len(), 6, "{one}");
    }
    assert_eq!(report["comparisons"].as_array().unwrap().len(), 2);
    assert_eq!(raw.tables().await, tables, "it left nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_benchmark_runs_a_replica_of_its_own_and_stops_it_cleanly() {
    let Some(world) = World::make(&["default"]).await else {
        return;
    };
    let more = ["--in-process", "--rounds", "1", "--workers", "4"];
    let missing = bench(&world, &[&more[..], &["--table", "none"]].concat()).await;
    assert_eq!(missing.status.code(), Some(69), "{missing:?}");
    let said = String::from_utf8_lossy(&missing.stderr);
    for part in ["lock_none", "fermata schema apply"] {
        assert!(said.contains(part), "{said}");
    }
    let store = world.store().await;
    assert_eq!(store.list_replicas().await.unwrap(), []);

    let answered = bench(&world, &more).await;
    let report = report(&answered);
    assert_eq!(report["settings"]["transport"], "in_process");
    assert_eq!(report["settings"]["endpoints"], serde_json::json!([]));
    assert_eq!(turns(&report), [(4, 1, "fermata"), (4, 1, "music")]);
    assert!(report["comparisons"][0]["ratio"]["median"].as_f64() > Some(0.0));

    let replicas = store.list_replicas().await.unwrap();
    let [replica] = replicas.as_slice() else {
        panic!("{replicas:?}")
    };
    assert_eq!(replica.life, Life::Stopped);
    assert!(replica.heartbeat > 0, "{replica:?}");
    assert_eq!((&*replica.address, &*replica.peer_address), ("", ""));
}
