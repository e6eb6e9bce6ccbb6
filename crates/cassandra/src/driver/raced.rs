//! A transaction that is sent to a second node while the first one is silent. What is sent is the same, so it does not
//! matter which of the two takes effect.

use tokio::pin;

use crate::fault::Fault;

/// Why a node gave no result.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unanswered {
    pub fault: Fault,
    /// It was not asked: another one may be.
    pub is_unreached: bool,
}

impl Unanswered {
    /// Of both, where neither has a result: what one of them may have done may have happened.
    fn and(self, other: Unanswered) -> Unanswered {
        Unanswered {
            is_unreached: self.is_unreached && other.is_unreached,
            fault: match other.fault.is_unknown() {
                true => other.fault,
                false => self.fault,
            },
        }
    }
}

/// The first result of two, the second of which is asked for once `silence` has come before the first one's.
pub(super) async fn raced<T, S>(
    first: impl Future<Output = Result<T, Unanswered>>,
    silence: impl Future<Output = ()>,
    second: impl FnOnce() -> S,
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
    let (unanswered, other) = tokio::select! {
        biased;
        answer = &mut first => match answer {
            Ok(answer) => return Ok(answer),
            Err(unanswered) => (unanswered, second.await),
        },
        answer = &mut second => match answer {
            Ok(answer) => return Ok(answer),
            Err(unanswered) => (unanswered, first.await),
        },
    };
    other.map_err(|other| unanswered.and(other))
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    fn unanswered(fault: fn(String) -> Fault, is_unreached: bool) -> Unanswered {
        Unanswered {
            fault: fault(String::new()),
            is_unreached,
        }
    }

    #[tokio::test]
    async fn the_second_one_is_not_asked_before_the_first_one_is_silent() {
        let never = || -> std::future::Ready<Result<u8, Unanswered>> { panic!("asked") };
        assert_eq!(raced(ready(Ok(1)), pending(), never).await, Ok(1));
        let refused = || unanswered(Fault::Refused, false);
        let answer = raced(ready(Err(refused())), pending(), never).await;
        assert_eq!(answer, Err(refused()));
    }

    #[tokio::test]
    async fn the_first_result_counts_whoever_has_it() {
        let answer = raced(pending(), ready(()), || ready(Ok(2))).await;
        assert_eq!(answer, Ok(2));
        let failed = || ready(Err(unanswered(Fault::Unknown, false)));
        let first = async {
            tokio::task::yield_now().await;
            Ok(1)
        };
        assert_eq!(raced(first, ready(()), failed).await, Ok(1));
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
                Err::<u8, _>(unanswered(first, true))
            };
            let second = || ready(Err(unanswered(second, false)));
            let both = raced(first, ready(()), second).await.unwrap_err();
            assert!(both.fault.is_unknown());
            // One of them was asked: no third one is.
            assert!(!both.is_unreached);
        }
    }
}
