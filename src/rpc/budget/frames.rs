//! Where the frames of a connection begin and end, and what of them HTTP/2 keeps in memory.

use super::header_table::{BUFFER_BYTES, HeaderTable};
use super::wide;

/// What an HTTP/2 client sends first, in bytes.
const PREFACE_BYTES: usize = 24;

/// What a frame begins with: its length (3 bytes), its kind, flags, and its stream.
const HEAD_BYTES: usize = 9;

/// The kinds of frames that bring a body, and headers, and end a stream.
pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
const CONTINUATION: u8 = 9;

/// The flag of the last frame that its side sends of a stream.
pub(super) const END_STREAM: u8 = 1;
/// Those of headers before which stands how long their padding is, and what is not used any more.
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;
const PRIORITY_BYTES: usize = 5;

/// What comes between the bodies of two small calls, at most.
const HEADERS_BYTES: u64 = 1024;

/// Reads one direction of a connection.
pub struct FrameScan {
    head: [u8; HEAD_BYTES],
    head_came: usize,
    payload: Payload,
    /// What came of other frames since the last one with something of a body, in bytes.
    between: u64,
    /// Of a client only.
    headers: Option<HeaderTable>,
    /// What came since the last entry of that table that keeps anything, in bytes.
    since_entry: u64,
}

/// What follows.
#[derive(Clone, Copy, Debug)]
enum Payload {
    /// So much that is skipped.
    Skipped(usize),
    /// The length of the padding of a frame of headers, of which so much is to come.
    Padding { left: usize, skip: usize },
    /// A part of a block of headers, between what is skipped.
    Block {
        before: usize,
        left: usize,
        after: usize,
    },
}

/// How a frame begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    pub(super) kind: u8,
    pub(super) flags: u8,
    /// Of what follows, in bytes.
    length: usize,
    pub(super) stream: u32,
    /// How much came of other frames since the last one with something of a body, in bytes.
    between: u64,
}

impl FrameScan {
    /// From the first byte of a client on.
    pub fn of_client() -> FrameScan {
        FrameScan {
            payload: Payload::Skipped(PREFACE_BYTES),
            headers: Some(HeaderTable::default()),
            ..FrameScan::of_server()
        }
    }

    /// From the first byte of a server on.
    pub fn of_server() -> FrameScan {
        FrameScan {
            head: [0; HEAD_BYTES],
            head_came: 0,
            payload: Payload::Skipped(0),
            between: 0,
            headers: None,
            since_entry: 0,
        }
    }

    /// What the table of headers may keep, in bytes.
    pub fn kept_by_headers(&self) -> u64 {
        self.headers.as_ref().map_or(0, HeaderTable::kept)
    }

    /// Reads on: which frames begin.
    pub fn advance(&mut self, mut bytes: &[u8], mut begins: impl FnMut(FrameHead)) {
        while !bytes.is_empty() {
            let count = self.payload_of(bytes);
            self.since_entry = self.since_entry.saturating_add(wide(count));
            bytes = bytes.split_at(count).1;
            let count = bytes.len().min(HEAD_BYTES - self.head_came);
            let (head, rest) = bytes.split_at(count);
            self.head[self.head_came..self.head_came + count].copy_from_slice(head);
            self.head_came += count;
            bytes = rest;
            if self.head_came == HEAD_BYTES {
                begins(self.begin());
            }
        }
    }

    /// Reads what follows a head, as far as it came: so much of it. Where that is all of what came, more is to come.
    fn payload_of(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            match self.payload {
                Payload::Skipped(0) => break,
                Payload::Skipped(left) => {
                    let count = rest.len().min(left);
                    self.payload = Payload::Skipped(left - count);
                    at += count;
                }
                Payload::Padding { left, skip } => {
                    let after = rest.first().copied().unwrap_or_default().into();
                    self.payload = Payload::block(skip, left.saturating_sub(1), after);
                    at += 1;
                }
                Payload::Block {
                    before: 0,
                    left,
                    after,
                } => {
                    let count = rest.len().min(left);
                    if let Some(headers) = &mut self.headers {
                        headers.advance(rest.split_at(count).0, &mut self.since_entry);
                    }
                    self.payload = match left - count {
                        0 => Payload::Skipped(after),
                        left => Payload::Block {
                            before: 0,
                            left,
                            after,
                        },
                    };
                    at += count;
                }
                Payload::Block {
                    before,
                    left,
                    after,
                } => {
                    let count = rest.len().min(before);
                    self.payload = Payload::Block {
                        before: before - count,
                        left,
                        after,
                    };
                    at += count;
                }
            }
        }
        at
    }

    /// All of a head is there.
    fn begin(&mut self) -> FrameHead {
        let [a, b, c, kind, flags, stream @ ..] = self.head;
        self.head_came = 0;
        let length = u32::from_be_bytes([0, a, b, c]);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let is_of_body = kind == DATA && length > 0;
        let between = match is_of_body {
            true => std::mem::take(&mut self.between),
            false => {
                let all = wide(length) + wide(HEAD_BYTES);
                self.between = self.between.saturating_add(all);
                0
            }
        };
        let skip = match flags & PRIORITY {
            0 => 0,
            _ => PRIORITY_BYTES,
        };
        self.payload = match (kind, &mut self.headers) {
            (HEADERS, Some(headers)) => {
                headers.begin();
                match flags & PADDED {
                    0 => Payload::block(skip, length, 0),
                    _ => Payload::Padding { left: length, skip },
                }
            }
            (CONTINUATION, Some(_)) => Payload::block(0, length, 0),
            _ => Payload::Skipped(length),
        };
        FrameHead {
            kind,
            flags,
            length,
            // The first bit means nothing.
            stream: u32::from_be_bytes(stream) & (u32::MAX >> 1),
            between,
        }
    }
}

impl Payload {
    /// Of `length` bytes, so many of which stand before a part of a block, and so many after it. (A frame that has not so many ends its
    /// connection.)
    fn block(before: usize, length: usize, after: usize) -> Payload {
        match length.checked_sub(before + after) {
            Some(left) if left > 0 => Payload::Block {
                before,
                left,
                after,
            },
            _ => Payload::Skipped(length),
        }
    }
}

impl FrameHead {
    #[cfg(test)]
    pub(super) fn empty(kind: u8, flags: u8, stream: u32) -> FrameHead {
        FrameHead {
            kind,
            flags,
            length: 0,
            stream,
            between: 0,
        }
    }

    /// What of a body comes with it, in bytes.
    pub(super) fn of_body(&self) -> Option<u64> {
        (self.kind == DATA && self.length > 0).then(|| wide(self.length))
    }

    /// What it keeps besides, in bytes: it is a slice of the buffer that it came in, with what is of no use between it and the one
    /// before. So much as a call needs there is not counted.
    pub(super) fn keeps_between(&self) -> u64 {
        let between = self.between.min(BUFFER_BYTES);
        between.saturating_sub(HEADERS_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, length: usize) -> Vec<u8> {
        let length_bytes = u32::try_from(length).unwrap().to_be_bytes();
        let mut frame = length_bytes[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(vec![DATA; length]);
        frame
    }

    #[test]
    fn only_bodies_are_kept_however_the_frames_are_cut() {
        let mut came = vec![DATA; PREFACE_BYTES];
        for (kind, length) in [
            (4, 12),
            (HEADERS, 300),
            (DATA, 1_000),
            (DATA, 0),
            (6, 8),
            (DATA, 7),
        ] {
            came.extend(frame(kind, 0, 1, length));
        }
        for cut in 1..40 {
            let mut scan = FrameScan::of_client();
            let mut kept = 0;
            for part in came.chunks(cut) {
                scan.advance(part, |head| kept += head.of_body().unwrap_or(0));
            }
            assert_eq!(kept, 1_007, "{cut}");
        }
    }
}
