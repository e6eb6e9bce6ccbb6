//! The alerts and recording rules of the chart, as Prometheus reads them.

use serde::Deserialize;

#[derive(Deserialize)]
struct RuleFile {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    rules: Vec<Rule>,
}

/// An alert, or a recording rule.
#[derive(Deserialize)]
pub struct Rule {
    /// The name of an alert.
    #[serde(default)]
    pub alert: String,
    /// The name of what a rule records.
    #[serde(default)]
    pub record: String,
    pub expr: String,
    #[serde(default)]
    pub labels: Labels,
    #[serde(default)]
    pub annotations: Annotations,
}

#[derive(Default, Deserialize)]
pub struct Labels {
    pub severity: String,
}

#[derive(Default, Deserialize)]
pub struct Annotations {
    pub summary: String,
    pub description: String,
    pub runbook_url: String,
}

/// All rules, in the order of the file.
pub fn rules() -> Vec<Rule> {
    let file = include_str!("../../helm/fermata/rules/fermata.yaml");
    let file: RuleFile = serde_saphyr::from_str(file).unwrap();
    file.groups
        .into_iter()
        .flat_map(|group| group.rules)
        .collect()
}
