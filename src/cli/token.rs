//! `fermata token`: makes a token for a client.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use aws_lc_rs::rand;
use fermata_command::output::print_text;
use fermata_command::{Failure, exit};

use crate::access::NewToken;

const HELP: &str = "\
The token goes to a file that only its owner can read. Clients name the file
with --token-file or FERMATA_TOKEN_FILE. A line for auth.tokens_file of the
server goes to stdout; it holds a hash of the token.

A name may have several tokens. To replace a token, add the line of the new
one, let the clients change over, and remove the old line. The server takes
each change within two seconds.

Exit status: 0; 64 malformed; 71 the system gives no random bytes; 73 the file
exists already, or cannot be made; 74 the line cannot be printed: no file is
left.

Example:
  fermata token billing --out billing.token >> tokens";

/// Make a token for a client
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The name of the client: 1 to 64 letters, digits, '.', '_' or '-'
    #[arg(value_name = "NAME")]
    name: String,

    /// The new file for the token
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<u8, Failure> {
    if args.out.as_os_str() == "-" {
        return Err(Failure::usage(
            "a token goes to a file, never to stdout; write ./- for a file named -",
        ));
    }
    let mut random = [0; 32];
    rand::fill(&mut random)
        .map_err(|_| Failure::new(exit::OS, "the system gives no random bytes".to_owned()))?;
    let Some(made) = NewToken::new(&args.name, random) else {
        return Err(Failure::usage(format!(
            "{:?} is not a name: a name has 1 to 64 letters, digits, '.', '_' or '-'",
            args.name
        )));
    };
    write(&args.out, &made.token)?;
    let printed = print_text(&format!("{}\n", made.line));
    // Without its line the token is useless, and the file would block the next try.
    printed.inspect_err(|_| drop(fs::remove_file(&args.out)))?;
    Ok(0)
}

fn write(file: &Path, token: &str) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        Failure::new(exit::CANNOT_CREATE, format!("{}: {error}", file.display()))
    };
    let mut options = OpenOptions::new();
    let opened = options.write(true).create_new(true).mode(0o600).open(file);
    let mut opened = opened.map_err(failed)?;
    writeln!(opened, "{token}")
        .and_then(|()| opened.sync_all())
        .map_err(failed)
}
