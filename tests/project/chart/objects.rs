//! The objects that the chart makes. That they have only fields of the Kubernetes API is checked by tests/chart.

use std::fs;
use std::path::Path;

use super::super::files;
use super::super::helm::{self, rendered, rendered_of};
use super::{CASSANDRA, CASSANDRA_EVERYTHING, CERT_MANAGER, INSECURE, SECURED};

#[test]
fn probes_ask_the_http_port_with_and_without_tls() {
    if helm::is_missing() {
        return;
    }
    for more in [&INSECURE[..], &["--values", SECURED]] {
        let pod = rendered("statefulset.yaml", more).unwrap();
        assert_eq!(pod.matches("port: http\n").count(), 3, "{pod}");
        assert_eq!(pod.matches("path: /healthz\n").count(), 2, "{pod}");
        assert_eq!(pod.matches("path: /readyz\n").count(), 1, "{pod}");
        assert!(pod.contains("- name: http\n              containerPort: 7452\n"));
    }
}

#[test]
fn the_pod_may_end_in_an_orderly_way() {
    if helm::is_missing() {
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
fn only_the_configuration_file_restarts_the_pod_by_its_content() {
    if helm::is_missing() {
        return;
    }
    let pod = rendered("statefulset.yaml", &["--values", SECURED]).unwrap();
    let marked = pod.lines().filter(|line| line.contains("checksum/"));
    assert_eq!(marked.count(), 1, "{pod}");
}

#[test]
fn replicas_announce_an_address_that_others_reach_and_their_certificate_names() {
    if helm::is_missing() {
        return;
    }
    let plain = rendered("statefulset.yaml", &["--values", CASSANDRA]).unwrap();
    assert!(plain.contains("value: \"$(POD_IP):7451\"\n"), "{plain}");
    let set = "config.peers.listen=[::]:7451";
    let sixth = rendered("statefulset.yaml", &["--values", CASSANDRA, "--set", set]).unwrap();
    assert!(sixth.contains("value: \"[$(POD_IP)]:7451\"\n"), "{sixth}");
    let encrypted = rendered("statefulset.yaml", &["--values", CERT_MANAGER]).unwrap();
    let domain = ".fermata-headless.locks.svc";
    assert!(
        encrypted.contains(&format!(
            "value: \"$(FERMATA_CFG_PEERS__NAME){domain}:7451\"\n"
        )),
        "{encrypted}"
    );
    let certificates = rendered("certificates.yaml", &["--values", CERT_MANAGER]).unwrap();
    // That of the replicas, and that of the server, for clients that list the pods.
    let names = certificates.matches(&format!("*{domain}")).count();
    assert_eq!(names, 2, "{certificates}");
    let service = rendered("service.yaml", &["--values", CERT_MANAGER]).unwrap();
    assert!(service.contains("  name: fermata-headless\n"), "{service}");
}

#[test]
fn the_zone_is_that_of_the_node_unless_one_is_set() {
    if helm::is_missing() {
        return;
    }
    let of_node = "fieldPath: metadata.labels['topology.kubernetes.io/zone']\n";
    for (values, is_of_node) in [(CASSANDRA, true), (CASSANDRA_EVERYTHING, false)] {
        let pod = rendered("statefulset.yaml", &["--values", values]).unwrap();
        assert_eq!(pod.contains(of_node), is_of_node, "{pod}");
    }
}

#[test]
fn pods_avoid_each_other_unless_the_values_say_otherwise() {
    if helm::is_missing() {
        return;
    }
    let pod = |more: &[&str]| {
        let more = [&["--values", CASSANDRA][..], more].concat();
        rendered("statefulset.yaml", &more).unwrap()
    };
    let spread = "topologyKey: topology.kubernetes.io/zone\n";
    let apart = "topologyKey: kubernetes.io/hostname\n";
    let usual = pod(&[]);
    assert!(usual.contains(spread) && usual.contains(apart), "{usual}");
    let none = pod(&["--set-json", "topologySpreadConstraints=[],affinity={}"]);
    assert!(!none.contains("topologyKey"), "{none}");
    let alone = rendered("statefulset.yaml", &INSECURE).unwrap();
    assert!(!alone.contains("topologyKey"), "{alone}");
}

#[test]
fn with_autoscaling_the_chart_leaves_the_number_of_replicas_alone() {
    if helm::is_missing() {
        return;
    }
    for (values, set, line) in [
        (CASSANDRA, "replicas=5", Some("  replicas: 5")),
        (CASSANDRA_EVERYTHING, "replicas=5", None),
        (SECURED, "replicas=5", Some("  replicas: 1")),
    ] {
        let pod = rendered("statefulset.yaml", &["--values", values, "--set", set]).unwrap();
        let mut found = pod.lines().filter(|line| line.starts_with("  replicas:"));
        assert_eq!(found.next(), line, "{values}");
    }
}

#[test]
fn an_empty_list_of_callers_admits_nobody() {
    if helm::is_missing() {
        return;
    }
    let nobody = "networkPolicy.from=[],networkPolicy.metricsFrom=[]";
    let policy = |more: &[&str]| {
        let more = [more, &["--set-json", nobody]].concat();
        rendered("networkpolicy.yaml", &more).unwrap()
    };
    let alone = policy(&INSECURE);
    assert!(alone.contains("  ingress: []\n"), "{alone}");
    // Replicas call each other all the same.
    let replicas = policy(&["--values", CASSANDRA]);
    let (ingress, _) = replicas.split_once("  egress:").unwrap();
    assert_eq!(ingress.matches("- from:").count(), 1, "{ingress}");
    assert!(ingress.contains("port: 7451\n"), "{ingress}");
}

/// Copies a directory with all below it.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        match from.is_dir() {
            true => copy(&from, &to),
            false => drop(fs::copy(from, to).unwrap()),
        }
    }
}

#[test]
fn dashboards_and_rules_are_those_of_the_files_of_the_chart() {
    if helm::is_missing() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let chart = directory.path().join("fermata");
    copy(&files::root().join("helm/fermata"), &chart);
    let values = files::root().join(CASSANDRA_EVERYTHING);
    let more = ["--values", values.to_str().unwrap()];
    for folder in ["rules", "dashboards"] {
        let _ = fs::remove_dir_all(chart.join(folder));
    }
    let none = rendered_of(&chart, "monitoring.yaml", &more).unwrap();
    assert_eq!(none.matches("kind: ").count(), 1, "{none}");
    assert!(none.contains("kind: PodMonitor\n"), "{none}");

    let rules = "groups:\n- name: a\n  rules:\n  - alert: b\n    annotations: {summary: \"on {{ $labels.pod }}\"}\n";
    let dashboard = r#"{"title": "{{ pod }}", "panels": []}"#;
    for (path, text) in [
        ("rules/locks.yaml", rules),
        ("dashboards/locks.json", dashboard),
    ] {
        let path = chart.join(path);
        fs::create_dir(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let all = rendered_of(&chart, "monitoring.yaml", &more).unwrap();
    assert!(all.contains("  name: fermata-locks\n"), "{all}");
    assert!(all.contains("summary: \"on {{ $labels.pod }}\""), "{all}");
    assert!(all.contains("grafana_dashboard: \"1\"\n"), "{all}");
    assert!(all.contains("  locks.json: "), "{all}");
    assert!(all.contains(r#""title": "{{ pod }}""#), "{all}");
}
