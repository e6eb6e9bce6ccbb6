//! `fermata agent`: programs call it without TLS and without a token, and their locks end with them.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fermata_client::{Client, ClientOptions, Dialer, LockRequest, Token};
use fermata_proto::WatchLockRequest;
use fermata_proto::lock_service_client::LockServiceClient;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tonic::Code;

use super::certificates::Authority;
use super::process::Ends;
use super::secured::{EVERYTHING, Files, PATIENCE, Server, replace, token, until};

const GRACE: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(4);

/// A server with TLS and tokens, and what an agent of it needs.
struct World {
    server: Server,
    authority: Authority,
    agent: Ends,
}

impl World {
    async fn new() -> World {
        let authority = Authority::named("ours");
        let ours = token("agent");
        let server = Server::start(Files::new(&authority, &[&ours], EVERYTHING));
        fs::write(server.files.path("agent-token"), &ours.token).unwrap();
        let agent = start(&server, &authority, &[]);
        let world = World {
            server,
            authority,
            agent,
        };
        world.answers().await;
        world
    }

    fn socket(&self) -> String {
        format!("unix:{}", self.server.files.path("agent.sock").display())
    }

    /// Of a program beside the agent.
    fn client(&self) -> Client {
        Client::connect([self.socket()]).unwrap()
    }

    async fn answers(&self) {
        let client = self.client();
        client.list_tables().await.unwrap();
    }

    /// A program that holds the key until it is ended, once it does.
    fn holder(&self, lifetime: &[&str]) -> Ends {
        let mut holder = Command::new(env!("CARGO_BIN_EXE_fermata"))
            .args(["lock", "k"])
            .args(lifetime)
            .args(["--", "sh", "-c", "echo held; exec cat"])
            .env("FERMATA_ENDPOINT", self.socket())
            // Open until the test ends, and then the command ends as well.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let stdout = holder.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut said).unwrap();
        assert_eq!(said, "held\n");
        Ends(holder)
    }

    /// How long another program waits for the key.
    async fn next_one(&self) -> Duration {
        let begun = Instant::now();
        let wait = LockRequest::new("k").wait(PATIENCE);
        let guard = self.client().lock(wait).await.unwrap();
        let waited = begun.elapsed();
        guard.release().await.unwrap();
        waited
    }
}

fn start(server: &Server, authority: &Authority, more: &[&str]) -> Ends {
    let path = |name: &str| server.files.path(name).to_str().unwrap().to_owned();
    let log = fs::File::create(path("agent-log")).unwrap();
    let agent = Command::new(env!("CARGO_BIN_EXE_fermata"))
        .arg("agent")
        .args(["--listen", &format!("unix:{}", path("agent.sock"))])
        .args(["--endpoint", &server.endpoint])
        .args(["--token-file", &path("agent-token")])
        .arg("--ca")
        .arg(authority.file())
        .args(more)
        .stderr(log)
        .spawn()
        .unwrap();
    Ends(agent)
}

fn signal(of: &Ends, signal: Signal) {
    let pid = i32::try_from(of.0.id()).unwrap();
    kill(Pid::from_raw(pid), signal).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_of_a_program_that_was_killed_is_free_after_its_grace() {
    let world = World::new().await;
    let holder = world.holder(&["--ttl", "60s", "--disconnect-grace", "1s"]);
    signal(&holder, Signal::SIGKILL);
    let waited = world.next_one().await;
    assert!(waited >= GRACE / 2 && waited < PATIENCE / 2, "{waited:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_of_a_program_that_was_stopped_is_free_after_its_ttl() {
    let world = World::new().await;
    let mut holder = world.holder(&["--ttl", "4s"]);
    signal(&holder, Signal::SIGSTOP);
    let waited = world.next_one().await;
    assert!(waited >= TTL / 4 && waited < PATIENCE / 2, "{waited:?}");
    signal(&holder, Signal::SIGCONT);
    // Lost.
    let ended = tokio::task::block_in_place(|| holder.0.wait().unwrap());
    assert_eq!(ended.code(), Some(70));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_outlives_an_agent_that_was_killed_and_started_again() {
    let mut world = World::new().await;
    let mut holder = world.holder(&["--ttl", "30s"]);
    signal(&world.agent, Signal::SIGKILL);
    world.agent.0.wait().unwrap();
    world.agent = start(&world.server, &world.authority, &[]);
    world.answers().await;
    let taken = world.client().try_lock("k").await.unwrap();
    assert!(taken.is_none(), "the key has two holders");
    // The release goes through the new one.
    signal(&holder, Signal::SIGTERM);
    tokio::task::block_in_place(|| holder.0.wait().unwrap());
    let waited = world.next_one().await;
    assert!(waited < PATIENCE / 2, "{waited:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_replaced_under_a_holder() {
    let world = World::new().await;
    let mut holder = world.holder(&["--ttl", "4s"]);
    let second = token("agent");
    replace(&world.server.files.path("tokens"), &second.line);
    replace(&world.server.files.path("agent-token"), &second.token);
    world.server.signal(Signal::SIGHUP);
    let begun = Instant::now();
    while begun.elapsed() < 2 * TTL {
        let taken = world.client().try_lock("k").await.unwrap();
        assert!(taken.is_none(), "the holder lost the key");
        tokio::time::sleep(TTL / 8).await;
    }
    assert!(holder.0.try_wait().unwrap().is_none());
    // The first token is of no use any more.
    assert!(world.server.log().contains("tokens"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_service_knows_the_agent_and_no_token_of_a_program() {
    let world = World::new().await;
    let client = Client::connect_with(
        [world.socket()],
        ClientOptions {
            token: Some(Token::from_text("of-the-program").unwrap()),
            ..ClientOptions::default()
        },
    );
    let client = client.unwrap();
    let guard = client.lock("k").await.unwrap();
    let shown = client.describe_lock("", "k", 1).await.unwrap();
    assert_eq!(shown.holders[0].identity, "agent");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_of_another_user_is_refused() {
    let mut world = World::new().await;
    signal(&world.agent, Signal::SIGTERM);
    let stopped = tokio::task::block_in_place(|| world.agent.0.wait().unwrap());
    assert_eq!(stopped.code(), Some(0));
    assert!(!PathBuf::from(world.socket().trim_start_matches("unix:")).exists());
    world.agent = start(&world.server, &world.authority, &["--allow-user", "12345"]);
    let log = world.server.files.path("agent-log");
    until("the agent listens", || {
        fs::read_to_string(&log)
            .unwrap()
            .contains("passing calls on")
    })
    .await;
    let refused = world.client().list_tables().await.unwrap_err().to_string();
    assert!(refused.contains("does not admit user"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_whose_replica_is_killed_ends_as_without_an_agent() {
    let world = World::new().await;
    let guard = world.client().lock("k").await.unwrap();
    let dialer = Dialer::new(&world.socket(), &ClientOptions::default()).unwrap();
    let mut watcher = LockServiceClient::new(dialer.connect().await.unwrap());
    let watch = WatchLockRequest {
        lock_ref: guard.lock_ref(),
    };
    let mut watch = watcher.watch_lock(watch).await.unwrap().into_inner();
    watch.message().await.unwrap().unwrap();
    world.server.signal(Signal::SIGKILL);
    let ended = loop {
        match watch.message().await {
            Ok(message) => assert!(message.is_some(), "it ended well"),
            Err(status) => break status,
        }
    };
    assert_eq!(ended.code(), Code::Unavailable, "{ended}");
    assert!(ended.message().contains(&world.server.endpoint), "{ended}");
}

#[test]
fn an_agent_needs_an_endpoint_that_is_not_its_own() {
    let says = |more: &[&str], what: &str| {
        let refused = Command::new(env!("CARGO_BIN_EXE_fermata"))
            .args(["agent", "--listen", "127.0.0.1:7450"])
            .args(more)
            .env_remove("FERMATA_ENDPOINT")
            .output()
            .unwrap();
        assert_eq!(refused.status.code(), Some(64));
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(said.contains(what), "{said}");
    };
    says(&[], "name the replicas");
    says(
        &["--endpoint", "http://127.0.0.1:7450"],
        "would call itself",
    );
}

#[test]
fn an_agent_does_not_listen_where_other_machines_reach_it() {
    let refused = Command::new(env!("CARGO_BIN_EXE_fermata"))
        .args(["agent", "--listen", "0.0.0.0:0"])
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(64));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("other machines"), "{said}");
}
