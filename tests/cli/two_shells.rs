//! Two people at two terminals.

use super::terminal::Terminal;
use super::world::World;

/// Takes the lock and keeps it until Enter is typed.
const HOLD: &str = "fermata lock k --owner first -- sh -c 'printf \"%s-in\\n\" first; read enter'";

#[test]
fn the_waiting_one_sees_its_entry_and_gets_the_lock_after_the_other() {
    let world = World::new();
    let (mut first, mut second) = (Terminal::new(&world), Terminal::new(&world));
    first.line(HOLD);
    first.shows("first-in");

    second.line("fermata lock k -- printf '%s-in\\n' second; echo \"status=$?\"");
    second.shows("waiting for k: 0 s, 1 ahead in the queue, held by first");
    assert_eq!(world.queue("k"), (1, 1));

    first.line("");
    let screen = second.shows("status=0");
    assert!(screen.contains("second-in"), "{screen}");
    world.await_queue("k", (0, 0));
}

#[test]
fn the_entry_is_told_as_the_queue_moves() {
    let world = World::new();
    let mut first = Terminal::new(&world);
    first.line(HOLD);
    first.shows("first-in");
    let between = world.start(&["lock", "k", "--", "sleep", "60"]);
    world.await_queue("k", (1, 1));

    let mut last = Terminal::new(&world);
    last.line("fermata lock k -- true");
    last.shows("2 ahead in the queue");
    between.signal(nix::sys::signal::Signal::SIGTERM);
    last.shows("1 ahead in the queue");
    let (ended, said) = between.end();
    assert_eq!(ended.code(), Some(143), "{said}");
}

#[test]
fn ctrl_c_while_waiting_releases_the_entry_at_once() {
    let world = World::new();
    let (mut first, mut second) = (Terminal::new(&world), Terminal::new(&world));
    first.line(HOLD);
    first.shows("first-in");
    second.line("fermata lock k -- echo never; echo \"status=$?\"");
    second.shows("1 ahead in the queue");

    second.ctrl_c();
    let screen = second.shows("status=130");
    assert!(screen.contains("is released"), "{screen}");
    // Before the command ended, not some time after.
    assert_eq!(world.queue("k"), (1, 0));
}

#[test]
fn ctrl_c_reaches_the_command_once_and_the_lock_is_released() {
    let world = World::new();
    let mut terminal = Terminal::new(&world);
    terminal.line(
        "fermata lock k -- sh -c 'trap \"echo in\"\"terrupted\" INT; echo re\"\"ady; \
         while ! read enter; do :; done'; echo \"status=$?\"",
    );
    terminal.shows("ready");
    terminal.ctrl_c();
    terminal.shows("interrupted");
    terminal.line("");
    let screen = terminal.shows("status=0");
    assert_eq!(screen.matches("interrupted").count(), 1, "{screen}");
    world.await_queue("k", (0, 0));
}
