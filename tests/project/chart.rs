//! The Helm chart: what it renders is taken by this Fermata, and its schema and its page know every setting.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::process::{Command, Output};

use fermata::config::Config;
use serde_json::Value as Json;

use super::files;

/// Set to 1 where helm must be there.
const REQUIRE: &str = "FERMATA_REQUIRE_HELM";
/// The oldest one that the chart is for. (A helm that go built assumes one of long ago.)
const KUBERNETES: &str = "1.27.0";
/// The values that the chart is rendered with: its own, and these on top.
const VALUES: [Option<&str>; 3] = [
    None,
    Some("helm/fermata/ci/no-persistence-values.yaml"),
    Some("helm/fermata/ci/everything-values.yaml"),
];

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

/// The configuration file in the rendered ConfigMap.
fn configuration(config_map: &str) -> String {
    let (_, block) = config_map.split_once("  fermata.toml: |\n").unwrap();
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
        let more: Vec<&str> = values.iter().flat_map(|path| ["--values", *path]).collect();
        let text = configuration(&rendered("configmap.yaml", &more).unwrap());
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("fermata.toml");
        fs::write(&file, &text).unwrap();
        let checked = Command::new(env!("CARGO_BIN_EXE_fermata"))
            .args(["check", "--output", "json", "--config"])
            .arg(&file)
            .env_clear()
            .output()
            .unwrap();
        let answered: Json = serde_json::from_slice(&checked.stdout).unwrap();
        assert_eq!(answered["valid"], true, "{values:?}: {answered:#}\n{text}");
        let config = &answered["config"];
        assert_eq!(config["data_dir"], "/data");
        if values == VALUES[2] {
            // Text that needs escapes, numbers that YAML makes floating-point, and tables.
            let filter = r#"info,fermata::engine=debug,fermata[{key_hash="<a&b>"}]=trace"#;
            assert_eq!(config["log"]["filter"], filter);
            assert_eq!(config["limits"]["value_bytes_max"], 4_194_304);
            assert!(config["tables"]["stock_2"].is_object());
        }
    }
}

#[test]
fn the_pod_may_end_in_an_orderly_way() {
    if helm_is_missing() {
        return;
    }
    for (grace, seconds) in [("10s", 30), ("0s", 10), ("3600s", 7210)] {
        let set = format!("config.shutdown_grace={grace}");
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
        ("config.insecure=false", "config.insecure must be true"),
        ("config.listen=127.0.0.1:7450", "/config/listen"),
        ("config.data_dir=elsewhere", "data_dir"),
        ("config.limits.session_max=5", "session_max"),
        ("config.shutdown_grace=forever", "/config/shutdown_grace"),
        ("replicas=3", "replicas"),
    ] {
        let refused = rendered("statefulset.yaml", &["--set", set]).unwrap_err();
        assert!(refused.contains(why), "{set}: {refused}");
    }
}

#[test]
fn an_empty_list_of_peers_grants_nobody_the_lock() {
    if helm_is_missing() {
        return;
    }
    let policy = rendered(
        "networkpolicy.yaml",
        &["--set-json", "networkPolicy.from=[]"],
    )
    .unwrap();
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
    // The chart is for one replica on the embedded store, in a network that is trusted.
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
