//! The outcome of a call that another replica was asked to make.

use tonic::{Code, Status};
use uuid::Uuid;

use crate::lock::ReplicaId;
use crate::rpc::peer_proto::{Elsewhere, Refusal, Unable};

/// The outcome of asking another replica.
#[derive(Debug)]
pub enum ForwardOutcome<A> {
    /// It served the call.
    Answered(A),
    /// It refused, with a status for the caller.
    Refused(Status),
    /// Another replica has it. Nothing was done.
    Elsewhere {
        /// Which.
        home: ReplicaId,
        /// As in [`EngineError::Elsewhere`](crate::engine::EngineError::Elsewhere).
        version: u64,
    },
    /// It was not asked: nothing was done.
    NotAsked(String),
    /// It may have been asked, and may have done it.
    Unknown(String),
}

impl<A> ForwardOutcome<A> {
    /// Continues with its answer.
    pub fn and_then<B>(self, read: impl FnOnce(A) -> ForwardOutcome<B>) -> ForwardOutcome<B> {
        match self {
            ForwardOutcome::Answered(answer) => read(answer),
            ForwardOutcome::Refused(refusal) => ForwardOutcome::Refused(refusal),
            ForwardOutcome::Elsewhere { home, version } => {
                ForwardOutcome::Elsewhere { home, version }
            }
            ForwardOutcome::NotAsked(why) => ForwardOutcome::NotAsked(why),
            ForwardOutcome::Unknown(why) => ForwardOutcome::Unknown(why),
        }
    }
}

pub(super) fn home_of(answer: &Elsewhere) -> Option<ReplicaId> {
    Uuid::from_slice(&answer.home).ok().map(ReplicaId)
}

pub(super) fn elsewhere<A>(answer: &Elsewhere) -> ForwardOutcome<A> {
    match home_of(answer) {
        Some(home) => ForwardOutcome::Elsewhere {
            home,
            version: answer.version,
        },
        None => ForwardOutcome::NotAsked("the answer names no replica".to_owned()),
    }
}

pub(super) fn unable<A>(answer: Unable) -> ForwardOutcome<A> {
    match answer.nothing_done {
        true => ForwardOutcome::NotAsked(answer.why),
        false => ForwardOutcome::Unknown(answer.why),
    }
}

/// The status of a refusal.
pub fn refused(refusal: Refusal) -> Status {
    Status::with_details(
        Code::from_i32(refusal.code),
        refusal.message,
        refusal.details,
    )
}
