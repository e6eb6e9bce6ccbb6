//! A store that fails: outcomes that are not known, other writers, and nothing at all (I6).

use fermata::lock::{Create, Liveness, Mode, ReplicaId};
use uuid::Uuid;

/// A place that another replica takes.
pub fn stranger() -> Create {
    Create {
        request_id: Uuid::new_v4(),
        mode: Mode::Exclusive,
        liveness: Liveness::Own { ttl_ms: 30_000 },
        home: ReplicaId(Uuid::new_v4()),
        identity: "".into(),
        owner: "a stranger".into(),
        created_at_ms: 0,
        past: None,
    }
}
