//! The identity of a caller: by its token, by the certificate of its connection, or by the user at the other end of a Unix
//! socket.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use super::Policy;
use super::tokens::Hash;

/// The origin of a call: what its connection says of the caller.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// Its address, for people.
    pub from: Arc<str>,
    /// The address of its machine, over a network.
    pub address: Option<IpAddr>,
    /// The identity of its verified certificate.
    pub certificate: Option<Arc<str>>,
    /// Its verified certificate names no identity.
    pub is_unnamed: bool,
    /// The user at the other end of a Unix socket.
    pub unix_user: Option<u32>,
}

/// One who has a share of connections, and of calls without an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShareOf {
    /// A machine. Of IPv6 the first 64 bits: one machine has all of the others.
    Address(IpAddr),
    /// A user at the other end of a Unix socket.
    UnixUser(u32),
    /// All of unknown origin.
    Unknown,
}

impl ShareOf {
    /// By the origin of a connection.
    pub fn of(origin: Option<&Origin>) -> ShareOf {
        let address = origin.and_then(|origin| origin.address);
        let user = origin.and_then(|origin| origin.unix_user);
        match (address.map(|address| address.to_canonical()), user) {
            (Some(IpAddr::V6(address)), _) => {
                let network = address.to_bits() >> 64 << 64;
                ShareOf::Address(IpAddr::V6(Ipv6Addr::from_bits(network)))
            }
            (Some(address), _) => ShareOf::Address(address),
            (None, Some(user)) => ShareOf::UnixUser(user),
            (None, None) => ShareOf::Unknown,
        }
    }
}

/// Who makes a call.
#[derive(Clone, Debug)]
pub struct Login {
    /// Empty without an identity.
    pub identity: Arc<str>,
    /// Its address, for people.
    pub from: Arc<str>,
    /// The share that it uses without an identity.
    share: Share,
    by: By,
}

#[derive(Clone, Debug)]
enum Share {
    By(ShareOf),
    /// As the forwarding replica says.
    Named(Arc<str>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Nothing,
    Token(Hash),
    Certificate,
    Unix,
}

/// Not the hash.
impl std::fmt::Debug for By {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            By::Nothing => "nothing",
            By::Token(_) => "token",
            By::Certificate => "certificate",
            By::Unix => "unix",
        })
    }
}

/// Why a login was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LoginRefused {
    /// The caller names no identity.
    #[error(
        "this server requires a login: send a token (`authorization: Bearer TOKEN`), or show a client certificate"
    )]
    Missing,
    /// The token is unknown.
    #[error("the token is unknown to this server, or was removed")]
    UnknownToken,
    /// The certificate names no identity.
    #[error(
        "the client certificate is trusted, but names no identity: it needs a subject, or one SPIFFE id"
    )]
    Unnamed,
    /// The header `authorization` is malformed.
    #[error("the metadata `authorization` must occur once, as `Bearer TOKEN`")]
    Malformed,
}

impl Login {
    /// Of calls within this process, or without an identity.
    pub fn nobody() -> Login {
        Login {
            identity: Arc::from(""),
            from: Arc::from(""),
            share: Share::By(ShareOf::Unknown),
            by: By::Nothing,
        }
    }

    /// The share of a call: of its identity, else of its machine. May be empty.
    pub fn share_of(&self) -> Arc<str> {
        match &self.share {
            _ if !self.identity.is_empty() => Arc::clone(&self.identity),
            Share::By(ShareOf::Address(address)) => Arc::from(address.to_string()),
            Share::By(ShareOf::UnixUser(user)) => Arc::from(format!("unix:{user}")),
            Share::By(ShareOf::Unknown) => Arc::from(""),
            Share::Named(who) => Arc::clone(who),
        }
    }

    /// Of a call that another replica passes on: it was checked there.
    pub fn passed_on(identity: &str, share_of: &str) -> Login {
        Login {
            identity: Arc::from(identity),
            share: Share::Named(Arc::from(share_of)),
            ..Login::nobody()
        }
    }
}

impl Policy {
    /// The login of a caller: by its token, else by its certificate, else by the user of its Unix socket. An unknown token is
    /// refused, whatever else there is. Without tokens in force a token is ignored: so clients can have theirs before the server
    /// asks for them.
    pub fn login(
        &self,
        caller: Option<&Origin>,
        token: Option<&[u8]>,
    ) -> Result<Login, LoginRefused> {
        let from = caller.map_or_else(|| Arc::from(""), |caller| Arc::clone(&caller.from));
        let unix_user = caller.and_then(|caller| caller.unix_user);
        let share = ShareOf::of(caller);
        let login = |identity, by| Login {
            identity,
            from: Arc::clone(&from),
            share: Share::By(share),
            by,
        };
        if let (Some(tokens), Some(token)) = (&self.tokens, token) {
            let (identity, hash) = tokens.find(token).ok_or(LoginRefused::UnknownToken)?;
            let by = By::Token(hash);
            return Ok(login(identity, by));
        }
        let certificate = caller.and_then(|caller| caller.certificate.clone());
        if let Some(identity) = certificate.filter(|_| self.certificates) {
            return Ok(login(identity, By::Certificate));
        }
        // Without logins a client is the same over any way.
        if let Some(user) = unix_user.filter(|_| self.needs_login()) {
            return Ok(login(Arc::from(format!("unix:{user}")), By::Unix));
        }
        let is_unnamed = self.certificates && caller.is_some_and(|caller| caller.is_unnamed);
        match self.needs_login() {
            true if is_unnamed => Err(LoginRefused::Unnamed),
            true => Err(LoginRefused::Missing),
            false => Ok(login(Arc::from(""), By::Nothing)),
        }
    }

    /// Whether a login that was taken before still counts: of a stream that goes on.
    pub fn still_knows(&self, login: &Login) -> Result<(), LoginRefused> {
        match login.by {
            By::Token(hash) => match &self.tokens {
                Some(tokens) if tokens.has(&login.identity, &hash) => Ok(()),
                // Tokens are no longer asked for; or this one is.
                None if !self.needs_login() => Ok(()),
                Some(_) | None => Err(LoginRefused::UnknownToken),
            },
            By::Certificate if self.certificates || !self.needs_login() => Ok(()),
            By::Unix => Ok(()),
            By::Certificate | By::Nothing if self.needs_login() => Err(LoginRefused::Missing),
            By::Certificate | By::Nothing => Ok(()),
        }
    }
}
