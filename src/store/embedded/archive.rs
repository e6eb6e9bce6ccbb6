//! The format of a backup: a head, one record a row, and an end with a digest.
//!
//! ```text
//! fermata backup 1\n
//! store: 16 bytes, commits: u64, fence floor: u64
//! kind: u8, key length: u32, value length: u32, key, value     for each row
//! 0, number of rows: u64, SHA-256 of all before: 32 bytes
//! ```
//!
//! Numbers are big-endian. Keys and values are those of the tables in `rows`.

use std::io::{self, Read};

use aws_lc_rs::digest::{Context, SHA256, SHA256_OUTPUT_LEN};
use bytes::{BufMut as _, Bytes, BytesMut};
use uuid::Uuid;

use super::rows::RowKind;

const TITLE: &[u8] = b"fermata backup 1\n";
const END: u8 = 0;
/// Whoever takes it is given so much at once.
const CHUNK_BYTES: usize = 64 * 1024;
/// No row is larger: what is taken for a length beyond this is damage.
const ROW_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Why a file is no whole backup.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// It begins as something else.
    #[error("it is not a backup of an embedded store, or has another version")]
    Other,
    /// It is one, and was changed or cut off since.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    /// It could not be read.
    #[error("it cannot be read: {0}")]
    Read(#[from] io::Error),
}

/// Which store a backup is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ArchiveHead {
    pub(super) store: Uuid,
    /// How many commits the store had seen.
    pub(super) commits: u64,
    /// Below which it gave out no fence, since it was restored itself; 0 where it was not.
    pub(super) fence_floor: u64,
}

/// Puts a backup together, chunk by chunk.
pub(super) struct ArchiveWriter<S> {
    /// Takes a chunk.
    sink: S,
    chunk: BytesMut,
    digest: Context,
    rows: u64,
}

/// Nobody takes it any more.
pub(super) struct NotTaken;

impl<S: FnMut(Bytes) -> Result<(), NotTaken>> ArchiveWriter<S> {
    pub(super) fn new(head: ArchiveHead, sink: S) -> ArchiveWriter<S> {
        let mut chunk = BytesMut::with_capacity(CHUNK_BYTES);
        chunk.put_slice(TITLE);
        chunk.put_slice(head.store.as_bytes());
        chunk.put_u64(head.commits);
        chunk.put_u64(head.fence_floor);
        ArchiveWriter {
            sink,
            chunk,
            digest: Context::new(&SHA256),
            rows: 0,
        }
    }

    pub(super) fn row(&mut self, kind: RowKind, key: &[u8], value: &[u8]) -> Result<(), NotTaken> {
        // Both are far below 4 GiB: a row is held in memory as a whole.
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.chunk.put_u8(kind as u8);
        self.chunk.put_u32(length(key));
        self.chunk.put_u32(length(value));
        self.chunk.put_slice(key);
        self.rows += 1;
        let mut rest = value;
        loop {
            let room = CHUNK_BYTES.saturating_sub(self.chunk.len()).min(rest.len());
            let (now, later) = rest.split_at(room);
            self.chunk.put_slice(now);
            rest = later;
            if self.chunk.len() >= CHUNK_BYTES {
                self.hand_over()?;
            }
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    pub(super) fn end(mut self) -> Result<(), NotTaken> {
        self.chunk.put_u8(END);
        self.chunk.put_u64(self.rows);
        self.digest.update(&self.chunk);
        let digest = self.digest.clone().finish();
        self.chunk.put_slice(digest.as_ref());
        (self.sink)(self.chunk.split().freeze())
    }

    fn hand_over(&mut self) -> Result<(), NotTaken> {
        self.digest.update(&self.chunk);
        let chunk = std::mem::replace(&mut self.chunk, BytesMut::with_capacity(CHUNK_BYTES));
        (self.sink)(chunk.freeze())
    }
}

/// One row.
#[derive(Debug)]
pub(super) struct ArchiveRow {
    pub(super) kind: RowKind,
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
}

/// Reads a backup. Only once [`ArchiveReader::next`] has answered `None` is it known that all of it was there and whole.
pub(super) struct ArchiveReader<R> {
    from: R,
    digest: Context,
    rows: u64,
}

impl<R: Read> ArchiveReader<R> {
    pub(super) fn new(mut from: R) -> Result<(ArchiveReader<R>, ArchiveHead), ArchiveError> {
        let mut title = [0; TITLE.len()];
        match from.read_exact(&mut title) {
            Ok(()) if title == TITLE => {}
            Ok(()) => return Err(ArchiveError::Other),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(ArchiveError::Other);
            }
            Err(error) => return Err(error.into()),
        }
        let mut digest = Context::new(&SHA256);
        digest.update(TITLE);
        let mut reader = ArchiveReader {
            from,
            digest,
            rows: 0,
        };
        let store = Uuid::from_bytes(reader.array()?);
        let commits = u64::from_be_bytes(reader.array()?);
        let fence_floor = u64::from_be_bytes(reader.array()?);
        let head = ArchiveHead {
            store,
            commits,
            fence_floor,
        };
        Ok((reader, head))
    }

    /// The next row; `None` after the last, where all was whole.
    pub(super) fn next(&mut self) -> Result<Option<ArchiveRow>, ArchiveError> {
        let [kind] = self.array()?;
        if kind == END {
            return self.end().map(|()| None);
        }
        let kind = RowKind::of(kind).ok_or(ArchiveError::Damaged("a row has an unknown kind"))?;
        let [key_length, value_length] = [self.array()?, self.array()?].map(u32::from_be_bytes);
        let key = self.bytes(key_length)?;
        let value = self.bytes(value_length)?;
        self.rows += 1;
        Ok(Some(ArchiveRow { kind, key, value }))
    }

    fn end(&mut self) -> Result<(), ArchiveError> {
        let rows = u64::from_be_bytes(self.array()?);
        let expected = self.digest.clone().finish();
        let found: [u8; SHA256_OUTPUT_LEN] = self.array()?;
        if rows != self.rows || found != expected.as_ref() {
            return Err(ArchiveError::Damaged("it does not match its checksum"));
        }
        match self.from.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(ArchiveError::Damaged("bytes follow its end")),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ArchiveError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn bytes(&mut self, length: u32) -> Result<Vec<u8>, ArchiveError> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > ROW_BYTES_MAX {
            return Err(ArchiveError::Damaged("a row is too long"));
        }
        let mut bytes = vec![0; length];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), ArchiveError> {
        match self.from.read_exact(bytes) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(ArchiveError::Damaged("it ends too early"));
            }
            Err(error) => return Err(error.into()),
        }
        self.digest.update(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: ArchiveHead = ArchiveHead {
        store: Uuid::from_u128(7),
        commits: 9,
        fence_floor: 8,
    };

    fn archive(rows: &[(RowKind, &[u8], &[u8])]) -> Vec<u8> {
        let mut whole = Vec::new();
        let mut writer = ArchiveWriter::new(HEAD, |chunk: Bytes| {
            assert!(chunk.len() < 2 * CHUNK_BYTES);
            whole.extend_from_slice(&chunk);
            Ok(())
        });
        for (kind, key, value) in rows {
            assert!(writer.row(*kind, key, value).is_ok());
        }
        assert!(writer.end().is_ok());
        whole
    }

    type Rows = Vec<(RowKind, Vec<u8>, Vec<u8>)>;

    fn read(bytes: &[u8]) -> Result<Rows, ArchiveError> {
        let (mut reader, head) = ArchiveReader::new(bytes)?;
        assert_eq!(head, HEAD);
        let mut rows = Vec::new();
        while let Some(row) = reader.next()? {
            rows.push((row.kind, row.key, row.value));
        }
        Ok(rows)
    }

    #[test]
    fn what_was_written_reads_back_however_large() {
        let large = vec![7; 3 * CHUNK_BYTES + 5];
        let rows: [(RowKind, &[u8], &[u8]); 4] = [
            (RowKind::Lock, b"a", b"one"),
            (RowKind::Data, b"a", &large),
            (RowKind::Session, b"", b""),
            (RowKind::Entry, b"b", &large[..CHUNK_BYTES]),
        ];
        let read = read(&archive(&rows)).unwrap();
        let wrote = rows.map(|(kind, key, value)| (kind, key.to_vec(), value.to_vec()));
        assert_eq!(read, wrote);
        assert!(archive(&[]).len() < 100);
    }

    #[test]
    fn what_is_cut_off_changed_or_longer_is_refused() {
        let whole = archive(&[(RowKind::Lock, b"a", b"one"), (RowKind::Data, b"a", b"v")]);
        for length in 0..whole.len() {
            assert!(read(&whole[..length]).is_err(), "{length}");
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            // A head that differs is found by the digest as well.
            let found = ArchiveReader::new(&*changed).and_then(|(mut reader, _)| {
                while reader.next()?.is_some() {}
                Ok(())
            });
            assert!(found.is_err(), "{at}");
        }
        let mut longer = whole.clone();
        longer.push(0);
        assert!(read(&longer).is_err());
    }
}
