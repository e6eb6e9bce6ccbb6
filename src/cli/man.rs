//! `fermata man`: the manual, a page for each command, for those who make packages.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use fermata_command::{Failure, exit};

use crate::build;

/// Write the manual, one page for each command
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The directory for the pages
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Writes the pages of a command that clap has built, and of those under it.
pub fn run(args: &Args, command: &clap::Command) -> Result<u8, Failure> {
    let written = write(command, &args.directory);
    written.map_err(|error| {
        let place = args.directory.display();
        Failure::new(exit::CANNOT_CREATE, format!("{place}: {error}"))
    })?;
    Ok(0)
}

fn write(command: &clap::Command, directory: &Path) -> io::Result<()> {
    let inner = command.get_subcommands();
    let mut inner = inner.filter(|inner| !inner.is_hide_set()).peekable();
    let has_inner = inner.peek().is_some();
    for inner in inner {
        write(inner, directory)?;
    }
    let man = Man::new(command.clone())
        .source(format!("fermata {}", build::VERSION))
        .manual("Fermata");
    let mut page = File::create(directory.join(man.get_filename()))?;
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    let after = command.get_after_help().map(ToString::to_string);
    let after = AfterHelp::of(after.as_deref().unwrap_or_default());
    for paragraph in &after.description {
        Roff::new()
            .control("PP", [])
            .text([roman(*paragraph)])
            .to_writer(&mut page)?;
    }
    if has_inner {
        man.render_subcommands_section(&mut page)?;
    }
    man.render_options_section(&mut page)?;
    if let Some(statuses) = after.exit_status {
        section("EXIT STATUS")
            .text([roman(statuses)])
            .to_writer(&mut page)?;
    }
    if let Some(examples) = after.examples {
        let mut lines = section("EXAMPLES");
        lines.control("nf", []);
        for line in examples.trim_start_matches('\n').lines() {
            lines.text([roman(line.trim_start())]);
        }
        lines.control("fi", []).to_writer(&mut page)?;
    }
    if command
        .get_display_name()
        .is_some_and(|name| name != "fermata")
    {
        section("SEE ALSO")
            .text([bold("fermata"), roman("(1)")])
            .to_writer(&mut page)?;
    }
    page.flush()
}

fn section(name: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", [name]);
    roff
}

/// The parts of the text after the options, as all commands write it: paragraphs, of which two have a heading.
struct AfterHelp<'a> {
    description: Vec<&'a str>,
    exit_status: Option<&'a str>,
    examples: Option<&'a str>,
}

impl<'a> AfterHelp<'a> {
    fn of(text: &'a str) -> AfterHelp<'a> {
        let mut parts = AfterHelp {
            description: Vec::new(),
            exit_status: None,
            examples: None,
        };
        for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.is_empty()) {
            let under = |heading| paragraph.strip_prefix(heading);
            if let Some(statuses) = under("Exit status: ") {
                parts.exit_status = Some(statuses);
            } else if let Some(examples) = under("Examples:").or_else(|| under("Example:")) {
                parts.examples = Some(examples);
            } else {
                parts.description.push(paragraph);
            }
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::{Cli, built};

    #[test]
    fn each_command_has_a_page_with_its_own_headings() {
        let directory = tempfile::tempdir().unwrap();
        let command = built(Cli::command().disable_help_subcommand(true));
        write(&command, directory.path()).unwrap();
        let page = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
        let serve = page("fermata-serve.1");
        assert!(!serve.contains("CLIENT COMMANDS"), "{serve}");
        let lock = page("fermata-lock.1");
        let headings = lock.lines().filter(|line| line.starts_with(".SH "));
        let headings: Vec<_> = headings.map(|line| &line[4..]).collect();
        assert_eq!(headings[..2], ["NAME", "SYNOPSIS"]);
        assert_eq!(
            headings[headings.len() - 3..],
            ["\"EXIT STATUS\"", "EXAMPLES", "\"SEE ALSO\""]
        );
        for found in fs::read_dir(directory.path()).unwrap() {
            let name = found.unwrap().file_name().into_string().unwrap();
            assert!(!name.contains("-help") && !name.contains("-man"), "{name}");
            let text = page(&name);
            for heading in ["Exit status:", "Example:", "Examples:"] {
                assert!(!text.contains(heading), "{name}: {text}");
            }
        }
    }
}
