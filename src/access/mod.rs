//! Identities and permissions of callers: identities by tokens, certificates and Unix sockets, and rules by table and key.
//!
//! A [`Policy`] is read from files and replaced as a whole. What must not live here: gRPC, sockets, clocks, and the permissions
//! that a call needs ([`crate::rpc`] has these).

#[cfg(any(test, fuzzing))]
#[path = "fuzz_test.rs"]
pub(crate) mod fuzz;
mod login;
mod rules;
mod tokens;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fermata_files::{ReadError, SMALL_FILE_BYTES_MAX, read_regular};
use parking_lot::RwLock;
use tokio::sync::watch;

pub use login::{Login, LoginRefused, Origin, ShareOf};
pub use rules::{Rules, RulesError, Scope, Verb, Verbs};
pub use tokens::{NewToken, TokenError, Tokens};

/// The files of tokens and rules. Without them every caller may do everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccessFiles {
    /// Who has which token.
    pub tokens: Option<PathBuf>,
    /// What each identity may do; everything where absent.
    pub rules: Option<PathBuf>,
}

/// Why the files cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {file}: {why}", file = file.display())]
pub struct AccessError {
    /// What names it.
    pub setting: &'static str,
    /// Which of them.
    pub file: PathBuf,
    /// What is wrong with it.
    pub why: String,
}

impl AccessFiles {
    /// The given ones.
    pub fn paths(&self) -> Vec<PathBuf> {
        [&self.tokens, &self.rules]
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    /// Reads the policy. `certificates`: client certificates are identities as well.
    pub fn read(&self, certificates: bool) -> Result<Policy, AccessError> {
        Ok(Policy {
            tokens: self.read_tokens()?.map(Arc::new),
            certificates,
            rules: self.read_rules()?.map(Arc::new),
        })
    }

    /// Who has which token.
    pub fn read_tokens(&self) -> Result<Option<Tokens>, AccessError> {
        let Some(file) = &self.tokens else {
            return Ok(None);
        };
        let unusable = |why| fault("auth.tokens_file", file, why);
        let tokens = Tokens::parse(&text(file).map_err(unusable)?);
        tokens
            .map(Some)
            .map_err(|error| unusable(error.to_string()))
    }

    /// What each may do.
    pub fn read_rules(&self) -> Result<Option<Rules>, AccessError> {
        let Some(file) = &self.rules else {
            return Ok(None);
        };
        let unusable = |why| fault("auth.rules_file", file, why);
        let rules = Rules::parse(&text(file).map_err(unusable)?);
        rules.map(Some).map_err(|error| unusable(error.to_string()))
    }
}

fn fault(setting: &'static str, file: &Path, why: String) -> AccessError {
    AccessError {
        setting,
        file: file.to_owned(),
        why,
    }
}

fn text(file: &Path) -> Result<String, String> {
    let read = read_regular(file, SMALL_FILE_BYTES_MAX).and_then(fermata_files::text);
    read.map_err(|error: ReadError| error.to_string())
}

/// Tokens, certificates and rules.
#[derive(Debug, Default)]
pub struct Policy {
    /// The tokens; `None` if tokens are not used.
    tokens: Option<Arc<Tokens>>,
    /// Client certificates are identities.
    certificates: bool,
    /// What each identity may do; everything where absent.
    rules: Option<Arc<Rules>>,
}

impl Policy {
    /// Whether a caller must log in.
    pub fn needs_login(&self) -> bool {
        self.tokens.is_some() || self.certificates
    }

    /// Whether a token that is sent counts.
    pub fn takes_tokens(&self) -> bool {
        self.tokens.is_some()
    }

    /// Whether this identity has all of these permissions there.
    pub fn allows(&self, identity: &str, verbs: Verbs, scope: Scope<'_>) -> bool {
        let rules = self.rules.as_ref();
        rules.is_none_or(|rules| rules.allow(identity, verbs, scope))
    }
}

/// The policy in force. Cheap to clone; all clones have the same.
#[derive(Clone, Debug)]
pub struct Access(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    policy: RwLock<Arc<Policy>>,
    replaced: watch::Sender<()>,
}

impl Access {
    /// With this policy.
    pub fn new(policy: Policy) -> Access {
        Access(Arc::new(Shared {
            policy: RwLock::new(Arc::new(policy)),
            replaced: watch::Sender::new(()),
        }))
    }

    /// Everybody may do everything.
    pub fn open() -> Access {
        Access::new(Policy::default())
    }

    /// The policy now.
    pub fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.0.policy.read())
    }

    /// From now on this one counts, for calls on open streams as well.
    pub fn replace(&self, policy: Policy) {
        self.change(|_before| policy);
    }

    /// From now on these tokens count, with the rules in force.
    pub fn replace_tokens(&self, tokens: Option<Tokens>) {
        self.change(|before| Policy {
            tokens: tokens.map(Arc::new),
            certificates: before.certificates,
            rules: before.rules.clone(),
        });
    }

    /// From now on these rules count, with the tokens in force.
    pub fn replace_rules(&self, rules: Option<Rules>) {
        self.change(|before| Policy {
            tokens: before.tokens.clone(),
            certificates: before.certificates,
            rules: rules.map(Arc::new),
        });
    }

    fn change(&self, change: impl FnOnce(&Policy) -> Policy) {
        let mut policy = self.0.policy.write();
        *policy = Arc::new(change(&policy));
        drop(policy);
        self.0.replaced.send_replace(());
    }

    /// Notified when the policy is replaced.
    pub fn replaced(&self) -> watch::Receiver<()> {
        self.0.replaced.subscribe()
    }
}

#[cfg(test)]
mod tests;
