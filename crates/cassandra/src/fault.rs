//! The outcome of a request without a result.

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectFault {
    /// No node was asked: a file cannot be read, or its contents are wrong.
    Settings(String),
    /// A node was reached, and one side refused the other.
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

/// Why there is no result, by the possible outcome.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A node refused it. Nothing was changed, and a repetition would be refused as well.
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
        matches!(self, Fault::Unknown(_))
    }
}
