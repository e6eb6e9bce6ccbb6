//! What the layers promise.

use std::ffi::OsString;
use std::io::Write as _;

use super::*;
use crate::lock::TableName;

/// Sources without a file; each pair is an environment variable.
fn environment(pairs: &[(&str, &str)]) -> Sources {
    Sources {
        environment: pairs
            .iter()
            .map(|(name, value)| (OsString::from(name), OsString::from(value)))
            .collect(),
        // A HOME of its own is not promised to a test.
        flags: vec![flag("--data-dir", "data_dir", "/data")],
        file: None,
    }
}

fn flag(name: &'static str, key: &str, value: &str) -> Flag {
    Flag {
        name,
        key: key.to_owned(),
        value: value.to_owned(),
    }
}

/// The same with this file.
fn with_file(mut sources: Sources, text: &str) -> (tempfile::NamedTempFile, Sources) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    sources.file = Some(file.path().to_owned());
    (file, sources)
}

fn problems(sources: &Sources) -> Vec<String> {
    let Problems(problems) = Config::load(sources).unwrap_err();
    problems.iter().map(Problem::to_string).collect()
}

#[test]
fn nothing_given_is_the_default() {
    let config = Config::load(&environment(&[])).unwrap();
    let expected = Config {
        data_dir: Some("/data".into()),
        ..Config::default()
    };
    assert_eq!(config, expected);
}

#[test]
fn a_flag_comes_before_the_environment_and_that_before_the_file() {
    let text = "shutdown_grace = '1s'\nlimits.ttl_min_ms = 101\nlimits.call_max_ms = 101";
    let (_file, mut sources) = with_file(
        environment(&[
            ("FERMATA_CFG_SHUTDOWN_GRACE", "2s"),
            ("FERMATA_CFG_LIMITS__CALL_MAX_MS", "102"),
        ]),
        text,
    );
    sources
        .flags
        .push(flag("--shutdown-grace", "shutdown_grace", "3s"));
    let config = Config::load(&sources).unwrap();
    assert_eq!(config.shutdown_grace, Span::from_secs(3));
    assert_eq!(config.limits.call_max_ms, 102);
    assert_eq!(config.limits.ttl_min_ms, 101);
}

#[test]
fn settings_that_do_not_fit_together_are_named() {
    let text = "limits.ttl_min_ms = 50000\nlimits.ttl_max_ms = 40000\nlimits.page_size_max = 0";
    let (_file, sources) = with_file(environment(&[]), text);
    assert_eq!(
        problems(&sources),
        [
            "limits.page_size_max must be at least 1",
            "limits.ttl_default_ms must lie between limits.ttl_min_ms and limits.ttl_max_ms",
        ]
    );
}

#[test]
fn the_usual_log_variable_yields_to_the_own_one() {
    let own = ("FERMATA_CFG_LOG__FILTER", "warn");
    let usual = ("RUST_LOG", "debug");
    for (pairs, filter) in [
        (vec![usual], "debug"),
        (vec![usual, own], "warn"),
        (vec![own, usual], "warn"),
    ] {
        let config = Config::load(&environment(&pairs)).unwrap();
        assert_eq!(config.log.filter, filter);
    }
}

#[test]
fn unknown_settings_are_named_at_every_level_with_where_they_came_from() {
    let text = "lisen = 1\n[limits]\nkeys = 1\n[store.embedded]\ncache = 1\n[tables.a]\nb = 1";
    let (file, mut sources) = with_file(environment(&[("FERMATA_CFG_STORE__REMOTE", "1")]), text);
    sources.flags.push(flag("--oops", "oops", "1"));
    let path = file.path().display();
    assert_eq!(
        problems(&sources),
        [
            format!("limits.keys: there is no such setting (file {path})"),
            format!("lisen: there is no such setting (file {path})"),
            "oops: there is no such setting (flag --oops)".to_owned(),
            format!("store.embedded.cache: there is no such setting (file {path})"),
            "store.remote: there is no such setting (environment variable FERMATA_CFG_STORE__REMOTE)"
                .to_owned(),
            format!("tables.a.b: there is no such setting (file {path})"),
        ]
    );
}

#[test]
fn every_problem_is_told_at_once() {
    let text = "insecure = 1\nlisten = []\n[limits]\nkey_bytes_max = 64.5\nsessions_max = 0";
    let (file, sources) = with_file(environment(&[("FERMATA_CFG_LIMITS", "1")]), text);
    let path = file.path().display();
    assert_eq!(
        problems(&sources),
        [
            "limits.sessions_max must be at least 1".to_owned(),
            format!("insecure: invalid type: integer `1`, expected a boolean (file {path})"),
            "limits: this is a section: write [limits] and its settings below \
             (environment variable FERMATA_CFG_LIMITS)"
                .to_owned(),
            format!(
                "limits.key_bytes_max: invalid type: floating point `64.5`, expected usize (file {path})"
            ),
            format!("listen: name at least one address (file {path})"),
        ]
    );
}

#[test]
fn a_malformed_number_is_refused() {
    let name = "FERMATA_CFG_STORE__EMBEDDED__CACHE_MIB";
    for (value, what) in [
        ("-1", "invalid value: integer `-1`, expected u32"),
        (
            "1.5",
            "\"1.5\" is not a whole number: invalid digit found in string",
        ),
    ] {
        assert_eq!(
            problems(&environment(&[(name, value)])),
            [format!(
                "store.embedded.cache_mib: {what} (environment variable {name})"
            )]
        );
    }
    let name = "FERMATA_CFG_INSECURE";
    assert_eq!(
        problems(&environment(&[(name, "-1")])),
        [format!(
            "insecure: this must be true or false, not \"-1\" (environment variable {name})"
        )]
    );
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let mut sources = environment(&[]);
    sources.file = Some("/nowhere/fermata.toml".into());
    let found = problems(&sources);
    assert_eq!(found.len(), 1);
    assert!(found[0].contains("/nowhere/fermata.toml"), "{found:?}");
    let (file, sources) = with_file(environment(&[]), "listen = ");
    let found = problems(&sources);
    assert_eq!(found.len(), 1);
    assert!(found[0].contains("line 1"), "{found:?}");
    let path = file.path().display().to_string();
    assert!(found[0].contains(&path), "{found:?}");
}

#[test]
fn listening_beyond_loopback_must_be_asked_for() {
    for (listen, insecure, good) in [
        ("127.0.0.1:1,[::1]:1", "false", true),
        ("0.0.0.0:1", "false", false),
        ("127.0.0.1:1,[::]:1", "false", false),
        ("0.0.0.0:1", "true", true),
    ] {
        let pairs = [
            ("FERMATA_CFG_LISTEN", listen),
            ("FERMATA_CFG_INSECURE", insecure),
        ];
        let loaded = Config::load(&environment(&pairs));
        assert_eq!(loaded.is_ok(), good, "{listen} {insecure}");
    }
}

#[test]
fn the_default_table_is_always_there() {
    let (_file, sources) = with_file(environment(&[]), "[tables.orders]\n[tables.Invoices]");
    let names: Vec<String> = Config::load(&sources)
        .unwrap()
        .table_names()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(names, ["default", "Invoices", "orders"]);
}

#[test]
fn a_table_is_committed_as_it_says_else_as_is_said_for_all_else_as_suits_the_store() {
    let embedded: &[(&str, &str)] = &[];
    let cassandra: &[(&str, &str)] = &[
        ("FERMATA_CFG_STORE__KIND", "cassandra"),
        ("FERMATA_CFG_STORE__CASSANDRA__CONTACT_POINTS", "a"),
    ];
    let (through, back) = ("commit = 'write-through'", "commit = 'write-back'");
    let (before, later) = (Commit::WriteThrough, Commit::WriteBack);
    for (store, of_all, of_orders, commit, write_back) in [
        (embedded, "", "", before, vec![]),
        (embedded, back, "", later, vec!["default", "orders"]),
        (embedded, back, through, later, vec!["default"]),
        (embedded, "", back, before, vec!["orders"]),
        (cassandra, "", "", later, vec!["default", "orders"]),
        (cassandra, through, "", before, vec![]),
        (cassandra, through, back, before, vec!["orders"]),
        (cassandra, "", through, later, vec!["default"]),
    ] {
        let text = format!("{of_all}\n[tables.orders]\n{of_orders}");
        let (_file, sources) = with_file(environment(store), &text);
        let config = Config::load(&sources).unwrap();
        assert_eq!(config.commit(), commit, "{store:?} {text}");
        let tables = config.write_back();
        let names: Vec<&str> = tables.iter().map(TableName::as_str).collect();
        assert_eq!(names, write_back, "{store:?} {text}");
    }
}

#[test]
fn what_is_printed_can_be_fed_back() {
    let (_file, sources) = with_file(
        environment(&[("FERMATA_CFG_LISTEN", "127.0.0.1:1,[::1]:2")]),
        "shutdown_grace = '1m30s'\n[tables.orders]\n[peers]\nttl = '5s'\n[store.cassandra]\nuser = 'u'",
    );
    let config = Config::load(&sources).unwrap();
    let printed = toml::to_string(&config).unwrap();
    let (_file, again) = with_file(Sources::default(), &printed);
    assert_eq!(Config::load(&again).unwrap(), config);
}

#[test]
fn cassandra_needs_nodes_and_nodes_need_cassandra() {
    let points = ("FERMATA_CFG_STORE__CASSANDRA__CONTACT_POINTS", "a, b:9043");
    let kind = ("FERMATA_CFG_STORE__KIND", "cassandra");
    for pairs in [vec![points], vec![kind]] {
        let found = problems(&environment(&pairs));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("contact_points"), "{found:?}");
    }
    let config = Config::load(&environment(&[points, kind])).unwrap();
    assert_eq!(config.store.kind, StoreKind::Cassandra);
    assert_eq!(config.store.cassandra.contact_points.0, ["a", "b:9043"]);
}

#[test]
fn a_consistency_that_keeps_no_locks_apart_is_refused() {
    for (name, good) in [
        ("quorum", true),
        ("local_quorum", true),
        ("one", false),
        ("all", false),
    ] {
        let pairs = [
            ("FERMATA_CFG_STORE__CASSANDRA__CONSISTENCY", name),
            ("FERMATA_CFG_STORE__CASSANDRA__DATACENTER", "eu"),
        ];
        assert_eq!(Config::load(&environment(&pairs)).is_ok(), good, "{name}");
        let without = Config::load(&environment(&pairs[..1]));
        assert_eq!(without.is_ok(), name == "quorum", "{name}");
    }
}

/// The problems of these settings beside those of a replica that is right.
fn among_others(pairs: &[(&str, &str)]) -> Vec<String> {
    let mut all = vec![
        ("FERMATA_CFG_STORE__KIND", "cassandra"),
        ("FERMATA_CFG_STORE__CASSANDRA__CONTACT_POINTS", "a"),
        ("FERMATA_CFG_PEERS__LISTEN", "127.0.0.1:7451"),
        ("FERMATA_CFG_PEERS__SECRET_FILE", "/secret"),
    ];
    all.retain(|(name, _)| !pairs.iter().any(|(other, _)| other == name));
    all.extend(pairs.iter().filter(|(_, value)| !value.is_empty()));
    match Config::load(&environment(&all)) {
        Ok(_) => Vec::new(),
        Err(Problems(problems)) => problems.iter().map(Problem::to_string).collect(),
    }
}

#[test]
fn a_replica_among_others_can_be_called_by_those_who_know_the_secret() {
    assert_eq!(among_others(&[]), [""; 0]);
    for (pairs, words) in [
        (&[("FERMATA_CFG_PEERS__SECRET_FILE", "")][..], "secret_file"),
        (&[("FERMATA_CFG_PEERS__TTL", "1s")], "2s to 10m"),
        (
            &[("FERMATA_CFG_ADVERTISE", "a:0")],
            "advertise must be HOST:PORT",
        ),
        (&[("FERMATA_CFG_PEERS__ADVERTISE", "a")], "HOST:PORT"),
        (&[("FERMATA_CFG_PEERS__ADVERTISE", "u@a:1")], "HOST:PORT"),
        (&[("FERMATA_CFG_PEERS__LISTEN", "10.0.0.1:1")], "insecure"),
        (
            &[
                ("FERMATA_CFG_PEERS__LISTEN", "0.0.0.0:1"),
                ("FERMATA_CFG_INSECURE", "true"),
            ],
            "wildcard address",
        ),
        (
            &[
                ("FERMATA_CFG_PEERS__LISTEN", ""),
                ("FERMATA_CFG_PEERS__ADVERTISE", "a:1"),
            ],
            "peers.listen is not set",
        ),
        (
            &[
                ("FERMATA_CFG_STORE__KIND", "embedded"),
                ("FERMATA_CFG_STORE__CASSANDRA__CONTACT_POINTS", ""),
            ],
            "one replica",
        ),
    ] {
        let found = among_others(pairs);
        assert_eq!(found.len(), 1, "{pairs:?}: {found:?}");
        assert!(found[0].contains(words), "{found:?}");
    }
    for good in ["db.example:7451", "[::1]:7451", "10.0.0.1:7451"] {
        let pairs = [("FERMATA_CFG_PEERS__ADVERTISE", good)];
        assert_eq!(among_others(&pairs), [""; 0], "{good}");
    }
}

const PEER_TLS: [(&str, &str); 3] = [
    ("FERMATA_CFG_PEERS__TLS__CA_FILE", "/ca"),
    ("FERMATA_CFG_PEERS__TLS__CERT_FILE", "/cert"),
    ("FERMATA_CFG_PEERS__TLS__KEY_FILE", "/key"),
];

#[test]
fn calls_between_replicas_are_encrypted_in_whole_and_then_may_come_from_anywhere() {
    let mut anywhere = PEER_TLS.to_vec();
    anywhere.push(("FERMATA_CFG_PEERS__LISTEN", "10.0.0.1:7451"));
    assert_eq!(among_others(&anywhere), [""; 0]);
    for (left_out, name) in ["ca_file", "cert_file", "key_file"].into_iter().enumerate() {
        let mut two = PEER_TLS.to_vec();
        two.remove(left_out);
        let found = among_others(&two);
        assert_eq!(found.len(), 1, "{found:?}");
        let answered = format!("peers.tls.{name} is not set");
        assert!(found[0].starts_with(&answered), "{found:?}");
    }
    // Clients still come in without TLS.
    anywhere.push(("FERMATA_CFG_LISTEN", "10.0.0.1:7450"));
    let found = among_others(&anywhere);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("listen: "), "{found:?}");
    // Certificates do not stand in for the secret, nor for somewhere to use them.
    let mut secretless = PEER_TLS.to_vec();
    secretless.extend([
        ("FERMATA_CFG_PEERS__LISTEN", ""),
        ("FERMATA_CFG_PEERS__SECRET_FILE", ""),
    ]);
    let found = among_others(&secretless);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("secret_file"), "{found:?}");
}

#[test]
fn a_ttl_that_heartbeats_cannot_keep_valid_is_refused_where_replicas_share_the_store() {
    let shortest = |ms: &str| among_others(&[("FERMATA_CFG_LIMITS__TTL_MIN_MS", ms)]);
    assert_eq!(shortest("1000"), [""; 0]);
    let found = shortest("999");
    assert_eq!(found.len(), 1, "{found:?}");
    for words in ["limits.ttl_min_ms", "at least 1000", "store.kind"] {
        assert!(found[0].contains(words), "{found:?}");
    }
    // One process alone needs no heartbeats.
    let alone = Config::load(&environment(&[("FERMATA_CFG_LIMITS__TTL_MIN_MS", "100")]));
    assert_eq!(alone.unwrap().limits.ttl_min_ms, 100);
}

#[test]
fn encryption_is_asked_for_in_whole() {
    for (pairs, good) in [
        (
            &[("FERMATA_CFG_STORE__CASSANDRA__TLS__CA_FILE", "/ca")][..],
            true,
        ),
        (
            &[("FERMATA_CFG_STORE__CASSANDRA__TLS__VERIFY_HOST", "false")],
            false,
        ),
        (
            &[("FERMATA_CFG_STORE__CASSANDRA__TLS__KEY_FILE", "/key")],
            false,
        ),
    ] {
        assert_eq!(Config::load(&environment(pairs)).is_ok(), good, "{pairs:?}");
    }
}

#[test]
fn the_protocol_of_a_table_is_checked_with_its_options() {
    let faults = |lines: &str| {
        let (_file, sources) = with_file(environment(&[]), lines);
        problems(&sources)
    };
    for (lines, said) in [
        ("[tables.a]\nprotocol = 'paxos'", "tables.a.protocol"),
        (
            "[tables.default]\nprotocol = 'music'",
            "tables.default.protocol must be home",
        ),
        (
            "[tables.a]\nallow_unfenced = true",
            "tables.a.allow_unfenced is for protocols without a fence",
        ),
        (
            "[tables.a]\nprotocol = 'bakery'\ncommit = 'write-back'",
            "tables.a.commit is for the protocol home",
        ),
        (
            "[tables.a]\nprotocol = 'bakery'\nlock_prefix = 'x'",
            "tables.a.lock_prefix is for the protocol column-prefix",
        ),
        (
            "[tables.a]\nprotocol = 'column-prefix'\nrow_table = 'k.t'",
            "tables.a.row_table is for the store cassandra",
        ),
        (
            "[tables.a]\nprotocol = 'column-prefix'\nlock_prefix = 'ä'",
            "tables.a.lock_prefix must have 1 to 32",
        ),
        (
            "store.kind = 'cassandra'\nstore.cassandra.contact_points = 'a'\n[tables.a]\nprotocol = 'column-prefix'",
            "tables.a.row_table must name the table with the rows",
        ),
        (
            "store.kind = 'cassandra'\nstore.cassandra.contact_points = 'a'\n[tables.a]\nprotocol = 'column-prefix'\nrow_table = 't'",
            "tables.a.row_table must be KEYSPACE.TABLE",
        ),
        (
            "[tables.a]\nprotocol = 'column-prefix'\nlock_prefix = 'val'",
            "tables.a.lock_prefix must not be a prefix of value",
        ),
        (
            "store.kind = 'cassandra'\nstore.cassandra.contact_points = 'a'\n\
             [tables.a]\nprotocol = 'column-prefix'\nrow_table = 'k.t'\n\
             [tables.b]\nprotocol = 'column-prefix'\nrow_table = 'k.t'",
            "tables.b.row_table is that of tables.a as well",
        ),
        (
            "[tables.a]\nprotocol = 'column-prefix'\nconsistency = 'one'",
            "tables.a.consistency",
        ),
    ] {
        let found = faults(lines);
        assert!(
            found.iter().any(|one| one.contains(said)),
            "{lines}: {found:?}"
        );
    }
    let (_file, sources) = with_file(environment(&[]), "[tables.a]\nprotocol = 'column-prefix'");
    Config::load(&sources).unwrap();
}
