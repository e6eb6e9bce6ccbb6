//! Reads the layers of the configuration and says everything that is wrong with them at once: what,
//! and where it came from.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use config::{ConfigError, FileFormat, Map, Source, Value, ValueKind};
use serde::Serialize;
use serde_json::Value as Json;

use super::Config;

/// Environment variables with this prefix are settings; other `FERMATA_` names are not.
pub(super) const PREFIX: &str = "FERMATA_CFG_";
/// Stands between the levels of a setting in the name of an environment variable.
pub(super) const LEVELS: &str = "__";
/// No setting is deeper.
const LEVELS_MAX: usize = 8;
const NO_SUCH_SETTING: &str = "there is no such setting";
/// The usual variable for `log.filter`; an own `FERMATA_CFG_LOG__FILTER` comes before it.
const RUST_LOG: &str = "RUST_LOG";
/// The variable that names the file, where no flag does.
const FILE_VARIABLE: &str = "FERMATA_CONFIG";

/// What to read the configuration from; the later in this list, the higher the precedence.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// A file in TOML.
    pub file: Option<PathBuf>,
    /// Environment variables; those that are no settings are ignored.
    pub environment: Vec<(OsString, OsString)>,
    /// What was given as flags.
    pub flags: Vec<Flag>,
}

/// A setting given as a flag.
#[derive(Debug, Clone)]
pub struct Flag {
    /// The flag as the user wrote it: `--listen`.
    pub name: &'static str,
    /// The setting: `listen`.
    pub key: String,
    /// Its value.
    pub value: String,
}

/// One thing that is wrong with the configuration.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Problem {
    /// The setting, where it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// What is wrong, in words.
    pub what: String,
    /// Where it was set, where that is a single location.
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

/// Everything that is wrong with the configuration. Correct it and start again.
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
    /// Reads all layers and checks the result. On failure every problem is listed, not only the first.
    pub fn load(sources: &Sources) -> Result<Config, Problems> {
        Self::load_with(sources, Config::check)
    }

    /// The same for those who need only a part of it: `check` says what must fit together there.
    pub fn load_with(
        sources: &Sources,
        check: impl FnOnce(&Config) -> Result<(), Vec<String>>,
    ) -> Result<Config, Problems> {
        Self::load_reading(sources, check, |file| std::fs::read_to_string(file))
    }

    /// The same with files that `read` reads.
    pub(super) fn load_reading(
        sources: &Sources,
        check: impl FnOnce(&Config) -> Result<(), Vec<String>>,
        read: impl FnOnce(&Path) -> io::Result<String>,
    ) -> Result<Config, Problems> {
        let mut problems = Vec::new();
        let tree = sources.merge(read, &mut problems);
        let schema = serde_json::to_value(Config::default())
            .map_err(|error| Problems(vec![plain(error.to_string())]))?;
        let file = match &sources.file {
            Some(path) => format!("file {}", path.display()),
            None => String::new(),
        };
        let mut good = Map::new();
        let mut walk = Walk {
            file: &file,
            problems: &mut problems,
            origins: BTreeMap::new(),
        };
        walk.table("", &schema, tree, &mut good);
        let origins = walk.origins;

        // What is left has been tried setting by setting, so this cannot fail; but nothing depends on it.
        let config: Config = Value::new(None, good)
            .try_deserialize()
            .map_err(|error| Problems(vec![plain(reason(error))]))?;
        let unfit = check(&config).err().into_iter().flatten();
        problems.extend(unfit.map(|what| Problem {
            origin: origin_of_named(&what, &origins),
            ..plain(what)
        }));
        if problems.is_empty() {
            Ok(config)
        } else {
            problems.sort();
            Err(Problems(problems))
        }
    }
}

impl Sources {
    /// The variables of this process.
    pub fn process_environment() -> Vec<(OsString, OsString)> {
        std::env::vars_os().collect()
    }

    /// All layers on top of each other, each value with where it came from (none: the file).
    fn merge(
        &self,
        read: impl FnOnce(&Path) -> io::Result<String>,
        problems: &mut Vec<Problem>,
    ) -> Map<String, Value> {
        let mut builder = config::Config::builder();
        if let Some(path) = &self.file {
            match read(path) {
                Ok(text) => match config::File::from_str(&text, FileFormat::Toml).collect() {
                    Ok(tree) => {
                        let origin = format!("file {}", path.display());
                        // Its levels are not in its names.
                        let known = tree
                            .into_iter()
                            .filter(|(name, _)| is_path(name, 1, &origin, problems))
                            .collect();
                        builder = builder.add_source(Layer(known));
                    }
                    Err(error) => problems.push(Problem {
                        key: None,
                        what: reason(error).trim_end().to_owned(),
                        origin: Some(format!("file {}", path.display())),
                    }),
                },
                Err(error) => problems.push(Problem {
                    origin: Some(self.origin_of_file(path)),
                    ..plain(format!(
                        "cannot read the configuration file {}: {error}",
                        path.display()
                    ))
                }),
            }
        }
        let merged = builder
            .add_source(self.environment_layer(problems))
            .add_source(self.flag_layer())
            .build()
            .and_then(|merged| merged.collect());
        match merged {
            Ok(tree) => tree,
            Err(error) => {
                problems.push(plain(reason(error)));
                Map::new()
            }
        }
    }

    /// What named the file.
    fn origin_of_file(&self, path: &Path) -> String {
        let mut variables = self.environment.iter();
        match variables.any(|(name, value)| name == FILE_VARIABLE && Path::new(value) == path) {
            true => format!("environment variable {FILE_VARIABLE}"),
            false => "flag --config".to_owned(),
        }
    }

    fn environment_layer(&self, problems: &mut Vec<Problem>) -> Layer {
        let mut values = BTreeMap::new();
        for (name, value) in &self.environment {
            let Some(name) = name.to_str() else {
                continue;
            };
            let (key, is_own) = match name.strip_prefix(PREFIX) {
                Some(rest) => (rest.to_ascii_lowercase().replace(LEVELS, "."), true),
                None if name == RUST_LOG => ("log.filter".to_owned(), false),
                None => continue,
            };
            let origin = format!("environment variable {name}");
            if !is_path(&key, LEVELS_MAX, &origin, problems) {
                continue;
            }
            let Some(value) = value.to_str() else {
                problems.push(Problem {
                    key: Some(key),
                    what: "its value is not UTF-8".to_owned(),
                    origin: Some(origin),
                });
                continue;
            };
            if is_own || !values.contains_key(&key) {
                values.insert(key, Value::new(Some(&origin), value));
            }
        }
        Layer(values)
    }

    fn flag_layer(&self) -> Layer {
        let value = |flag: &Flag| {
            let origin = format!("flag {}", flag.name);
            Value::new(Some(&origin), flag.value.as_str())
        };
        Layer(
            self.flags
                .iter()
                .map(|flag| (flag.key.clone(), value(flag)))
                .collect(),
        )
    }
}

/// Whether there may be a setting of this name; if not, that is noted. The library takes a name for a path, in which
/// `a[9999999999]` makes a list that is so long, and each level is one more call on the stack.
fn is_path(name: &str, levels_max: usize, origin: &str, problems: &mut Vec<Problem>) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
    let good = name.chars().all(plain) && name.split('.').count() <= levels_max;
    if !good {
        problems.push(Problem {
            key: Some(name.to_owned()),
            what: NO_SUCH_SETTING.to_owned(),
            origin: Some(origin.to_owned()),
        });
    }
    good
}

/// Settings by their full names.
#[derive(Debug, Clone)]
struct Layer(BTreeMap<String, Value>);

impl Source for Layer {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, ConfigError> {
        Ok(self.0.clone().into_iter().collect())
    }
}

/// Compares what was given with what there is (the default configuration as JSON).
struct Walk<'a> {
    file: &'a str,
    problems: &'a mut Vec<Problem>,
    /// Where each setting that is good by itself was set.
    origins: BTreeMap<String, String>,
}

impl Walk<'_> {
    fn table(
        &mut self,
        path: &str,
        schema: &Json,
        given: Map<String, Value>,
        good: &mut Map<String, Value>,
    ) {
        for (name, value) in given {
            let key = if path.is_empty() {
                name.clone()
            } else {
                format!("{path}.{name}")
            };
            // Tables have names of the user's own.
            let inner = match path {
                "tables" => Some(&Json::Null),
                _ => schema.get(&name),
            };
            let origin = self.origin(&value);
            let problem = match (inner, value.kind) {
                (None, _) => NO_SUCH_SETTING.to_owned(),
                (Some(inner @ Json::Object(_)), ValueKind::Table(below)) => {
                    let mut kept = Map::new();
                    self.table(&key, inner, below, &mut kept);
                    good.insert(name, Value::new(None, kept));
                    continue;
                }
                (Some(Json::Object(_)), _) => {
                    format!("this is a section: write [{key}] and its settings below")
                }
                (Some(inner), kind) => {
                    let tried = fits(inner, &kind).and_then(|()| {
                        try_alone(&key, kind.clone()).map_err(|what| match inner {
                            // Digits alone: nothing else can be wrong with them.
                            Json::Number(_) => format!("{kind} is too large"),
                            _ => none_of_its_values(&key, &kind).unwrap_or(what),
                        })
                    });
                    match tried {
                        Ok(()) => {
                            good.insert(name, Value::new(None, kind));
                            self.origins.extend(origin.map(|origin| (key, origin)));
                            continue;
                        }
                        Err(what) => what,
                    }
                }
            };
            self.problems.push(Problem {
                key: Some(key),
                what: problem,
                origin,
            });
        }
    }

    fn origin(&self, value: &Value) -> Option<String> {
        let origin = origin_of_first(value).unwrap_or(self.file);
        (!origin.is_empty()).then(|| origin.to_owned())
    }
}

/// Where a value was set. The library knows that of a section by what is in it only: of that the first by name counts.
fn origin_of_first(value: &Value) -> Option<&str> {
    let inner = match &value.kind {
        ValueKind::Table(below) => below.iter().min_by(|(a, _), (b, _)| a.cmp(b)),
        _ => None,
    };
    match inner {
        Some((_, first)) => origin_of_first(first),
        None => value.origin(),
    }
}

/// The library would take `64.5` or `true` for a number, and say of `-1` that it is text; text is how the
/// environment says everything.
fn fits(schema: &Json, given: &ValueKind) -> Result<(), String> {
    match (schema, given) {
        (Json::Number(_), ValueKind::I64(_) | ValueKind::U64(_) | ValueKind::String(_)) => {
            let text = given.to_string();
            match text.strip_prefix('-').unwrap_or(&text) {
                digits if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) => {
                    Err(format!("{text:?} is no whole number"))
                }
                digits if digits.len() < text.len() => {
                    Err(format!("{text} is negative; this must be 0 or more"))
                }
                // TOML has none that is larger: it could not be printed.
                digits if digits.parse::<i64>().is_err() => Err(format!("{text} is too large")),
                _ => Ok(()),
            }
        }
        (Json::Number(_), _) => Err("this must be a whole number".to_owned()),
        (Json::Bool(_), ValueKind::Boolean(_)) => Ok(()),
        (Json::Bool(_), ValueKind::String(text)) if text == "true" || text == "false" => Ok(()),
        (Json::Bool(_), ValueKind::String(text)) => {
            Err(format!("this must be true or false, not {text:?}"))
        }
        (Json::Bool(_), _) => Err("this must be true or false".to_owned()),
        (_, ValueKind::String(_)) => Ok(()),
        (Json::String(_), _) => Err("this must be text, in quotes".to_owned()),
        _ => Ok(()),
    }
}

/// Whether a configuration with this setting alone can be read.
fn try_alone(key: &str, kind: ValueKind) -> Result<(), String> {
    let nested = key.rsplit('.').fold(Value::new(None, kind), |inner, name| {
        Value::new(None, Map::from([(name.to_owned(), inner)]))
    });
    nested
        .try_deserialize::<Config>()
        .map(|_| ())
        .map_err(reason)
}

/// Of a setting that has some values only: which. `None` where that is not what is wrong.
fn none_of_its_values(key: &str, kind: &ValueKind) -> Option<String> {
    let given = kind.to_string();
    let nested = key
        .rsplit('.')
        .fold(Json::from(given.as_str()), |inner, name| {
            Json::from_iter([(name, inner)])
        });
    // serde names them, as "expected `a` or `b`" or "expected one of `a`, `b`, `c`".
    let why = serde_json::from_value::<Config>(nested).err()?.to_string();
    let (_, values) = why
        .strip_prefix("unknown variant ")?
        .split_once("expected ")?;
    let values = values.trim_start_matches("one of ").replace('`', "");
    Some(format!("{given:?} is none of its values: {values}"))
}

/// Where the settings that a problem names were set; those by default are not named.
fn origin_of_named(what: &str, origins: &BTreeMap<String, String>) -> Option<String> {
    let names: Vec<&str> = what
        .split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.')))
        .map(|word| word.trim_end_matches('.'))
        .collect();
    let set = origins.iter();
    let set: Vec<_> = set
        .filter(|(key, _)| names.contains(&key.as_str()))
        .collect();
    match set.as_slice() {
        [] => None,
        [(_, origin)] => Some((*origin).clone()),
        several => {
            let each = several
                .iter()
                .map(|(key, origin)| format!("{key}: {origin}"));
            Some(each.collect::<Vec<_>>().join("; "))
        }
    }
}

/// The library's error without the key and origin that are told beside it.
fn reason(error: ConfigError) -> String {
    match error {
        ConfigError::At { error, .. } => reason(*error),
        ConfigError::Type {
            unexpected,
            expected,
            ..
        } => format!("expected {expected}, found {unexpected}"),
        ConfigError::FileParse { cause, .. } => cause.to_string(),
        other => other.to_string(),
    }
}

fn plain(what: String) -> Problem {
    Problem {
        key: None,
        what,
        origin: None,
    }
}
