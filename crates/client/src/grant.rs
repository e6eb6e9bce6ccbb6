//! What a holder holds: its lockRef with the present grant, and the numbers of its calls.

use tokio::sync::watch;

use super::call_numbers::CallNumbers;
use super::secret_text::Shown;

/// The present grant.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Grant {
    /// With the grant in it.
    pub(super) lock_ref: String,
    pub(super) fencing_token: u64,
    /// How many grants there were before this one.
    pub(super) take_overs: u32,
}

impl std::fmt::Debug for Grant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grant")
            .field("entry", &Shown(&self.lock_ref))
            .field("fencing_token", &self.fencing_token)
            .field("take_overs", &self.take_overs)
            .finish()
    }
}

/// The grant of one entry, as it changes.
pub(super) struct Grants {
    grant: watch::Sender<Grant>,
    /// Those of its critical calls.
    pub(super) call_numbers: CallNumbers,
}

impl Grants {
    pub(super) fn new(lock_ref: String, fencing_token: u64) -> Grants {
        Grants {
            grant: watch::Sender::new(Grant {
                lock_ref,
                fencing_token,
                take_overs: 0,
            }),
            call_numbers: CallNumbers::default(),
        }
    }

    pub(super) fn present(&self) -> Grant {
        self.grant.borrow().clone()
    }

    /// Takes a newer grant. News come by two ways and may overtake each other: an older one is ignored.
    pub(super) fn renew(&self, lock_ref: &str, fencing_token: u64) {
        self.grant.send_if_modified(|grant| {
            let newer = fencing_token > grant.fencing_token;
            if newer {
                lock_ref.clone_into(&mut grant.lock_ref);
                grant.fencing_token = fencing_token;
                grant.take_overs = grant.take_overs.saturating_add(1);
            }
            newer
        });
    }

    /// Told of every newer grant.
    pub(super) fn changes(&self) -> watch::Receiver<Grant> {
        self.grant.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_grant_never_replaces_a_newer_one() {
        let grants = Grants::new("default/a#1.00000000@10".to_owned(), 10);
        grants.renew("default/a#1.00000000@30", 30);
        grants.renew("default/a#1.00000000@20", 20);
        let present = grants.present();
        assert_eq!((present.fencing_token, present.take_overs), (30, 1));
        assert!(present.lock_ref.ends_with("@30"));
    }
}
