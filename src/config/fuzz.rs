//! The promise of the configuration reader: it returns settings within their limits, which can be printed and read again, or
//! errors that name a setting or a position in the file.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::sync::LazyLock;

use serde_json::Value as Json;

use super::load::PREFIX;
use super::{Config, Flag, Problem, Problems, Sources, Span};
use crate::lock::{Key, TableName};

const FILE: &str = "fermata.toml";

/// Every setting and every section, by its full name.
static NAMES: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
    let mut names = BTreeSet::new();
    if let Ok(defaults) = serde_json::to_value(Config::default()) {
        add_names("", &defaults, &mut names);
    }
    names
});

fn add_names(path: &str, value: &Json, names: &mut BTreeSet<String>) {
    for (name, below) in value.as_object().into_iter().flatten() {
        let path = format!("{path}{name}");
        add_names(&format!("{path}."), below, names);
        names.insert(path);
    }
}

/// A configuration: a file, and after a 0 each, variables of the environment without their prefix, such as
/// `LIMITS__TTL_MIN_MS=5`.
pub fn configuration(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let mut parts = text.split('\0');
    let file = parts.next().unwrap_or_default();
    let environment = parts
        .filter_map(|variable| variable.split_once('='))
        .map(|(name, value)| {
            (
                OsString::from(format!("{PREFIX}{name}")),
                OsString::from(value),
            )
        })
        .collect();
    // Independent of the machine.
    let flags = vec![Flag {
        name: "--data-dir",
        key: "data_dir".to_owned(),
        value: "/data".to_owned(),
    }];
    match read(file, environment, flags) {
        Ok(config) => {
            is_within_limits(&config);
            let printed = toml::to_string(&config);
            let again = read(
                printed.as_deref().unwrap_or_default(),
                Vec::new(),
                Vec::new(),
            );
            assert_eq!(again, Ok(config), "{printed:?}");
        }
        Err(Problems(problems)) => {
            assert!(!problems.is_empty());
            problems.iter().for_each(is_named);
        }
    }
}

fn read(
    file: &str,
    environment: Vec<(OsString, OsString)>,
    flags: Vec<Flag>,
) -> Result<Config, Problems> {
    let sources = Sources {
        file: Some(FILE.into()),
        environment,
        flags,
    };
    Config::load_reading(&sources, Config::check, |path| {
        assert_eq!(path, Path::new(FILE));
        Ok(file.to_owned())
    })
}

fn is_within_limits(config: &Config) {
    let limits = &config.limits;
    assert!((1..=Key::BYTES_MAX).contains(&limits.key_bytes_max));
    assert!(limits.value_bytes_max <= 64 * 1024 * 1024);
    assert!(limits.message_bytes_max > limits.value_bytes_max);
    assert!((limits.ttl_min_ms..=limits.ttl_max_ms).contains(&limits.ttl_default_ms));
    assert!(limits.ttl_min_ms >= 100 && limits.disconnect_grace_min_ms >= 100);
    assert!(limits.calls_per_key_max >= 1 && limits.page_size_max >= 1);
    assert!(config.shutdown_grace <= Span::from_secs(3600));
    assert!(!config.listen.all().is_empty());
    let mut addresses = config.listen.addresses();
    let protection = config.tls.protection(&config.auth);
    let is_open = config.insecure || (protection.tls && protection.login);
    assert!(is_open || addresses.all(|address| address.ip().to_canonical().is_loopback()));
    let mut tables = config.table_names().into_iter();
    assert!(tables.all(|table| table.as_str().len() <= TableName::BYTES_MAX));
}

/// It names the setting, the section, or the file that cannot be read at all.
fn is_named(problem: &Problem) {
    let named = match (&problem.key, &problem.origin) {
        (Some(_), origin) => origin.is_some(),
        (None, Some(origin)) if origin.ends_with(FILE) => true,
        // Faults across settings begin with the name of one.
        (None, _) => {
            let name = problem.what.split([' ', ':']).next();
            name.is_some_and(|name| NAMES.contains(name))
        }
    };
    assert!(named, "{problem:?}");
}
