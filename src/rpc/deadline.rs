//! Deadlines: a call is answered a little before its caller stops listening.

use std::future::Future;
use std::time::Duration;

use http::HeaderMap;
use tokio::time::{Instant, sleep_until, timeout_at};
use tonic::{Extensions, Status};

use super::status;
use crate::engine::EngineError;

/// The margin is a twentieth of the time that the caller gave, but not less than this …
const MARGIN_MIN: Duration = Duration::from_millis(10);
/// … and not more than this.
const MARGIN_MAX: Duration = Duration::from_millis(500);

/// As good as for ever: a year.
const SPAN_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// The arrival of a call, and how long its caller listens. In the extensions of every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    received: Instant,
    given: Option<Duration>,
}

impl Deadline {
    /// A call that arrives now with these headers. A malformed `grpc-timeout` counts as none, as in tonic.
    pub fn of_headers(headers: &HeaderMap) -> Deadline {
        Deadline {
            received: Instant::now(),
            given: headers
                .get("grpc-timeout")
                .and_then(|value| value.to_str().ok())
                .and_then(parse_timeout),
        }
    }

    /// A call that arrived at `received`; `given` is `None` without a deadline.
    pub fn since(received: Instant, given: Option<Duration>) -> Deadline {
        Deadline { received, given }
    }

    /// The deadline of a request, as the layer put it there; none without the layer.
    pub fn of_request(extensions: &Extensions) -> Deadline {
        extensions.get::<Deadline>().copied().unwrap_or(Deadline {
            received: Instant::now(),
            given: None,
        })
    }

    /// The same, with half of the time.
    pub fn halved(self) -> Deadline {
        Deadline {
            received: self.received,
            given: self.given.map(|given| given / 2),
        }
    }

    /// The caller's deadline, `None` if there is none (or none that this clock can name).
    pub fn at(&self) -> Option<Instant> {
        self.before(Duration::ZERO)
    }

    /// How long ago the call came in.
    pub fn age(&self) -> Duration {
        self.received.elapsed()
    }

    /// When the call must be answered; `None`: its caller set no deadline.
    pub fn answer_by(&self) -> Option<Instant> {
        self.before(self.margin())
    }

    /// When a wait must end, so that there is time left to answer.
    pub fn wait_until(&self) -> Option<Instant> {
        self.before(self.margin() * 2)
    }

    /// When the layer answers for a handler that has not: between the handler's own time and the caller's deadline.
    pub fn last_chance(&self) -> Option<Instant> {
        self.before(self.margin() / 2)
    }

    /// When to answer a call that may take `call_max`: after that, or before its caller's deadline, whichever is first.
    pub fn answer_within(&self, call_max: Duration) -> Instant {
        let longest = later(self.received, call_max);
        self.answer_by().map_or(longest, |by| by.min(longest))
    }

    fn before(&self, margin: Duration) -> Option<Instant> {
        let given = self.given?;
        self.received.checked_add(given.saturating_sub(margin))
    }

    /// Never more than half of the given time: a short deadline still gets a try.
    pub fn margin(&self) -> Duration {
        let given = self.given.unwrap_or(Duration::ZERO);
        (given / 20).clamp(MARGIN_MIN, MARGIN_MAX).min(given / 2)
    }
}

/// A span after an instant, also if a clock cannot name their sum.
pub fn later(from: Instant, span: Duration) -> Instant {
    from.checked_add(span).unwrap_or(from + SPAN_MAX)
}

/// Returns at an instant; never without one.
pub async fn until(then: Option<Instant>) {
    match then {
        Some(then) => sleep_until(then).await,
        None => std::future::pending().await,
    }
}

/// Runs a call of the engine until `answer_by`; after that its outcome is unknown to the caller. It is
/// polled at least once, however short the time.
pub async fn within<T>(
    answer_by: Instant,
    call: impl Future<Output = Result<T, EngineError>>,
) -> Result<T, Status> {
    by(answer_by, async {
        call.await.map_err(|error| status::of_engine(&error))
    })
    .await
}

/// The same for a call with a status of its own.
pub async fn by<T>(
    answer_by: Instant,
    call: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    by_or(answer_by, status::outcome_unknown, call).await
}

/// The same with the status `late` after `answer_by`.
pub async fn by_or<T>(
    answer_by: Instant,
    late: impl FnOnce() -> Status,
    call: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    match timeout_at(answer_by, call).await {
        Ok(answer) => answer,
        Err(_elapsed) => Err(late()),
    }
}

/// Reads `grpc-timeout`: 1 to 8 digits and a unit.
fn parse_timeout(text: &str) -> Option<Duration> {
    let unit = text.chars().next_back()?;
    let digits = text.strip_suffix(unit)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        'H' => Some(Duration::from_secs(count * 3600)),
        'M' => Some(Duration::from_secs(count * 60)),
        'S' => Some(Duration::from_secs(count)),
        'm' => Some(Duration::from_millis(count)),
        'u' => Some(Duration::from_micros(count)),
        'n' => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(text: &str) -> Deadline {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-timeout", text.parse().unwrap());
        Deadline::of_headers(&headers)
    }

    fn early(text: &str) -> Duration {
        let deadline = given(text);
        deadline.at().unwrap() - deadline.answer_by().unwrap()
    }

    #[test]
    fn a_call_is_answered_a_little_before_its_deadline() {
        assert_eq!(early("1S"), Duration::from_millis(50));
        assert_eq!(early("100m"), Duration::from_millis(10));
        assert_eq!(early("1H"), Duration::from_millis(500));
        assert_eq!(early("4m"), Duration::from_millis(2));
        assert_eq!(early("0n"), Duration::ZERO);
    }

    #[test]
    fn a_wait_ends_before_the_answer_and_the_answer_before_the_last_chance() {
        for text in ["8m", "100m", "1S", "1H"] {
            let deadline = given(text);
            assert!(deadline.wait_until() < deadline.answer_by(), "{text}");
            assert!(deadline.answer_by() < deadline.last_chance(), "{text}");
            assert!(deadline.last_chance() < deadline.at(), "{text}");
        }
    }

    #[test]
    fn a_malformed_timeout_is_none() {
        for text in ["", "S", "1", "1x", "123456789S", "-1S", "+1S", "1 S", "1ü"] {
            assert_eq!(parse_timeout(text), None, "{text}");
        }
        assert_eq!(
            parse_timeout("99999999H"),
            Some(Duration::from_secs(99_999_999 * 3600))
        );
    }

    #[test]
    fn a_limit_without_end_overflows_no_clock() {
        let none = Deadline::of_headers(&HeaderMap::new());
        assert!(none.answer_within(Duration::MAX) > Instant::now());
    }

    #[test]
    fn the_lesser_of_deadline_and_limit_counts() {
        let limit = Duration::from_secs(10);
        let within = |deadline: Deadline| deadline.answer_within(limit) - deadline.received;
        assert_eq!(within(given("1S")), Duration::from_millis(950));
        assert_eq!(within(given("99999999H")), limit);
        assert_eq!(within(given("11S")), limit);
        assert_eq!(within(Deadline::of_headers(&HeaderMap::new())), limit);
    }

    #[tokio::test]
    async fn a_call_without_time_left_is_tried_once() {
        let answer = within(Instant::now(), async { Ok(7) }).await;
        assert_eq!(answer.unwrap(), 7);
        let answer = within(Instant::now(), std::future::pending::<Result<(), _>>()).await;
        assert_eq!(answer.unwrap_err().code(), tonic::Code::Unavailable);
    }
}
