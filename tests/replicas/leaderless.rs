//! Tables without homes, while nodes and replicas are killed or paused, and holders are killed: counters stay exact, and a dead
//! holder blocks others for its TTL and no longer.
//!
//! In tables without a fence counters are exact as long as no TTL passes: these are longer than any fault here.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tokio::time::sleep;

use super::counters::{CountedTable, Counters, TTL};
use super::faults::{signal_node, start_nodes};
use super::world::World;

const TABLES: [CountedTable; 3] = [
    table("music", TTL, true),
    table("bakery", LONG, false),
    table("rows", LONG, false),
];

const fn table(name: &'static str, ttl: Duration, has_fence: bool) -> CountedTable {
    CountedTable {
        name,
        clients: 4,
        keys: 2,
        ttl,
        has_sessions: false,
        has_fence,
    }
}

/// More than any fault takes.
const LONG: Duration = Duration::from_secs(20);
/// Sections that are finished after each fault, before the next.
const MORE: usize = 12;
/// How long a node or replica is away.
const AWAY: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_replicas_and_holders_are_killed_or_paused_and_counters_are_exact() {
    let Some(mut world) = World::of_leaderless(2).await else {
        return;
    };
    let counters = TABLES.map(|table| {
        let name = format!("{}-faults", table.name);
        (
            table,
            Counters::start_in(table, &name, world.sprayed_unjudged()),
        )
    });
    let more = async || {
        for (table, counters) in &counters {
            let from = Instant::now();
            counters.more(MORE).await;
            eprintln!("{}: {MORE} sections in {:.1?}", table.name, from.elapsed());
        }
    };
    more().await;
    signal_node(1, Signal::SIGSTOP);
    sleep(AWAY).await;
    more().await;
    signal_node(1, Signal::SIGCONT);
    signal_node(2, Signal::SIGKILL);
    sleep(AWAY).await;
    more().await;
    start_nodes(&world, &[2]);
    world.replicas[0].kill();
    sleep(AWAY).await;
    more().await;
    world.replicas[0].start_again();
    tokio::task::block_in_place(|| world.replicas[0].serving());
    world.replicas[1].signal(Signal::SIGSTOP);
    sleep(AWAY).await;
    world.replicas[1].signal(Signal::SIGCONT);
    more().await;
    for (table, counters) in counters {
        let counted = counters.finish().await;
        for lost in &counted.lost {
            eprintln!("{}: lost: {lost}", table.name);
        }
        eprintln!("{}: {} sections", table.name, counted.sections());
    }
    killed_holders(&world).await;
}

/// A holder that is killed blocks others for its TTL and no longer. The holder is a process.
async fn killed_holders(world: &World) {
    let ttl = Duration::from_secs(3);
    for table in TABLES {
        let lock = |at: usize, run: &str| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_fermata"));
            command
                .args(["--endpoint", &world.replicas[at].endpoint()])
                .args([
                    "--table", table.name, "lock", "killed", "--ttl", "3s", "-c", run,
                ])
                .stdin(Stdio::null())
                .stdout(Stdio::piped());
            command
        };
        let mut holder = lock(0, "echo held; exec sleep 20").spawn().unwrap();
        let mut line = String::new();
        let mut stdout = std::io::BufReader::new(holder.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
        assert_eq!(line, "held\n", "{}", table.name);
        // Long enough for a renewal.
        sleep(ttl).await;
        let begun = Instant::now();
        holder.kill().unwrap();
        holder.wait().unwrap();
        let next = tokio::task::block_in_place(|| lock(1, "echo mine").output().unwrap());
        let took = begun.elapsed();
        eprintln!("{}: held {took:.1?} after the kill", table.name);
        assert_eq!(String::from_utf8_lossy(&next.stdout), "mine\n");
        // Its last renewal was a third of its TTL before, at the most; cells end some seconds later, and polls find out.
        assert!(took > ttl / 3, "{}: {took:?}", table.name);
        assert!(
            took < ttl + Duration::from_secs(7),
            "{}: {took:?}",
            table.name
        );
    }
}
