//! Who hears that an entry has ended, and when: that of one which would hold the key at the next home is told to nobody before
//! the row has it (H5).

use super::context::Context;
use super::event::{Effect, EntryRef, EntryStatus, KeyError};
use super::serving::Serving;
use crate::key::{CommitMode, Entry};
use crate::lock::{EndedAs, Liveness, Lookup, Seq};

impl Serving {
    /// An entry has ended.
    pub fn forget(&mut self, entry: &Entry) {
        self.unheard.remove(&entry.seq);
        self.first_until.take_if(|(of, _)| *of == entry.seq);
        let session = match entry.liveness {
            Liveness::Own { .. } => {
                self.leases.remove(entry.seq);
                None
            }
            Liveness::Session(session) => {
                if self.session_ttls.contains_key(&session) && !self.has_session(session) {
                    self.session_ttls.remove(&session);
                }
                Some(session)
            }
        };
        self.untold_ends.push((entry.seq, session));
    }

    /// Tells whoever asks for an entry that ended, or watches it, once it cannot hold the key at the next home any more, and its
    /// session, once it cannot come to life again, as far as the mode goes.
    pub fn tell_ends(&mut self, mode: CommitMode, out: &mut Vec<Effect>) {
        let row = &self.row;
        self.untold_ends.retain(|(seq, session)| {
            if row.may_keep(*seq) {
                return true;
            }
            let seq = *seq;
            let end = self.state.end_of(seq);
            for ask in self.asks.extract_if(.., |ask| ask.seq == seq) {
                out.push(Effect::Answer {
                    call: ask.call,
                    answer: Err(KeyError::Ended(end.clone()).into()),
                });
            }
            for watcher in self.watchers.extract_if(.., |w| w.seq == seq) {
                out.push(Effect::Notify {
                    call: watcher.call,
                    status: EntryStatus::Ended(end.clone()),
                });
            }
            let is_detached = row.allows_end(seq, mode);
            if let Some(session) = session.filter(|_| is_detached) {
                out.push(Effect::Detach { session, seq });
            }
            session.is_some() && !is_detached
        });
    }

    /// How an entry that is not live ended, as its client is told: one whose release is not known to the row yet is still
    /// being released, and one that was ended otherwise and may hold the key at the next home is still being ended.
    pub fn ended(&self, cx: &Context<'_>, seq: Seq, end: EndedAs) -> KeyError {
        match end {
            EndedAs::Released if !self.row.allows_end(seq, cx.commit.mode) => KeyError::Releasing,
            EndedAs::Lost(_) if self.row.may_keep(seq) => KeyError::Ending,
            end => KeyError::Ended(end),
        }
    }

    /// What to tell a caller whose entry is no longer what it was.
    pub fn why_not(&self, entry: EntryRef) -> KeyError {
        match self.state.lookup(entry.seq, entry.tag) {
            Lookup::Ended(EndedAs::Lost(_)) if self.row.may_keep(entry.seq) => KeyError::Ending,
            Lookup::Ended(end) => KeyError::Ended(end),
            Lookup::Live(_) => KeyError::GrantSuperseded,
            Lookup::NeverIssued => KeyError::NeverIssued,
        }
    }
}
