//! The body of a request: counted while it is here, and complete in time.
//!
//! A message is decoded only once all of it is there. A client that announces one and never sends it would keep its call open
//! for ever, and hold up the end of the server; one that does so on every stream of a connection would fill the memory. So a
//! message that is not small waits for room, all at once, as soon as it is announced.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until};
use tonic::Status;
use tonic::body::Body;

use super::{CallInFlight, Charge, SMALL_BYTES, wide};
use crate::rpc::status;
use crate::rpc::stopping::Stopping;

/// What a message begins with: whether it is compressed, and its length.
const HEAD_BYTES: usize = 5;

/// By when what comes in must be there.
#[derive(Clone, Copy)]
pub enum Arrival {
    /// One message, by then. It is held until the call is answered.
    By(Instant),
    /// Message after message: each within so long from its first byte on, and held until it is complete.
    Each(Duration),
}

/// See the module.
pub struct ReceivedBody {
    inner: Body,
    arrival: Arrival,
    stopping: Stopping,
    /// Longer ones are refused where they are decoded: no room is made for them.
    message_bytes_max: usize,
    /// `None`: nothing is counted.
    call: Option<Arc<CallInFlight>>,
    scan: Scan,
    /// What the message that is coming in holds.
    room: Option<Charge>,
    /// The decoder of a stream keeps the memory of its largest message.
    kept: Option<Charge>,
    /// What came, and waits until there is room for its message.
    held_up: Option<HeldUp>,
    /// Made when there is something to wait for: most messages are there at once.
    late: Option<Pin<Box<dyn Future<Output = Late> + Send>>>,
}

/// What came of a message for which there is no room yet: a window of HTTP/2 at most.
struct HeldUp {
    data: Bytes,
    room: Pin<Box<dyn Future<Output = Charge> + Send>>,
    _turn: OwnedSemaphorePermit,
}

enum Late {
    Stopping,
    TooLate,
}

impl ReceivedBody {
    /// Of a call.
    pub fn new(
        inner: Body,
        call: Option<Arc<CallInFlight>>,
        arrival: Arrival,
        message_bytes_max: usize,
        stopping: Stopping,
    ) -> ReceivedBody {
        ReceivedBody {
            inner,
            arrival,
            stopping,
            message_bytes_max,
            call: call.filter(|call| call.account().is_bounded()),
            scan: Scan::default(),
            room: None,
            kept: None,
            held_up: None,
            late: None,
        }
    }

    /// A message was completed.
    fn completed(&mut self) {
        self.late = None;
        let (Some(call), Some(room)) = (&self.call, self.room.take()) else {
            return;
        };
        match self.arrival {
            Arrival::By(_) => call.received(room),
            Arrival::Each(_) => {
                let kept = self.kept.get_or_insert_with(|| call.account().keep(0));
                kept.grow(room.bytes());
            }
        }
    }

    /// What may be decoded of what came; `None`: it waits for room.
    fn came(&mut self, data: Bytes) -> Result<Option<Frame<Bytes>>, Status> {
        let before = self.scan.completed;
        let completed = self.scan.advance(&data);
        let is_stream = matches!(self.arrival, Arrival::Each(_));
        if completed && is_stream {
            self.completed();
        }
        // Nothing would count it.
        if !is_stream && (before > 0 && !data.is_empty() || self.scan.is_second()) {
            return Err(Status::internal(
                "a second message in a call that takes one",
            ));
        }
        let is_announced = self.scan.head_came == HEAD_BYTES || completed && !is_stream;
        if let Some(call) = self
            .call
            .as_ref()
            .filter(|_| is_announced && self.room.is_none())
        {
            let (account, length) = (call.account(), self.scan.length);
            if length > SMALL_BYTES && length <= self.message_bytes_max + HEAD_BYTES {
                if let Some(room) = account.room_now(length) {
                    self.room = Some(room);
                    return Ok(Some(self.pass(data)));
                }
                let turn = Arc::clone(&account.waits).try_acquire_owned();
                let _turn = turn.map_err(|_| status::no_room())?;
                let all = Arc::clone(&account.messages);
                let room = Box::pin(Arc::clone(account).room(all, length));
                self.held_up = Some(HeldUp { data, room, _turn });
                return Ok(None);
            }
            if length <= SMALL_BYTES && !is_stream {
                self.room = Some(account.charge(wide(length)));
            }
        }
        Ok(Some(self.pass(data)))
    }

    /// What came may be decoded.
    fn pass(&mut self, data: Bytes) -> Frame<Bytes> {
        if self.scan.is_between() {
            self.completed();
        }
        Frame::data(data)
    }

    /// The status of a message that is not there in time.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        let by = match self.arrival {
            Arrival::By(by) => by,
            // Between messages a stream may be silent for as long as it likes.
            Arrival::Each(_) if self.scan.is_between() && self.held_up.is_none() => {
                return Poll::Pending;
            }
            Arrival::Each(span) => Instant::now() + span,
        };
        let late = self.late.get_or_insert_with(|| {
            let mut stopping = self.stopping.clone();
            Box::pin(async move {
                tokio::select! {
                    biased;
                    () = stopping.stopped() => Late::Stopping,
                    () = sleep_until(by) => Late::TooLate,
                }
            })
        });
        let failed = match ready!(late.as_mut().poll(cx)) {
            Late::Stopping => status::stopping(),
            Late::TooLate if self.held_up.is_some() => status::no_room(),
            Late::TooLate => status::message_late(),
        };
        Poll::Ready(failed)
    }
}

impl http_body::Body for ReceivedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        loop {
            if let Some(held_up) = &mut this.held_up {
                let Poll::Ready(room) = held_up.room.as_mut().poll(cx) else {
                    return this.poll_late(cx).map(|status| Some(Err(status)));
                };
                let data = std::mem::take(&mut held_up.data);
                this.held_up = None;
                this.room = Some(room);
                return Poll::Ready(Some(Ok(this.pass(data))));
            }
            let frame = match Pin::new(&mut this.inner).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => frame,
                Poll::Ready(ended) => return Poll::Ready(ended),
                Poll::Pending => return this.poll_late(cx).map(|status| Some(Err(status))),
            };
            let data = match frame.into_data() {
                Ok(data) => data,
                Err(frame) => return Poll::Ready(Some(Ok(frame))),
            };
            match this.came(data) {
                Ok(None) => {}
                Ok(Some(passed)) => return Poll::Ready(Some(Ok(passed))),
                Err(refused) => return Poll::Ready(Some(Err(refused))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.held_up.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.held_up {
            None => self.inner.size_hint(),
            Some(_) => SizeHint::default(),
        }
    }
}

/// Where one message ends and the next begins.
#[derive(Default)]
struct Scan {
    head: [u8; HEAD_BYTES],
    /// How much of the head came.
    head_came: usize,
    /// How much of the message is still to come, once its head is there.
    left: usize,
    /// Of the message whose head came last, with it.
    length: usize,
    /// How many messages were completed.
    completed: usize,
}

impl Scan {
    /// Nothing of a message came that is not complete.
    fn is_between(&self) -> bool {
        self.head_came == 0
    }

    /// Whether more than one message came, or began.
    fn is_second(&self) -> bool {
        self.completed > 1 || self.completed == 1 && !self.is_between()
    }

    /// Reads on. Whether a message was completed.
    fn advance(&mut self, mut data: &[u8]) -> bool {
        let mut completed = false;
        while !data.is_empty() {
            if self.head_came < HEAD_BYTES {
                let count = data.len().min(HEAD_BYTES - self.head_came);
                let (head, rest) = data.split_at(count);
                self.head[self.head_came..self.head_came + count].copy_from_slice(head);
                self.head_came += count;
                data = rest;
                if self.head_came < HEAD_BYTES {
                    return completed;
                }
                let [_, a, b, c, d] = self.head;
                let length = u32::from_be_bytes([a, b, c, d]);
                self.left = usize::try_from(length).unwrap_or(usize::MAX);
                self.length = self.left.saturating_add(HEAD_BYTES);
            }
            let count = data.len().min(self.left);
            data = data.split_at(count).1;
            self.left -= count;
            if self.left > 0 {
                return completed;
            }
            completed = true;
            self.completed += 1;
            self.head_came = 0;
        }
        completed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_seen_however_they_are_cut() {
        let mut stream = Vec::new();
        for length in [0_u32, 3, 300] {
            stream.push(0);
            stream.extend(length.to_be_bytes());
            stream.extend(vec![7; usize::try_from(length).unwrap()]);
        }
        for cut in 1..20 {
            let mut scan = Scan::default();
            let mut completed = 0;
            for part in stream.chunks(cut) {
                completed += usize::from(scan.advance(part));
            }
            assert!(scan.is_between() && (2..=3).contains(&completed), "{cut}");
        }
        let mut scan = Scan::default();
        assert!(!scan.advance(&stream[8..11]));
        assert!(!scan.is_between());
        assert!(scan.advance(&stream[..5]) || !scan.is_between());
        let mut scan = Scan::default();
        scan.advance(&stream[13..20]);
        assert_eq!(scan.length, 305);
    }
}
