//! `fermata lock KEY -- COMMAND`: runs a command under a lock.

use std::ffi::OsString;
use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use fermata_client::{Client, ClientOptions, GuardState, LockGuard, Lost, LostReason, Moment};
use fermata_command::output::{one_line, say};
use fermata_command::remote::{ENDPOINT_VARIABLE, LOCK_REF_VARIABLE, Remote, TABLE_VARIABLE};
use fermata_command::{Failure, Span, exit};
use nix::sys::signal::Signal;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use super::child::{Running, status_of};
use super::hold::hold;
use super::leaving::{lost_words, release, release_lost};
use super::signals::{END_WITHIN, Signals};
use super::waiting::LockFlags;

/// Variables in the environment of the command.
const FENCING_TOKEN_VARIABLE: &str = "FERMATA_FENCING_TOKEN";
const KEY_VARIABLE: &str = "FERMATA_KEY";

/// The interval between two looks at the validity.
const TICK: Duration = Duration::from_millis(100);
/// The default TTL, and the longest interval between renewals. With the default --grace a command runs for 34 s without a server:
/// longer than the restart of a pod.
const TTL: Duration = Duration::from_secs(60);
const RENEWED_EVERY_MAX: Duration = Duration::from_secs(10);

/// Run a command while holding the lock on a key
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = HELP,
    override_usage = "fermata lock [OPTIONS] KEY [-- COMMAND...]\n       \
                      fermata lock [OPTIONS] KEY -c SCRIPT"
)]
pub struct Args {
    /// The key to lock
    #[arg(value_name = "KEY", required_unless_present = "named_key")]
    key: Option<String>,

    /// The command; without one the lock is kept until a signal
    #[arg(value_name = "COMMAND", last = true, conflicts_with = "script")]
    command: Vec<OsString>,

    /// A command for the shell: short for -- sh -c SCRIPT
    #[arg(short = 'c', long = "command", value_name = "SCRIPT")]
    script: Option<OsString>,

    /// The key to lock; it may begin with -
    #[arg(
        long = "key",
        id = "named_key",
        value_name = "KEY",
        require_equals = true,
        conflicts_with = "key"
    )]
    named_key: Option<String>,

    /// How long the command has between SIGTERM and SIGKILL
    #[arg(long, value_name = "SPAN", default_value = "10s")]
    grace: Span,

    #[command(flatten)]
    taking: LockFlags,

    #[command(flatten)]
    pub remote: Remote,
}

const HELP: &str = "\
FERMATA_LOCK_REF, FERMATA_FENCING_TOKEN and FERMATA_KEY are set for the
command. Signals are passed on. A lost lock ends the command and all processes
that it started. --ttl is 60s by default. Details: docs/lock.md

Exit status: that of the command, 128+n if signal n ended it; 64 malformed; 66
no such table; 69 no server; 70 the lock was lost; 71 waiting for the command
failed; 74 the lockRef cannot be printed; 75 the lock is held (--try) or a
limit is reached; 77 not allowed; 124 the wait timed out; 126 the command
cannot be run; 127 there is no such command.

Examples:
  fermata lock orders-42 -- ./charge.sh 42
  fermata lock --try nightly -- make report || [ $? -eq 75 ]
  fermata lock --wait 30s deploy -c './deploy.sh && ./announce.sh'";

/// Runs the command.
pub async fn run(args: Args) -> Result<u8, Failure> {
    let command = match args.script {
        Some(script) => vec!["sh".into(), "-c".into(), script],
        None => args.command,
    };
    // `-- $COMMAND` of a variable that is not set is no wish to keep the lock for ever.
    let last = std::env::args_os().next_back();
    if command.is_empty() && last.is_some_and(|last| last == "--") {
        return Err(Failure::usage(
            "no command follows --; leave the -- out to keep the lock without one",
        ));
    }
    let key = args.named_key.or(args.key).unwrap_or_default();
    let client = args.remote.client_with(ClientOptions {
        renewal_interval_max: RENEWED_EVERY_MAX,
        ..ClientOptions::default()
    })?;
    let mut signals = Signals::new()?;
    let table = args.remote.table();
    let taking = args.taking.or_ttl(TTL);
    let guard = taking.lock(&client, &table, &key, &mut signals).await?;
    let table = match table.is_empty() {
        true => "default".to_owned(),
        false => table,
    };
    if command.is_empty() {
        return hold(guard, (&table, &key), args.remote.format(), &mut signals).await;
    }
    let mut variables = vec![
        (LOCK_REF_VARIABLE, guard.lock_ref()),
        (FENCING_TOKEN_VARIABLE, guard.fencing_token().to_string()),
        (KEY_VARIABLE, key.clone()),
        (ENDPOINT_VARIABLE, args.remote.endpoints().join(",")),
        (TABLE_VARIABLE, table),
    ];
    variables.extend(args.remote.files());
    let running = match Running::start(&command, &variables) {
        Ok(running) => running,
        Err(failure) => {
            let released = release(guard, &key, None, &mut signals).await;
            return released.and(Err(failure));
        }
    };
    let valid_until = match guard.state() {
        GuardState::Held { valid_until, .. } => valid_until,
        GuardState::Lost(_) => client.clock().now(),
    };
    let mut holding = LockedCommand {
        client,
        guard,
        running,
        signals,
        grace: args.grace.duration(),
        key,
        valid_until,
        is_told_to_end: false,
        is_lost: false,
        kill_at: None,
        is_killed: false,
    };
    let status = holding.until_ended().await;
    holding.end(status).await
}

/// The time between the stop of a command and the end of the promise. With all renewals answered, more than this is always left.
fn lead(grace: Duration, promised_for: Duration) -> Duration {
    grace.min(promised_for / 3)
}

/// A command that runs under a lock.
struct LockedCommand {
    client: Client,
    guard: LockGuard,
    running: Running,
    signals: Signals,
    grace: Duration,
    key: String,
    /// The end of the validity at the last look.
    valid_until: Moment,
    /// The command was passed a signal that asks it to end.
    is_told_to_end: bool,
    /// The command was stopped because the lock was, or was about to be, lost.
    is_lost: bool,
    /// Set once the command and all that it started were told to stop.
    kill_at: Option<Moment>,
    is_killed: bool,
}

impl LockedCommand {
    /// Returns the exit status of the command after its end. If it was stopped, or ended by a signal, the processes that it
    /// started have ended as well.
    async fn until_ended(&mut self) -> u8 {
        // Fine enough for short validities too.
        let mut tick = interval(TICK.min(self.valid_for_most() / 20));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut status = None;
        loop {
            tokio::select! {
                biased;
                ended = self.running.ended(), if status.is_none() => {
                    status = Some(self.command_ended(ended));
                }
                signal = self.signals.next() => self.pass(signal),
                lost = self.guard.lost(), if !self.is_lost => self.stop_lost(&lost),
                _ = tick.tick() => {
                    self.stop_early();
                    self.kill_late();
                }
            }
            if let Some(status) = status
                && self.has_all_ended()
            {
                return status;
            }
        }
    }

    /// The validity after a renewal.
    fn valid_for_most(&self) -> Duration {
        let ttl = self.guard.ttl();
        self.guard
            .disconnect_grace()
            .unwrap_or(ttl)
            .max(Duration::from_millis(1))
    }

    fn pass(&mut self, signal: Signal) {
        if !Signals::reached_the_group(signal) {
            self.running.pass(signal);
            self.is_told_to_end |=
                matches!(signal, Signal::SIGTERM | Signal::SIGINT | Signal::SIGQUIT);
        }
    }

    /// The command itself has ended. After its own end its background processes go on; after a signal they must not go on without
    /// the lock.
    fn command_ended(&mut self, ended: io::Result<ExitStatus>) -> u8 {
        let now = self.client.clock().now();
        match ended {
            Ok(ended) => {
                let by_signal = self.is_told_to_end || ended.code().is_none();
                if by_signal && self.kill_at.is_none() && self.running.is_any_left() {
                    let grace = Span::from_duration(self.grace);
                    say_beside(format!(
                        "a signal ended the command; stopping the processes that it started: SIGTERM now, SIGKILL in {grace}"
                    ));
                    self.stop(now.after(self.grace));
                }
                status_of(ended)
            }
            Err(error) => {
                // It may run still.
                say_beside(format!("cannot wait for the command: {error}; stopping it"));
                self.stop(now);
                exit::OS
            }
        }
    }

    /// Sends SIGTERM to the command and all that it started. SIGKILL follows at `kill_at` at the latest.
    fn stop(&mut self, kill_at: Moment) {
        match self.kill_at {
            Some(earlier) => self.kill_at = Some(earlier.min(kill_at)),
            None => {
                self.running.stop();
                self.kill_at = Some(kill_at);
            }
        }
    }

    /// The lock is lost. If its validity ended before (as after a suspend), another client may hold it: the command is killed at
    /// once. Otherwise it has its grace.
    fn stop_lost(&mut self, lost: &Lost) {
        self.is_lost = true;
        let now = self.client.clock().now();
        // Also where a server gives another reason by now.
        let is_late = matches!(lost.reason, LostReason::ValidityEnded | LostReason::Expired)
            || now >= self.valid_until;
        let (kill_at, when) = match is_late {
            true => (now, "at once".to_owned()),
            false => (
                now.after(self.grace),
                format!("in {}", Span::from_duration(self.grace)),
            ),
        };
        self.stop(kill_at);
        say_beside(format!(
            "{}; stopping the command: SIGTERM now, SIGKILL {when}",
            lost_words(&self.key, lost),
        ));
    }

    /// Stops the command if the validity ends within the grace: nothing of it runs when another client can have the lock.
    fn stop_early(&mut self) {
        let GuardState::Held { valid_until, .. } = self.guard.state() else {
            // `lost` has the reason.
            return;
        };
        self.valid_until = valid_until;
        let lead = lead(self.grace, self.guard.promised_for());
        let left = self.client.clock().now().until(valid_until);
        if self.is_lost || left > lead {
            return;
        }
        self.is_lost = true;
        self.stop(valid_until);
        let why = match self.guard.last_failure() {
            None => String::new(),
            Some(error) => format!(": {}", one_line(&error.to_string())),
        };
        say_beside(format!(
            "no renewal succeeded{why}; the lock on {} may go to another client in {} ms; stopping the command: SIGTERM now, \
             SIGKILL then",
            self.key,
            left.as_millis(),
        ));
    }

    /// Kills processes that did not stop in time, and processes that they started since.
    fn kill_late(&mut self) {
        let now = self.client.clock().now();
        if self.kill_at.is_none_or(|kill_at| now < kill_at) {
            return;
        }
        self.running.kill();
        if !self.is_killed {
            self.is_killed = true;
            say_beside("the command did not stop; sending SIGKILL".to_owned());
        }
    }

    /// Whether nothing is left of a command that was stopped, and has ended itself. The end of a command with a lost lock waits
    /// for a moment only for processes that survive SIGKILL, as those of another user do.
    fn has_all_ended(&self) -> bool {
        let Some(kill_at) = self.kill_at else {
            return true;
        };
        let is_given_up = self.is_lost && self.client.clock().now() >= kill_at.after(END_WITHIN);
        is_given_up || !self.running.is_any_left()
    }

    async fn end(mut self, status: u8) -> Result<u8, Failure> {
        if self.is_lost {
            release_lost(self.guard).await;
            return Err(Failure::new(exit::FAILED, ""));
        }
        release(self.guard, &self.key, None, &mut self.signals).await?;
        Ok(status)
    }
}

/// Writes a line to stderr in a thread: without a reader of stderr, SIGKILL must come in time all the same.
fn say_beside(line: String) {
    drop(spawn_blocking(move || say(&line)));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser as _;

    use super::super::Cli;
    use super::lead;

    #[test]
    fn a_command_is_stopped_a_third_of_the_promise_in_force_before_its_end_or_its_grace() {
        let ms = Duration::from_millis;
        for (grace, promised_for, expected) in [
            // A TTL of 30 s.
            (10_000, 27_000, 9_000),
            (2_000, 27_000, 2_000),
            // Not durable yet: of a fresh promise more must be left.
            (10_000, 4_050, 1_350),
            // A disconnect_grace of 500 ms.
            (10_000, 450, 150),
            (10_000, 0, 0),
        ] {
            assert_eq!(lead(ms(grace), ms(promised_for)), ms(expected));
        }
    }

    /// The documents tell how long a command goes on without a server; that follows from the code.
    #[test]
    fn how_long_a_command_goes_on_without_a_server_is_what_is_said_of_it() {
        let guarantees = include_str!("../../docs/guarantees.md");
        let page = include_str!("../../docs/lock.md");
        let grace = Duration::from_secs(10);
        for (ttl, said) in [
            (30, "| `--ttl 30s` | 8 to 18 s |\n"),
            (60, "| `--ttl 60s`, the default | 34 to 44 s |\n"),
            (120, "| `--ttl 2m` | 88 to 98 s |\n"),
        ] {
            assert!(page.contains(said), "{said}");
            let ttl = Duration::from_secs(ttl);
            // As its renewal promised it, which was sent up to one interval before the server went.
            let promised = ttl * 9 / 10;
            let longest = promised - lead(grace, promised);
            let shortest = longest - (ttl / 3).min(super::RENEWED_EVERY_MAX);
            let span = format!("{} to {} s", shortest.as_secs(), longest.as_secs());
            assert!(said.contains(&span), "{said}: {span}");
            let is_told = ttl.as_secs() <= 60;
            assert!(guarantees.contains(&span) || !is_told, "{span}");
        }
        assert_eq!(super::TTL, Duration::from_secs(60));
    }

    #[test]
    fn a_command_keeps_its_own_options() {
        for good in [
            &["fermata", "lock", "k", "--", "ls", "--try"][..],
            &["fermata", "lock", "k", "--wait", "1m30s", "--", "ls", "-l"],
            &["fermata", "lock", "-n", "k", "--", "ls", "-c"],
            &["fermata", "lock", "-w", "30", "-q", "k", "-c", "ls -l"],
        ] {
            assert!(Cli::try_parse_from(good).is_ok(), "{good:?}");
        }
        for bad in [
            &["fermata", "lock", "k", "ls"][..],
            &["fermata", "lock", "--", "ls"],
            &["fermata", "lock", "--wait", "30x", "k", "--", "ls"],
            &["fermata", "lock", "-E", "256", "k", "--", "ls"],
            &["fermata", "lock", "k", "-c", "ls", "--", "ls"],
            &["fermata", "lock", "--try", "--wait", "3s", "k", "--", "ls"],
        ] {
            assert!(Cli::try_parse_from(bad).is_err(), "{bad:?}");
        }
    }
}
