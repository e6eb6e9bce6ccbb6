//! The replication of a keyspace: as a command asks for it, and as a cluster has it.

use std::collections::BTreeMap;
use std::fmt;

use fermata_cassandra::{Driver, Fault, Keyspace, Use, Value};

use super::tables::unreadable;

/// The datacenters of a cluster, and how many nodes each has.
pub(super) type Datacenters = BTreeMap<String, usize>;

/// So many copies outlive the loss of one.
const COPIES_SAFE: u8 = 3;

/// How many copies of the data there are, and where. Named by whoever makes the keyspace: there is no default
/// that would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replication {
    /// So many in each datacenter.
    Datacenters(Vec<(String, u8)>),
    /// So many anywhere, datacenters unseen: for trying things out.
    Simple(u8),
}

/// Why a text is no replication.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither DATACENTER=COPIES[,DATACENTER=COPIES…] nor simple=COPIES")]
pub struct ReplicationError(String);

impl std::str::FromStr for Replication {
    type Err = ReplicationError;

    fn from_str(text: &str) -> Result<Replication, ReplicationError> {
        let wrong = || ReplicationError(text.to_owned());
        let mut datacenters = Vec::new();
        for part in text.split(',') {
            let (name, copies) = part.split_once('=').ok_or_else(wrong)?;
            let copies: u8 = copies.parse().map_err(|_| wrong())?;
            let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
            let known = datacenters.iter().any(|(other, _)| other == name);
            if copies == 0 || name.is_empty() || !name.bytes().all(fits) || known {
                return Err(wrong());
            }
            datacenters.push((name.to_owned(), copies));
        }
        match datacenters.as_slice() {
            [(name, copies)] if name == "simple" => Ok(Replication::Simple(*copies)),
            all if all.iter().any(|(name, _)| name == "simple") => Err(wrong()),
            _ => Ok(Replication::Datacenters(datacenters)),
        }
    }
}

impl fmt::Display for Replication {
    /// As CQL.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Replication::Simple(copies) => {
                write!(
                    f,
                    "{{'class': 'SimpleStrategy', 'replication_factor': {copies}}}"
                )
            }
            Replication::Datacenters(datacenters) => {
                f.write_str("{'class': 'NetworkTopologyStrategy'")?;
                for (name, copies) in datacenters {
                    write!(f, ", '{name}': {copies}")?;
                }
                f.write_str("}")
            }
        }
    }
}

/// What there is, in words.
pub(super) fn described(known: &Datacenters) -> String {
    let one = |(name, nodes): (&String, &usize)| match nodes {
        1 => format!("{name} (1 node)"),
        nodes => format!("{name} ({nodes} nodes)"),
    };
    match known.is_empty() {
        true => "none".to_owned(),
        false => known.iter().map(one).collect::<Vec<_>>().join(", "),
    }
}

/// What would fit a cluster: three copies in each datacenter, or as many as it has nodes.
pub(super) fn fitting(known: &Datacenters) -> Option<Replication> {
    let copies = |nodes: usize| u8::try_from(nodes).map_or(COPIES_SAFE, |n| n.min(COPIES_SAFE));
    let all = known
        .iter()
        .map(|(name, nodes)| (name.clone(), copies(*nodes)));
    (!known.is_empty()).then(|| Replication::Datacenters(all.collect()))
}

/// The same as one writes it.
pub(super) fn example(known: &Datacenters) -> String {
    match fitting(known) {
        Some(Replication::Datacenters(all)) => {
            let one = |(name, copies): &(String, u8)| format!("{name}={copies}");
            all.iter().map(one).collect::<Vec<_>>().join(",")
        }
        Some(Replication::Simple(_)) | None => "DATACENTER=3".to_owned(),
    }
}

/// The copies that a keyspace has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Copies {
    /// Whether datacenters are unseen.
    pub is_simple: bool,
    /// In each datacenter, or in all.
    pub numbers: Vec<u32>,
    /// Those that have any, where datacenters are seen.
    pub lives_in: Vec<String>,
}

impl Copies {
    /// Of this keyspace; `None` where there is none.
    pub async fn of(driver: &Driver, keyspace: &Keyspace) -> Result<Option<Copies>, Fault> {
        let text = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?";
        let statement = driver.prepare(Use::Read, text).await?;
        let values = [Value::text(keyspace.as_str())];
        let rows = driver.execute(&statement, &values).await?;
        let map = rows.into_iter().next();
        let map = map.map(|mut row| row.map("replication")).transpose();
        let map = map.map_err(unreadable)?;
        Ok(map.flatten().map(|map| Copies::described(&map)))
    }

    /// As the cluster tells them: the strategy and its numbers.
    fn described(map: &[(String, String)]) -> Copies {
        let class = map.iter().find(|(name, _)| name == "class");
        let numbers = map.iter().filter(|(name, _)| name != "class");
        let numbers: Vec<(&String, u32)> = numbers
            .filter_map(|(name, n)| Some((name, n.parse().ok()?)))
            .collect();
        let is_simple = class.is_some_and(|(_, class)| class.ends_with("SimpleStrategy"));
        let having = numbers.iter().filter(|(_, n)| *n > 0 && !is_simple);
        Copies {
            is_simple,
            lives_in: having.map(|(name, _)| (*name).clone()).collect(),
            numbers: numbers.iter().map(|(_, n)| *n).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replication_is_named_and_cannot_carry_cql() {
        let parsed = |text: &str| text.parse::<Replication>().map(|r| r.to_string());
        assert_eq!(
            parsed("dc1=3,eu-west=2").as_deref(),
            Ok("{'class': 'NetworkTopologyStrategy', 'dc1': 3, 'eu-west': 2}")
        );
        assert_eq!(
            parsed("simple=1").as_deref(),
            Ok("{'class': 'SimpleStrategy', 'replication_factor': 1}")
        );
        for bad in [
            "",
            "3",
            "dc1=0",
            "dc1=x",
            "a=1,a=2",
            "simple=1,a=1",
            "a'=1",
            "=1",
            "a=1,",
        ] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_copies_are_read_as_the_cluster_tells_them() {
        let described = |pairs: &[(&str, &str)]| {
            let pairs = pairs
                .iter()
                .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()));
            Copies::described(&pairs.collect::<Vec<_>>())
        };
        let class = "org.apache.cassandra.locator.NetworkTopologyStrategy";
        let two = described(&[("class", class), ("dc1", "3"), ("dc2", "2")]);
        assert_eq!((two.is_simple, two.numbers), (false, vec![3, 2]));
        let simple = described(&[("class", "SimpleStrategy"), ("replication_factor", "1")]);
        assert_eq!((simple.is_simple, simple.numbers), (true, vec![1]));
    }
}
