//! Addresses to listen on.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize, Serializer};

/// A list, or one text with commas, as an environment variable holds it.
#[derive(Deserialize)]
#[serde(untagged, expecting = "write a string, or a list of strings")]
pub(super) enum Texts {
    One(String),
    Several(Vec<String>),
}

impl Texts {
    /// The texts, without blanks around them.
    pub(super) fn all(self) -> Vec<String> {
        match self {
            Texts::One(text) => text.split(',').map(|one| one.trim().to_owned()).collect(),
            Texts::Several(texts) => texts,
        }
    }
}

/// Addresses and sockets to listen on; one at least.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Texts")]
pub struct Listen(Vec<ListenAt>);

/// An address or a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAt {
    /// Over TCP.
    Address(SocketAddr),
    /// A Unix socket.
    Socket(PathBuf),
}

/// The start of the text of a Unix socket.
const SOCKET: &str = "unix:";

impl fmt::Display for ListenAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAt::Address(address) => address.fmt(f),
            ListenAt::Socket(path) => write!(f, "{SOCKET}{}", path.display()),
        }
    }
}

impl Listen {
    /// The default port of Fermata.
    pub const PORT: u16 = 7450;

    /// All, in the order of the setting.
    pub fn all(&self) -> &[ListenAt] {
        &self.0
    }

    /// The addresses, in the order of the setting.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.0.iter().filter_map(|at| match at {
            ListenAt::Address(address) => Some(*address),
            ListenAt::Socket(_) => None,
        })
    }
}

fn parse(text: &str) -> Result<ListenAt, String> {
    match text.strip_prefix(SOCKET) {
        Some(path) if path.starts_with('/') => Ok(ListenAt::Socket(path.into())),
        Some(_) => Err(format!("{text:?} is not an absolute path; write unix:/PATH")),
        None => text.parse().map(ListenAt::Address).map_err(|_| {
            format!(
                "{text:?} is not an address; write IP:PORT, such as 127.0.0.1:7450 or [::1]:0, or unix:/PATH for a socket"
            )
        }),
    }
}

impl TryFrom<Texts> for Listen {
    type Error = String;

    fn try_from(texts: Texts) -> Result<Listen, String> {
        let all = texts.all();
        match all.is_empty() {
            true => Err("name at least one address".to_owned()),
            false => all
                .iter()
                .map(|text| parse(text))
                .collect::<Result<_, _>>()
                .map(Listen),
        }
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        Texts::One(text.to_owned()).try_into()
    }
}

impl Default for Listen {
    fn default() -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, Self::PORT));
        Listen(vec![ListenAt::Address(address)])
    }
}

impl Serialize for Listen {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(ListenAt::to_string))
    }
}
