//! Where it ran.

use std::fs;
use std::process::Command;
use std::thread;

/// The machine, the version and the command, each with what it is called.
pub fn facts() -> Vec<(&'static str, String)> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let build = match cfg!(debug_assertions) {
        true => "debug build",
        false => "release build",
    };
    let profile = match cfg!(debug_assertions) {
        true => "",
        false => "--release ",
    };
    vec![
        (
            "command",
            format!("cargo run {profile}--example soak -- {}", words.join(" ")),
        ),
        (
            "Fermata",
            format!("{}, {build}{}", env!("CARGO_PKG_VERSION"), commit()),
        ),
        (
            "Cassandra",
            format!(
                "{}, {} nodes on this machine",
                super::shared::cassandra::VERSION,
                super::NODES
            ),
        ),
        ("machine", machine()),
    ]
}

/// Day and minute in UTC; nothing where the system does not say.
pub fn date() -> String {
    asked("date", &["-u", "+%Y-%m-%d %H:%M UTC"]).unwrap_or_default()
}

fn commit() -> String {
    asked("git", &["rev-parse", "--short", "HEAD"])
        .map_or(String::new(), |commit| format!(", commit {commit}"))
}

fn machine() -> String {
    let cores = thread::available_parallelism().map_or(0, |cores| cores.get());
    let memory = value_of("/proc/meminfo", "MemTotal:")
        .and_then(|text| text.trim_end_matches(" kB").parse::<u64>().ok())
        .map_or(0, |kib| kib >> 20);
    let processor = value_of("/proc/cpuinfo", "model name").unwrap_or_default();
    let system = asked("uname", &["-sr"]).unwrap_or_default();
    let system = system.split('-').next().unwrap_or_default();
    format!("{cores} cores ({processor}), {memory} GiB, {system}")
}

/// What follows a name in a file of lines.
fn value_of(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim_start_matches([' ', '\t', ':']).trim().to_owned())
}

fn asked(program: &str, words: &[&str]) -> Option<String> {
    let output = Command::new(program).args(words).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
