//! The grant of a holder: its lockRef, and the numbers of its calls.

use parking_lot::Mutex;

use crate::calls::call_numbers::CallNumbers;
use crate::secret_text::Shown;

/// The present grant.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Grant {
    /// The lockRef with the grant.
    pub(crate) lock_ref: String,
    pub(crate) fencing_token: u64,
    /// The number of grants before this one.
    pub(crate) take_overs: u32,
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
pub(crate) struct Grants {
    grant: Mutex<Grant>,
    /// The numbers of its critical calls.
    pub(crate) call_numbers: CallNumbers,
}

impl Grants {
    pub(crate) fn new(lock_ref: String, fencing_token: u64) -> Grants {
        Grants {
            grant: Mutex::new(Grant {
                lock_ref,
                fencing_token,
                take_overs: 0,
            }),
            call_numbers: CallNumbers::default(),
        }
    }

    pub(crate) fn present(&self) -> Grant {
        self.grant.lock().clone()
    }

    /// Takes a newer grant. Answers and events may overtake each other: an older grant is ignored.
    pub(crate) fn renew(&self, lock_ref: &str, fencing_token: u64) {
        let mut grant = self.grant.lock();
        if fencing_token > grant.fencing_token {
            lock_ref.clone_into(&mut grant.lock_ref);
            grant.fencing_token = fencing_token;
            grant.take_overs = grant.take_overs.saturating_add(1);
        }
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
