//! `fermata schema` as far as no cluster is asked.

use std::process::{Command, Output};

use super::world::FERMATA;

fn schema(words: &[&str]) -> Output {
    let mut command = Command::new(FERMATA);
    command
        .arg("schema")
        .args(words)
        .env_remove("FERMATA_CONFIG");
    command.output().unwrap()
}

#[test]
fn the_statements_are_printed_for_the_keyspace_and_the_tables_of_flags_and_file() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let text = "[store.cassandra]\nkeyspace = 'locks'\n[tables.orders]\n";
    std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
    let path = file.path().to_str().unwrap();
    let named = ["--config", path, "--table", "invoices", "--table", "orders"];
    let mut words = vec!["print", "--replication", "dc1=3"];
    words.extend(named);
    let output = schema(&words);
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.starts_with("CREATE KEYSPACE IF NOT EXISTS \"locks\""));
    for table in ["default", "orders", "invoices"] {
        let made = format!("CREATE TABLE IF NOT EXISTS \"locks\".\"lock_{table}\"");
        assert_eq!(printed.matches(&made).count(), 1, "{table}: {printed}");
    }

    words.extend(["--keyspace", "others"]);
    let printed = String::from_utf8(schema(&words).stdout).unwrap();
    assert!(printed.contains("\"others\".\"lock_orders\"") && !printed.contains("locks"));
}

#[test]
fn what_is_wrong_with_settings_is_told() {
    for (words, code, answered) in [
        (&["apply"][..], 78, "--contact-points"),
        (&["print", "--keyspace", "a-b"], 78, "(flag --keyspace)"),
        (&["print", "--replication", "3"], 64, "DATACENTER=COPIES"),
        (
            &["check", "--contact-points", "a", "--tls-ca", "/nowhere/ca"],
            78,
            "/nowhere/ca",
        ),
        (
            &[
                "check",
                "--contact-points",
                "a",
                "--user",
                "u",
                "--password-file",
                "/nowhere/p",
            ],
            78,
            "store.cassandra.password_file: cannot read /nowhere/p",
        ),
    ] {
        let output = schema(words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
        assert!(said.contains(answered), "{words:?}: {said}");
    }
}

#[test]
fn nobody_there_is_told_as_such() {
    let output = schema(&["check", "--contact-points", "127.0.0.1:1"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{said}");
    assert!(said.contains("Cassandra cannot be reached"), "{said}");
}
