//! This test program once more, as another process.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fermata::key::KeyState;
use fermata::store::{KeyStore, Swap};

use super::open;
use crate::world::{id, with_entry, without_holder};

const ROLE: &str = "FERMATA_TEST_ROLE";
const DIRECTORY: &str = "FERMATA_TEST_DIRECTORY";

/// A process that will play a role: `write` (until it is killed) or `open`.
pub fn command(role: &str, directory: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "embedded::child::plays_its_role"])
        .args(["--ignored", "--nocapture"])
        .env(ROLE, role)
        .env(DIRECTORY, directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by other tests as a process of its own"]
async fn plays_its_role() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let directory = PathBuf::from(std::env::var_os(DIRECTORY).unwrap());
    match role.as_str() {
        "write" => write(&directory).await,
        "open" => match open(&directory) {
            Ok(_) => println!("opened"),
            Err(error) => println!("refused: {error}"),
        },
        other => panic!("{other}"),
    }
}

pub const KEYS: [&str; 4] = ["a", "b", "c", "d"];

/// Changes four keys for ever, and says each version once it is acknowledged.
async fn write(directory: &Path) {
    let store = std::sync::Arc::new(open(directory).unwrap());
    for key in KEYS {
        let store = std::sync::Arc::clone(&store);
        tokio::spawn(async move {
            let mut state: KeyState = store.load(&id(key)).await.unwrap().unwrap_or_default();
            loop {
                let next = match state.version % 4 {
                    0..2 => with_entry(&state, state.version.into()),
                    _ => without_holder(&state),
                };
                let swap = store.compare_and_swap(&id(key), &state, &next).await;
                assert!(matches!(swap, Swap::Applied), "{swap:?}");
                state = next;
                println!("acknowledged {key} {}", state.version);
            }
        });
    }
    std::future::pending::<()>().await;
}
