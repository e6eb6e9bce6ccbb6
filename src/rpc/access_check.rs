//! Who makes a call, and whether that one may: asks [`crate::access`], puts refusals into statuses, and writes the audit log.
//!
//! A login is taken once a call, or once a stream; whether it still counts, and what it may do, is asked anew for each call of
//! a stream, so that a token or a rule that is taken away ends what goes on by it. Calls that other replicas pass on
//! were checked there.

use std::sync::Arc;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use tokio::time::Instant;
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

/// How many refusals of each kind are written a second. Of more it is said how many there were: whoever is refused must not fill a disk.
const REFUSALS_A_SECOND: u32 = 20;

/// Cheap to clone.
#[derive(Clone, Debug)]
pub struct AccessCheck {
    access: Access,
    /// Of logins, and of calls: whoever is not let in must not hide what those do who are.
    logins: Arc<Mutex<Refusals>>,
    calls: Arc<Mutex<Refusals>>,
}

/// Those of the present second.
#[derive(Debug)]
struct Refusals {
    since: Instant,
    written: u32,
    left_out: u64,
}

impl AccessCheck {
    /// By this policy.
    pub fn new(access: Access) -> AccessCheck {
        let none = || Refusals {
            since: Instant::now(),
            written: 0,
            left_out: 0,
        };
        AccessCheck {
            access,
            logins: Arc::new(Mutex::new(none())),
            calls: Arc::new(Mutex::new(none())),
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
            if let Some(left_out) = is_to_be_written(&self.logins) {
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
        if let Some(left_out) = is_to_be_written(&self.calls) {
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
        if let Some(left_out) = is_to_be_written(&self.logins) {
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
        if let Some(left_out) = is_to_be_written(&self.logins) {
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
        if let Some(left_out) = is_to_be_written(&self.calls) {
            let entry = lock_ref;
            tracing::warn!(target: AUDIT, identity, from, %entry, left_out, "a lockRef was refused that is not the caller's");
        }
    }

    /// A connection was refused: the certificate of whoever is at its other end is not trusted, or there is another fault.
    pub fn connection_refused(&self, from: &str, why: &str) {
        if let Some(left_out) = is_to_be_written(&self.logins) {
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
pub(super) fn is_open(path: &str) -> bool {
    path.starts_with(OPEN)
}

/// How many were left out since one was written; `None` where this one is left out as well.
fn is_to_be_written(refusals: &Mutex<Refusals>) -> Option<u64> {
    let mut refusals = refusals.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    if now.duration_since(refusals.since) >= Duration::from_secs(1) {
        refusals.since = now;
        refusals.written = 0;
    }
    if refusals.written >= REFUSALS_A_SECOND {
        refusals.left_out += 1;
        return None;
    }
    refusals.written += 1;
    Some(std::mem::take(&mut refusals.left_out))
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
    async fn who_is_refused_often_fills_no_log() {
        let check = AccessCheck::open();
        let written = (0..50).filter_map(|_| is_to_be_written(&check.logins));
        assert_eq!(written.collect::<Vec<_>>(), vec![0; 20]);
        // The others are not hidden by that.
        assert_eq!(is_to_be_written(&check.calls), Some(0));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(is_to_be_written(&check.logins), Some(30));
        assert_eq!(is_to_be_written(&check.logins), Some(0));
    }
}
