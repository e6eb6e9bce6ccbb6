//! The Helm chart: what it renders is taken by this Fermata, and its schema and its page know every setting.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::process::{Command, Output};

use fermata::access::{Rules, Scope, Verb};
use fermata::config::Config;
use fermata::limits::Limits;
use fermata::lock::{Key, KeyId, TableName};
use serde_json::{Value as Json, json};

use super::files;

/// Set to 1 where helm must be there.
const REQUIRE: &str = "FERMATA_REQUIRE_HELM";
/// The oldest one that the chart is for. (A helm that go built assumes one of long ago.)
const KUBERNETES: &str = "1.27.0";
/// The values that the chart is rendered with. By its own alone it is refused.
const VALUES: [&str; 3] = [
    "helm/fermata/ci/no-persistence-values.yaml",
    EVERYTHING,
    SECURED,
];
const EVERYTHING: &str = "helm/fermata/ci/everything-values.yaml";
const SECURED: &str = "helm/fermata/ci/secured-values.yaml";
/// What it takes to render it without TLS and known clients.
const INSECURE: [&str; 2] = ["--set", "config.insecure=true"];

/// The manifest that one template of the chart makes, or why helm makes none.
fn rendered(template: &str, more: &[&str]) -> Result<String, String> {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new("helm")
        .args(["template", "fermata", "helm/fermata"])
        .args(["--kube-version", KUBERNETES])
        .args(["--show-only", &format!("templates/{template}")])
        .args(more)
        .current_dir(files::root())
        .output()
        .unwrap();
    if status.success() {
        Ok(String::from_utf8(stdout).unwrap())
    } else {
        Err(String::from_utf8(stderr).unwrap())
    }
}

#[expect(
    clippy::explicit_write,
    reason = "the harness hides what eprintln! says in a test that passes"
)]
fn helm_is_missing() -> bool {
    if Command::new("helm").arg("version").output().is_ok() {
        return false;
    }
    let required = std::env::var(REQUIRE).is_ok_and(|value| value == "1");
    assert!(!required, "{REQUIRE}=1, and there is no helm on the PATH");
    writeln!(
        std::io::stderr(),
        "SKIPPED: the chart was not rendered, there is no helm on the PATH"
    )
    .unwrap();
    true
}

/// A file in the rendered ConfigMap.
fn file(config_map: &str, name: &str) -> String {
    let (_, block) = config_map.split_once(&format!("  {name}: |\n")).unwrap();
    block
        .lines()
        .take_while(|line| line.trim().is_empty() || line.starts_with("    "))
        .map(|line| format!("{}\n", line.trim()))
        .collect()
}

#[test]
fn the_configuration_that_the_chart_makes_is_valid() {
    if helm_is_missing() {
        return;
    }
    for values in VALUES {
        let config_map = rendered("configmap.yaml", &["--values", values]).unwrap();
        let text = file(&config_map, "fermata.toml");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fermata.toml");
        fs::write(&path, &text).unwrap();
        let checked = Command::new(env!("CARGO_BIN_EXE_fermata"))
            .args(["check", "--output", "json", "--config"])
            .arg(&path)
            .env_clear()
            // Where a program with the C++ driver finds its library.
            .envs(std::env::var_os("LD_LIBRARY_PATH").map(|path| ("LD_LIBRARY_PATH", path)))
            .output()
            .unwrap();
        let answered: Json = serde_json::from_slice(&checked.stdout).unwrap();
        assert_eq!(answered["valid"], true, "{values}: {answered:#}\n{text}");
        let config = &answered["config"];
        assert_eq!(config["data_dir"], "/data");
        assert_eq!(config["insecure"], values != SECURED);
        if values == EVERYTHING {
            // Text that needs escapes, numbers that YAML makes floating-point, and tables.
            let filter = r#"info,fermata::engine=debug,fermata[{key_hash="<a&b>"}]=trace"#;
            assert_eq!(config["log"]["filter"], filter);
            assert_eq!(config["limits"]["value_bytes_max"], 4_194_304);
            assert!(config["tables"]["stock_2"].is_object());
            assert_eq!(config["tables"]["orders"]["commit"], "write-back");
        }
        if values == SECURED {
            let listen = json!(["[::]:7450", "unix:/run/fermata/fermata.sock"]);
            assert_eq!(config["listen"], listen);
        }
    }
}

#[test]
fn each_file_that_the_configuration_names_is_mounted() {
    if helm_is_missing() {
        return;
    }
    let config_map = rendered("configmap.yaml", &["--values", SECURED]).unwrap();
    let pod = rendered("statefulset.yaml", &["--values", SECURED]).unwrap();
    let text = file(&config_map, "fermata.toml");
    let named = text.lines().filter_map(|line| {
        let (name, path) = line.split_once(" = ")?;
        let path = path.trim_matches('"').strip_prefix("/etc/fermata/")?;
        name.ends_with("_file").then_some(path)
    });
    let named: Vec<&str> = named.collect();
    let all = [
        "tls.crt",
        "tls.key",
        "client-ca.crt",
        "tokens",
        "rules.toml",
    ];
    assert_eq!(named, all);
    for name in named {
        let is_mounted = pod.contains(&format!("path: {name}\n"))
            || config_map.contains(&format!("  {name}: |\n"));
        assert!(is_mounted, "{name}: {pod}");
    }
    // Files that are mounted so never change.
    assert!(!pod.contains("subPath:"), "{pod}");
    assert!(pod.contains("defaultMode: 0440\n"), "{pod}");
    // What changes there is taken without a restart.
    let marked = pod.lines().filter(|line| line.contains("checksum/"));
    assert_eq!(marked.count(), 1, "{pod}");
}

#[test]
fn the_rules_are_those_of_the_values() {
    if helm_is_missing() {
        return;
    }
    let config_map = rendered("configmap.yaml", &["--values", SECURED]).unwrap();
    let rules = Rules::parse(&file(&config_map, "rules.toml")).unwrap();
    let may = |who: &str, verb: Verb, key: &str| {
        let id = KeyId {
            table: TableName::default_table(),
            key: Key::parse(key, Key::BYTES_MAX).unwrap(),
        };
        rules.allow(who, verb.into(), Scope::Key(&id))
    };
    // Text that needs escapes.
    for who in [
        "billing",
        "spiffe://acme/billing/7",
        r#"CN=wörker\, "A",O=<Acme>"#,
    ] {
        assert!(may(who, Verb::Write, "eu/1"), "{who}");
        assert!(!may(who, Verb::Write, "us/1"), "{who}");
        assert!(!may(who, Verb::Admin, "eu/1"), "{who}");
    }
    assert!(rules.allow("ops", Verb::Admin.into(), Scope::Everything));
    assert!(!may("unix:65532", Verb::Read, "eu/1"));
    // A list without rules allows nothing, and none at all is no file.
    let tokens = "auth.tokens.secretName=tokens";
    let with = |rules: &str| {
        let more = [
            "--set",
            tokens,
            "--set-json",
            &format!("auth.rules={rules}"),
        ];
        rendered("configmap.yaml", &[&INSECURE[..], &more].concat()).unwrap()
    };
    assert!(with("[]").contains("rules_file = "));
    assert!(!with("null").contains("rules"));
}

#[test]
fn probes_speak_what_the_server_does() {
    if helm_is_missing() {
        return;
    }
    let secured = rendered("statefulset.yaml", &["--values", SECURED]).unwrap();
    assert!(!secured.contains("grpc:\n"), "{secured}");
    for (service, probes) in [("liveness", 2), ("", 1)] {
        let health = format!("command: [/usr/bin/fermata, health, \"{service}\", --timeout, 1s]");
        assert_eq!(secured.matches(&health).count(), probes, "{secured}");
    }
    // Health is answered to everybody, so tokens alone change nothing.
    let tokens = ["--set", "auth.tokens.secretName=tokens"];
    for more in [&INSECURE[..], &[INSECURE, tokens].concat()] {
        let plain = rendered("statefulset.yaml", more).unwrap();
        assert_eq!(plain.matches("grpc:\n").count(), 3, "{plain}");
    }
}

#[test]
fn the_pod_may_end_in_an_orderly_way() {
    if helm_is_missing() {
        return;
    }
    for (grace, seconds) in [("10s", 30), ("0s", 10), ("3600s", 7210)] {
        let set = format!("config.insecure=true,config.shutdown_grace={grace}");
        let pod = rendered("statefulset.yaml", &["--set", &set]).unwrap();
        let line = format!("      terminationGracePeriodSeconds: {seconds}\n");
        assert!(pod.contains(&line), "{grace}");
    }
}

#[test]
fn what_could_not_work_is_refused_before_it_is_installed() {
    if helm_is_missing() {
        return;
    }
    for (set, why) in [
        (
            "",
            "connections would not be encrypted, and clients would not be known",
        ),
        (
            "auth.tokens.secretName=a",
            "connections would not be encrypted. Set",
        ),
        ("tls.secretName=a", "clients would not be known. Set"),
        ("tls.clientCa.secretName=a", "only to a server with TLS"),
        (
            "tls.secretName=a,tls.clientCa.secretName=a,tls.clientCa.configMapName=b",
            "not both",
        ),
    ] {
        let refused = rendered("statefulset.yaml", &["--set", set]).unwrap_err();
        assert!(refused.contains(why), "{set}: {refused}");
    }
    for (set, why) in [
        ("config.listen=127.0.0.1:7450", "/config/listen"),
        ("config.data_dir=elsewhere", "data_dir"),
        ("config.limits.session_max=5", "session_max"),
        ("config.shutdown_grace=forever", "/config/shutdown_grace"),
        ("replicas=3", "replicas"),
        ("auth.rules[0].table=t", "/auth/rules/0"),
        (
            "auth.rules[0].who[0]=a,auth.rules[0].table=t,auth.rules[0].allow[0]=lock",
            "for clients that are known",
        ),
    ] {
        let more = [&INSECURE[..], &["--set", set]].concat();
        let refused = rendered("statefulset.yaml", &more).unwrap_err();
        assert!(refused.contains(why), "{set}: {refused}");
    }
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

#[test]
fn an_empty_list_of_peers_grants_nobody_the_lock() {
    if helm_is_missing() {
        return;
    }
    let more = [&INSECURE[..], &["--set-json", "networkPolicy.from=[]"]].concat();
    let policy = rendered("networkpolicy.yaml", &more).unwrap();
    assert!(policy.contains("  ingress: []\n"), "{policy}");
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
    // The volume.
    assert!(exist.remove("data_dir"));
    // The chart is for one replica on the embedded store. The files of `tls` and `auth` come from Secrets, ConfigMaps and
    // rules that values beside `config` name.
    for not_there in [
        "store.kind",
        "store.cassandra.",
        "peers.",
        "commit",
        "tls.",
        "auth.",
    ] {
        exist.retain(|name| !name.starts_with(not_there));
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
