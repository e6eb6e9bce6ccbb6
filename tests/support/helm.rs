//! The Helm chart, rendered.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value as Json;

/// Set to 1 where helm must be there.
const REQUIRE: &str = "FERMATA_REQUIRE_HELM";
/// The oldest one that the chart is for. (A helm that go built assumes one of long ago.)
const KUBERNETES: &str = "1.27.0";

/// Whether tests of the chart have to be skipped.
#[expect(
    clippy::explicit_write,
    reason = "the harness hides what eprintln! says in a test that passes"
)]
pub fn is_missing() -> bool {
    if Command::new("helm").arg("version").output().is_ok() {
        return false;
    }
    let required = std::env::var(REQUIRE).is_ok_and(|value| value == "1");
    assert!(!required, "{REQUIRE}=1, and there is no helm on the PATH");
    writeln!(
        std::io::stderr(),
        "SKIPPED: the chart was not rendered, there is no helm on the PATH"
    )
    .unwrap();
    true
}

/// The manifests that the templates of this project's chart make, or why helm makes none.
pub fn rendered(template: &str, more: &[&str]) -> Result<String, String> {
    rendered_of(Path::new("helm/fermata"), template, more)
}

/// The same of a copy of the chart.
pub fn rendered_of(chart: &Path, template: &str, more: &[&str]) -> Result<String, String> {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new("helm")
        .args(["template", "fermata"])
        .arg(chart)
        .args(["--namespace", "locks", "--kube-version", KUBERNETES])
        .args(["--show-only", &format!("templates/{template}")])
        .args(more)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    if status.success() {
        Ok(String::from_utf8(stdout).unwrap())
    } else {
        Err(String::from_utf8(stderr).unwrap())
    }
}

/// The arguments of the only container.
pub fn args(manifest: &str) -> Vec<String> {
    let mut found = manifest
        .lines()
        .filter_map(|line| line.trim().strip_prefix("args: "));
    let args: Json = serde_json::from_str(found.next().unwrap()).unwrap();
    assert_eq!(found.next(), None, "{manifest}");
    serde_json::from_value(args).unwrap()
}
