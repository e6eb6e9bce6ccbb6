//! What replicas ask each other through the store (I10). A question and the consent to it are written once each, by
//! different replicas into different cells, so that nothing depends on which write is the later one.

use super::CassandraStore;
use super::codec::{bigint, number};
use super::statements::Ask;
use super::value::{Row, Value, present};
use crate::lock::{Fence, Key, KeyId, ReplicaId, Seq, SessionId, TableName};
use crate::store::{Question, StoreError, Subject};

/// How many questions are answered with at once.
const QUESTIONS_MAX: usize = 500;

impl CassandraStore {
    pub(super) async fn put_question(&self, question: &Question) -> Result<(), StoreError> {
        let mut values = vec![Value::Uuid(question.home.0), Value::Uuid(question.id)];
        values.extend(match &question.about {
            // Without an epoch: a version of this program that does not know it passes over it in silence.
            Subject::Key { key, version } => [
                Value::text(key.table.as_str()),
                Value::text(key.key.as_str()),
                Value::BigInt(bigint(*version)?),
                Value::Unset,
                Value::Unset,
                Value::Unset,
            ],
            Subject::Place {
                key,
                seq,
                fence,
                epoch,
            } => [
                Value::text(key.table.as_str()),
                Value::text(key.key.as_str()),
                Value::BigInt(bigint(seq.0)?),
                Value::BigInt(bigint(fence.0)?),
                Value::Int(epoch.cast_signed()),
                Value::Unset,
            ],
            Subject::Session { session, epoch } => [
                Value::Unset,
                Value::Unset,
                Value::Unset,
                Value::Unset,
                Value::Int(epoch.cast_signed()),
                Value::Uuid(session.0),
            ],
        });
        self.ask(Ask::PutQuestion, &values).await?;
        Ok(())
    }

    /// Those that were not answered. Answered ones stand among them for as long as they are kept, so all pages are
    /// looked at until enough are found.
    pub(super) async fn open_questions(
        &self,
        home: ReplicaId,
    ) -> Result<Vec<Question>, StoreError> {
        let statement = self.statement(Ask::Questions).await?;
        let values = [Value::Uuid(home.0)];
        let page_rows = i32::from(self.page_rows);
        let mut questions = Vec::new();
        let mut next = None;
        loop {
            let page = self.driver.page(&statement, &values, page_rows, next);
            let (rows, more) = page.await?;
            for row in rows {
                if questions.len() == QUESTIONS_MAX {
                    return Ok(questions);
                }
                questions.extend(decode(home, row)?);
            }
            match more {
                Some(more) => next = Some(more),
                None => return Ok(questions),
            }
        }
    }

    pub(super) async fn write_consent(
        &self,
        question: &Question,
        consented: bool,
    ) -> Result<(), StoreError> {
        let values = [
            Value::Boolean(consented),
            Value::Uuid(question.home.0),
            Value::Uuid(question.id),
        ];
        self.ask(Ask::Consent, &values).await?;
        Ok(())
    }

    pub(super) async fn read_consent(
        &self,
        question: &Question,
    ) -> Result<Option<bool>, StoreError> {
        let values = [Value::Uuid(question.home.0), Value::Uuid(question.id)];
        let rows = self.ask(Ask::HasConsent, &values).await?;
        let Some(mut row) = rows.into_iter().next() else {
            return Ok(None);
        };
        row.boolean("consented")
    }
}

/// `None` for one that was answered, for what is left of one whose cells expire, and for one that this
/// version does not understand: it must not keep the others from being answered.
pub(super) fn decode(home: ReplicaId, mut row: Row) -> Result<Option<Question>, StoreError> {
    let id = present(row.uuid("id")?, "id")?;
    if row.boolean("consented")?.is_some() {
        return Ok(None);
    }
    let Some(epoch) = row.int("epoch")?.map(i32::cast_unsigned) else {
        let about = looked_at(row)?;
        return Ok(about.map(|about| Question { id, home, about }));
    };
    let about = match row.uuid("session")? {
        Some(session) => {
            let session = SessionId(session);
            Some(Subject::Session { session, epoch })
        }
        None => place(row, epoch)?,
    };
    if about.is_none() {
        tracing::warn!(%id, "a question that cannot be read is left alone");
    }
    Ok(about.map(|about| Question { id, home, about }))
}

/// Its version stands where a place has its seq.
fn looked_at(mut row: Row) -> Result<Option<Subject>, StoreError> {
    let version = row.bigint("seq")?.and_then(|version| number(version).ok());
    let key = key_of(&mut row)?;
    let about = key.zip(version);
    Ok(about.map(|(key, version)| Subject::Key { key, version }))
}

fn key_of(row: &mut Row) -> Result<Option<KeyId>, StoreError> {
    let table = row.text("table_name")?;
    let table = table.and_then(|table| TableName::parse(&table).ok());
    let key = row.text("key")?;
    let key = key.and_then(|key| Key::parse(&key, Key::BYTES_MAX).ok());
    Ok(table.zip(key).map(|(table, key)| KeyId { table, key }))
}

fn place(mut row: Row, epoch: u32) -> Result<Option<Subject>, StoreError> {
    let seq = row.bigint("seq")?.and_then(|seq| number(seq).ok());
    let fence = row.bigint("fence")?.and_then(|fence| number(fence).ok());
    let (Some(key), Some(seq), Some(fence)) = (key_of(&mut row)?, seq, fence) else {
        return Ok(None);
    };
    Ok(Some(Subject::Place {
        key,
        seq: Seq(seq),
        fence: Fence(fence),
        epoch,
    }))
}
