//! What the store promises when the disk fails.

use std::fs::{self, OpenOptions};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use uuid::Uuid;

use super::faults::{Faults, ReadFault, SyncFault};
use crate::key::{Command, Decider, KeyState, NewEntry, decide};
use crate::lock::{CoreLimits, Key, KeyId, Liveness, Mode, ReplicaId, TableName, Tag};
use crate::store::embedded::file::FailingDisk;
use crate::store::embedded::*;
use crate::store::{Cell, DataStore, KeyStore, StoreHealth, Swap, Written};

struct World {
    store: EmbeddedStore,
    faults: Faults,
    directory: TempDir,
}

fn open_on(directory: &TempDir, faults: Option<Faults>) -> EmbeddedStore {
    // No memory: every read asks the disk.
    let medium = Medium {
        cache_bytes: 0,
        disk: faults.map(|faults| -> FailingDisk {
            Arc::new(move |builder, file| builder.create_with_backend(faults.ended(file)?))
        }),
    };
    EmbeddedStore::open_on(directory.path(), medium, StoreMetrics::default()).unwrap()
}

fn world() -> World {
    let directory = TempDir::new().unwrap();
    let faults = Faults::default();
    World {
        store: open_on(&directory, Some(faults.clone())),
        faults,
        directory,
    }
}

impl World {
    async fn swap(&self, old: &KeyState, new: &KeyState) -> Swap {
        self.store.compare_and_swap(&id("k"), old, new).await
    }

    /// The state after one more entry, acknowledged.
    async fn applied(&self, old: &KeyState) -> KeyState {
        let new = with_entry(old);
        let swap = self.swap(old, &new).await;
        assert!(matches!(swap, Swap::Applied), "{swap:?}");
        new
    }

    async fn load(&self) -> Option<KeyState> {
        self.store.load(&id("k")).await.unwrap()
    }

    fn is_closed(&self) -> bool {
        matches!(self.store.ready(), Err(StoreError::Closed(_)))
    }

    async fn until_open(&self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.is_closed() {
            assert!(Instant::now() < deadline, "{:?}", self.store.ready());
            pause(5).await;
        }
    }

    fn file(&self) -> std::path::PathBuf {
        self.directory.path().join("store/locks.redb")
    }
}

async fn pause(ms: u64) {
    tokio::task::spawn_blocking(move || thread::sleep(Duration::from_millis(ms)))
        .await
        .unwrap();
}

fn id(key: &str) -> KeyId {
    KeyId {
        table: TableName::default_table(),
        key: Key::parse(key, Key::BYTES_MAX).unwrap(),
    }
}

/// The state after one more entry.
fn with_entry(state: &KeyState) -> KeyState {
    let replica = ReplicaId(Uuid::nil());
    let take_over = Command::TakeOver {
        from: None,
        to: replica,
        past: None,
    };
    let create = Command::Create(NewEntry {
        tag: Tag::from_bits(state.version.into()),
        mode: Mode::Exclusive,
        liveness: Liveness::Own { ttl_ms: 1 },
        identity: "".into(),
        owner: "".into(),
        created_at_ms: 0,
    });
    let limits = CoreLimits::default();
    let by = Decider {
        replica,
        now_us: Some(1),
        limits: &limits,
    };
    decide(state, &[take_over, create], by).state
}

#[tokio::test]
async fn what_fails_before_its_commit_did_not_start() {
    for fault in [ReadFault::Error, ReadFault::Panic] {
        let world = world();
        let one = world.applied(&KeyState::default()).await;
        world.faults.fail_reads(Some(fault));
        let swap = world.swap(&one, &with_entry(&one)).await;
        assert!(
            matches!(swap, Swap::NotStarted(StoreError::Closed(_))),
            "{swap:?}"
        );
        assert!(world.is_closed());
        world.faults.fail_reads(None);
        world.until_open().await;
        assert_eq!(world.load().await, Some(one.clone()));
        world.applied(&one).await;
    }
}

#[tokio::test]
async fn a_read_that_fails_closes_the_store_until_it_was_opened_again() {
    for fault in [ReadFault::Error, ReadFault::Panic] {
        let world = world();
        let one = world.applied(&KeyState::default()).await;
        world.faults.fail_reads(Some(fault));
        let error = world.store.load(&id("k")).await.unwrap_err();
        assert!(matches!(error, StoreError::Closed(_)), "{error:?}");
        assert!(world.is_closed());
        let error = world.store.read_data(&id("k")).await.unwrap_err();
        assert!(matches!(error, StoreError::Closed(_)), "{error:?}");
        world.faults.fail_reads(None);
        world.until_open().await;
        assert_eq!(world.load().await, Some(one));
    }
}

/// Whatever write of a commit meets the full disk: nothing acknowledged is lost, the outcome is not
/// claimed to be known, and the store works again once there is room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_is_full_at_any_write_loses_nothing() {
    let unknown = futures_util::future::join_all((0..12).map(async |writes| {
        let world = world();
        let one = world.applied(&KeyState::default()).await;
        let two = with_entry(&one);
        world.faults.full_after(writes);
        let swap = world.swap(&one, &two).await;
        world.faults.has_room();
        world.until_open().await;
        let kept = world.load().await.unwrap();
        match swap {
            Swap::Applied => assert_eq!(kept, two),
            Swap::Unknown(StoreError::Closed(_)) => assert!(kept == one || kept == two),
            // It had to make room in memory before it came to the commit.
            Swap::NotStarted(StoreError::Closed(_)) => assert_eq!(kept, one),
            other => panic!("full after {writes} writes: {other:?}"),
        }
        world.applied(&kept).await;
        matches!(swap, Swap::Unknown(_))
    }))
    .await;
    assert!(unknown.iter().any(|unknown| *unknown));
}

#[tokio::test]
async fn a_sync_that_fails_leaves_the_outcome_unknown() {
    for fault in [SyncFault::Lost, SyncFault::Kept] {
        let world = world();
        let one = world.applied(&KeyState::default()).await;
        let two = with_entry(&one);
        world.faults.fail_sync_after(0, fault);
        let swap = world.swap(&one, &two).await;
        assert!(matches!(swap, Swap::Unknown(_)), "{swap:?}");
        world.until_open().await;
        let kept = world.load().await.unwrap();
        let expected = match fault {
            SyncFault::Lost => &one,
            SyncFault::Kept => &two,
        };
        assert_eq!(&kept, expected);
        world.applied(&kept).await;
    }
}

/// A conflict with a change that then fails to commit must not be told as one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conflict_with_a_lost_change_is_not_told() {
    let world = Arc::new(world());
    let one = world.applied(&KeyState::default()).await;
    let two = with_entry(&one);
    let swap = || {
        let (world, one, two) = (Arc::clone(&world), one.clone(), two.clone());
        tokio::spawn(async move { world.swap(&one, &two).await })
    };
    // The writer is held up with something else, until both swaps wait for it.
    world.faults.fail_sync_after(1, SyncFault::Lost);
    let (before, first, second) = world.faults.standing_still(|| {
        let writer = Arc::clone(&world);
        let cell = Cell {
            value: None,
            timestamp: 1,
        };
        let before = tokio::spawn(async move { writer.store.write_data(&id("k"), cell).await });
        let until_waiting = |jobs| {
            while world.store.queue.capacity() != JOBS_MAX - jobs {
                thread::sleep(Duration::from_millis(1));
            }
        };
        thread::sleep(Duration::from_millis(50));
        until_waiting(0);
        let first = swap();
        until_waiting(1);
        let second = swap();
        until_waiting(2);
        (before, first, second)
    });
    assert!(matches!(before.await.unwrap(), Written::Done));
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    assert!(matches!(first, Swap::Unknown(_)), "{first:?}");
    assert!(matches!(second, Swap::NotStarted(_)), "{second:?}");
    world.until_open().await;
    assert_eq!(world.load().await, Some(one));
}

#[tokio::test]
async fn a_closed_store_says_so_at_once_and_does_not_take_an_older_file() {
    let world = world();
    let one = world.applied(&KeyState::default()).await;
    let backup = fs::read(world.file()).unwrap();
    let two = world.applied(&one).await;
    world.faults.fail_reads(Some(ReadFault::Error));
    world.store.load(&id("k")).await.unwrap_err();

    let begun = Instant::now();
    let swap = world.swap(&two, &with_entry(&two)).await;
    assert!(matches!(swap, Swap::NotStarted(StoreError::Closed(_))));
    let listed = world.store.list_live(&id("k").table, "", None, 1).await;
    assert!(matches!(listed, Err(StoreError::Closed(_))));
    assert!(begun.elapsed() < Duration::from_millis(500));

    // Before the first try to open it again, somebody restores a backup.
    let whole = fs::read(world.file()).unwrap();
    fs::write(world.file(), backup).unwrap();
    world.faults.fail_reads(None);
    pause(1_500).await;
    assert!(world.is_closed());
    fs::write(world.file(), whole).unwrap();
    world.until_open().await;
    assert_eq!(world.load().await, Some(two));
}

/// Cuts the power after any number of writes, and lets the disk have any part of what was not synced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_a_power_cut() {
    const CUTS: u64 = 60;
    let seed: u64 = std::env::var("FERMATA_SEED")
        .map_or_else(|_| Uuid::new_v4().as_u64_pair().0, |s| s.parse().unwrap());
    println!("FERMATA_SEED={seed}");
    let mut seen_cut = 0;
    for cut in 0..CUTS {
        let mut x = seed.wrapping_add(cut);
        let mut random = move || {
            x = x
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            x >> 33
        };
        let World {
            store,
            faults,
            directory,
        } = world();
        faults.cut_power_after(random() % 120);
        let store = Arc::new(store);
        let tasks = ["a", "b", "c"].map(|key| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let mut acknowledged = KeyState::default();
                for _ in 0..30 {
                    let next = with_entry(&acknowledged);
                    match store.compare_and_swap(&id(key), &acknowledged, &next).await {
                        Swap::Applied => acknowledged = next,
                        Swap::Unknown(_) => return (key, acknowledged, Some(next)),
                        Swap::NotStarted(_) => break,
                        Swap::Conflict(state) => panic!("{state:?}"),
                    }
                }
                (key, acknowledged, None)
            })
        });
        let mut outcomes = Vec::new();
        for task in tasks {
            outcomes.push(task.await.unwrap());
        }
        drop(store);
        seen_cut += u64::from(faults.power_is_cut());
        let file = OpenOptions::new()
            .write(true)
            .open(directory.path().join("store/locks.redb"))
            .unwrap();
        faults.lose_unsynced(&file, &mut random);

        let store = open_on(&directory, None);
        for (key, acknowledged, open) in outcomes {
            let kept = store.load(&id(key)).await.unwrap().unwrap_or_default();
            assert!(
                kept == acknowledged || Some(&kept) == open.as_ref(),
                "cut {cut} of seed {seed}: {key} is at {}, {} was acknowledged",
                kept.version,
                acknowledged.version
            );
        }
    }
    assert!(seen_cut > CUTS / 2, "only {seen_cut} cuts");
}
