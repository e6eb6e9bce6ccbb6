//! The nodes of each partition. The library knows them, but does not expose them.

use std::collections::{HashMap, HashSet};

use scylla::routing::partitioner::{Murmur3Partitioner, Partitioner as _, PartitionerHasher as _};
use uuid::Uuid;

use crate::value::Value;

/// What tables and nodes the cluster has, as was read last.
#[derive(Debug, Default)]
pub(super) struct Ring {
    /// Ordered by token.
    tokens: Vec<(i64, Uuid)>,
    datacenters: HashMap<Uuid, String>,
    copies: Copies,
    /// How many nodes have each partition, of those that there are.
    replicas: usize,
    /// The partition key of each table: one column.
    partition_keys: HashMap<String, String>,
}

/// How many nodes have each partition.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Copies {
    /// So many, wherever they are.
    Anywhere(usize),
    /// So many in each datacenter.
    OfDatacenter(HashMap<String, usize>),
}

impl Default for Copies {
    /// Nothing is known.
    fn default() -> Copies {
        Copies::Anywhere(0)
    }
}

impl Copies {
    /// By the `replication` of a keyspace.
    pub(super) fn parse(replication: &[(String, String)]) -> Copies {
        // `3/1` is three copies, one of which is transient.
        let number = |text: &str| text.split('/').next()?.trim().parse().ok();
        let value = |name: &str| replication.iter().find(|(one, _)| one == name);
        match value("replication_factor").and_then(|(_, text)| number(text)) {
            Some(copies) => Copies::Anywhere(copies),
            None => Copies::OfDatacenter(
                replication
                    .iter()
                    .filter_map(|(name, text)| Some((name.clone(), number(text)?)))
                    .collect(),
            ),
        }
    }
}

impl Ring {
    pub(super) fn new(
        tokens: impl IntoIterator<Item = (i64, Uuid)>,
        datacenters: HashMap<Uuid, String>,
        copies: Copies,
        partition_keys: HashMap<String, String>,
    ) -> Ring {
        let mut tokens: Vec<_> = tokens.into_iter().collect();
        tokens.sort_unstable();
        let nodes: HashSet<Uuid> = tokens.iter().map(|(_, node)| *node).collect();
        let replicas = match &copies {
            Copies::Anywhere(copies) => (*copies).min(nodes.len()),
            Copies::OfDatacenter(copies) => {
                let of = |name: &String| {
                    let is_of = |node: &&Uuid| datacenters.get(node) == Some(name);
                    nodes.iter().filter(is_of).count()
                };
                let each = copies.iter().map(|(name, copies)| (*copies).min(of(name)));
                each.sum()
            }
        };
        Ring {
            tokens,
            datacenters,
            copies,
            replicas,
            partition_keys,
        }
    }

    pub(super) fn tokens(&self) -> impl Iterator<Item = i64> {
        self.tokens.iter().map(|(token, _)| *token)
    }

    /// Whether there was such a table.
    pub(super) fn knows(&self, table: &str) -> bool {
        self.partition_keys.contains_key(table)
    }

    /// Where the value of a table's partition key is among the parameters of a statement, if it is.
    pub(super) fn partition_of(&self, table: &str, parameters: &[String]) -> Option<usize> {
        let key = self.partition_keys.get(table)?;
        parameters.iter().position(|name| name == key)
    }

    /// The nodes that have a partition, in the order of the ring. (Racks are not regarded: where they differ, some of these
    /// nodes have to ask others for the partition.)
    pub(super) fn replicas(&self, token: i64) -> Vec<Uuid> {
        let from = self.tokens.partition_point(|(at, _)| *at < token);
        let around = self.tokens[from..].iter().chain(&self.tokens[..from]);
        let mut replicas = Vec::new();
        let mut of_datacenter = HashMap::<&str, usize>::new();
        for (_, node) in around {
            if replicas.len() >= self.replicas {
                break;
            }
            if replicas.contains(node) {
                continue;
            }
            let datacenter = self.datacenters.get(node).map_or("", String::as_str);
            let has = of_datacenter.entry(datacenter).or_default();
            let takes_it = match &self.copies {
                Copies::Anywhere(_) => true,
                Copies::OfDatacenter(copies) => {
                    *has < copies.get(datacenter).copied().unwrap_or_default()
                }
            };
            if takes_it {
                *has += 1;
                replicas.push(*node);
            }
        }
        replicas
    }
}

/// The token of a partition, by the value of its key; nothing where that is of a kind that no partition key of ours has.
pub(super) fn token(key: &Value) -> Option<i64> {
    let bytes = bytes_of(key)?;
    if bytes.is_empty() {
        return Some(i64::MIN);
    }
    let mut hasher = Murmur3Partitioner.build_hasher();
    hasher.write(&bytes);
    Some(hasher.finish().value())
}

fn bytes_of(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::Text(text) => Some(text.as_bytes().to_vec()),
        Value::Uuid(id) => Some(id.as_bytes().to_vec()),
        _ => None,
    }
}

/// The table of this keyspace that a statement is about: the one that it names first.
pub(super) fn table_of<'a>(text: &'a str, keyspace: &str) -> Option<&'a str> {
    let prefix = format!("\"{keyspace}\".\"");
    let name = &text[text.find(&prefix)? + prefix.len()..];
    name.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    fn ring(datacenters: &[&str], copies: Copies) -> Ring {
        let tokens = (0..datacenters.len()).map(|at| (at as i64 * 10, id(at as u128)));
        let datacenters = datacenters.iter().enumerate();
        let datacenters = datacenters.map(|(at, name)| (id(at as u128), (*name).to_owned()));
        let keys = HashMap::from([("one".to_owned(), "key".to_owned())]);
        Ring::new(tokens, datacenters.collect(), copies, keys)
    }

    fn texts(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = pairs
            .iter()
            .map(|(a, b)| (String::from(*a), String::from(*b)));
        owned.collect()
    }

    #[test]
    fn copies_are_read_from_a_keyspace() {
        let simple = texts(&[("class", "SimpleStrategy"), ("replication_factor", "3")]);
        assert_eq!(Copies::parse(&simple), Copies::Anywhere(3));
        let network = texts(&[
            ("class", "NetworkTopologyStrategy"),
            ("a", "3/1"),
            ("b", "2"),
        ]);
        let of_each = HashMap::from([("a".to_owned(), 3), ("b".to_owned(), 2)]);
        assert_eq!(Copies::parse(&network), Copies::OfDatacenter(of_each));
    }

    #[test]
    fn replicas_are_those_after_the_token_around_the_ring() {
        let four = ring(&["a"; 4], Copies::Anywhere(3));
        assert_eq!(four.replicas(10), [id(1), id(2), id(3)]);
        assert_eq!(four.replicas(11), [id(2), id(3), id(0)]);
        assert_eq!(four.replicas(i64::MAX), [id(0), id(1), id(2)]);
        let of_each = HashMap::from([("a".to_owned(), 1), ("b".to_owned(), 2)]);
        let two = ring(&["a", "b", "a", "b", "c"], Copies::OfDatacenter(of_each));
        assert_eq!(two.replicas(5), [id(1), id(2), id(3)]);
        let of_each = HashMap::from([("a".to_owned(), 3), ("gone".to_owned(), 3)]);
        let fewer = ring(&["a", "b", "a"], Copies::OfDatacenter(of_each));
        assert_eq!(fewer.replicas(5), [id(2), id(0)]);
        assert_eq!(
            ring(&["a"; 2], Copies::Anywhere(3)).replicas(5),
            [id(1), id(0)]
        );
    }

    #[test]
    fn the_partition_key_is_found_among_the_parameters() {
        let ring = ring(&["a"], Copies::Anywhere(1));
        let named = |names: &[&str]| -> Vec<String> {
            names.iter().map(|name| String::from(*name)).collect()
        };
        let found = ring.partition_of("one", &named(&["a", "x", "key", "key"]));
        assert_eq!(found, Some(2));
        assert_eq!(ring.partition_of("one", &named(&["a"])), None);
        assert_eq!(ring.partition_of("three", &named(&["key"])), None);
    }

    #[test]
    fn tokens_are_those_of_cassandra() {
        // SELECT token(keyspace_name) FROM system_schema.keyspaces of Cassandra 5.0.8. It has no partition of an empty key.
        for (key, of) in [
            ("system", 2_008_276_574_632_865_675),
            ("system_auth", -5_882_736_283_116_946_676),
            ("system_distributed", 1_877_167_950_303_559_708),
        ] {
            assert_eq!(token(&Value::text(key)), Some(of), "{key}");
        }
        assert_eq!(token(&Value::text("")), Some(i64::MIN));
        assert_eq!(token(&Value::Map(Vec::new())), None);
    }

    #[test]
    fn the_table_is_the_first_one_that_is_named() {
        let text = "SELECT * FROM \"f\".\"lock_default\" WHERE \"key\" = ?";
        assert_eq!(table_of(text, "f"), Some("lock_default"));
        assert_eq!(table_of(text, "g"), None);
    }
}
