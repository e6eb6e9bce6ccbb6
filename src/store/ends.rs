//! The stored form of the remembered ends of a key's entries, in every store.

use crate::lock::{EndReason, EndedEntry, Seq, Tag};

/// One remembered end, as a protobuf message.
#[derive(Clone, PartialEq, prost::Message)]
pub(in crate::store) struct End {
    #[prost(uint64, tag = "1")]
    seq: u64,
    #[prost(bytes = "vec", tag = "2")]
    tag: Vec<u8>,
    #[prost(enumeration = "Reason", tag = "3")]
    reason: i32,
    /// Of a forced end: who.
    #[prost(string, tag = "4")]
    by: String,
    /// Of a forced end: why.
    #[prost(string, tag = "5")]
    why: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, prost::Enumeration)]
#[repr(i32)]
enum Reason {
    None = 0,
    Expired = 1,
    SessionClosed = 2,
    Unclaimed = 3,
    Forced = 4,
}

impl From<&EndedEntry> for End {
    fn from(entry: &EndedEntry) -> End {
        let (reason, by, why) = match &entry.reason {
            EndReason::Expired => (Reason::Expired, "", ""),
            EndReason::SessionClosed => (Reason::SessionClosed, "", ""),
            EndReason::Unclaimed => (Reason::Unclaimed, "", ""),
            EndReason::Forced { by, why } => (Reason::Forced, &**by, &**why),
        };
        End {
            seq: entry.seq.0,
            tag: entry.tag.bytes().to_vec(),
            reason: reason.into(),
            by: by.to_owned(),
            why: why.to_owned(),
        }
    }
}

impl TryFrom<End> for EndedEntry {
    type Error = &'static str;

    fn try_from(end: End) -> Result<EndedEntry, &'static str> {
        let reason = match Reason::try_from(end.reason) {
            Ok(Reason::Expired) => EndReason::Expired,
            Ok(Reason::SessionClosed) => EndReason::SessionClosed,
            Ok(Reason::Unclaimed) => EndReason::Unclaimed,
            Ok(Reason::Forced) => EndReason::Forced {
                by: end.by.into(),
                why: end.why.into(),
            },
            Ok(Reason::None) | Err(_) => return Err("an end has an unknown reason"),
        };
        Ok(EndedEntry {
            seq: Seq(end.seq),
            tag: Tag::from_slice(&end.tag).ok_or("an end has no tag")?,
            reason,
        })
    }
}
