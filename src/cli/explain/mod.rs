//! `fermata explain`: the reasons of refusals and lost locks, and what to do.

use fermata_command::output::{Format, print_json, print_text};
use fermata_command::{Failure, exit};
use serde_json::json;

/// A section for each reason.
const REASONS: &str = include_str!("reasons.md");

/// The start of a section.
const HEADING: &str = "\n## ";

const HELP: &str = "\
Exit status: 0; 66 there is no such reason; 74 it cannot be printed.

Examples:
  fermata explain
  fermata explain EXPIRED
  fermata explain never-issued";

/// Explain a reason of the service: what happened, what was done, what to do
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The reason, as a message names it; without one all are listed
    #[arg(value_name = "REASON")]
    reason: Option<String>,

    /// How to print [default: text]
    #[arg(long, value_name = "FORMAT", value_enum)]
    output: Option<Format>,
}

/// A reason with its explanation.
struct Explained {
    name: &'static str,
    /// Three paragraphs: what happened, what was done, what to do.
    text: &'static str,
}

impl Explained {
    /// The first paragraph, in one line.
    fn happened(&self) -> String {
        let paragraph = self.text.split("\n\n").next().unwrap_or_default();
        paragraph.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Without its markup.
    fn plain(&self) -> String {
        let text = self.text.replace("**", "").replace('`', "");
        format!("{}\n\n{text}\n", self.name)
    }
}

fn reasons() -> impl Iterator<Item = Explained> {
    REASONS.split(HEADING).skip(1).filter_map(|section| {
        let (name, text) = section.split_once('\n')?;
        Some(Explained {
            name: name.trim(),
            text: text.trim(),
        })
    })
}

/// Runs the command.
pub fn run(args: &Args) -> Result<u8, Failure> {
    let format = args.output.unwrap_or_default();
    let Some(asked) = &args.reason else {
        list(format)?;
        return Ok(0);
    };
    let name = asked.trim().to_ascii_uppercase().replace(['-', ' '], "_");
    let name = name.strip_prefix("END_REASON_").unwrap_or(&name);
    let Some(reason) = reasons().find(|reason| reason.name == name) else {
        return Err(Failure::new(
            exit::NO_INPUT,
            format!("there is no reason {asked:?} (`fermata explain` lists all)"),
        ));
    };
    match format {
        Format::Json => print_json(&json!({ "reason": reason.name, "text": reason.text }))?,
        Format::Text => print_text(&reason.plain())?,
    }
    Ok(0)
}

fn list(format: Format) -> Result<(), Failure> {
    match format {
        Format::Json => {
            let all = reasons().map(|reason| json!({ "reason": reason.name, "text": reason.text }));
            print_json(&json!({ "reasons": all.collect::<Vec<_>>() }))?;
        }
        Format::Text => {
            let lines =
                reasons().map(|reason| format!("{:18} {}\n", reason.name, reason.happened()));
            print_text(&lines.collect::<String>())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_says_what_happened_what_was_done_and_what_to_do() {
        let mut before = "";
        for reason in reasons() {
            assert!(before < reason.name, "{} comes after {before}", reason.name);
            before = reason.name;
            let paragraphs: Vec<&str> = reason.text.split("\n\n").collect();
            let [happened, done, todo] = paragraphs.as_slice() else {
                panic!("{}: {paragraphs:#?}", reason.name);
            };
            assert!(happened.ends_with('.') && !happened.starts_with('*'));
            assert!(done.starts_with("**Done:** "), "{}", reason.name);
            assert!(todo.starts_with("**Do:** "), "{}", reason.name);
        }
        assert!(!before.is_empty());
    }
}
