//! Tells open streams that this replica stops.

use tokio::sync::watch;

/// Resolves once the replica stops, for every stream. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Stopping(watch::Receiver<bool>);

/// Stops the holders of a [`Stopping`], by [`Stop::now`] or by being dropped.
#[derive(Debug)]
pub struct Stop(watch::Sender<bool>);

impl Stopping {
    /// A pair of the two.
    pub fn pair() -> (Stop, Stopping) {
        let (sender, receiver) = watch::channel(false);
        (Stop(sender), Stopping(receiver))
    }

    /// Returns once the replica stops; at once if it does already.
    pub async fn stopped(&mut self) {
        // An error says that the sender is gone: the server is.
        let _ = self.0.wait_for(|stopped| *stopped).await;
    }

    /// Whether it stops already.
    pub fn is_stopped(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }
}

impl Stop {
    /// Wakes all holders.
    pub fn now(&self) {
        self.0.send_replace(true);
    }
}
