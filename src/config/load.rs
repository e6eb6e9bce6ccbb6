//! Reads the layers of the configuration. All problems are listed at once, each with its source.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value as Json;
use toml::{Table, Value};

use super::settings::Config;

/// The prefix of environment variables that are settings.
pub(super) const PREFIX: &str = "FERMATA_CFG_";
/// Separates the levels of a setting in the name of an environment variable.
const LEVELS: &str = "__";
const NO_SUCH_SETTING: &str = "there is no such setting";
/// The usual variable for `log.filter`; an own `FERMATA_CFG_LOG__FILTER` comes before it.
const RUST_LOG: &str = "RUST_LOG";

/// The layers of the configuration, from low to high precedence.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// A file in TOML.
    pub file: Option<PathBuf>,
    /// Environment variables. Names without [`PREFIX`] are ignored.
    pub environment: Vec<(OsString, OsString)>,
    /// Flags.
    pub flags: Vec<Flag>,
}

/// A setting given as a flag.
#[derive(Debug, Clone)]
pub struct Flag {
    /// The flag, such as `--listen`.
    pub name: &'static str,
    /// The setting, such as `listen`.
    pub key: String,
    /// Its value.
    pub value: String,
}

/// One problem of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Problem {
    /// The setting, if there is a single one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The problem, in words.
    pub what: String,
    /// The source of the setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(key) = &self.key {
            write!(f, "{key}: ")?;
        }
        f.write_str(&self.what)?;
        match &self.origin {
            Some(origin) => write!(f, " ({origin})"),
            None => Ok(()),
        }
    }
}

/// All problems of the configuration. Correct it and start again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the configuration is not valid")?;
        for problem in &self.0 {
            write!(f, "\n  {problem}")?;
        }
        Ok(())
    }
}

impl Config {
    /// Reads all layers and checks the result.
    pub fn load(sources: &Sources) -> Result<Config, Problems> {
        Self::load_with(sources, Config::check)
    }

    /// The same with another check, for commands that need a part of the configuration.
    pub fn load_with(
        sources: &Sources,
        check: impl FnOnce(&Config) -> Result<(), Vec<String>>,
    ) -> Result<Config, Problems> {
        Self::load_reading(sources, check, |file| std::fs::read_to_string(file))
    }

    /// The same with another way to read files.
    pub(super) fn load_reading(
        sources: &Sources,
        check: impl FnOnce(&Config) -> Result<(), Vec<String>>,
        read: impl FnOnce(&Path) -> io::Result<String>,
    ) -> Result<Config, Problems> {
        let schema = serde_json::to_value(Config::default())
            .map_err(|error| Problems(vec![plain(error.to_string())]))?;
        let mut layers = Layers {
            schema,
            given: BTreeMap::new(),
            problems: Vec::new(),
        };
        if let Some(path) = &sources.file {
            layers.file(path, read);
        }
        layers.environment(&sources.environment);
        for flag in &sources.flags {
            let origin = format!("flag {}", flag.name);
            layers.add(flag.key.clone(), flag.value.clone().into(), &origin);
        }
        layers.read(check)
    }
}

impl Sources {
    /// The variables of this process.
    pub fn process_environment() -> Vec<(OsString, OsString)> {
        std::env::vars_os().collect()
    }
}

/// The layers so far, on top of each other.
struct Layers {
    /// The default configuration: the names of all settings, and the kinds of their values.
    schema: Json,
    /// Each setting with its source.
    given: BTreeMap<String, (Value, String)>,
    problems: Vec<Problem>,
}

impl Layers {
    fn file(&mut self, path: &Path, read: impl FnOnce(&Path) -> io::Result<String>) {
        let file = path.display();
        let origin = format!("file {file}");
        let text = match read(path) {
            Ok(text) => text,
            Err(error) => {
                let what = format!("cannot read the configuration file {file}: {error}");
                return self.problems.push(plain(what));
            }
        };
        match text.parse::<Table>() {
            Ok(table) => {
                for (name, value) in table {
                    self.add(name, value, &origin);
                }
            }
            Err(error) => self.problems.push(Problem {
                origin: Some(origin),
                ..plain(error.to_string().trim_end().to_owned())
            }),
        }
    }

    fn environment(&mut self, variables: &[(OsString, OsString)]) {
        let named = |wanted: fn(&str) -> Option<String>| {
            let named = variables.iter().filter_map(move |(name, value)| {
                let name = name.to_str()?;
                Some((name, wanted(name)?, value))
            });
            named.collect::<Vec<_>>()
        };
        let usual = named(|name| (name == RUST_LOG).then(|| "log.filter".to_owned()));
        let own = named(|name| {
            let setting = name.strip_prefix(PREFIX)?;
            Some(setting.to_ascii_lowercase().replace(LEVELS, "."))
        });
        for (name, key, value) in usual.into_iter().chain(own) {
            let origin = format!("environment variable {name}");
            match value.to_str() {
                Some(value) => self.add(key, value.into(), &origin),
                None => self.problem(key, "its value is not UTF-8", &origin),
            }
        }
    }

    /// Adds a setting, or all settings of a section.
    fn add(&mut self, key: String, value: Value, origin: &str) {
        match (self.schema_of(&key), value) {
            (None, _) => self.problem(key, NO_SUCH_SETTING, origin),
            (Some(Json::Object(_)), Value::Table(below)) => {
                for (name, value) in below.clone() {
                    self.add(format!("{key}.{name}"), value, origin);
                }
                // A table may have no settings of its own.
                if below.is_empty() {
                    self.given.insert(key, (below.into(), origin.to_owned()));
                }
            }
            (Some(Json::Object(_)), _) => {
                let what = format!("this is a section: write [{key}] and its settings below");
                self.problem(key, &what, origin);
            }
            (Some(_), value) => drop(self.given.insert(key, (value, origin.to_owned()))),
        }
    }

    fn problem(&mut self, key: String, what: &str, origin: &str) {
        self.problems.push(Problem {
            key: Some(key),
            what: what.to_owned(),
            origin: Some(origin.to_owned()),
        });
    }

    /// The default of a setting, or of a section. The names below `tables` are free.
    fn schema_of(&self, key: &str) -> Option<&Json> {
        let mut names = key.split('.');
        let first = self.schema.get(names.next()?)?;
        let table = match key.starts_with("tables.") {
            true => names.next().and_then(|_| first.get("default")),
            false => Some(first),
        };
        names.try_fold(table?, |at, name| at.get(name))
    }

    /// Reads each setting alone, then all together.
    fn read(
        mut self,
        check: impl FnOnce(&Config) -> Result<(), Vec<String>>,
    ) -> Result<Config, Problems> {
        let mut good = Table::new();
        for (key, (value, origin)) in std::mem::take(&mut self.given) {
            let read = typed(self.schema_of(&key), value).and_then(|value| {
                let mut alone = Table::new();
                insert(&mut alone, &key, value.clone());
                match alone.try_into::<Config>() {
                    Ok(_) => Ok(value),
                    Err(error) => Err(error.message().to_owned()),
                }
            });
            match read {
                Ok(value) => insert(&mut good, &key, value),
                Err(what) => self.problem(key, &what, &origin),
            }
        }
        let config: Config = good
            .try_into()
            .map_err(|error| Problems(vec![plain(error.to_string())]))?;
        let unfit = check(&config).err().into_iter().flatten();
        self.problems.extend(unfit.map(plain));
        match self.problems.is_empty() {
            true => Ok(config),
            false => {
                self.problems.sort();
                Err(Problems(self.problems))
            }
        }
    }
}

/// The value of a setting. The environment and flags have texts only.
fn typed(schema: Option<&Json>, value: Value) -> Result<Value, String> {
    match (schema, value) {
        (Some(Json::Number(_)), Value::String(text)) => match text.parse() {
            Ok(number) => Ok(Value::Integer(number)),
            Err(error) => Err(format!("{text:?} is not a whole number: {error}")),
        },
        (Some(Json::Bool(_)), Value::String(text)) => match text.parse() {
            Ok(value) => Ok(Value::Boolean(value)),
            Err(_) => Err(format!("this must be true or false, not {text:?}")),
        },
        (_, value) => Ok(value),
    }
}

/// Inserts the value of a setting by its full name.
fn insert(table: &mut Table, key: &str, value: Value) {
    let Some((name, below)) = key.split_once('.') else {
        table.insert(key.to_owned(), value);
        return;
    };
    let section = table.entry(name).or_insert_with(|| Table::new().into());
    if let Value::Table(section) = section {
        insert(section, below, value);
    }
}

fn plain(what: String) -> Problem {
    Problem {
        key: None,
        what,
        origin: None,
    }
}
