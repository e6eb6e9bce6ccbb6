//! A prepared statement: the choice of its nodes, its attempts, and its outcome.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use cassandra_cpp::{CassErrorCode, CassResult, PreparedStatement, Statement as Bound};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::timeout;
use uuid::Uuid;

use super::link::not_started;
use super::outcome::{another_may, code_of, if_begun, merged, unanswered};
use super::shared::Shared;
use super::values::{bind, rows};
use super::{ring, topology};
use crate::driver::backend::{
    Boxed, Coordinator, Execution, Page, PageMark, Prepared, SECOND_NODE_AFTER, Silence, Unanswered,
};
use crate::fault::Fault;
use crate::options::Majority;
use crate::value::{Row, Value};

/// How many nodes are asked at most, one after the other, where those before were not reached or failed: as many as usually have
/// a copy.
const TRIES_MAX: usize = 3;

/// A statement. Nodes that had no part in preparing it prepare it when it is first sent there.
#[derive(Debug)]
pub(super) struct PreparedByCpp {
    shared: Arc<Shared>,
    text: Arc<str>,
    execution: Execution,
    /// Its table, if that is of the keyspace, and the names of its parameters.
    table: Option<String>,
    parameters: Vec<String>,
    /// Which of the parameters is the partition key, once that is known.
    partition: OnceLock<usize>,
}

/// Which rows of an answer are asked for: so many at most, from there on.
type Paging<'a> = (i32, Option<&'a PageMark>);

/// What came of asking one node.
struct Failed {
    unanswered: Unanswered,
    /// Whether another node may well answer.
    another_may: bool,
}

impl From<Unanswered> for Failed {
    /// Nothing was sent.
    fn from(unanswered: Unanswered) -> Failed {
        Failed {
            another_may: !matches!(unanswered.fault, Fault::Refused(_)),
            unanswered,
        }
    }
}

impl PreparedByCpp {
    /// Prepares a statement at some nodes now, to hear whether it can be; those that answer later than the first one have it
    /// as well, then.
    pub(super) async fn prepare(
        shared: &Arc<Shared>,
        text: Arc<str>,
        execution: Execution,
    ) -> Result<PreparedByCpp, Fault> {
        let mut nodes = shared.members.coordinators(None);
        nodes.retain(|at| at.is_connected);
        let tries = nodes.into_iter().take(TRIES_MAX).map(|at| {
            let (shared, text) = (Arc::clone(shared), Arc::clone(&text));
            tokio::spawn(async move {
                let link = shared.members.link(at.id)?;
                let prepared = link.prepared(&text, shared.request_timeout).await?;
                Ok::<_, Unanswered>(parameters_of(&prepared))
            })
        });
        let mut tries: FuturesUnordered<_> = tries.collect();
        let mut refused = Fault::NotStarted("no node is connected".to_owned());
        let parameters = loop {
            match tries.next().await {
                Some(Ok(Ok(parameters))) => break parameters,
                // One whose schema is older than the others' may refuse what they do not.
                Some(Ok(Err(unanswered))) => refused = unanswered.fault,
                Some(Err(ended)) => refused = Fault::NotStarted(ended.to_string()),
                None => return Err(refused),
            }
        };
        let table = ring::table_of(&text, &shared.keyspace).map(str::to_owned);
        let is_known = |table: &String| shared.members.ring().knows(table);
        if !table.as_ref().is_none_or(is_known) {
            // Another process has just made it. Where no node tells of it in time, one does later.
            shared.members.known_anew(shared.request_timeout / 2).await;
        }
        Ok(PreparedByCpp {
            shared: Arc::clone(shared),
            text,
            execution,
            table,
            parameters,
            partition: OnceLock::new(),
        })
    }

    fn bound(
        &self,
        prepared: &PreparedStatement,
        values: &[Value],
        paging: Option<Paging<'_>>,
        within: Duration,
    ) -> Result<Bound, Unanswered> {
        let shared = &self.shared;
        let mut bound = prepared.bind();
        let unset = |error| not_started(error, Silence::Broken);
        let level = shared.consistency(self.execution.level);
        bound.set_consistency(level).map_err(unset)?;
        let serial = shared.serial_consistency(self.execution.level);
        bound.set_serial_consistency(serial).map_err(unset)?;
        bound.set_statement_request_timeout(Some(within));
        if let Some((page_rows, from)) = paging {
            bound.set_paging_size(page_rows.max(1)).map_err(unset)?;
            if let Some(mark) = from {
                bound.set_paging_state_token(&mark.0).map_err(unset)?;
            }
        }
        bind(&mut bound, values).map_err(|fault| Unanswered {
            fault,
            silence: Silence::Broken,
        })?;
        Ok(bound)
    }

    /// Executes it once, at this node.
    async fn result_at(
        &self,
        node: Uuid,
        values: &[Value],
        paging: Option<Paging<'_>>,
    ) -> Result<CassResult, Failed> {
        let shared = &self.shared;
        let within = shared.request_timeout;
        // Before all that is made with it: see there.
        let link = shared.members.link(node)?;
        let begun = Instant::now();
        let prepared = link.prepared(&self.text, within).await?;
        let left = within.saturating_sub(begun.elapsed());
        // To the library 0 ms would be no limit.
        if left.as_millis() == 0 {
            let why = "preparing a statement took too long";
            return Err(not_started(why, Silence::TimedOut).into());
        }
        let bound = self.bound(&prepared, values, paging, left)?;
        let sent = Instant::now();
        let error = match timeout(left, bound.execute()).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => error,
            Err(_) => {
                let unanswered = Unanswered {
                    fault: Fault::Unknown("the node did not answer in time".to_owned()),
                    silence: Silence::TimedOut,
                };
                return Err(Failed {
                    unanswered,
                    another_may: true,
                });
            }
        };
        if code_of(&error) == Some(CassErrorCode::LIB_UNEXPECTED_RESPONSE) {
            link.forget(&self.text);
        }
        let mut unanswered = unanswered(&error, sent.elapsed(), left);
        if code_of(&error) == Some(CassErrorCode::LIB_NO_HOSTS_AVAILABLE) {
            shared.members.not_connected(node, &link);
            unanswered = if_begun(unanswered, self.execution);
        }
        Err(Failed {
            another_may: another_may(&error, &unanswered.fault),
            unanswered,
        })
    }

    /// The nodes that have a partition, if it is known which that is.
    fn of_partition(&self, values: &[Value]) -> Option<Vec<Coordinator>> {
        let members = &self.shared.members;
        let ring = members.ring();
        let partition = match self.partition.get() {
            Some(partition) => *partition,
            None => {
                let table = self.table.as_deref()?;
                if !ring.knows(table) {
                    // It is prepared, so the table is there.
                    members.ask_soon();
                }
                let found = ring.partition_of(table, &self.parameters)?;
                *self.partition.get_or_init(|| found)
            }
        };
        let token = ring::token(values.get(partition)?)?;
        Some(members.coordinators(Some(&ring.replicas(token))))
    }

    /// Who is asked, one after the other, where it may be anybody: the preferred one first.
    fn order(&self, values: &[Value]) -> Vec<Coordinator> {
        let shared = &self.shared;
        let of_partition = self.of_partition(values);
        // Where none of them is connected any node may pass it on, should one of them come back.
        let of_partition = of_partition.filter(|nodes| nodes.iter().any(|at| at.is_connected));
        let is_of_partition = of_partition.is_some();
        let mut nodes = of_partition.unwrap_or_else(|| shared.members.coordinators(None));
        nodes.sort_by_key(|at| at.id);
        let (mut near, far): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|at| at.is_near);
        let known: Vec<(Uuid, bool)> = near.iter().map(|at| (at.id, at.is_connected)).collect();
        let turn = shared.turns.fetch_add(1, Ordering::Relaxed);
        // Where it is not said which one is near, nor is it known here.
        let first = match is_of_partition && shared.members.are_together(&near) {
            true => shared.preferred.choose(&known),
            false => Some(turn % near.len().max(1)),
        };
        near.rotate_left(first.unwrap_or_default());
        if shared.majority == Majority::Everywhere {
            near.extend(far);
        }
        near.retain(|at| at.is_connected);
        near
    }

    /// What the first node answers that does; one that is slow is not waited for alone.
    async fn repeated(
        &self,
        values: &[Value],
        paging: Option<Paging<'_>>,
    ) -> Result<CassResult, Fault> {
        let _in_flight = self.shared.preferred.begin();
        let order = self.order(values);
        let mut order = order.iter().take(TRIES_MAX);
        let mut may_ask = true;
        let mut asked = FuturesUnordered::new();
        let mut refused = Fault::NotStarted("no node for this request is connected".to_owned());
        loop {
            if asked.is_empty() {
                match order.next().filter(|_| may_ask) {
                    Some(at) => asked.push(self.result_at(at.id, values, paging)),
                    None => return Err(refused),
                }
            }
            let may_ask_more = may_ask && asked.len() == 1 && order.len() > 0;
            tokio::select! {
                Some(answer) = asked.next() => match answer {
                    Ok(answer) => return Ok(answer),
                    Err(Failed { unanswered, another_may }) => {
                        may_ask &= another_may;
                        let is_other_asked = !asked.is_empty();
                        let sending = self.execution.sending;
                        refused = merged(refused, unanswered.fault, sending, is_other_asked);
                        if matches!(refused, Fault::Refused(_)) {
                            return Err(refused);
                        }
                    }
                },
                () = tokio::time::sleep(SECOND_NODE_AFTER), if may_ask_more => {
                    if let Some(at) = order.next() {
                        asked.push(self.result_at(at.id, values, paging));
                    }
                }
            }
        }
    }

    /// The same, in time.
    async fn in_time(
        &self,
        values: &[Value],
        paging: Option<Paging<'_>>,
    ) -> Result<CassResult, Fault> {
        let all = timeout(self.shared.request_timeout, self.repeated(values, paging));
        match all.await {
            Ok(answer) => answer,
            Err(_) => Err(Fault::Unknown("no node answered in time".to_owned())),
        }
    }
}

impl Prepared for PreparedByCpp {
    fn replicas(&self, values: &[Value]) -> Result<Vec<Coordinator>, Fault> {
        self.of_partition(values).ok_or_else(|| {
            Fault::NotStarted("the statement names no partition of a known table".to_owned())
        })
    }

    fn execute<'a>(&'a self, values: &'a [Value]) -> Boxed<'a, Result<Vec<Row>, Fault>> {
        Box::pin(async move { rows(&self.in_time(values, None).await?) })
    }

    fn execute_at<'a>(
        &'a self,
        to: &'a Coordinator,
        values: &'a [Value],
    ) -> Boxed<'a, Result<Vec<Row>, Unanswered>> {
        Box::pin(async move {
            let answer = self.result_at(to.id, values, None).await;
            topology::read(&answer.map_err(|failed| failed.unanswered)?)
        })
    }

    fn page<'a>(
        &'a self,
        values: &'a [Value],
        page_rows: i32,
        from: Option<PageMark>,
    ) -> Boxed<'a, Result<Page, Fault>> {
        Box::pin(async move {
            let answer = self
                .in_time(values, Some((page_rows, from.as_ref())))
                .await?;
            let next = answer.paging_state_token();
            let next =
                next.map_err(|error| Fault::Unknown(format!("an answer cannot be read: {error}")))?;
            Ok((rows(&answer)?, next.map(|mark| PageMark(mark.into()))))
        })
    }
}

fn parameters_of(prepared: &PreparedStatement) -> Vec<String> {
    let names = (0..).map_while(|at| prepared.parameter_name(at).ok().map(str::to_owned));
    names.collect()
}
