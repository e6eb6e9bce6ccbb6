//! Compiles what replicas say to each other, with protox (no protoc needed), into Rust: both sides. The contract is
//! compiled in `crates/proto`. Tells `src/build.rs` the commit.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, error, fs};

use prost::Message as _;

/// The sources of the binary.
const SOURCES: &[&str] = &[
    "Cargo.lock",
    "Cargo.toml",
    "build.rs",
    "crates",
    "proto",
    "src",
];

fn main() -> Result<(), Box<dyn error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let peer = protox::compile(["fermata/internal/v1/peer.proto"], ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("peer.binpb"), peer.encode_to_vec())?;
    tonic_prost_build::configure()
        .bytes(".fermata.internal.v1")
        .compile_fds(peer)?;

    let version = env::var("CARGO_PKG_VERSION")?;
    let commit = named()?.or_else(packaged).or_else(checked_out);
    let described = commit.as_ref().map_or(version.clone(), |commit| {
        format!("{version} ({})", commit.trim())
    });
    let hash = commit.as_deref().and_then(|c| c.split_whitespace().next());
    println!(
        "cargo::rustc-env=FERMATA_BUILT_COMMIT={}",
        hash.unwrap_or("unknown")
    );
    println!("cargo::rustc-env=FERMATA_BUILT_VERSION={described}");
    Ok(())
}

/// By the one who builds, where neither of the others is there: an image is built without `.git`.
fn named() -> Result<Option<String>, env::VarError> {
    println!("cargo::rerun-if-env-changed=FERMATA_COMMIT");
    match env::var("FERMATA_COMMIT") {
        Ok(commit) => Ok(Some(commit).filter(|commit| !commit.trim().is_empty())),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(error) => Err(error),
    }
}

/// By cargo, in a package.
fn packaged() -> Option<String> {
    let written = fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let after = written.split_once("\"sha1\"")?.1;
    let hash = after.split('"').nth(1)?.get(..8)?;
    let dirty = written.contains("\"dirty\": true");
    Some(format!("{hash}{}", if dirty { "-dirty" } else { "" }))
}

/// By git, with the date. Not in debug builds: each commit would compile the crate again.
fn checked_out() -> Option<String> {
    if env::var("PROFILE").ok()? == "debug" || !Path::new(".git").exists() {
        return None;
    }
    let moved = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    for path in SOURCES.iter().copied().chain([moved.as_str()]) {
        if Path::new(path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let hash = git(&["log", "-1", "--abbrev=8", "--format=%h"])?;
    let date = git(&["log", "-1", "--format=%cs"])?;
    let changed = git(&[&["status", "--porcelain", "--"], SOURCES].concat())?;
    let dirty = if changed.is_empty() { "" } else { "-dirty" };
    Some(format!("{hash}{dirty} {date}"))
}

fn git(arguments: &[&str]) -> Option<String> {
    let done = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(done.stdout).ok()?;
    done.status.success().then(|| text.trim().to_owned())
}
