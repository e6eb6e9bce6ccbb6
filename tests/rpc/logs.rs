//! What is logged of a call, and what never is.

use std::io::Write;
use std::sync::{Arc, Mutex, OnceLock};

use fermata_client::public_part;
use tracing_subscriber::fmt::MakeWriter;

use crate::ask;
use crate::world::{World, done, hold};

/// What this program logged since somebody asked.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Log;

    fn make_writer(&self) -> Log {
        self.clone()
    }
}

impl Log {
    /// For the whole process: what a subscriber of one thread sees hangs on what other threads, without
    /// one, met first. So all tests write here.
    pub fn shared() -> &'static Log {
        static LOG: OnceLock<Log> = OnceLock::new();
        LOG.get_or_init(|| {
            let log = Log::default();
            let subscriber = tracing_subscriber::fmt()
                .with_env_filter("fermata=trace")
                .with_ansi(false)
                .with_writer(log.clone())
                .finish();
            tracing::subscriber::set_global_default(subscriber).unwrap();
            log
        })
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

#[tokio::test]
async fn a_call_is_logged_with_the_name_of_its_entry_and_without_secret_or_value() {
    let log = Log::shared();
    let world = World::new().await;
    let mut client = world.client().await;
    let held = hold(&mut client, "logged-42").await;
    done(client.critical_put(ask::critical_put(&held.lock_ref, "swordfish"))).await;
    let release = ask::release_with_put(&held.lock_ref, "swordfish");
    done(client.release_lock(release)).await;

    let log = log.text();
    // The other tests write here as well, but have no such key.
    let entry = public_part(&held.lock_ref);
    let (_, secret) = held.lock_ref.rsplit_once('.').unwrap();
    let secret = secret.split('@').next().unwrap();
    let is_put = |line: &&str| line.contains("CriticalPut") && line.contains(entry);
    let put = log.lines().find(is_put).unwrap();
    assert!(put.contains("fermata.v1.LockService"), "{put}");
    assert!(!log.contains("swordfish"), "{log}");
    assert!(!log.contains(secret), "{log}");
}
