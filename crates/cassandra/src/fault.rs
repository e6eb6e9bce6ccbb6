//! What can become of a request that got no result.

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectFault {
    /// Nobody was asked: a file cannot be read, or does not hold what it should.
    Settings(String),
    /// A node was reached, and they or we would not have the other.
    Refused(String),
    /// No node was reached.
    Unreachable(String),
}

impl From<ConnectFault> for Fault {
    fn from(fault: ConnectFault) -> Fault {
        match fault {
            ConnectFault::Settings(why) | ConnectFault::Refused(why) => Fault::Refused(why),
            ConnectFault::Unreachable(why) => Fault::NotStarted(why),
        }
    }
}

/// Why there is no result, sorted by what may have happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A node would not do it: nothing was changed, and nothing would be if it were repeated.
    #[error("{0}")]
    Refused(String),
    /// Nothing was changed, and nothing will be.
    #[error("{0}")]
    NotStarted(String),
    /// It may have taken effect, or may yet.
    #[error("{0}")]
    Unknown(String),
}

impl Fault {
    /// Whether it may have taken effect, or may yet.
    pub fn is_unknown(&self) -> bool {
        match self {
            Fault::Refused(_) | Fault::NotStarted(_) => false,
            Fault::Unknown(_) => true,
        }
    }
}
