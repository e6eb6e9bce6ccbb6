use proptest::prelude::*;
use uuid::Uuid;

use super::*;

/// 26 characters.
const NONE: &str = "00000000000000000000000000";

fn secret() -> Secret {
    Secret::of_session("", Uuid::from_u128(1))
}

fn lock_ref(key: &str, grant: Option<u64>) -> LockRef {
    let Ok(key) = Key::parse(key, Key::BYTES_MAX) else {
        panic!("not a key: {key:?}");
    };
    LockRef {
        table: TableName::default_table(),
        key,
        seq: Seq(17),
        tag: secret().tag(""),
        grant: grant.map(Fence),
    }
}

/// Of a text in which `_` stands for a secret.
fn fault(text: &str) -> String {
    match LockRef::parse(&text.replace('_', NONE), "") {
        Ok(parsed) => panic!("{text:?} is a lockRef: {parsed:?}"),
        Err(LockRefError(fault)) => fault.to_string(),
    }
}

#[test]
fn a_plain_key_reads_as_it_is() {
    let plain = lock_ref("eu/orders-42.v1~a:b=c+d,e_f", None);
    let name = "default/eu/orders-42.v1~a:b=c+d,e_f#17";
    let text = format!("{name}.{}", secret().text());
    assert_eq!(plain.text(&secret()), text);
    let granted = lock_ref("eu/orders-42.v1~a:b=c+d,e_f", Some(1_700_000_000_000_016));
    assert_eq!(granted.text(&secret()), format!("{text}@1700000000000016"));
    assert_eq!(granted.without_grant(), plain);
    assert_eq!(with_grant(&text, None), text);
    assert_eq!(with_grant(&text, Some(Fence(5))), format!("{text}@5"));
    assert_eq!(
        with_grant(&format!("{text}@4"), Some(Fence(5))),
        format!("{text}@5")
    );
    assert_eq!(with_grant(&format!("{text}@4"), None), text);

    // Printed it lets nobody act.
    assert_eq!(granted.to_string(), name);
    assert_eq!(format!("{granted:?}"), name);
    assert_eq!(name.parse(), Ok(granted.name()));
}

#[test]
fn all_that_could_be_mistaken_in_a_key_is_percent_encoded() {
    let odd = lock_ref("a#17.x@1 %é", Some(5));
    let text = format!("default/a%2317.x%401%20%25%C3%A9#17.{}@5", secret().text());
    assert_eq!(odd.text(&secret()), text);
    let key = odd.key_id().to_string();
    assert_eq!(key, "default/a%2317.x%401%20%25%C3%A9");
    assert_eq!(LockRef::parse(&text, ""), Ok(odd));
    assert_eq!(with_grant(&text, Some(Fence(5))), text);
}

#[test]
fn the_name_of_an_entry_is_no_lock_ref_and_the_other_way_round() {
    let name: EntryName = "default/k#17".parse().unwrap();
    assert_eq!(format!("{name} {name:?}"), "default/k#17 default/k#17");
    assert_eq!(fault("default/k#17"), "it has no '.' after the number");
    let refused = format!("default/k#17.{NONE}").parse::<EntryName>();
    let refused = refused.map_err(|error| error.to_string());
    assert!(refused.unwrap_err().contains("as in a lockRef"));
    for (text, what) in [
        ("default/k", "it has no '#' after the key"),
        ("default/k#017", "its number is malformed"),
        ("default/k#17@5", "its number is malformed"),
    ] {
        let refused = text.parse::<EntryName>().map_err(|error| error.to_string());
        assert!(refused.unwrap_err().contains(what), "{text}");
    }
}

#[test]
fn a_text_with_a_part_missing_or_too_much_says_which() {
    for (text, what) in [
        ("", "it has no '/' after the table"),
        ("1t/k#17._", "its table name is malformed"),
        ("default/k", "it has no '#' after the key"),
        ("default/#17._", "its key is malformed"),
        ("default/%FF#17._", "its key is not UTF-8"),
        ("default/k#17", "it has no '.' after the number"),
        ("default/k#._", "its number is malformed"),
        ("default/k#17._0", "its secret is malformed"),
        ("default/k#17._@5@6", "its grant is malformed"),
    ] {
        assert_eq!(fault(text), what, "{text:?}");
    }
    let too_long = "x".repeat(LockRef::TEXT_BYTES_MAX + 1);
    let bytes = too_long.len();
    let max = LockRef::TEXT_BYTES_MAX;
    assert_eq!(
        fault(&too_long),
        format!("it has {bytes} bytes; the limit is {max}")
    );
    let longest = "x".repeat(max);
    assert_eq!(fault(&longest), "it has no '/' after the table");
    let too_long = format!("default/{}#17._", "k".repeat(1025));
    assert_eq!(
        fault(&too_long),
        "its key has 1025 bytes; the limit is 1024"
    );
}

#[test]
fn every_lock_ref_has_one_spelling() {
    let canonical = "its key is not in the canonical spelling";
    for (text, what) in [
        ("default/%6b#17._", canonical),
        ("default/%c3%a9#17._", canonical),
        ("default/é#17._", canonical),
        ("default/a%2#17._", canonical),
        ("default/a#b#17._", canonical),
        ("default/k#017._", "its number is malformed"),
        ("default/k#+17._", "its number is malformed"),
        ("default/k#0._", "its number is malformed"),
        (" default/k#17._", "its table name is malformed"),
        ("default/k\0#17._", "its key is malformed"),
        ("default/k#17._\0", "its secret is malformed"),
        ("default/k#17._@+5", "its grant is malformed"),
        ("default/k#17._@0", "its grant is malformed"),
        ("default/k#17._@05", "its grant is malformed"),
    ] {
        assert_eq!(fault(text), what, "{text:?}");
    }
}

#[test]
fn numbers_past_their_limits_are_refused() {
    let last = LockRef {
        seq: Seq::LAST,
        ..lock_ref("k", Some(Fence::MAX))
    };
    assert_eq!(LockRef::parse(&last.text(&secret()), ""), Ok(last));
    for (text, what) in [
        ("default/k#9223372036854775807._", "its number is malformed"),
        (
            "default/k#99999999999999999999._",
            "its number is malformed",
        ),
        (
            "default/k#1._@9223372036854775808",
            "its grant is malformed",
        ),
    ] {
        assert_eq!(fault(text), what, "{text:?}");
    }
}

#[test]
fn the_longest_lock_ref_is_parsed() {
    let longest = LockRef {
        table: TableName::parse(&"t".repeat(TableName::BYTES_MAX)).unwrap(),
        seq: Seq::LAST,
        ..lock_ref(&" ".repeat(Key::BYTES_MAX), Some(Fence::MAX))
    };
    let text = longest.text(&secret());
    let bytes = text.len();
    assert!((bytes..bytes + 100).contains(&LockRef::TEXT_BYTES_MAX));
    assert_eq!(LockRef::parse(&text, ""), Ok(longest));
}

prop_compose! {
    fn any_lock_ref()(
        table in "[A-Za-z][A-Za-z0-9_]{0,39}",
        key in "[^\\p{Cc}]{1,80}",
        seq in 1..=Seq::LAST.0,
        grant in proptest::option::of(1..=Fence::MAX),
    ) -> LockRef {
        LockRef {
            table: TableName::parse(&table).unwrap(),
            seq: Seq(seq),
            ..lock_ref(&key, grant)
        }
    }
}

proptest! {
    #[test]
    fn a_lock_ref_survives_its_text(lock_ref in any_lock_ref()) {
        let text = lock_ref.text(&secret());
        prop_assert!(text.is_ascii());
        prop_assert_eq!(lock_ref.to_string().parse(), Ok(lock_ref.name()));
        prop_assert_eq!(LockRef::parse(&text, ""), Ok(lock_ref));
    }
}
