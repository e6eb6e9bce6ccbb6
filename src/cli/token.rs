//! `fermata token`: makes a token by which a server knows a client.

use aws_lc_rs::rand;
use fermata_command::output::print_text;
use fermata_command::{Failure, exit};

use crate::access::NewToken;

const HELP: &str = "\
The token goes to stdout: keep it in a file that only the client can read, and
name that with --token-file or FERMATA_TOKEN_FILE. Its line for the server's
auth.tokens_file, which holds a hash of it only, goes to stderr.

A name may have several tokens: to replace one, add the line of the new one,
let clients change over, and take the old line away. The server takes the file
within a second of each change.

Exit status: 0; 64 malformed; 71 the system gives no random bytes.

Example:
  fermata token billing > billing.token 2>> tokens";

/// Make a token by which a server knows a client
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Who has it: 1 to 64 letters, digits, '.', '_' or '-'
    #[arg(value_name = "NAME")]
    name: String,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<u8, Failure> {
    let mut random = [0; 32];
    rand::fill(&mut random)
        .map_err(|_| Failure::new(exit::OS, "the system gives no random bytes".to_owned()))?;
    let Some(made) = NewToken::new(&args.name, random) else {
        return Err(Failure::usage(format!(
            "{:?} is no name: 1 to 64 letters, digits, '.', '_' or '-' are needed",
            args.name
        )));
    };
    print_text(&format!("{}\n", made.token))?;
    eprintln!("{}", made.line);
    Ok(0)
}
