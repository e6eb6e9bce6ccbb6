//! The command line: the server's commands, and those of a client.
//!
//! Here words are taken apart and put together; what a lock is, is not known here.

mod aside;
mod backup;
pub mod check;
mod child;
mod cluster;
mod delete;
mod detached;
pub mod end;
mod explain;
mod get;
mod health;
mod hold;
mod leaving;
mod lock;
mod locks;
mod print;
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
mod waiting_line;

use std::ffi::OsString;
use std::io::Write as _;

use clap::{CommandFactory as _, Parser};
use fermata_command::{Failure, Remote, exit, stdout};

const HELP: &str = "\
Examples:
  fermata serve                             # on this machine
  fermata lock orders-42 -- ./charge.sh 42  # one at a time
  fermata locks ls                          # who holds what
  fermata locks top                         # what others wait for, live
  fermata put greeting hello && fermata get greeting

Every command has its own --help, with examples and exit statuses.";

/// Fermata holds keys: a lock service with fencing tokens, first come first served
#[derive(Debug, Parser)]
#[command(name = "fermata", version, after_help = HELP)]
pub struct Cli {
    #[command(subcommand)]
    command: FermataCommand,

    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Subcommand)]
enum FermataCommand {
    Serve(serve::Args),
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
}

/// Runs the command that these words (the program's name first) say.
pub async fn run(words: impl IntoIterator<Item = OsString>) -> u8 {
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(mut error) => {
            lock::tip(&mut error);
            value::tip(&mut error);
            return printed(&error);
        }
    };
    let before = cli.remote;
    let ended = match cli.command {
        FermataCommand::Serve(args) if before.is_empty() => {
            return serve::run(args).await.unwrap_or_else(|error| {
                aside::say(&error.to_string());
                error.exit_code()
            });
        }
        FermataCommand::Check(args) if before.is_empty() => {
            return check::run(args)
                .await
                .unwrap_or_else(|error| failed(&error.into()));
        }
        FermataCommand::Schema(args) if before.is_empty() => schema::run(args).await,
        FermataCommand::Token(args) if before.is_empty() => token::run(&args),
        FermataCommand::Explain(args) if before.is_empty() => explain::run(&args),
        FermataCommand::Restore(args) if before.is_empty() => backup::run_restore(&args),
        FermataCommand::Completions { shell } if before.is_empty() => completions(shell),
        FermataCommand::Serve(_)
        | FermataCommand::Check(_)
        | FermataCommand::Schema(_)
        | FermataCommand::Token(_)
        | FermataCommand::Explain(_)
        | FermataCommand::Restore(_)
        | FermataCommand::Completions { .. } => Err(Failure::usage(
            "options before the command are for client commands; give those of this one after it",
        )),
        FermataCommand::Lock(mut args) => {
            args.remote = args.remote.or(&before);
            lock::run(args).await
        }
        FermataCommand::Locks(args) => locks::run(args, &before).await,
        FermataCommand::Health(mut args) => {
            args.remote = args.remote.or(&before);
            health::run(args).await
        }
        FermataCommand::Backup(mut args) => {
            args.remote = args.remote.or(&before);
            backup::back_up(args).await
        }
        FermataCommand::Sessions(mut args) => {
            args.remote = args.remote.or(&before);
            sessions::run(args).await
        }
        FermataCommand::Get(mut args) => {
            args.remote = args.remote.or(&before);
            get::run(args).await
        }
        FermataCommand::Delete(mut args) => {
            args.remote = args.remote.or(&before);
            delete::run(args).await
        }
        FermataCommand::Put(mut args) => {
            args.remote = args.remote.or(&before);
            put::run(args).await
        }
    };
    ended.unwrap_or_else(|failure| failed(&failure))
}

/// Prints help, or why the words make no sense.
fn printed(error: &clap::Error) -> u8 {
    let printed = error.print();
    if error.use_stderr() {
        // Where it cannot be said, the status is left.
        return exit::USAGE;
    }
    match printed.and_then(|()| stdout::open()?.flush()) {
        Ok(()) => 0,
        Err(unread) => failed(&unread.into()),
    }
}

/// Says why a command failed.
fn failed(failure: &Failure) -> u8 {
    if !failure.message.is_empty() {
        aside::say(&failure.message);
    }
    failure.code
}

fn completions(shell: clap_complete::Shell) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "fermata", &mut script);
    stdout::open()?.write_all(&script)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_of_commands_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Text that is wrapped by hand is wrapped once more where the terminal is narrower.
    #[test]
    fn hand_wrapped_help_fits_80_columns() {
        fn see(command: &clap::Command) {
            for text in [command.get_after_help(), command.get_after_long_help()]
                .into_iter()
                .flatten()
            {
                // A paragraph of one line is wrapped by clap alone.
                for paragraph in text.to_string().split("\n\n") {
                    for line in paragraph.lines().filter(|_| paragraph.contains('\n')) {
                        let width = line.chars().count();
                        assert!(width < 80, "{}: {width}: {line}", command.get_name());
                    }
                }
            }
            command.get_subcommands().for_each(see);
        }
        see(&Cli::command());
    }

    #[test]
    fn options_after_the_command_count_more_than_those_before_it() {
        let words = [
            "fermata",
            "--endpoint",
            "http://a:1",
            "--table",
            "t",
            "get",
            "--endpoint",
            "http://b:1",
            "k",
        ];
        let cli = Cli::try_parse_from(words).unwrap();
        let FermataCommand::Get(args) = cli.command else {
            panic!("it is a get");
        };
        let remote = args.remote.or(&cli.remote);
        assert_eq!(remote.endpoints(), ["http://b:1"]);
        assert_eq!(remote.table(), "t");
    }

    #[test]
    fn a_value_may_follow_a_bare_lock_ref_flag() {
        for words in [
            &["fermata", "put", "--lock-ref", "v"][..],
            &[
                "fermata",
                "put",
                "--lock-ref",
                "default/a#1.00000000@7",
                "v",
            ],
            &["fermata", "put", "--lock-ref=default/a#1.00000000@7", "-"],
            &["fermata", "put", "k", "v"],
            &["fermata", "put", "k", "-"],
            &["fermata", "put", "k", "--file", "f"],
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
            &["fermata", "put", "a", "b", "c"],
            &["fermata", "locks", "release", "r"],
            &["fermata", "locks", "release", "--reason", "w"],
        ] {
            assert!(Cli::try_parse_from(words).is_err(), "{words:?}");
        }
    }
}
