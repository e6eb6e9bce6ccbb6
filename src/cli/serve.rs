//! `fermata serve`: puts the parts together and runs them until a signal.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;

use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::exit;
use super::settings::Settings;
use crate::config::{NoDataDir, Problems};
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
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
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
            ServeError::Listen { .. } | ServeError::Signals(_) => exit::OS,
        }
        .into()
    }
}

/// Runs the command.
pub async fn run(args: Args) -> Result<ExitCode, ServeError> {
    let config = args.settings.load()?;
    telemetry::init(&config.log)?;
    let mut signals = Signals::new().map_err(ServeError::Signals)?;
    let listeners = bind(config.listen.addresses()).await?;
    let data_dir = config.data_dir()?;
    greet(&listeners, &data_dir);
    signals.next().await;
    Ok(ExitCode::SUCCESS)
}

async fn bind(addresses: &[SocketAddr]) -> Result<Vec<(TcpListener, SocketAddr)>, ServeError> {
    let mut listeners = Vec::new();
    for &address in addresses {
        let failed = |source| ServeError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let local = listener.local_addr().map_err(failed)?;
        listeners.push((listener, local));
    }
    Ok(listeners)
}

fn greet(listeners: &[(TcpListener, SocketAddr)], data_dir: &Path) {
    let mut text = String::new();
    for (_, address) in listeners {
        text.push_str(&format!("listening on {address}\n"));
    }
    text.push_str(&format!("data in {}\n", data_dir.display()));
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
}
