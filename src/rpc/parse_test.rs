//! Each field takes what the contract says, and names itself where it does not.

use super::*;
use crate::lock::Secret;

const ID: &str = "67e55044-10b1-426f-9247-bb680e5fe0c8";

fn limits() -> Limits {
    Limits::default()
}

fn span(seconds: i64, nanos: i32) -> prost_types::Duration {
    prost_types::Duration { seconds, nanos }
}

fn made() -> Uuid {
    Uuid::from_u128(7)
}

/// The field and the problem of what was refused.
fn refused<T: std::fmt::Debug>(parsed: Result<T, Invalid>) -> (&'static str, FieldProblem) {
    let invalid = parsed.unwrap_err();
    (invalid.field, invalid.problem)
}

/// The words about what is malformed in this field.
fn malformed_in<T: std::fmt::Debug>(parsed: Result<T, Invalid>, field: &str) -> String {
    match refused(parsed) {
        (of, FieldProblem::Malformed(why)) if of == field => why,
        other => panic!("{field}: {other:?}"),
    }
}

#[test]
fn a_key_goes_to_the_default_table_unless_told_otherwise() {
    assert_eq!(key_id("a", "", &limits()).unwrap().to_string(), "default/a");
    assert_eq!(key_id("a", "t", &limits()).unwrap().to_string(), "t/a");
    let none = refused(key_id("", "t", &limits()));
    assert_eq!(none, ("key", FieldProblem::Missing));
    assert!(malformed_in(key_id("a\n", "t", &limits()), "key").contains("byte 1"));
    assert_eq!(refused(key_id("a", "no-table", &limits())).0, "table");
    let long = refused(key_id(&"x".repeat(1025), "", &limits()));
    assert!(long.1.to_string().contains("1024"), "{}", long.1);
}

/// 26 characters that are no secret of anything.
const SECRET: &str = "00000000000000000000000000";

/// A session, and what its client was given.
fn opened() -> (SessionId, String) {
    let secret = Secret::of_session("", made());
    let id = secret.session("");
    (id, secret.session_text(""))
}

#[test]
fn a_missing_request_id_is_made_and_one_that_can_be_guessed_refused() {
    assert_eq!(request_id("", made), Ok(made()));
    assert_eq!(request_id(ID, made), Ok(Uuid::try_parse(ID).unwrap()));
    for guessable in [
        "x",
        "00000000-0000-0000-0000-000000000000",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
        "00000000-0000-0000-0000-000000000001",
        "0000000a-0000-1000-8000-00805f9b34fb",
        "cfbff0d1-9375-5685-968c-48ce8b15ae17",
        "019ac5a4-0000-7000-8000-000000000000",
    ] {
        malformed_in(request_id(guessable, made), "request_id");
    }
}

#[test]
fn a_lease_is_a_session_or_a_lock_ref_whose_grant_does_not_matter() {
    let (id, text) = opened();
    assert_eq!(lease(&text, ""), Ok(LeaseId::Session(id)));
    assert_eq!(session(&text, ""), Ok(id));
    let own = format!("default/a#1.{SECRET}");
    let parsed = LeaseId::LockRef(LockRef::parse(&own, "").unwrap());
    assert_eq!(lease(&own, ""), Ok(parsed.clone()));
    assert_eq!(lease(&format!("{own}@9"), ""), Ok(parsed));
    assert_eq!(refused(lease("", "")), ("session", FieldProblem::Missing));
    malformed_in(lease("x", ""), "session");
    malformed_in(lease("t/a#1", ""), "session");
    malformed_in(session(&own, ""), "session");
}

#[test]
fn the_id_of_a_session_is_no_session() {
    let (id, text) = opened();
    for text in [id.to_string(), ID.to_owned()] {
        assert!(malformed_in(session(&text, ""), "session").contains("whole text"));
        assert!(malformed_in(lease(&text, ""), "session").contains("whole text"));
    }
    // A guessed secret is that of another session.
    let guessed = session(&format!("{id}.{SECRET}"), "").unwrap();
    assert_ne!(guessed, id);
    for text in [
        format!("{text} "),
        format!(" {text}"),
        format!("{text}@1"),
        text.to_uppercase(),
        text.replacen('-', "", 4),
        format!(".{SECRET}"),
    ] {
        malformed_in(session(&text, ""), "session");
    }
}

#[test]
fn an_entry_lives_by_a_session_or_by_its_own_ttl() {
    let ttl = |live_by| match live_by {
        LiveBy::Ttl(ms) => Some(ms),
        LiveBy::Session(_) => None,
    };
    let given = |session, given: Option<&_>| live_by((session, ""), given, &limits()).map(ttl);
    assert_eq!(given("", None), Ok(Some(30_000)));
    assert_eq!(given("", Some(&span(2, 0))), Ok(Some(2_000)));
    assert_eq!(given(&opened().1, None), Ok(None));
    let both = live_by((&opened().1, ""), Some(&span(2, 0)), &limits());
    let words = "cannot be set together with session";
    assert_eq!(refused(both), ("ttl", FieldProblem::Conflicting(words)));
}

#[test]
fn a_ttl_is_rounded_up_to_milliseconds_and_kept_in_range() {
    let ms = |seconds, nanos| ttl_ms(Some(&span(seconds, nanos)), &limits());
    assert_eq!(ms(1, 0), Ok(1_000));
    assert_eq!(ms(1, 1), Ok(1_001));
    assert_eq!(ms(3600, 0), Ok(3_600_000));
    for (seconds, nanos) in [(0, 0), (0, 999_000_000), (3600, 1), (i64::MAX, 0)] {
        let (field, problem) = refused(ms(seconds, nanos));
        assert_eq!(field, "ttl");
        assert!(
            matches!(problem, FieldProblem::OutOfRange { .. }),
            "{seconds} {nanos}"
        );
        assert!(problem.to_string().contains("1000 to 3600000"), "{problem}");
    }
}

#[test]
fn a_disconnect_grace_is_at_most_the_ttl_of_its_session() {
    let parsed = |grace: Option<prost_types::Duration>, ttl_ms| {
        disconnect_grace_ms(grace.as_ref(), ttl_ms, &limits())
    };
    assert_eq!(parsed(None, 1_000), Ok(0));
    assert_eq!(parsed(Some(span(0, 500_000_000)), 1_000), Ok(500));
    assert_eq!(parsed(Some(span(1, 0)), 1_000), Ok(1_000));
    for (seconds, nanos) in [(0, 0), (0, 99_000_000), (1, 1)] {
        let (field, problem) = refused(parsed(Some(span(seconds, nanos)), 1_000));
        assert_eq!(field, "disconnect_grace");
        assert!(problem.to_string().contains("100 to 1000 ms"), "{problem}");
    }
}

#[test]
fn a_duration_that_is_none_is_refused_whatever_its_numbers() {
    let parsed = |seconds, nanos| refused(wait(Some(&span(seconds, nanos)), &limits()));
    for (seconds, nanos) in [(-1, 0), (0, -1), (-1, -1), (i64::MIN, 0)] {
        assert_eq!(parsed(seconds, nanos), ("wait", FieldProblem::Negative));
    }
    for (seconds, nanos) in [(1, -1), (-1, 1), (0, 1_000_000_000), (i64::MIN, i32::MIN)] {
        let (field, problem) = parsed(seconds, nanos);
        assert!(matches!(problem, FieldProblem::Malformed(_)) && field == "wait");
    }
}

#[test]
fn a_wait_is_none_where_absent_and_capped() {
    assert_eq!(wait(None, &limits()), Ok(Duration::ZERO));
    assert_eq!(wait(Some(&span(1, 5)), &limits()), Ok(Duration::new(1, 5)));
    assert_eq!(
        wait(Some(&span(i64::MAX, 0)), &limits()),
        Ok(Duration::from_secs(3600))
    );
}

#[test]
fn words_for_people_have_a_length_and_no_control_characters() {
    assert_eq!(owner("ü".repeat(64), &limits()).map(|o| o.len()), Ok(128));
    let (field, problem) = refused(owner("x".repeat(129), &limits()));
    assert_eq!(field, "owner");
    assert!(problem.to_string().contains("128"), "{problem}");
    malformed_in(owner("a\u{1b}[2J".to_owned(), &limits()), "owner");
    let none = refused(reason(String::new(), &limits()));
    assert_eq!(none, ("reason", FieldProblem::Missing));
    assert_eq!(refused(reason("x".repeat(257), &limits())).0, "reason");
    assert_eq!(forced_by(String::new(), &limits()), Ok(String::new()));
    assert_eq!(
        refused(forced_by("x".repeat(129), &limits())).0,
        "forced_by"
    );
    let long = "x".repeat(1025);
    assert_eq!(refused(key_prefix(long, &limits())).0, "key_prefix");
}

#[test]
fn a_value_has_a_largest_size() {
    let max = Bytes::from(vec![0; 1024 * 1024]);
    assert!(put(max, &limits()).is_ok());
    let ended = Bytes::from(vec![0; 1024 * 1024 + 1]);
    let (field, problem) = refused(put(ended.clone(), &limits()));
    assert_eq!(field, "value");
    assert!(problem.to_string().contains("limits.value_bytes_max"));
    let carried = proto::Mutation {
        value: ended,
        delete: false,
    };
    assert_eq!(refused(mutation(Some(carried), &limits())).0, "put.value");
}

#[test]
fn a_mutation_writes_or_deletes() {
    let given = |value: &'static [u8], delete| {
        let value = Bytes::from_static(value);
        mutation(Some(proto::Mutation { value, delete }), &limits())
    };
    assert_eq!(mutation(None, &limits()), Ok(None));
    assert_eq!(given(b"", false), Ok(Some(Mutation::Put(Bytes::new()))));
    assert_eq!(given(b"", true), Ok(Some(Mutation::Delete)));
    let both = FieldProblem::Conflicting("must be empty when delete is true");
    assert_eq!(refused(given(b"v", true)), ("put.value", both));
}

#[test]
fn a_mode_that_this_server_does_not_know_is_refused() {
    assert_eq!(mode(0), Ok(Mode::Exclusive));
    assert_eq!(mode(1), Ok(Mode::Exclusive));
    malformed_in(mode(2), "mode");
}

#[test]
fn a_renewal_has_lock_refs_and_not_too_many() {
    let limits = Limits {
        lock_refs_per_renewal_max: 2,
        ..limits()
    };
    let given = |count| lock_refs(&vec!["nonsense".to_owned(); count], &limits);
    assert_eq!(refused(given(0)), ("lock_refs", FieldProblem::Missing));
    assert_eq!(given(1), Ok(()));
    assert_eq!(given(2), Ok(()), "each is parsed for itself");
    let (field, problem) = refused(given(3));
    assert_eq!(field, "lock_refs");
    let words = "it has 3 elements; the limit is 2 (limits.lock_refs_per_renewal_max)";
    assert_eq!(problem.to_string(), words);
}
