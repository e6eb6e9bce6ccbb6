//! A directory that may not be written, and a disk that is full.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fermata::store::embedded::EmbeddedOpenError;
use fermata::store::{Cell, DataStore, KeyStore, StoreHealth, Written};
use tempfile::TempDir;

use super::child::command;
use super::{add, open, skipped};
use crate::world::id;

/// A user without rights: nobody.
const NOBODY: u32 = 65_534;

#[tokio::test]
async fn a_directory_without_the_right_to_write_is_named() {
    let directory = TempDir::new().unwrap();
    add(&open(directory.path()).unwrap(), "k").await;
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o555)).unwrap();
    let mut child = command("open", directory.path());
    if nix::unistd::geteuid().is_root() {
        child.uid(NOBODY).gid(NOBODY);
    }
    let output = match child.output() {
        Ok(output) => output,
        Err(error) => {
            return skipped("a_directory_without_the_right_to_write_is_named", error);
        }
    };
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("refused: "), "{said}");
    assert!(said.contains("Permission denied"), "{said}");
    assert!(said.contains(directory.path().to_str().unwrap()), "{said}");
}

/// Something mounted, until dropped.
struct Mounted<'a>(&'a Path);

impl<'a> Mounted<'a> {
    fn new(at: &'a Path, arguments: &[&str]) -> Result<Mounted<'a>, String> {
        let output = Command::new("mount").args(arguments).arg(at).output();
        match output {
            Ok(output) if output.status.success() => Ok(Mounted(at)),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn remount(&self, options: &str) {
        let options = format!("remount,{options}");
        let status = Command::new("mount")
            .args(["-o", &options])
            .arg(self.0)
            .status();
        assert!(status.unwrap().success());
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

async fn pause(ms: u64) {
    tokio::task::spawn_blocking(move || std::thread::sleep(Duration::from_millis(ms)))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_full_disk_makes_no_store_and_loses_none() {
    let outside = TempDir::new().unwrap();
    let arguments = ["-t", "tmpfs", "-o", "size=64k", "tmpfs"];
    let disk = match Mounted::new(outside.path(), &arguments) {
        Ok(disk) => disk,
        Err(why) => return skipped("a_full_disk_makes_no_store_and_loses_none", why),
    };
    let directory = outside.path().join("data");
    let ballast = outside.path().join("ballast");
    fs::write(&ballast, vec![1; 48 * 1024]).unwrap();
    let error = open(&directory).unwrap_err();
    assert!(matches!(error, EmbeddedOpenError::Io { .. }), "{error}");
    assert!(!directory.join("store").exists());
    fs::remove_file(&ballast).unwrap();

    // With room it begins anew, until the disk is full again.
    disk.remount("size=4m");
    let store = open(&directory).unwrap();
    let one = add(&store, "k").await;
    let mut kept = 0;
    let error = loop {
        let cell = Cell {
            value: Some(Bytes::from(vec![kept as u8; 100_000])),
            timestamp: 1,
        };
        match store.write_data(&id(&kept.to_string()), cell).await {
            Written::Done => kept += 1,
            Written::Unknown(error) | Written::NotStarted(error) => break error,
        }
    };
    assert!(error.to_string().contains("space"), "{error}");
    assert!(kept > 5, "{kept}");
    // Opened again it reads well; but as long as nothing can be written, it is closed: two tries later still.
    let tried = Instant::now() + Duration::from_millis(3_500);
    while Instant::now() < tried {
        assert!(store.ready().is_err(), "it flaps");
        pause(5).await;
    }
    disk.remount("size=64m");
    let deadline = Instant::now() + Duration::from_secs(30);
    while store.ready().is_err() {
        assert!(Instant::now() < deadline);
        pause(20).await;
    }
    assert_eq!(store.load(&id("k")).await.unwrap(), Some(one));
    for number in 0..kept {
        let cell = store.read_data(&id(&number.to_string())).await.unwrap();
        assert_eq!(cell.unwrap().value.unwrap().len(), 100_000);
    }
    add(&store, "k").await;
}
