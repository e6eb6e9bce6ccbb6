//! Where the frames of a connection begin and end, and what of them HTTP/2 keeps in memory.

use super::header_table::{BUFFER_BYTES, HeaderTable};
use super::wide;

/// What an HTTP/2 client sends first, in bytes.
pub const PREFACE_BYTES: usize = 24;

/// What a frame begins with: its length (3 bytes), its kind, flags, and its stream.
const HEAD_BYTES: usize = 9;

/// The kinds of frames that bring a body, and headers, and end a stream.
pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
/// What no client may send (RFC 9113, 8.4), though HTTP/2 reads the headers in it.
const PUSH_PROMISE: u8 = 5;
const CONTINUATION: u8 = 9;

/// The flag of the last frame that its side sends of a stream.
pub(super) const END_STREAM: u8 = 1;
/// That of the last frame of a block of headers.
const END_HEADERS: u8 = 4;
/// Those of frames in which first comes how long their padding is, and then how much the stream matters, which nobody asks any more.
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;
const PRIORITY_BYTES: usize = 5;
/// Of which the first say on which stream it depends.
const DEPENDENCY_BYTES: usize = 4;

/// The largest block of headers that is read: twice the largest list of headers that clients are told to send.
const BLOCK_BYTES_MAX: u64 = 32 * 1024;

/// What comes between the bodies of two small calls, at most.
const HEADERS_BYTES: u64 = 1024;

/// Reads one direction of a connection.
pub struct FrameScan {
    head: [u8; HEAD_BYTES],
    head_came: usize,
    payload: Payload,
    /// What began last.
    began: FrameHead,
    /// What came of other frames since the last one with something of a body, in bytes.
    between: u64,
    /// Of a client only.
    headers: Option<HeaderTable>,
    /// A client sent what none may send.
    has_promised: bool,
    /// What came since the last entry of that table that keeps anything, in bytes.
    since_entry: u64,
}

/// What follows.
#[derive(Clone, Copy, Debug)]
enum Payload {
    /// So much that is skipped.
    Skipped(usize),
    /// How long the padding is of a frame of which so much is to come.
    Padding { left: usize },
    /// On which stream that of a frame of headers depends, and how much; then so much of a block, and after it what is skipped.
    Priority {
        came: usize,
        depends_on: u32,
        left: usize,
        after: usize,
    },
    /// So much of a block of headers, and after it what is skipped.
    Block { left: usize, after: usize },
}

/// How a frame begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameHead {
    pub(super) kind: u8,
    pub(super) flags: u8,
    /// Of what follows, without padding, in bytes.
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
            began: FrameHead::default(),
            between: 0,
            headers: None,
            has_promised: false,
            since_entry: 0,
        }
    }

    /// What HTTP/2 may keep of headers, in bytes.
    pub fn kept_by_headers(&self) -> u64 {
        self.headers.as_ref().map_or(0, HeaderTable::kept)
    }

    /// Why the connection is to end: of what came it is not known what HTTP/2 keeps, or it is too much.
    pub fn fault(&self) -> Option<&'static str> {
        let headers = self.headers.as_ref();
        let longest = headers.map_or(0, HeaderTable::longest_block);
        if longest > BLOCK_BYTES_MAX {
            return Some("its headers are larger than 32 KiB");
        }
        if headers.is_some_and(HeaderTable::had_no_name) {
            return Some("it sent a header without a name");
        }
        self.has_promised
            .then_some("it sent PUSH_PROMISE, which no client may")
    }

    /// Reads on: which frames begin.
    pub fn advance(&mut self, mut bytes: &[u8], mut begins: impl FnMut(FrameHead)) {
        while !bytes.is_empty() {
            let count = self.payload_of(bytes, &mut begins);
            bytes = bytes.split_at(count).1;
            let head_count = bytes.len().min(HEAD_BYTES - self.head_came);
            let (head, rest) = bytes.split_at(head_count);
            self.head[self.head_came..self.head_came + head_count].copy_from_slice(head);
            self.head_came += head_count;
            bytes = rest;
            self.since_entry = self.since_entry.saturating_add(wide(head_count));
            if self.head_came == HEAD_BYTES {
                self.begin(&mut begins);
            }
        }
    }

    /// Reads what follows a head, as far as it came: so much of it. Where that is all of what came, more is to come.
    fn payload_of(&mut self, bytes: &[u8], begins: &mut impl FnMut(FrameHead)) -> usize {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            let first = rest.first().copied().unwrap_or_default();
            at += match self.payload {
                Payload::Skipped(0) => break,
                Payload::Skipped(left) => {
                    let count = rest.len().min(left);
                    self.payload = Payload::Skipped(left - count);
                    self.since_entry = self.since_entry.saturating_add(wide(count));
                    count
                }
                Payload::Padding { left } => {
                    self.pad(left.saturating_sub(1), first.into(), begins);
                    1
                }
                Payload::Priority {
                    came,
                    depends_on,
                    left,
                    after,
                } => {
                    self.payload = self.prioritized(first, (came, depends_on), (left, after));
                    1
                }
                Payload::Block { left, after } => {
                    let count = rest.len().min(left);
                    // What comes behind a path in it counts as if it came before.
                    self.since_entry = self.since_entry.saturating_add(wide(count));
                    if let Some(headers) = &mut self.headers {
                        headers.advance(rest.split_at(count).0, &mut self.since_entry);
                    }
                    self.payload = Payload::block(left - count, after);
                    count
                }
            };
        }
        at
    }

    /// All of a head is there.
    fn begin(&mut self, begins: &mut impl FnMut(FrameHead)) {
        self.head_came = 0;
        let [a, b, c, kind, flags, stream @ ..] = self.head;
        let length = u32::from_be_bytes([0, a, b, c]);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        self.began = FrameHead {
            kind,
            flags,
            length,
            // The first bit means nothing.
            stream: u32::from_be_bytes(stream) & (u32::MAX >> 1),
            between: 0,
        };
        if let Some(headers) = &mut self.headers {
            let is_open = flags & END_HEADERS == 0;
            match kind {
                HEADERS => headers.begin(wide(length), is_open),
                CONTINUATION => headers.go_on(wide(length), is_open),
                PUSH_PROMISE => self.has_promised = true,
                _ => {}
            }
        }
        let is_padded = flags & PADDED != 0 && matches!(kind, DATA | HEADERS);
        match is_padded && length > 0 {
            true => self.payload = Payload::Padding { left: length },
            false => self.follow(length, 0, begins),
        }
    }

    /// So much is to come, of which that much is padding.
    fn pad(&mut self, left: usize, padding: usize, begins: &mut impl FnMut(FrameHead)) {
        // With more of it than there is the connection ends.
        let padding = padding.min(left);
        self.follow(left - padding, padding, begins);
    }

    /// A frame begins, with so much, and what is skipped after it.
    fn follow(&mut self, length: usize, after: usize, begins: &mut impl FnMut(FrameHead)) {
        self.began.length = length;
        let FrameHead { kind, flags, .. } = self.began;
        match self.began.of_body() {
            Some(_) => self.began.between = std::mem::take(&mut self.between),
            None => {
                let all = wide(length) + wide(after) + wide(HEAD_BYTES);
                self.between = self.between.saturating_add(all);
            }
        }
        self.payload = match (kind, &self.headers) {
            (HEADERS, Some(_)) if flags & PRIORITY != 0 => match length.checked_sub(PRIORITY_BYTES)
            {
                Some(left) => Payload::Priority {
                    came: 0,
                    depends_on: 0,
                    left,
                    after,
                },
                None => Payload::Skipped(length + after),
            },
            (HEADERS | CONTINUATION, Some(_)) => Payload::block(length, after),
            _ => Payload::Skipped(length + after),
        };
        begins(self.began);
    }

    /// One more byte of a priority.
    fn prioritized(
        &self,
        byte: u8,
        (came, depends_on): (usize, u32),
        (left, after): (usize, usize),
    ) -> Payload {
        let depends_on = match came < DEPENDENCY_BYTES {
            true => depends_on << 8 | u32::from(byte),
            false => depends_on,
        };
        match came + 1 == PRIORITY_BYTES {
            false => Payload::Priority {
                came: came + 1,
                depends_on,
                left,
                after,
            },
            // HTTP/2 refuses a stream that depends on itself, and does not read its headers.
            true if depends_on & (u32::MAX >> 1) == self.began.stream => {
                Payload::Skipped(left + after)
            }
            true => Payload::block(left, after),
        }
    }
}

impl Payload {
    /// So much of a block, if there is any.
    fn block(left: usize, after: usize) -> Payload {
        match left {
            0 => Payload::Skipped(after),
            left => Payload::Block { left, after },
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

    fn framed(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length_bytes = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = length_bytes[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        frame
    }

    /// Headers with a path that is to be remembered.
    fn path(stream: u32) -> Vec<u8> {
        framed(HEADERS, 4, stream, &[0x44, 2, b'/', b'a'])
    }

    /// After the preface.
    fn scan() -> FrameScan {
        let mut scan = FrameScan::of_client();
        scan.advance(&[0; PREFACE_BYTES], |_| ());
        scan
    }

    fn advance(scan: &mut FrameScan, bytes: &[u8], cut: usize) {
        for part in bytes.chunks(cut) {
            scan.advance(part, |_| ());
        }
    }

    #[test]
    fn only_bodies_are_kept_however_the_frames_are_cut() {
        let mut came = vec![DATA; PREFACE_BYTES];
        for (kind, flags, payload) in [
            (4, 0, vec![0; 12]),
            (HEADERS, 0, vec![0x82; 300]),
            (DATA, 0, vec![0; 1_000]),
            (DATA, 0, vec![]),
            (6, 0, vec![0; 8]),
            (DATA, 0, vec![0; 7]),
            // Five bytes, and three of padding; and no more than padding.
            (DATA, PADDED, vec![3, 1, 2, 3, 4, 5, 0, 0, 0]),
            (DATA, PADDED, vec![2, 0, 0]),
            (DATA, 0, vec![0; 1]),
        ] {
            came.extend(framed(kind, flags, 1, &payload));
        }
        for cut in 1..40 {
            let mut scan = FrameScan::of_client();
            let mut kept = Vec::new();
            for part in came.chunks(cut) {
                scan.advance(part, |head| kept.extend(head.of_body()));
            }
            assert_eq!(kept, [1_000, 7, 5, 1], "{cut}");
        }
    }

    #[test]
    fn paths_are_found_behind_padding_and_priority_and_in_continuations() {
        for cut in 1..20 {
            let mut scan = scan();
            let padded = [2, 0, 0, 0, 7, 16, 0x44, 2, b'/', b'a', 0, 0];
            let flags = PADDED | PRIORITY | END_HEADERS;
            let frame = framed(HEADERS, flags, 1, &padded);
            advance(&mut scan, &frame, cut);
            let once = scan.kept_by_headers();
            assert!(once > 0, "{cut}");
            let begun = framed(HEADERS, 0, 3, &[0x44, 2, b'/']);
            advance(&mut scan, &begun, cut);
            // It is kept until it is whole.
            assert_eq!(scan.kept_by_headers(), once + BUFFER_BYTES, "{cut}");
            let ended = framed(CONTINUATION, 4, 3, b"b");
            advance(&mut scan, &ended, cut);
            assert!(scan.kept_by_headers() > once, "{cut}");
        }
    }

    #[test]
    fn a_block_that_never_ends_is_too_large_soon() {
        let mut scan = scan();
        // Each of them is a header of its own.
        let part = [0x82; 8_192];
        for (kind, flags, is_too_large) in [
            (HEADERS, END_HEADERS, false),
            (HEADERS, 0, false),
            (CONTINUATION, 0, false),
            (CONTINUATION, 0, false),
            (CONTINUATION, 0, false),
            (CONTINUATION, 0, true),
        ] {
            // Its head is enough.
            advance(&mut scan, &framed(kind, flags, 1, &part)[..HEAD_BYTES], 9);
            assert_eq!(scan.fault().is_some(), is_too_large);
            advance(&mut scan, &part, 1_000);
        }
    }

    /// Its headers would go into the table without being followed.
    #[test]
    fn a_client_that_promises_is_no_client() {
        let mut scan = scan();
        advance(&mut scan, &path(1), 1_000);
        assert_eq!(scan.fault(), None);
        let promise = framed(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2, 0x44, 1, b'/']);
        advance(&mut scan, &promise[..HEAD_BYTES], 1);
        assert!(scan.fault().is_some_and(|why| why.contains("PUSH_PROMISE")));
    }

    /// HTTP/2 leaves it out without a word where its block goes on, so it must push no path out here.
    #[test]
    fn a_header_without_a_name_ends_the_connection() {
        let nameless = [0x40, 0, 1, b'x'];
        for (flags, cut) in [(0, 1), (END_HEADERS, 100)] {
            let mut scan = scan();
            advance(&mut scan, &path(1), 1_000);
            assert_eq!(scan.fault(), None);
            advance(&mut scan, &framed(HEADERS, flags, 3, &nameless), cut);
            assert!(
                scan.fault()
                    .is_some_and(|why| why.contains("without a name"))
            );
        }
    }

    /// Frames with nothing in them take a buffer as well.
    #[test]
    fn all_that_comes_between_two_paths_counts() {
        let mut scan = scan();
        advance(&mut scan, &path(1), 1_000);
        let before = scan.kept_by_headers();
        advance(&mut scan, &framed(0xbe, 0, 0, &[]).repeat(900), 1_000);
        advance(&mut scan, &path(3), 1_000);
        let kept = scan.kept_by_headers() - before;
        assert!((8_100..8_200).contains(&kept), "{kept}");
    }

    /// HTTP/2 refuses such a stream before it reads its headers: what it remembers stays.
    #[test]
    fn headers_of_a_stream_that_depends_on_itself_push_nothing_out() {
        let mut scan = scan();
        for stream in [1, 3, 5] {
            advance(&mut scan, &path(stream), 1_000);
            advance(&mut scan, &framed(0xbe, 0, 0, &[0; 8_000]), 1_000);
        }
        let kept = scan.kept_by_headers();
        assert!(kept > 16_000);
        let others = [0x40, 1, b'a', 0].repeat(128);
        for (depends_on, left) in [(7_u32, kept), (0, 0)] {
            let mut payload = depends_on.to_be_bytes().to_vec();
            payload.push(16);
            payload.extend(&others);
            let frame = framed(HEADERS, 4 | PRIORITY, 7, &payload);
            advance(&mut scan, &frame, 100);
            assert_eq!(scan.kept_by_headers(), left);
        }
    }
}
