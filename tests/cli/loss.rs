//! A command must not outlive its lock.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::signals::send;
use super::world::{World, lives, until};

#[test]
fn a_lock_that_is_ended_by_force_stops_its_command_and_says_why() {
    let world = World::new();
    let mut locked = world.start(&["lock", "k", "--", "sh", "-c", "echo in; sleep 60"]);
    assert_eq!(locked.line(), "in");
    world.force();
    let (ended, said) = locked.end();
    assert_eq!(ended.code(), Some(70), "{said}");
    for word in ["ops", "on fire", "FORCED", "SIGTERM"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    assert!(!said.contains("did not stop"), "{said}");
}

#[test]
fn a_command_that_ignores_sigterm_is_killed_with_all_below_it() {
    let world = World::new();
    // The shell and its child both ignore it.
    let script = "trap '' TERM; sleep 600 & echo $$; echo $!; wait; sleep 600";
    let mut locked = world.start(&["lock", "--grace", "200ms", "k", "--", "sh", "-c", script]);
    let (shell, below) = (locked.line(), locked.line());
    assert!(lives(&shell) && lives(&below));
    let shown = world.json(&["locks", "show", "k"]);
    let name = shown["holders"][0]["name"].as_str().unwrap().to_owned();
    world.text(&["locks", "release", &name, "--reason", "stuck"]);
    let (ended, said) = locked.end();
    assert_eq!(ended.code(), Some(70), "{said}");
    assert!(said.contains("did not stop; sending SIGKILL"), "{said}");
    until(|| !lives(&shell) && !lives(&below));
}

#[test]
fn a_command_is_stopped_though_nobody_reads_what_is_said_of_it() {
    let world = World::new();
    // Nobody is there to read; or there is somebody who does not, and the pipe is full.
    for (is_closed, script) in [
        (true, "echo $$; exec sleep 600"),
        (false, "echo $$; exec yes >&2"),
    ] {
        let mut locked = world.start(&["lock", "--grace", "10s", "k", "--", "sh", "-c", script]);
        let shell = locked.line();
        match is_closed {
            true => locked.close_stderr(),
            false => until(|| has_filled_a_pipe(&shell)),
        }
        world.force();
        until(|| !lives(&shell));
        assert_eq!(locked.end_unread().code(), Some(70), "closed: {is_closed}");
    }
}

/// Whether a process wrote as much as a pipe takes: 64 KiB.
fn has_filled_a_pipe(pid: &str) -> bool {
    let counts = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let wrote = counts.lines().find_map(|line| line.strip_prefix("wchar: "));
    wrote.is_some_and(|bytes| bytes.parse().is_ok_and(|bytes: u64| bytes >= 64 * 1024))
}

#[test]
fn what_a_command_left_behind_is_stopped_as_well() {
    let world = World::new();
    // The shell ends at SIGTERM; its child does not.
    let script = "(trap '' TERM; exec sleep 600) & echo $!; wait";
    let mut locked = world.start(&["lock", "--grace", "200ms", "k", "--", "sh", "-c", script]);
    let below = locked.line();
    // It ignores the signal once it runs sleep.
    until(|| is_called(&below, "sleep"));
    world.force();
    assert_eq!(locked.end().0.code(), Some(70));
    until(|| !lives(&below));
}

#[test]
fn what_lost_its_parent_is_stopped_as_well() {
    let world = World::new();
    // In the background of a shell that ended; and as daemons are, in a session of its own. Neither is killed by SIGTERM.
    for start in ["sleep 600", "setsid sleep 600"] {
        let script = format!("(trap '' TERM; {start} & echo $!); echo in; exec sleep 600");
        let mut locked = world.start(&["lock", "--grace", "200ms", "k", "--", "sh", "-c", &script]);
        let orphan = locked.line();
        assert_eq!(locked.line(), "in");
        until(|| is_called(&orphan, "sleep"));
        world.force();
        until(|| !lives(&orphan));
        let (ended, said) = locked.end();
        assert_eq!(ended.code(), Some(70), "{start}: {said}");
        world.await_queue("k", (0, 0));
    }
}

#[test]
fn jobs_of_the_shell_that_became_fermata_are_left_alone() {
    let world = World::new();
    let mut locked = world.start_shell(
        "sleep 600 2>&- & echo $!; \
         exec fermata lock --grace 200ms k -- sh -c 'echo in; exec sleep 600'",
    );
    let job = locked.line();
    assert_eq!(locked.line(), "in");
    world.force();
    let (ended, said) = locked.end();
    assert_eq!(ended.code(), Some(70), "{said}");
    assert!(lives(&job));
    send(job.parse().unwrap(), Signal::SIGKILL);
}

#[test]
fn what_a_command_leaves_in_the_background_outlives_its_own_end_and_no_zombie_is_left() {
    let world = World::new();
    let script = "(sleep 600 2>&- & echo $!); (sleep 0.1 & echo $!); read line";
    let mut locked = world.start_shell(&format!("exec fermata lock k -- sh -c '{script}'"));
    let (stays, ends) = (locked.line(), locked.line());
    until(|| !std::path::Path::new(&format!("/proc/{ends}")).exists());
    locked.say("go on");
    let (ended, said) = locked.end();
    assert_eq!(ended.code(), Some(0), "{said}");
    assert_eq!(world.queue("k"), (0, 0));
    assert!(lives(&stays));
    send(stays.parse().unwrap(), Signal::SIGKILL);
}

fn is_called(pid: &str, name: &str) -> bool {
    let comm = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    comm.is_ok_and(|comm| comm.trim_end() == name)
}

#[test]
fn who_starts_it_may_ignore_the_ends_of_children() {
    let world = World::new();
    let mut ignored = world
        .start_shell("exec env --ignore-signal=CHLD fermata lock k -- sh -c 'echo in; exit 3'");
    assert_eq!(ignored.line(), "in");
    let (ended, said) = ignored.end();
    assert_eq!((ended.code(), said.as_str()), (Some(3), ""));
    assert_eq!(world.queue("k"), (0, 0));
}

#[test]
fn a_command_outlives_a_server_that_is_away_for_seconds() {
    let mut world = World::new();
    let mut locked =
        world.start_shell("exec fermata lock k -- sh -c 'echo $$; read line; echo out'");
    let shell = locked.line();
    // What that is by default is computed beside the command.
    world.kill_server();
    std::thread::sleep(Duration::from_secs(3));
    assert!(lives(&shell), "stopped while the server was away");
    world.start_server();
    until(|| world.run(&["health"]).status.success());
    world.await_queue("k", (1, 0));
    locked.say("go on");
    assert_eq!(locked.line(), "out");
    let (ended, said) = locked.end();
    assert_eq!(ended.code(), Some(0), "{said}");
    assert_eq!(world.queue("k"), (0, 0));
}

#[test]
fn with_a_disconnect_grace_a_command_goes_on_while_the_server_answers_and_no_longer() {
    let mut world = World::new();
    let script = "trap '' TERM; echo $$; while :; do sleep 0.05; done";
    let arguments = [
        "lock",
        "--disconnect-grace",
        "2s",
        "k",
        "--",
        "sh",
        "-c",
        script,
    ];
    let mut locked = world.start(&arguments);
    let shell = locked.line();
    std::thread::sleep(Duration::from_secs(3));
    assert!(lives(&shell), "stopped while the server answers");
    world.kill_server();
    let away = Instant::now();
    let (ended, said) = locked.end();
    assert_eq!(ended.code(), Some(70), "{said}");
    // Long before its TTL, which is a minute.
    assert!(
        away.elapsed() < Duration::from_secs(2) + Duration::from_secs(1),
        "{:?}",
        away.elapsed()
    );
    until(|| !lives(&shell));
}

#[test]
fn a_command_is_stopped_before_others_can_have_its_lock() {
    let mut world = World::new();
    let ttl = Duration::from_secs(3);
    let script = "trap '' TERM; echo $$; while :; do sleep 0.05; done";
    let mut locked = world.start(&["lock", "--ttl", "3s", "k", "--", "sh", "-c", script]);
    let shell = locked.line();
    world.kill_server();
    let away = Instant::now();
    let (ended, said) = locked.end();
    assert_eq!(ended.code(), Some(70), "{said}");
    assert!(said.contains("no renewal succeeded"), "{said}");
    // No renewal was answered after the server was gone.
    assert!(
        away.elapsed() < ttl + Duration::from_secs(1),
        "{:?}",
        away.elapsed()
    );
    until(|| !lives(&shell));
}

/// Somebody else may have the lock by then.
#[test]
fn a_command_whose_lock_went_while_fermata_was_suspended_is_killed_at_once() {
    let world = World::new();
    let script = "trap '' TERM; echo $$; while :; do sleep 1; done";
    let flags = ["lock", "--ttl", "1s", "--grace", "60s", "k"];
    let command = ["--", "sh", "-c", script];
    let mut locked = world.start(&[&flags[..], &command].concat());
    let job = locked.line();
    locked.signal(Signal::SIGSTOP);
    world.text(&["lock", "k", "--", "true"]);
    assert!(lives(&job));
    locked.signal(Signal::SIGCONT);
    let (ended, said) = locked.end();
    assert_eq!(ended.code(), Some(70), "{said}");
    assert!(said.contains("SIGKILL at once"), "{said}");
    assert!(!lives(&job));
}
