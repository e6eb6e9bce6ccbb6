//! Variables of the environment that their users take for settings, and that are none.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::load::{LEVELS, PREFIX};
use super::{Config, Sources};

/// What people write for [`PREFIX`].
const PREFIX_SHORT: &str = "FERMATA_";

/// The flags that are not called as their settings, in the letters of the environment: people write `FERMATA_STORE` for
/// `--store`.
const FLAGS: [(&str, &str); 23] = [
    ("STORE", "store.kind"),
    ("CLIENT_TLS_CERTIFICATE", "tls.cert_file"),
    ("CLIENT_TLS_KEY", "tls.key_file"),
    ("CLIENT_TLS_CA", "tls.client_ca_file"),
    ("TOKENS_FILE", "auth.tokens_file"),
    ("RULES_FILE", "auth.rules_file"),
    ("PEER_LISTEN", "peers.listen"),
    ("ADVERTISE", "peers.advertise"),
    ("PEER_SECRET_FILE", "peers.secret_file"),
    ("PEER_TLS_CA", "peers.tls.ca_file"),
    ("PEER_TLS_CERTIFICATE", "peers.tls.cert_file"),
    ("PEER_TLS_KEY", "peers.tls.key_file"),
    ("CONTACT_POINTS", "store.cassandra.contact_points"),
    ("KEYSPACE", "store.cassandra.keyspace"),
    ("USER", "store.cassandra.user"),
    ("PASSWORD_FILE", "store.cassandra.password_file"),
    ("DATACENTER", "store.cassandra.datacenter"),
    ("CONSISTENCY", "store.cassandra.consistency"),
    ("TLS_CA", "store.cassandra.tls.ca_file"),
    ("TLS_CERTIFICATE", "store.cassandra.tls.cert_file"),
    ("TLS_KEY", "store.cassandra.tls.key_file"),
    ("TLS_VERIFY_HOST", "store.cassandra.tls.verify_host"),
    ("DRIVER", "store.cassandra.driver"),
];

impl Sources {
    /// Variables that look like settings, and are none: for want of a part of their prefix, or of a `_` between two levels, or
    /// since they are called as a flag is. Each with what it should be called.
    pub fn overlooked(&self) -> Vec<(String, String)> {
        let meant = meant();
        let names = self
            .environment
            .iter()
            .filter_map(|(name, _)| name.to_str());
        let names = names.filter_map(|name| {
            let rest = name.strip_prefix(PREFIX_SHORT)?;
            let key = meant.get(&in_words(&rest.replace(LEVELS, "_")))?;
            let variable = key.replace('.', LEVELS).to_ascii_uppercase();
            Some((name.to_owned(), format!("{PREFIX}{variable}")))
        });
        names.collect()
    }
}

/// The settings, by what is taken for their variables, without the prefix.
fn meant() -> BTreeMap<String, String> {
    let flags = FLAGS.map(|(flag, key)| (flag.to_owned(), key.to_owned()));
    let mut meant = BTreeMap::from(flags);
    let schema = serde_json::to_value(Config::default()).unwrap_or_default();
    add_settings("", &schema, &mut meant);
    meant
}

fn add_settings(path: &str, schema: &Json, meant: &mut BTreeMap<String, String>) {
    for (name, below) in schema.as_object().into_iter().flatten() {
        let key = match path {
            "" => name.clone(),
            _ => format!("{path}.{name}"),
        };
        match below {
            Json::Object(_) => add_settings(&key, below, meant),
            _ => drop(meant.insert(in_words(&key), key)),
        }
    }
}

/// In capitals, with a `_` between two levels as between two words.
fn in_words(key: &str) -> String {
    key.replace('.', "_").to_ascii_uppercase()
}
