//! What the next compare-and-swap shall do, and how that becomes commands.

use std::collections::VecDeque;

use tokio::sync::oneshot;

use super::super::api::ForceReleased;
use super::super::leases::Room;
use super::Actor;
use super::holding::{HolderState, Unclaimed};
use super::msg::{EntryRef, HeldReply, Reply};
use crate::lock::{Command, Create, Evidence, Fence, ReplicaId, Seq, State, Tag};
use crate::store::Swap;

/// How many commands go into one compare-and-swap.
const BATCH_MAX: usize = 256;

/// Who learns of an Evict.
pub(super) enum EvictReply {
    /// Nobody.
    None,
    /// Nobody: the next read finds it again, and what is to come before it.
    MembershipRead,
    /// Whoever closes a session.
    Settled(oneshot::Sender<()>),
    /// An operator.
    Force(Reply<ForceReleased>),
}

/// What the next compare-and-swap shall do. It becomes a command only when it is decided, from what is
/// known then; so after a Conflict nothing of the old state is left in it.
pub(super) enum Intent {
    Create {
        create: Box<Create>,
        read_value: bool,
        reply: HeldReply,
        /// A try of it was of unknown outcome: it is decided to its end, whoever waits. Its entry would have a home
        /// that does not know of it.
        open: bool,
        /// Kept until it is decided.
        _room: Option<Room>,
    },
    Release {
        entry_ref: EntryRef,
        /// A put that it carried was acknowledged: whoever learns that it failed learns of that.
        wrote: bool,
        reply: Reply<bool>,
    },
    Evict {
        seq: Seq,
        tag: Tag,
        evidence: Evidence,
        reply: EvictReply,
    },
    TakeOver {
        seq: Seq,
        from_home: ReplicaId,
        from_fence: Fence,
        from_epoch: u32,
        /// Who asked for it; nobody where this home needs it for itself.
        reply: Option<Reply<bool>>,
    },
    Extend {
        seq: Seq,
        fence: Fence,
        past: Option<u64>,
    },
    /// Nothing; answered when all before it is done.
    Settle(oneshot::Sender<()>),
}

impl Intent {
    /// Whether it is to be done although nobody waits for it any longer: because it cleans up.
    fn is_wanted(&self) -> bool {
        match self {
            Intent::Create { reply, open, .. } => *open || !reply.is_closed(),
            Intent::Evict { .. }
            | Intent::Release { .. }
            | Intent::TakeOver { .. }
            | Intent::Extend { .. }
            | Intent::Settle(_) => true,
        }
    }
}

impl Actor {
    /// The next intents, each with whether it made a command, and their commands.
    pub(super) fn next_batch(
        &mut self,
        state: &State,
        replica: ReplicaId,
    ) -> (Vec<(Intent, bool)>, Vec<Command>) {
        let mut batch = Vec::new();
        let mut commands = Vec::new();
        let mut later = VecDeque::new();
        // A holder that is being taken over is released in a later batch, by the home it has then.
        let taken_over = self.is_taking_over(state.head).then_some(state.head);
        while batch.len() < BATCH_MAX
            && let Some(intent) = self.pending.pop_front()
        {
            if !intent.is_wanted() || self.was_claimed(&intent) {
                continue;
            }
            if let Intent::Release { entry_ref, .. } = &intent
                && Some(entry_ref.seq) == taken_over
            {
                later.push_back(intent);
                continue;
            }
            let command = self.command(state, &intent, replica);
            self.note_unclaimed(&intent);
            let has_command = command.is_some();
            commands.extend(command);
            batch.push((intent, has_command));
        }
        later.append(&mut self.pending);
        self.pending = later;
        (batch, commands)
    }

    /// Whether a holder that nobody had claimed was claimed after all: that evidence no longer holds.
    fn was_claimed(&self, intent: &Intent) -> bool {
        let Intent::Evict {
            evidence: Evidence::Unclaimed { grant, .. },
            ..
        } = intent
        else {
            return false;
        };
        let holding = self.holding.as_ref();
        holding.is_some_and(|h| h.grant == *grant && h.claimed)
    }

    /// A holder that nobody claimed is about to be evicted: whoever comes now must not learn that it holds.
    fn note_unclaimed(&mut self, intent: &Intent) {
        if let Intent::Evict {
            evidence: Evidence::Unclaimed { grant, .. },
            ..
        } = intent
            && let Some(holding) = self.holding.as_mut().filter(|h| h.grant == *grant)
            && !holding.is_unclaimed()
        {
            holding.unclaimed = Unclaimed::Evicting;
        }
    }

    /// What became of a swap: a holder that is certainly not evicted by it, or one before it, may be granted the lock.
    pub(super) fn settle_unclaimed(&mut self, swap: &Swap) {
        if let Some(holding) = &mut self.holding {
            holding.unclaimed = match (holding.unclaimed, swap) {
                (Unclaimed::No, _) | (_, Swap::Applied | Swap::Conflict(_)) => Unclaimed::No,
                (Unclaimed::Evicting, Swap::NotStarted(_)) => Unclaimed::No,
                (Unclaimed::Evicting, Swap::Unknown(_)) | (Unclaimed::InDoubt, _) => {
                    Unclaimed::InDoubt
                }
            };
        }
    }

    pub(super) fn is_releasing(&self, of: EntryRef) -> bool {
        let same = |i: &Intent| matches!(i, Intent::Release { entry_ref, .. } if *entry_ref == of);
        self.pending.iter().any(same)
    }

    /// Whether a release of this entry is asked for.
    pub(super) fn is_giving_back(&self, seq: Seq) -> bool {
        let of_entry =
            |i: &Intent| matches!(i, Intent::Release { entry_ref, .. } if entry_ref.seq == seq);
        self.pending.iter().any(of_entry)
    }

    /// Whether a TakeOver of this entry is asked for.
    pub(super) fn is_taking_over(&self, entry_ref: Seq) -> bool {
        let of_entry = |i: &Intent| matches!(i, Intent::TakeOver { seq, .. } if *seq == entry_ref);
        self.pending.iter().any(of_entry)
    }

    fn command(&self, state: &State, intent: &Intent, replica: ReplicaId) -> Option<Command> {
        Some(match intent {
            Intent::Create { create, .. } => {
                let mut create = Create::clone(create);
                create.past = if state.version == 0 { self.past } else { None };
                Command::Create(create)
            }
            Intent::Release { entry_ref, .. } => {
                let holding = self.holding.as_ref().filter(|h| h.seq == entry_ref.seq);
                Command::Release {
                    seq: entry_ref.seq,
                    tag: entry_ref.tag,
                    home: replica,
                    grant: holding.map(|h| h.grant),
                    synced: holding.is_some_and(|h| h.synced),
                    open_write: holding.is_some_and(HolderState::has_open_write),
                }
            }
            Intent::Evict {
                seq, tag, evidence, ..
            } => Command::Evict {
                seq: *seq,
                tag: *tag,
                evidence: evidence.clone(),
            },
            Intent::TakeOver {
                seq,
                from_home,
                from_fence,
                from_epoch,
                reply: _,
            } => Command::TakeOver {
                seq: *seq,
                from_home: *from_home,
                from_fence: *from_fence,
                from_epoch: *from_epoch,
                to_home: replica,
            },
            Intent::Extend { seq, fence, past } => Command::Extend {
                seq: *seq,
                home: replica,
                fence: *fence,
                past: *past,
            },
            Intent::Settle(_) => return None,
        })
    }
}
