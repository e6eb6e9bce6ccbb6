//! The data directory: one process at a time, nothing half made, nothing for others to read.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use fermata::key::KeyState;
use fermata::store::embedded::EmbeddedOpenError;
use fermata::store::{KeyStore, StoreError, StoreHealth, Swap};
use futures_util::future::join_all;
use tempfile::TempDir;

use super::child::command;
use super::{add, open};
use crate::world::{id, with_entry};

#[tokio::test]
async fn a_second_process_is_refused_and_told_who_has_it() {
    let directory = TempDir::new().unwrap();
    let store = open(directory.path()).unwrap();
    match open(directory.path()) {
        Err(EmbeddedOpenError::InUse { pid, .. }) => assert_eq!(pid, Some(std::process::id())),
        other => panic!("{other:?}"),
    }
    let child = command("open", directory.path()).output().unwrap();
    let said = String::from_utf8(child.stdout).unwrap();
    let pid = std::process::id();
    let expected = format!("is in use by another process (pid {pid})");
    assert!(said.contains(&expected), "{said}");
    // It has taken nothing away.
    add(&store, "k").await;
    drop(store);
    let child = command("open", directory.path()).output().unwrap();
    assert!(String::from_utf8(child.stdout).unwrap().contains("opened"));
}

#[tokio::test]
async fn what_it_makes_is_for_its_user_alone() {
    let outside = TempDir::new().unwrap();
    let directory = outside.path().join("not/yet/there");
    let _store = open(&directory).unwrap();
    let mode = |path: &str| {
        let metadata = fs::metadata(directory.join(path)).unwrap();
        metadata.permissions().mode() & 0o777
    };
    assert_eq!(mode(""), 0o700);
    assert_eq!(mode("store"), 0o700);
    for file in ["LOCK", "store/FORMAT", "store/locks.redb"] {
        assert_eq!(mode(file), 0o600, "{file}");
    }
    assert!(!directory.join("store.new").exists());
}

#[tokio::test]
async fn a_store_that_was_never_finished_is_none() {
    let directory = TempDir::new().unwrap();
    let making = directory.path().join("store.new");
    fs::create_dir(&making).unwrap();
    fs::write(making.join("FORMAT"), "ferm").unwrap();
    fs::write(making.join("locks.redb"), [0; 100]).unwrap();
    let store = open(directory.path()).unwrap();
    assert!(!making.exists());
    add(&store, "k").await;
}

#[tokio::test]
async fn a_shutdown_finishes_what_was_asked_and_gives_the_directory_back() {
    // Few enough to be polled in order, and without a pause.
    const CALLS: u128 = 20;
    let directory = TempDir::new().unwrap();
    let store = open(directory.path()).unwrap();
    let none = KeyState::default();
    let swap = async |number: u128| {
        let new = with_entry(&none, number);
        let key = id(&number.to_string());
        store.compare_and_swap(&key, &none, &new).await
    };
    // Polled in this order: asked before, and after.
    let before = join_all((0..CALLS).map(&swap));
    let after = join_all((CALLS..2 * CALLS).map(&swap));
    let (before, (), after) = tokio::join!(before, store.shutdown(), after);
    for swap in before {
        assert!(matches!(swap, Swap::Applied), "{swap:?}");
    }
    store.shutdown().await;
    assert!(matches!(store.ready(), Err(StoreError::Closed(_))));
    let loaded = store.load(&id("1")).await;
    assert!(matches!(loaded, Err(StoreError::Closed(_))), "{loaded:?}");

    let again = open(directory.path()).unwrap();
    let kept = async |number: u128| again.load(&id(&number.to_string())).await.unwrap();
    for number in 0..CALLS {
        assert_eq!(kept(number).await, Some(with_entry(&none, number)));
    }
    for (number, swap) in (CALLS..).zip(after) {
        let closed = matches!(swap, Swap::NotStarted(StoreError::Closed(_)));
        assert!(closed, "{number}: {swap:?}");
        assert_eq!(kept(number).await, None);
    }
}
