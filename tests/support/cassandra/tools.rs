//! What this machine must have: Java, the jars (fetched by Maven once), and `flock`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{ClusterError, VERSION};

const POM: &str = include_str!("pom.xml");
/// What Cassandra 5.0 runs on.
const JAVA_VERSIONS: [&str; 2] = ["17", "11"];

/// The programs and jars that a node is started with.
#[derive(Clone, Debug)]
pub struct Tools {
    pub java: PathBuf,
    /// A directory of nothing but jars.
    pub jars: PathBuf,
    /// The jar that is given to the JVM as its agent.
    pub agent: PathBuf,
}

/// Where jars and nodes lie: `FERMATA_CASSANDRA_CACHE`, else in the user's cache directory.
pub fn cache_directory() -> Result<PathBuf, ClusterError> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(chosen) = variable("FERMATA_CASSANDRA_CACHE") {
        return std::path::absolute(chosen).map_err(ClusterError::io("FERMATA_CASSANDRA_CACHE"));
    }
    let user = variable("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| variable("HOME").map(|home| Path::new(&home).join(".cache")));
    match user {
        Some(user) => Ok(user.join("fermata/cassandra")),
        None => Err(ClusterError::Missing(
            "no directory for Cassandra's jars: set FERMATA_CASSANDRA_CACHE".to_owned(),
        )),
    }
}

impl Tools {
    /// Finds what is needed; fetches the jars if they are not in the cache yet.
    pub fn find(say: &dyn Fn(&str)) -> Result<Tools, ClusterError> {
        let java = java()?;
        if !runs("flock", "--version") {
            return Err(ClusterError::Missing(
                "flock (of util-linux) is not installed".to_owned(),
            ));
        }
        let jars = jars(say)?;
        let agent = fs::read_dir(&jars)
            .map_err(ClusterError::io(jars.display()))?
            .flatten()
            .map(|entry| entry.path())
            .find(|path| name_of(path).starts_with("jamm-"))
            .ok_or_else(|| ClusterError::Fetch("jamm is not among them".to_owned()))?;
        Ok(Tools { java, jars, agent })
    }
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn runs(program: &str, argument: &str) -> bool {
    let mut command = Command::new(program);
    command.arg(argument).stdin(Stdio::null());
    command.output().is_ok_and(|output| output.status.success())
}

/// The first Java of a version that Cassandra runs on: of JAVA_HOME, of PATH, of the usual places.
fn java() -> Result<PathBuf, ClusterError> {
    let home = std::env::var_os("JAVA_HOME").map(|home| Path::new(&home).join("bin/java"));
    let usual = fs::read_dir("/usr/lib/jvm").into_iter().flatten().flatten();
    let usual = usual.map(|entry| entry.path().join("bin/java"));
    let mut found = Vec::new();
    for java in home.into_iter().chain([PathBuf::from("java")]).chain(usual) {
        match java_version(&java) {
            Some(version) if JAVA_VERSIONS.contains(&&*version) => return Ok(java),
            Some(version) => found.push(version),
            None => {}
        }
    }
    found.dedup();
    Err(ClusterError::Missing(match found.is_empty() {
        true => "Java 17 is not installed".to_owned(),
        false => format!(
            "Cassandra needs Java 17 or 11; here is {}",
            found.join(", ")
        ),
    }))
}

/// `17` of `openjdk version "17.0.15" …`.
fn java_version(java: &Path) -> Option<String> {
    let output = Command::new(java)
        .arg("-version")
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let answered = String::from_utf8_lossy(&output.stderr).into_owned();
    let version = answered.split('"').nth(1)?;
    version.split('.').next().map(str::to_owned)
}

/// The directory of jars; fetched whole, or not there.
fn jars(say: &dyn Fn(&str)) -> Result<PathBuf, ClusterError> {
    let home = cache_directory()?.join(VERSION);
    let jars = home.join("jars");
    if jars.is_dir() {
        return Ok(jars);
    }
    fs::create_dir_all(&home).map_err(ClusterError::io(home.display()))?;
    let fetching = File::create(home.join("fetching")).map_err(ClusterError::io(home.display()))?;
    fetching
        .lock()
        .map_err(ClusterError::io("the lock of the cache"))?;
    if jars.is_dir() {
        return Ok(jars);
    }
    if !runs("mvn", "--version") {
        return Err(ClusterError::Missing(
            "Maven (mvn) is not installed, and Cassandra's jars are not in the cache yet"
                .to_owned(),
        ));
    }
    say(&format!(
        "fetching Cassandra {VERSION} by Maven into {} (once, about 70 MB)",
        home.display()
    ));
    let partial = home.join("jars.partial");
    let pom = home.join("pom.xml");
    fs::write(&pom, POM.replace("@VERSION@", VERSION)).map_err(ClusterError::io(pom.display()))?;
    let output = Command::new("mvn")
        .args(["-q", "-B", "-f"])
        .arg(&pom)
        .args(["dependency:copy-dependencies", "-DincludeScope=runtime"])
        .arg(format!("-DoutputDirectory={}", partial.display()))
        .stdin(Stdio::null())
        .output()
        .map_err(ClusterError::io("mvn"))?;
    if !output.status.success() {
        let answered = String::from_utf8_lossy(&output.stdout).into_owned();
        return Err(ClusterError::Fetch(answered));
    }
    fs::rename(&partial, &jars).map_err(ClusterError::io(jars.display()))?;
    Ok(jars)
}
