//! The embedded store.

use std::sync::Arc;

use fermata::store::embedded::{EmbeddedOptions, EmbeddedStore};
use tempfile::TempDir;

use crate::contract::{Fresh, keeps_its_promises};

async fn empty_store() -> Fresh<TempDir> {
    let directory = TempDir::new().unwrap();
    let options = EmbeddedOptions::new(directory.path());
    Fresh {
        store: Arc::new(EmbeddedStore::open(options).unwrap()),
        _guard: directory,
    }
}

keeps_its_promises!(empty_store);
