//! The Helm chart: this Fermata takes what it renders, and its schema and its page know every setting.

mod configured;
mod objects;
mod refused;

use std::collections::BTreeSet;

use fermata::config::Config;
use fermata::limits::Limits;
use serde_json::Value as Json;

use super::files;

const EVERYTHING: &str = "helm/fermata/ci/everything-values.yaml";
const SECURED: &str = "helm/fermata/ci/secured-values.yaml";
const CASSANDRA: &str = "helm/fermata/ci/cassandra-values.yaml";
const CASSANDRA_EVERYTHING: &str = "helm/fermata/ci/cassandra-everything-values.yaml";
const CERT_MANAGER: &str = "helm/fermata/ci/cert-manager-values.yaml";
/// What it takes to render the chart without TLS and known clients.
const INSECURE: [&str; 2] = ["--set", "config.insecure=true"];

/// The files of values that the chart is rendered with. By its own alone it is refused.
fn values_files() -> Vec<String> {
    let mut found = files::ending("-values.yaml");
    found.retain(|path| path.starts_with("helm/fermata/"));
    assert!(found.len() > 5, "{found:?}");
    found
}

const MIB: u64 = 1024 * 1024;

/// What a server takes at most, in bytes, by the formula of docs/configuration.md.
fn taken_at_most(limits: &Limits, cache_mib: u64) -> u64 {
    let count = |count: usize| u64::try_from(count).unwrap();
    // Those of connections, and those of values on their way to the store.
    2 * limits.bytes_in_flight_max
        + count(limits.remembered_bytes_max)
        + cache_mib * MIB
        + 50 * MIB
        + count(limits.active_keys_max) * 680
        + count(limits.sessions_max) * 1_030
        + count(limits.connections_max) * 42 * 1024
}

/// The number in the one line of a text that begins so, before its unit.
fn number(text: &str, name: &str, unit: &str) -> u64 {
    let lines = text.lines().map(str::trim);
    let mut found = lines.filter_map(|line| line.strip_prefix(name)?.strip_suffix(unit));
    let number = found.next().unwrap_or_else(|| panic!("no {name}"));
    assert_eq!(found.next(), None, "{name} is there twice");
    number.parse().unwrap()
}

#[test]
fn what_the_limits_add_up_to_fits_into_the_memory_that_is_allowed() {
    let values = files::text("helm/fermata/values.yaml");
    assert!(values.contains("\n  limits: {}\n"), "not the defaults");
    let cache_mib = number(&values, "cache_mib: ", "");
    let taken = taken_at_most(&Limits::default(), cache_mib);
    let (_, limits) = values.split_once("\nresources:\n").unwrap();
    let (_, limits) = limits.split_once("\n  limits:\n").unwrap();
    let (limits, _) = limits.split_once("\n\n").unwrap();
    let of_chart = number(limits, "memory: ", "Gi") * 1024 * MIB;
    let unit = files::text("deploy/fermata.service");
    let of_unit = number(&unit, "MemoryMax=", "G") * 1024 * MIB;
    for allowed in [of_chart, of_unit] {
        assert!(taken + taken / 4 <= allowed, "{taken} {allowed}");
    }
    // As the page and the chart say it.
    let mib = taken.div_ceil(MIB).to_string();
    let shown = format!("{},{}", &mib[..1], &mib[1..]);
    for path in ["docs/configuration.md", "helm/fermata/values.yaml"] {
        assert!(files::text(path).contains(&shown), "{path}: {shown}");
    }
}

fn schema() -> Json {
    serde_json::from_str(&files::text("helm/fermata/values.schema.json")).unwrap()
}

#[test]
fn the_chart_knows_every_setting() {
    let mut exist = BTreeSet::new();
    names_of(
        "",
        &serde_json::to_value(Config::default()).unwrap(),
        &mut exist,
    );
    // The chart derives these from other values, and from the pod.
    for derived in [
        "data_dir",
        "store.kind",
        "store.cassandra.user",
        "store.cassandra.password_file",
        "store.cassandra.tls.ca_file",
        "store.cassandra.tls.cert_file",
        "store.cassandra.tls.key_file",
        "advertise",
        "peers.advertise",
        "peers.name",
        "peers.secret_file",
        "peers.tls.ca_file",
        "peers.tls.cert_file",
        "peers.tls.key_file",
        "tls.cert_file",
        "tls.key_file",
        "tls.client_ca_file",
        "auth.tokens_file",
        "auth.rules_file",
    ] {
        assert!(exist.remove(derived), "{derived}");
    }
    let mut known = BTreeSet::new();
    leaves("", &schema()["properties"]["config"], &mut known);
    assert_eq!(known, exist, "left: values.schema.json");
}

/// The settings; what the tables are called is the user's.
fn names_of(path: &str, value: &Json, found: &mut BTreeSet<String>) {
    match value {
        Json::Object(inner) if path != "tables" => {
            for (name, value) in inner {
                names_of(&below(path, name), value, found);
            }
        }
        _ => drop(found.insert(path.to_owned())),
    }
}

/// The values that a schema names, as far down as it names them.
fn leaves(path: &str, schema: &Json, found: &mut BTreeSet<String>) {
    match schema["properties"].as_object() {
        Some(inner) => {
            for (name, schema) in inner {
                leaves(&below(path, name), schema, found);
            }
        }
        None => drop(found.insert(path.to_owned())),
    }
}

fn below(path: &str, name: &str) -> String {
    match path {
        "" => name.to_owned(),
        _ => format!("{path}.{name}"),
    }
}

#[test]
fn the_page_of_the_chart_has_every_value_and_no_other() {
    let mut schema = schema();
    let top = schema["properties"].as_object_mut().unwrap();
    // Helm's own, for all charts.
    assert!(top.remove("global").is_some());
    // docs/configuration.md has them.
    let config = top["config"]["properties"].as_object_mut().unwrap();
    config["limits"] = Json::Null;
    config["store"]["properties"]["cassandra"] = Json::Null;
    let mut exist = BTreeSet::new();
    leaves("", &schema, &mut exist);
    let documented: BTreeSet<String> = files::text("helm/fermata/README.md")
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(name, _)| name.to_owned())
        .collect();
    assert_eq!(documented, exist, "left: helm/fermata/README.md");
}

#[test]
fn the_chart_is_for_this_version() {
    let chart = files::text("helm/fermata/Chart.yaml");
    let line = format!("appVersion: \"{}\"", env!("CARGO_PKG_VERSION"));
    assert!(chart.lines().any(|found| found == line), "no {line}");
}
