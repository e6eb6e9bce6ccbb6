//! `fermata serve`: puts the parts together and runs them until a signal.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::exit;
use super::settings::Settings;
use crate::config::{Config, NoDataDir, Problems};
use crate::engine::{Engine, EngineError, EngineOptions, SystemClock, SystemIds};
use crate::server::{self, ListenError, Server};
use crate::store::embedded::{EmbeddedOptions, EmbeddedStore, OpenError};
use crate::telemetry::{self, TelemetryError};

/// Run the lock service
///
/// Serves gRPC until SIGTERM or SIGINT, and keeps its data in one directory. Without any setting it
/// listens on 127.0.0.1:7450. Every setting can also stand in a file (--config) or in an environment
/// variable: `limits.value_bytes_max` is FERMATA_CFG_LIMITS__VALUE_BYTES_MAX. `fermata check` shows what is
/// in force.
///
/// The first signal ends what is open in an orderly way, for --shutdown-grace at most; a second one ends
/// it at once.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Exit status: 0 stopped by a signal; 69 the store cannot be opened; 70 it failed \
    while it ran; 71 an address cannot be listened on; 78 the configuration is not valid; 130 or 143 \
    ended at once by a second SIGINT or SIGTERM."
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
    /// Correct the configuration.
    #[error(transparent)]
    DataDir(#[from] NoDataDir),
    /// Correct the configuration.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// Free the address, or name another one.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Mend what the store says.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// The store failed while what the last process left was taken over.
    #[error("cannot take over what the last process left: {0}")]
    Start(#[from] EngineError),
    /// The server failed while it ran.
    #[error(transparent)]
    Server(#[from] server::ServeError),
    /// The process cannot hear signals.
    #[error("cannot receive signals: {0}")]
    Signals(io::Error),
}

impl ServeError {
    /// What the process ends with.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            ServeError::Config(_) | ServeError::DataDir(_) | ServeError::Telemetry(_) => {
                exit::CONFIG
            }
            ServeError::Listen(_) | ServeError::Signals(_) => exit::OS,
            ServeError::Store(_) | ServeError::Start(_) => exit::UNAVAILABLE,
            ServeError::Server(_) => exit::SOFTWARE,
        }
        .into()
    }
}

/// Runs the command.
pub async fn run(args: Args) -> Result<ExitCode, ServeError> {
    let config = args.settings.load()?;
    telemetry::init(&config.log)?;
    let mut signals = Signals::new().map_err(ServeError::Signals)?;
    let data_dir = config.data_dir()?;
    let mut listeners = Vec::new();
    for address in config.listen.addresses() {
        listeners.push(server::bind(*address, config.insecure).await?);
    }
    let store = Arc::new(open_store(&config, &data_dir).await?);
    let engine = start_engine(&config, &listeners, Arc::clone(&store) as _).await?;
    greet(&engine, &listeners, &data_dir);
    let server =
        Server::new(engine, Arc::new(SystemIds)).with_grace(config.shutdown_grace.duration());
    let serving = server.serve_tcp(listeners, async {
        signals.next().await;
    });
    tokio::pin!(serving);
    let stopped = tokio::select! {
        stopped = &mut serving => stopped?,
        signal = async {
            Signals::new()?.second().await
        } => {
            return match signal {
                Ok(signal) => Ok(at_once(signal)),
                Err(error) => Err(ServeError::Signals(error)),
            };
        }
    };
    store.shutdown().await;
    tracing::info!(?stopped, "stopped");
    Ok(ExitCode::SUCCESS)
}

/// What a process that a signal ended would end with.
fn at_once(signal: SignalKind) -> ExitCode {
    tracing::warn!("a second signal: ending at once");
    let number = u8::try_from(signal.as_raw_value()).unwrap_or(0);
    ExitCode::from(exit::SIGNAL + number)
}

/// Opening may take a while after a crash, so it does not hold up the runtime.
async fn open_store(config: &Config, data_dir: &Path) -> Result<EmbeddedStore, ServeError> {
    let options = EmbeddedOptions {
        cache_bytes: config.store.embedded.cache_bytes(),
        ..EmbeddedOptions::new(data_dir)
    };
    match tokio::task::spawn_blocking(|| EmbeddedStore::open(options)).await {
        Ok(opened) => Ok(opened?),
        Err(panicked) => Err(ServeError::Start(EngineError::Unavailable(format!(
            "opening the store failed: {panicked}"
        )))),
    }
}

async fn start_engine(
    config: &Config,
    listeners: &[TcpListener],
    store: Arc<dyn crate::store::Store>,
) -> Result<Engine, ServeError> {
    let options = EngineOptions {
        store,
        clock: Arc::new(SystemClock),
        ids: Arc::new(SystemIds),
        tables: config.tables.keys().map(|table| table.0.clone()).collect(),
        limits: config.limits.clone(),
        address: addresses(listeners).first().cloned().unwrap_or_default(),
    };
    Ok(Engine::start(options).await?)
}

fn addresses(listeners: &[TcpListener]) -> Vec<String> {
    listeners
        .iter()
        .filter_map(|listener| listener.local_addr().ok())
        .map(|address| address.to_string())
        .collect()
}

fn greet(engine: &Engine, listeners: &[TcpListener], data_dir: &Path) {
    let mut text = String::new();
    for address in addresses(listeners) {
        text.push_str(&format!("listening on {address}\n"));
    }
    text.push_str(&format!("data in {}\n", data_dir.display()));
    text.push_str(&format!("replica {}\n", engine.replica()));
    text.push_str("try: fermata lock demo -- echo \"I hold the lock\"\n");
    // A closed stdout is no reason not to serve.
    let mut stdout = io::stdout().lock();
    let _ = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
}

/// The signals that end the service.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> io::Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// The number of the next one.
    async fn next(&mut self) -> SignalKind {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.interrupt.recv() => SignalKind::interrupt(),
        }
    }

    /// The number of the second one from now on.
    async fn second(&mut self) -> io::Result<SignalKind> {
        self.next().await;
        Ok(self.next().await)
    }
}
