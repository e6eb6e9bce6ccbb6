//! What the log says of an end by force.

use std::pin::pin;
use std::sync::Arc;

use fermata::engine::EngineError;
use tempfile::NamedTempFile;

use super::replicas::create;
use super::shared::Service;
use super::world::{call, until};

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

/// Such that it looks like another line.
const REASON: &str = "it \"hangs\" by=\"bob\"\u{2028}INFO fermata::audit: an end by force";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_by_force_is_said_once_though_nobody_learns_the_answer() {
    let log = whole_process();
    let said_once = |key: &str| {
        let log = std::fs::read_to_string(log.path()).unwrap();
        let lines = log.lines().filter(|line| line.contains(key));
        let said: Vec<&str> = lines
            .filter(|line| line.contains("an entry ended: it was ended by force"))
            .collect();
        let fields = format!("was_holder=true by=\"ann\" why={REASON:?}");
        assert!(said.len() == 1 && said[0].contains(&fields), "{said:?}");
    };
    let (service, a, _) = &Service::two().await;
    for (key, unheard) in [("forced-heard", 0), ("forced-unheard", 1)] {
        let held = create(a, call(key, 20_000)).await.lock_ref;
        let link = &service.replicas[0].link;
        link.set(|faults| faults.unheard = unheard);
        a.force_release(&held, "ann", REASON).await.unwrap();
        said_once(key);
    }
    // Nobody waits for it any more, and it is done.
    let held = create(a, call("forced-left", 20_000)).await.lock_ref;
    {
        // Asked, and hung up at once.
        let mut force = pin!(a.force_release(&held, "ann", REASON));
        let _ = futures_util::poll!(force.as_mut());
    }
    until("it has ended", || async {
        matches!(a.critical_get(&held, 0).await, Err(EngineError::Ended(_)))
    })
    .await;
    said_once("forced-left");
}
