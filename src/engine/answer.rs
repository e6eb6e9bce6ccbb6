//! What an actor says of a place, as the answer to a caller.

use super::actor::Held;
use super::api::{Acquired, CreatedLockRef, LeaseId, Standing};
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
    let (seq, tag, grant, standing, lease, life, existed) = match held {
        Held::Held {
            seq,
            tag,
            grant,
            value,
            lease,
            life,
            existed,
        } => {
            let standing = Standing::Held { grant, value };
            (seq, tag, Some(grant), standing, lease, life, existed)
        }
        Held::Waiting {
            seq,
            tag,
            position,
            lease,
            life,
            existed,
            wake: _,
        } => {
            let standing = Standing::Waiting { position };
            (seq, tag, None, standing, lease, life, existed)
        }
    };
    let lease = match lease {
        LeaseKey::Session(session) => LeaseId::Session(session),
        LeaseKey::Place(_) => LeaseId::LockRef(lock_ref(id, seq, tag, None)),
    };
    CreatedLockRef {
        lock_ref: lock_ref(id, seq, tag, grant),
        standing,
        lease,
        ttl: life.ttl,
        valid_for: life.valid_for,
        existed,
    }
}

/// The answer to AcquireLock.
pub(super) fn acquired(asked: &LockRef, held: Held) -> Acquired {
    match held {
        Held::Held {
            grant, value, life, ..
        } => Acquired {
            lock_ref: asked.with_grant(grant),
            standing: Standing::Held { grant, value },
            valid_for: life.valid_for,
        },
        Held::Waiting { position, life, .. } => Acquired {
            lock_ref: asked.without_grant(),
            standing: Standing::Waiting { position },
            valid_for: life.valid_for,
        },
    }
}
