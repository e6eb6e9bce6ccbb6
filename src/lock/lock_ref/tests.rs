use proptest::prelude::*;

use super::*;

fn lock_ref(key: &str, grant: Option<u64>) -> LockRef {
    let Ok(key) = Key::parse(key, Key::BYTES_MAX) else {
        panic!("not a key: {key:?}");
    };
    LockRef {
        table: TableName::default_table(),
        key,
        seq: Seq(17),
        tag: Tag::of(Uuid::from_u128(1)),
        grant: grant.map(Fence),
    }
}

fn fault(text: &str) -> String {
    match text.parse::<LockRef>() {
        Ok(parsed) => panic!("{text:?} is a lockRef: {parsed:?}"),
        Err(LockRefError(fault)) => fault.to_string(),
    }
}

#[test]
fn a_plain_key_reads_as_it_is() {
    let plain = lock_ref("eu/orders-42.v1~a:b=c+d,e_f", None);
    let tag = plain.tag;
    assert_eq!(
        plain.to_string(),
        format!("default/eu/orders-42.v1~a:b=c+d,e_f#17.{tag}")
    );
    assert_eq!(
        plain.with_grant(Fence(1_700_000_000_000_016)).to_string(),
        format!("{plain}@1700000000000016")
    );
    assert_eq!(plain.with_grant(Fence(5)).without_grant(), plain);
}

#[test]
fn all_that_could_be_mistaken_in_a_key_is_percent_encoded() {
    let odd = lock_ref("a#17.x@1 %é", Some(5));
    let tag = odd.tag;
    let text = format!("default/a%2317.x%401%20%25%C3%A9#17.{tag}@5");
    assert_eq!(odd.to_string(), text);
    assert_eq!(text.parse(), Ok(odd));
}

#[test]
fn the_tag_of_a_request_id_is_the_same_in_every_version() {
    let tags = [0, 1, u128::MAX].map(|n| Tag::of(Uuid::from_u128(n)).to_string());
    assert_eq!(tags, ["00000000", "6fg0w00k", "cjtq42tb"]);
}

#[test]
fn all_bits_of_a_request_id_reach_the_tag() {
    let base = 0x0192_d3a4_b5c6_7d7e_8f90_a1b2_c3d4_e5f6_u128;
    let mut tags: Vec<Tag> = (0..128)
        .map(|bit| Tag::of(Uuid::from_u128(base ^ (1 << bit))))
        .collect();
    tags.sort();
    tags.dedup();
    assert_eq!(tags.len(), 128);
}

#[test]
fn a_tag_is_forty_bits() {
    let most = (1 << 40) - 1;
    assert_eq!(Tag::from_bits(most).map(Tag::bits), Some(most));
    assert_eq!(Tag::from_bits(most + 1), None);
    assert_eq!(
        Tag::from_bits(most).map(|t| t.to_string()),
        Some("zzzzzzzz".to_owned())
    );
}

#[test]
fn a_text_with_a_part_missing_or_too_much_says_which() {
    for (text, what) in [
        ("", "it has no '/' after the table"),
        ("default", "it has no '/' after the table"),
        ("/k#17.00000000", "its table name is malformed"),
        ("1t/k#17.00000000", "its table name is malformed"),
        ("default/k", "it has no '#' after the key"),
        ("default/#17.00000000", "its key is malformed"),
        ("default/%07#17.00000000", "its key is malformed"),
        ("default/%FF#17.00000000", "its key is not UTF-8"),
        ("default/k#17", "it has no '.' after the number"),
        ("default/k#.00000000", "its number is malformed"),
        ("default/k#17.0000000", "its tag is malformed"),
        ("default/k#17.000000000", "its tag is malformed"),
        ("default/k#17.00000000@", "its grant is malformed"),
        ("default/k#17.00000000@5@6", "its grant is malformed"),
        ("default/k#17.00000000@5 ", "its grant is malformed"),
    ] {
        assert_eq!(fault(text), what, "{text:?}");
    }
    let too_long = "x".repeat(LockRef::TEXT_BYTES_MAX + 1);
    let bytes = too_long.len();
    let max = LockRef::TEXT_BYTES_MAX;
    assert_eq!(
        fault(&too_long),
        format!("it has {bytes} bytes, and none has more than {max}")
    );
    let longest = "x".repeat(max);
    assert_eq!(fault(&longest), "it has no '/' after the table");
    let too_long = format!("default/{}#17.00000000", "k".repeat(1025));
    assert_eq!(
        fault(&too_long),
        "its key has 1025 bytes, and none has more than 1024"
    );
}

#[test]
fn every_lock_ref_has_one_spelling() {
    let canonical = "its key is not in the canonical spelling";
    for (text, what) in [
        ("default/%6b#17.00000000", canonical),
        ("default/%c3%a9#17.00000000", canonical),
        ("default/é#17.00000000", canonical),
        ("default/a b#17.00000000", canonical),
        ("default/a%#17.00000000", canonical),
        ("default/a%2#17.00000000", canonical),
        ("default/a#b#17.00000000", canonical),
        ("default/k#017.00000000", "its number is malformed"),
        ("default/k#+17.00000000", "its number is malformed"),
        ("default/k#0.00000000", "its number is malformed"),
        ("default/k#١٧.00000000", "its number is malformed"),
        ("default/k#1e3.00000000", "its number is malformed"),
        ("default/k# 17.00000000", "its number is malformed"),
        (" default/k#17.00000000", "its table name is malformed"),
        ("default/k\0#17.00000000", "its key is malformed"),
        ("default/k#17.00000000\0", "its tag is malformed"),
        ("default/k#17.0000000é", "its tag is malformed"),
        ("default/k#17.00000000@+5", "its grant is malformed"),
        ("default/k#17.0000000Z", "its tag is malformed"),
        ("default/k#17.0000000l", "its tag is malformed"),
        ("default/k#17.00000000@0", "its grant is malformed"),
        ("default/k#17.00000000@05", "its grant is malformed"),
    ] {
        assert_eq!(fault(text), what, "{text:?}");
    }
}

#[test]
fn numbers_past_their_limits_are_refused() {
    let last = format!("default/k#{}.00000000@{}", Seq::LAST, Fence::MAX);
    assert_eq!(last.parse().map(|l: LockRef| l.to_string()), Ok(last));
    for (text, what) in [
        (
            "default/k#9223372036854775807.00000000",
            "its number is malformed",
        ),
        (
            "default/k#99999999999999999999.00000000",
            "its number is malformed",
        ),
        (
            "default/k#1.00000000@9223372036854775808",
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
    let text = longest.to_string();
    assert!(text.len() <= LockRef::TEXT_BYTES_MAX);
    assert_eq!(text.parse(), Ok(longest));
}

prop_compose! {
    fn any_lock_ref()(
        table in "[A-Za-z][A-Za-z0-9_]{0,39}",
        key in "[^\\p{Cc}]{1,80}",
        seq in 1..=Seq::LAST.0,
        request_id in any::<u128>(),
        grant in proptest::option::of(1..=Fence::MAX),
    ) -> LockRef {
        LockRef {
            table: TableName::parse(&table).unwrap(),
            seq: Seq(seq),
            tag: Tag::of(Uuid::from_u128(request_id)),
            ..lock_ref(&key, grant)
        }
    }
}

proptest! {
    #[test]
    fn a_lock_ref_survives_its_text(lock_ref in any_lock_ref()) {
        let text = lock_ref.to_string();
        prop_assert!(text.is_ascii());
        prop_assert_eq!(text.parse::<LockRef>(), Ok(lock_ref));
    }

    #[test]
    fn a_tag_survives_its_text_and_its_bits(request_id in any::<u128>()) {
        let tag = Tag::of(Uuid::from_u128(request_id));
        prop_assert_eq!(Tag::parse(&tag.to_string()), Some(tag));
        prop_assert_eq!(Tag::from_bits(tag.bits()), Some(tag));
    }
}
