//! A shell in a pseudo-terminal, and the screen that a person would see.

use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::sync::{Arc, Condvar, Mutex};

use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};

use super::world::{PATIENCE, World, path};

pub struct Terminal {
    shown: Arc<(Mutex<vt100::Parser>, Condvar)>,
    keys: Box<dyn Write + Send>,
    shell: Box<dyn Child + Send + Sync>,
    master: Box<dyn MasterPty + Send>,
}

impl Terminal {
    /// An interactive shell that knows where the server is.
    pub fn new(world: &World) -> Terminal {
        let size = size(24, 120);
        let pair = native_pty_system().openpty(size).unwrap();
        let mut command = CommandBuilder::new("sh");
        command.arg("-i");
        command.env("PS1", "prompt> ");
        command.env("ENV", "");
        command.env("TERM", "xterm");
        command.env("PATH", path());
        command.env("FERMATA_ENDPOINT", &world.endpoint);
        let shell = pair.slave.spawn_command(command).unwrap();
        drop(pair.slave);
        let parser = vt100::Parser::new(some(size.rows), some(size.cols), 1_000);
        let shown = Arc::new((Mutex::new(parser), Condvar::new()));
        let mut screen = pair.master.try_clone_reader().unwrap();
        let draw = Arc::clone(&shown);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = screen.read(&mut bytes) {
                draw.0.lock().unwrap().process(&bytes[..read]);
                draw.1.notify_all();
            }
        });
        let terminal = Terminal {
            shown,
            keys: pair.master.take_writer().unwrap(),
            shell,
            master: pair.master,
        };
        terminal.shows("prompt> ");
        terminal
    }

    /// Types these keys.
    pub fn keys(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// Types a line.
    pub fn line(&mut self, line: &str) {
        self.keys(line);
        self.keys("\r");
    }

    pub fn ctrl_c(&mut self) {
        self.keys("\u{3}");
    }

    /// Returns once the screen shows this; the whole screen then.
    pub fn shows(&self, text: &str) -> String {
        self.until(&format!("{text:?}"), |screen| screen.contains(text))
    }

    /// Returns once the screen does not show this any more.
    pub fn hides(&self, text: &str) -> String {
        self.until(&format!("no {text:?}"), |screen| !screen.contains(text))
    }

    /// Gives the terminal another size.
    pub fn resize(&self, rows: u16, columns: u16) {
        let mut parser = self.shown.0.lock().unwrap();
        parser.screen_mut().set_size(some(rows), some(columns));
        self.master.resize(size(rows, columns)).unwrap();
    }

    /// Returns once the screen is so.
    pub fn until(&self, what: &str, so: impl Fn(&str) -> bool) -> String {
        let parser = self.shown.0.lock().unwrap();
        let missing = |parser: &mut vt100::Parser| !so(&parser.screen().contents());
        let (parser, waited) = self
            .shown
            .1
            .wait_timeout_while(parser, PATIENCE, missing)
            .unwrap();
        let screen = parser.screen().contents();
        assert!(
            !waited.timed_out(),
            "the screen never shows {what}:\n{screen}"
        );
        screen
    }
}

fn some(cells: u16) -> NonZeroU16 {
    cells.try_into().unwrap()
}

fn size(rows: u16, cols: u16) -> PtySize {
    PtySize {
        rows,
        cols,
        pixel_width: 0,
        pixel_height: 0,
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}
