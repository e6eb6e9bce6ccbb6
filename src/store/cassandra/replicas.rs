//! Replicas, their lives and heartbeats (H2).
//!
//! All rows are in one partition, which is read by its key: what every replica must read in order to go on then
//! needs a majority of the nodes of that partition, and not of every range of tokens.
//!
//! A cell is written in one of two ways, never in both. Heartbeats are plain writes of one cell by the replica itself;
//! their timestamp is their number, so that no coordinator's clock can put an earlier one over a later one. All else is
//! written by lightweight transactions on `life`:
//!
//! | `life` | means |
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
    ENDED_REPLICAS_MAX, Life, LifeSwap, REPLICAS_MAX, ReplicaRow, StoreError, too_many_replicas,
};

/// The partition of all replicas.
const PART: &str = "replicas";
const DOWN: i32 = -1;
const STOPPED: i32 = -2;
/// A life that is not up is below this.
const UP_ABOVE: i32 = 0;
/// How many rows a replica deletes when it starts. Each start adds one.
const FORGOTTEN_AT_START_MAX: usize = 16;

/// A row of a replica as it was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FoundRow {
    /// It was announced, and not forgotten.
    Row(ReplicaRow),
    /// It has no life.
    Half(ReplicaId),
}

impl CassandraStore {
    pub(super) async fn announce(&self, row: &ReplicaRow) -> Result<(), StoreError> {
        let life = encode(row.life)?;
        let values = [
            Value::text(&row.name),
            Value::text(&row.zone),
            Value::text(&row.address),
            Value::text(&row.peer_address),
            Value::text(&row.version),
            Value::Timestamp(row.started_at_ms),
            Value::Int(row.ttl_ms.cast_signed()),
            Value::Int(life),
            Value::text(PART),
            Value::Uuid(row.id.0),
        ];
        let answer = answered(self.ask(Cql::Announce, &values).await?)?;
        if let LifeAnswer::Met(met) = answer
            && met != Some(row.life)
        {
            let id = row.id;
            return Err(StoreError::Unavailable(format!(
                "the replica {id} was announced before, and its life is {met:?} by now"
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

    pub(super) async fn change_life(&self, id: ReplicaId, expected: Life, next: Life) -> LifeSwap {
        let (expected, next) = match (encode(expected), encode(next)) {
            (Ok(expected), Ok(next)) => (expected, next),
            (Err(error), _) | (_, Err(error)) => return LifeSwap::NotStarted(error),
        };
        let values = [
            Value::Int(next),
            Value::text(PART),
            Value::Uuid(id.0),
            Value::Int(expected),
        ];
        match self.ask(Cql::SwapLife, &values).await.and_then(answered) {
            Ok(LifeAnswer::Applied) => LifeSwap::Applied,
            Ok(LifeAnswer::Met(life)) => LifeSwap::Conflict(life),
            Err(fault) if fault.is_unknown() => LifeSwap::Unknown(fault.into()),
            Err(fault) => LifeSwap::NotStarted(fault.into()),
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
                FoundRow::Row(row) if matches!(row.life, Life::Up(_)) => {}
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
            match row.life {
                Life::Up(_) if up == REPLICAS_MAX => return Err(too_many_replicas()),
                Life::Up(_) => up += 1,
                Life::Down | Life::Stopped if ended == ENDED_REPLICAS_MAX => return Ok(()),
                Life::Down | Life::Stopped => ended += 1,
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

/// What came of a transaction on a life.
#[derive(Debug, PartialEq, Eq)]
enum LifeAnswer {
    Applied,
    /// The life is this one.
    Met(Option<Life>),
}

/// The answer to a transaction on a life: what was met comes with it.
fn answered(rows: Vec<Row>) -> Result<LifeAnswer, Fault> {
    let mut met = rows.first().cloned();
    if applied(rows)? {
        return Ok(LifeAnswer::Applied);
    }
    let life = met.as_mut().map_or(Ok(None), |row| row.int("life"));
    let life = life.map_err(StoreError::from);
    let life = life.and_then(|life| life.map(life_of).transpose());
    // It was certainly not applied, and nobody knows by what: as if nobody had been asked.
    let life = life.map_err(|error| Fault::NotStarted(error.to_string()))?;
    Ok(LifeAnswer::Met(life))
}

fn encode(life: Life) -> Result<i32, StoreError> {
    match life {
        Life::Up(times) => i32::try_from(times)
            .ok()
            .filter(|times| *times > UP_ABOVE)
            .ok_or_else(|| StoreError::Damaged(format!("{life:?} is no life"))),
        Life::Down => Ok(DOWN),
        Life::Stopped => Ok(STOPPED),
    }
}

fn life_of(cell: i32) -> Result<Life, StoreError> {
    match cell {
        DOWN => Ok(Life::Down),
        STOPPED => Ok(Life::Stopped),
        times if times > UP_ABOVE => Ok(Life::Up(times.cast_unsigned())),
        other => Err(StoreError::Damaged(format!("the life {other} is none"))),
    }
}

/// A row. Everything but the heartbeat is written at once, so where there is a life, there is all of it.
pub(super) fn decode(mut row: Row) -> Result<FoundRow, StoreError> {
    let id = ReplicaId(present(row.uuid("id")?, "id")?);
    let Some(life) = row.int("life")? else {
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
        life: life_of(life)?,
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
        for life in [
            Life::Up(1),
            Life::Up(i32::MAX as u32),
            Life::Down,
            Life::Stopped,
        ] {
            assert_eq!(life_of(encode(life).unwrap()).unwrap(), life);
        }
        for none in [Life::Up(0), Life::Up(1 << 31)] {
            assert!(encode(none).is_err(), "{none:?}");
        }
        for none in [0, -3, i32::MIN] {
            assert!(life_of(none).is_err(), "{none}");
        }
    }

    #[test]
    fn only_a_life_that_is_not_up_may_be_forgotten() {
        let below = |life| encode(life).unwrap() < UP_ABOVE;
        assert!(below(Life::Down) && below(Life::Stopped));
        assert!(!below(Life::Up(1)) && !below(Life::Up(9)));
    }

    #[test]
    fn what_a_swap_met_comes_with_its_answer() {
        let no = Some(Value::Boolean(false));
        let met = |life| answered(vec![row(&[("[applied]", no.clone()), ("life", life)])]);
        assert_eq!(
            met(Some(Value::Int(-1))),
            Ok(LifeAnswer::Met(Some(Life::Down)))
        );
        assert_eq!(met(None), Ok(LifeAnswer::Met(None)));
        let nothing = vec![row(&[("[applied]", no.clone())])];
        assert_eq!(answered(nothing), Ok(LifeAnswer::Met(None)));
        assert!(matches!(
            met(Some(Value::Int(0))),
            Err(Fault::NotStarted(_))
        ));
        // ScyllaDB says what was there before.
        let yes = ("[applied]", Some(Value::Boolean(true)));
        let done = vec![row(&[yes, ("life", Some(Value::Int(1)))])];
        assert_eq!(answered(done), Ok(LifeAnswer::Applied));
        assert!(matches!(answered(Vec::new()), Err(Fault::Unknown(_))));
    }

    #[test]
    fn a_row_that_only_has_a_heartbeat_is_none() {
        let id = uuid::Uuid::from_u128(3);
        let half = row(&[
            ("id", Some(Value::Uuid(id))),
            ("life", None),
            ("heartbeat", Some(Value::BigInt(7))),
        ]);
        assert_eq!(decode(half).unwrap(), FoundRow::Half(ReplicaId(id)));
    }
}
