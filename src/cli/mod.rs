//! The command line: the commands of servers and of clients.
//!
//! This module parses arguments and prints answers. It knows no rule of a lock.

mod agent;
mod backup;
mod cells;
pub mod check;
mod child;
mod cluster;
mod delete;
mod descriptors;
pub mod end;
mod explain;
mod get;
mod health;
mod hold;
mod leaving;
mod lock;
mod locks;
mod man;
mod put;
mod replica;
mod schema;
pub mod serve;
mod sessions;
mod settings;
mod signals;
mod token;
mod value;
mod views;
mod waiting;

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, FromArgMatches as _, Parser};
use fermata_command::output::{print_bytes, say};
use fermata_command::remote::CLIENT_OPTIONS;
use fermata_command::{Failure, Remote, exit};

use crate::build;

const HELP: &str = "\
Examples:
  fermata serve                             # on this machine
  fermata lock orders-42 -- ./charge.sh 42  # one at a time
  fermata locks ls                          # who holds what
  fermata locks top                         # live: keys with waiters
  fermata put greeting hello && fermata get greeting

Every command has its own --help, with examples and exit statuses.";

/// Fermata holds keys: a lock service with fencing tokens, first come first served
#[derive(Debug, Parser)]
#[command(name = "fermata", version = build::DESCRIBED, after_help = HELP)]
pub struct Cli {
    #[command(subcommand)]
    command: FermataCommand,

    // With the options after the command as well.
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Subcommand)]
enum FermataCommand {
    Serve(serve::Args),
    Agent(agent::Args),
    Check(check::Args),
    Schema(schema::Args),
    Lock(lock::Args),
    Locks(locks::Args),
    Sessions(sessions::Args),
    Health(health::Args),
    Backup(backup::BackupArgs),
    Restore(backup::RestoreArgs),
    Get(get::Args),
    Put(put::Args),
    Delete(delete::Args),
    Token(token::Args),
    Explain(explain::Args),
    /// Print completions for a shell
    #[command(after_help = "Example: fermata completions bash > /etc/bash_completion.d/fermata")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    #[command(hide = true)]
    Man(man::Args),
}

/// Runs the command of these words; the first is the name of the program.
pub async fn run(words: impl IntoIterator<Item = OsString>) -> u8 {
    let cli = match Cli::parse_words(words) {
        Ok(cli) => cli,
        Err(error) => return printed(&error),
    };
    let ended = match cli.command {
        FermataCommand::Serve(args) => serve::run(args).await,
        FermataCommand::Agent(args) => agent::run(args).await,
        FermataCommand::Check(args) => check::run(args).await.map_err(Failure::from),
        FermataCommand::Schema(args) => schema::run(args).await,
        FermataCommand::Token(args) => token::run(&args),
        FermataCommand::Explain(args) => explain::run(&args),
        FermataCommand::Restore(args) => backup::run_restore(&args),
        FermataCommand::Completions { shell } => completions(shell),
        FermataCommand::Man(args) => {
            man::run(&args, &built(Cli::command().disable_help_subcommand(true)))
        }
        FermataCommand::Lock(args) => lock::run(args).await,
        FermataCommand::Locks(args) => locks::run(args).await,
        FermataCommand::Health(args) => health::run(args).await,
        FermataCommand::Backup(args) => backup::back_up(args).await,
        FermataCommand::Sessions(args) => sessions::run(args).await,
        FermataCommand::Get(args) => get::run(args).await,
        FermataCommand::Delete(args) => delete::run(args).await,
        FermataCommand::Put(args) => put::run(args).await,
    };
    ended.unwrap_or_else(|failure| failed(&failure))
}

/// The commands of an operator of servers, with their own options among the names of client options.
const OF_SERVERS: [(&str, &[&str]); 8] = [
    ("serve", &[]),
    ("check", &["--output"]),
    ("schema", &["--table"]),
    ("token", &[]),
    ("explain", &["--output"]),
    ("restore", &["--output"]),
    ("completions", &[]),
    ("man", &[]),
];

/// The options of client commands that an agent has no use for.
const OF_SINGLE_CALLS: [&str; 3] = ["--table", "--timeout", "--output"];

impl Cli {
    /// Options of client commands may stand before each command. Commands of servers refuse them here.
    fn parse_words(words: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
        let matches = built(Cli::command()).try_get_matches_from(words)?;
        let cli = Cli::from_arg_matches(&matches)?;
        let command = matches.subcommand_name().unwrap_or_default();
        let own = OF_SERVERS.iter().find(|(name, _)| *name == command);
        let is_foreign = |option: &&str| match own {
            Some((_, own)) => !own.contains(option),
            None => command == "agent" && OF_SINGLE_CALLS.contains(option),
        };
        let foreign = cli.remote.given().find(is_foreign);
        match foreign {
            Some(option) => Err(clap::Error::raw(
                ErrorKind::UnknownArgument,
                format!("{option} is an option of client commands, and not of {command}\n"),
            )),
            None => Ok(cli),
        }
    }
}

/// All commands. The help of server commands hides the options of client commands.
fn built(mut command: clap::Command) -> clap::Command {
    fn hide(command: clap::Command) -> clap::Command {
        let command = command.mut_args(|arg| {
            let is_of_clients = arg.get_help_heading() == Some(CLIENT_OPTIONS);
            arg.hide(is_of_clients)
        });
        command.mut_subcommands(hide)
    }
    command.build();
    let names = OF_SERVERS.iter().map(|(name, _)| *name);
    let command = names.fold(command, |command, name| command.mut_subcommand(name, hide));
    command.mut_subcommand("agent", |agent| {
        agent.mut_args(|arg| {
            let option = arg.get_long().map(|name| format!("--{name}"));
            let is_unused = option.is_some_and(|option| OF_SINGLE_CALLS.contains(&&*option));
            match is_unused {
                true => arg.hide(true),
                false => arg,
            }
        })
    })
}

/// Prints help, or a fault of the command line.
fn printed(error: &clap::Error) -> u8 {
    let printed = error.print();
    if error.use_stderr() {
        // The status tells it as well.
        return exit::USAGE;
    }
    match printed {
        Ok(()) => 0,
        Err(unread) => failed(&unread.into()),
    }
}

/// Prints the failure of a command.
fn failed(failure: &Failure) -> u8 {
    if !failure.message.is_empty() {
        say(&failure.message);
    }
    failure.code
}

fn completions(shell: clap_complete::Shell) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "fermata", &mut script);
    print_bytes(&script)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_of_commands_is_consistent() {
        Cli::command().debug_assert();
    }

    fn parsed(words: &str) -> Cli {
        let words = words.split(' ').map(OsString::from);
        Cli::parse_words(words).unwrap()
    }

    #[test]
    fn client_options_may_stand_on_both_sides_of_the_command_and_those_after_it_count_more() {
        let words = "fermata --endpoint http://a:1 --table t get --endpoint http://b:1 k";
        let FermataCommand::Get(args) = parsed(words).command else {
            panic!("it is a get");
        };
        assert_eq!(args.remote.endpoints(), ["http://b:1"]);
        assert_eq!(args.remote.table(), "t");
    }

    #[test]
    fn commands_of_servers_refuse_the_options_of_client_commands() {
        for good in [
            "fermata --output json check",
            "fermata check --output json",
            "fermata schema print --table a --table b",
        ] {
            parsed(good);
        }
        for bad in [
            "fermata --endpoint http://a:1 serve",
            "fermata check --table t",
            "fermata schema print --timeout 1s",
            "fermata agent --listen unix:/a --table t",
        ] {
            let refused = Cli::parse_words(bad.split(' ').map(OsString::from)).unwrap_err();
            let said = refused.to_string();
            assert!(said.contains("is an option of client commands"), "{said}");
        }
        for (name, _) in OF_SERVERS {
            let mut command = built(Cli::command());
            let help = command.find_subcommand_mut(name).unwrap().render_help();
            assert!(!help.to_string().contains(CLIENT_OPTIONS), "{name}");
        }
    }

    #[test]
    fn a_value_may_follow_a_bare_lock_ref_flag() {
        for words in [
            &["fermata", "put", "--lock-ref", "v"][..],
            &["fermata", "put", "--lock-ref=default/a#1.00000000@7", "-"],
            &["fermata", "get", "--lock-ref"],
            &["fermata", "get", "k"],
            &["fermata", "locks", "release", "r", "--reason", "w"],
            &["fermata", "locks", "release", "--key", "k", "--reason", "w"],
        ] {
            let parsed = Cli::try_parse_from(words);
            assert!(parsed.is_ok(), "{words:?}: {:?}", parsed.err());
        }
        for words in [
            &["fermata", "get"][..],
            &["fermata", "get", "--lock-ref", "k"],
            &["fermata", "put", "a", "b", "c"],
            &["fermata", "locks", "release", "r"],
            &["fermata", "locks", "release", "--reason", "w"],
        ] {
            assert!(Cli::try_parse_from(words).is_err(), "{words:?}");
        }
    }
}
