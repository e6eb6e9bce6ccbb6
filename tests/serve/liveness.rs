//! Holders that crash or pause: the next waiter gets the lock after the TTL and not before, and nothing the
//! old holder writes late survives.
//!
//! The holder is a process of its own: this test binary again, running `holder`.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use fermata_proto::{
    AcquireLockRequest, CreateLockRefRequest, CriticalGetRequest, CriticalPutRequest, LockState,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::process::{Client, Serve, client};

const ENDPOINT: &str = "FERMATA_TEST_HOLDER_OF";
const TTL: Duration = Duration::from_secs(2);

/// Not a test by itself: the process that holds the lock. It takes it, writes, says so, and for each line
/// it reads it writes again and says what came of it.
#[tokio::test]
async fn holder() {
    let Ok(endpoint) = std::env::var(ENDPOINT) else {
        return;
    };
    let mut client = client(&endpoint);
    let held = create(&mut client).await;
    put(&mut client, &held, "first").await.unwrap();
    say("holding");
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line).unwrap() > 0 {
        match put(&mut client, &held, "late").await {
            Ok(()) => say("written"),
            Err(status) => say(&format!(
                "refused {:?}: {}",
                status.code(),
                status.message()
            )),
        }
        line.clear();
    }
}

fn say(text: &str) {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "holder: {text}").unwrap();
    stdout.flush().unwrap();
}

async fn create(client: &mut Client) -> String {
    let request = CreateLockRefRequest {
        key: "k".to_owned(),
        ttl: Some(prost_types::Duration::try_from(TTL).unwrap()),
        ..CreateLockRefRequest::default()
    };
    let answer = client.create_lock_ref(request).await.unwrap();
    answer.into_inner().lock_ref
}

async fn put(client: &mut Client, held: &str, value: &'static str) -> Result<(), tonic::Status> {
    let request = CriticalPutRequest {
        lock_ref: held.to_owned(),
        value: value.into(),
        call_no: 0,
    };
    client.critical_put(request).await.map(|_| ())
}

async fn get(client: &mut Client, held: &str) -> String {
    let request = CriticalGetRequest {
        lock_ref: held.to_owned(),
        call_no: 0,
    };
    let value = client.critical_get(request).await.unwrap().into_inner();
    String::from_utf8(value.value.to_vec()).unwrap()
}

/// Waits on the server, and asks again where the TTL cuts that short; the lockRef with its grant.
async fn acquire(client: &mut Client, lock_ref: &str) -> String {
    let request = AcquireLockRequest {
        lock_ref: lock_ref.to_owned(),
        wait: Some(prost_types::Duration {
            seconds: 20,
            nanos: 0,
        }),
        read_value: false,
        give_up: false,
    };
    loop {
        let answer = client.acquire_lock(request.clone()).await.unwrap();
        let answer = answer.into_inner();
        if answer.state() == LockState::Held {
            return answer.lock_ref;
        }
    }
}

struct Holder {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Holder {
    /// Returns once it holds the lock and has written.
    fn start(serve: &Serve) -> Holder {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "liveness::holder", "--nocapture"])
            .env(ENDPOINT, serve.endpoint())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        let mut holder = Holder { child, says };
        assert_eq!(holder.hear(), "holding");
        holder
    }

    fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.says.read_line(&mut line).unwrap() > 0, "it is gone");
            // libtest writes lines of its own, and begins one before ours.
            if let Some((_, said)) = line.trim().split_once("holder: ") {
                return said.to_owned();
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    fn write_late(&mut self) -> String {
        let stdin = self.child.stdin.as_mut().unwrap();
        stdin.write_all(b"write\n").unwrap();
        self.hear()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_waiter_gets_the_lock_after_the_ttl_of_a_killed_holder_and_not_before() {
    let serve = Serve::start();
    let mut next = serve.client();
    let before = Instant::now();
    let holder = Holder::start(&serve);
    let waiting = create(&mut next).await;
    holder.signal(Signal::SIGKILL);
    let held = acquire(&mut next, &waiting).await;
    // Its last renewal was after `before`, so it was safe for a TTL from there.
    assert!(before.elapsed() >= TTL, "taken away from a live holder");
    assert_eq!(get(&mut next, &held).await, "first");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_write_of_a_paused_holder_is_refused_and_the_next_value_stands() {
    let serve = Serve::start();
    let mut next = serve.client();
    let mut holder = Holder::start(&serve);
    let waiting = create(&mut next).await;
    holder.signal(Signal::SIGSTOP);
    let held = acquire(&mut next, &waiting).await;
    assert_eq!(get(&mut next, &held).await, "first");
    put(&mut next, &held, "next").await.unwrap();
    holder.signal(Signal::SIGCONT);
    let said = holder.write_late();
    assert!(said.starts_with("refused FailedPrecondition"), "{said}");
    assert!(said.contains("expired"), "{said}");
    assert_eq!(get(&mut next, &held).await, "next");
}
