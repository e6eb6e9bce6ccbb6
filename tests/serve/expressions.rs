//! The expressions of the chart's dashboards and alerts: they can be parsed, and select series of a server under load.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::time::Duration;

use promql_parser::label::{MatchOp, Matcher};
use promql_parser::parser::{self, Expr, LabelModifier, VectorSelector};
use promql_parser::util::{ExprVisitor, walk_expr};
use serde_json::Value as Json;

use super::metrics::{acquire, create, get, release};
use super::process::Serve;
use super::rules::rules;

/// An expression, and where it stands.
struct Found {
    at: String,
    expr: String,
    /// The labels that its legend names.
    legend: Vec<String>,
}

const DASHBOARDS: [&str; 2] = [
    include_str!("../../helm/fermata/dashboards/service.json"),
    include_str!("../../helm/fermata/dashboards/replica.json"),
];

/// All expressions, with Grafana's intervals replaced. (Its other variables stand in strings.)
fn expressions() -> Vec<Found> {
    let mut found = Vec::new();
    for board in DASHBOARDS {
        let board: Json = serde_json::from_str(board).unwrap();
        for panel in board["panels"].as_array().unwrap() {
            let targets = panel["targets"].as_array().into_iter().flatten();
            found.extend(targets.map(|target| Found {
                at: format!("{} / {}", board["title"], panel["title"]),
                expr: text(target, "expr").replace("$__rate_interval", "5m"),
                legend: in_braces(text(target, "legendFormat")),
            }));
        }
        for variable in board["templating"]["list"].as_array().unwrap() {
            // `label_values(SELECTOR, LABEL)`
            let query = variable["query"]["query"].as_str().unwrap_or_default();
            let values = query.strip_prefix("label_values(");
            let parts = values.and_then(|values| values.strip_suffix(')')?.rsplit_once(", "));
            found.extend(parts.map(|(expr, label)| Found {
                at: format!("{} / {}", board["title"], variable["name"]),
                expr: expr.to_owned(),
                legend: vec![label.to_owned()],
            }));
        }
    }
    found.extend(rules().into_iter().map(|rule| Found {
        at: format!("{}{}", rule.alert, rule.record),
        expr: rule.expr,
        legend: Vec::new(),
    }));
    assert!(found.len() > 80, "{}", found.len());
    found
}

fn text<'a>(json: &'a Json, name: &str) -> &'a str {
    json[name].as_str().unwrap()
}

/// `{{table}} {{cause}}` -> `table`, `cause`.
fn in_braces(legend: &str) -> Vec<String> {
    let names = legend.split("{{").skip(1);
    let names = names.map(|after| after.split("}}").next().unwrap().to_owned());
    names.collect()
}

/// The selectors of an expression, and the labels by which it groups and joins.
#[derive(Default)]
struct Parts {
    selectors: Vec<VectorSelector>,
    labels: BTreeSet<String>,
}

impl ExprVisitor for Parts {
    type Error = Infallible;

    fn pre_visit(&mut self, expr: &Expr) -> Result<bool, Infallible> {
        match expr {
            Expr::VectorSelector(selector) => self.selectors.push(selector.clone()),
            Expr::MatrixSelector(matrix) => self.selectors.push(matrix.vs.clone()),
            Expr::Aggregate(aggregate) => self.name(aggregate.modifier.as_ref()),
            Expr::Binary(binary) => {
                let modifier = binary.modifier.as_ref();
                self.name(modifier.and_then(|modifier| modifier.matching.as_ref()));
            }
            _ => {}
        }
        Ok(true)
    }
}

impl Parts {
    fn name(&mut self, modifier: Option<&LabelModifier>) {
        let labels = modifier.into_iter().flat_map(|m| &m.labels().labels);
        self.labels.extend(labels.cloned());
    }
}

type Labels = BTreeMap<String, String>;

/// The series of a scrape, by the names of their metrics.
struct Series(BTreeMap<String, Vec<Labels>>);

impl Series {
    fn of(scrape: &str) -> Series {
        let mut found: BTreeMap<String, Vec<Labels>> = BTreeMap::new();
        for line in scrape.lines().filter(|line| !line.starts_with('#')) {
            let (series, _) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let labels = labels.trim_end_matches('}').split_inclusive("\",");
            let labels = labels.filter_map(|label| label.trim_end_matches(',').split_once('='));
            let labels =
                labels.map(|(name, value)| (name.to_owned(), value.trim_matches('"').to_owned()));
            found
                .entry(name.to_owned())
                .or_default()
                .push(labels.collect());
        }
        Series(found)
    }

    /// The labels of what this selects, or why that is nothing.
    fn labels(
        &self,
        selector: &VectorSelector,
        recorded: &[String],
    ) -> Result<BTreeSet<String>, String> {
        let name = selector.name.as_deref().unwrap();
        if recorded.iter().any(|recorded| recorded == name) {
            return Ok(BTreeSet::new());
        }
        let later = LATER.iter().find(|(later, ..)| *later == name);
        if let Some((_, labels, _)) = later {
            let labels: BTreeSet<String> = labels.iter().map(|l| (*l).to_owned()).collect();
            let mut matchers = selector.matchers.matchers.iter();
            let strange = matchers.find(|m| !is_of_target(m) && !labels.contains(&m.name));
            return strange.map_or(Ok(labels), |m| Err(format!("{name} has no {}", m.name)));
        }
        let Some(series) = self.0.get(name) else {
            return Err(format!("there is no {name}"));
        };
        let matches =
            |labels: &&Labels| selector.matchers.matchers.iter().all(|m| is_met(m, labels));
        match series.iter().find(matches) {
            Some(labels) => Ok(labels.keys().cloned().collect()),
            None => Err(format!("no series is {selector}")),
        }
    }
}

/// Whether Prometheus or its scrape job sets this label.
fn is_of_target(matcher: &Matcher) -> bool {
    TARGET.contains(&matcher.name.as_str())
}

const TARGET: [&str; 3] = ["namespace", "job", "instance"];

/// What a server on the embedded store does not have without a failure: its labels, and why.
const LATER: [(&str, &[&str], &str); 3] = [
    ("up", &[], "made by Prometheus"),
    ("fermata_replica_lease_seconds", &[], "only on Cassandra"),
    (
        "fermata_store_request_failures_total",
        &["data", "operation", "outcome"],
        "begins with the first failure",
    ),
];

/// Reasons of calls that the server names by their gRPC code.
const CODES: [&str; 3] = ["INTERNAL", "UNAVAILABLE", "UNKNOWN"];

/// Whether a series meets a matcher. Reasons of errors begin with the first such error, so they must be known instead.
fn is_met(matcher: &Matcher, labels: &Labels) -> bool {
    if is_of_target(matcher) || matcher.value.starts_with('$') {
        return is_of_target(matcher) || labels.contains_key(&matcher.name);
    }
    let Some(value) = labels.get(&matcher.name) else {
        return false;
    };
    if matcher.name == "reason" && labels.contains_key("method") {
        let reasons = include_str!("../../src/cli/explain/reasons.md");
        let is_known = |reason: &str| {
            reason == "OK"
                || CODES.contains(&reason)
                || reasons.contains(&format!("\n## {reason}\n"))
        };
        return matcher.value.split('|').all(is_known);
    }
    match &matcher.op {
        MatchOp::Equal => *value == matcher.value,
        MatchOp::NotEqual => *value != matcher.value,
        MatchOp::Re(regex) => regex.is_match(value),
        MatchOp::NotRe(regex) => !regex.is_match(value),
    }
}

/// What these expressions cannot select from the scrape, or name in vain.
fn faults(expressions: Vec<Found>, scrape: &str) -> Vec<String> {
    let series = Series::of(scrape);
    let recorded: Vec<String> = rules().into_iter().map(|rule| rule.record).collect();
    let mut faults = Vec::new();
    for Found { at, expr, legend } in expressions {
        let mut fault = |what: String| faults.push(format!("{at}: {what}: {expr}"));
        let parsed = match parser::parse(&expr) {
            Ok(parsed) => parsed,
            Err(error) => {
                fault(error);
                continue;
            }
        };
        let mut parts = Parts::default();
        let Ok(_) = walk_expr(&mut parts, &parsed);
        let mut labels: BTreeSet<String> = TARGET.map(str::to_owned).into();
        for selector in &parts.selectors {
            match series.labels(selector, &recorded) {
                Ok(more) => labels.extend(more),
                Err(error) => fault(error),
            }
        }
        assert!(!parts.selectors.is_empty(), "{at}");
        for label in parts.labels.iter().chain(&legend) {
            if !labels.contains(label) {
                fault(format!("no label {label}"));
            }
        }
    }
    faults
}

/// Sections with waiters in two tables.
async fn load(serve: &Serve) {
    let mut client = serve.client();
    for table in ["", "orders"] {
        let mut waiting = create(&mut client, table, Duration::from_secs(60)).await;
        for _ in 0..20 {
            let next = create(&mut client, table, Duration::from_secs(60)).await;
            let held = acquire(&mut client, &waiting).await;
            release(&mut client, held).await.unwrap();
            waiting = next;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dashboards_and_alerts_ask_for_what_a_server_under_load_shows() {
    let serve = Serve::with(&[
        ("HTTP__LISTEN", "127.0.0.1:0"),
        ("TABLES__ORDERS__COMMIT", "write-back"),
    ]);
    load(&serve).await;
    let scrape = get(serve.http_port, "/metrics", "").body;
    let faults = faults(expressions(), &scrape);
    assert!(faults.is_empty(), "{faults:#?}");
    // What is asked for without a scrape is documented.
    let page = include_str!("../../docs/metrics.md");
    for (name, _, why) in LATER {
        assert!(name == "up" || page.contains(name), "{name}: {why}");
    }
}

#[test]
fn a_wrong_name_is_found_wherever_it_stands() {
    let scrape = "fermata_grants_total{table=\"default\",cause=\"at_once\"} 1\nfermata_keys 7\n";
    for (expr, legend, fault) in [
        (
            "sum by (table) (rate(fermata_grants_total{cause=\"at_once\"}[5m]))",
            "{{table}}",
            None,
        ),
        ("fermata_keys{namespace=~\"$namespace\"} > 3", "", None),
        (
            "sum(rate(fermata_grants[5m]))",
            "",
            Some("there is no fermata_grants"),
        ),
        (
            "fermata_grants_total{cause=\"later\"}",
            "",
            Some("no series is"),
        ),
        (
            "fermata_grants_total{tables=~\"$table\"}",
            "",
            Some("no series is"),
        ),
        (
            "sum by (tables) (fermata_grants_total)",
            "",
            Some("no label tables"),
        ),
        (
            "fermata_keys / on (cause) fermata_keys",
            "",
            Some("no label cause"),
        ),
        (
            "fermata_grants_total",
            "{{tables}}",
            Some("no label tables"),
        ),
        ("sum(fermata_grants_total", "", Some("unclosed")),
    ] {
        let found = Found {
            at: String::new(),
            expr: expr.to_owned(),
            legend: in_braces(legend),
        };
        let faults = faults(vec![found], scrape);
        match fault {
            None => assert!(faults.is_empty(), "{faults:?}"),
            Some(fault) => assert!(
                faults.iter().any(|is| is.contains(fault)),
                "{expr}: {faults:?}"
            ),
        }
    }
}
