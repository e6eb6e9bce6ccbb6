//! The lines of `serve` on stdout. Programs read the first one.

use std::io::{self, Write as _};

use crate::lock::ReplicaId;

/// The default endpoint of client commands.
const CLIENT_DEFAULT: &str = "127.0.0.1:7450";

/// The start of the address of a Unix socket.
const SOCKET: &str = "unix:";

/// Prints addresses, each list with what follows in its lines.
pub fn listening(all: &[(&[String], &str)]) {
    let lines = all.iter().flat_map(|(addresses, of)| {
        let lines = addresses.iter();
        lines.map(move |at| format!("listening on {at}{of}\n"))
    });
    say(&lines.collect::<String>());
}

/// Prints the store and the replica; for an open service also two commands to try, at the first address.
pub fn serving(location: &str, replica: ReplicaId, at: &[String], is_open: bool) {
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

fn say(text: &str) {
    // A closed stdout is no reason not to serve.
    let mut stdout = io::stdout().lock();
    let _ = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
}
