//! What a client can get wrong, one row each: the answer says what was wrong, and nothing changed.

mod bounds;
mod calls;
mod lock_refs;
mod names;
mod stage;

use fermata_proto::CriticalGetRequest;
use tonic::{Code, Status};

use crate::world::{code_and_reason, fields, has_retry_info};
use calls::Call;
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
    call: Call,
    expected: Expected,
}

fn row(name: impl Into<String>, call: Call, expected: Expected) -> Row {
    Row {
        name: name.into(),
        call,
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

fn precondition(reason: &'static str, words: &str) -> Expected {
    refused(Code::FailedPrecondition, reason, words)
}

fn answered(shows: &[&str]) -> Expected {
    Expected::Answered(shows.iter().map(|text| (*text).to_owned()).collect())
}

/// What is wrong with an answer.
fn wrong(answer: &Result<String, Status>, expected: &Expected) -> Option<String> {
    let right = match (answer, expected) {
        (Ok(answer), Expected::Answered(shows)) => shows.iter().all(|text| answer.contains(text)),
        (
            Err(status),
            Expected::Refused {
                code,
                reason,
                field,
                words,
            },
        ) => {
            let refusal = code_and_reason(Err::<(), _>(status.clone()));
            refusal == (*code, (*reason).to_owned())
                && fields(status) == field.as_slice()
                && has_retry_info(status) == (*code == Code::Unavailable)
                && status.message().contains(words.as_str())
        }
        (Ok(_), Expected::Refused { .. }) | (Err(_), Expected::Answered(_)) => false,
    };
    let shown = match answer {
        Ok(answer) => answer.clone(),
        Err(status) => format!(
            "{:?} {:?} {}",
            code_and_reason(Err::<(), _>(status.clone())),
            fields(status),
            status.message()
        ),
    };
    (!right).then(|| format!("{shown}\n  and not {expected:?}"))
}

#[tokio::test]
async fn bad_input_is_told_what_is_wrong_and_changes_nothing() {
    let stage = Stage::new().await;
    let before = stage.facts().await;
    assert!(before[0].contains("kept"), "{}", before[0]);
    let mut rows = names::keys_and_tables();
    rows.extend(lock_refs::lock_refs(&stage));
    rows.extend(lock_refs::entry_names(&stage));
    rows.extend(lock_refs::holders_only(&stage));
    rows.extend(bounds::creates_and_sessions(&stage));
    rows.extend(bounds::messages(&stage));
    let mut failed = Vec::new();
    for Row {
        name,
        call,
        expected,
    } in rows
    {
        let in_a_frame = call.clone().made_in_a_frame(&stage).await;
        if let Some(wrong) = in_a_frame.and_then(|answer| wrong(&answer, &expected)) {
            failed.push(format!("{name}, in a frame: {wrong}"));
        }
        let answer = call.made(&stage).await;
        if let Some(wrong) = wrong(&answer, &expected) {
            failed.push(format!("{name}: {wrong}"));
        }
        for (now, before) in stage.facts().await.iter().zip(&before) {
            assert_eq!(now, before, "{name} changed something");
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    // Not even the number of a refused call counts.
    let get = CriticalGetRequest {
        lock_ref: stage.held.lock_ref.clone(),
        call_no: 1,
    };
    let mut client = stage.client.clone();
    let got = client.critical_get(get).await.unwrap().into_inner();
    assert_eq!(&got.value[..], b"kept");
}
