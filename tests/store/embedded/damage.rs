//! A damaged store is refused, by the name of what is damaged, and left as it was found.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use fermata::store::KeyStore;
use fermata::store::embedded::EmbeddedOpenError;
use tempfile::TempDir;

use super::child::command;
use super::{add, open};
use crate::world::id;

/// A directory with a store that has some keys, closed.
async fn closed_store() -> TempDir {
    let directory = TempDir::new().unwrap();
    let store = open(directory.path()).unwrap();
    for number in 0..300 {
        add(&store, &format!("key {}", number % 100)).await;
    }
    directory
}

/// All that lies in the store's own directory.
fn content(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = fs::read_dir(directory.join("store")).unwrap();
    files
        .map(|file| file.unwrap().path())
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect()
}

/// Opens a damaged store and answers the error, which names a file, and has changed nothing.
fn refused(directory: &Path) -> EmbeddedOpenError {
    let before = content(directory);
    let error = open(directory).unwrap_err();
    assert!(content(directory) == before, "changed after: {error}");
    error
}

fn refused_as_damaged(directory: &Path, file: &str, expected: &str) {
    let error = refused(directory);
    let text = error.to_string();
    match error {
        EmbeddedOpenError::Damaged { path, what } => {
            assert_eq!(path, directory.join("store").join(file), "{what}");
            assert!(what.contains(expected), "{what}");
            assert!(text.contains("Nothing was overwritten"), "{text}");
            assert!(text.contains("backup"), "{text}");
        }
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_file_without_its_format_is_damaged() {
    let directory = closed_store().await;
    let format = directory.path().join("store/FORMAT");
    for garbage in ["", "fermata embedded store\nformat 0\n", "\u{0}\u{0}", "{}"] {
        fs::write(&format, garbage).unwrap();
        refused_as_damaged(directory.path(), "FORMAT", "garbled");
    }
    fs::write(&format, [0xff; 100_000]).unwrap();
    refused_as_damaged(directory.path(), "FORMAT", "garbled");
    fs::remove_file(&format).unwrap();
    refused_as_damaged(directory.path(), "FORMAT", "missing");
}

#[tokio::test]
async fn a_store_of_another_format_is_left_to_the_program_that_wrote_it() {
    let directory = closed_store().await;
    let format = directory.path().join("store/FORMAT");
    let text = fs::read_to_string(&format).unwrap();
    for other in [3, 5] {
        fs::write(
            &format,
            text.replace("format 4", &format!("format {other}")),
        )
        .unwrap();
        let error = refused(directory.path());
        let said = error.to_string();
        match error {
            EmbeddedOpenError::OtherFormat { found, known, .. } => {
                assert_eq!((found, known), (other, 4))
            }
            error => panic!("{error}"),
        }
        assert!(said.contains("this program knows format 4 only"), "{said}");
    }
}

#[tokio::test]
async fn a_file_that_is_missing_empty_or_another_is_damaged() {
    let directory = closed_store().await;
    let file = directory.path().join("store/locks.redb");
    let whole = fs::read(&file).unwrap();

    let mut flipped = whole.clone();
    flipped[3] ^= 1;
    fs::write(&file, flipped).unwrap();
    refused_as_damaged(directory.path(), "locks.redb", "");
    fs::write(&file, []).unwrap();
    refused_as_damaged(directory.path(), "locks.redb", "empty");
    fs::write(&file, vec![0; 8192]).unwrap();
    refused_as_damaged(directory.path(), "locks.redb", "");
    fs::remove_file(&file).unwrap();
    refused_as_damaged(directory.path(), "locks.redb", "missing");

    // A redb file, but none of ours.
    drop(redb::Database::create(&file).unwrap());
    refused_as_damaged(directory.path(), "locks.redb", "");
    fs::write(&file, whole).unwrap();
    open(directory.path()).unwrap();
}

#[tokio::test]
async fn an_empty_store_directory_is_not_a_new_store() {
    let directory = closed_store().await;
    fs::remove_dir_all(directory.path().join("store")).unwrap();
    fs::create_dir(directory.path().join("store")).unwrap();
    refused_as_damaged(directory.path(), "FORMAT", "missing");
}

#[tokio::test]
async fn a_file_that_was_cut_off_anywhere_is_damaged() {
    let directory = closed_store().await;
    let file = directory.path().join("store/locks.redb");
    let whole = fs::read(&file).unwrap();
    let pages = whole.len() / 4096;
    let cuts = (1..pages).map(|page| page * 4096).step_by(3);
    for len in cuts.chain([1, 319, 4095, 4097, whole.len() - 1]) {
        fs::write(&file, &whole[..len]).unwrap();
        refused_as_damaged(directory.path(), "locks.redb", "");
    }
}

/// The same for one whose process was killed, which redb has to repair when it opens it.
#[tokio::test]
async fn a_file_that_was_cut_off_after_a_crash_is_damaged() {
    let directory = TempDir::new().unwrap();
    let mut child = command("write", directory.path()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    child.kill().unwrap();
    child.wait().unwrap();
    let file = directory.path().join("store/locks.redb");
    let whole = fs::read(&file).unwrap();
    let pages = whole.len() / 4096;
    let mut refusals = 0;
    for len in (1..pages).map(|page| page * 4096).step_by(7) {
        fs::write(&file, &whole[..len]).unwrap();
        let before = content(directory.path());
        match open(directory.path()) {
            // What was cut off was not in use.
            Ok(store) => drop(store),
            Err(error) => {
                assert!(
                    matches!(error, EmbeddedOpenError::Damaged { .. }),
                    "{error}"
                );
                assert!(content(directory.path()) == before, "{error}");
                refusals += 1;
            }
        }
    }
    assert!(refusals > 0);
    fs::write(&file, whole).unwrap();
    open(directory.path()).unwrap();
}

/// A byte that has turned is found, or was not in use.
#[tokio::test]
async fn a_turned_byte_anywhere_is_found_or_does_not_matter() {
    let directory = closed_store().await;
    let file = directory.path().join("store/locks.redb");
    let whole = fs::read(&file).unwrap();
    let expected = {
        let store = open(directory.path()).unwrap();
        let listed = store
            .list_live(&id("k").table, "", None, 1000)
            .await
            .unwrap();
        listed.into_iter().map(|one| one.state).collect::<Vec<_>>()
    };
    let mut found = 0;
    // The header, all of it but for padding, then the pages.
    let header = (0..320).step_by(3);
    for at in header.chain((4096..whole.len()).step_by(1531)) {
        let mut turned = whole.clone();
        turned[at] ^= 0x10;
        fs::write(&file, &turned).unwrap();
        match open(directory.path()) {
            Ok(store) => {
                let listed = store
                    .list_live(&id("k").table, "", None, 1000)
                    .await
                    .unwrap();
                let states: Vec<_> = listed.into_iter().map(|one| one.state).collect();
                assert!(states == expected, "byte {at}");
            }
            Err(error) => {
                assert!(
                    matches!(error, EmbeddedOpenError::Damaged { .. }),
                    "{error}"
                );
                assert!(fs::read(&file).unwrap() == turned, "{error}");
                found += 1;
            }
        }
    }
    assert!(found > 0);
}
