//! The live view: asks, draws, and hears keys and signals.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::thread;
use std::time::{Duration, SystemTime};

use fermata_client::{CallError, Client, ClientOptions};
use fermata_command::output::colour;
use fermata_command::{Failure, exit};
use nix::sys::signal::Signal;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::board::{Board, Snapshot};
use super::view::{Press, View};
use super::{Args, refuse_unknown_table};
use crate::cli::signals::{Signals, ends_a_wait};

/// A read that takes longer has failed: people wait in front of it. A replica that asks others gives them a second.
const LOOK: Duration = Duration::from_secs(4);
/// How soon the thread that reads keys sees that nobody wants them any more.
const KEYS_POLL: Duration = Duration::from_millis(100);
/// How many keys may wait to be heard.
const KEYS_MAX: usize = 64;

type Asking = Pin<Box<dyn Future<Output = Result<Snapshot, CallError>> + Send>>;

/// Shows it until a key or a signal ends it.
pub async fn run(args: &Args) -> Result<(), Failure> {
    let client = args.remote.quiet_client(ClientOptions {
        timeout: LOOK,
        attempt_timeout: LOOK / 2,
        ..ClientOptions::default()
    })?;
    let choice = args.choice();
    match refuse_unknown_table(&client, &choice.table).await {
        // What it tries again, and shows.
        Err(failure) if failure.code != exit::NO_INPUT => {}
        known => known?,
    }
    let mut view = View::new(&args.remote.endpoints().join(", "), colour());
    let mut signals = Signals::new()?;
    let mut screen = Screen::enter()?;
    let mut events = events()?;
    let mut ticks = interval(args.interval.duration());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut asking: Option<Asking> = None;
    let mut last: Option<Snapshot> = None;
    loop {
        screen.draw(&mut view)?;
        tokio::select! {
            signal = signals.next() => if ends_a_wait(signal) {
                return Err(Failure::signal(signal, ""));
            },
            event = events.recv() => match event.unwrap_or_else(|| Err(gone()))? {
                Event::Key(key) => match view.press(key) {
                    Press::Nothing => {}
                    Press::Quit => return Ok(()),
                    Press::Interrupt => return Err(Failure::signal(Signal::SIGINT, "")),
                },
                // Drawn anew as it is.
                Event::Resize(..)
                | Event::FocusGained
                | Event::FocusLost
                | Event::Mouse(_)
                | Event::Paste(_) => {}
            },
            answer = answer(&mut asking) => {
                asking = None;
                match answer {
                    Ok(snapshot) => {
                        let board = Board::new(snapshot.clone(), last.as_ref(), &choice);
                        view.notify(board, SystemTime::now());
                        last = Some(snapshot);
                    }
                    Err(error) => view.fail(&error.to_string()),
                }
            }
            _ = ticks.tick(), if asking.is_none() && !view.paused => {
                let client = client.clone();
                let keys_max = choice.keys_max();
                asking = Some(Box::pin(async move { snapshot(&client, keys_max).await }));
            }
        }
    }
}

/// Asks once.
pub async fn snapshot(client: &Client, keys_max: usize) -> Result<Snapshot, CallError> {
    let replicas = client.describe_activity(keys_max).await?;
    let at = client.clock().now();
    Ok(Snapshot { at, replicas })
}

/// The answer that is waited for; never where none is.
async fn answer(asking: &mut Option<Asking>) -> Result<Snapshot, CallError> {
    match asking {
        Some(asking) => asking.await,
        None => std::future::pending().await,
    }
}

fn gone() -> io::Error {
    io::Error::other("the terminal tells no keys any more")
}

/// The keys and resizes, read by a thread, since reading them blocks. It ends soon after nobody takes them.
fn events() -> io::Result<mpsc::Receiver<io::Result<Event>>> {
    let (notify, activity) = mpsc::channel(KEYS_MAX);
    thread::Builder::new()
        .name("keys".to_owned())
        .spawn(move || {
            while !notify.is_closed() {
                let event = match event::poll(KEYS_POLL) {
                    Ok(false) => continue,
                    Ok(true) => event::read(),
                    Err(error) => Err(error),
                };
                let ended = event.is_err();
                if notify.blocking_send(event).is_err() || ended {
                    return;
                }
            }
        })?;
    Ok(activity)
}

/// The terminal while it is the view's: without lines and echo, on its other screen. Given back when this is dropped,
/// and before a panic says what it has to say.
struct Screen(DefaultTerminal);

impl Screen {
    fn enter() -> io::Result<Screen> {
        ratatui::try_init().map(Screen).inspect_err(|_| {
            // What was done of it is undone; the first error is the one to tell.
            let _ = ratatui::try_restore();
        })
    }

    fn draw(&mut self, view: &mut View) -> io::Result<()> {
        self.0.draw(|frame| view.draw(frame)).map(|_| ())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs neither.
        let _ = self.0.show_cursor();
        let _ = ratatui::try_restore();
    }
}
