//! The check of a running cluster and its tables: findings, each with its remedy.

use std::fmt;

use fermata_cassandra::{CassandraOptions, Driver, Fault, Keyspace, Majority, Use, Value};

use super::error::CassandraError;
use super::replication::{Copies, Datacenters, described, example, fitting};
use super::row_table;
use super::schema::{Schema, VERSION, version};
use super::tables::{self, Difference};

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// Locks would not be safe, or not work.
    Wrong,
    /// It works, and could be better.
    Advice,
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Weight::Wrong => "wrong",
            Weight::Advice => "advice",
        })
    }
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
        write!(f, "{}: {}\n        {}", self.weight, self.what, self.remedy)
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

/// Looks at the keyspace, its tables and a node. Changes nothing. `apply` is the command that makes what is
/// missing, as remedies are to name it.
pub async fn check(
    options: &CassandraOptions,
    schema: &Schema,
    apply: &str,
) -> Result<Vec<Finding>, CassandraError> {
    let driver = Driver::connect(options).await?;
    look(&driver, options, schema, apply).await
}

/// The same, by a connection that there is already.
pub(super) async fn look(
    driver: &Driver,
    options: &CassandraOptions,
    schema: &Schema,
    apply: &str,
) -> Result<Vec<Finding>, CassandraError> {
    let mut findings = Vec::new();
    let datacenters = driver.datacenters();
    findings.extend(judge_preference(
        options.datacenter.as_deref(),
        &datacenters,
    ));
    match Copies::of(driver, &schema.keyspace).await? {
        None => findings.push(wrong(
            format!("there is no keyspace {}", schema.keyspace),
            format!("{apply} --replication {}", example(&datacenters)),
        )),
        Some(copies) => {
            findings.extend(judge_copies(
                &copies,
                options.majority,
                &schema.keyspace,
                &datacenters,
            ));
            findings.extend(judge_local(&copies, options));
            match version(driver, &schema.keyspace).await? {
                Some(VERSION) => {}
                Some(found) => findings.push(wrong(
                    format!(
                        "the schema has version {found}; this program works with {VERSION} only"
                    ),
                    "run the fermata of that schema version, or name another keyspace",
                )),
                None => findings.push(wrong("the schema has no version", apply)),
            }
            findings.extend(judge_tables(driver, schema, apply).await?);
        }
    }
    findings.extend(judge_paxos(paxos_variant(driver).await?));
    Ok(findings)
}

fn judge_preference(datacenter: Option<&str>, known: &Datacenters) -> Option<Finding> {
    let name = datacenter.filter(|name| !known.is_empty() && !known.contains_key(*name))?;
    Some(advice(
        format!(
            "the preferred datacenter {name:?} does not exist; the cluster has {}",
            described(known)
        ),
        "name one of these in store.cassandra.datacenter (--datacenter), or none",
    ))
}

/// Whether the keyspace lives where its majority is to agree.
fn judge_local(copies: &Copies, options: &CassandraOptions) -> Option<Finding> {
    let name = options.datacenter.as_ref()?;
    let is_there = copies.is_simple || copies.lives_in.contains(name);
    (options.majority == Majority::OneDatacenter && !is_there).then(|| {
        wrong(
            format!(
                "the keyspace has no copies in the datacenter {name:?} of consistency local_quorum; it has them in {}",
                copies.lives_in.join(", ")
            ),
            "name one of these in store.cassandra.datacenter (--datacenter), or set store.cassandra.consistency \
             (--consistency) to quorum",
        )
    })
}

/// The variant of Paxos of the node that answers; `None` for ScyllaDB and Cassandra 4.0, which have no such setting.
async fn paxos_variant(driver: &Driver) -> Result<Option<String>, Fault> {
    let text = "SELECT value FROM system_views.settings WHERE name = ?";
    let statement = match driver.prepare(Use::AnyRead, text).await {
        Err(Fault::Refused(_)) => return Ok(None),
        prepared => prepared?,
    };
    let values = [Value::text("paxos_variant")];
    let row = driver
        .execute(&statement, &values)
        .await?
        .into_iter()
        .next();
    Ok(row.and_then(|mut row| row.text("value").ok().flatten()))
}

fn judge_paxos(variant: Option<String>) -> Option<Finding> {
    let other = variant.filter(|variant| variant != "v2")?;
    Some(advice(
        format!("the nodes have paxos_variant: {other}"),
        "v2 saves a round trip for each lock: set paxos_variant: v2 in cassandra.yaml of every node",
    ))
}

fn judge_copies(
    copies: &Copies,
    majority: Majority,
    keyspace: &Keyspace,
    datacenters: &Datacenters,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let total: u32 = copies.numbers.iter().sum();
    let alter = match fitting(datacenters) {
        // More copies than nodes would be none the safer.
        Some(_) if datacenters.values().sum::<usize>() < 3 => {
            "add nodes, and replicate to 3 of them".to_owned()
        }
        Some(fitting) => {
            format!(
                "ALTER KEYSPACE \"{keyspace}\" WITH replication = {fitting}, then nodetool repair"
            )
        }
        None => "replicate to 3 nodes at least, then nodetool repair".to_owned(),
    };
    if copies.is_simple {
        findings.push(advice(
            "the keyspace has SimpleStrategy, which does not know datacenters",
            format!("for production: {alter}"),
        ));
    }
    if total < 3 {
        findings.push(advice(
            format!("copies of each key: {total}; with fewer than 3 one lost node stops its locks"),
            alter,
        ));
    }
    // The copies of SimpleStrategy are wherever nodes are.
    let lives_in = match copies.is_simple {
        true => datacenters.len(),
        false => copies.numbers.iter().filter(|copies| **copies > 0).count(),
    };
    if majority == Majority::OneDatacenter && lives_in > 1 {
        findings.push(wrong(
            "the keyspace has copies in more than one datacenter, but consistency is local_quorum",
            "each datacenter would lock on its own: set store.cassandra.consistency (--consistency) to quorum",
        ));
    }
    findings
}

/// The tables that must be there, with the settings that matter.
async fn judge_tables(
    driver: &Driver,
    schema: &Schema,
    apply: &str,
) -> Result<Vec<Finding>, CassandraError> {
    let found = tables::found(driver, &schema.keyspace).await?;
    let mut findings = Vec::new();
    for (name, kind) in tables::all(&schema.tables, &schema.cell_tables) {
        let Some(table) = found.iter().find(|one| one.table == name) else {
            findings.push(wrong(format!("there is no table {name}"), apply));
            continue;
        };
        for Difference {
            is, why, is_unsafe, ..
        } in kind.differences(table)
        {
            let what = format!("{name} has {is}: {why}");
            findings.push(match is_unsafe {
                true => wrong(what, apply),
                false => advice(what, apply),
            });
        }
    }
    for (name, row) in &schema.row_tables {
        if let Some(fault) = row_table::fault(&row.name, driver).await? {
            let remedy = format!(
                "tables.{name}.row_table must name a table as of CREATE TABLE {} (key text, column1 text, value blob, \
                 PRIMARY KEY (key, column1)) WITH read_repair = 'BLOCKING'",
                row.name
            );
            findings.push(wrong(fault, remedy));
        }
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datacenters(all: &[(&str, usize)]) -> Datacenters {
        let all = all.iter().map(|(name, nodes)| ((*name).to_owned(), *nodes));
        all.collect()
    }

    fn judged(is_simple: bool, numbers: &[u32], majority: Majority, nodes: usize) -> Vec<Finding> {
        judged_in(is_simple, numbers, majority, &[("dc1", nodes)])
    }

    fn judged_in(
        is_simple: bool,
        numbers: &[u32],
        majority: Majority,
        all: &[(&str, usize)],
    ) -> Vec<Finding> {
        let numbers = numbers.to_vec();
        let copies = Copies {
            is_simple,
            numbers,
            lives_in: Vec::new(),
        };
        let keyspace = Keyspace::parse("k").unwrap();
        judge_copies(&copies, majority, &keyspace, &datacenters(all))
    }

    #[test]
    fn a_local_majority_is_wrong_wherever_the_copies_may_be_in_two_datacenters() {
        let two = [("dc1", 3), ("dc2", 3)];
        let is_wrong = |is_simple, numbers: &[u32], all: &[(&str, usize)]| {
            let found = judged_in(is_simple, numbers, Majority::OneDatacenter, all);
            found.iter().any(|one| one.weight == Weight::Wrong)
        };
        assert!(is_wrong(true, &[3], &two));
        assert!(!is_wrong(true, &[3], &two[..1]));
        // They may be in one of two.
        assert!(!is_wrong(false, &[3], &two));
        assert!(!is_wrong(false, &[3, 0], &two));
        assert!(is_wrong(false, &[3, 1], &two));
    }

    #[test]
    fn a_local_majority_is_wrong_where_the_keyspace_has_no_copies() {
        let copies = Copies {
            is_simple: false,
            numbers: vec![3],
            lives_in: vec!["dc1".to_owned()],
        };
        let keyspace = Keyspace::parse("k").unwrap();
        let judged = |datacenter: &str, majority| {
            let options = CassandraOptions {
                majority,
                datacenter: Some(datacenter.to_owned()),
                ..CassandraOptions::new(vec!["a".to_owned()], keyspace.clone())
            };
            judge_local(&copies, &options)
        };
        assert_eq!(judged("dc1", Majority::OneDatacenter), None);
        assert_eq!(judged("dc2", Majority::Everywhere), None);
        let found = judged("dc2", Majority::OneDatacenter).unwrap();
        assert_eq!(found.weight, Weight::Wrong);
        assert!(found.what.contains("it has them in dc1"), "{found}");
    }

    #[test]
    fn few_copies_are_advised_against_and_two_datacenters_with_local_majorities_are_wrong() {
        assert_eq!(judged(false, &[3], Majority::OneDatacenter, 3), []);
        assert_eq!(judged(false, &[3, 3], Majority::Everywhere, 3), []);
        let found = judged(false, &[3, 3], Majority::OneDatacenter, 3);
        assert_eq!(found[0].weight, Weight::Wrong);
        let found = judged(true, &[1], Majority::Everywhere, 3);
        assert_eq!(found.len(), 2);
        for one in found {
            let alter = "ALTER KEYSPACE \"k\" WITH replication = \
                         {'class': 'NetworkTopologyStrategy', 'dc1': 3}";
            assert!(one.remedy.contains(alter), "{one}");
        }
    }
}
