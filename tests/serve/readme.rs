//! The sessions of the README and of the gRPC tutorial, run as a reader would: every block that begins with
//! "```console session", in one shell, on an empty server. The output must be as shown, except for tokens and secrets.

use std::io::Write as _;
use std::process::{Command, Stdio};

use super::process::Serve;

/// Set to 1 where grpcurl must be there.
const REQUIRE: &str = "FERMATA_REQUIRE_GRPCURL";
/// What the README has for the server's address.
const SHOWN_ADDRESS: &str = "127.0.0.1:7450";
/// Printed by the shell after each command.
const END: &str = "-- end of what one command said --";

/// A command of the session, and what the README shows that it prints.
struct Step {
    command: String,
    shown: String,
}

fn session() -> Vec<Step> {
    let documents = concat!(
        include_str!("../../README.md"),
        include_str!("../../docs/tutorial-grpc.md")
    );
    let mut steps: Vec<Step> = Vec::new();
    for block in documents.split("```console session\n").skip(1) {
        let (block, _) = block.split_once("\n```").unwrap();
        for line in block.lines() {
            match (line.strip_prefix("$ "), steps.last_mut()) {
                (Some(command), _) => steps.push(Step {
                    command: command.to_owned(),
                    shown: String::new(),
                }),
                (None, Some(step)) => step.shown += &format!("{line}\n"),
                (None, None) => panic!("a session begins with a command, not with {line:?}"),
            }
        }
    }
    steps
}

/// The same without what differs each time: fencing tokens, and the secrets of lockRefs.
fn steady(text: &str) -> String {
    let mut steady = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let word = rest.bytes().take_while(u8::is_ascii_alphanumeric).count();
        let taken = if digits >= 13 && digits == word {
            steady.push_str("<token>");
            digits
        } else if word == 26 && after_entry(&steady) {
            steady.push_str("<secret>");
            word
        } else {
            let taken = word.max(c.len_utf8());
            steady.push_str(&rest[..taken]);
            taken
        };
        rest = &rest[taken..];
    }
    steady
}

/// Whether the text ends with the `#17.` of a lockRef.
fn after_entry(text: &str) -> bool {
    text.strip_suffix('.').is_some_and(|text| {
        let location = text.trim_end_matches(|c: char| c.is_ascii_digit());
        location.len() < text.len() && location.ends_with('#')
    })
}

#[test]
fn the_session_in_the_readme_runs_as_shown() {
    let steps = session();
    assert!(steps.len() > 12, "a document lost its session");
    if Command::new("grpcurl").arg("--version").output().is_err() {
        let required = std::env::var(REQUIRE).is_ok_and(|value| value == "1");
        assert!(
            !required,
            "{REQUIRE}=1, and there is no grpcurl on the PATH"
        );
        // Not eprintln!: the harness hides that of tests that pass.
        writeln!(
            std::io::stderr(),
            "SKIPPED: the README's session was not run, there is no grpcurl on the PATH"
        )
        .unwrap();
        return;
    }

    let serve = Serve::start();
    let address = format!("127.0.0.1:{}", serve.port);
    let mut script = String::from("exec 2>&1\n");
    for step in &steps {
        let command = step.command.replace(SHOWN_ADDRESS, &address);
        script += &format!("{command}\nprintf '\\n%s\\n' '{END}'\n");
    }
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new("bash")
        .args(["-c", &script])
        .current_dir(directory.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let end = format!("\n{END}\n");
    let mut said = said.split(&end);
    for step in &steps {
        let said = said.next().unwrap();
        assert_eq!(
            steady(said).trim_end(),
            steady(&step.shown).trim_end(),
            "left: what came of\n  {}\nright: what the README shows",
            step.command
        );
    }
}
