//! Whatever text comes from outside, the parsers answer, and what they take has one spelling.

use fermata::lock::{Key, LockRef, TableName};
use proptest::prelude::*;

/// Texts near a lockRef: its parts, whole or broken, in any order.
fn near_lock_ref() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        Just("default".to_owned()),
        Just("/".to_owned()),
        Just("#".to_owned()),
        Just(".".to_owned()),
        Just("@".to_owned()),
        Just("%".to_owned()),
        Just("%00".to_owned()),
        Just("%C3".to_owned()),
        Just("%c3%a9".to_owned()),
        Just("17".to_owned()),
        Just("0".to_owned()),
        Just("18446744073709551616".to_owned()),
        Just("k3vt9p2q".to_owned()),
        Just("\u{1F512}".to_owned()),
        Just("default/k#17.k3vt9p2q@5".to_owned()),
        any::<String>(),
    ];
    prop::collection::vec(part, 0..9).prop_map(|parts| parts.concat())
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        near_lock_ref(),
        prop::collection::vec(any::<u8>(), 0..200)
            .prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        (0..5_000_usize, any::<char>()).prop_map(|(n, c)| c.to_string().repeat(n)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_a_lock_ref_in_its_one_spelling_or_none(text in any_text()) {
        if let Ok(lock_ref) = text.parse::<LockRef>() {
            prop_assert_eq!(lock_ref.to_string(), text);
        }
    }

    #[test]
    fn any_text_with_a_place_behind_it_is_a_lock_ref_in_its_one_spelling_or_none(
        text in any_text(),
    ) {
        let text = format!("default/{text}#17.k3vt9p2q");
        if let Ok(lock_ref) = text.parse::<LockRef>() {
            prop_assert_eq!(lock_ref.to_string(), text);
        }
    }

    #[test]
    fn any_text_is_a_key_as_it_stands_or_none(text in any_text(), bytes_max in 0..2_000_usize) {
        let fits = (1..=bytes_max.min(Key::BYTES_MAX)).contains(&text.len());
        let plain = !text.chars().any(char::is_control);
        match Key::parse(&text, bytes_max) {
            Ok(key) => {
                prop_assert!(fits && plain);
                prop_assert_eq!(key.as_str(), text);
            }
            Err(_) => prop_assert!(!fits || !plain),
        }
    }

    #[test]
    fn any_text_is_a_table_name_as_it_stands_or_none(
        text in prop_oneof![any_text(), "[A-Za-z0-9_]{0,42}"],
    ) {
        if let Ok(table) = TableName::parse(&text) {
            prop_assert_eq!(table.as_str(), &text);
            prop_assert!(text.is_ascii() && (1..=TableName::BYTES_MAX).contains(&text.len()));
        }
    }
}
