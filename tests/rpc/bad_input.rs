//! What a client can get wrong, one row each: the answer says what was wrong, and nothing changed.

mod bounds;
mod lock_refs;
mod names;
mod sent;
mod stage;

use fermata_proto::CriticalGetRequest;
use tonic::{Code, Status};

use crate::access::token;
use crate::ask;
use crate::world::{code_and_reason, done, fields, has_retry_info};
use sent::Sent;
use stage::Stage;

/// What is to come back.
#[derive(Clone, Debug)]
enum Expected {
    Refused {
        code: Code,
        reason: &'static str,
        /// What BadRequest names; `None` where there is none.
        field: Option<&'static str>,
        words: String,
    },
    /// An answer that shows all of these.
    Answered(Vec<String>),
}

struct Row {
    name: String,
    sent: Sent,
    expected: Expected,
}

fn row(what: impl std::fmt::Display, sent: impl Into<Sent>, expected: Expected) -> Row {
    let sent = sent.into();
    Row {
        name: format!("{what}: {}", sent.method()),
        sent,
        expected,
    }
}

fn invalid(field: &'static str, reason: &'static str, words: impl Into<String>) -> Expected {
    Expected::Refused {
        code: Code::InvalidArgument,
        reason,
        field: Some(field),
        words: words.into(),
    }
}

fn refused(code: Code, reason: &'static str, words: &str) -> Expected {
    Expected::Refused {
        code,
        reason,
        field: None,
        words: words.to_owned(),
    }
}

fn not_found(reason: &'static str, words: &str) -> Expected {
    refused(Code::NotFound, reason, words)
}

fn never_issued() -> Expected {
    let words = "this lockRef or entry was never issued";
    not_found("NEVER_ISSUED", words)
}

fn precondition(reason: &'static str, words: &str) -> Expected {
    refused(Code::FailedPrecondition, reason, words)
}

fn answered(shows: &[&str]) -> Expected {
    Expected::Answered(shows.iter().map(|text| (*text).to_owned()).collect())
}

/// What is wrong with an answer.
fn wrong(answer: &Result<String, Status>, expected: &Expected) -> Option<String> {
    let (right, shown) = match (answer, expected) {
        (Ok(answer), Expected::Answered(shows)) => {
            let right = shows.iter().all(|text| answer.contains(text));
            (right, answer.clone())
        }
        (Ok(answer), Expected::Refused { .. }) => (false, answer.clone()),
        (Err(status), _) => {
            let (came, named) = (
                code_and_reason(Err::<(), _>(status.clone())),
                fields(status),
            );
            let shown = format!("{came:?} {named:?} {}", status.message());
            let right = match expected {
                Expected::Refused {
                    code,
                    reason,
                    field,
                    words,
                } => {
                    came == (*code, (*reason).to_owned())
                        && named == field.as_slice()
                        && has_retry_info(status) == (*code == Code::Unavailable)
                        && status.message().contains(words.as_str())
                }
                Expected::Answered(_) => false,
            };
            (right, shown)
        }
    };
    (!right).then(|| format!("{shown}\n  and not {expected:?}"))
}

#[tokio::test]
async fn bad_input_is_told_what_is_wrong_and_changes_nothing() {
    let stage = Stage::new().await;
    let anybody = token("anybody");
    let before = stage.facts().await;
    assert!(before[0].contains("kept"), "{}", before[0]);
    let mut rows = names::keys_and_tables();
    rows.extend(names::ends_by_force(&stage));
    rows.extend(lock_refs::lock_refs(&stage));
    rows.extend(lock_refs::holders_only(&stage));
    rows.extend(bounds::creates_and_sessions(&stage));
    rows.extend(bounds::messages(&stage));
    let mut failed = Vec::new();
    for row in rows {
        let name = row.name;
        for (way, answer) in row.sent.answers(&stage, &anybody).await {
            if let Some(wrong) = wrong(&answer, &row.expected) {
                failed.push(format!("{name}, {way}: {wrong}"));
            }
            let repeats = |status: &Status| status.message().contains(&stage.session);
            assert!(
                !answer.as_ref().is_err_and(repeats),
                "{name}, {way}, tells a secret"
            );
        }
        for (now, before) in stage.facts().await.iter().zip(&before) {
            assert_eq!(now, before, "{name} changed something");
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    // Not even the number of a refused call counts.
    let get = CriticalGetRequest {
        call_no: 1,
        ..ask::critical_get(&stage.held.lock_ref)
    };
    let got = done(stage.client.clone().critical_get(get)).await;
    assert_eq!(&got.value[..], b"kept");
}
