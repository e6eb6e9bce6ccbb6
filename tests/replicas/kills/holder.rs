//! The client that is killed: a process of its own, this test binary again, running `holds`. It says what it holds, and
//! until when it may believe so, on the clock that all processes of a machine share.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use fermata::lock::LockRef;
use fermata_client::{
    BootClock, Client, Clock as _, LockGuard, LockRequest, Moment, SessionRequest,
};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{sleep, timeout};

use super::super::history::{Event, Learned, Op, Outcome, Recorder};
use super::super::replica::PATIENCE;
use super::{KEY, Kind};

/// What a holder is told: which endpoints, TTL and disconnect_grace in ms (0: none), whether it opens a session.
const HOLDER: &str = "FERMATA_TEST_KILLED_HOLDER";

pub fn boot() -> Duration {
    since_boot(BootClock.now())
}

fn since_boot(moment: Moment) -> Duration {
    Moment::from_zero(Duration::ZERO).until(moment)
}

/// Not a test by itself: the process that holds the lock. It counts once, says so, and then each new moment until
/// which it may believe to hold, and the one at which it learned that it does not.
#[tokio::test]
async fn holds() {
    let Ok(answered) = std::env::var(HOLDER) else {
        return;
    };
    let answered: Vec<&str> = answered.split(' ').collect();
    let [endpoints, ttl, grace, in_session] = answered[..] else {
        panic!("{answered:?}");
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
    say(&format!("held {} {}", guard.lock_ref(), count + 1));
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
            let now = boot().as_nanos();
            say(&format!("until {} {now}", since_boot(until).as_nanos()));
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

pub fn count_of(value: &[u8]) -> usize {
    match std::str::from_utf8(value).unwrap() {
        "" => 0,
        count => count.parse().unwrap(),
    }
}

pub struct Holder {
    pub child: Child,
    pub fence: u64,
    says: Lines<BufReader<ChildStdout>>,
    history: Recorder,
    /// That it holds, as it is noted.
    held: Event,
}

/// What a holder believed, in time since boot.
#[derive(Default)]
pub struct Belief {
    pub until: Duration,
    pub lost: Option<Duration>,
}

impl Holder {
    /// Returns once it holds the lock, and has counted.
    pub async fn start(kind: Kind, endpoints: &[String], history: &Recorder) -> Holder {
        let grace = kind.grace.unwrap_or_default().as_millis();
        let answered = format!(
            "{} {} {grace} {}",
            endpoints.join(","),
            kind.ttl.as_millis(),
            kind.in_session
        );
        let name: Arc<str> = "the holder".into();
        let mut held = history.call(&name, Op::Acquire, |_| ());
        let mut put = history.call(&name, Op::Put(None), |_| ());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kills::holder::holds", "--nocapture"])
            .env(HOLDER, answered)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut says = BufReader::new(child.stdout.take().unwrap()).lines();
        let said = hear(&mut says).await.expect("it holds");
        let [what, lock_ref, count] = &said[..] else {
            panic!("{said:?}");
        };
        assert_eq!(what, "held");
        let lock_ref = LockRef::parse(lock_ref, "").unwrap();
        let fence = lock_ref.grant.unwrap().0;
        for call in [&mut held, &mut put] {
            call.event.names(&lock_ref);
            call.event.grant = Some(fence);
        }
        put.event.op = Op::Put(Some(count.clone().into_bytes().into()));
        let event = held.event.clone();
        held.came_to(Outcome::Done);
        put.came_to(Outcome::Done);
        Holder {
            child,
            fence,
            says,
            history: history.clone(),
            held: event,
        }
    }

    /// What it believed, to the end of it: its loss, or its own end.
    pub async fn belief(&mut self) -> Belief {
        let mut belief = Belief::default();
        while belief.lost.is_none()
            && let Some(said) = hear(&mut self.says).await
        {
            match said.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                ["until", until, said] => {
                    let (until, said) = (nanos(until), nanos(said));
                    belief.until = belief.until.max(until);
                    self.noted(Op::Renew, said, Some(until));
                }
                ["lost", at] => {
                    belief.lost = Some(nanos(at));
                    self.noted(Op::Release(None), nanos(at), None);
                }
                _ => panic!("{said:?}"),
            }
        }
        belief
    }

    /// Notes from when on it counts on the lock for so long, or not any more.
    fn noted(&self, op: Op, said: Duration, until: Option<Duration>) {
        self.history.note(Event {
            op,
            grant: None,
            invoked: said,
            answered: said,
            outcome: until.map_or(Outcome::Unknown(Learned::Nothing), |_| Outcome::Done),
            until,
            ..self.held.clone()
        });
    }
}

/// What it says next, by words; nothing once it is gone.
async fn hear(says: &mut Lines<BufReader<ChildStdout>>) -> Option<Vec<String>> {
    loop {
        let line = timeout(PATIENCE, says.next_line()).await;
        let line = line.expect("it says something").unwrap()?;
        if let Some((_, said)) = line.split_once("holder: ") {
            return Some(said.split(' ').map(str::to_owned).collect());
        }
    }
}

fn nanos(text: &str) -> Duration {
    Duration::from_nanos(text.parse().unwrap())
}
