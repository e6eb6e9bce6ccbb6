//! The process that holds the lock, and is killed.

use std::process::Stdio;
use std::time::Duration;

use fermata::client::{Client, LockGuard, LockRequest, SessionRequest};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{sleep, timeout};

use super::super::replica::PATIENCE;
use super::{KEY, Kind, boot, count_of, since_boot};

/// What a holder is told: which endpoints, TTL and disconnect_grace in ms (0: none), whether it opens a session.
const HOLDER: &str = "FERMATA_TEST_KILLED_HOLDER";

/// Not a test by itself: the process that holds the lock. It counts once, says so, and then each new moment until
/// which it may believe to hold, and the one at which it learned that it does not.
#[tokio::test]
async fn holds() {
    let Ok(told) = std::env::var(HOLDER) else {
        return;
    };
    let told: Vec<&str> = told.split(' ').collect();
    let [endpoints, ttl, grace, in_session] = told[..] else {
        panic!("{told:?}");
    };
    let ms = |text: &str| Duration::from_millis(text.parse().unwrap());
    let client = Client::connect(endpoints.split(',')).unwrap();
    let take = async || match in_session {
        "true" => {
            let mut request = SessionRequest::new().ttl(ms(ttl));
            if grace != "0" {
                request = request.disconnect_grace(ms(grace));
            }
            let session = client.open_session(request).await.unwrap();
            session.lock(KEY).await
        }
        _ => {
            let request = LockRequest::new(KEY).ttl(ms(ttl));
            client.lock(request).await
        }
    };
    // On a machine that is busy for as long as its TTL it is lost before it is held.
    let mut taken = take().await;
    for _ in 0..5 {
        if taken.is_err() {
            taken = take().await;
        }
    }
    let guard = taken.unwrap();
    let count = count_of(&guard.get().await.unwrap().unwrap_or_default());
    guard.put((count + 1).to_string()).await.unwrap();
    say(&format!("held {}", guard.fencing_token()));
    tokio::select! {
        _ = guard.lost() => say(&format!("lost {}", boot().as_nanos())),
        () = say_beliefs(&guard) => {}
    }
    // Nor does it release what it lost: only the service is to notice.
    std::future::pending::<()>().await;
}

async fn say_beliefs(guard: &LockGuard) {
    let mut said = None;
    loop {
        let until = guard.valid_until();
        if let Some(until) = until.filter(|_| until != said) {
            say(&format!("until {}", since_boot(until).as_nanos()));
            said = Some(until);
        }
        // Looked at often: what it came to believe since would be unknown if it is killed.
        sleep(Duration::from_millis(1)).await;
    }
}

fn say(text: &str) {
    // libtest begins a line before ours.
    println!("holder: {text}");
}

pub struct Holder {
    pub child: Child,
    says: Lines<BufReader<ChildStdout>>,
    pub fence: u64,
}

/// What a holder believed, in time since boot.
#[derive(Default)]
pub struct Belief {
    pub until: Duration,
    pub lost: Option<Duration>,
}

impl Holder {
    /// Returns once it holds the lock, and has counted.
    pub async fn start(kind: Kind, endpoints: &[String]) -> Holder {
        let grace = kind.grace.unwrap_or_default().as_millis();
        let told = format!(
            "{} {} {grace} {}",
            endpoints.join(","),
            kind.ttl.as_millis(),
            kind.in_session
        );
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kills::holder::holds", "--nocapture"])
            .env(HOLDER, told)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut holder = Holder {
            child,
            says,
            fence: 0,
        };
        holder.fence = match holder.hear().await {
            Some(("held", fence)) => u64::try_from(fence.as_nanos()).unwrap(),
            other => panic!("{other:?}"),
        };
        holder
    }

    /// What it says next, with its number; `None` once it is gone.
    async fn hear(&mut self) -> Option<(&'static str, Duration)> {
        loop {
            let line = timeout(PATIENCE, self.says.next_line()).await;
            let line = line.expect("it says something").unwrap()?;
            let Some((_, said)) = line.split_once("holder: ") else {
                continue;
            };
            let (what, number) = said.split_once(' ').unwrap();
            let known = ["held", "until", "lost"];
            let what = known.into_iter().find(|known| *known == what).unwrap();
            return Some((what, Duration::from_nanos(number.parse().unwrap())));
        }
    }

    /// What it believed, to the end of it: its loss, or its own end.
    pub async fn belief(&mut self) -> Belief {
        let mut belief = Belief::default();
        while belief.lost.is_none()
            && let Some((what, at)) = self.hear().await
        {
            match what {
                "until" => belief.until = belief.until.max(at),
                _ => belief.lost = Some(at),
            }
        }
        belief
    }
}
