//! Tells the other replicas which sessions ended, and learns when the entries of these sessions ended there. Sessions that end
//! together share a message.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::sync::oneshot;

use super::announcements::{Announcement, EndedElsewhere, SESSIONS_MAX};
use super::registry::Sessions;
use crate::engine::peers::Peer;
use crate::lock::SessionId;

/// The pause between messages to a replica. The first end is told at once.
const MESSAGE_EVERY: Duration = Duration::from_millis(10);
/// The longest wait of a close for other replicas …
const ENDED_WITHIN: Duration = Duration::from_secs(1);
/// … and the longest wait of these replicas for their keys before they answer.
const ANSWERED_WITHIN: Duration = Duration::from_millis(800);

impl Sessions {
    /// Tells all live replicas that a session has ended, once its row says so.
    pub fn announce_ended(self: &Arc<Self>, session: SessionId) -> EndedElsewhere {
        let mut said = Vec::new();
        for peer in self.local.membership.peers() {
            let (ended, heard) = oneshot::channel();
            said.push(heard);
            let announcement = Announcement { session, ended };
            if self.announcements.add(peer.id, announcement) {
                tokio::spawn(tell(Arc::clone(self), peer));
            }
        }
        EndedElsewhere(said)
    }

    /// Reads the rows of sessions whose end another replica announced. Returns those with entries left here after a while.
    pub async fn ended_elsewhere(self: &Arc<Self>, sessions: Vec<SessionId>) -> Vec<SessionId> {
        let sessions = sessions.into_iter().take(SESSIONS_MAX);
        let mut used: BTreeSet<_> = sessions.filter(|one| self.table.is_used(*one)).collect();
        let ended = |session| async move {
            self.until_emptied(session).await;
            session
        };
        let mut open = FuturesUnordered::new();
        for session in &used {
            self.read_behind(*session);
            open.push(ended(*session));
        }
        let late = self.local.clock.sleep(ANSWERED_WITHIN);
        tokio::pin!(late);
        while !open.is_empty() {
            tokio::select! {
                biased;
                Some(session) = open.next() => {
                    used.remove(&session);
                }
                () = &mut late => break,
            }
        }
        used.into_iter().collect()
    }

    /// Whether all replicas confirmed the end of the session in time.
    pub async fn ended_everywhere(&self, elsewhere: EndedElsewhere) -> bool {
        tokio::select! {
            biased;
            said = join_all(elsewhere.0) => said.iter().all(Result::is_ok),
            () = self.local.clock.sleep(ENDED_WITHIN) => false,
        }
    }
}

/// Sends messages to a replica while there are announcements. None waits for the answer to another one.
async fn tell(sessions: Arc<Sessions>, peer: Arc<Peer>) {
    while let Some(announced) = sessions.announcements.next(peer.id) {
        tokio::spawn(send(Arc::clone(&sessions), Arc::clone(&peer), announced));
        sessions.local.clock.sleep(MESSAGE_EVERY).await;
    }
}

async fn send(sessions: Arc<Sessions>, peer: Arc<Peer>, announced: Vec<Announcement>) {
    let ids: Vec<_> = announced.iter().map(|one| one.session).collect();
    match sessions.peers.sessions_ended(&peer, &ids).await {
        Ok(left) => {
            let done = announced
                .into_iter()
                .filter(|one| !left.contains(&one.session));
            for one in done {
                // The waiting caller may be gone.
                let _ = one.ended.send(());
            }
        }
        Err(error) => {
            tracing::debug!(replica = %peer.id, sessions = ids.len(), %error, "could not tell a replica of ended sessions");
        }
    }
}
