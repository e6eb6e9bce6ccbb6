//! The queue of calls that were read and wait for room to begin.

use std::collections::{HashSet, VecDeque};

use bytes::Bytes;
use fermata_proto::PipelineCall;
use fermata_proto::pipeline_call::Call;
use prost::Message as _;
use tokio::time::Instant;

/// Values up to this are copied out of their receive buffer, which may be many times as large. A larger one is copied if the
/// buffer is more than twice its size.
const COPIED_BYTES: usize = 64 * 1024;

/// The kinds of calls. Calls of one kind wait for the same room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It keeps a session or locks alive, and is answered soon.
    Renewal,
    /// It reads a value, which may be large, under a lock.
    Read,
    /// It reads a value without a lock, or before it has one: it holds up no holder.
    Unlocked,
    /// It begins something: an entry, or a session.
    Begins,
    /// Any other call of a holder or waiter.
    Other,
}

impl Kind {
    fn of(call: &PipelineCall) -> Kind {
        match &call.call {
            Some(Call::RenewLocks(_) | Call::RenewSession(_) | Call::KeepAlive(_)) => Kind::Renewal,
            // It renews, and confirms a lock that only memory knew.
            Some(Call::AcquireLock(ask)) if !ask.read_value && !waits(call) => Kind::Renewal,
            Some(Call::CriticalGet(_)) => Kind::Read,
            Some(Call::Get(_)) => Kind::Unlocked,
            Some(Call::CreateLockRef(ask)) if ask.read_value => Kind::Unlocked,
            Some(Call::CreateLockRef(_) | Call::OpenSession(_)) => Kind::Begins,
            // A wait may last two thirds of the TTL, and reads only at its end.
            Some(Call::AcquireLock(ask)) if ask.read_value && !waits(call) => Kind::Read,
            _ => Kind::Other,
        }
    }
}

/// Whether a call waits for a lock.
pub(super) fn waits(call: &PipelineCall) -> bool {
    match &call.call {
        Some(Call::AcquireLock(ask)) => {
            let wait = ask.wait.as_ref();
            wait.is_some_and(|wait| (wait.seconds, wait.nanos) != (0, 0))
        }
        _ => false,
    }
}

/// Whether a call writes a value.
pub(super) fn writes(call: &PipelineCall) -> bool {
    match &call.call {
        Some(Call::CriticalPut(_) | Call::CriticalDelete(_)) => true,
        Some(Call::ReleaseLock(release)) => release.put.is_some(),
        _ => false,
    }
}

/// The value of a call is a part of its frame's buffer, and keeps all of it in memory: a value that is a small part is copied.
pub(super) fn unshare(call: &mut PipelineCall, frame_bytes: usize) {
    let value = match &mut call.call {
        Some(Call::CriticalPut(put)) => &mut put.value,
        Some(Call::ReleaseLock(release)) => match &mut release.put {
            Some(put) => &mut put.value,
            None => return,
        },
        _ => return,
    };
    if value.len() <= COPIED_BYTES || value.len() < frame_bytes / 2 {
        *value = Bytes::copy_from_slice(value);
    }
}

/// A call that waits to be begun.
#[derive(Debug)]
pub(super) struct Waiting {
    pub call: PipelineCall,
    pub kind: Kind,
    pub received: Instant,
    /// As encoded.
    pub bytes: usize,
}

/// The waiting calls of one stream: renewals first, then calls of holders and waiters, then new work and reads without a lock.
/// Each of the three keeps the order of arrival.
#[derive(Debug, Default)]
pub(super) struct CallQueue {
    queues: [VecDeque<Waiting>; 3],
    ids: HashSet<u64>,
    bytes: usize,
}

impl CallQueue {
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn has(&self, call_id: u64) -> bool {
        self.ids.contains(&call_id)
    }

    /// One more, with a call_id that no other one has.
    pub fn push(&mut self, call: PipelineCall, received: Instant) {
        let (kind, bytes) = (Kind::of(&call), call.encoded_len());
        self.ids.insert(call.call_id);
        self.bytes += bytes;
        let [renewals, holders, beginnings] = &mut self.queues;
        let queue = match kind {
            Kind::Renewal => renewals,
            Kind::Read | Kind::Other => holders,
            Kind::Unlocked | Kind::Begins => beginnings,
        };
        queue.push_back(Waiting {
            call,
            kind,
            received,
            bytes,
        });
    }

    /// The next call of a kind that has room.
    pub fn next(&mut self, has_room: impl Fn(Kind) -> bool) -> Option<Waiting> {
        let next = self.queues.iter_mut().find_map(|queue| {
            let at = queue.iter().position(|waiting| has_room(waiting.kind))?;
            queue.remove(at)
        })?;
        self.ids.remove(&next.call.call_id);
        self.bytes -= next.bytes;
        Some(next)
    }

    /// Takes out those that were received before this, except waits for a lock, and returns their call_ids.
    pub fn take_late(&mut self, before: Instant) -> Vec<u64> {
        self.take_out(|waiting| waiting.received < before && !waits(&waiting.call))
    }

    /// Takes one out, and says whether it was there.
    pub fn remove(&mut self, call_id: u64) -> bool {
        self.has(call_id)
            && !self
                .take_out(|waiting| waiting.call.call_id == call_id)
                .is_empty()
    }

    /// Takes out those that match, and returns their call_ids.
    fn take_out(&mut self, goes: impl Fn(&Waiting) -> bool) -> Vec<u64> {
        let mut gone = Vec::new();
        for queue in &mut self.queues {
            queue.retain(|waiting| {
                let goes = goes(waiting);
                if goes {
                    gone.push(waiting.call.call_id);
                    self.ids.remove(&waiting.call.call_id);
                    self.bytes -= waiting.bytes;
                }
                !goes
            });
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use fermata_proto::{
        CreateLockRefRequest, CriticalGetRequest, CriticalPutRequest, GetRequest, RenewLocksRequest,
    };

    use super::*;

    fn read() -> Call {
        Call::CriticalGet(CriticalGetRequest::default())
    }

    fn put() -> Call {
        Call::CriticalPut(CriticalPutRequest::default())
    }

    fn renewal() -> Call {
        Call::RenewLocks(RenewLocksRequest::default())
    }

    fn queue(calls: impl IntoIterator<Item = Call>) -> CallQueue {
        let mut queue = CallQueue::default();
        for (call_id, call) in (1..).zip(calls) {
            let call = PipelineCall {
                call_id,
                timeout: None,
                traceparent: String::new(),
                call: Some(call),
            };
            queue.push(call, Instant::now());
        }
        queue
    }

    fn order(queue: &mut CallQueue, has_room: impl Fn(Kind) -> bool) -> Vec<u64> {
        let next = || queue.next(&has_room).map(|waiting| waiting.call.call_id);
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn renewals_are_begun_first_and_the_others_as_they_came() {
        let calls = [read(), put(), renewal(), put(), read(), renewal()];
        let mut waiting = queue(calls);
        assert_eq!(order(&mut waiting, |_| true), [3, 6, 1, 2, 4, 5]);
        assert!(waiting.is_empty() && waiting.bytes() == 0);
    }

    #[test]
    fn holders_go_before_what_begins_something() {
        let create = || Call::CreateLockRef(CreateLockRefRequest::default());
        let get = || Call::Get(GetRequest::default());
        let held = [put(), put(), read(), put(), put()];
        let calls = [create(), get(), create()].into_iter().chain(held);
        let mut waiting = queue(calls);
        assert_eq!(order(&mut waiting, |_| true), [4, 5, 6, 7, 8, 1, 2, 3]);
    }

    #[test]
    fn what_has_no_room_holds_up_its_own_kind_only() {
        let mut waiting = queue([read(), put(), read(), put(), renewal()]);
        let no_reads = |kind| kind != Kind::Read;
        assert_eq!(order(&mut waiting, no_reads), [5, 2, 4]);
        assert_eq!(waiting.len(), 2);
        assert_eq!(order(&mut waiting, |_| true), [1, 3]);
    }

    #[test]
    fn one_that_is_taken_out_is_not_begun() {
        let mut waiting = queue([read(), put(), renewal()]);
        for call_id in [1, 2, 3] {
            assert!(waiting.has(call_id) && waiting.remove(call_id));
            assert!(!waiting.has(call_id) && !waiting.remove(call_id));
        }
        assert_eq!((waiting.len(), waiting.bytes()), (0, 0));
        assert_eq!(order(&mut waiting, |_| true), [0; 0]);
    }

    #[test]
    fn what_reads_without_a_lock_has_its_own_room() {
        let create = |read_value| {
            Call::CreateLockRef(CreateLockRefRequest {
                read_value,
                ..Default::default()
            })
        };
        let get = Call::Get(GetRequest::default());
        let mut waiting = queue([create(true), create(false), read(), get]);
        assert_eq!(order(&mut waiting, |kind| kind == Kind::Unlocked), [1, 4]);
        assert_eq!(order(&mut waiting, |kind| kind == Kind::Read), [3]);
    }
}
