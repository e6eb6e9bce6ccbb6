//! Who makes a call, and whether that one may: asks [`crate::access`], puts refusals into statuses, and writes the audit log.
//!
//! A login is taken once a call, or once a stream; whether it still counts, and what it may do, is asked anew for each call of
//! a stream, so that a token or a rule that is taken away ends what goes on by it. Calls that other replicas pass on
//! were checked there.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use tonic::{Code, Status};

use super::calls::{ByForce, Target, Words};
use super::status;
use crate::access::{Access, Login, LoginRefused, Origin, Scope, Verb, Verbs};
use crate::lock::LockRef;

/// What may be called by everybody: probes have no login.
const OPEN: &str = "/grpc.health.";

/// How the header begins that brings a token.
const BEARER: &[u8] = b"bearer ";

/// The target of lines of the audit log, in filters.
const AUDIT: &str = "fermata::audit";

/// So much of a path is written.
const PATH_BYTES_MAX: usize = 128;

/// How many refusals of each kind are written a second, and how many of one client. Of more it is said how many there were: whoever is
/// refused must not fill a disk, nor hide the others.
const REFUSALS_A_SECOND: usize = 20;
const OF_ONE_A_SECOND: usize = 10;

const SECOND: Duration = Duration::from_secs(1);

/// Cheap to clone.
#[derive(Clone, Debug)]
pub struct AccessCheck {
    access: Access,
    /// Of logins, and of calls: whoever is not let in must not hide what those do who are.
    logins: Refusals,
    calls: Refusals,
}

/// Those of one kind.
#[derive(Clone, Debug)]
struct Refusals {
    what: &'static str,
    lately: Arc<Mutex<RefusedLately>>,
}

/// Those of the present second.
#[derive(Debug)]
struct RefusedLately {
    since: Instant,
    /// Whose were written.
    written: Vec<Box<str>>,
    left_out: u64,
    /// Somebody will say how many were left out.
    is_awaited: bool,
}

impl AccessCheck {
    /// By this policy.
    pub fn new(access: Access) -> AccessCheck {
        AccessCheck {
            access,
            logins: Refusals::of("logins"),
            calls: Refusals::of("calls"),
        }
    }

    /// Everybody may do everything.
    pub fn open() -> AccessCheck {
        AccessCheck::new(Access::open())
    }

    /// Who calls this path. `Err`: nobody whose call is taken.
    pub(super) fn login(
        &self,
        path: &str,
        headers: &HeaderMap,
        caller: Option<&Origin>,
    ) -> Result<Login, Status> {
        if is_open(path) {
            return Ok(Login::nobody());
        }
        let policy = self.access.policy();
        let login = match bearer(headers) {
            Ok(token) => policy.login(caller, token),
            Err(malformed) if policy.takes_tokens() => Err(malformed),
            Err(_) => policy.login(caller, None),
        };
        login.map_err(|why| {
            let from = caller.map_or("", |caller| &*caller.from);
            if let Some(left_out) = self.logins.are_to_be_written(who("", from)) {
                let path = beginning(path);
                let why = why.to_string();
                tracing::warn!(target: AUDIT, from, path, why, left_out, "a login was refused");
            }
            status::of_login(why)
        })
    }

    /// Whether a login still counts, and may do all of this.
    pub fn check(&self, login: &Login, verbs: Verbs, target: &Target) -> Result<(), Status> {
        let id = target.key_id();
        let scope = match &id {
            Some(id) => Scope::Key(id),
            // Whoever ends the session of somebody else ends entries of any key.
            None if verbs.contains(Verb::Admin) => Scope::Everything,
            None => Scope::Own,
        };
        self.check_scope(login, verbs, scope)
    }

    /// The same of what is not about one key, nor one session.
    pub fn check_scope(&self, login: &Login, verbs: Verbs, scope: Scope<'_>) -> Result<(), Status> {
        self.check_any(login, &[verbs], scope)
    }

    /// Whether a login still counts, and may do this in one of these ways.
    pub fn check_any(&self, login: &Login, ways: &[Verbs], scope: Scope<'_>) -> Result<(), Status> {
        let policy = self.access.policy();
        let known = policy.still_knows(login);
        known.map_err(|why| self.has_ended(login, why))?;
        let allows = |verbs: &Verbs| policy.allows(&login.identity, *verbs, scope);
        if ways.iter().any(allows) {
            return Ok(());
        }
        let (identity, from) = (&*login.identity, &*login.from);
        let denied = status::denied(identity, ways, scope);
        if let Some(left_out) = self.calls.are_to_be_written(who(identity, from)) {
            let why = denied.message();
            tracing::warn!(target: AUDIT, identity, from, why, left_out, "a call was denied");
        }
        Err(denied)
    }

    /// Whether a login still counts.
    pub(super) fn still_knows(&self, login: &Login) -> Result<(), Status> {
        let policy = self.access.policy();
        let known = policy.still_knows(login);
        known.map_err(|why| self.has_ended(login, why))
    }

    /// The status of a login that does not count any more.
    fn has_ended(&self, login: &Login, why: LoginRefused) -> Status {
        let ended = status::login_ended(why);
        if let Some(left_out) = self
            .logins
            .are_to_be_written(who(&login.identity, &login.from))
        {
            let (identity, from) = (&*login.identity, &*login.from);
            let why = ended.message();
            tracing::warn!(target: AUDIT, identity, from, why, left_out, "a login has ended");
        }
        ended
    }

    /// Returns once a login does not count any more: what a stream that began by it ends with.
    pub(super) async fn ended(&self, login: &Login) -> Status {
        self.until(|| self.still_knows(login)).await
    }

    /// Returns once a login may not do this any more: what a call that waits ends with.
    pub(super) async fn until_refused(
        &self,
        login: &Login,
        verbs: Verbs,
        target: &Target,
    ) -> Status {
        self.until(|| self.check(login, verbs, target)).await
    }

    /// The same of what is not about one key, nor one session.
    pub(super) async fn until_scope_refused(
        &self,
        login: &Login,
        verbs: Verbs,
        scope: Scope<'_>,
    ) -> Status {
        self.until(|| self.check_scope(login, verbs, scope)).await
    }

    /// Returns what this refuses with, once it does. It is asked anew whenever tokens or rules are replaced.
    async fn until(&self, is_still: impl Fn() -> Result<(), Status>) -> Status {
        let mut replaced = self.access.replaced();
        loop {
            if let Err(refused) = is_still() {
                return refused;
            }
            if replaced.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// A client showed a certificate that was verified, and says of nobody who that is. Its connection goes on, as one without.
    pub fn certificate_refused(&self, from: &str, why: &str) {
        if let Some(left_out) = self.logins.are_to_be_written(who("", from)) {
            tracing::warn!(target: AUDIT, from, why, left_out, "a client certificate was not taken for a login");
        }
    }

    /// A call about a lockRef was refused: it is written of a client that is known where the service never gave it that one, which it
    /// made up, or has from somebody else.
    pub(super) fn note_refused(&self, login: &Login, lock_ref: &LockRef, status: &Status) {
        let (identity, from) = (&*login.identity, &*login.from);
        if identity.is_empty() || !status::is_never_issued(status) {
            return;
        }
        if let Some(left_out) = self.calls.are_to_be_written(who(identity, from)) {
            let entry = lock_ref;
            tracing::warn!(target: AUDIT, identity, from, %entry, left_out, "a lockRef was refused that is not the caller's");
        }
    }

    /// A connection was refused: the certificate of whoever is at its other end is not trusted, or there is another fault.
    pub fn connection_refused(&self, from: &str, why: &str) {
        if let Some(left_out) = self.logins.are_to_be_written(who("", from)) {
            tracing::warn!(target: AUDIT, from, why, left_out, "a connection was refused");
        }
    }
}

/// So much of a path as is written.
fn beginning(path: &str) -> &str {
    let mut ends = (0..=PATH_BYTES_MAX).rev();
    let end = ends.find(|end| path.is_char_boundary(*end));
    path.get(..end.unwrap_or(0)).unwrap_or("")
}

/// Whether everybody may call this path.
fn is_open(path: &str) -> bool {
    path.starts_with(OPEN)
}

impl Refusals {
    fn of(what: &'static str) -> Refusals {
        let none = RefusedLately {
            since: Instant::now(),
            written: Vec::new(),
            left_out: 0,
            is_awaited: false,
        };
        Refusals {
            what,
            lately: Arc::new(Mutex::new(none)),
        }
    }

    /// How many were left out since one was written; `None` where this one, of `who`, is left out as well.
    fn are_to_be_written(&self, who: &str) -> Option<u64> {
        let mut lately = self.lately.lock();
        let now = Instant::now();
        if now.duration_since(lately.since) >= SECOND {
            lately.since = now;
            lately.written.clear();
        }
        let of_it = lately.written.iter().filter(|one| &***one == who).count();
        if lately.written.len() >= REFUSALS_A_SECOND || of_it >= OF_ONE_A_SECOND {
            lately.left_out += 1;
            lately.is_awaited = lately.is_awaited || self.say_later();
            return None;
        }
        lately.written.push(who.into());
        Some(std::mem::take(&mut lately.left_out))
    }

    /// Says how many were left out, should none be written that does; whether it will.
    fn say_later(&self) -> bool {
        let Ok(runtime) = Handle::try_current() else {
            return false;
        };
        let refusals = self.clone();
        runtime.spawn(async move {
            sleep(SECOND).await;
            let left_out = {
                let mut lately = refusals.lately.lock();
                lately.is_awaited = false;
                std::mem::take(&mut lately.left_out)
            };
            if left_out > 0 {
                tracing::warn!(target: AUDIT, left_out, "more {} were refused", refusals.what);
            }
        });
        true
    }
}

/// Whose a refusal is: of a client by its identity, else by the machine that it calls from.
fn who<'a>(identity: &'a str, from: &'a str) -> &'a str {
    match identity {
        "" => from.rsplit_once(':').map_or(from, |(machine, _)| machine),
        identity => identity,
    }
}

/// An entry or a session was ended by force, or was to be. That it was denied is written where that is found out.
pub(super) fn forced<C: ByForce>(login: &Login, asked: &C, came: Result<&C::Answer, &Status>) {
    let came = match came {
        Ok(answer) if C::had_ended(answer) => "had ended before".to_owned(),
        Ok(_) => "ended".to_owned(),
        Err(status) if status.code() == Code::PermissionDenied => return,
        Err(status) => format!("{:?}: {}", status.code(), status.message()),
    };
    let (identity, from) = (&*login.identity, &*login.from);
    let Words { by, why: reason } = asked.words();
    match asked.target() {
        Target::Session(session) => {
            tracing::info!(target: AUDIT, identity, from, %session, by, reason, came, "an end by force");
        }
        Target::Entry(entry) => {
            tracing::info!(target: AUDIT, identity, from, %entry, by, reason, came, "an end by force");
        }
        // Nobody ends these.
        Target::Key(_) | Target::LockRef(_) => {}
    }
}

/// A backup was begun: whoever has it has every value.
pub(super) fn backup_begun(login: &Login) {
    let (identity, from) = (&*login.identity, &*login.from);
    tracing::info!(target: AUDIT, identity, from, "a backup was begun");
}

/// It ended: whole, with a status, or since its caller went away.
pub(super) fn backup_ended(login: &Login, came: Result<(), Option<&Status>>) {
    let (identity, from) = (&*login.identity, &*login.from);
    let came = match came {
        Ok(()) => "whole".to_owned(),
        Err(Some(status)) => format!("{:?}: {}", status.code(), status.message()),
        Err(None) => "its caller went away".to_owned(),
    };
    tracing::info!(target: AUDIT, identity, from, came, "a backup ended");
}

/// The token in the headers of a call.
fn bearer(headers: &HeaderMap) -> Result<Option<&[u8]>, LoginRefused> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let bytes = value.as_bytes();
    let (scheme, token) = bytes.split_at(BEARER.len().min(bytes.len()));
    match values.next() {
        None if scheme.eq_ignore_ascii_case(BEARER) => Ok(Some(token.trim_ascii())),
        _ => Err(LoginRefused::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        let values = values.iter().map(|value| value.parse().unwrap());
        values.map(|value| (AUTHORIZATION, value)).collect()
    }

    #[test]
    fn a_token_is_a_bearer_once() {
        for (given, token) in [
            (&[][..], Ok(None)),
            (&["Bearer abc"], Ok(Some(&b"abc"[..]))),
            (&["bearer  abc "], Ok(Some(b"abc"))),
            (&["Bearer "], Ok(Some(b""))),
            (&["Basic abc"], Err(LoginRefused::Malformed)),
            (&["Bearer"], Err(LoginRefused::Malformed)),
            (&[""], Err(LoginRefused::Malformed)),
            (&["Bearer a", "Bearer a"], Err(LoginRefused::Malformed)),
        ] {
            assert_eq!(bearer(&headers(given)), token, "{given:?}");
        }
    }

    #[test]
    fn a_path_is_written_in_part_whatever_it_is() {
        let [long, wide] = ["a", "é"].map(|of| format!("/{}", of.repeat(PATH_BYTES_MAX)));
        assert_eq!(beginning("/a"), "/a");
        assert_eq!(beginning(&long), &long[..PATH_BYTES_MAX]);
        assert_eq!(beginning(&wide), &wide[..PATH_BYTES_MAX - 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_refused_often_fills_no_log_and_hides_nobody() {
        let check = AccessCheck::open();
        let written = |of, times: usize| {
            let written = (0..times).filter_map(|_| check.calls.are_to_be_written(of));
            written.collect::<Vec<_>>()
        };
        assert_eq!(written("one", 50), vec![0; 10]);
        assert_eq!(written("another", 1), [40]);
        assert_eq!(written("many", 50), vec![0; 9]);
        assert!(written("too late", 1).is_empty());
        // Of the other kind there is as much room.
        assert_eq!(check.logins.are_to_be_written("one"), Some(0));
        // What nobody said since is said by itself.
        let left_out = || check.calls.lately.lock().left_out;
        assert_eq!(left_out(), 42);
        tokio::time::sleep(2 * SECOND).await;
        assert_eq!(left_out(), 0);
        assert_eq!(written("one", 1), [0]);
    }

    #[test]
    fn whoever_has_no_identity_is_the_machine_that_it_calls_from() {
        assert_eq!(who("ann", "10.0.0.1:5"), "ann");
        assert_eq!(who("", "10.0.0.1:5"), "10.0.0.1");
        assert_eq!(who("", "[::1]:5"), "[::1]");
        assert_eq!(who("", "unix, process 7"), "unix, process 7");
    }
}
