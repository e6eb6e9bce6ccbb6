//! Refusals of the rules as errors for the caller.

use super::context::Context;
use super::event::KeyError;
use crate::key::Refusal;

/// The error for the caller of a refused command.
pub(super) fn refused(refusal: &Refusal) -> KeyError {
    match refusal {
        Refusal::NotHome(Some(home)) => KeyError::Elsewhere(*home),
        Refusal::NotHome(None) | Refusal::OtherGrant => KeyError::ChangingHome,
        Refusal::QueueFull { entries_max } => KeyError::Exhausted {
            what: "entries_per_key_max",
            limit: *entries_max,
        },
        Refusal::QueueShareUsed { share } => KeyError::ShareUsed {
            what: "entries_per_key_max",
            share: *share,
        },
        Refusal::SeqUsedUp => KeyError::SeqUsedUp,
        Refusal::Fence(error) => KeyError::Fence(*error),
        Refusal::ClockIsWrong => KeyError::ClockIsWrong,
        Refusal::RequestMismatch { field } => KeyError::RequestMismatch { field },
        Refusal::NeverIssued => KeyError::NeverIssued,
    }
}

pub(super) fn exhausted_calls(cx: &Context<'_>) -> KeyError {
    KeyError::Exhausted {
        what: "calls_per_key_max",
        limit: cx.limits.calls_max,
    }
}

pub(super) fn exhausted_waits(cx: &Context<'_>) -> KeyError {
    KeyError::Exhausted {
        what: "waits_per_lock_ref_max",
        limit: cx.limits.waits_per_lock_ref_max,
    }
}
