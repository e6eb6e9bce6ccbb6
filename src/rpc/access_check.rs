//! Logins and permissions of calls: asks [`crate::access`], makes statuses of refusals, and writes the audit log.
//!
//! A login is taken once per call, or once per stream. Each call of a stream checks it again, so that a removed token or rule
//! ends open streams. The forwarding replica has already checked calls from other replicas.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::{Code, Status};

use super::calls::{ByForce, Target, Words};
use super::status;
use crate::access::{Access, Login, LoginRefused, Origin, Scope, Verb, Verbs};
use crate::lock::KeyId;

/// Open to everybody: probes have no login.
const OPEN: &str = "/grpc.health.";

/// The begin of a header with a token.
const BEARER: &str = "bearer ";

/// The target of lines of the audit log, in filters.
const AUDIT: &str = "fermata::audit";

/// How much of a path is written, in characters.
const PATH_CHARS_MAX: usize = 128;

/// How many refusals of each kind are written a second, half of them of one client. The next line has the number of those that were
/// left out: refusals must neither fill a disk nor hide other ones.
const REFUSALS_A_SECOND: usize = 20;

/// Cheap to clone.
#[derive(Clone, Debug)]
pub struct AccessCheck {
    access: Access,
    /// Of logins, and of calls: unknown clients must not hide what known ones do.
    logins: Refusals,
    calls: Refusals,
}

/// The refusals of one kind.
#[derive(Clone, Debug)]
struct Refusals(Arc<Mutex<RefusedLately>>);

/// Those of the present second.
#[derive(Debug)]
struct RefusedLately {
    since: Instant,
    /// Whose were written.
    written: Vec<Box<str>>,
    left_out: u64,
}

impl AccessCheck {
    /// With this policy.
    pub fn new(access: Access) -> AccessCheck {
        AccessCheck {
            access,
            logins: Refusals::new(),
            calls: Refusals::new(),
        }
    }

    /// Everybody may do everything.
    pub fn open() -> AccessCheck {
        AccessCheck::new(Access::open())
    }

    /// The login of a caller of this path. `Err`: refused.
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
                let path = format!("{path:.PATH_CHARS_MAX$}");
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
            // An operator who ends a session ends entries of any key.
            None if verbs.contains(Verb::Admin) => Scope::Everything,
            None => Scope::Own,
        };
        self.check_scope(login, verbs, scope)
    }

    /// The same for a scope other than one key or session.
    pub fn check_scope(&self, login: &Login, verbs: Verbs, scope: Scope<'_>) -> Result<(), Status> {
        self.check_any(login, &[verbs], scope)
    }

    /// Whether a login still counts, and has one of these sets of permissions.
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

    /// The status of an ended login.
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

    /// Returns what this refuses with, once it does: the end of a call that waits, or of a stream. It is asked anew whenever
    /// tokens or rules are replaced.
    pub(super) async fn until_refused(
        &self,
        is_allowed: impl Fn() -> Result<(), Status>,
    ) -> Status {
        let mut replaced = self.access.replaced();
        loop {
            if let Err(refused) = is_allowed() {
                return refused;
            }
            if replaced.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// A verified client certificate names no identity. Its connection goes on, as one without a certificate.
    pub fn certificate_refused(&self, from: &str, why: &str) {
        if let Some(left_out) = self.logins.are_to_be_written(who("", from)) {
            tracing::warn!(target: AUDIT, from, why, left_out, "a client certificate was not accepted as a login");
        }
    }

    /// A connection was refused: its certificate is not trusted, or there is another fault.
    pub fn connection_refused(&self, from: &str, why: &str) {
        if let Some(left_out) = self.logins.are_to_be_written(who("", from)) {
            tracing::warn!(target: AUDIT, from, why, left_out, "a connection was refused");
        }
    }
}

/// Whether everybody may call this path.
fn is_open(path: &str) -> bool {
    path.starts_with(OPEN)
}

impl Refusals {
    fn new() -> Refusals {
        Refusals(Arc::new(Mutex::new(RefusedLately {
            since: Instant::now(),
            written: Vec::new(),
            left_out: 0,
        })))
    }

    /// How many were left out since one was written; `None` if this one, of `who`, is left out as well.
    fn are_to_be_written(&self, who: &str) -> Option<u64> {
        let mut lately = self.0.lock();
        let now = Instant::now();
        if now.duration_since(lately.since) >= Duration::from_secs(1) {
            lately.since = now;
            lately.written.clear();
        }
        let of_it = lately.written.iter().filter(|one| &***one == who).count();
        if lately.written.len() >= REFUSALS_A_SECOND || of_it >= REFUSALS_A_SECOND / 2 {
            lately.left_out += 1;
            return None;
        }
        lately.written.push(who.into());
        Some(std::mem::take(&mut lately.left_out))
    }
}

/// The client of a refusal: its identity, else its machine.
fn who<'a>(identity: &'a str, from: &'a str) -> &'a str {
    match identity {
        "" => from.rsplit_once(':').map_or(from, |(machine, _)| machine),
        identity => identity,
    }
}

/// An entry or a session was to be ended by force. A denied one is written by the check.
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

/// The lock columns of a row were removed by force.
pub(super) fn row_forced(
    login: &Login,
    row: &KeyId,
    (by, reason): (&str, &str),
    came: Result<usize, &Status>,
) {
    let (identity, from) = (&*login.identity, &*login.from);
    let came = match came {
        Ok(count) => format!("{count} lock columns removed"),
        Err(status) => format!("{:?}: {}", status.code(), status.message()),
    };
    tracing::info!(target: AUDIT, identity, from, %row, by, reason, came, "an end by force");
}

/// The filter of the log was changed.
pub(super) fn log_filter_changed(login: &Login, filter: &str, previous: &str) {
    let (identity, from) = (&*login.identity, &*login.from);
    tracing::info!(target: AUDIT, identity, from, filter, previous, "the filter of the log changed");
}

/// A backup was begun: it has every value.
pub(super) fn backup_begun(login: &Login) {
    let (identity, from) = (&*login.identity, &*login.from);
    tracing::info!(target: AUDIT, identity, from, "a backup was begun");
}

/// It ended: whole, with a status, or because its caller went away.
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
        None if scheme.eq_ignore_ascii_case(BEARER.as_bytes()) => Ok(Some(token.trim_ascii())),
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
        // The next one that is written says how many were not.
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(written("one", 2), [42, 0]);
    }

    #[test]
    fn whoever_has_no_identity_is_the_machine_that_it_calls_from() {
        assert_eq!(who("ann", "10.0.0.1:5"), "ann");
        assert_eq!(who("", "10.0.0.1:5"), "10.0.0.1");
        assert_eq!(who("", "[::1]:5"), "[::1]");
        assert_eq!(who("", "unix, process 7"), "unix, process 7");
    }
}
