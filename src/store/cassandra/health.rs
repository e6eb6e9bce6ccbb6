//! Whether a running cluster and its tables are as they must be, and what to change where they are not.

use std::fmt;

use super::driver::{Driver, Use};
use super::options::{CassandraOptions, Majority};
use super::schema::{GC_GRACE_S, Schema, SchemaError, VERSION, version};
use super::value::Value;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// Locks would not be safe, or not work.
    Wrong,
    /// It works, and could be better.
    Advice,
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How much it matters.
    pub weight: Weight,
    /// What is so.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weight = match self.weight {
            Weight::Wrong => "wrong",
            Weight::Advice => "advice",
        };
        write!(f, "{weight}: {}\n        {}", self.what, self.remedy)
    }
}

fn wrong(what: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding {
        weight: Weight::Wrong,
        what: what.into(),
        remedy: remedy.into(),
    }
}

fn advice(what: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding {
        weight: Weight::Advice,
        ..wrong(what, remedy)
    }
}

/// Looks at the keyspace, its tables and every node that can be reached. Changes nothing.
pub async fn check(
    options: &CassandraOptions,
    schema: &Schema,
) -> Result<Vec<Finding>, SchemaError> {
    let driver = Driver::connect(options).await?;
    let mut findings = Vec::new();
    let copies = copies(&driver, schema).await?;
    let Some(copies) = copies else {
        findings.push(wrong(
            format!("there is no keyspace {}", schema.keyspace),
            "fermata schema apply --replication DATACENTER=3",
        ));
        return Ok(findings);
    };
    findings.extend(judge_copies(&copies, options.majority));
    match version(&driver, &schema.keyspace).await? {
        Some(VERSION) => {}
        Some(found) => findings.push(wrong(
            format!("the schema has version {found}; this program works with {VERSION}"),
            match found < VERSION {
                true => "fermata schema apply",
                false => "run the program that the schema belongs to",
            },
        )),
        None => findings.push(wrong("the schema has no version", "fermata schema apply")),
    }
    findings.extend(tables(&driver, schema).await?);
    for (node, variant) in driver.setting_of_each_node("paxos_variant").await {
        match variant.as_deref() {
            Some("v2") => {}
            Some(other) => findings.push(advice(
                format!("{node} has paxos_variant: {other}"),
                "v2 saves a round trip for each lock: set paxos_variant: v2 in cassandra.yaml of every node",
            )),
            // ScyllaDB has no such setting, nor has Cassandra 4.0.
            None => {}
        }
    }
    Ok(findings)
}

/// The strategy and its numbers, as the cluster tells them; `None` where there is no keyspace.
async fn copies(
    driver: &Driver,
    schema: &Schema,
) -> Result<Option<Vec<(String, String)>>, SchemaError> {
    let text = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?";
    let statement = driver.prepare(Use::Read, text).await?;
    let values = [Value::text(schema.keyspace.as_str())];
    let rows = driver.execute(&statement, &values).await?;
    let map = rows
        .into_iter()
        .next()
        .map(|mut row| row.map("replication"));
    let map = map.transpose();
    Ok(map
        .map_err(|error| SchemaError::Refused(error.to_string()))?
        .flatten())
}

fn judge_copies(copies: &[(String, String)], majority: Majority) -> Vec<Finding> {
    let mut findings = Vec::new();
    let numbers = || copies.iter().filter(|(name, _)| name != "class");
    let total: u32 = numbers().filter_map(|(_, n)| n.parse::<u32>().ok()).sum();
    if copies
        .iter()
        .any(|(name, class)| name == "class" && class.ends_with("SimpleStrategy"))
    {
        findings.push(advice(
            "the keyspace has SimpleStrategy, which does not know datacenters",
            "for production: ALTER KEYSPACE … WITH replication = {'class': 'NetworkTopologyStrategy', …}, then repair",
        ));
    }
    if total < 3 {
        findings.push(advice(
            format!("there are {total} copies of each key; with fewer than 3 one lost node stops its locks"),
            "replicate to 3 nodes at least, then repair",
        ));
    }
    if majority == Majority::OneDatacenter && numbers().count() > 1 {
        findings.push(wrong(
            "the keyspace lives in more than one datacenter, and LOCAL_QUORUM was asked for",
            "each datacenter would lock on its own: use QUORUM",
        ));
    }
    findings
}

/// The tables that must be there, with the settings that matter.
async fn tables(driver: &Driver, schema: &Schema) -> Result<Vec<Finding>, SchemaError> {
    let text =
        "SELECT table_name, gc_grace_seconds FROM system_schema.tables WHERE keyspace_name = ?";
    let statement = driver.prepare(Use::Read, text).await?;
    let values = [Value::text(schema.keyspace.as_str())];
    let mut found = Vec::new();
    for mut row in driver.execute(&statement, &values).await? {
        let refused = |error: crate::store::StoreError| SchemaError::Refused(error.to_string());
        let name = row.text("table_name").map_err(refused)?.unwrap_or_default();
        found.push((name, row.int("gc_grace_seconds").map_err(refused)?));
    }
    let mut findings = Vec::new();
    let mut wanted = vec![
        ("sessions".to_owned(), true),
        ("replicas".to_owned(), false),
        ("questions".to_owned(), false),
    ];
    for table in &schema.tables {
        wanted.push((format!("lock_{table}"), true));
        wanted.push((format!("data_{table}"), false));
    }
    for (name, by_transactions) in wanted {
        match found.iter().find(|(other, _)| *other == name) {
            None => findings.push(wrong(
                format!("there is no table {name}"),
                "fermata schema apply",
            )),
            Some((_, Some(grace))) if by_transactions && *grace < GC_GRACE_S => {
                findings.push(wrong(
                    format!("{name} has gc_grace_seconds = {grace}"),
                    format!(
                        "what transactions remember may come back: set it to {GC_GRACE_S} or more"
                    ),
                ));
            }
            Some(_) => {}
        }
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replication(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = pairs
            .iter()
            .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()));
        owned.collect()
    }

    #[test]
    fn few_copies_are_advised_against_and_two_datacenters_with_local_majorities_are_wrong() {
        let class = (
            "class",
            "org.apache.cassandra.locator.NetworkTopologyStrategy",
        );
        let good = replication(&[class, ("dc1", "3")]);
        assert_eq!(judge_copies(&good, Majority::OneDatacenter), []);
        let two = replication(&[class, ("dc1", "3"), ("dc2", "3")]);
        assert_eq!(judge_copies(&two, Majority::Everywhere), []);
        let found = judge_copies(&two, Majority::OneDatacenter);
        assert_eq!(found[0].weight, Weight::Wrong);
        let simple = replication(&[("class", "SimpleStrategy"), ("replication_factor", "1")]);
        assert_eq!(judge_copies(&simple, Majority::Everywhere).len(), 2);
    }
}
