//! Hedged transactions: while the first node is silent, the transaction is sent to a second one. Both nodes get the same
//! transaction, so it does not matter which copy takes effect.

use tokio::pin;

use super::backend::{Silence, Unanswered};
use crate::fault::Fault;

impl Unanswered {
    /// Of both, where neither has a result: what one of them may have done may have happened.
    fn and(self, other: Unanswered) -> Unanswered {
        Unanswered {
            silence: match self.silence {
                Silence::Unreached => other.silence,
                asked => asked,
            },
            fault: match other.fault.is_unknown() {
                true => other.fault,
                false => self.fault,
            },
        }
    }
}

/// The first result of two, the second of which is asked for once `silence` has come before the first one's. One that does
/// not say that the transaction `took_effect` says nothing while the other one may have done so before.
pub(super) async fn hedged<T, S>(
    first: impl Future<Output = Result<T, Unanswered>>,
    silence: impl Future<Output = ()>,
    second: impl FnOnce() -> S,
    took_effect: impl Fn(&T) -> bool,
) -> Result<T, Unanswered>
where
    S: Future<Output = Result<T, Unanswered>>,
{
    pin!(first);
    tokio::select! {
        biased;
        answer = &mut first => return answer,
        () = silence => {}
    }
    let second = second();
    pin!(second);
    let (one, other) = tokio::select! {
        biased;
        one = &mut first => match one {
            Ok(answer) => return sure(answer, took_effect),
            Err(unanswered) => (unanswered, second.await),
        },
        one = &mut second => match one {
            Ok(answer) => return sure(answer, took_effect),
            Err(unanswered) => (unanswered, first.await),
        },
    };
    match other {
        Ok(answer) if one.fault.is_unknown() => sure(answer, took_effect),
        Ok(answer) => Ok(answer),
        Err(other) => Err(one.and(other)),
    }
}

fn sure<T>(answer: T, took_effect: impl Fn(&T) -> bool) -> Result<T, Unanswered> {
    match took_effect(&answer) {
        true => Ok(answer),
        false => Err(Unanswered {
            fault: Fault::Unknown(
                "the transaction was sent to two nodes; one node did not apply it, and the other one may have".to_owned(),
            ),
            silence: Silence::Answered,
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    fn unanswered(fault: fn(String) -> Fault, silence: Silence) -> Unanswered {
        Unanswered {
            fault: fault(String::new()),
            silence,
        }
    }

    #[tokio::test]
    async fn the_second_one_is_not_asked_before_the_first_one_is_silent() {
        let never = || -> std::future::Ready<Result<u8, Unanswered>> { panic!("asked") };
        assert_eq!(
            hedged(ready(Ok(1)), pending(), never, |_| false).await,
            Ok(1)
        );
        let refused = || unanswered(Fault::Refused, Silence::Answered);
        let answer = hedged(ready(Err(refused())), pending(), never, |_| false).await;
        assert_eq!(answer, Err(refused()));
    }

    #[tokio::test]
    async fn the_first_result_counts_whoever_has_it() {
        let answer = hedged(pending(), ready(()), || ready(Ok(2)), |_| true).await;
        assert_eq!(answer, Ok(2));
        let failed = || ready(Err(unanswered(Fault::Unknown, Silence::TimedOut)));
        let first = async {
            tokio::task::yield_now().await;
            Ok(1)
        };
        assert_eq!(hedged(first, ready(()), failed, |_| true).await, Ok(1));
    }

    #[tokio::test]
    async fn what_either_may_have_done_may_have_happened() {
        let cases = [
            (
                Fault::Unknown as fn(String) -> Fault,
                Fault::NotStarted as fn(String) -> Fault,
            ),
            (Fault::NotStarted, Fault::Unknown),
        ];
        for (first, second) in cases {
            let first = async {
                tokio::task::yield_now().await;
                Err::<u8, _>(unanswered(first, Silence::Unreached))
            };
            let second = || ready(Err(unanswered(second, Silence::TimedOut)));
            let both = hedged(first, ready(()), second, |_| true)
                .await
                .unwrap_err();
            assert!(both.fault.is_unknown());
            // One of them was asked: no third one is.
            assert_ne!(both.silence, Silence::Unreached);
        }
    }

    #[tokio::test]
    async fn who_did_not_apply_it_says_nothing_while_the_other_one_may_have() {
        let no = |_: &u8| false;
        let answer = hedged(pending(), ready(()), || ready(Ok(1)), no).await;
        assert!(answer.unwrap_err().fault.is_unknown());
        for (fault, is_sure) in [
            (Fault::Unknown as fn(String) -> Fault, false),
            (Fault::NotStarted, true),
            (Fault::Refused, true),
        ] {
            let late = async {
                for _ in 0..3 {
                    tokio::task::yield_now().await;
                }
                Ok(1)
            };
            let second = || ready(Err(unanswered(fault, Silence::Broken)));
            let answer = hedged(late, ready(()), second, no).await;
            assert_eq!(answer.is_ok(), is_sure, "{answer:?}");
        }
    }
}
