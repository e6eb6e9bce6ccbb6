//! The alerts and dashboards of the chart: each alert says what to do, has series that test it, and an entry in the runbook.
//! (promtool runs those series in `.ci/run`; tests/serve holds the expressions against a scrape.)

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value as Json;

use super::files;
use super::rules::{Rule, rules};

const RUNBOOK: &str = "https://github.com/fermata-lock/fermata/blob/main/docs/operating.md#";

const TARGET: [&str; 3] = ["namespace", "job", "instance"];

fn groups(expr: &str) -> bool {
    expr.starts_with("sum by") || expr.starts_with("histogram_quantile")
}

fn alerts() -> Vec<Rule> {
    let mut rules = rules();
    rules.retain(|rule| !rule.alert.is_empty());
    rules
}

#[test]
fn each_alert_says_how_bad_it_is_what_users_notice_and_where_to_read_on() {
    for alert in alerts() {
        let (name, says) = (&alert.alert, &alert.annotations);
        let severity = alert.labels.severity.as_str();
        assert!(matches!(severity, "warning" | "critical"), "{name}");
        assert!(!says.summary.is_empty(), "{name}");
        assert!(says.description.len() > 80, "{name}");
        assert_eq!(
            says.runbook_url,
            format!("{RUNBOOK}{}", name.to_lowercase())
        );
        // A label that the result has not would be empty.
        let text = format!("{} {}", says.summary, says.description);
        for after in text.split("$labels.").skip(1) {
            let label = after.split([' ', '}', '|']).next().unwrap();
            // A result that is not grouped keeps those of the target.
            let is_there =
                alert.expr.contains(label) || (TARGET.contains(&label) && !groups(&alert.expr));
            assert!(is_there, "{name}: {label}");
        }
    }
}

#[test]
fn each_alert_has_an_entry_in_the_runbook_and_each_entry_an_alert() {
    let page = files::text("docs/operating.md");
    let (_, page) = page.split_once("\n## Alerts\n").unwrap();
    let entries = page.split("\n### ").skip(1);
    let entries: Vec<(&str, &str)> = entries
        .map(|entry| entry.split_once('\n').unwrap())
        .map(|(name, text)| (name, text.split("\n## ").next().unwrap()))
        .collect();
    let names: Vec<&str> = entries.iter().map(|(name, _)| *name).collect();
    let alerts = alerts();
    let expected: Vec<&str> = alerts.iter().map(|alert| alert.alert.as_str()).collect();
    assert_eq!(names, expected, "left: docs/operating.md");
    for (name, text) in entries {
        let lines = text.lines().filter(|line| !line.is_empty()).count();
        assert!((3..=8).contains(&lines), "{name}: {lines} lines");
    }
}

/// A file for `promtool test rules`.
#[derive(Deserialize)]
struct Tests {
    tests: Vec<Test>,
}

#[derive(Deserialize)]
struct Test {
    name: String,
    input_series: Vec<Input>,
    promql_expr_test: Vec<Check>,
}

#[derive(Deserialize)]
struct Input {
    series: String,
}

#[derive(Deserialize)]
struct Check {
    exp_samples: Vec<Sample>,
}

#[derive(Deserialize)]
struct Sample {
    labels: String,
}

#[test]
fn each_alert_is_fired_by_series_of_a_test_and_not_by_others() {
    let mut tests = BTreeMap::new();
    for path in files::ending(".yaml") {
        if path.starts_with("tests/prometheus/") {
            let file: Tests = serde_saphyr::from_str(&files::text(&path)).unwrap();
            tests.extend(file.tests.into_iter().map(|test| (test.name.clone(), test)));
        }
    }
    for alert in alerts() {
        let name = alert.alert;
        let test = tests.get(&name);
        let test = test.unwrap_or_else(|| panic!("{name}: no test of that name"));
        let fires = |sample: &Sample| sample.labels.contains(&format!("alertname=\"{name}\""));
        let samples = || test.promql_expr_test.iter().flat_map(|c| &c.exp_samples);
        assert!(samples().any(fires), "{name}: nothing fires it");
        let is_good = |text: &str| text.contains("job=\"good\"");
        assert!(
            test.input_series.iter().any(|i| is_good(&i.series)),
            "{name}"
        );
        assert!(!samples().any(|sample| is_good(&sample.labels)), "{name}");
    }
}

#[test]
fn each_panel_says_what_it_shows_and_names_alerts_that_exist() {
    let alerts: BTreeSet<String> = alerts().into_iter().map(|alert| alert.alert).collect();
    let mut uids = BTreeSet::new();
    for path in files::ending(".json") {
        if !path.starts_with("helm/fermata/dashboards/") {
            continue;
        }
        let board: Json = serde_json::from_str(&files::text(&path)).unwrap();
        uids.insert(board["uid"].as_str().unwrap().to_owned());
        let mut ids = BTreeSet::new();
        for panel in board["panels"].as_array().unwrap() {
            let title = panel["title"].as_str().unwrap();
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}");
            if panel["type"] == "row" {
                continue;
            }
            let description = panel["description"].as_str().unwrap();
            assert!(!description.is_empty(), "{title}");
            assert!(
                panel["fieldConfig"]["defaults"]["unit"].is_string(),
                "{title}"
            );
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
            for word in description.split(|c: char| !c.is_alphanumeric()) {
                let is_alert = word.len() > 7 && word.starts_with("Fermata");
                assert!(!is_alert || alerts.contains(word), "{title}: {word}");
            }
        }
    }
    assert_eq!(uids.len(), 2, "{uids:?}");
}
