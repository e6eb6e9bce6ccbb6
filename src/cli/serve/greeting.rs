//! What `serve` says on stdout. Programs read the first line.

use std::io::{self, Write as _};

use crate::lock::ReplicaId;

/// Where the client commands look unless told otherwise.
const CLIENT_DEFAULT: &str = "127.0.0.1:7450";

/// Where clients and other replicas are listened to.
pub fn listening(addresses: &[String], sockets: &[String], peer_addresses: &[String]) {
    let clients = addresses
        .iter()
        .chain(sockets)
        .map(|at| format!("listening on {at}\n"));
    let replicas = peer_addresses
        .iter()
        .map(|at| format!("listening on {at} for other replicas\n"));
    say(&clients.chain(replicas).collect::<String>());
}

/// Which store is used and which replica this is, and what to try where everybody may.
pub fn serving(location: &str, replica: ReplicaId, addresses: &[String], is_open: bool) {
    let mut text = format!("{location}\nreplica {replica}\n");
    if let Some(address) = addresses.first().filter(|_| is_open) {
        let program = std::env::args().next().unwrap_or_default();
        let endpoint = match address.as_str() {
            CLIENT_DEFAULT => String::new(),
            other => format!("--endpoint http://{other} "),
        };
        text.push_str(&format!(
            "try: {program} lock {endpoint}demo -- echo hello\n \
             or: grpcurl -plaintext -d '{{\"key\": \"demo\"}}' {address} \
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
