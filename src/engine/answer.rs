//! What an actor says of an entry, as the answer to a caller.

use super::actor::Held;
use super::api::{Acquired, CreatedLockRef, LeaseId, LockStatus};
use super::leases::LeaseKey;
use crate::lock::{Fence, KeyId, LockRef, Seq, Tag};

fn lock_ref(id: &KeyId, seq: Seq, tag: Tag, grant: Option<Fence>) -> LockRef {
    LockRef {
        table: id.table.clone(),
        key: id.key.clone(),
        seq,
        tag,
        grant,
    }
}

/// The answer to CreateLockRef.
pub(super) fn created(id: &KeyId, held: Held) -> CreatedLockRef {
    let (seq, tag, grant, status, lease, validity, existed) = match held {
        Held::Held {
            seq,
            tag,
            grant,
            value,
            lease,
            validity,
            existed,
        } => {
            let status = LockStatus::Held { grant, value };
            (seq, tag, Some(grant), status, lease, validity, existed)
        }
        Held::Waiting {
            seq,
            tag,
            position,
            lease,
            validity,
            existed,
            waker: _,
        } => {
            let status = LockStatus::Waiting { position };
            (seq, tag, None, status, lease, validity, existed)
        }
    };
    let lease = match lease {
        LeaseKey::Session(session) => LeaseId::Session(session),
        LeaseKey::Entry(_) => LeaseId::LockRef(lock_ref(id, seq, tag, None)),
    };
    CreatedLockRef {
        lock_ref: lock_ref(id, seq, tag, grant),
        status,
        lease,
        ttl: validity.ttl,
        valid_for: validity.valid_for,
        existed,
    }
}

/// The answer to AcquireLock.
pub(super) fn acquired(asked: &LockRef, held: Held) -> Acquired {
    match held {
        Held::Held {
            grant,
            value,
            validity,
            ..
        } => Acquired {
            lock_ref: asked.with_grant(grant),
            status: LockStatus::Held { grant, value },
            valid_for: validity.valid_for,
        },
        Held::Waiting {
            position, validity, ..
        } => Acquired {
            lock_ref: asked.without_grant(),
            status: LockStatus::Waiting { position },
            valid_for: validity.valid_for,
        },
    }
}
