//! The streams of a connection that HTTP/2 has something of.

use std::collections::BTreeSet;

use super::frames::{DATA, END_STREAM, FrameHead, HEADERS, RST_STREAM};

/// How many streams are counted. HTTP/2 lets no more begin, and of what a client begins after it was asked to go it says nothing.
const STREAMS_MAX: usize = 16 * 1024;

/// The streams of a connection that HTTP/2 has something of: from when a client begins one until its last frame was sent, or either
/// side took it back. An answer that waits to be sent has no body, nor a task, any more.
#[derive(Debug, Default)]
pub(super) struct OpenStreams {
    open: BTreeSet<u32>,
    last: u32,
}

impl OpenStreams {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.open.len()
    }

    /// A client sends this.
    pub fn came(&mut self, head: &FrameHead) {
        if head.kind == RST_STREAM {
            self.open.remove(&head.stream);
        } else if head.kind == HEADERS && head.stream > self.last {
            self.last = head.stream;
            if self.open.len() < STREAMS_MAX {
                self.open.insert(head.stream);
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
        self.open.clear();
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
