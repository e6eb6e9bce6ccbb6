//! Replicas, their states and heartbeats (H2).
//!
//! All rows are in one partition, which is read by its key. So the reads that every replica needs to continue need a majority of
//! that partition only, not of every range of tokens.
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
use super::codec::number;
use super::rows::applied;
use super::statements::Cql;
use crate::lock::ReplicaId;
use crate::store::{ClusterStore as _, ENDED_REPLICAS_MAX, ReplicaRow, ReplicaState, StoreError};

/// The partition of all replicas.
pub(super) const PART: &str = "replicas";
const DOWN: i32 = -1;
const STOPPED: i32 = -2;
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
    /// Deletes rows that are not listed: what heartbeats left of rows that were forgotten, since a replica that slept
    /// through that may send another one, and the rows of more ended replicas than are listed.
    pub(super) async fn forget_unlisted(&self) -> Result<(), StoreError> {
        let (mut half, mut ended) = (Vec::new(), Vec::new());
        let mut listed = 0;
        self.each_found(|found| {
            match found {
                FoundRow::Half(id) => half.push(id),
                FoundRow::Row(row) if matches!(row.state, ReplicaState::Up(_)) => {}
                FoundRow::Row(_) if listed < ENDED_REPLICAS_MAX => listed += 1,
                FoundRow::Row(row) => ended.push(row.id),
            }
            half.truncate(FORGOTTEN_AT_START_MAX);
            ended.truncate(FORGOTTEN_AT_START_MAX);
        })
        .await?;
        for id in half {
            let values = [Value::text(PART), Value::Uuid(id.0)];
            self.ask_if(Cql::ForgetHalfReplica, &values).await?;
        }
        for id in ended {
            self.forget_replica(id).await?;
        }
        Ok(())
    }

    /// Reads the whole partition.
    pub(super) async fn each_found(
        &self,
        mut visit: impl FnMut(FoundRow) + Send,
    ) -> Result<(), StoreError> {
        self.each_row(Cql::Replicas, &[Value::text(PART)], |row| {
            decode(row).map(&mut visit)
        })
        .await
    }
}

/// The answer to a transaction on a state.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StateAnswer {
    Applied,
    /// The state is this one.
    Met(Option<ReplicaState>),
}

/// Reads the answer to a transaction on a state. It holds the state that was met.
pub(super) fn answered(rows: Vec<Row>) -> Result<StateAnswer, Fault> {
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

pub(super) fn encode(state: ReplicaState) -> Result<i32, StoreError> {
    match state {
        ReplicaState::Up(times) => i32::try_from(times)
            .ok()
            .filter(|times| *times > 0)
            .ok_or_else(|| StoreError::Damaged(format!("{state:?} is not a valid replica state"))),
        ReplicaState::Down => Ok(DOWN),
        ReplicaState::Stopped => Ok(STOPPED),
    }
}

fn state_of(cell: i32) -> Result<ReplicaState, StoreError> {
    match cell {
        DOWN => Ok(ReplicaState::Down),
        STOPPED => Ok(ReplicaState::Stopped),
        times if times > 0 => Ok(ReplicaState::Up(times.cast_unsigned())),
        other => Err(StoreError::Damaged(format!(
            "unknown replica state {other}"
        ))),
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
    fn a_state_reads_back_and_another_number_does_not() {
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
}
