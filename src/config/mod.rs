//! The configuration of `serve`: a file, environment variables and flags, from low to high precedence.
//!
//! Every setting has a default. docs/configuration.md describes all settings; a test compares it with this module. Nothing here
//! opens, binds or starts anything.

mod clients;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod listen;
mod load;
mod peers;
mod settings;
mod store;
#[cfg(test)]
mod tests;

pub use fermata_command::{Span, SpanError};

pub use clients::{AuthConfig, ClientTlsConfig};
pub use listen::{Listen, ListenAt};
pub use load::{Flag, Problem, Problems, Sources};
pub use peers::{PeersConfig, PeersTlsConfig};
pub use settings::{
    Commit, Config, ConfiguredTable, HttpConfig, LogConfig, LogFormat, NoDataDir, TableConfig,
    TracesConfig,
};
pub use store::{
    CassandraConfig, Consistency, ContactPoints, DriverName, EmbeddedConfig, KeyspaceName,
    StoreConfig, StoreKind, TlsConfig,
};
