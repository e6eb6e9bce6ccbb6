//! `fermata agent`: a proxy beside the programs of one machine or pod.

use std::collections::BTreeSet;
use std::time::Duration;

use fermata_client::{Client, ClientOptions};
use fermata_command::{Failure, Remote, exit};
use nix::sys::signal::Signal;
use nix::unistd::{Uid, User};

use super::signals::Signals;
use crate::agent::{self, Callers, GRACE};
use crate::build;
use crate::config::{Listen, ListenAt, LogConfig, LogFormat};
use crate::server::{self, ServerListener, Stopped};
use crate::telemetry;

const HELP: &str = "\
A program beside the agent calls it as it would call a replica, without TLS and
without a token: `FERMATA_ENDPOINT=unix:/run/fermata/agent.sock` for commands,
`unix:/run/fermata/agent.sock` as the target of any gRPC client. The agent
passes each call on with its own token: to the home of the key, if --endpoint
names it as the `advertise` of that replica does, else to the replica in use.

A session of a program ends with the program, not with the agent: after its
disconnect_grace. After a restart of the agent clients connect again. The token
file is read again as calls are made.

Exit status: 0 stopped by SIGTERM or SIGINT, after 5 s at most; 64 malformed;
70 a failure; 71 an address is refused by the system.

Examples:
  fermata agent --listen unix:/run/fermata/agent.sock \\
    --endpoint https://a.example.org:7450 --endpoint https://b.example.org:7450 \\
    --ca ca.pem --token-file token --allow-user app
  FERMATA_ENDPOINT=unix:/run/fermata/agent.sock fermata lock orders -- ./charge.sh";

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
    let endpoints = args.remote.endpoints();
    let options = args.remote.client_options(ClientOptions {
        ping_interval: PING_EVERY,
        ..ClientOptions::default()
    })?;
    let client = Client::connect_with(&endpoints, options)?;
    let signals = Signals::of(&[Signal::SIGTERM, Signal::SIGINT]);
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
        let signal = signals.next().await;
        tracing::info!(%signal, grace = ?GRACE, "stopping");
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
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    match User::from_name(text) {
        Ok(Some(user)) => Ok(user.uid.as_raw()),
        Ok(None) => Err("this machine has no such user; give its number".to_owned()),
        Err(error) => Err(error.to_string()),
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
        assert!(admitted(Vec::new()).contains(&0));
        assert_eq!(admitted(vec![7]), BTreeSet::from([7]));
    }
}
