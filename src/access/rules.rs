//! Rules: permissions of identities, by table and key prefix. They only allow: without a matching rule a call is denied.

use serde::Deserialize;

use crate::lock::{Key, KeyId, TableName};

/// How many rules a file may have.
const RULES_MAX: usize = 10_000;
/// Stands for every identity or table; at the end of an identity for any rest.
const ANY: &str = "*";

/// A kind of thing that can be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// Take, keep, watch and release locks; sessions.
    Lock,
    /// Read values.
    Read,
    /// Write and delete values.
    Write,
    /// See and end the locks of others.
    Admin,
}

impl Verb {
    const ALL: [Verb; 4] = [Verb::Lock, Verb::Read, Verb::Write, Verb::Admin];

    /// Its name in rules.
    pub fn name(self) -> &'static str {
        match self {
            Verb::Lock => "lock",
            Verb::Read => "read",
            Verb::Write => "write",
            Verb::Admin => "admin",
        }
    }

    fn bit(self) -> u8 {
        match self {
            Verb::Lock => 1,
            Verb::Read => 2,
            Verb::Write => 4,
            Verb::Admin => 8,
        }
    }
}

/// Some of the verbs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Verbs(u8);

impl From<Verb> for Verbs {
    fn from(verb: Verb) -> Verbs {
        Verbs(verb.bit())
    }
}

impl Verbs {
    /// None of them.
    pub const NONE: Verbs = Verbs(0);

    /// These, and this one where `also`.
    #[must_use]
    pub fn and(self, also: bool, verb: Verb) -> Verbs {
        match also {
            true => Verbs(self.0 | verb.bit()),
            false => self,
        }
    }

    /// Whether this is one of them.
    pub fn contains(self, verb: Verb) -> bool {
        self.0 & verb.bit() != 0
    }

    fn without(self, others: Verbs) -> Verbs {
        Verbs(self.0 & !others.0)
    }

    /// Their names, with `and` between.
    pub fn names(self) -> String {
        let names = Verb::ALL.into_iter().filter(|verb| self.contains(*verb));
        names.map(Verb::name).collect::<Vec<_>>().join(" and ")
    }
}

/// What something is done to.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    /// One key.
    Key(&'a KeyId),
    /// All keys of a table that begin so.
    Prefix(&'a TableName, &'a str),
    /// The caller's own locks, on any key.
    Own,
    /// All that there is.
    Everything,
}

/// The rules.
#[derive(Debug, Default)]
pub struct Rules(Vec<Rule>);

/// Why a text is no set of rules.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RulesError {
    /// It is no TOML of that form.
    #[error("{0}")]
    Malformed(String),
    /// A rule says nothing, or nothing that can be meant.
    #[error("rule {rule}: {why}")]
    Meaningless {
        /// Which, from 1.
        rule: usize,
        /// What is wrong with it.
        why: String,
    },
    /// There are too many.
    #[error("it has {0} rules; the limit is {RULES_MAX}")]
    TooMany(usize),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RulesFile {
    #[serde(default)]
    rule: Vec<WrittenRule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRule {
    who: Vec<String>,
    table: String,
    #[serde(default)]
    key_prefix: String,
    allow: Vec<Verb>,
}

#[derive(Debug)]
struct Rule {
    who: Vec<Who>,
    /// `None` for every table.
    table: Option<TableName>,
    key_prefix: String,
    allow: Verbs,
}

#[derive(Debug)]
enum Who {
    Exactly(String),
    /// Every identity with this prefix.
    Prefix(String),
}

impl Who {
    fn parse(text: String) -> Result<Who, String> {
        let prefix = text.strip_suffix(ANY).map(str::to_owned);
        let plain = prefix.as_deref().unwrap_or(&text);
        if plain.contains(ANY) {
            return Err(format!("who = {text:?}: '*' may stand at the end only"));
        }
        match prefix {
            Some(prefix) => Ok(Who::Prefix(prefix)),
            None if text.is_empty() => Err("who: an identity must not be empty".to_owned()),
            None => Ok(Who::Exactly(text)),
        }
    }

    fn is(&self, identity: &str) -> bool {
        match self {
            Who::Exactly(name) => name == identity,
            Who::Prefix(prefix) => identity.starts_with(prefix.as_str()),
        }
    }
}

impl Rule {
    fn parse(written: WrittenRule) -> Result<Rule, String> {
        let WrittenRule {
            who,
            table,
            key_prefix,
            allow,
        } = written;
        if who.is_empty() {
            return Err("who must not be empty (\"*\" is everybody)".to_owned());
        }
        if allow.is_empty() {
            return Err("allow must not be empty: lock, read, write or admin".to_owned());
        }
        if key_prefix.len() > Key::BYTES_MAX || key_prefix.contains(char::is_control) {
            return Err(format!(
                "key_prefix has more than {} bytes, or a control character",
                Key::BYTES_MAX
            ));
        }
        let table = match table.as_str() {
            ANY => None,
            name => Some(
                TableName::parse(name)
                    .map_err(|error| format!("table: {error} (\"*\" is every table)"))?,
            ),
        };
        Ok(Rule {
            who: who.into_iter().map(Who::parse).collect::<Result<_, _>>()?,
            table,
            key_prefix,
            allow: allow
                .into_iter()
                .fold(Verbs::NONE, |all, verb| all.and(true, verb)),
        })
    }

    fn is_about(&self, scope: Scope<'_>) -> bool {
        let of_table = |table: &TableName| self.table.as_ref().is_none_or(|own| own == table);
        match scope {
            Scope::Key(id) => of_table(&id.table) && id.key.as_str().starts_with(&self.key_prefix),
            Scope::Prefix(table, prefix) => of_table(table) && prefix.starts_with(&self.key_prefix),
            Scope::Own => true,
            Scope::Everything => self.table.is_none() && self.key_prefix.is_empty(),
        }
    }
}

impl Rules {
    /// Reads a file of rules, TOML with a `[[rule]]` for each.
    pub fn parse(text: &str) -> Result<Rules, RulesError> {
        let written: RulesFile = toml::from_str(text)
            .map_err(|error| RulesError::Malformed(error.to_string().trim().to_owned()))?;
        if written.rule.len() > RULES_MAX {
            return Err(RulesError::TooMany(written.rule.len()));
        }
        let rules = (1..).zip(written.rule);
        let rules = rules.map(|(rule, written)| {
            Rule::parse(written).map_err(|why| RulesError::Meaningless { rule, why })
        });
        Ok(Rules(rules.collect::<Result<_, _>>()?))
    }

    /// Likely mistakes in the rules: an unknown table, and a `*` that stands for itself.
    pub fn doubts(&self, tables: &[TableName]) -> Vec<String> {
        let doubt = |(number, rule): (usize, &Rule)| {
            let table = rule.table.as_ref().filter(|own| !tables.contains(own));
            let table =
                table.map(|own| format!("rule {number}: there is no table {:?}", own.as_str()));
            let prefix = rule.key_prefix.contains(ANY).then(|| {
                format!(
                    "rule {number}: key_prefix {:?}: '*' is an ordinary character here; every key that begins with the prefix \
                     matches",
                    rule.key_prefix
                )
            });
            table.into_iter().chain(prefix)
        };
        let none = self
            .0
            .is_empty()
            .then(|| "the file has no rules: nobody may do anything".to_owned());
        let doubts = (1..).zip(&self.0).flat_map(doubt);
        none.into_iter().chain(doubts).collect()
    }

    /// Whether this identity may do all of this: each of the verbs by some rule.
    pub fn allow(&self, identity: &str, verbs: Verbs, scope: Scope<'_>) -> bool {
        let mut left = verbs;
        for rule in &self.0 {
            if left == Verbs::NONE {
                return true;
            }
            if rule.is_about(scope) && rule.who.iter().any(|who| who.is(identity)) {
                left = left.without(rule.allow);
            }
        }
        left == Verbs::NONE
    }
}
