//! `fermata sessions`: lists the open sessions, and ends one by force.

use std::time::{Duration, SystemTime};

use fermata_client::public_part;
use fermata_command::output::{Format, colour, one_line, print_json, print_text, say};
use fermata_command::remote::who;
use fermata_command::{Failure, Remote, Span};
use fermata_proto as proto;
use serde_json::json;

use super::cells::{IDENTITY, age, lease_left, parse_count, short, table_of};
use super::views;

const HELP: &str = "\
LOCKS counts the lockRefs of the session, waiters included. LEASE LEFT and
LOCKS are shown for the sessions that the answering replica keeps. The id under
SESSION is no secret: nobody can act with it.

OWNER is a label chosen by the client. IDENTITY is the authenticated client;
the column is hidden if no client has one.

Exit status: 0; 64 malformed; 69 no server; 74 it cannot be printed; 75 too
many list at once; 77 not allowed.

Examples:
  fermata sessions
  fermata sessions --output json | jq -r '.sessions[].owner' | sort | uniq -c
  fermata sessions end 7d9f0b6e-5c1a-4f0e-9a55-0c1f5b8f2a11 --reason lost

--output json prints the fields of ListSessionsResponse in the protobuf
contract.";

const END_HELP: &str = "\
All lockRefs of the session end, held or waiting; its client gets
SESSION_CLOSED. Until then the client may still act on other systems, where
only fencing tokens help. This needs `admin` for everything; --by and --reason
go to the audit log.

Exit status: 0 (also if it had ended before, or never was: compare the id); 64
malformed; 69 no server; 74 it is done, and cannot be printed; 75 a limit is
reached, or the server is overloaded; 77 not allowed.

Example:
  fermata sessions end 7d9f0b6e-5c1a-4f0e-9a55-0c1f5b8f2a11 --reason lost";

/// List the open sessions, or end one by force
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    #[command(subcommand)]
    action: Option<Action>,

    /// The maximum number of sessions
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = parse_count)]
    limit: usize,

    #[command(flatten)]
    pub remote: Remote,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum Action {
    End(EndArgs),
}

/// End a session and all its lockRefs by force
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = END_HELP)]
struct EndArgs {
    /// The session to end, as `sessions` prints it, or its whole text
    #[arg(value_name = "SESSION")]
    session: String,

    /// The reason; goes to the audit log
    #[arg(long, value_name = "TEXT")]
    reason: String,

    /// The operator; goes to the audit log (default: user@host)
    #[arg(long, value_name = "TEXT")]
    by: Option<String>,

    #[command(flatten)]
    remote: Remote,
}

/// Runs the command.
pub async fn run(args: Args) -> Result<u8, Failure> {
    if let Some(Action::End(end)) = args.action {
        return end_one(end).await;
    }
    let client = args.remote.client()?;
    // One more tells whether the list is cut.
    let mut sessions = client.list_sessions(args.limit.saturating_add(1)).await?;
    let left_out = sessions.len() > args.limit;
    sessions.truncate(args.limit);
    match args.remote.format() {
        Format::Json => print_json(&views::sessions(&sessions))?,
        Format::Text => print_text(&list(&sessions, SystemTime::now(), colour()))?,
    }
    if left_out {
        say(&format!(
            "only the first {} sessions are shown (--limit)",
            args.limit
        ));
    }
    Ok(0)
}

async fn end_one(args: EndArgs) -> Result<u8, Failure> {
    let client = args.remote.client()?;
    let id = public_part(&args.session);
    let by = args.by.unwrap_or_else(who);
    let already_ended = client.end_session(id, &args.reason, &by).await?;
    let what = match already_ended {
        // A session that ended long ago is forgotten.
        true => "had ended before, or never existed",
        false => "ended, with all its lockRefs",
    };
    let what = format!("{} {what}", one_line(id));
    let printed = match args.remote.format() {
        Format::Json => print_json(&json!({
            "session_id": id,
            "already_ended": already_ended,
        })),
        Format::Text => print_text(&format!("{what}\n")),
    };
    printed.map_err(|error| Failure::unprinted(&what, error))?;
    Ok(0)
}

fn list(sessions: &[proto::SessionInfo], now: SystemTime, colour: bool) -> String {
    let columns = [
        "SESSION",
        "OWNER",
        IDENTITY,
        "AGE",
        "TTL",
        "LEASE LEFT",
        "GRACE",
        "LOCKS",
        "REPLICA",
    ];
    let rows = sessions.iter().map(|session| {
        let locks = match session.lease_left {
            Some(_) => session.lock_refs.to_string(),
            None => String::new(),
        };
        vec![
            session.session_id.clone(),
            session.owner.clone(),
            session.identity.clone(),
            age(session.create_time, now),
            span(session.ttl),
            lease_left(session.lease_left),
            span(session.disconnect_grace),
            locks,
            short(&session.replica),
        ]
    });
    table_of(&columns, rows.collect()).render(colour)
}

fn span(span: Option<prost_types::Duration>) -> String {
    let span = span.and_then(|span| Duration::try_from(span).ok());
    let millis = span.map(|span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
    millis.map_or_else(String::new, |millis| Span::from_millis(millis).to_string())
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn the_identity_of_a_session_has_a_column() {
        let known = proto::SessionInfo {
            identity: "mallory".to_owned(),
            ..proto::SessionInfo::default()
        };
        let shown = list(&[known], UNIX_EPOCH, false);
        assert!(shown.contains("mallory"), "{shown}");
    }
}
