//! `fermata serve`: puts the parts together and runs them until a signal.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::{JoinError, spawn_blocking};

use super::exit;
use super::settings::Settings;
use crate::config::{Config, NoDataDir, Problems};
use crate::engine::{
    Engine, EngineError, EngineOptions, NoPeers, REPLICA_TTL, SystemClock, SystemIds,
};
use crate::server::{self, ListenError, Server, Stopped};
use crate::store::embedded::{EmbeddedOptions, EmbeddedStore, OpenError};
use crate::telemetry::{self, TelemetryError};

/// Where the client commands look unless told otherwise.
const CLIENT_DEFAULT: &str = "127.0.0.1:7450";

/// Run the lock service
///
/// Serves gRPC until SIGTERM, SIGINT or SIGHUP, and keeps its data in one directory. Without any setting it
/// listens on 127.0.0.1:7450. Every setting can also stand in a file (--config) or in an environment
/// variable: `limits.value_bytes_max` is FERMATA_CFG_LIMITS__VALUE_BYTES_MAX. `fermata check` shows what is
/// in force.
///
/// The first signal ends what is open in an orderly way, for --shutdown-grace at most; a second one ends
/// it at once.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Exit status: 0 stopped by a signal; 69 the store cannot be opened; 70 it failed \
    while it ran; 71 an address cannot be listened on; 78 the configuration is not valid; 129, 130 or 143 \
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
    Store(#[from] OpenError),
    /// The store was opened, and then could not be used.
    #[error("the store cannot be used: {0}")]
    Engine(#[from] EngineError),
    /// A fault of this program.
    #[error("opening the store failed: {0}")]
    Opening(#[from] JoinError),
    /// The server went away unasked.
    #[error(transparent)]
    Server(#[from] server::ServeError),
}

impl ServeError {
    /// What the process ends with.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            ServeError::Config(_) | ServeError::DataDir(_) | ServeError::Telemetry(_) => {
                exit::CONFIG
            }
            ServeError::Listen(_) | ServeError::System { .. } => exit::OS,
            ServeError::Store(_) | ServeError::Engine(_) => exit::UNAVAILABLE,
            ServeError::Opening(_) | ServeError::Server(_) => exit::SOFTWARE,
        }
        .into()
    }
}

/// Runs the command.
pub async fn run(args: Args) -> Result<ExitCode, ServeError> {
    let config = args.settings.load()?;
    let data_dir = config.data_dir()?;
    telemetry::init(&config.log)?;
    let mut signals = Signals::new()?;
    let listeners = listen(&config).await?;
    let parts = tokio::select! {
        biased;
        parts = Parts::start(&config, &data_dir, &listeners) => parts?,
        // Nothing was promised to anybody yet.
        signal = signals.next() => end_at_once(signal),
    };
    greet(&listeners, &data_dir, &parts.engine)?;

    let (stop, stopping) = oneshot::channel::<()>();
    let server = Server::new(parts.engine.clone(), Arc::new(SystemIds))
        .with_grace(config.shutdown_grace.duration());
    let mut serving = pin!(server.serve_tcp(listeners, async {
        let _ = stopping.await;
    }));
    tokio::select! {
        biased;
        ended = &mut serving => {
            ended?;
        }
        _ = signals.next() => {
            let _ = stop.send(());
            let stopped = tokio::select! {
                biased;
                stopped = &mut serving => stopped?,
                signal = signals.next() => end_at_once(signal),
            };
            parts.store.shutdown().await;
            tracing::info!(clean = stopped == Stopped::Clean, "stopped");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What runs below the server.
struct Parts {
    store: Arc<EmbeddedStore>,
    engine: Engine,
}

impl Parts {
    /// Opens the store and starts an engine on it.
    async fn start(
        config: &Config,
        data_dir: &Path,
        listeners: &[TcpListener],
    ) -> Result<Parts, ServeError> {
        let options = EmbeddedOptions {
            directory: data_dir.to_owned(),
            cache_bytes: config.store.embedded.cache_bytes(),
        };
        // After a crash this reads the whole file.
        let store = spawn_blocking(|| EmbeddedStore::open(options)).await??;
        let store = Arc::new(store);
        let address = match listeners.first() {
            Some(first) => local_addr(first)?,
            None => String::new(),
        };
        let engine = Engine::start(EngineOptions {
            store: store.clone(),
            clock: Arc::new(SystemClock),
            ids: Arc::new(SystemIds),
            peers: Arc::new(NoPeers),
            tables: config.table_names(),
            limits: config.limits.clone(),
            address,
            peer_address: String::new(),
            replica_ttl: REPLICA_TTL,
        })
        .await?;
        Ok(Parts { store, engine })
    }
}

async fn listen(config: &Config) -> Result<Vec<TcpListener>, ServeError> {
    let mut listeners = Vec::new();
    for &address in config.listen.addresses() {
        listeners.push(server::bind(address, config.insecure).await?);
    }
    Ok(listeners)
}

fn local_addr(listener: &TcpListener) -> Result<String, ServeError> {
    let address = listener.local_addr().map_err(|source| ServeError::System {
        what: "find out which port was given",
        source,
    })?;
    Ok(address.to_string())
}

/// Says on stdout where everything is. Programs read the first line.
fn greet(listeners: &[TcpListener], data_dir: &Path, engine: &Engine) -> Result<(), ServeError> {
    let mut text = String::new();
    let mut first = None;
    for listener in listeners {
        let address = local_addr(listener)?;
        let _ = writeln!(text, "listening on {address}");
        first.get_or_insert(address);
    }
    let _ = writeln!(text, "data in {} (embedded store)", data_dir.display());
    let _ = writeln!(text, "replica {}", engine.replica());
    if let Some(address) = first {
        let program = std::env::args().next().unwrap_or_default();
        let endpoint = match address.as_str() {
            CLIENT_DEFAULT => String::new(),
            other => format!("--endpoint http://{other} "),
        };
        let _ = writeln!(text, "try: {program} lock {endpoint}demo -- echo hello");
        let _ = writeln!(
            text,
            " or: grpcurl -plaintext -d '{{\"key\": \"demo\"}}' {address} \
             fermata.v1.LockService/CreateLockRef"
        );
    }
    // A closed stdout is no reason not to serve.
    let mut stdout = io::stdout().lock();
    let _ = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
    Ok(())
}

/// The signals that end the service.
struct Signals {
    hangup: Signal,
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Signals, ServeError> {
        let hear = |kind| {
            signal(kind).map_err(|source| ServeError::System {
                what: "hear signals",
                source,
            })
        };
        Ok(Signals {
            hangup: hear(SignalKind::hangup())?,
            interrupt: hear(SignalKind::interrupt())?,
            terminate: hear(SignalKind::terminate())?,
        })
    }

    /// The number of the next one.
    async fn next(&mut self) -> i32 {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => SignalKind::terminate().as_raw_value(),
            _ = self.interrupt.recv() => SignalKind::interrupt().as_raw_value(),
            // The terminal that it was started from is gone.
            _ = self.hangup.recv() => SignalKind::hangup().as_raw_value(),
        }
    }
}

/// What was acknowledged is durable, so nothing needs an orderly end.
#[expect(clippy::exit, reason = "returning would wait for threads of the store")]
fn end_at_once(signal: i32) -> ! {
    std::process::exit(i32::from(exit::SIGNAL) + signal)
}
