//! Replicas, their states and heartbeats (H2).
//!
//! All rows are in one partition, which is read by its key: what every replica must read in order to go on then
//! needs a majority of the nodes of that partition, and not of every range of tokens.
//!
//! A cell is written in one of two ways, never in both. Heartbeats are plain writes of one cell by the replica itself;
//! their timestamp is their number, so that no coordinator's clock can put an earlier one over a later one. All else is
//! written by lightweight transactions on `state`:
//!
//! | `state` | means |
//! |---|---|
//! | n > 0 | up, for the n-th time |
//! | -1 | down |
//! | -2 | stopped |
//! | null | no row: never announced, or forgotten; a late heartbeat may have left its cell |

use fermata_cassandra::{Fault, Row, Value, present};

use super::CassandraStore;
use super::codec::{bigint, number};
use super::rows::applied;
use super::statements::Cql;
use crate::lock::ReplicaId;
use crate::store::{
    ENDED_REPLICAS_MAX, REPLICAS_MAX, ReplicaRow, ReplicaState, StateSwap, StoreError,
    too_many_replicas,
};

/// The partition of all replicas.
const PART: &str = "replicas";
const DOWN: i32 = -1;
const STOPPED: i32 = -2;
/// A state that is not up is below this.
const UP_ABOVE: i32 = 0;
/// How many rows a replica deletes when it starts. Each start adds one.
const FORGOTTEN_AT_START_MAX: usize = 16;

/// A row of a replica as it was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FoundRow {
    /// It was announced, and not forgotten.
    Row(ReplicaRow),
    /// It has no state.
    Half(ReplicaId),
}

impl CassandraStore {
    pub(super) async fn announce(&self, row: &ReplicaRow) -> Result<(), StoreError> {
        let state = encode(row.state)?;
        let values = [
            Value::text(&row.name),
            Value::text(&row.zone),
            Value::text(&row.address),
            Value::text(&row.peer_address),
            Value::text(&row.version),
            Value::Timestamp(row.started_at_ms),
            Value::Int(row.ttl_ms.cast_signed()),
            Value::Int(state),
            Value::text(PART),
            Value::Uuid(row.id.0),
        ];
        let answer = answered(self.ask(Cql::Announce, &values).await?)?;
        if let StateAnswer::Met(met) = answer
            && met != Some(row.state)
        {
            let id = row.id;
            return Err(StoreError::Unavailable(format!(
                "the replica {id} was announced before, and its state is {met:?} by now"
            )));
        }
        self.write_heartbeat(row.id, row.heartbeat).await?;
        if let Err(error) = self.forget_unlisted().await {
            tracing::debug!(%error, "cannot delete rows of replicas that are not listed");
        }
        Ok(())
    }

    pub(super) async fn write_heartbeat(
        &self,
        id: ReplicaId,
        heartbeat: u64,
    ) -> Result<(), StoreError> {
        let heartbeat = bigint(heartbeat)?;
        let values = [
            Value::BigInt(heartbeat),
            Value::BigInt(heartbeat),
            Value::text(PART),
            Value::Uuid(id.0),
        ];
        self.ask(Cql::Heartbeat, &values).await?;
        Ok(())
    }

    pub(super) async fn change_state(
        &self,
        id: ReplicaId,
        expected: ReplicaState,
        next: ReplicaState,
    ) -> StateSwap {
        let (expected, next) = match (encode(expected), encode(next)) {
            (Ok(expected), Ok(next)) => (expected, next),
            (Err(error), _) | (_, Err(error)) => return StateSwap::NotStarted(error),
        };
        let values = [
            Value::Int(next),
            Value::text(PART),
            Value::Uuid(id.0),
            Value::Int(expected),
        ];
        match self.ask(Cql::SwapLife, &values).await.and_then(answered) {
            Ok(StateAnswer::Applied) => StateSwap::Applied,
            Ok(StateAnswer::Met(state)) => StateSwap::Conflict(state),
            Err(fault) if fault.is_unknown() => StateSwap::Unknown(fault.into()),
            Err(fault) => StateSwap::NotStarted(fault.into()),
        }
    }

    pub(super) async fn delete_replica(&self, id: ReplicaId) -> Result<(), StoreError> {
        let values = [Value::text(PART), Value::Uuid(id.0), Value::Int(UP_ABOVE)];
        self.ask_if(Cql::ForgetReplica, &values).await?;
        Ok(())
    }

    /// Deletes rows that are not listed: what heartbeats left of rows that were forgotten, since a replica that slept
    /// through that may send another one, and the rows of more ended replicas than are listed.
    async fn forget_unlisted(&self) -> Result<(), StoreError> {
        let (mut half, mut ended) = (Vec::new(), Vec::new());
        let mut listed = 0;
        self.each_replica(|found| {
            match found {
                FoundRow::Half(id) => half.push(id),
                FoundRow::Row(row) if matches!(row.state, ReplicaState::Up(_)) => {}
                FoundRow::Row(_) if listed < ENDED_REPLICAS_MAX => listed += 1,
                FoundRow::Row(row) => ended.push(row.id),
            }
            half.truncate(FORGOTTEN_AT_START_MAX);
            ended.truncate(FORGOTTEN_AT_START_MAX);
            Ok(())
        })
        .await?;
        for id in half {
            let values = [Value::text(PART), Value::Uuid(id.0)];
            self.ask_if(Cql::ForgetHalfReplica, &values).await?;
        }
        for id in ended {
            self.delete_replica(id).await?;
        }
        Ok(())
    }

    pub(super) async fn replicas(&self) -> Result<Vec<ReplicaRow>, StoreError> {
        let mut replicas = Vec::new();
        let (mut up, mut ended) = (0, 0);
        self.each_replica(|found| {
            let FoundRow::Row(row) = found else {
                return Ok(());
            };
            match row.state {
                ReplicaState::Up(_) if up == REPLICAS_MAX => return Err(too_many_replicas()),
                ReplicaState::Up(_) => up += 1,
                ReplicaState::Down | ReplicaState::Stopped if ended == ENDED_REPLICAS_MAX => {
                    return Ok(());
                }
                ReplicaState::Down | ReplicaState::Stopped => ended += 1,
            }
            replicas.push(row);
            Ok(())
        })
        .await?;
        // Cassandra orders ids of some versions by the time in them.
        replicas.sort_unstable_by_key(|replica: &ReplicaRow| replica.id);
        Ok(replicas)
    }

    /// Reads the whole partition.
    async fn each_replica(
        &self,
        mut visit: impl FnMut(FoundRow) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let statement = self.statement(Cql::Replicas).await?;
        let values = [Value::text(PART)];
        let page_rows = i32::from(self.page_rows);
        let mut next = None;
        loop {
            let page = self.cluster.page(&statement, &values, page_rows, next);
            let (rows, more) = page.await?;
            for row in rows {
                visit(decode(row)?)?;
            }
            match more {
                Some(more) => next = Some(more),
                None => return Ok(()),
            }
        }
    }
}

/// What came of a transaction on a state.
#[derive(Debug, PartialEq, Eq)]
enum StateAnswer {
    Applied,
    /// The state is this one.
    Met(Option<ReplicaState>),
}

/// The answer to a transaction on a state: what was met comes with it.
fn answered(rows: Vec<Row>) -> Result<StateAnswer, Fault> {
    let mut met = rows.first().cloned();
    if applied(rows)? {
        return Ok(StateAnswer::Applied);
    }
    let state = met.as_mut().map_or(Ok(None), |row| row.int("state"));
    let state = state.map_err(StoreError::from);
    let state = state.and_then(|state| state.map(state_of).transpose());
    // It was certainly not applied, and nobody knows by what: as if nobody had been asked.
    let state = state.map_err(|error| Fault::NotStarted(error.to_string()))?;
    Ok(StateAnswer::Met(state))
}

fn encode(state: ReplicaState) -> Result<i32, StoreError> {
    match state {
        ReplicaState::Up(times) => i32::try_from(times)
            .ok()
            .filter(|times| *times > UP_ABOVE)
            .ok_or_else(|| StoreError::Damaged(format!("{state:?} is no state"))),
        ReplicaState::Down => Ok(DOWN),
        ReplicaState::Stopped => Ok(STOPPED),
    }
}

fn state_of(cell: i32) -> Result<ReplicaState, StoreError> {
    match cell {
        DOWN => Ok(ReplicaState::Down),
        STOPPED => Ok(ReplicaState::Stopped),
        times if times > UP_ABOVE => Ok(ReplicaState::Up(times.cast_unsigned())),
        other => Err(StoreError::Damaged(format!("the state {other} is none"))),
    }
}

/// A row. Everything but the heartbeat is written at once, so where there is a state, there is all of it.
pub(super) fn decode(mut row: Row) -> Result<FoundRow, StoreError> {
    let id = ReplicaId(present(row.uuid("id")?, "id")?);
    let Some(state) = row.int("state")? else {
        return Ok(FoundRow::Half(id));
    };
    let mut text = |column| present(row.text(column)?, column);
    Ok(FoundRow::Row(ReplicaRow {
        id,
        name: text("name")?,
        zone: text("zone")?,
        address: text("address")?,
        peer_address: text("peer_address")?,
        version: text("version")?,
        started_at_ms: present(row.timestamp("started_at")?, "started_at")?,
        ttl_ms: present(row.int("ttl")?, "ttl")?.cast_unsigned(),
        // The first one follows the row.
        heartbeat: number(row.bigint("heartbeat")?.unwrap_or(0))?,
        state: state_of(state)?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(columns: &[(&str, Option<Value>)]) -> Row {
        Row {
            columns: columns.iter().map(|(name, _)| (*name).to_owned()).collect(),
            values: columns.iter().map(|(_, value)| value.clone()).collect(),
        }
    }

    #[test]
    fn a_life_reads_back_and_what_is_none_does_not() {
        for state in [
            ReplicaState::Up(1),
            ReplicaState::Up(i32::MAX as u32),
            ReplicaState::Down,
            ReplicaState::Stopped,
        ] {
            assert_eq!(state_of(encode(state).unwrap()).unwrap(), state);
        }
        for none in [ReplicaState::Up(0), ReplicaState::Up(1 << 31)] {
            assert!(encode(none).is_err(), "{none:?}");
        }
        for none in [0, -3, i32::MIN] {
            assert!(state_of(none).is_err(), "{none}");
        }
    }

    #[test]
    fn only_a_life_that_is_not_up_may_be_forgotten() {
        let below = |state| encode(state).unwrap() < UP_ABOVE;
        assert!(below(ReplicaState::Down) && below(ReplicaState::Stopped));
        assert!(!below(ReplicaState::Up(1)) && !below(ReplicaState::Up(9)));
    }

    #[test]
    fn what_a_swap_met_comes_with_its_answer() {
        let no = Some(Value::Boolean(false));
        let met = |state| answered(vec![row(&[("[applied]", no.clone()), ("state", state)])]);
        assert_eq!(
            met(Some(Value::Int(-1))),
            Ok(StateAnswer::Met(Some(ReplicaState::Down)))
        );
        assert_eq!(met(None), Ok(StateAnswer::Met(None)));
        let nothing = vec![row(&[("[applied]", no.clone())])];
        assert_eq!(answered(nothing), Ok(StateAnswer::Met(None)));
        assert!(matches!(
            met(Some(Value::Int(0))),
            Err(Fault::NotStarted(_))
        ));
        // ScyllaDB says what was there before.
        let yes = ("[applied]", Some(Value::Boolean(true)));
        let done = vec![row(&[yes, ("state", Some(Value::Int(1)))])];
        assert_eq!(answered(done), Ok(StateAnswer::Applied));
        assert!(matches!(answered(Vec::new()), Err(Fault::Unknown(_))));
    }

    #[test]
    fn a_row_that_only_has_a_heartbeat_is_none() {
        let id = uuid::Uuid::from_u128(3);
        let half = row(&[
            ("id", Some(Value::Uuid(id))),
            ("state", None),
            ("heartbeat", Some(Value::BigInt(7))),
        ]);
        assert_eq!(decode(half).unwrap(), FoundRow::Half(ReplicaId(id)));
    }
}
