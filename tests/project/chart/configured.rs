//! The files that the chart makes: this Fermata takes them.

use std::fs;
use std::process::Command;

use fermata::access::{Rules, Scope, Verb};
use fermata::lock::{Key, KeyId, TableName};
use serde_json::{Value as Json, json};

use super::super::helm::{self, rendered};
use super::{CASSANDRA, CASSANDRA_EVERYTHING, EVERYTHING, INSECURE, SECURED, values_files};

/// A file in the rendered ConfigMap.
fn file(config_map: &str, name: &str) -> String {
    let (_, block) = config_map.split_once(&format!("  {name}: |\n")).unwrap();
    block
        .lines()
        .take_while(|line| line.trim().is_empty() || line.starts_with("    "))
        .map(|line| format!("{}\n", line.trim()))
        .collect()
}

/// What Kubernetes puts into the environment of the pod, as far as the manifest asks for it.
fn environment(pod: &str) -> Vec<(&str, &str)> {
    let known = [
        ("FERMATA_CFG_PEERS__NAME", "fermata-0"),
        (
            "FERMATA_CFG_ADVERTISE",
            "fermata-0.fermata-headless.locks.svc:7450",
        ),
        (
            "FERMATA_CFG_PEERS__ADVERTISE",
            "fermata-0.fermata-headless.locks.svc:7451",
        ),
        // As on Kubernetes before 1.35.
        ("FERMATA_CFG_PEERS__ZONE", ""),
        ("FERMATA_CFG_STORE__CASSANDRA__USER", "fermata"),
    ];
    let is_asked = |name: &str| pod.contains(&format!("- name: {name}\n"));
    let asked = known.into_iter().filter(|(name, _)| is_asked(name));
    asked.collect()
}

/// The settings in force in the pod that the chart makes with these values.
fn settings(values: &str) -> Json {
    let config_map = rendered("configmap.yaml", &["--values", values]).unwrap();
    let pod = rendered("statefulset.yaml", &["--values", values]).unwrap();
    let text = file(&config_map, "fermata.toml");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fermata.toml");
    fs::write(&path, &text).unwrap();
    let checked = Command::new(env!("CARGO_BIN_EXE_fermata"))
        .args(["check", "--output", "json", "--config"])
        .arg(&path)
        .env_clear()
        .envs(environment(&pod))
        // Where a program with the C++ driver finds its library.
        .envs(std::env::var_os("LD_LIBRARY_PATH").map(|path| ("LD_LIBRARY_PATH", path)))
        .output()
        .unwrap();
    let mut answered: Json = serde_json::from_slice(&checked.stdout).unwrap();
    assert_eq!(answered["valid"], true, "{values}: {answered:#}\n{text}");
    answered["config"].take()
}

#[test]
fn the_configuration_that_the_chart_makes_is_valid() {
    if helm::is_missing() {
        return;
    }
    for values in values_files() {
        let config = settings(&values);
        let is_insecure = super::files::text(&values).contains("insecure: true\n");
        assert_eq!(config["insecure"], is_insecure, "{values}");
        assert_eq!(config["http"]["listen"].as_array().unwrap().len(), 1);
    }
}

#[test]
fn settings_have_the_values_that_are_given() {
    if helm::is_missing() {
        return;
    }
    let config = settings(EVERYTHING);
    assert_eq!(config["data_dir"], "/data");
    // Text that needs escapes, numbers that YAML makes floating-point, and tables.
    let filter = r#"info,fermata::engine=debug,fermata[{key_hash="<a&b>"}]=trace"#;
    assert_eq!(config["log"]["filter"], filter);
    assert_eq!(config["limits"]["value_bytes_max"], 4_194_304);
    assert!(config["tables"]["stock_2"].is_object());
    assert_eq!(config["tables"]["orders"]["commit"], "write-back");

    let config = settings(SECURED);
    let listen = json!(["[::]:7450", "unix:/run/fermata/fermata.sock"]);
    assert_eq!(config["listen"], listen);

    let config = settings(CASSANDRA);
    assert_eq!(config["store"]["kind"], "cassandra");
    assert_eq!(config["peers"]["name"], "fermata-0");

    let config = settings(CASSANDRA_EVERYTHING);
    assert_eq!(config["commit"], "write-through");
    assert_eq!(config["peers"]["zone"], "eu-1");
    assert_eq!(config["store"]["cassandra"]["user"], "fermata");
    assert_eq!(config["store"]["cassandra"]["tls"]["verify_host"], false);
    assert_eq!(config["tables"]["seats"]["row_table"], "shop.seats");
}

#[test]
fn each_file_that_the_configuration_names_is_mounted() {
    if helm::is_missing() {
        return;
    }
    for (values, template, all) in [
        (
            SECURED,
            "statefulset.yaml",
            "client-ca.crt rules.toml tls.crt tls.key tokens",
        ),
        (
            CASSANDRA_EVERYTHING,
            "statefulset.yaml",
            "cassandra-ca.crt cassandra-password cassandra.crt cassandra.key client-ca.crt peers-ca.crt peers.crt peers.key \
             peers.secret rules.toml tls.crt tls.key tokens",
        ),
        // The command reads no other ones.
        (
            CASSANDRA_EVERYTHING,
            "schema-job.yaml",
            "cassandra-ca.crt cassandra-password cassandra.crt cassandra.key",
        ),
    ] {
        let config_map = rendered("configmap.yaml", &["--values", values]).unwrap();
        let pod = rendered(template, &["--values", values]).unwrap();
        let text = file(&config_map, "fermata.toml");
        let named = text.lines().filter_map(|line| {
            let (name, path) = line.split_once(" = ")?;
            let path = path.trim_matches('"').strip_prefix("/etc/fermata/")?;
            name.ends_with("_file").then_some(path)
        });
        let is_mounted = |name: &&str| {
            pod.contains(&format!("path: {name}\n"))
                || (template == "statefulset.yaml"
                    && config_map.contains(&format!("  {name}: |\n")))
        };
        let mut mounted: Vec<&str> = named.filter(is_mounted).collect();
        mounted.sort_unstable();
        assert_eq!(mounted.join(" "), all, "{template}: {pod}");
        // Files that are mounted so never change.
        assert!(!pod.contains("subPath:"), "{pod}");
        assert!(pod.contains("defaultMode: 0440\n"), "{pod}");
    }
}

#[test]
fn the_rules_are_those_of_the_values() {
    if helm::is_missing() {
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

/// The exit statuses after which the Job gives up.
fn hopeless(job: &str) -> Vec<i32> {
    let mut lines = job.lines().map(str::trim);
    let values = lines.find_map(|line| line.strip_prefix("values: "));
    serde_json::from_str(values.unwrap()).unwrap()
}

#[test]
fn the_schema_job_tries_again_only_while_cassandra_cannot_be_reached() {
    if helm::is_missing() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fermata.toml");
    let status = |set: &str| {
        let more = ["--values", CASSANDRA, "--set", set];
        let job = rendered("schema-job.yaml", &more).unwrap();
        fs::write(&path, file(&job, "fermata.toml")).unwrap();
        let args = helm::args(&job).into_iter();
        let args = args.map(|arg| match arg.as_str() {
            "/etc/fermata/fermata.toml" => path.to_str().unwrap().to_owned(),
            _ => arg,
        });
        let ran = Command::new(env!("CARGO_BIN_EXE_fermata"))
            .args(args)
            .output()
            .unwrap();
        (ran.status.code().unwrap(), hopeless(&job), ran)
    };
    // Nobody listens at this port.
    let (code, hopeless, ran) =
        status("config.store.cassandra.contact_points={127.0.0.1:1},schemaJob.replication=dc1=3");
    assert_eq!(code, 69, "{ran:?}");
    assert!(!hopeless.contains(&code));
    let (code, hopeless, ran) = status("config.store.cassandra.keyspace=a b");
    assert_eq!(code, 78, "{ran:?}");
    assert!(hopeless.contains(&code));
}
