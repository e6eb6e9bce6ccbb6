//! What the log says of a key that goes from one replica to another, and of an end by force.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use fermata::engine::{EngineError, Presence};
use tempfile::NamedTempFile;

use super::shared::Service;
use super::world::{call, key, until};

/// For the whole process: the other tests write here as well; the key tells whose line it is.
fn whole_process() -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter("fermata=info")
        .with_ansi(false)
        .with_writer(Arc::new(file.reopen().unwrap()))
        .finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    file
}

fn lines(log: &NamedTempFile, words: &str, key: &str) -> Vec<String> {
    let log = std::fs::read_to_string(log.path()).unwrap();
    let fit = log
        .lines()
        .filter(|line| line.contains(words) && line.contains(key));
    fit.map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_goes_to_another_replica_is_said_once_by_each_of_them_in_words() {
    let log = whole_process();
    let (service, a, b) = &Service::two().await;
    let home = a.replica();
    let given = a.create(call("given-up", 6_000)).await.unwrap().lock_ref;
    a.create(call("left-behind", 20_000)).await.unwrap();
    service.wires.cut("replica-0");
    // Not at once, for its holder was just served.
    b.take_over(&key("given-up"), home).await.unwrap();
    b.acquire(&given, Duration::ZERO, false).await.unwrap();
    let said = lines(&log, "handed a key over", "given-up");
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(
        said[0].contains(&format!("key=default/given-up to={}", b.replica())),
        "{said:?}"
    );

    service.kill(0);
    until("the other is down", || async {
        b.presence(home) == Presence::Down
    })
    .await;
    let callers = (0..8).map(|_| {
        let b = b.clone();
        tokio::spawn(async move { b.take_over(&key("left-behind"), home).await })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap().unwrap();
    }
    let said = lines(&log, "took a key over", "left-behind");
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains(&format!("from={home}")), "{said:?}");
    an_end_by_force_is_said_though_nobody_learns_the_answer(&log).await;
}

const FORCED: &str = "an entry ended: it was ended by force";

/// Such that it looks like another line.
const REASON: &str = "it \"hangs\" by=\"bob\"\u{2028}INFO fermata::audit: an end by force";

/// Of one log there is one test.
async fn an_end_by_force_is_said_though_nobody_learns_the_answer(log: &NamedTempFile) {
    let (service, a, _) = &Service::two().await;
    for (key, unheard) in [("forced-heard", 0), ("forced-unheard", 1)] {
        let held = a.create(call(key, 20_000)).await.unwrap().lock_ref;
        service.replicas[0].link.unheard(unheard);
        a.force_release(&held, "ann", REASON).await.unwrap();
        let said = lines(log, FORCED, key);
        assert_eq!(said.len(), 1, "{said:?}");
        let fields = format!("was_holder=true by=\"ann\" why={REASON:?}");
        assert!(said[0].contains(&fields), "{said:?}");
    }
    // Nobody waits for it any more, and it is done.
    let held = a
        .create(call("forced-left", 20_000))
        .await
        .unwrap()
        .lock_ref;
    {
        // Asked, and hung up at once.
        let mut force = pin!(a.force_release(&held, "ann", REASON));
        let _ = futures_util::poll!(force.as_mut());
    }
    until("it has ended", || async {
        matches!(a.critical_get(&held, 0).await, Err(EngineError::Ended(_)))
    })
    .await;
    let said = lines(log, FORCED, "forced-left");
    assert_eq!(said.len(), 1, "{said:?}");
}
