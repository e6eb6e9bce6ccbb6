//! A stdout or stderr that takes nothing, as a terminal after Ctrl-S, or is not there: locks are taken, commands started, and
//! signals heard all the same.

use std::fs;
use std::io::{PipeReader, PipeWriter, Write as _};
use std::process::{Child, Command};

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::signals::send;
use super::terminal::Terminal;
use super::world::{Started, World, is_writing_to, lives, until};

/// A pipe that takes nothing, for as long as its end that is read is kept.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (unread, mut full) = std::io::pipe().unwrap();
    let takes = fcntl(&full, FcntlArg::F_GETPIPE_SZ).unwrap();
    full.write_all(&vec![b'.'; usize::try_from(takes).unwrap()])
        .unwrap();
    (unread, full)
}

/// Holds the lock on `k`.
fn holder(world: &World) -> Started {
    let mut holder = world.start(&["lock", "k", "--", "sh", "-c", "echo in; exec sleep 600"]);
    assert_eq!(holder.line(), "in");
    holder
}

/// Ends what [`holder`] started.
fn end(holder: Started) {
    send(holder.pid(), Signal::SIGTERM);
    assert_eq!(holder.end().0.code(), Some(143));
}

/// A command of the test, that has an end though it hangs.
struct Unread(Child);

impl Unread {
    fn start(command: &mut Command) -> Unread {
        Unread(command.spawn().unwrap())
    }

    fn pid(&self) -> i32 {
        self.0.id().try_into().unwrap()
    }

    fn status(&mut self) -> Option<i32> {
        let mut ended = None;
        until(|| {
            ended = self.0.try_wait().unwrap();
            ended.is_some()
        });
        ended.unwrap().code()
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The words of a script that leaves a file once it runs, and the folder of that.
fn leaves_a_file() -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "cd '{}'; : >started; exec sleep 600",
        folder.path().display()
    );
    (folder, script)
}

#[test]
fn a_command_starts_once_its_lock_is_granted_though_nobody_takes_what_is_said_of_the_wait() {
    let world = World::new();
    let holder = holder(&world);
    let (folder, script) = leaves_a_file();
    let (unread, full) = full_pipe();
    let mut locked = Unread::start(
        world
            .command(&["lock", "k", "--", "sh", "-c", &script])
            .stderr(full),
    );
    until(|| is_writing_to(locked.pid(), 2));
    assert_eq!(world.queue("k"), (1, 1));
    end(holder);
    until(|| folder.path().join("started").exists());
    assert_eq!(world.queue("k"), (1, 0));
    send(locked.pid(), Signal::SIGTERM);
    assert_eq!(locked.status(), Some(143));
    assert_eq!(world.queue("k"), (0, 0));
    drop(unread);
}

#[test]
fn a_command_starts_once_its_lock_is_granted_though_its_terminal_was_stopped() {
    let world = World::new();
    let holder = holder(&world);
    let mut terminal = Terminal::new(&world);
    let (folder, script) = leaves_a_file();
    let file = folder.path().join("script");
    fs::write(&file, script).unwrap();
    let locked = "echo $$ >pid; exec fermata lock k -- sh \"$1\"";
    terminal.line(&format!("sh -c '{locked}' sh '{}'", file.display()));
    terminal.shows("1 ahead in the queue");
    let pid = terminal.pid_in("pid");
    // Ctrl-S.
    terminal.keys("\u{13}");
    until(|| is_writing_to(pid, 2));
    end(holder);
    until(|| folder.path().join("started").exists());
    assert_eq!(world.queue("k"), (1, 0));
    send(pid, Signal::SIGTERM);
    until(|| !lives(&pid.to_string()));
    assert_eq!(world.queue("k"), (0, 0));
}

#[test]
fn a_signal_ends_a_wait_though_nobody_takes_what_is_said_of_it() {
    let world = World::new();
    let holder = holder(&world);
    for waits in [
        &["lock", "k", "--", "true"][..],
        &["lock", "k"],
        &["put", "k", "v"],
        &["delete", "k"],
    ] {
        let (unread, full) = full_pipe();
        let mut waiting = Unread::start(world.command(waits).stderr(full));
        until(|| is_writing_to(waiting.pid(), 2));
        assert_eq!(world.queue("k"), (1, 1), "{waits:?}");
        send(waiting.pid(), Signal::SIGTERM);
        assert_eq!(waiting.status(), Some(143), "{waits:?}");
        assert_eq!(world.queue("k"), (1, 0), "{waits:?}");
        drop(unread);
    }
    // Nor is it waited for without end that somebody reads why there was no wait.
    let (unread, full) = full_pipe();
    let tries = ["lock", "--try", "k", "--", "true"];
    let mut refused = Unread::start(world.command(&tries).stderr(full));
    assert_eq!(refused.status(), Some(75));
    drop(unread);
    end(holder);
}

#[test]
fn a_signal_ends_a_try_to_reach_a_server_though_nobody_takes_what_is_said_of_it() {
    let mut world = World::new();
    world.kill_server();
    let (unread, full) = full_pipe();
    let tries = ["lock", "--timeout", "1h", "k", "--", "true"];
    let mut joining = Unread::start(world.command(&tries).stderr(full));
    until(|| is_writing_to(joining.pid(), 2));
    send(joining.pid(), Signal::SIGTERM);
    assert_eq!(joining.status(), Some(143));
    drop(unread);
}

#[test]
fn a_signal_ends_a_lock_without_a_command_though_nobody_takes_its_lock_ref() {
    let world = World::new();
    for format in ["text", "json"] {
        let (unread, full) = full_pipe();
        let held = ["lock", "k", "--output", format];
        let mut held = Unread::start(world.command(&held).stdout(full));
        until(|| is_writing_to(held.pid(), 1));
        assert_eq!(world.queue("k"), (1, 0), "{format}");
        send(held.pid(), Signal::SIGTERM);
        assert_eq!(held.status(), Some(143), "{format}");
        assert_eq!(world.queue("k"), (0, 0), "{format}");
        drop(unread);
    }
}

#[test]
fn a_lock_without_a_command_and_without_a_stdout_is_not_taken() {
    let world = World::new();
    let (ended, said) = world.start_shell("exec fermata lock k >&-").end();
    assert_eq!(ended.code(), Some(74), "{said}");
    assert!(said.contains("stdout is closed"), "{said}");
    assert_eq!(world.queue("k"), (0, 0));
    // A command needs none, and what goes to /dev/null is not closed, however it was opened.
    let (ended, said) = world.start_shell("exec fermata lock k -- true >&-").end();
    assert!(ended.success(), "{said}");
    for to_null in [">/dev/null", "1<>/dev/null"] {
        let held = world.start_shell(&format!("exec fermata lock k {to_null}"));
        world.await_queue("k", (1, 0));
        send(held.pid(), Signal::SIGTERM);
        let (ended, said) = held.end();
        assert_eq!(ended.code(), Some(143), "{to_null}: {said}");
        assert_eq!(world.queue("k"), (0, 0));
    }
}

#[test]
fn what_cannot_be_printed_since_stdout_is_closed_is_said() {
    let world = World::new();
    let fermata = |words: &str| world.start_shell(&format!("exec fermata {words}")).end();
    let (ended, said) = fermata("put k v >&-");
    assert!(ended.success(), "it prints nothing: {said}");
    for words in [
        "get k",
        "get k --output json",
        "locks ls",
        "sessions",
        "health",
        "check",
        "check --output json",
        "explain",
        "completions bash",
        "--help",
        "--version",
    ] {
        let (ended, said) = fermata(&format!("{words} >&-"));
        assert_eq!(ended.code(), Some(74), "{words}: {said}");
        assert!(said.contains("stdout is closed"), "{words}: {said}");
        let (ended, said) = fermata(&format!("{words} >/dev/null"));
        assert!(ended.success(), "{words}: {said}");
    }
}

#[test]
fn a_signal_ends_a_backup_whose_counts_nobody_takes() {
    let world = World::new();
    world.text(&["put", "k", "v"]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("backup");
    let (unread, full) = full_pipe();
    let make = ["backup", file.to_str().unwrap()];
    let mut made = Unread::start(world.command(&make).stdout(full));
    until(|| is_writing_to(made.pid(), 1));
    assert!(file.exists());
    send(made.pid(), Signal::SIGTERM);
    assert_eq!(made.status(), Some(143));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    drop(unread);
}
