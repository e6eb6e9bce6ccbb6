//! `fermata agent`: a proxy beside the programs of one machine or pod.

use std::collections::BTreeSet;
use std::time::Duration;

use fermata_client::{Client, ClientOptions};
use fermata_command::{Failure, Remote, exit};
use nix::sys::signal::Signal;
use nix::unistd::{Uid, User};

use super::descriptors;
use super::signals::Signals;
use crate::agent::{self, Callers, GRACE};
use crate::build;
use crate::config::{Listen, ListenAt, LogConfig, LogFormat};
use crate::server::{self, NOBODY, ServerListener, Stopped};
use crate::telemetry;

const HELP: &str = "\
A program beside the agent calls it as it would call a replica, without TLS and
without a token. Commands need FERMATA_ENDPOINT=unix:/run/fermata/agent.sock,
gRPC clients the target unix:/run/fermata/agent.sock (docs/agent.md has an
option that some languages need). The agent passes each call on with its own
token, to the home of the key if it is one of the endpoints.

A session ends its disconnect_grace after its program ends. A restart of the
agent does not end it. The token file is read again as calls are made.

Exit status: 0 stopped by SIGTERM or SIGINT, after 2 s at most; 64 malformed;
70 a failure; 71 an address is refused by the system.

Examples:
  fermata agent --listen unix:/run/fermata/agent.sock \\
    --endpoint https://a.example.org:7450 --endpoint https://b.example.org:7450 \\
    --ca ca.pem --token-file token --allow-user app
  FERMATA_ENDPOINT=unix:/run/fermata/agent.sock fermata lock orders -- ./charge.sh";

/// File descriptors: one for each connection of a program, and some more.
const FILES: u64 = 16_384;
/// A replica that is silent for twice this is left: programs repeat their calls within 15 s.
const PING_EVERY: Duration = Duration::from_secs(2);

/// Pass the calls of programs on this machine on to the replicas
///
/// Holds TLS and the token in place of the programs beside it, as a sidecar does, and goes to the home of a key itself.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Where programs call it: unix:/PATH, or a loopback address; several with commas
    #[arg(long, value_name = "ADDRESS")]
    listen: String,

    /// A user, by name or number, whose programs may call it over the socket; may be repeated [default: the agent's own user, and
    /// root]
    #[arg(long = "allow-user", value_name = "USER", value_parser = parse_user)]
    users: Vec<u32>,

    /// The form of log lines: text, or json
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = parse_format)]
    log_format: LogFormat,

    /// The logged events, as in `log.filter` of a server
    #[arg(long, value_name = "FILTER", default_value_t = LogConfig::default().filter)]
    log_filter: String,

    #[command(flatten)]
    pub remote: Remote,
}

/// Runs the command.
pub async fn run(args: Args) -> Result<u8, Failure> {
    let listen =
        addresses(&args.listen).map_err(|why| Failure::usage(format!("--listen: {why}")))?;
    let log = LogConfig {
        format: args.log_format,
        filter: args.log_filter,
    };
    telemetry::init(&log, None)
        .map_err(|error| Failure::usage(format!("--log-filter: {error}")))?;
    if !args.remote.names_endpoints() {
        return Err(Failure::usage(
            "name the replicas: --endpoint URL, or FERMATA_ENDPOINT".to_owned(),
        ));
    }
    let endpoints = args.remote.endpoints();
    let is_own = |endpoint: &&String| {
        let at = endpoint.strip_prefix("http://").unwrap_or(endpoint);
        listen.all().iter().any(|own| own.to_string() == at)
    };
    if let Some(own) = endpoints.iter().find(is_own) {
        return Err(Failure::usage(format!(
            "{own} is an endpoint, and an address of --listen: the agent would call itself"
        )));
    }
    let options = args.remote.client_options(ClientOptions {
        ping_interval: PING_EVERY,
        ..ClientOptions::default()
    })?;
    let client = Client::connect_with(&endpoints, options)?;
    descriptors::raise(FILES);
    let signals = Signals::of(&[Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
    let mut signals = signals
        .map_err(|error| Failure::new(exit::OS, format!("cannot receive signals: {error}")))?;
    let listeners = bind(&listen)
        .await
        .map_err(|error| Failure::new(exit::OS, error.to_string()))?;
    let callers = Callers {
        users: admitted(args.users),
    };
    tracing::info!(
        version = build::VERSION,
        commit = build::COMMIT,
        listen = args.listen,
        endpoints = endpoints.join(","),
        users = ?callers.users,
        "passing calls on"
    );
    let stopped = async {
        loop {
            match signals.next().await {
                Signal::SIGHUP => tracing::info!(
                    "SIGHUP: the token file is read again by itself; restart for another CA"
                ),
                signal => return tracing::info!(%signal, grace = ?GRACE, "stopping"),
            }
        }
    };
    let ended = agent::serve(listeners, callers, client, stopped).await;
    let ended =
        ended.map_err(|error| Failure::new(exit::FAILED, format!("the agent ended: {error}")))?;
    tracing::info!(clean = ended == Stopped::Clean, "stopped");
    Ok(0)
}

/// The agent's own user and root, or the named ones.
fn admitted(named: Vec<u32>) -> BTreeSet<u32> {
    match named.is_empty() {
        true => BTreeSet::from([0, Uid::effective().as_raw()]),
        false => named.into_iter().collect(),
    }
}

/// Sockets, and addresses that no other machine reaches.
fn addresses(text: &str) -> Result<Listen, String> {
    let listen: Listen = text.parse()?;
    let mut addresses = listen.addresses();
    let reached = addresses.find(|at| !at.ip().to_canonical().is_loopback());
    drop(addresses);
    match reached {
        Some(at) => Err(format!(
            "{at} can be reached by other machines, and the agent holds a token: name a loopback address, or unix:/PATH"
        )),
        None => Ok(listen),
    }
}

async fn bind(listen: &Listen) -> Result<Vec<ServerListener>, server::ListenError> {
    let mut listeners = Vec::new();
    for at in listen.all() {
        listeners.push(match at {
            ListenAt::Address(address) => server::bind(*address).await?.into(),
            ListenAt::Socket(path) => {
                ServerListener::Unix(server::bind_socket(path, SOCKET_MODE).await?)
            }
        });
    }
    Ok(listeners)
}

/// Every user may connect: the agent knows the user of each connection, and admits the named ones.
const SOCKET_MODE: u32 = 0o666;

fn parse_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("it must be text or json".to_owned()),
    }
}

fn parse_user(text: &str) -> Result<u32, String> {
    let number = match (text.parse(), User::from_name(text)) {
        (Ok(number), _) => number,
        (_, Ok(Some(user))) => user.uid.as_raw(),
        (_, Ok(None)) => return Err("this machine has no such user; give its number".to_owned()),
        (_, Err(error)) => return Err(error.to_string()),
    };
    match number == NOBODY {
        true => Err(
            "nobody (65534) stands for users of other namespaces, and is never admitted".to_owned(),
        ),
        false => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_listens_where_no_other_machine_reaches_it() {
        for good in ["unix:/run/a.sock", "127.0.0.1:1", "[::1]:1,unix:/a"] {
            assert!(addresses(good).is_ok(), "{good}");
        }
        for bad in ["0.0.0.0:1", "10.0.0.1:1", "unix:a", ""] {
            assert!(addresses(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_user_has_a_name_or_a_number() {
        assert_eq!(parse_user("root"), Ok(0));
        assert_eq!(parse_user("1000"), Ok(1000));
        assert!(parse_user("nobody-has-this-name").is_err());
        assert!(parse_user("nobody").is_err() && parse_user("65534").is_err());
        assert!(admitted(Vec::new()).contains(&0));
        assert_eq!(admitted(vec![7]), BTreeSet::from([7]));
    }
}
