//! `--output json` is an interface: these names stay.

use serde_json::{Value, json};

use super::world::World;

/// The names of an object's fields, sorted.
pub fn names(object: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = object
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    names.sort_unstable();
    names
}

#[test]
fn a_listing_that_is_cut_says_so() {
    let world = World::new();
    let grace = ["--disconnect-grace", "30s"];
    let mut held: Vec<_> = ["a", "b", "c"]
        .map(|key| world.start(&[&["lock", key][..], &grace].concat()))
        .into();
    for one in &mut held {
        one.line();
    }
    for (list, more) in [
        (
            &["locks", "ls"][..],
            "only the first 2 keys are shown (--limit)",
        ),
        (
            &["sessions"],
            "only the first 2 sessions are shown (--limit)",
        ),
    ] {
        for format in ["text", "json"] {
            let said = |limit| {
                let flags = ["--limit", limit, "--output", format];
                let output = world.run(&[list, &flags].concat());
                assert!(output.status.success(), "{list:?}: {output:?}");
                String::from_utf8(output.stderr).unwrap()
            };
            assert_eq!(said("3"), "", "{list:?}");
            assert_eq!(said("2"), format!("fermata: {more}\n"), "{list:?}");
        }
    }
    drop(held);
}

/// Whoever copies a name from a log or a list gets the queue that it is of.
#[test]
fn what_is_shown_of_an_entry_is_its_queue_and_what_became_of_it() {
    let world = World::new();
    let mut holder = world.start(&["lock", "orders/42"]);
    let lock_ref = holder.line();
    let (name, _) = lock_ref.split_once('.').unwrap();
    assert_eq!(name, "default/orders/42#1");
    let waiter = world.start(&["lock", "orders/42", "--", "true"]);
    world.await_queue("orders/42", (1, 1));
    let shown = |what: &[&str]| world.text(&[&["locks", "show"], what].concat());
    for (entry, what) in [
        (name, "holds the key"),
        (&lock_ref, "holds the key"),
        ("default/orders/42#2", "waits for the key"),
        (
            "default/orders/42#3",
            "is not in the queue, nor among the latest ends",
        ),
    ] {
        let shown = shown(&[entry]);
        assert!(shown.contains(what), "{entry}: {shown}");
        assert!(
            shown.contains("Key:                 orders/42\n"),
            "{shown}"
        );
        assert!(shown.contains("default/orders/42#2"), "{shown}");
    }
    let limited = shown(&["default/orders/42#2", "--limit", "1"]);
    assert!(limited.contains("waits for the key"), "{limited}");
    assert_eq!(
        world.json(&["locks", "show", name])["key"],
        json!("orders/42")
    );
    // A key may look like one.
    let literal = world.json(&["locks", "show", "--key", name]);
    assert_eq!(
        (&literal["key"], &literal["holders"]),
        (&json!(name), &json!([]))
    );
    let unknown = world.run(&["locks", "show", "nope/orders/42#1"]);
    assert_eq!(unknown.status.code(), Some(66), "{unknown:?}");
    world.text(&["locks", "release", name, "--reason", "shown"]);
    assert_eq!(holder.end().0.code(), Some(70));
    assert!(waiter.end().0.success());
    let ended = shown(&[name]);
    assert!(
        ended.contains("has ended, see below") && ended.contains("forced"),
        "{ended}"
    );
}

#[test]
fn locks_are_shown_with_the_names_of_the_contract() {
    let world = World::new();
    let holder = world.hold("k");

    let listed = world.json(&["locks", "ls"]);
    assert_eq!(names(&listed), ["locks"]);
    let lock = &listed["locks"][0];
    assert_eq!(names(lock), ["holder", "key", "table", "waiters"]);
    assert_eq!(lock["key"], json!("k"));
    let holding = &lock["holder"];
    let entry = [
        "create_time",
        "durable",
        "fencing_token",
        "home",
        "identity",
        "lease_left",
        "mode",
        "name",
        "owner",
        "seq",
        "session_id",
        "state",
        "ttl",
    ];
    assert_eq!(names(holding), entry);
    assert_eq!(holding["owner"], json!("billing"));
    // A label is no identity.
    assert_eq!(holding["identity"], json!(""));
    assert_eq!(holding["ttl"], json!("60s"));
    assert_eq!(holding["state"], json!("LOCK_STATE_HELD"));
    assert_eq!(holding["durable"], json!(true));
    assert!(holding["fencing_token"].as_u64().unwrap() > 0);
    assert_eq!(
        world.json(&["locks", "ls", "--contended"]),
        json!({ "locks": [] })
    );

    let released = world.json(&[
        "locks", "release", "--key", "k", "--reason", "w", "--by", "ops",
    ]);
    assert_eq!(names(&released), ["already_released", "name", "was_holder"]);
    assert_eq!(released["was_holder"], json!(true));
    assert_eq!(holder.end().0.code(), Some(70));

    let shown = world.json(&["locks", "show", "k"]);
    let described = [
        "ended",
        "from_row",
        "holders",
        "home",
        "key",
        "last_fencing_token",
        "protocol",
        "table",
        "unfenced",
        "unordered",
        "unsynced",
        "waiter_count",
        "waiters",
    ];
    assert_eq!(names(&shown), described);
    assert_eq!(shown["from_row"], json!(false));
    assert_eq!(names(&shown["home"]), ["address", "replica", "term"]);
    assert_eq!(shown["home"]["replica"], holding["home"]);
    let ended = &shown["ended"][0];
    assert_eq!(
        names(ended),
        ["detail", "ended_by", "name", "reason", "seq"]
    );
    assert_eq!(ended["reason"], json!("END_REASON_FORCED"));
    assert_eq!(ended["ended_by"], json!("ops"));
}

#[test]
fn values_are_shown_as_text_and_base64() {
    let world = World::new();
    let put = world.json(&["put", "k", "v"]);
    assert_eq!(names(&put), ["fencing_token", "name"]);
    assert_eq!(
        world.json(&["get", "k"]),
        json!({ "table": "default", "key": "k", "exists": true, "value": "v", "value_base64": "dg==" })
    );
    let none = world.run(&["get", "none", "--output", "json"]);
    assert_eq!(none.status.code(), Some(1));
    let none: Value = serde_json::from_slice(&none.stdout).unwrap();
    assert_eq!(none["exists"], json!(false));
    assert_eq!(none["value"], Value::Null);
}
