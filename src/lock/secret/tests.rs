use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::lock::{Key, TableName};

fn key(text: &str) -> KeyId {
    KeyId {
        table: TableName::default_table(),
        key: Key::parse(text, Key::BYTES_MAX).unwrap(),
    }
}

fn request(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

#[test]
fn a_request_makes_the_same_in_every_version() {
    let secret = Secret::of_entry("", &key("orders"), request(1));
    assert_eq!(secret.text(), "0p19p9gny5kz49t787a9z2cz8n");
    assert_eq!(
        format!("{:?}", secret.tag("")),
        "0c96caf55c3e36de1878e98528ceeb17"
    );
    let secret = Secret::of_session("billing", request(1));
    assert_eq!(secret.text(), "dtb192egekp9yph820xfrgs73r");
    assert_eq!(
        secret.session("billing").to_string(),
        "39c4104d-5813-8e0c-9464-92211262e491"
    );
}

#[test]
fn whatever_is_asked_for_by_another_client_or_for_another_key_is_another_secret() {
    let secrets = [
        Secret::of_entry("", &key("k"), request(1)),
        Secret::of_entry("", &key("k"), request(2)),
        Secret::of_entry("", &key("kk"), request(1)),
        Secret::of_entry("a", &key("k"), request(1)),
        Secret::of_entry("b", &key("k"), request(1)),
        Secret::of_session("", request(1)),
        Secret::of_session("a", request(1)),
        // What is before and what is behind a border is not the same as where the border is elsewhere.
        Secret::of_entry("ad", &key("k"), request(1)),
    ];
    let bits: BTreeSet<u128> = secrets.iter().map(|secret| secret.bits).collect();
    assert_eq!(bits.len(), secrets.len());
}

#[test]
fn all_bits_of_a_request_id_count() {
    let base = 0x0192_d3a4_b5c6_7d7e_8f90_a1b2_c3d4_e5f6_u128;
    let tags = (0..128).map(|bit| {
        let secret = Secret::of_entry("", &key("k"), request(base ^ (1 << bit)));
        secret.tag("")
    });
    assert_eq!(tags.collect::<BTreeSet<_>>().len(), 128);
}

#[test]
fn what_one_identity_was_given_is_of_no_use_to_another_one() {
    let secret = Secret::of_entry("a", &key("k"), request(1));
    assert_ne!(secret.tag("a"), secret.tag("b"));
    assert_ne!(secret.tag("a"), secret.tag(""));
    // Nor where it says that it was made for nobody, or for somebody.
    let unbound = Secret {
        bound: false,
        ..secret
    };
    assert_ne!(unbound.tag("a"), secret.tag("a"));
    assert_ne!(unbound.tag("b"), secret.tag("a"));
    let free = Secret::of_entry("", &key("k"), request(1));
    let bound = Secret {
        bound: true,
        ..free
    };
    assert_ne!(bound.tag(""), free.tag(""));

    let secret = Secret::of_session("a", request(1));
    assert_ne!(secret.session("a"), secret.session("b"));
    assert_ne!(secret.session("a"), secret.session(""));
}

#[test]
fn what_was_made_without_an_identity_goes_on_once_its_client_has_one() {
    let secret = Secret::of_entry("", &key("k"), request(1));
    assert_eq!(secret.tag(""), secret.tag("a"));
    let secret = Secret::of_session("", request(1));
    assert_eq!(secret.session(""), secret.session("a"));
}

#[test]
fn what_is_kept_and_shown_is_not_the_secret() {
    let secret = Secret::of_entry("", &key("k"), request(1));
    assert_ne!(secret.tag("").0, secret.bits);
    assert_eq!(format!("{secret:?}"), "Secret");
    // Who takes the tag for a secret has another tag.
    let taken = Secret {
        bits: secret.tag("").0,
        bound: false,
    };
    assert_ne!(taken.tag(""), secret.tag(""));
    let session = Secret::of_session("", request(1));
    // Nor the secret with the digits of a uuid's version and variant set.
    let shown = Builder::from_custom_bytes(session.bits.to_be_bytes());
    assert_ne!(session.session("").0, shown.into_uuid());
    assert_eq!(session.session("").0.get_version_num(), 8);
}

#[test]
fn the_text_of_a_session_is_its_id_and_its_secret() {
    let secret = Secret::of_session("a", request(1));
    let (id, text) = (secret.session("a"), secret.session_text("a"));
    assert_eq!(text, format!("{id}.{}", secret.text()));
    assert_eq!(SessionId::parse(&text, "a"), Some(id));
    // Another identity's, and another id, are of no session.
    let other = Secret::of_session("a", request(2)).session("a");
    for (text, identity) in [
        (text.clone(), "b"),
        (text.clone(), ""),
        (format!("{other}.{}", secret.text()), "a"),
    ] {
        assert_eq!(SessionId::parse(&text, identity), Some(SessionId::OF_NONE));
    }
    for text in [
        id.to_string(),
        secret.text(),
        format!("{id}."),
        format!(" {text}"),
    ] {
        assert_eq!(SessionId::parse(&text, "a"), None, "{text}");
    }
}

#[test]
fn a_secret_has_one_spelling() {
    let most = Secret {
        bits: u128::MAX,
        bound: true,
    };
    assert_eq!(most.text(), format!("f{}", "z".repeat(25)));
    let least = Secret {
        bits: 0,
        bound: false,
    };
    assert_eq!(least.text(), "0".repeat(26));
    let capital = format!("0{}Z", "0".repeat(24));
    for text in ["0".repeat(25), "0".repeat(27), capital] {
        assert_eq!(Secret::parse(&text), None, "{text}");
    }
}

proptest! {
    #[test]
    fn a_secret_survives_its_text(bits in any::<u128>(), bound in any::<bool>()) {
        let secret = Secret { bits, bound };
        prop_assert_eq!(Secret::parse(&secret.text()), Some(secret));
    }

    #[test]
    fn a_text_is_taken_as_it_is_printed_or_not_at_all(text in "[0-9a-z]{26}") {
        if let Some(secret) = Secret::parse(&text) {
            prop_assert_eq!(secret.text(), text);
        }
    }
}
