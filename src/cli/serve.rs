//! `fermata serve`: assembles the parts of a server and runs them until a signal.

mod greeting;
mod parts;
mod reload;

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;

use fermata_command::{Failure, exit};
use nix::sys::signal::Signal;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use super::descriptors;
use super::end::end;
use super::replica;
use super::settings::Settings;
use super::signals::Signals;
use crate::build;
use crate::clock::SystemIds;
use crate::config::Config;
use crate::monitor::{Console, Monitor};
use crate::server::{self, Readiness, Server, Stopped};
use crate::store::embedded::EmbeddedStore;
use crate::store::metrics::StoreMetrics;
use crate::telemetry::{self, Traces};
use greeting::Greeting;
use parts::{Net, Prepared, Protected};
use reload::Watched;

/// Run the lock service
///
/// Serves gRPC until SIGTERM or SIGINT. Without settings it listens on 127.0.0.1:7450 and keeps its data in one directory.
/// With --store cassandra, any number of replicas keep their data in one cluster: `fermata schema apply` makes the tables,
/// and a replica waits for the cluster.
///
/// Each setting can also stand in a file (--config) or in an environment variable: FERMATA_CFG_LIMITS__VALUE_BYTES_MAX is
/// `limits.value_bytes_max`. `fermata check` prints the settings in force.
///
/// The first signal stops it in order: keys in use are handed over to other replicas (half of --shutdown-grace, 5 s at
/// most), open calls have --shutdown-grace, and the rest of the hand-over takes as much again at most. A second signal ends
/// it at once. SIGHUP reloads certificates, tokens, rules and `log.filter`, unless the process was started to ignore it
/// (`nohup`).
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Exit status: 0 stopped by a signal; 69 the store does not open, or its directory was removed; 70 a failure; \
    71 an address is refused by the system; 78 the configuration is not valid; 130 or 143 ended at once by a second signal."
)]
pub struct Args {
    #[command(flatten)]
    settings: Settings,
}

/// Runs the command.
pub async fn run(args: Args) -> Result<u8, Failure> {
    let mut config = args.settings.clone().load()?;
    let prepared = Prepared::new(&config)?;
    let protected = Protected::new(&config)?;
    let traces = Traces::new(
        &config.traces,
        &replica::name(&config, &first_address(&config)),
    );
    let traces = traces.map_err(parts::misconfigured)?;
    let log_filter = telemetry::init(&config.log, traces.as_ref()).map_err(parts::misconfigured)?;
    let greeting = Greeting::new(config.log.format);
    tracing::info!(version = build::VERSION, commit = build::COMMIT, "starting");
    descriptors::provide(&mut config);
    parts::warn_where_rules_are_missing(&config);
    parts::warn_where_it_is_insecure(&config);
    let mut signals = EndSignals::new()?;
    let mut net = Net::bind(&config).await?;
    let (store_metrics, readiness) = (StoreMetrics::default(), Readiness::default());
    let mut monitor =
        Monitor::new(config.store.kind.name(), readiness.clone()).with_tls(protected.tls.clone());
    if config.http.console && !net.http_listeners.is_empty() {
        let (dialer, listener) = server::local();
        net.listeners.push(listener);
        let shown = (config.store.kind.name(), readiness.clone());
        let console = Console::new(dialer, protected.access.clone(), config.insecure, shown);
        monitor = monitor.with_console(console.map_err(parts::failed)?);
    }
    let monitor = Arc::new(monitor);
    monitor.add(|registry| store_metrics.register(registry));
    tokio::spawn(Arc::clone(&monitor).scrape());
    for listener in std::mem::take(&mut net.http_listeners) {
        // From before the store is open to the end of the process, so that start and stop are seen as well.
        tokio::spawn(Arc::clone(&monitor).serve(listener));
    }
    let started = tokio::select! {
        biased;
        started = prepared.start(config.clone(), &net, store_metrics.clone(), greeting) => started?,
        // Nothing was promised to anybody yet.
        signal = signals.next() => end_at_once(signal),
    };
    let what_http_has = match config.http.console {
        true => " for metrics, probes and the console",
        false => " for metrics and probes",
    };
    greeting.listening(&[
        (&net.addresses, ""),
        (&net.sockets, ""),
        (&net.peer_addresses, " for other replicas"),
        (&net.http_addresses, what_http_has),
    ]);

    let grace = config.shutdown_grace.duration();
    let mut server = Server::new(started.engine.clone(), Arc::new(SystemIds))
        .with_grace(grace)
        .with_access(protected.access.clone())
        .with_leaderless(started.leaderless.clone())
        .with_readiness(readiness);
    let setter = log_filter.clone();
    server = server.with_log_filter(Arc::new(move |filter| {
        setter.set(filter).map_err(|error| error.to_string())
    }));
    let mut watched = protected.watched(&config, started.peers.as_deref());
    watched.push(Watched::log_filter(log_filter, args.settings));
    if let Some(tls) = protected.tls {
        server = server.with_tls(tls);
    }
    if let Some(client) = started.peers {
        server = server.with_peers(client, net.peer_listeners);
    }
    monitor.add(|registry| server.register(registry));
    let (stop, stopping) = oneshot::channel::<()>();
    let mut serving = pin!(server.serve_listeners(net.listeners, async {
        let _ = stopping.await;
    }));
    let asked = signals.reload.subscribe();
    let later = async {
        let following = reload::follow(watched, asked);
        tokio::join!(started.later, following);
        std::future::pending::<Infallible>().await
    };
    tokio::select! {
        biased;
        ended = &mut serving => {
            ended.map_err(parts::failed)?;
            return Ok(0);
        }
        never = later => match never {},
        why = lost(started.embedded.as_deref()) => return Err(Failure::new(exit::UNAVAILABLE, why)),
        _ = signals.next() => {}
    }
    let _ = stop.send(());
    let ending = async {
        let stopped = serving.await.map_err(parts::failed)?;
        // Last: from then on others may have the keys of this replica.
        if timeout(grace, started.engine.leave(grace)).await.is_err() {
            tracing::warn!("the other replicas were not notified that this one stopped");
        }
        if let Some(store) = started.embedded {
            store.shutdown().await;
        }
        Ok::<_, Failure>(stopped)
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
    if let Some(traces) = traces {
        // Blocks, and nothing else is left to do.
        let _ = tokio::task::spawn_blocking(move || traces.end()).await;
    }
    Ok(0)
}

/// The first address for clients; empty without one over TCP.
fn first_address(config: &Config) -> String {
    let first = config.listen.addresses().next();
    first.map(|address| address.to_string()).unwrap_or_default()
}

/// SIGTERM and SIGINT end the service; SIGHUP reloads files.
struct EndSignals {
    signals: Signals,
    reload: watch::Sender<()>,
}

impl EndSignals {
    fn new() -> Result<EndSignals, Failure> {
        let signals = Signals::of(&[Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
        let signals = signals
            .map_err(|error| Failure::new(exit::OS, format!("cannot receive signals: {error}")))?;
        let (reload, _) = watch::channel(());
        Ok(EndSignals { signals, reload })
    }

    /// The next signal that ends the service.
    async fn next(&mut self) -> Signal {
        loop {
            match self.signals.next().await {
                Signal::SIGHUP => {
                    tracing::info!(
                        "SIGHUP: reading certificates, tokens, rules and log.filter again"
                    );
                    self.reload.send_replace(());
                }
                signal => return signal,
            }
        }
    }
}

/// Acknowledged changes are durable, so nothing needs an orderly end.
fn end_at_once(signal: Signal) -> ! {
    end(i32::from(exit::SIGNAL) + signal as i32)
}

/// Returns the reason once the store is lost.
async fn lost(store: Option<&EmbeddedStore>) -> String {
    match store {
        Some(store) => store.until_lost().await,
        None => std::future::pending().await,
    }
}
