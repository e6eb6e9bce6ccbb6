//! `fermata locks top`, on a terminal and without one.

use std::time::Duration;

use fermata_client::{Client, LockGuard, LockRequest, QueueEntry, Session, SessionRequest};

use super::json::names;
use super::terminal::Terminal;
use super::world::World;

const TTL: Duration = Duration::from_secs(60);

/// `hot` was granted three times and one waits for it; `still` once, in a session.
struct Locks {
    _held: [LockGuard; 2],
    _waits: QueueEntry,
    _session: Session,
}

async fn locks(world: &World) -> Locks {
    let client = Client::connect([&world.endpoint]).unwrap();
    let ask = |key: &str, owner: &str| LockRequest::new(key).ttl(TTL).owner(owner);
    for _ in 0..2 {
        let guard = client.lock(ask("hot", "nightly")).await.unwrap();
        guard.release().await.unwrap();
    }
    let hot = client.lock(ask("hot", "billing")).await.unwrap();
    let waits = client.enqueue(ask("hot", "late")).await.unwrap();
    let session = client.open_session(SessionRequest::new().ttl(TTL));
    let session = session.await.unwrap();
    let still = session.lock(ask("still", "mailer")).await.unwrap();
    Locks {
        _held: [hot, still],
        _waits: waits,
        _session: session,
    }
}

/// What differs each time as `#`: times, addresses, ids, rates. Columns are one space apart.
fn steady(screen: &str) -> String {
    let word = |word: &str| -> String {
        let digits = word.chars().any(|c| c.is_ascii_digit());
        let count = word.len() < 3 && word.chars().all(|c| c.is_ascii_digit());
        let id = word.len() == 8 && word.chars().all(|c| c.is_ascii_hexdigit());
        match (digits && !count) || id {
            true => "#".to_owned(),
            false => word.to_owned(),
        }
    };
    let line = |line: &str| -> String {
        let words: Vec<String> = line.split_whitespace().map(word).collect();
        words.join(" ")
    };
    let lines: Vec<String> = screen.lines().map(line).collect();
    lines.join("\n").trim_end().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_shows_the_busiest_keys_until_ctrl_c_also_while_the_server_is_gone() {
    let mut world = World::new();
    let _locks = locks(&world).await;
    let mut terminal = Terminal::new(&world);
    terminal.line("fermata locks top --interval 200ms --timeout 1s");
    // From the second answer on there are rates.
    let expected = "\
# UTC 1 of 1 replicas # grants/s last minute: 4 grants after # on average, # at most sessions: 1

KEY OWNER WAITERS HELD GRANTS/MIN MEAN WAIT LONGEST
hot billing 1 # 3 # #
still mailer 0 - 1 # #

REPLICA ADDRESS VERSION SESSIONS KEYS GRANTS/S READS/S WRITES/S LWTS/S CONFLICTS
# # # 1 2 # # # # 0";
    terminal.until(expected, |screen| steady(screen) == expected);

    world.kill_server();
    let screen = terminal.shows("no answer, trying again: ");
    assert!(screen.contains("billing"), "{screen}");
    // It comes back by itself.
    world.start_server();
    terminal.hides("no answer");
    terminal.resize(10, 31);
    terminal.until("a cut table", |screen| {
        screen.contains("KEY  OWNER") && !screen.contains("MEAN WAIT")
    });
    terminal.ctrl_c();
    // A shell runs nothing more of a line whose command Ctrl-C ended.
    terminal.line("echo \"status=$?\"");
    terminal.shows("status=130");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_terminal_each_snapshot_is_printed() {
    let world = World::new();
    let _locks = locks(&world).await;
    let two = [
        "locks",
        "top",
        "--count",
        "2",
        "--interval",
        "100ms",
        "--output",
        "json",
        "--limit",
        "1",
    ];
    let text = world.text(&two);
    let looks: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(looks.len(), 2);
    assert_eq!(names(&looks[0]), ["replicas"]);
    let replica = &looks[1]["replicas"][0];
    let of_a_replica = [
        "answered",
        "as_home",
        "busiest_keys",
        "grants",
        "keys",
        "last_minute",
        "replica",
        "resident_bytes",
        "sessions",
        "store",
    ];
    assert_eq!(names(replica), of_a_replica);
    let keys = replica["busiest_keys"].as_array().unwrap();
    assert_eq!(keys.len(), 1);
    assert_eq!(
        (&keys[0]["key"], &keys[0]["owner"]),
        (&"hot".into(), &"billing".into())
    );
    assert_eq!(keys[0]["last_minute"]["count"], 3);
    let of_a_key = [
        "held_for",
        "identity",
        "key",
        "last_minute",
        "owner",
        "table",
        "waiters",
    ];
    assert_eq!(names(&keys[0]), of_a_key);
}

#[test]
fn what_makes_no_sense_and_what_cannot_be_asked_have_statuses() {
    let mut world = World::new();
    let code = |world: &World, more: &[&str]| {
        let mut all = vec!["locks", "top", "--timeout", "500ms"];
        all.extend(more);
        let output = world.run(&all);
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    for (option, value, said) in [
        ("--interval", "50ms", "50ms is below the minimum, 100ms"),
        ("--limit", "0", "0 is out of range; allowed are 1 to 1000"),
        (
            "--limit",
            "1001",
            "1001 is out of range; allowed are 1 to 1000",
        ),
    ] {
        let (status, answered) = code(&world, &[option, value]);
        assert_eq!(status, Some(64), "{answered}");
        assert!(answered.contains(said), "{answered}");
    }
    assert_eq!(code(&world, &["--table", "nope"]).0, Some(66));
    world.kill_server();
    assert_eq!(code(&world, &[]).0, Some(69));
}
