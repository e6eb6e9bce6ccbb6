//! The embedded store: what every store promises, and what it promises beyond that.

mod child;
mod crash;
mod damage;
mod directory;
mod group_commit;
mod room;

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use fermata::key::KeyState;
use fermata::store::embedded::{EmbeddedOpenError, EmbeddedOptions, EmbeddedStore};
use fermata::store::{CellStore, KeyStore, Swap};
use tempfile::TempDir;

use crate::contract::{Fresh, cells_keep_their_promises, keeps_its_promises};
use crate::world::{id, with_entry};

async fn store_for(_promise: &str) -> Fresh<TempDir> {
    let directory = TempDir::new().unwrap();
    Fresh {
        store: Arc::new(open(directory.path()).unwrap()).store(),
        _guard: directory,
    }
}

keeps_its_promises!(store_for);

async fn cells_for() -> Option<(Arc<dyn CellStore>, TempDir)> {
    let directory = TempDir::new().unwrap();
    let store = Arc::new(open(directory.path()).unwrap());
    Some((store.cells(), directory))
}

cells_keep_their_promises!(super::cells_for);

fn open(directory: &Path) -> Result<EmbeddedStore, EmbeddedOpenError> {
    EmbeddedStore::open(EmbeddedOptions::new(directory))
}

/// Adds an entry to a key.
async fn add(store: &EmbeddedStore, key: &str) -> KeyState {
    let old = store.load(&id(key)).await.unwrap().unwrap_or_default();
    let new = with_entry(&old, old.version.into());
    let swap = store.compare_and_swap(&id(key), &old, &new).await;
    assert!(matches!(swap, Swap::Applied), "{swap:?}");
    new
}

/// Says why a test did nothing, past libtest, which hides what passing tests print.
/// `1` makes a failure of what this machine lacks.
const REQUIRE: &str = "FERMATA_REQUIRE_MOUNTS";

fn skipped(test: &str, why: impl std::fmt::Display) {
    let required = std::env::var(REQUIRE).is_ok_and(|value| value == "1");
    assert!(!required, "{REQUIRE}=1, and {test} cannot run: {why}");
    let mut stderr = std::io::stderr();
    writeln!(stderr, "SKIPPED {test}: {why}").unwrap();
}
