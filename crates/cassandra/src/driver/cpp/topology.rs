//! The nodes of a cluster, as one of them lists them.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cassandra_cpp::{CassErrorCode, CassResult, Consistency, LendingIterator as _};
use tokio::time::timeout;
use uuid::Uuid;

use super::link::{Link, not_started};
use super::outcome::{code_of, unanswered};
use super::ring::{Copies, Ring};
use super::settings::Settings;
use super::values::{bind, is_whole, rows};
use crate::driver::backend::{Silence, Unanswered};
use crate::driver::reach::addresses_of;
use crate::fault::{ConnectFault, Fault};
use crate::value::{Row, Value};

/// A node, as another one has it in its tables.
pub(super) struct NodeRow {
    pub id: Uuid,
    pub address: SocketAddr,
    pub datacenter: Option<Arc<str>>,
    pub tokens: Vec<i64>,
}

/// The nodes that there are, as this one tells; itself first, at this address, whatever address it has there.
pub(super) async fn nodes_by(
    settings: &Settings,
    link: &Link,
    at: SocketAddr,
) -> Result<Vec<NodeRow>, Unanswered> {
    let ask = |text| query(link, text, &[], settings.request_timeout);
    let of_itself = "SELECT host_id, data_center, tokens, rpc_address FROM system.local";
    // All listen on the port of the contact points: so does the other library take it. What they say of their ports is not
    // where a proxy is.
    let of_others = "SELECT host_id, data_center, tokens, native_address FROM system.peers_v2";
    let of_others_before = "SELECT host_id, data_center, tokens, rpc_address FROM system.peers";
    let mut nodes = nodes_in(&ask(of_itself).await?, Some(at.ip()), at.port())?;
    let others = match ask(of_others).await {
        // Such as ScyllaDB, which has no such table.
        Err(Unanswered {
            fault: Fault::Refused(_),
            ..
        }) => ask(of_others_before).await?,
        others => others?,
    };
    nodes.extend(nodes_in(&others, None, at.port())?);
    Ok(nodes)
}

/// What the cluster has, by its nodes and by the tables that this one tells of.
pub(super) async fn ring_by(
    settings: &Settings,
    link: &Link,
    nodes: &[NodeRow],
) -> Result<Ring, Unanswered> {
    let keyspace = [Value::text(&settings.keyspace)];
    let ask = |text| query(link, text, &keyspace, settings.request_timeout);
    let replication = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?";
    let replication = read(&ask(replication).await?)?.into_iter().next();
    let replication = replication.and_then(|mut row| row.map("replication").ok().flatten());
    let columns = "SELECT table_name, column_name, kind FROM system_schema.columns \
                   WHERE keyspace_name = ?";
    let mut keys = HashMap::new();
    for mut row in read(&ask(columns).await?)? {
        let mut text = |column| row.text(column).ok().flatten();
        let (table, name, kind) = (text("table_name"), text("column_name"), text("kind"));
        if let (Some(table), Some(name), Some("partition_key")) = (table, name, kind.as_deref()) {
            keys.insert(table, name);
        }
    }
    let tokens = nodes.iter();
    let tokens = tokens.flat_map(|node| node.tokens.iter().map(move |at| (*at, node.id)));
    let datacenters = nodes.iter();
    let datacenters =
        datacenters.filter_map(|node| Some((node.id, node.datacenter.as_deref()?.to_owned())));
    Ok(Ring::new(
        tokens,
        datacenters.collect(),
        Copies::parse(&replication.unwrap_or_default()),
        keys,
    ))
}

/// Executes what is no transaction at this node, at level ONE where that counts.
pub(super) async fn query(
    link: &Link,
    text: &str,
    values: &[Value],
    within: Duration,
) -> Result<CassResult, Unanswered> {
    let mut statement = link.statement(text);
    bind(&mut statement, values).map_err(|fault| Unanswered {
        fault,
        silence: Silence::Broken,
    })?;
    let unset = |error| not_started(error, Silence::Broken);
    statement.set_consistency(Consistency::ONE).map_err(unset)?;
    statement.set_statement_request_timeout(Some(within));
    let begun = Instant::now();
    statement.execute().await.map_err(|error| {
        let unanswered = unanswered(&error, begun.elapsed(), within);
        match (code_of(&error), unanswered.fault) {
            // Of a change of the schema: the node says that it would not, and never will.
            (Some(CassErrorCode::SERVER_CONFIG_ERROR), Fault::Unknown(why)) => Unanswered {
                fault: Fault::Refused(why),
                ..unanswered
            },
            (_, fault) => Unanswered {
                fault,
                ..unanswered
            },
        }
    })
}

pub(super) fn read(answer: &CassResult) -> Result<Vec<Row>, Unanswered> {
    rows(answer).map_err(Unanswered::unreadable)
}

/// The nodes of a list of them; who answered at `here` says so of itself.
fn nodes_in(
    answer: &CassResult,
    here: Option<IpAddr>,
    port: u16,
) -> Result<Vec<NodeRow>, Unanswered> {
    let unreadable = Unanswered::unreadable;
    let mut nodes = Vec::new();
    let mut rows = 0;
    let mut each = answer.iter();
    while let Some(row) = each.next() {
        rows += 1;
        let node = node_of(&row, here, port);
        let node = node.map_err(|error| unreadable(Fault::Unknown(error.to_string())))?;
        nodes.extend(node);
    }
    is_whole(answer, rows).map_err(unreadable)?;
    Ok(nodes)
}

/// The node of a row, unless it is about to join: it has no id or tokens yet.
fn node_of(
    row: &cassandra_cpp::Row<'_>,
    here: Option<IpAddr>,
    port: u16,
) -> Result<Option<NodeRow>, cassandra_cpp::Error> {
    let (id, datacenter, all) = (row.get_column(0)?, row.get_column(1)?, row.get_column(2)?);
    let address = row.get_column(3)?;
    if [&id, &all, &address].iter().any(|column| column.is_null()) {
        return Ok(None);
    }
    let mut tokens = Vec::new();
    let mut texts = all.get_set()?;
    while let Some(text) = texts.next() {
        tokens.extend(text.get_str()?.parse::<i64>());
    }
    let ip = match here {
        Some(here) => here,
        None => IpAddr::from(&address.get_inet()?),
    };
    Ok(Some(NodeRow {
        id: id.get_uuid()?.into(),
        address: SocketAddr::new(ip, port),
        datacenter: datacenter.get_string().ok().map(Arc::from),
        tokens,
    }))
}

/// The addresses of these nodes, and the port of all.
pub(super) async fn resolved(
    contact_points: &[String],
    within: Duration,
) -> Result<(u16, Vec<IpAddr>), ConnectFault> {
    let mut addresses = Vec::<SocketAddr>::new();
    let mut failed = None;
    for point in contact_points {
        let found = timeout(within, addresses_of(point)).await;
        let found = found.unwrap_or_else(|late| Err(late.into()));
        match found {
            Ok(found) => addresses.extend(found),
            Err(error) => failed = Some(format!("{point}: {error}")),
        }
    }
    let Some(port) = addresses.first().map(SocketAddr::port) else {
        return Err(ConnectFault::Unreachable(failed.unwrap_or_default()));
    };
    one_port(addresses.iter(), port)?;
    Ok((port, addresses.iter().map(SocketAddr::ip).collect()))
}

/// That all nodes listen on the same port: the library knows one.
fn one_port<'a>(
    mut addresses: impl Iterator<Item = &'a SocketAddr>,
    port: u16,
) -> Result<(), ConnectFault> {
    match addresses.all(|address| address.port() == port) {
        true => Ok(()),
        false => Err(ConnectFault::Settings(
            "the nodes listen on different ports; the driver cassandra-cpp needs the same port on all nodes"
                .to_owned(),
        )),
    }
}
