//! What `serve` says first. Programs read the first line on stdout.

use std::io::{self, Write as _};

use crate::config::LogFormat;
use crate::lock::ReplicaId;

/// The default endpoint of client commands.
const CLIENT_DEFAULT: &str = "127.0.0.1:7450";

/// The start of the address of a Unix socket.
const SOCKET: &str = "unix:";

/// The first messages of a server: its addresses, its store, its replica. They are lines on stdout, and with
/// `log.format = "json"` events of the log, so that there is one stream.
#[derive(Clone, Copy, Debug)]
pub struct Greeting(LogFormat);

impl Greeting {
    /// For a log of this format.
    pub fn new(format: LogFormat) -> Greeting {
        Greeting(format)
    }

    /// Says the addresses, each list with its purpose; empty: for clients.
    pub fn listening(self, all: &[(&[String], &str)]) {
        let each = all
            .iter()
            .flat_map(|(addresses, of)| addresses.iter().map(move |at| (at, *of)));
        match self.0 {
            LogFormat::Json => {
                for (address, of) in each {
                    tracing::info!(address, "listening{of}");
                }
            }
            LogFormat::Text => {
                let lines = each.map(|(at, of)| format!("listening on {at}{of}\n"));
                say(&lines.collect::<String>());
            }
        }
    }

    /// Says the store and the replica; for an open service also two commands to try, at the first address.
    pub fn serving(self, location: &str, replica: ReplicaId, at: &[String], is_open: bool) {
        if self.0 == LogFormat::Json {
            tracing::info!(%replica, "serving {location}");
            return;
        }
        let mut text = format!("{location}\nreplica {replica}\n");
        if let Some(at) = at.first().filter(|_| is_open) {
            let (endpoint, server) = match at.strip_prefix(SOCKET) {
                Some(path) => (format!("--endpoint {at} "), format!("-unix {path}")),
                None if at == CLIENT_DEFAULT => (String::new(), at.clone()),
                None => (format!("--endpoint http://{at} "), at.clone()),
            };
            let program = std::env::args().next().unwrap_or_default();
            text.push_str(&format!(
                "try: {program} lock {endpoint}demo -- echo hello\n \
                 or: grpcurl -plaintext -d '{{\"key\": \"demo\"}}' {server} \
                 fermata.v1.LockService/CreateLockRef\n"
            ));
        }
        say(&text);
    }
}

fn say(text: &str) {
    // A closed stdout is no reason not to serve.
    let mut stdout = io::stdout().lock();
    let _ = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
}
