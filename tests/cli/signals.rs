//! Signals to `fermata lock` itself.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::world::{World, lives, until};

pub fn send(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).unwrap();
}

#[test]
fn a_signal_is_passed_on_and_the_lock_is_released_after_the_command() {
    let world = World::new();
    for (signal, name) in [
        (Signal::SIGTERM, "TERM"),
        (Signal::SIGHUP, "HUP"),
        (Signal::SIGUSR1, "USR1"),
        (Signal::SIGUSR2, "USR2"),
    ] {
        let script =
            format!("trap 'echo got; exit 5' {name}; echo in; while :; do sleep 0.01; done");
        let mut locked = world.start(&["lock", "k", "--", "sh", "-c", &script]);
        assert_eq!(locked.line(), "in");
        locked.signal(signal);
        assert_eq!(locked.line(), "got", "{name}");
        let (ended, said) = locked.end();
        assert_eq!(ended.code(), Some(5), "{name}: {said}");
        assert_eq!(world.queue("k"), (0, 0));
    }
}

#[test]
fn a_signal_that_ends_the_command_ends_all_that_it_started_before_the_lock_is_released() {
    let world = World::new();
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGUSR1] {
        // SIGTERM does not end what the shell runs in the foreground.
        let script = "(trap '' TERM; echo $$; exec sh -c 'echo $$; exec sleep 600'); echo next";
        let mut locked = world.start(&["lock", "--grace", "1s", "k", "-c", script]);
        let (_, below) = (locked.line(), locked.line());
        locked.signal(signal);
        // Nobody has it before that has ended.
        world.text(&["lock", "k", "--", "true"]);
        assert!(!lives(&below), "{signal}");
        let (ended, said) = locked.end();
        assert_eq!(ended.code(), Some(128 + signal as i32), "{said}");
        assert!(said.contains("SIGKILL in 1s"), "{signal}: {said}");
    }
}

#[test]
fn a_command_that_exits_after_sigterm_leaves_nothing_in_the_background() {
    let world = World::new();
    let script = "trap 'exit 3' TERM; sleep 600 & echo $!; while :; do sleep 0.01; done";
    let mut locked = world.start(&["lock", "k", "-c", script]);
    let background = locked.line();
    locked.signal(Signal::SIGTERM);
    let (ended, said) = locked.end();
    assert_eq!(ended.code(), Some(3), "{said}");
    assert!(!lives(&background));
}

#[test]
fn a_signal_while_waiting_releases_the_entry() {
    let world = World::new();
    let holder = world.hold("k");
    let waiter = world.start(&["lock", "k", "--", "true"]);
    world.await_queue("k", (1, 1));
    waiter.stop();
    assert_eq!(world.queue("k"), (1, 0));
    holder.stop();
}

#[test]
fn a_release_that_is_not_answered_ends_soon_after_the_signal() {
    let mut world = World::new();
    let mut held = world.start(&["lock", "--timeout", "20s", "k"]);
    held.line();
    world.stop_server();
    // As `timeout` sends it: once to its child, and once to the group of that.
    held.signal(Signal::SIGTERM);
    held.signal(Signal::SIGTERM);
    let (ended, said) = held.end();
    assert_eq!(ended.code(), Some(143), "{said}");
    let left = "the lock on k could not be released, and ends 1m after its last renewal: SIGTERM came before";
    assert!(said.contains(left), "{said}");
}

#[test]
fn a_signal_while_the_entry_is_taken_says_what_was_left() {
    let mut world = World::new();
    world.stop_server();
    let joining = world.start(&["lock", "k", "--", "true"]);
    until(|| hears(joining.pid(), Signal::SIGTERM));
    joining.signal(Signal::SIGTERM);
    let (ended, said) = joining.end();
    assert_eq!(ended.code(), Some(143), "{said}");
    let joining = "SIGTERM while joining the queue of k; no server answered: ";
    assert!(said.contains(joining), "{said}");
}

/// Whether a process has a handler of its own for a signal.
fn hears(pid: i32, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| (mask >> (signal as i32 - 1)) & 1 == 1)
}

#[test]
fn what_a_command_was_started_to_ignore_stays_ignored_there_and_below() {
    let world = World::new();
    // As `nohup` does it, and scripts that are not to be interrupted.
    let script = "trap '' INT HUP; exec fermata lock k -- \
                  sh -c 'kill -INT $$; kill -HUP $$; echo in; read line; echo out'";
    let mut locked = world.start_shell(script);
    assert_eq!(locked.line(), "in");
    for signal in [Signal::SIGINT, Signal::SIGHUP] {
        locked.signal(signal);
    }
    locked.say("go on");
    assert_eq!(locked.line(), "out");
    let (ended, said) = locked.end();
    assert!(ended.success(), "{said}");
}
