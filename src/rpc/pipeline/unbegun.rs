//! Calls that were read and not begun, for want of room.

use std::collections::{HashSet, VecDeque};

use bytes::Bytes;
use fermata_proto::PipelineCall;
use fermata_proto::pipeline_call::Call;
use prost::Message as _;
use tokio::time::Instant;

/// Where both wait, one of so many that are begun begins something.
const IN_TURN: usize = 4;

/// Values up to this are copied out of the buffer that they were received in, which may be many times as large; so are
/// larger ones of which it is more than twice the size.
const COPIED_BYTES: usize = 64 * 1024;

/// What a call waits for room with: others of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It keeps a session or locks alive, and is answered soon.
    Renewal,
    /// It answers with a value, which may be large, under a lock that is held.
    Read,
    /// So does this, without one or before there is one: it hangs in nobody's way who has a lock.
    Unlocked,
    /// It begins something: an entry, or a session.
    Begins,
    /// It is of who holds or waits for a lock.
    Other,
}

impl Kind {
    fn of(call: &PipelineCall) -> Kind {
        match &call.call {
            Some(Call::RenewLocks(_) | Call::RenewSession(_) | Call::KeepAlive(_)) => Kind::Renewal,
            Some(Call::CriticalGet(_)) => Kind::Read,
            Some(Call::Get(_)) => Kind::Unlocked,
            Some(Call::CreateLockRef(ask)) if ask.read_value => Kind::Unlocked,
            Some(Call::CreateLockRef(_) | Call::OpenSession(_)) => Kind::Begins,
            // One that waits for a lock may do so for an hour, and reads nothing until then.
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

/// The value of a call is a part of the buffer that its frame came in, which lives as long as that: a small part of it, or of
/// what may have been in that buffer before, is copied.
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

/// Those of one stream, each kind in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Unbegun {
    renewals: VecDeque<(u64, Waiting)>,
    reads: VecDeque<(u64, Waiting)>,
    unlocked: VecDeque<(u64, Waiting)>,
    begins: VecDeque<(u64, Waiting)>,
    others: VecDeque<(u64, Waiting)>,
    /// How many of who has a lock were begun since another one was that could have been.
    in_turn: usize,
    ids: HashSet<u64>,
    bytes: usize,
    /// How many came so far.
    came: u64,
}

impl Unbegun {
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

    /// One more, whose number none of the others has.
    pub fn push(&mut self, call: PipelineCall, received: Instant) {
        let bytes = call.encoded_len();
        self.ids.insert(call.call_id);
        self.bytes += bytes;
        self.came += 1;
        let waiting = Waiting {
            kind: Kind::of(&call),
            call,
            received,
            bytes,
        };
        let came = self.came;
        self.queue(waiting.kind).push_back((came, waiting));
    }

    fn queue(&mut self, kind: Kind) -> &mut VecDeque<(u64, Waiting)> {
        match kind {
            Kind::Renewal => &mut self.renewals,
            Kind::Read => &mut self.reads,
            Kind::Unlocked => &mut self.unlocked,
            Kind::Begins => &mut self.begins,
            Kind::Other => &mut self.others,
        }
    }

    /// The next one of which there is room for its kind: a renewal, else one of who holds or waits for a lock, else the one that
    /// came first. Of so many in a row one is of those that begin something: their turn comes as well.
    pub fn next(&mut self, has_room: impl Fn(Kind) -> bool) -> Option<Waiting> {
        let first = |queue: &VecDeque<(u64, Waiting)>, kind| match queue.front() {
            Some((came, _)) if has_room(kind) => Some((*came, kind)),
            _ => None,
        };
        let earlier = |one: Option<(u64, Kind)>, other: Option<(u64, Kind)>| {
            let both = one.into_iter().chain(other);
            both.min_by_key(|(came, _)| *came)
        };
        let holds = earlier(
            first(&self.reads, Kind::Read),
            first(&self.others, Kind::Other),
        );
        let begins = earlier(
            first(&self.unlocked, Kind::Unlocked),
            first(&self.begins, Kind::Begins),
        );
        let renewal = first(&self.renewals, Kind::Renewal);
        let next = match (holds, begins) {
            _ if renewal.is_some() => renewal,
            (Some(_), Some(_)) if self.in_turn + 1 >= IN_TURN => begins,
            (Some(_), _) => holds,
            (None, _) => begins,
        };
        if renewal.is_none() {
            self.in_turn = match next == holds && begins.is_some() {
                true => self.in_turn + 1,
                false => 0,
            };
        }
        let next = next.and_then(|(_, kind)| self.queue(kind).pop_front());
        let next = next.map(|(_, waiting)| waiting);
        if let Some(waiting) = &next {
            self.ids.remove(&waiting.call.call_id);
            self.bytes -= waiting.bytes;
        }
        next
    }

    /// Takes out those that came before this, and do not wait for a lock for as long as their caller likes. Their numbers.
    pub fn take_late(&mut self, before: Instant) -> Vec<u64> {
        self.take_out(|waiting| waiting.received < before && !waits(&waiting.call))
    }

    /// Takes one out; whether it was there.
    pub fn remove(&mut self, call_id: u64) -> bool {
        self.has(call_id)
            && !self
                .take_out(|waiting| waiting.call.call_id == call_id)
                .is_empty()
    }

    /// Takes out those of which this is so. Their numbers.
    fn take_out(&mut self, goes: impl Fn(&Waiting) -> bool) -> Vec<u64> {
        let mut gone = Vec::new();
        for queue in [
            &mut self.renewals,
            &mut self.reads,
            &mut self.unlocked,
            &mut self.begins,
            &mut self.others,
        ] {
            queue.retain(|(_, waiting)| {
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

    fn unbegun(calls: impl IntoIterator<Item = Call>) -> Unbegun {
        let mut unbegun = Unbegun::default();
        for (call_id, call) in (1..).zip(calls) {
            let call = PipelineCall {
                call_id,
                timeout: None,
                call: Some(call),
            };
            unbegun.push(call, Instant::now());
        }
        unbegun
    }

    fn order(unbegun: &mut Unbegun, has_room: impl Fn(Kind) -> bool) -> Vec<u64> {
        let next = || unbegun.next(&has_room).map(|waiting| waiting.call.call_id);
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn renewals_are_begun_first_and_the_others_as_they_came() {
        let calls = [read(), put(), renewal(), put(), read(), renewal()];
        let mut unbegun = unbegun(calls);
        assert_eq!(order(&mut unbegun, |_| true), [3, 6, 1, 2, 4, 5]);
        assert!(unbegun.is_empty() && unbegun.bytes() == 0);
    }

    #[test]
    fn who_has_a_lock_goes_first_and_others_have_their_turn() {
        let create = || Call::CreateLockRef(CreateLockRefRequest::default());
        let get = || Call::Get(GetRequest::default());
        let calls = [
            create(),
            get(),
            create(),
            put(),
            put(),
            read(),
            put(),
            put(),
        ];
        let mut unbegun = unbegun(calls);
        assert_eq!(order(&mut unbegun, |_| true), [4, 5, 6, 1, 7, 8, 2, 3]);
    }

    #[test]
    fn what_has_no_room_holds_up_its_own_kind_only() {
        let mut unbegun = unbegun([read(), put(), read(), put(), renewal()]);
        let no_reads = |kind| kind != Kind::Read;
        assert_eq!(order(&mut unbegun, no_reads), [5, 2, 4]);
        assert_eq!(unbegun.len(), 2);
        assert_eq!(order(&mut unbegun, |_| true), [1, 3]);
    }

    #[test]
    fn one_that_is_taken_out_is_not_begun() {
        let mut unbegun = unbegun([read(), put(), renewal()]);
        for call_id in [1, 2, 3] {
            assert!(unbegun.has(call_id) && unbegun.remove(call_id));
            assert!(!unbegun.has(call_id) && !unbegun.remove(call_id));
        }
        assert_eq!((unbegun.len(), unbegun.bytes()), (0, 0));
        assert_eq!(order(&mut unbegun, |_| true), [0; 0]);
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
        let mut unbegun = unbegun([create(true), create(false), read(), get]);
        assert_eq!(order(&mut unbegun, |kind| kind == Kind::Unlocked), [1, 4]);
        assert_eq!(order(&mut unbegun, |kind| kind == Kind::Read), [3]);
    }
}
