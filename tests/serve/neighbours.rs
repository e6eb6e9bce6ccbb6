//! Others on the same machine, with the real program: who they are, and what is left to one whatever the others do.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;

use super::frames::{ACK, PING, frame, hello};
use super::process::{Ends, Serve};
use super::secured::until;

const FERMATA: &str = env!("CARGO_BIN_EXE_fermata");

/// A user that nobody is, and its group.
const USER: u32 = 1234;

/// Runs this as `USER`, who has no other group than its own.
fn as_user(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={USER}"));
    command.arg(format!("--regid={USER}"));
    command.arg("--clear-groups").arg(program);
    // The one that the tests run in may be of root alone.
    command.current_dir("/");
    command
}

#[test]
fn a_socket_says_who_is_at_its_other_end() {
    if !nix::unistd::geteuid().is_root() {
        let required = std::env::var("FERMATA_REQUIRE_ROOT").is_ok_and(|value| value == "1");
        let why = "only root can run a command as somebody else";
        assert!(!required, "FERMATA_REQUIRE_ROOT=1, and {why}");
        // Past libtest, which hides what passing tests print.
        writeln!(std::io::stderr(), "SKIPPED: {why}").unwrap();
        return;
    }
    let directory = TempDir::new().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = |name: &str| directory.path().join(name);
    // By a process of its own: a file that this one has open for writing cannot be run.
    let copied = Command::new("install")
        .args(["-m", "755", FERMATA])
        .arg(path("fermata"))
        .status();
    assert!(copied.unwrap().success());
    // Nobody is known by a token, but users by their number.
    fs::write(path("tokens"), "").unwrap();
    let socket = format!("unix:{}", path("socket").display());
    let serving = Command::new(FERMATA)
        .args(["serve", "--listen", &socket, "--data-dir"])
        .arg(path("data"))
        .arg("--tokens-file")
        .arg(path("tokens"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut serving = Ends(serving.unwrap());
    let said = BufReader::new(serving.0.stdout.take().unwrap());
    let mut said = said.lines().map(Result::unwrap);
    assert_eq!(said.next(), Some(format!("listening on {socket}")));

    // It is for its owner and its group.
    let get = ["--endpoint", &socket, "get", "k", "--timeout", "300ms"];
    let refused = as_user(&path("fermata")).args(get).output().unwrap();
    assert_eq!(refused.status.code(), Some(69), "{refused:?}");
    chown(path("socket"), None, Some(USER)).unwrap();

    let script = "echo held; exec cat";
    let mut held = as_user(&path("fermata"))
        .args(["--endpoint", &socket, "lock", "k", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut from_within = BufReader::new(held.stdout.take().unwrap());
    from_within.read_line(&mut said).unwrap();
    assert_eq!(said, "held\n");
    let shown = Command::new(FERMATA)
        .args(["--endpoint", &socket, "locks", "show", "k"])
        .args(["--output", "json"])
        .output()
        .unwrap();
    // What it runs ends with its stdin.
    drop(held.stdin.take());
    assert!(held.wait().unwrap().success());
    let lock: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    let holder = &lock["holders"][0];
    assert_eq!(holder["identity"], format!("unix:{USER}"), "{lock}");
}

/// So many connections may be open, nine tenths of them of one address.
const CONNECTIONS_MAX: u64 = 40;
const OF_ONE_ADDRESS: usize = 36;

/// Takes a frame, and answers it where it asks whether somebody is there. `None`: the connection has ended.
async fn frame_came(io: &mut TcpStream) -> Option<()> {
    let mut head = [0; 9];
    io.read_exact(&mut head).await.ok()?;
    let [a, b, c, kind, flags, ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    io.read_exact(&mut payload).await.ok()?;
    if kind == PING && flags & ACK == 0 {
        io.write_all(&frame(PING, ACK, 0, &payload)).await.ok()?;
    }
    Some(())
}

/// A connection from this address that makes no call; it finishes once the server has ended it. `None`: it was refused.
async fn idle(from: [u8; 4], port: u16) -> Option<JoinHandle<()>> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    let server = ([127, 0, 0, 1], port).into();
    let mut io = socket.connect(server).await.unwrap();
    io.write_all(&hello()).await.ok()?;
    // One that is admitted is told the settings of the server.
    frame_came(&mut io).await?;
    Some(tokio::spawn(async move {
        while frame_came(&mut io).await.is_some() {}
    }))
}

fn open(connections: &[JoinHandle<()>]) -> usize {
    let open = connections.iter().filter(|idle| !idle.is_finished());
    open.count()
}

/// A command from 127.0.0.1.
fn put(server: &Serve, value: &str) {
    let put = Command::new(FERMATA)
        .args(["--endpoint", &server.endpoint()])
        .args(["put", "k", value, "--timeout", "5s"])
        .output()
        .unwrap();
    assert!(put.status.success(), "{value}: {put:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_of_one_address_leave_room_for_another() {
    let server = Serve::with(&[("LIMITS__CONNECTIONS_MAX", CONNECTIONS_MAX)]);
    let mut greedy = Vec::new();
    for _ in 0..100 {
        greedy.extend(idle([127, 0, 0, 2], server.port).await);
    }
    assert!(greedy.len() >= OF_ONE_ADDRESS, "{} admitted", greedy.len());
    // The last tenth is for others.
    put(&server, "while it has its share");
    until("it has no more than its share", || {
        open(&greedy) <= OF_ONE_ADDRESS
    })
    .await;
    assert!(open(&greedy) > 0);
}
