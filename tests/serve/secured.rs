//! Encrypted connections and known clients, with the real program: what files say is replaced while it serves.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fermata::access::NewToken;
use fermata_client::{
    CallError, CallMetadata, Client, ClientOptions, Dialer, LockRequest, Tls, Token,
};
use fermata_proto::lock_service_client::LockServiceClient;
use fermata_proto::{LockState, WatchLockRequest, WatchLockResponse};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::time::sleep;
use tonic::{Request, Status, Streaming};
use uuid::Uuid;

use super::certificates::Authority;

pub const PATIENCE: Duration = Duration::from_secs(20);
/// For how long files are replaced under load, in seconds: each second, and where that is long each 10 s.
const ROTATION: &str = "FERMATA_ROTATION_SECONDS";

pub fn token(name: &str) -> NewToken {
    let halves = [Uuid::new_v4(), Uuid::new_v4()].map(Uuid::into_bytes);
    NewToken::new(name, halves.concat().try_into().unwrap()).unwrap()
}

/// As a careful operator does it, or Kubernetes: never half a file.
pub fn replace(path: &Path, text: impl AsRef<[u8]>) {
    let beside = path.with_extension("new");
    fs::write(&beside, text).unwrap();
    fs::rename(beside, path).unwrap();
}

/// Until this is so.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "not in time: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// A directory with the files of a server and of its clients.
pub struct Files {
    directory: TempDir,
}

impl Files {
    pub fn new(authority: &Authority, tokens: &[&NewToken], rules: &str) -> Files {
        let files = Files {
            directory: TempDir::new().unwrap(),
        };
        files.certify(authority);
        replace(&files.path("config"), "[log]\nfilter = \"info\"\n");
        files.trust(authority);
        files.know(tokens, rules);
        files
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A new certificate for the server.
    fn certify(&self, authority: &Authority) {
        let issued = authority.issue("server", Some("127.0.0.1"));
        // One after the other, so that there is a moment in which they do not go together.
        replace(
            &self.path("cert"),
            fs::read(issued.certificate_file).unwrap(),
        );
        replace(&self.path("key"), fs::read(issued.key_file).unwrap());
    }

    /// Clients are known by what this one signed, and by nothing else.
    pub fn trust(&self, authority: &Authority) {
        let trusted = fs::read(authority.file()).unwrap();
        replace(&self.path("client-ca"), trusted);
    }

    fn know(&self, tokens: &[&NewToken], rules: &str) {
        let lines: Vec<&str> = tokens.iter().map(|token| token.line.as_str()).collect();
        replace(&self.path("tokens"), lines.join("\n"));
        replace(&self.path("rules"), rules);
    }
}

pub struct Server {
    child: Child,
    pub files: Files,
    pub endpoint: String,
}

impl Server {
    pub fn start(files: Files) -> Server {
        let path = |name: &str| files.path(name).to_str().unwrap().to_owned();
        let log = File::create(files.path("log")).unwrap();
        // Whoever runs the tests may ignore hangups, and so would this.
        let mut child = Command::new("env")
            .args(["--default-signal", env!("CARGO_BIN_EXE_fermata"), "serve"])
            .args(["--listen", &format!("127.0.0.1:0,unix:{}", path("socket"))])
            .args(["--data-dir", &path("data")])
            .args(["--config", &path("config")])
            .args(["--client-tls-certificate", &path("cert")])
            .args(["--client-tls-key", &path("key")])
            .args(["--client-tls-ca", &path("client-ca")])
            .args(["--tokens-file", &path("tokens")])
            .args(["--rules-file", &path("rules")])
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        let address = first.strip_prefix("listening on ").unwrap().to_owned();
        let second = lines.next().unwrap().unwrap();
        assert_eq!(second, format!("listening on unix:{}", path("socket")));
        std::thread::spawn(move || lines.for_each(drop));
        let endpoint = format!("https://{address}");
        Server {
            child,
            files,
            endpoint,
        }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.files.path("log")).unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }

    fn client(&self, options: ClientOptions) -> Client {
        Client::connect_with([&self.endpoint], options).unwrap()
    }

    /// Watches a lock over one connection, which is not made again: the stream ends with it.
    pub async fn watch(
        &self,
        options: &ClientOptions,
        lock_ref: String,
    ) -> Result<Streaming<WatchLockResponse>, Status> {
        let dialer = Dialer::new(&self.endpoint, options).unwrap();
        let mut watcher = LockServiceClient::new(dialer.connect().await.unwrap());
        let metadata = CallMetadata {
            token: options.token.clone(),
            ..CallMetadata::default()
        };
        let mut ask = Request::new(WatchLockRequest { lock_ref });
        metadata.put_on(&mut ask);
        Ok(watcher.watch_lock(ask).await?.into_inner())
    }

    /// Whether a client that trusts these alone gets through.
    pub async fn is_reached_by(&self, ca: &Path, token: &NewToken) -> bool {
        let client = self.client(ClientOptions {
            tls: Some(Tls::from_files(ca, None).unwrap()),
            token: Some(Token::from_text(&token.token).unwrap()),
            timeout: Duration::from_millis(1_500),
            ..ClientOptions::default()
        });
        client.list_tables().await.is_ok()
    }

    /// Whether a rule lets the one with this token read.
    async fn may_read(&self, ca: &Path, token: &NewToken) -> bool {
        let client = self.client(ClientOptions {
            token: Some(Token::from_text(&token.token).unwrap()),
            ..trusting(ca)
        });
        match client.get("default", "held").await {
            Ok(_) => true,
            Err(CallError::Denied(_)) => false,
            Err(error) => panic!("{error}: {}", self.log()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn trusting(ca: &Path) -> ClientOptions {
    ClientOptions {
        tls: Some(Tls::from_files(ca, None).unwrap()),
        ..ClientOptions::default()
    }
}

pub const EVERYTHING: &str = r#"
[[rule]]
who = ["*"]
table = "*"
allow = ["lock", "read", "write", "admin"]
"#;

const BILLING: &str = r#"
[[rule]]
who = ["billing"]
table = "*"
allow = ["lock", "read", "write"]
"#;

const AUDITOR: &str = r#"
[[rule]]
who = ["auditor"]
table = "*"
allow = ["read"]
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_are_known_by_token_certificate_or_socket() {
    let (authority, stranger) = (Authority::named("ours"), Authority::named("another"));
    let billing = token("billing");
    let server = Server::start(Files::new(&authority, &[&billing], EVERYTHING));
    let identity_of = async |client: &Client| {
        let guard = client.lock(LockRequest::new("k")).await.unwrap();
        let shown = client.describe_lock("", "k", 1).await.unwrap();
        guard.release().await.unwrap();
        shown.holders[0].identity.clone()
    };
    let by_token = server.client(ClientOptions {
        token: Some(Token::from_text(&billing.token).unwrap()),
        ..trusting(&authority.file())
    });
    assert_eq!(identity_of(&by_token).await, "billing");
    let own = authority.issue("worker", None);
    let tls = Tls::from_files(authority.file(), Some((own.certificate_file, own.key_file)));
    let by_certificate = server.client(ClientOptions {
        tls: Some(tls.unwrap()),
        ..ClientOptions::default()
    });
    assert_eq!(identity_of(&by_certificate).await, "CN=worker");
    let socket = format!("unix:{}", server.files.path("socket").display());
    let by_socket = Client::connect([&socket]).unwrap();
    assert_eq!(
        identity_of(&by_socket).await,
        format!("unix:{}", nix::unistd::getuid())
    );

    // Another server than the client means.
    let misled = server.client(ClientOptions {
        timeout: Duration::from_secs(2),
        ..trusting(&stranger.file())
    });
    let refused = misled.list_tables().await.unwrap_err().to_string();
    assert!(
        refused.contains("not signed by the configured CA"),
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_outlives_the_certificates_that_it_was_made_with() {
    let (first, second) = (Authority::named("first"), Authority::named("second"));
    let billing = token("billing");
    let server = Server::start(Files::new(&first, &[&billing], EVERYTHING));
    let options = ClientOptions {
        token: Some(Token::from_text(&billing.token).unwrap()),
        ..trusting(&first.file())
    };
    let client = server.client(options.clone());
    let guard = client.lock(LockRequest::new("k")).await.unwrap();
    let mut watch = server.watch(&options, guard.lock_ref()).await.unwrap();
    let held = watch.message().await.unwrap().unwrap();
    assert_eq!(held.state(), LockState::Held);
    for authority in [&second, &first, &second] {
        server.files.certify(authority);
        let waited = Instant::now();
        while !server.is_reached_by(&authority.file(), &billing).await {
            assert!(waited.elapsed() < PATIENCE, "{}", server.log());
        }
    }
    guard.release().await.unwrap();
    loop {
        let message = watch.message().await.unwrap().unwrap();
        if message.state() == LockState::Lost {
            break;
        }
    }
}

/// Sections of one worker, on a counter of its own key.
async fn sections(client: Client, key: String, ends: Arc<AtomicBool>, made: Arc<AtomicU64>) -> u64 {
    let mut count = 0;
    while !ends.load(Ordering::Relaxed) {
        let guard = client.lock(LockRequest::new(&key)).await.unwrap();
        let value = guard.get().await.unwrap();
        let before = value.map_or(0, |value| {
            String::from_utf8_lossy(&value).parse::<u64>().unwrap()
        });
        assert_eq!(before, count);
        count += 1;
        guard.put(count.to_string()).await.unwrap();
        guard.release().await.unwrap();
        made.fetch_add(1, Ordering::Relaxed);
    }
    count
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_replaced_under_load_and_no_lock_is_lost() {
    let seconds = std::env::var(ROTATION).map_or(8, |seconds| seconds.parse().unwrap());
    let every = Duration::from_secs(if seconds > 30 { 10 } else { 1 });
    let (first, second) = (Authority::named("first"), Authority::named("second"));
    let mut present = token("billing");
    let (mut present_ca, mut other_ca) = (&first, &second);
    let auditor = token("auditor");
    let server = Server::start(Files::new(&first, &[&present, &auditor], BILLING));
    let both = server.files.path("both-ca");
    let pem = [first.file(), second.file()].map(|file| fs::read(file).unwrap());
    fs::write(&both, pem.concat()).unwrap();
    let token_file = server.files.path("client-token");
    replace(&token_file, &present.token);
    let options = ClientOptions {
        token: Some(Token::from_file(&token_file).unwrap()),
        ..trusting(&both)
    };
    // Locks that are held all the time: by itself, in a session, and watched.
    let client = server.client(options.clone());
    let short = || LockRequest::new("held").ttl(Duration::from_secs(3));
    let held = Arc::new(client.lock(short()).await.unwrap());
    let session = client
        .open_session(fermata_client::SessionRequest::default())
        .await
        .unwrap();
    let in_session = session.lock("in session").await.unwrap();
    let lost = Arc::new(AtomicU64::new(0));
    let watching = {
        let (held, lost) = (Arc::clone(&held), Arc::clone(&lost));
        tokio::spawn(async move {
            held.lost().await;
            lost.fetch_add(1, Ordering::Relaxed);
        })
    };
    let (ends, made) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let workers: Vec<_> = (0..8)
        .map(|worker| {
            let client = server.client(options.clone());
            let (ends, made) = (Arc::clone(&ends), Arc::clone(&made));
            tokio::spawn(sections(client, format!("worker {worker}"), ends, made))
        })
        .collect();

    let begun = Instant::now();
    let mut rounds = 0;
    while begun.elapsed() < Duration::from_secs(seconds) {
        let at = begun.elapsed();
        (present_ca, other_ca) = (other_ca, present_ca);
        server.files.certify(present_ca);
        // A token takes the place of another: first both, then clients change over, then the new one alone.
        let next = token("billing");
        let rules = fs::read_to_string(server.files.path("rules")).unwrap();
        server.files.know(&[&present, &next, &auditor], &rules);
        // Whoever connects anew sees the new certificate, and is known by the new token.
        let (mut certified, mut known) = (false, false);
        let waited = Instant::now();
        while !(certified && known) {
            assert!(waited.elapsed() < PATIENCE, "{}", server.log());
            certified = server.is_reached_by(&present_ca.file(), &present).await;
            known = server.is_reached_by(&both, &next).await;
        }
        replace(&token_file, &next.token);
        sleep(Duration::from_millis(1_200)).await;
        // Rules change as well: an auditor may read in every second round.
        let may_read = rounds % 2 == 0;
        let rules = match may_read {
            true => format!("{BILLING}{AUDITOR}"),
            false => BILLING.to_owned(),
        };
        server.files.know(&[&next, &auditor], &rules);
        let waited = Instant::now();
        while server.may_read(&both, &auditor).await != may_read {
            assert!(waited.elapsed() < PATIENCE, "{}", server.log());
        }
        let waited = Instant::now();
        while server.is_reached_by(&both, &present).await {
            assert!(waited.elapsed() < PATIENCE, "{}", server.log());
        }
        present = next;
        rounds += 1;
        sleep(every.saturating_sub(begun.elapsed() - at)).await;
    }
    let rounds_min = if seconds > 30 { 5 } else { 2 };
    assert!(rounds >= rounds_min, "{rounds} rounds");
    assert!(!server.is_reached_by(&other_ca.file(), &present).await);
    let made_so_far = made.load(Ordering::Relaxed);
    until("sections go on", || {
        made.load(Ordering::Relaxed) > made_so_far + 10
    })
    .await;
    ends.store(true, Ordering::Relaxed);
    let mut all = 0;
    for worker in workers {
        all += worker.await.unwrap();
    }
    assert_eq!(lost.load(Ordering::Relaxed), 0);
    assert!(held.is_valid() && in_session.is_valid());
    held.put("still held").await.unwrap();
    in_session.put("still held").await.unwrap();
    watching.abort();
    println!("{rounds} rounds of replaced files, {all} sections of 8 workers, no lock lost");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_used_leaves_in_force_what_was_and_a_hangup_ends_nothing() {
    let authority = Authority::named("ours");
    let billing = token("billing");
    let server = Server::start(Files::new(&authority, &[&billing], EVERYTHING));
    let reached = async || server.is_reached_by(&authority.file(), &billing).await;
    assert!(reached().await);
    for (name, text, said) in [
        ("cert", "nonsense", "tls.cert_file: "),
        ("tokens", "billing", "tokens: line 1 is not NAME"),
        ("rules", "[[rule]]", "rules: TOML parse error"),
    ] {
        let before = fs::read(server.files.path(name)).unwrap();
        replace(&server.files.path(name), text);
        until(said, || server.log().contains(said)).await;
        assert!(reached().await, "{name}");
        replace(&server.files.path(name), before);
    }
    server
        .files
        .know(&[&billing, &token("another")], EVERYTHING);
    let reloads = || server.log().matches(" tokens: reloaded").count();
    until("what is right is taken", || reloads() >= 1).await;
    let certificates = || {
        let taken = "certificates for clients: reloaded";
        server.log().matches(taken).count()
    };
    // Of files that stay as they are nothing is taken again but for a hangup.
    let before = (reloads(), certificates());
    server.signal(Signal::SIGHUP);
    until("a hangup is heard", || reloads() > before.0).await;
    until("by certificates too", || certificates() > before.1).await;
    assert!(reached().await);

    // What is logged is said anew as well.
    assert!(!server.log().contains(" DEBUG "));
    let said = |what| server.log().matches(what).count();
    let (taken, refused) = ("log.filter: reloaded", "log.filter: reload failed");
    until("it was taken at the hangup", || said(taken) == 1).await;
    replace(
        &server.files.path("config"),
        "[log]\nfilter = \"fermata=debug\"\n",
    );
    server.signal(Signal::SIGHUP);
    until("the filter is in force", || said(taken) == 2).await;
    assert!(reached().await);
    until("more is logged", || server.log().contains(" DEBUG ")).await;
    replace(&server.files.path("config"), "[log]\nfilter = \"x=loud\"\n");
    server.signal(Signal::SIGHUP);
    until("a filter that is none", || said(refused) == 1).await;
    assert!(reached().await);
}

/// How a server that must not start ends, and what it says.
fn refused(args: &[&str]) -> (Option<i32>, String) {
    let data = TempDir::new().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_fermata"))
        .arg("serve")
        .args(["--data-dir", data.path().to_str().unwrap()])
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn what_is_missing_to_be_reached_by_others_is_named() {
    let authority = Authority::named("ours");
    let files = Files::new(&authority, &[&token("a")], "nonsense");
    let path = |name: &str| files.path(name).to_str().unwrap().to_owned();
    let (cert, key, tokens, rules) = (path("cert"), path("key"), path("tokens"), path("rules"));
    let tls = ["--client-tls-certificate", &cert, "--client-tls-key", &key];
    let open = ["--listen", "0.0.0.0:0"];
    for (args, words) in [
        (open.to_vec(), "neither encryption nor logins protect it"),
        (
            [&open[..], &tls].concat(),
            "its clients are not known. Set auth.tokens_file",
        ),
        (
            [&open[..], &["--tokens-file", &tokens]].concat(),
            "it is not encrypted. Set tls.cert_file",
        ),
        (
            vec!["--client-tls-certificate", &cert],
            "tls.cert_file and tls.key_file must be set together",
        ),
        (
            vec!["--client-tls-ca", &cert],
            "tls.client_ca_file needs tls.cert_file",
        ),
        (
            vec!["--rules-file", &rules],
            "auth.rules_file: rules need known clients",
        ),
        (
            vec!["--tokens-file", &tokens, "--rules-file", &rules],
            "rules: TOML parse error",
        ),
        (
            vec!["--tokens-file", "/nowhere"],
            "auth.tokens_file: /nowhere: No such file",
        ),
        (
            vec!["--client-tls-certificate", &cert, "--client-tls-key", &cert],
            "tls.key_file: ",
        ),
        (vec!["--listen", "unix:here"], "write unix:/PATH"),
    ] {
        let (code, said) = refused(&args);
        assert_eq!(code, Some(78), "{args:?}: {said}");
        assert!(said.contains(words), "{args:?}: {said}");
    }
}
