//! What the reasons of the service mean, for people.

use super::world::World;

#[test]
fn a_refusal_names_its_reason_and_that_is_explained() {
    let world = World::new();
    let refused = world.run(&["get", "--table", "nowhere", "k"]);
    assert_eq!(refused.status.code(), Some(66));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.trim_end().ends_with("(UNKNOWN_TABLE)"), "{said}");
    let page = world.text(&["explain", "UNKNOWN_TABLE"]);
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
