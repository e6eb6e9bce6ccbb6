//! The requests that most tests make: what a test does not say is left to the server.

use bytes::Bytes;
use fermata_proto::*;

pub const fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

pub fn create(key: &str) -> CreateLockRefRequest {
    CreateLockRefRequest {
        key: key.to_owned(),
        ..Default::default()
    }
}

pub fn create_in(key: &str, session: &str) -> CreateLockRefRequest {
    CreateLockRefRequest {
        session: session.to_owned(),
        ..create(key)
    }
}

pub fn acquire(lock_ref: &str) -> AcquireLockRequest {
    AcquireLockRequest {
        lock_ref: lock_ref.to_owned(),
        ..Default::default()
    }
}

/// Waits for so many seconds.
pub fn wait(lock_ref: &str, for_seconds: i64) -> AcquireLockRequest {
    AcquireLockRequest {
        wait: seconds(for_seconds),
        ..acquire(lock_ref)
    }
}

pub fn give_up(lock_ref: &str) -> AcquireLockRequest {
    AcquireLockRequest {
        give_up: true,
        ..acquire(lock_ref)
    }
}

pub fn release(lock_ref: &str) -> ReleaseLockRequest {
    ReleaseLockRequest {
        lock_ref: lock_ref.to_owned(),
        ..Default::default()
    }
}

pub fn release_with_put(lock_ref: &str, value: impl Into<Bytes>) -> ReleaseLockRequest {
    let put = Mutation {
        value: value.into(),
        delete: false,
    };
    ReleaseLockRequest {
        put: Some(put),
        ..release(lock_ref)
    }
}

pub fn renew_locks(lock_refs: &[&str]) -> RenewLocksRequest {
    let lock_refs = lock_refs.iter().map(|text| (*text).to_owned()).collect();
    RenewLocksRequest { lock_refs }
}

pub fn critical_get(lock_ref: &str) -> CriticalGetRequest {
    CriticalGetRequest {
        lock_ref: lock_ref.to_owned(),
        ..Default::default()
    }
}

pub fn critical_put(lock_ref: &str, value: impl Into<Bytes>) -> CriticalPutRequest {
    CriticalPutRequest {
        lock_ref: lock_ref.to_owned(),
        value: value.into(),
        ..Default::default()
    }
}

pub fn critical_delete(lock_ref: &str) -> CriticalDeleteRequest {
    CriticalDeleteRequest {
        lock_ref: lock_ref.to_owned(),
        ..Default::default()
    }
}

pub fn watch(lock_ref: &str) -> WatchLockRequest {
    WatchLockRequest {
        lock_ref: lock_ref.to_owned(),
    }
}

pub fn renew_session(session: &str) -> RenewSessionRequest {
    RenewSessionRequest {
        session: session.to_owned(),
    }
}

pub fn keep_alive(session: &str) -> KeepAliveRequest {
    KeepAliveRequest {
        session: session.to_owned(),
    }
}

pub fn close_session(session: &str) -> CloseSessionRequest {
    CloseSessionRequest {
        session: session.to_owned(),
    }
}

pub fn get(key: &str) -> GetRequest {
    GetRequest {
        key: key.to_owned(),
        ..Default::default()
    }
}

pub fn describe(key: &str) -> DescribeLockRequest {
    DescribeLockRequest {
        key: key.to_owned(),
        ..Default::default()
    }
}

pub fn force(name: &str, reason: &str) -> ForceReleaseRequest {
    ForceReleaseRequest {
        name: name.to_owned(),
        reason: reason.to_owned(),
        ..Default::default()
    }
}

pub fn list_locks(key_prefix: &str) -> ListLocksRequest {
    ListLocksRequest {
        key_prefix: key_prefix.to_owned(),
        ..Default::default()
    }
}

pub fn end_session(session_id: &str) -> EndSessionRequest {
    EndSessionRequest {
        session_id: session_id.to_owned(),
        reason: "its host is lost".to_owned(),
        forced_by: "ann".to_owned(),
    }
}
