//! How a lockRef, or a session, ended.

use std::fmt;

use fermata_proto::EndReason;

/// How a lockRef or its session ended. Displayed as the detail, then the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Lost {
    /// Why.
    pub reason: LostReason,
    /// The reason in words, with the operator and the operator's reason if the server knows them.
    pub detail: String,
}

/// Why a lockRef ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LostReason {
    /// The server received no call of this client for the TTL.
    Expired,
    /// This client got no answer of a server in time. Another client may get the lock from now on.
    ValidityEnded,
    /// Its session was closed, or expired.
    SessionClosed,
    /// It had its turn, and its client did not claim the lock.
    Unclaimed,
    /// An operator ended it.
    Forced,
    /// It was released.
    Released,
    /// It has ended, and the server no longer knows why; or the replica that served its key crashed before the lock was durable
    /// ([`LockGuard::durable`](crate::LockGuard::durable)).
    NoLongerKept,
    /// The server does not know it: it was never issued, or the store was replaced.
    NeverIssued,
    /// This version of the client does not know the reason; the detail says more.
    Unknown,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        with_reason(f, &self.detail, self.reason.as_str())
    }
}

/// Words, followed by the reason as `fermata explain` and the contract name it.
pub(crate) fn with_reason(f: &mut fmt::Formatter<'_>, words: &str, reason: &str) -> fmt::Result {
    match reason.is_empty() || words == reason {
        true => f.write_str(words),
        false => write!(f, "{words} ({reason})"),
    }
}

impl LostReason {
    /// The reason as one word, spelled as in the contract.
    pub fn as_str(self) -> &'static str {
        match self {
            LostReason::Expired => "EXPIRED",
            LostReason::ValidityEnded => "VALIDITY_ENDED",
            LostReason::SessionClosed => "SESSION_CLOSED",
            LostReason::Unclaimed => "UNCLAIMED",
            LostReason::Forced => "FORCED",
            LostReason::Released => "RELEASED",
            LostReason::NoLongerKept => "NO_LONGER_KEPT",
            LostReason::NeverIssued => "NEVER_ISSUED",
            LostReason::Unknown => "UNKNOWN",
        }
    }
}

impl From<EndReason> for LostReason {
    fn from(reason: EndReason) -> LostReason {
        match reason {
            EndReason::Unspecified => LostReason::Unknown,
            EndReason::Expired => LostReason::Expired,
            EndReason::SessionClosed => LostReason::SessionClosed,
            EndReason::Unclaimed => LostReason::Unclaimed,
            EndReason::Forced => LostReason::Forced,
            EndReason::Released => LostReason::Released,
            EndReason::NoLongerKept => LostReason::NoLongerKept,
        }
    }
}

impl Lost {
    pub(crate) fn new(reason: LostReason, detail: impl Into<String>) -> Lost {
        let detail = detail.into();
        let detail = if detail.is_empty() {
            reason.as_str().to_owned()
        } else {
            detail
        };
        Lost { reason, detail }
    }

    /// `why`: the failure of the last attempt to keep the lock alive, if it failed.
    pub(crate) fn validity_ended(why: Option<impl fmt::Display>) -> Lost {
        let detail = match why {
            None => "no renewal was answered before the validity ended".to_owned(),
            Some(why) => format!("no renewal succeeded before the validity ended: {why}"),
        };
        Lost::new(LostReason::ValidityEnded, detail)
    }

    pub(crate) fn released_here() -> Lost {
        Lost::new(LostReason::Released, "it was released")
    }

    /// Whether this client itself ended the lock, so that a server may not know of the end.
    pub(crate) fn is_said_here(&self) -> bool {
        matches!(
            self.reason,
            LostReason::ValidityEnded | LostReason::Released
        )
    }

    /// From a message that carries the reason as a number.
    pub(crate) fn from_wire(reason: i32, detail: &str) -> Lost {
        let reason = EndReason::try_from(reason).unwrap_or(EndReason::Unspecified);
        Lost::new(LostReason::from(reason), detail)
    }
}
