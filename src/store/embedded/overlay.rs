//! A file that stays unchanged: writes to it are kept in memory.
//!
//! redb writes to a file while it opens the file, before all damage is found. So a store is opened on an overlay first, and on the
//! file itself only if that succeeded.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use parking_lot::Mutex;
use redb::StorageBackend;

/// The unit in which written bytes are kept: redb's page.
const PAGE_BYTES: u64 = 4096;

#[derive(Debug)]
pub(super) struct Overlay {
    file: File,
    above: Mutex<Above>,
}

/// What was written, over what the file holds.
#[derive(Debug)]
struct Above {
    len: u64,
    /// How much of the file still shows: it is cut by a shorter length and does not come back.
    file_len: u64,
    /// Whole pages by their number.
    pages: BTreeMap<u64, Box<[u8]>>,
}

impl Overlay {
    pub(super) fn ended(file: File) -> io::Result<Overlay> {
        let len = file.metadata()?.len();
        Ok(Overlay {
            file,
            above: Mutex::new(Above {
                len,
                file_len: len,
                pages: BTreeMap::new(),
            }),
        })
    }

    /// The page as it shows now.
    fn page(&self, above: &Above, number: u64) -> io::Result<Box<[u8]>> {
        if let Some(page) = above.pages.get(&number) {
            return Ok(page.clone());
        }
        let mut page = vec![0; PAGE_BYTES as usize].into_boxed_slice();
        let start = number * PAGE_BYTES;
        let shown = above.file_len.saturating_sub(start).min(PAGE_BYTES);
        if let Some(part) = page.get_mut(..shown as usize) {
            self.file.read_exact_at(part, start)?;
        }
        Ok(page)
    }
}

/// Cuts `offset..offset + len` at page borders: page number, where in the page, where in the range,
/// and how many bytes.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut done = 0usize;
    std::iter::from_fn(move || {
        (done < len).then(|| {
            let at = offset + done as u64;
            let within = (at % PAGE_BYTES) as usize;
            let bytes = (PAGE_BYTES as usize - within).min(len - done);
            let piece = (at / PAGE_BYTES, within, done, bytes);
            done += bytes;
            piece
        })
    })
}

impl StorageBackend for Overlay {
    fn len(&self) -> Result<u64, io::Error> {
        Ok(self.above.lock().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        let above = self.above.lock();
        let end = offset.checked_add(out.len() as u64);
        if end.is_none_or(|end| end > above.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (number, within, at, bytes) in pieces(offset, out.len()) {
            let page = self.page(&above, number)?;
            if let (Some(to), Some(from)) = (
                out.get_mut(at..at + bytes),
                page.get(within..within + bytes),
            ) {
                to.copy_from_slice(from);
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        let mut above = self.above.lock();
        above.len = len;
        above.file_len = above.file_len.min(len);
        let beyond = above.pages.split_off(&len.div_ceil(PAGE_BYTES));
        drop(beyond);
        if let Some(page) = above.pages.get_mut(&(len / PAGE_BYTES))
            && let Some(cut) = page.get_mut((len % PAGE_BYTES) as usize..)
        {
            cut.fill(0);
        }
        Ok(())
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        let mut above = self.above.lock();
        for (number, within, at, bytes) in pieces(offset, data.len()) {
            let mut page = self.page(&above, number)?;
            if let (Some(to), Some(from)) = (
                page.get_mut(within..within + bytes),
                data.get(at..at + bytes),
            ) {
                to.copy_from_slice(from);
            }
            above.pages.insert(number, page);
        }
        above.len = above.len.max(offset + data.len() as u64);
        Ok(())
    }
}
