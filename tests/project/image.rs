//! What the image is built of.

use std::process::Command;

use super::files::{root, text};

/// `.dockerignore` leaves out all but what it names.
#[test]
fn nothing_that_the_image_is_built_of_is_left_out() {
    let ignored = text(".dockerignore");
    let named: Vec<&str> = ignored
        .lines()
        .filter_map(|line| line.strip_prefix('!'))
        .collect();
    let dockerfile = text("Dockerfile");
    let copies = dockerfile
        .lines()
        .filter_map(|line| line.strip_prefix("COPY "));
    let mut copied = 0;
    for copy in copies.filter(|copy| !copy.contains("--from=")) {
        let words: Vec<&str> = copy.split_whitespace().collect();
        for path in &words[..words.len() - 1] {
            copied += 1;
            let holds = |one: &str| *path == one || path.starts_with(&format!("{one}/"));
            assert!(
                named.iter().any(|one| holds(one)),
                "{path}: not in .dockerignore"
            );
            assert!(root().join(path).exists(), "{path}");
        }
    }
    assert!(copied > 4, "{copied}");
}

/// The settings of deploy/compose.yaml, as `fermata serve` reads them.
#[test]
fn the_replicas_of_the_compose_file_have_valid_settings() {
    let compose = text("deploy/compose.yaml");
    let settings = compose
        .split(['\n', ',', '{', '}'])
        .filter_map(|part| part.trim().split_once(": "))
        .filter(|(name, _)| name.starts_with("FERMATA_CFG_"))
        .map(|(name, value)| (name, value.trim_matches('"')));
    let checked = Command::new(env!("CARGO_BIN_EXE_fermata"))
        .arg("check")
        .envs(settings)
        .env("FERMATA_CFG_INSECURE", "true")
        .output()
        .unwrap();
    assert!(checked.status.success(), "{checked:?}");
    let printed = String::from_utf8(checked.stdout).unwrap();
    assert!(
        printed.contains("advertise = \"fermata-3:7451\""),
        "{printed}"
    );
}
