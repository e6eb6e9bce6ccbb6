//! A headless Chromium, by WebDriver.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};
use tempfile::TempDir;

use super::super::process::Ends;

/// Set to 1 where Chromium must be there.
const REQUIRE: &str = "FERMATA_REQUIRE_CHROMIUM";
/// For what the page does by itself.
const PATIENCE: Duration = Duration::from_secs(20);

/// Keys that are no letters.
pub const ENTER: &str = "\u{e007}";
pub const TAB: &str = "\u{e004}";
pub const ESCAPE: &str = "\u{e00c}";

/// Whether tests of the page have to be skipped.
#[expect(
    clippy::explicit_write,
    reason = "the harness hides what eprintln! says in a test that passes"
)]
pub fn is_missing() -> bool {
    if Command::new("chromedriver")
        .arg("--version")
        .output()
        .is_ok()
    {
        return false;
    }
    let required = std::env::var(REQUIRE).is_ok_and(|value| value == "1");
    assert!(
        !required,
        "{REQUIRE}=1, and there is no chromedriver on the PATH"
    );
    writeln!(
        std::io::stderr(),
        "SKIPPED: the page of the console was not opened, there is no chromedriver on the PATH"
    )
    .unwrap();
    true
}

pub struct Browser {
    port: u16,
    session: String,
    _driver: Ends,
    _profile: TempDir,
}

impl Browser {
    /// At this page.
    pub fn open(url: &str) -> Browser {
        let profile = TempDir::new().unwrap();
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .env("HOME", profile.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = lines.find_map(|line| {
            let line = line.unwrap();
            let (_, port) = line.split_once("successfully on port ")?;
            port.trim_end_matches('.').parse::<u16>().ok()
        });
        std::thread::spawn(move || lines.for_each(drop));
        let mut browser = Browser {
            port: port.unwrap(),
            session: String::new(),
            _driver: Ends(driver),
            _profile: profile,
        };
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            &format!("--user-data-dir={}", browser._profile.path().display()),
        ];
        let asked = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let begun = browser.command("POST", "/session", &asked);
        let session = begun["sessionId"].as_str().unwrap();
        browser.session = format!("/session/{session}");
        browser.tell("/url", json!({"url": url}));
        browser
    }

    fn command(&self, verb: &str, path: &str, body: &Json) -> Json {
        let body = match verb {
            "POST" => body.to_string(),
            _ => String::new(),
        };
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        write!(
            stream,
            "{verb} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut reader = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            if line.trim().is_empty() {
                break;
            }
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut answer = vec![0; length];
        reader.read_exact(&mut answer).unwrap();
        let mut answer: Json = serde_json::from_slice(&answer).unwrap();
        let value = answer["value"].take();
        assert!(value["error"].is_null(), "{path}: {value:#}");
        value
    }

    fn tell(&self, path: &str, body: Json) -> Json {
        self.command("POST", &format!("{}{path}", self.session), &body)
    }

    /// The value of a script, a body of a function.
    pub fn run(&self, script: &str) -> Json {
        self.tell("/execute/sync", json!({"script": script, "args": []}))
    }

    /// Waits until an expression of the page is true.
    pub fn until(&self, expression: &str) {
        let begun = Instant::now();
        while self.run(&format!("return Boolean({expression})")) != true {
            let text = || self.run("return document.body.innerText");
            assert!(
                begun.elapsed() < PATIENCE,
                "not in time: {expression}\n{}",
                text()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Presses these keys, wherever the focus is.
    pub fn press(&self, keys: &str) {
        let each = keys.chars().flat_map(|key| {
            ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": key.to_string()}))
        });
        let each: Vec<Json> = each.collect();
        self.tell(
            "/actions",
            json!({"actions": [{"type": "key", "id": "keys", "actions": each}]}),
        );
    }

    /// Presses Tab until an expression about `focused` is true.
    pub fn tab_to(&self, expression: &str) {
        for _ in 0..60 {
            self.press(TAB);
            let script =
                format!("const focused = document.activeElement; return Boolean({expression})");
            if self.run(&script) == true {
                return;
            }
        }
        panic!("Tab never leads to {expression}");
    }

    fn devtools(&self, command: &str, parameters: Json) {
        self.tell(
            "/goog/cdp/execute",
            json!({"cmd": command, "params": parameters}),
        );
    }

    /// The size of its window, and whether its user likes dark pages.
    pub fn look(&self, width: u32, height: u32, is_dark: bool) {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", size);
        let scheme = if is_dark { "dark" } else { "light" };
        self.likes("prefers-color-scheme", scheme);
    }

    /// What its user has told the system.
    pub fn likes(&self, feature: &str, value: &str) {
        let features = json!([{"name": feature, "value": value}]);
        self.devtools("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    /// A picture of the window, as PNG in base64.
    pub fn picture(&self) -> String {
        let path = format!("{}/screenshot", self.session);
        let picture = self.command("GET", &path, &Json::Null);
        picture.as_str().unwrap().to_owned()
    }

    /// What the page or the browser found wrong, except for answers of these statuses.
    pub fn complaints(&self, expected: &[&str]) -> Vec<String> {
        let log = self.tell("/se/log", json!({"type": "browser"}));
        let lines = log.as_array().unwrap().iter();
        let lines = lines.map(|line| line["message"].as_str().unwrap().to_owned());
        lines
            .filter(|line| !expected.iter().any(|status| line.contains(status)))
            .collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Also after a failure: a driver that is killed leaves its browser behind.
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else {
            return;
        };
        let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
        let _ = write!(
            stream,
            "DELETE {} HTTP/1.1\r\nHost: localhost\r\n\r\n",
            self.session
        );
        let _ = stream.read(&mut [0; 256]);
    }
}
