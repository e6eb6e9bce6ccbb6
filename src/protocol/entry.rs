//! An entry as leaderless protocols store it, and the record of its request.

use std::time::Duration;

use bytes::Bytes;
use prost::Message;

use crate::engine::{CreateCall, EngineError};
use crate::key::Entry;
use crate::lock::{EndReason, EndedAs, Liveness, Mode, Seq, Tag};

/// A live entry. Its cell ends with its TTL.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StoredEntry {
    /// The tag of its secret.
    #[prost(bytes = "vec", tag = "1")]
    pub tag: Vec<u8>,
    /// Its TTL, in milliseconds.
    #[prost(uint32, tag = "2")]
    pub ttl_ms: u32,
    /// Its client.
    #[prost(string, tag = "3")]
    pub identity: String,
    /// Its label.
    #[prost(string, tag = "4")]
    pub owner: String,
    /// Its creation, in milliseconds since 1970.
    #[prost(sint64, tag = "5")]
    pub created_at_ms: i64,
    /// Its number, where its column does not have it.
    #[prost(uint64, tag = "6")]
    pub seq: u64,
}

impl StoredEntry {
    /// The entry of a new lockRef.
    pub fn new(call: &CreateCall, ttl_ms: u32, now_ms: i64) -> StoredEntry {
        StoredEntry {
            tag: call.tag.bytes().to_vec(),
            ttl_ms,
            identity: call.identity.clone(),
            owner: call.owner.clone(),
            created_at_ms: now_ms,
            seq: 0,
        }
    }

    /// The entry in a cell.
    pub fn decoded(cell: &Bytes) -> Result<StoredEntry, EngineError> {
        decoded(cell, "an entry")
    }

    /// The cell of the entry.
    pub fn encoded(&self) -> Bytes {
        self.encode_to_vec().into()
    }

    /// Its TTL.
    pub fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms.into())
    }

    /// The tag of its secret.
    pub fn tag(&self) -> Option<Tag> {
        Tag::from_slice(&self.tag)
    }

    /// The argument of a repeated create that differs from the first try.
    pub fn differs_from(&self, call: &CreateCall, ttl_ms: u32) -> Option<&'static str> {
        if self.ttl_ms != ttl_ms {
            return Some("ttl");
        }
        (self.owner != call.owner).then_some("owner")
    }

    /// The entry as operators see it.
    pub fn shown(&self, seq: Seq) -> Option<Entry> {
        Some(Entry {
            seq,
            mode: Mode::Exclusive,
            tag: self.tag()?,
            liveness: Liveness::Own {
                ttl_ms: self.ttl_ms,
            },
            identity: self.identity.as_str().into(),
            owner: self.owner.as_str().into(),
            created_at_ms: self.created_at_ms,
        })
    }
}

/// The record of a request: the number of its entry, and its end once it has ended.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StoredRequest {
    /// The number of the entry.
    #[prost(uint64, tag = "1")]
    pub seq: u64,
    /// The end; absent while the entry lives, or after it expired.
    #[prost(message, optional, tag = "2")]
    pub end: Option<StoredEnd>,
}

/// An end other than an expiry.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StoredEnd {
    /// An operator ended it; else its client released it.
    #[prost(bool, tag = "1")]
    forced: bool,
    /// The operator.
    #[prost(string, tag = "2")]
    by: String,
    /// The reason.
    #[prost(string, tag = "3")]
    why: String,
    /// The release wrote a value before.
    #[prost(bool, tag = "4")]
    had_put: bool,
}

impl StoredRequest {
    /// The record of a live entry.
    pub fn live(seq: Seq) -> StoredRequest {
        StoredRequest {
            seq: seq.0,
            end: None,
        }
    }

    /// The record of an entry that its client released, after a last write or without one.
    pub fn released(seq: Seq, had_put: bool) -> StoredRequest {
        StoredRequest {
            seq: seq.0,
            end: Some(StoredEnd {
                had_put,
                ..StoredEnd::default()
            }),
        }
    }

    /// Whether its client released it after a last write.
    pub fn had_put(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end.had_put)
    }

    /// The record of an entry that an operator ended.
    pub fn forced(seq: Seq, by: &str, why: &str) -> StoredRequest {
        StoredRequest {
            seq: seq.0,
            end: Some(StoredEnd {
                forced: true,
                by: by.to_owned(),
                why: why.to_owned(),
                had_put: false,
            }),
        }
    }

    /// The record in a cell.
    pub fn decoded(cell: &Bytes) -> Result<StoredRequest, EngineError> {
        decoded(cell, "a request")
    }

    /// The cell of the record.
    pub fn encoded(&self) -> Bytes {
        self.encode_to_vec().into()
    }

    /// How its entry ended, given that it does not live.
    pub fn ended_as(&self) -> EndedAs {
        match &self.end {
            None => EndedAs::Lost(EndReason::Expired),
            Some(end) if end.forced => EndedAs::Lost(EndReason::Forced {
                by: end.by.as_str().into(),
                why: end.why.as_str().into(),
            }),
            Some(_) => EndedAs::Released,
        }
    }
}

/// The column of the record of a request.
pub fn request_column(tag: Tag) -> String {
    format!("request/{tag:?}")
}

/// The TTL of the record of a request: a client may ask how its entry ended for another TTL, and for ten minutes at least.
pub fn request_ttl(ttl: Duration) -> Duration {
    ttl + ttl.max(Duration::from_secs(600))
}

/// A record in a cell.
pub fn decoded<M: Message + Default>(cell: &Bytes, what: &str) -> Result<M, EngineError> {
    M::decode(cell.clone()).map_err(|error| {
        EngineError::Unavailable(format!("the store holds damaged data: {what}: {error}"))
    })
}
