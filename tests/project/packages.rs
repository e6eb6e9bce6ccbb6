//! What the crates are packaged with.

use std::process::Command;

use super::files;

/// The manifests of the crates that are published.
fn published() -> Vec<String> {
    let mut manifests = files::ending("Cargo.toml");
    manifests.retain(|path| !path.starts_with("tests/"));
    manifests.retain(|path| !files::text(path).contains("\npublish = false\n"));
    assert!(manifests.len() > 5, "{manifests:?}");
    manifests
}

#[test]
fn a_crate_is_packaged_with_what_it_is_built_of_and_with_its_licences() {
    for manifest in published() {
        let manifest_text = files::text(&manifest);
        for inherited in ["license", "readme", "repository", "version"] {
            let line = format!("\n{inherited}.workspace = true\n");
            assert!(manifest_text.contains(&line), "{manifest}: {inherited}");
        }
        let (_, name) = manifest_text.split_once("name = \"").unwrap();
        let (name, _) = name.split_once('"').unwrap();
        let listed = Command::new(env!("CARGO"))
            .args([
                "package",
                "--list",
                "--allow-dirty",
                "--offline",
                "-p",
                name,
            ])
            .current_dir(files::root())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&listed.stderr);
        assert!(listed.status.success(), "{manifest}: {said}");
        let listed = String::from_utf8(listed.stdout).unwrap();
        let mut listed: Vec<&str> = listed.lines().collect();
        for needed in ["LICENSE-APACHE", "LICENSE-MIT", "README.md", "src/lib.rs"] {
            assert!(listed.contains(&needed), "{manifest}: no {needed}");
        }
        if manifest_text.contains("[build-dependencies]") {
            assert!(listed.contains(&"build.rs"), "{manifest}: no build.rs");
            let has_proto = listed.iter().any(|path| path.ends_with(".proto"));
            assert!(has_proto, "{manifest}: no contract");
        }
        // Of a release nobody compiles tests, charts or documents.
        listed.retain(|path| path.contains('/'));
        listed.retain(|path| !path.starts_with("src/") && !path.starts_with("proto/fermata/"));
        assert!(listed.is_empty(), "{manifest}: {listed:?}");
    }
}

/// A build script or a source that reads a file above its package is built here, and not from the registry.
#[test]
fn no_crate_reads_a_file_outside_of_its_package() {
    for manifest in published() {
        let folder = manifest.trim_end_matches("Cargo.toml");
        let build = format!("{folder}build.rs");
        let sources = files::ending(".rs").into_iter().filter(|path| {
            let inside = path.strip_prefix(folder);
            *path == build || inside.is_some_and(|path| path.starts_with("src/"))
        });
        for path in sources {
            let up = "../".repeat(path.strip_prefix(folder).unwrap().matches('/').count() + 1);
            assert!(!files::text(&path).contains(&format!("\"{up}")), "{path}");
        }
    }
}
