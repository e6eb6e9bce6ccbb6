//! Room for what nobody waits for: a process that lets go of thousands of locks at once does not stand in the way of those
//! that it holds.

use std::pin::pin;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::sleep;
use tonic::Status;

/// How many are at their turn at once …
const TURNS: usize = 64;
/// … for as long as an attempt is answered within this. Then it makes room for others: what hangs holds up none of those that
/// would be answered.
const SLOW: Duration = Duration::from_millis(200);
/// How many attempts may go on beyond that. Of further ones each is given up, to be made again later: calls that hang are not to
/// take all the room that there is for calls.
const SLOW_MAX: usize = 256;

/// Room for what nobody waits for.
pub(super) struct Background {
    turns: Semaphore,
    slow: Semaphore,
    /// How much of it is not done.
    undone: watch::Sender<usize>,
}

impl Default for Background {
    fn default() -> Background {
        Background {
            turns: Semaphore::new(TURNS),
            slow: Semaphore::new(SLOW_MAX),
            undone: watch::Sender::new(0),
        }
    }
}

/// Something that nobody waits for, until this is dropped.
pub(super) struct Undone(watch::Sender<usize>);

impl Drop for Undone {
    fn drop(&mut self) {
        self.0.send_modify(|undone| *undone -= 1);
    }
}

impl Background {
    /// Counts something in.
    pub(super) fn begin(&self) -> Undone {
        self.undone.send_modify(|undone| *undone += 1);
        Undone(self.undone.clone())
    }

    /// Once all is done.
    pub(super) async fn done(&self) {
        let mut undone = self.undone.subscribe();
        // (It lives as long as this.)
        let _ = undone.wait_for(|undone| *undone == 0).await;
    }

    /// Returns when it is its turn; first come, first served. For a few attempts, without a pause between them.
    pub(super) async fn turn(&self) -> Turn<'_> {
        Turn {
            background: self,
            // (Nobody closes it.)
            room: self.turns.acquire().await.ok(),
            is_slow: false,
        }
    }
}

/// The turn of one.
pub(super) struct Turn<'a> {
    background: &'a Background,
    room: Option<SemaphorePermit<'a>>,
    is_slow: bool,
}

impl Turn<'_> {
    /// Makes one attempt.
    pub(super) async fn attempt<T>(
        &mut self,
        attempt: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let mut attempt = pin!(attempt);
        if !self.is_slow {
            tokio::select! {
                biased;
                done = &mut attempt => return done,
                () = sleep(SLOW) => {}
            }
            let Ok(room) = self.background.slow.try_acquire() else {
                let given_up = "given up in favour of others, since many are not answered";
                return Err(Status::deadline_exceeded(given_up));
            };
            drop(self.room.replace(room));
            self.is_slow = true;
        }
        attempt.await
    }
}
