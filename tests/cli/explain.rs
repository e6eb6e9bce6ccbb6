//! What the reasons of the service mean, for people.

use super::world::World;

fn explain(world: &World, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = world.run(&[&["explain"], arguments].concat());
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn a_refusal_names_its_reason_and_that_is_explained() {
    let world = World::new();
    let refused = world.run(&["get", "--table", "nowhere", "k"]);
    assert_eq!(refused.status.code(), Some(66));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.trim_end().ends_with("(UNKNOWN_TABLE)"), "{said}");
    let (code, page, _) = explain(&world, &["UNKNOWN_TABLE"]);
    assert_eq!(code, Some(0));
    for part in [
        "UNKNOWN_TABLE\n",
        "no table of that name",
        "Done: nothing.",
        "Do: ",
        "schema apply",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains('*') && !page.contains('`'), "{page}");
}

#[test]
fn a_reason_is_found_however_it_is_written_and_all_are_listed() {
    let world = World::new();
    for name in ["EXPIRED", "expired", " Expired ", "END_REASON_EXPIRED"] {
        let (code, page, said) = explain(&world, &[name]);
        assert_eq!(code, Some(0), "{name}: {said}");
        assert!(page.starts_with("EXPIRED\n"), "{page}");
    }
    let (code, page, _) = explain(&world, &["never-issued"]);
    assert!(
        code == Some(0) && page.starts_with("NEVER_ISSUED\n"),
        "{page}"
    );
    let (code, _, said) = explain(&world, &["EXPLODED"]);
    assert_eq!(code, Some(66));
    assert!(said.contains("no reason \"EXPLODED\""), "{said}");

    let (_, all, _) = explain(&world, &[]);
    assert!(all.lines().count() > 25, "{all}");
    let (_, json, _) = explain(&world, &["--output", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    for reason in json["reasons"].as_array().unwrap() {
        let name = reason["reason"].as_str().unwrap();
        assert!(all.contains(name), "{name}");
        assert_eq!(explain(&world, &[name]).0, Some(0), "{name}");
    }
}
