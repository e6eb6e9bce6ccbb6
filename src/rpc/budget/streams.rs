//! The streams of a connection that HTTP/2 has something of.

use std::collections::BTreeSet;

use crate::limits::STREAMS_PER_CONNECTION_MAX;

use super::frames::{DATA, END_STREAM, FrameHead, HEADERS, RST_STREAM};
use super::wide;

/// How many streams are counted. HTTP/2 lets no more begin, and of what a client begins after it was asked to go it says nothing.
const STREAMS_MAX: usize = STREAMS_PER_CONNECTION_MAX as usize;

/// What a stream takes, as long as HTTP/2 has it: it has the headers of an answer until they were sent …
const STREAM_BYTES: u64 = 2 * 1024;
/// … and what one had HTTP/2 keeps for the next, until the connection ends: 850 bytes were measured …
const KEPT_BYTES: u64 = 1024;
/// … of so many it counts for nothing.
const KEPT_FREE: usize = 256;

/// The streams of a connection that HTTP/2 has something of: from when a client begins one until its last frame was sent, or either
/// side took it back. An answer that waits to be sent has no body, nor a task, any more.
#[derive(Debug, Default)]
pub(super) struct OpenStreams {
    open: BTreeSet<u32>,
    /// The most that there were at once.
    most: usize,
    last: u32,
}

impl OpenStreams {
    /// How many there are.
    #[cfg(test)]
    fn count(&self) -> usize {
        self.open.len()
    }

    /// What they hold, with what is kept of those that were, in bytes.
    pub fn held(&self) -> u64 {
        let kept = self.most.saturating_sub(self.open.len().max(KEPT_FREE));
        wide(self.open.len()) * STREAM_BYTES + wide(kept) * KEPT_BYTES
    }

    /// A client sends this.
    pub fn came(&mut self, head: &FrameHead) {
        if head.kind == RST_STREAM {
            self.open.remove(&head.stream);
        } else if head.kind == HEADERS && head.stream > self.last {
            self.last = head.stream;
            if self.open.len() < STREAMS_MAX {
                self.open.insert(head.stream);
                self.most = self.most.max(self.open.len());
            }
        }
    }

    /// This was sent to it.
    pub fn sent(&mut self, head: &FrameHead) {
        let is_last = head.flags & END_STREAM != 0 && matches!(head.kind, DATA | HEADERS);
        if is_last || head.kind == RST_STREAM {
            self.open.remove(&head.stream);
        }
    }

    /// The connection is gone, and all of them with it.
    pub fn end(&mut self) {
        *self = OpenStreams::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_counts_until_its_end_was_sent_or_it_was_taken_back() {
        let head = FrameHead::empty;
        let mut streams = OpenStreams::default();
        for stream in [1, 3, 5, 7] {
            streams.came(&head(HEADERS, 0, stream));
            streams.came(&head(DATA, END_STREAM, stream));
        }
        // Trailers begin nothing, nor do headers of a stream that was.
        streams.came(&head(HEADERS, END_STREAM, 5));
        assert_eq!(streams.count(), 4);
        streams.sent(&head(HEADERS, 0, 1));
        streams.sent(&head(DATA, 0, 1));
        assert_eq!(streams.count(), 4);
        streams.sent(&head(HEADERS, END_STREAM, 1));
        streams.came(&head(RST_STREAM, 0, 3));
        streams.sent(&head(RST_STREAM, 0, 5));
        assert_eq!(streams.count(), 1);
        streams.came(&head(HEADERS, 0, 3));
        // An acknowledged PING has the same flag.
        streams.sent(&head(6, END_STREAM, 7));
        assert_eq!(streams.count(), 1);
        streams.sent(&head(DATA, END_STREAM, 7));
        assert_eq!(streams.count(), 0);
        assert_eq!(streams.held(), 0);
    }

    #[test]
    fn what_many_streams_had_counts_until_the_connection_ends() {
        let head = FrameHead::empty;
        let mut streams = OpenStreams::default();
        let all = (0..1_000).map(|number| 2 * number + 1);
        for stream in all.clone() {
            streams.came(&head(HEADERS, 0, stream));
        }
        assert_eq!(streams.held(), 1_000 * STREAM_BYTES);
        for stream in all {
            streams.sent(&head(HEADERS, END_STREAM, stream));
        }
        let kept = (1_000 - wide(KEPT_FREE)) * KEPT_BYTES;
        assert_eq!(streams.held(), kept);
        streams.came(&head(HEADERS, 0, 3_001));
        assert_eq!(streams.held(), kept + STREAM_BYTES);
        streams.end();
        assert_eq!(streams.held(), 0);
    }

    #[test]
    fn streams_that_are_begun_for_ever_are_counted_up_to_a_bound() {
        let mut streams = OpenStreams::default();
        for stream in 1..100_000 {
            streams.came(&FrameHead::empty(HEADERS, 0, stream));
        }
        assert_eq!(streams.count(), STREAMS_MAX);
    }
}
