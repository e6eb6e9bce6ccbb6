//! The promises of the parsers of this module.

use uuid::Uuid;

use super::{EntryName, Fence, InvalidKey, Key, LockRef, Secret, Seq, SessionId, TableName};

/// The longest error about a text, in bytes: it names the fault without repeating the text.
const ERROR_BYTES_MAX: usize = 250;

/// A lockRef, a key and a table name: each accepted text prints unchanged, and every key has a lockRef.
pub fn lock_ref(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match LockRef::parse(text, "") {
        Ok(lock_ref) => {
            assert_eq!(lock_ref.to_string().parse(), Ok(lock_ref.name()));
            // No part of it is lost, under any identity.
            let secret = secret_in(text);
            let printed = secret.map(|secret| lock_ref.text(&secret));
            assert_eq!(printed.as_deref(), Some(text));
            for who in ["", "who"] {
                let tag = LockRef::parse(text, who).map(|given| given.tag);
                assert_eq!(tag.ok(), secret.map(|secret| secret.tag(who)));
            }
            assert!(text.is_ascii() && text.len() <= LockRef::TEXT_BYTES_MAX);
            assert!((Seq::FIRST..=Seq::LAST).contains(&lock_ref.seq));
            let granted = Fence::NONE < lock_ref.grant.unwrap_or(Fence(1));
            assert!(granted && lock_ref.grant <= Some(Fence(Fence::MAX)));
        }
        Err(error) => is_short(&error.to_string()),
    }
    match text.parse::<EntryName>() {
        Ok(name) => assert_eq!(name.to_string(), text),
        Err(error) => is_short(&error.to_string()),
    }
    if let Some(session) = SessionId::parse(text, "") {
        let printed = secret_in(text).map(|secret| secret.session_text(""));
        let is_of_it = text.starts_with(&session.to_string());
        assert!(!is_of_it || printed.as_deref() == Some(text));
    }
    for bytes_max in [0, text.len().saturating_sub(1), text.len(), usize::MAX] {
        key(text, bytes_max);
    }
    match TableName::parse(text) {
        Ok(table) => {
            assert_eq!(table.as_str(), text);
            assert!(text.is_ascii() && (1..=TableName::BYTES_MAX).contains(&text.len()));
        }
        Err(error) => is_short(&error.to_string()),
    }
}

/// A key under a limit of this server.
fn key(text: &str, bytes_max: usize) {
    let fits = (1..=bytes_max.min(Key::BYTES_MAX)).contains(&text.len());
    match Key::parse(text, bytes_max) {
        Ok(key) => {
            assert!(fits && !text.contains(char::is_control));
            assert_eq!(key.as_str(), text);
            has_a_lock_ref(key);
        }
        Err(InvalidKey::Empty { .. }) => assert_eq!(text, ""),
        Err(InvalidKey::TooLong { bytes, max }) => {
            assert!(!fits && bytes == text.len() && bytes > max);
        }
        Err(InvalidKey::Control { at, .. }) => assert!(text[at..].starts_with(char::is_control)),
    }
}

/// The secret behind the last dot.
fn secret_in(text: &str) -> Option<Secret> {
    let (_, rest) = text.rsplit_once('.')?;
    let secret = rest.split('@').next()?;
    Secret::parse(secret)
}

fn has_a_lock_ref(key: Key) {
    let secret = Secret::of_session("", Uuid::nil());
    let made = LockRef {
        table: TableName::default_table(),
        key,
        seq: Seq::LAST,
        tag: secret.tag(""),
        grant: Some(Fence(Fence::MAX)),
    };
    assert_eq!(LockRef::parse(&made.text(&secret), ""), Ok(made));
}

fn is_short(error: &str) {
    assert!(error.len() <= ERROR_BYTES_MAX, "{error}");
}
