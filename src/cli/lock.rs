//! `fermata lock KEY -- command`: runs a command under a lock.

use std::ffi::OsString;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use fermata_client::{Client, ClientOptions, GuardState, LockGuard, Lost, LostReason, Moment};
use fermata_command::output::one_line;
use fermata_command::remote::{ENDPOINT_VARIABLE, Remote, TABLE_VARIABLE};
use fermata_command::{Failure, Span, exit};
use nix::sys::signal::Signal;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::aside::Aside;
use super::child::{Running, status_of};
use super::hold::{Shown, hold, refuse_without_stdout};
use super::leaving::Leaving;
use super::signals::Signals;
use super::waiting::LockFlags;

/// The environment variable that hands the lockRef to the command.
pub const LOCK_REF_VARIABLE: &str = "FERMATA_LOCK_REF";
/// The environment variables that hand on the rest.
const FENCING_TOKEN_VARIABLE: &str = "FERMATA_FENCING_TOKEN";
const KEY_VARIABLE: &str = "FERMATA_KEY";

/// How often the validity is looked at.
const TICK: Duration = Duration::from_millis(100);
/// The TTL by default, and how often it is renewed at least: with --grace by default a command goes on for 34 s without a server,
/// which is more than the restart of a pod takes.
const TTL: Duration = Duration::from_secs(60);
const RENEWED_EVERY_MAX: Duration = Duration::from_secs(10);
/// How long the end of what got SIGKILL is waited for.
const KILLED_WITHIN: Duration = Duration::from_secs(1);
/// How long the release of a lost lock may hold up the end of the process.
pub(super) const RELEASE_LOST_MAX: Duration = Duration::from_secs(1);

/// Run a command while holding the lock on a key
///
/// Waits for the lock, runs the command, and releases the lock when the command ends. While it waits it
/// shows its position in the queue on stderr; Ctrl-C releases the entry.
#[derive(Debug, Clone, clap::Args)]
#[command(after_long_help = HELP, after_help = "More, with examples and exit statuses: fermata lock --help")]
pub struct Args {
    /// The key to lock
    #[arg(value_name = "KEY")]
    key: String,

    /// The command, and its arguments; without one the lock is kept until a signal ends this
    #[arg(value_name = "COMMAND", last = true, conflicts_with = "script")]
    command: Vec<OsString>,

    /// The command, for a shell: as -- sh -c SCRIPT
    #[arg(short = 'c', long = "command", value_name = "SCRIPT")]
    script: Option<OsString>,

    /// When the lock is lost the command gets SIGTERM, and SIGKILL after this
    #[arg(long, value_name = "SPAN", default_value = "10s")]
    grace: Span,

    #[command(flatten)]
    taking: LockFlags,

    #[command(flatten)]
    pub remote: Remote,
}

const HELP: &str = "\
Without a command the lockRef is printed on stdout (with --output json its
fencing token, table and key as well), and the lock is kept until SIGTERM,
SIGINT, SIGHUP or SIGQUIT ends this, or the lock is lost. Whoever has the
lockRef may act under the lock.

When the command ends by itself the lock is released. What it left in the
background runs on, without the lock (flock keeps a lock for as long as such a
process has the file open): let the command wait for it.

Environment of the command:
  FERMATA_LOCK_REF       the lockRef: `fermata get --lock-ref` and
                         `fermata put --lock-ref` use it
  FERMATA_FENCING_TOKEN  the fencing token: give it to whatever the lock
                         protects; that must refuse a token below the highest
                         one it has seen
  FERMATA_KEY, FERMATA_TABLE, FERMATA_ENDPOINT, and the files that were named
  with --ca, --certificate, --certificate-key and --token-file

Signals:
  SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed to the command, SIGINT and
  SIGQUIT as well unless they can come from the keys of the terminal: the
  command shares terminal and process group, so Ctrl-C and Ctrl-\\ reach it by
  themselves and are not sent a second time. (So in the foreground of a
  terminal `kill -INT` on fermata does nothing; use `kill -TERM`.) Ctrl-Z stops
  both, renewals too: a command that is stopped for longer than the TTL is
  ended when it goes on. Once the lock is being released a signal leaves that
  2 s (so does the one that ends this without a command), and a second one (not
  within 0.2 s, which some send twice) none: then the lock ends by its TTL.
  A release that is not allowed, as while a rule is replaced, is tried again
  for --timeout.

When the lock is lost:
  The command and all that it started, in the background and daemons as well,
  get SIGTERM (and SIGCONT), after --grace SIGKILL, and stderr says why. Where
  its time had passed unnoticed (fermata was suspended) SIGKILL comes at once.
  Where the loss can be foreseen (no server answers, or the token or the rule
  was taken away), SIGTERM comes early: --grace, or a
  third of what was promised last if that is less, before the end of the time
  in which nobody else can have the lock, and SIGKILL at its end. Promised is
  0.9 of the TTL (of --disconnect-grace, where given) from the last renewal on,
  which are sent each third of the TTL, and each 10 s at least; on a table with
  write-back some 4 s in the first moments of a lock. So long a command goes on
  without a server:
    --ttl 30s    8 to 18 s
    --ttl 60s   34 to 44 s, the default
    --ttl 2m    88 to 98 s
  A shorter --grace adds to that. A longer TTL is what others wait for after a
  crash of this machine; after one of this process, --disconnect-grace is.
  Nothing stops the command where fermata itself gets SIGKILL; the next one has
  the lock after --disconnect-grace, else after the TTL. Where fermata is
  stopped (SIGSTOP), or its machine is gone without closing the connection, the
  next one has it some 15 s later than that, once the server's pings failed.

Exit status:
  that of the command, or 128+n if signal n ended it (130 is Ctrl-C), and:
   64  the command line makes no sense, or the server refused it as malformed
   66  there is no such table
   69  no server could be reached, or none could do it within --timeout, which
       counts with --try and --wait as well until one is reached
   70  the lock was lost, and the command was stopped, or had ended by itself
       before that was noticed (its own status is lost then); or the entry was
       lost while it waited, as by `fermata locks release`
   71  the command could not be waited for, and is ended
   74  the lockRef could not be printed, or stdout is closed
   75  --try, and others hold the lock (see --conflict-exit-code); or a limit
       of the server is reached, or it is overloaded
   77  not allowed
  124  the wait timed out (--wait; see --conflict-exit-code)
  126  the command cannot be run
  127  there is no such command
  128+n  ended by signal n while waiting, or without a command; the entry, or
       the lock, is released

Examples:
  fermata lock orders-42 -- ./charge.sh 42
  fermata lock --try nightly-report -- make report || [ $? -eq 75 ]
  fermata lock -n -E 0 -q nightly-report -c 'make report'  # as flock has it
  fermata lock --disconnect-grace 500ms leader -- ./serve.sh
  fermata lock --wait 30s --ttl 10s deploy -- \\
    sh -c './deploy.sh && fermata put --lock-ref \"$(git rev-parse HEAD)\"'";

/// Says what to do about a command that follows the key as if nothing else could.
pub fn tip(error: &mut clap::Error) {
    let usage = error.get(ContextKind::Usage).map(ToString::to_string);
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else {
        return;
    };
    let of_lock = usage.is_some_and(|usage| usage.contains(" lock "));
    if error.kind() != ErrorKind::UnknownArgument || !of_lock || word.starts_with('-') {
        return;
    }
    let tip = format!("put -- before the command: fermata lock KEY -- {word} ...");
    let tips = ContextValue::StyledStrs(vec![tip.into()]);
    error.insert(ContextKind::Suggested, tips);
}

/// Runs the command.
pub async fn run(args: Args) -> Result<u8, Failure> {
    let aside = Aside::start();
    let ended = lock(args, &aside).await;
    aside.finish(ended)
}

async fn lock(args: Args, aside: &Aside) -> Result<u8, Failure> {
    let command = match args.script {
        Some(script) => vec!["sh".into(), "-c".into(), script],
        None => args.command,
    };
    if command.is_empty() {
        // `-- $COMMAND` of a variable that is not set is no wish to keep the lock for ever.
        if std::env::args_os()
            .next_back()
            .is_some_and(|last| last == "--")
        {
            return Err(Failure::usage(
                "no command follows --; leave the -- out to keep the lock without one",
            ));
        }
        refuse_without_stdout()?;
    }
    let options = ClientOptions {
        renewal_interval_max: RENEWED_EVERY_MAX,
        ..ClientOptions::default()
    };
    // A token that comes through a pipe may be waited for: a signal ends that as it ends any program.
    let client = args.remote.quiet_client(options)?;
    let mut signals = Signals::new()?;
    args.remote.say_where_nobody_answers(&client, aside.sayer());
    let table = args.remote.table();
    let guard = args
        .taking
        .or_ttl(TTL)
        .lock(&client, &table, &args.key, &mut signals, aside)
        .await?;
    let table = if table.is_empty() {
        "default".to_owned()
    } else {
        table
    };
    if command.is_empty() {
        let shown = Shown {
            table: &table,
            key: &args.key,
            format: args.remote.format(),
        };
        let leaving = Leaving::new(&client, &args.key, aside);
        return hold(guard, &mut signals, &shown, leaving).await;
    }
    let mut variables = vec![
        (LOCK_REF_VARIABLE, guard.lock_ref()),
        (FENCING_TOKEN_VARIABLE, guard.fencing_token().to_string()),
        (KEY_VARIABLE, args.key.clone()),
        (ENDPOINT_VARIABLE, args.remote.endpoints().join(",")),
        (TABLE_VARIABLE, table),
    ];
    variables.extend(args.remote.files());
    let running = match Running::start(&command, &variables) {
        Ok(running) => running,
        Err(failure) => {
            let leaving = Leaving::new(&client, &args.key, aside);
            let released = leaving.release(guard, None, &mut signals).await;
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
        key: args.key,
        valid_until,
        aside,
    };
    let ended = holding.until_ended().await;
    holding.end(ended).await
}

pub(super) fn lost_words(key: &str, lost: &Lost) -> String {
    let detail = one_line(&lost.detail);
    format!(
        "lost the lock on {key}: {detail} ({})",
        lost.reason.as_str()
    )
}

/// How long before the end of what was promised a command is stopped. With every call of the client answered more than this
/// is always left.
fn lead(grace: Duration, promised_for: Duration) -> Duration {
    grace.min(promised_for / 3)
}

/// How the command ended.
struct CommandEnd {
    status: u8,
    /// It was stopped because the lock was, or was about to be, lost.
    stopped: bool,
}

/// A command that is being stopped.
struct CommandStop {
    kill_at: Moment,
    killed: bool,
}

/// A command that runs under a lock.
struct LockedCommand<'a> {
    client: Client,
    guard: LockGuard,
    running: Running,
    signals: Signals,
    grace: Duration,
    key: String,
    /// Until when the lock was known to hold, when that was looked at last.
    valid_until: Moment,
    aside: &'a Aside,
}

impl LockedCommand<'_> {
    /// Waits for the end of the command; stops it when the lock is lost.
    async fn until_ended(&mut self) -> CommandEnd {
        let mut stopping: Option<CommandStop> = None;
        // Fine enough for what is taken off the validity.
        let mut tick = interval(TICK.min(self.valid_for_most() / 20));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ended = loop {
            tokio::select! {
                biased;
                ended = self.running.ended() => break ended,
                signal = self.signals.next() => self.pass(signal),
                lost = self.guard.lost(), if stopping.is_none() => {
                    stopping = Some(self.stop_lost(&lost));
                }
                _ = tick.tick() => match &mut stopping {
                    None => stopping = self.stop_early(),
                    Some(stopping) => {
                        if !stopping.killed && self.client.clock().now() >= stopping.kill_at {
                            stopping.killed = true;
                            self.running.kill(self.aside);
                            self.aside.say("the command did not stop; sending SIGKILL".to_owned());
                        }
                    }
                },
            }
        };
        let stopped = stopping.is_some();
        let status = match ended {
            Ok(ended) => {
                if let Some(stopping) = stopping {
                    self.finish(stopping.kill_at).await;
                }
                status_of(ended)
            }
            Err(error) => {
                // Whether it runs is not known, and nothing of it may where others can have the lock.
                self.aside.say(format!(
                    "the command cannot be waited for: {error}; ending what is left of it"
                ));
                self.finish(self.client.clock().now()).await;
                exit::OS
            }
        };
        CommandEnd { status, stopped }
    }

    /// How long one renewal is good for.
    fn valid_for_most(&self) -> Duration {
        let ttl = self.guard.ttl();
        self.guard
            .disconnect_grace()
            .unwrap_or(ttl)
            .max(Duration::from_millis(1))
    }

    fn pass(&self, signal: Signal) {
        if !self.signals.reached_the_group(signal) {
            self.running.pass(signal, self.aside);
        }
    }

    /// The lock is lost. Where its time had passed before that was noticed, as after a suspend, somebody else may have it: then nothing
    /// may run on. Else the command has what the user gives it.
    fn stop_lost(&mut self, lost: &Lost) -> CommandStop {
        let now = self.client.clock().now();
        // Whatever a server says of it by now: somebody else may have it for long.
        let is_late = matches!(lost.reason, LostReason::ValidityEnded | LostReason::Expired)
            || now >= self.valid_until;
        let (kill_at, when) = match is_late {
            true => (now, "at once".to_owned()),
            false => (
                now.after(self.grace),
                format!("in {}", Span::from_duration(self.grace)),
            ),
        };
        self.running.stop(self.aside);
        self.aside.say(format!(
            "{}; stopping the command: SIGTERM now, SIGKILL {when}",
            lost_words(&self.key, lost),
        ));
        CommandStop {
            kill_at,
            killed: false,
        }
    }

    /// Stops the command where the validity ends within the grace, so that nothing of it runs when
    /// somebody else can have the lock.
    fn stop_early(&mut self) -> Option<CommandStop> {
        let GuardState::Held { valid_until, .. } = self.guard.state() else {
            // Then `lost` says so, with the reason.
            return None;
        };
        self.valid_until = valid_until;
        let lead = lead(self.grace, self.guard.promised_for());
        let now = self.client.clock().now();
        if now.until(valid_until) > lead {
            return None;
        }
        self.running.stop(self.aside);
        let why = match self.guard.last_failure() {
            None => String::new(),
            Some(error) => format!(": {}", one_line(&error.to_string())),
        };
        self.aside.say(format!(
            "no renewal came through{why}; the lock on {} may go to somebody else in {} ms; stopping the command: \
             SIGTERM now, SIGKILL then",
            self.key,
            now.until(valid_until).as_millis(),
        ));
        Some(CommandStop {
            kill_at: valid_until,
            killed: false,
        })
    }

    /// The command itself has ended; sees to what it started.
    async fn finish(&mut self, kill_at: Moment) {
        let left = self.client.clock().now().until(kill_at);
        let stopped = self.running.all_gone(Signal::SIGTERM, self.aside);
        if timeout(left, stopped).await.is_err() {
            self.running.kill(self.aside);
            // A process that not even SIGKILL ends hangs in the kernel.
            let killed = self.running.all_gone(Signal::SIGKILL, self.aside);
            let _ = timeout(KILLED_WITHIN, killed).await;
        }
    }

    async fn end(mut self, ended: CommandEnd) -> Result<u8, Failure> {
        if ended.stopped {
            // It may still be there, or be lost; either way it has been said.
            let _ = timeout(RELEASE_LOST_MAX, self.guard.release()).await;
            return Err(Failure::new(exit::LOCK_LOST, ""));
        }
        let leaving = Leaving::new(&self.client, &self.key, self.aside);
        leaving.release(self.guard, None, &mut self.signals).await?;
        Ok(ended.status)
    }
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

    /// What is promised of commands without a server, in help and documents, follows from what the code does.
    #[test]
    fn how_long_a_command_goes_on_without_a_server_is_what_is_said_of_it() {
        let guarantees = include_str!("../../docs/guarantees.md");
        let grace = Duration::from_secs(10);
        for (ttl, said) in [
            (30, "--ttl 30s    8 to 18 s\n"),
            (60, "--ttl 60s   34 to 44 s, the default\n"),
            (120, "--ttl 2m    88 to 98 s\n"),
        ] {
            assert!(super::HELP.contains(said), "{said}");
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
            &["fermata", "lock", "--try", "k", "--", "ls"],
            &["fermata", "lock", "k", "--wait", "1m30s", "--", "ls", "-l"],
            &[
                "fermata", "lock", "-w", "30", "-E", "0", "-q", "k", "-c", "ls -l",
            ],
            &["fermata", "lock", "-n", "k", "--", "ls", "-c"],
            &["fermata", "lock", "--nonblock", "k", "--", "ls"],
            &["fermata", "lock", "k"],
            &[
                "fermata",
                "--endpoint",
                "http://a:1",
                "lock",
                "k",
                "--",
                "ls",
            ],
            &[
                "fermata",
                "lock",
                "--endpoint",
                "http://a:1",
                "k",
                "--",
                "ls",
            ],
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

    #[test]
    fn who_leaves_out_the_dashes_is_told_so() {
        let said = |words: &[&str]| {
            let mut error = Cli::try_parse_from(words).unwrap_err();
            super::tip(&mut error);
            error.to_string()
        };
        let tip = "tip: put -- before the command: fermata lock KEY -- echo ...";
        for words in [
            &["fermata", "lock", "k", "echo", "hello"][..],
            &["fermata", "lock", "--try", "k", "echo"],
        ] {
            let said = said(words);
            assert!(said.contains(tip), "{said}");
        }
        for words in [
            &["fermata", "lock", "k", "--oops", "--", "ls"][..],
            &["fermata", "get", "a", "b"],
        ] {
            let said = said(words);
            assert!(!said.contains("put --"), "{said}");
        }
    }
}
