//! `fermata serve`: puts the parts together and runs them until a signal.

mod descriptors;
mod greeting;
mod parts;
mod reload;
mod signals;

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;

use fermata_command::exit;
use tokio::sync::oneshot;
use tokio::task::JoinError;
use tokio::time::timeout;

use super::cluster::SettingsError;
use super::settings::Settings;
use crate::access::AccessError;
use crate::clock::SystemIds;
use crate::config::{NoDataDir, Problems};
use crate::engine::EngineError;
use crate::server::{self, ListenError, SecretError, Server, Stopped, TlsFileError};
use crate::store::embedded::{EmbeddedOpenError, EmbeddedStore};
use crate::telemetry::{self, TelemetryError};
use descriptors::TooFewDescriptors;
use parts::{Net, Prepared, Protected};
use reload::Watched;
use signals::{EndSignals, end_at_once};

/// Run the lock service
///
/// Serves gRPC until SIGTERM or SIGINT. SIGHUP has it read certificates, tokens, rules and `log.filter` again, unless it
/// was started to ignore that (`nohup`). Without any setting it listens on 127.0.0.1:7450 and keeps its data in one
/// directory. With --store cassandra any number of replicas keep it in one cluster; the tables are made by `fermata
/// schema apply`, and a replica waits until the cluster is there. Every setting can also be in a file (--config) or in
/// an environment variable: `limits.value_bytes_max` is FERMATA_CFG_LIMITS__VALUE_BYTES_MAX. `fermata check` shows what
/// is in force.
///
/// The first signal ends it in an orderly way: keys that are in use are handed over to other replicas (half of
/// --shutdown-grace, 5 s at most), then open calls have --shutdown-grace, and handing over what is left, and telling the
/// others, as much again at most. A second one ends it at once.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Exit status: 0 stopped by a signal; 69 the store cannot be opened, or its directory was removed; 70 it failed \
    while it ran; 71 an address cannot be listened on; 78 the configuration is not valid; 130 or 143 \
    ended at once by a second signal."
)]
pub struct Args {
    #[command(flatten)]
    settings: Settings,
}

/// Why `serve` did not start, or ended other than by a signal.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Correct the configuration.
    #[error(transparent)]
    Config(#[from] Problems),
    /// Name a data directory.
    #[error(transparent)]
    DataDir(#[from] NoDataDir),
    /// Correct the settings.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Write a longer secret.
    #[error("peers.secret_file: {0}")]
    Secret(#[from] SecretError),
    /// Name other certificates.
    #[error("peers.tls.{0}")]
    PeerTls(TlsFileError),
    /// The same of those for clients.
    #[error("tls.{0}")]
    ClientTls(TlsFileError),
    /// Correct the tokens, or the rules.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// Allow more descriptors, or fewer connections.
    #[error(transparent)]
    Descriptors(#[from] TooFewDescriptors),
    /// Correct `log.filter`.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// Free the address, or name another one.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The system does not say which port it gave, or lets no signals be heard.
    #[error("cannot {what}: {source}")]
    System {
        /// What was asked of it.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
    /// An operator must look at the data directory.
    #[error(transparent)]
    Store(#[from] EmbeddedOpenError),
    /// The store was opened, and then could not be used.
    #[error("the store cannot be used: {0}")]
    Engine(#[from] EngineError),
    /// A fault of this program.
    #[error("opening the store failed: {0}")]
    Opening(#[from] JoinError),
    /// An operator must find out who removed the data directory, and restore a copy.
    #[error("{0}")]
    DataLost(String),
    /// The server went away unasked.
    #[error(transparent)]
    Server(#[from] server::ServerError),
}

impl ServeError {
    /// What the process ends with.
    pub fn exit_code(&self) -> u8 {
        match self {
            ServeError::Config(_)
            | ServeError::DataDir(_)
            | ServeError::Settings(_)
            | ServeError::Secret(_)
            | ServeError::PeerTls(_)
            | ServeError::ClientTls(_)
            | ServeError::Access(_)
            | ServeError::Descriptors(_)
            | ServeError::Telemetry(_) => exit::CONFIG,
            ServeError::Listen(_) | ServeError::System { .. } => exit::OS,
            ServeError::Store(_) | ServeError::Engine(_) | ServeError::DataLost(_) => {
                exit::UNAVAILABLE
            }
            ServeError::Opening(_) | ServeError::Server(_) => exit::SOFTWARE,
        }
    }
}

/// Runs the command.
pub async fn run(args: Args) -> Result<u8, ServeError> {
    let mut config = args.settings.clone().load()?;
    let prepared = Prepared::new(&config)?;
    let protected = Protected::new(&config)?;
    let log_filter = telemetry::init(&config.log)?;
    descriptors::provide(&mut config)?;
    parts::warn_where_rules_are_missing(&config);
    parts::warn_where_it_is_insecure(&config);
    let mut signals = EndSignals::new().map_err(|source| ServeError::System {
        what: "hear signals",
        source,
    })?;
    let net = Net::bind(&config).await?;
    let started = tokio::select! {
        biased;
        started = prepared.start(config.clone(), &net) => started?,
        // Nothing was promised to anybody yet.
        signal = signals.next() => end_at_once(signal),
    };
    greeting::listening(&net.addresses, &net.sockets, &net.peer_addresses);

    let grace = config.shutdown_grace.duration();
    let mut server = Server::new(started.engine.clone(), Arc::new(SystemIds))
        .with_grace(grace)
        .with_access(protected.access.clone());
    let mut watched = protected.watched(&config, started.peers.as_deref());
    watched.push(Watched::log_filter(log_filter, args.settings));
    if let Some(tls) = protected.tls {
        server = server.with_tls(tls);
    }
    if let Some(client) = started.peers {
        server = server.with_peers(client, net.peer_listeners);
    }
    let (stop, stopping) = oneshot::channel::<()>();
    let mut serving = pin!(server.serve_listeners(net.listeners, async {
        let _ = stopping.await;
    }));
    let reload = signals.reload();
    let later = async {
        let following = reload::follow(watched, reload);
        tokio::join!(started.later, following);
        std::future::pending::<Infallible>().await
    };
    tokio::select! {
        biased;
        ended = &mut serving => {
            ended?;
            return Ok(0);
        }
        never = later => match never {},
        why = lost(started.embedded.as_deref()) => return Err(ServeError::DataLost(why)),
        _ = signals.next() => {}
    }
    let _ = stop.send(());
    let ending = async {
        let stopped = serving.await?;
        // Last of all: from then on others may have what this replica had.
        if timeout(grace, started.engine.leave(grace)).await.is_err() {
            tracing::warn!("the other replicas were not notified that this one stopped");
        }
        if let Some(store) = started.embedded {
            store.shutdown().await;
        }
        Ok::<_, ServeError>(stopped)
    };
    let stopped = tokio::select! {
        biased;
        stopped = ending => stopped?,
        signal = signals.next() => end_at_once(signal),
    };
    let counts = started.engine.counts();
    tracing::info!(
        clean = stopped == Stopped::Clean,
        changes = counts.swaps,
        conflicts = counts.conflicts,
        unknown = counts.unknown,
        "stopped"
    );
    Ok(0)
}

/// Why the store is of no use any more, once that is so.
async fn lost(store: Option<&EmbeddedStore>) -> String {
    match store {
        Some(store) => store.until_lost().await,
        None => std::future::pending().await,
    }
}
