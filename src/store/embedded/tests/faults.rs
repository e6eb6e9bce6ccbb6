//! A disk that fails on demand, for tests: full, failing to sync, failing to read, or cut off from power.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard};

use redb::StorageBackend;

/// What the disk shall do, shared by all files that are opened on it one after the other.
#[derive(Clone, Debug, Default)]
pub(in crate::store::embedded) struct Faults(Arc<Mutex<Plan>>);

#[derive(Debug, Default)]
struct Plan {
    /// How many writes succeed before the disk is full.
    writes_left: Option<u64>,
    /// A sync fails after so many that succeed; what was written since is then lost, or not.
    sync: Option<(u64, SyncFault)>,
    /// Reads fail, or panic as redb does on a damaged page.
    read: Option<ReadFault>,
    /// How many writes happen before the power is cut, after which nothing does.
    power_left: Option<u64>,
    unsynced: Vec<Write>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::store::embedded) enum SyncFault {
    Lost,
    Kept,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::store::embedded) enum ReadFault {
    Error,
    Panic,
}

/// A write that no sync has covered yet.
#[derive(Debug)]
struct Write {
    offset: u64,
    before: Vec<u8>,
    after: Vec<u8>,
}

impl Faults {
    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.0.lock().unwrap()
    }

    pub(in crate::store::embedded) fn ended(
        &self,
        file: File,
    ) -> Result<FaultyDisk, redb::DatabaseError> {
        Ok(FaultyDisk {
            file,
            faults: self.clone(),
        })
    }

    pub(in crate::store::embedded) fn full_after(&self, writes: u64) {
        self.plan().writes_left = Some(writes);
    }

    pub(in crate::store::embedded) fn has_room(&self) {
        self.plan().writes_left = None;
    }

    pub(in crate::store::embedded) fn fail_sync_after(&self, syncs: u64, fault: SyncFault) {
        self.plan().sync = Some((syncs, fault));
    }

    /// Nothing moves on the disk while `work` runs.
    pub(in crate::store::embedded) fn standing_still<T>(&self, work: impl FnOnce() -> T) -> T {
        let _plan = self.plan();
        work()
    }

    pub(in crate::store::embedded) fn fail_reads(&self, fault: Option<ReadFault>) {
        self.plan().read = fault;
    }

    pub(in crate::store::embedded) fn cut_power_after(&self, writes: u64) {
        self.plan().power_left = Some(writes);
    }

    pub(in crate::store::embedded) fn power_is_cut(&self) -> bool {
        self.plan().power_left == Some(0)
    }

    /// What the disk has once power is back: of what was not synced any part, in any order.
    pub(in crate::store::embedded) fn lose_unsynced(
        &self,
        file: &File,
        mut random: impl FnMut() -> u64,
    ) {
        let writes = std::mem::take(&mut self.plan().unsynced);
        for write in writes.iter().rev() {
            file.write_all_at(&write.before, write.offset).unwrap();
        }
        for write in &writes {
            let sectors = write.after.chunks(512).zip((write.offset..).step_by(512));
            let (all, none) = (random().is_multiple_of(3), random().is_multiple_of(3));
            for (sector, offset) in sectors {
                if all || (!none && random().is_multiple_of(2)) {
                    file.write_all_at(sector, offset).unwrap();
                }
            }
        }
    }
}

#[derive(Debug)]
pub(in crate::store::embedded) struct FaultyDisk {
    file: File,
    faults: Faults,
}

fn fenced() -> io::Error {
    io::Error::other("the power is cut")
}

impl Plan {
    fn powered(&self) -> io::Result<()> {
        match self.power_left {
            Some(0) => Err(fenced()),
            _ => Ok(()),
        }
    }
}

impl StorageBackend for FaultyDisk {
    fn len(&self) -> Result<u64, io::Error> {
        Ok(self.file.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        let fault = {
            let plan = self.faults.plan();
            plan.powered()?;
            plan.read
        };
        match fault {
            None => self.file.read_exact_at(out, offset),
            Some(ReadFault::Error) => Err(io::Error::other("a sector cannot be read")),
            Some(ReadFault::Panic) => panic!("a page is not what it should be"),
        }
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        self.faults.plan().powered()?;
        self.file.set_len(len)
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        let mut plan = self.faults.plan();
        plan.powered()?;
        let unsynced = std::mem::take(&mut plan.unsynced);
        let fault = match &mut plan.sync {
            None => return Ok(()),
            Some((0, fault)) => *fault,
            Some((left, _)) => {
                *left -= 1;
                return Ok(());
            }
        };
        plan.sync = None;
        if fault == SyncFault::Lost {
            for write in unsynced.iter().rev() {
                self.file.write_all_at(&write.before, write.offset)?;
            }
        }
        Err(io::Error::other("the sync failed"))
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        let mut plan = self.faults.plan();
        plan.powered()?;
        match &mut plan.writes_left {
            None => {}
            Some(0) => return Err(io::ErrorKind::StorageFull.into()),
            Some(left) => *left -= 1,
        }
        let mut before = vec![0; data.len()];
        let shown = self.len()?.saturating_sub(offset).min(data.len() as u64);
        self.file
            .read_exact_at(&mut before[..shown as usize], offset)?;
        self.file.write_all_at(data, offset)?;
        plan.unsynced.push(Write {
            offset,
            before,
            after: data.to_vec(),
        });
        if let Some(left) = &mut plan.power_left {
            *left -= 1;
        }
        Ok(())
    }
}
