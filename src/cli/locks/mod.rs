//! `fermata locks`: lists and shows locks, and ends them.

mod ls;
mod release;
mod show;
mod top;

use fermata_command::Failure;

/// Look at locks, and end them
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: LocksCommand,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum LocksCommand {
    Ls(ls::Args),
    Show(show::Args),
    Top(top::Args),
    Release(release::Args),
}

/// Runs the command.
pub async fn run(args: Args) -> Result<u8, Failure> {
    match args.command {
        LocksCommand::Ls(args) => ls::run(args).await?,
        LocksCommand::Show(args) => show::run(args).await?,
        LocksCommand::Top(args) => top::run(args).await?,
        LocksCommand::Release(args) => release::run(args).await?,
    }
    Ok(0)
}
