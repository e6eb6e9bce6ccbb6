//! Which service to talk to, and how to print: the options that all client commands have. They may stand
//! before the command or after it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fermata_client::{Client, ClientOptions, FileError, Tls, Token};
use fermata_files::{InTimeError, SMALL_FILE_BYTES_MAX, read_regular};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::sleep;

pub use crate::environment::variable;
use crate::failure::Failure;
use crate::output::{Format, say};
use crate::span::Span;

/// The heading of the options that all client commands have.
pub const CLIENT_OPTIONS: &str = "Options of all client commands";

/// How often the client is asked whether a server has answered.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Where files could not be read in time: how long each is read again, to find the one that hangs.
const FOUND_WITHIN: Duration = Duration::from_millis(100);

/// Where a service listens unless it is told otherwise.
const ENDPOINT_DEFAULT: &str = "http://127.0.0.1:7450";
/// The variable that is read where no endpoint is given.
pub const ENDPOINT_VARIABLE: &str = "FERMATA_ENDPOINT";
/// The same for the table.
pub const TABLE_VARIABLE: &str = "FERMATA_TABLE";
/// The variable that hands the lockRef of `fermata lock` to its command.
pub const LOCK_REF_VARIABLE: &str = "FERMATA_LOCK_REF";
/// Those for what a client is known by, and whom it trusts.
const TOKEN_VARIABLE: &str = "FERMATA_TOKEN";
const TOKEN_FILE_VARIABLE: &str = "FERMATA_TOKEN_FILE";
const CA_VARIABLE: &str = "FERMATA_CA_FILE";
const CERTIFICATE_VARIABLE: &str = "FERMATA_CERTIFICATE_FILE";
const KEY_VARIABLE: &str = "FERMATA_CERTIFICATE_KEY_FILE";

/// The options, as given.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = CLIENT_OPTIONS)]
pub struct Remote {
    /// A replica of the service; may be repeated [env: FERMATA_ENDPOINT] [default: http://127.0.0.1:7450]
    #[arg(long = "endpoint", value_name = "URL", global = true)]
    endpoints: Vec<String>,

    /// The CA of the server's certificate (PEM), not those of the system [env: FERMATA_CA_FILE]
    #[arg(long, value_name = "FILE", global = true)]
    ca: Option<PathBuf>,

    /// The client's certificate (PEM) [env: FERMATA_CERTIFICATE_FILE]
    #[arg(long, value_name = "FILE", global = true)]
    certificate: Option<PathBuf>,

    /// The key of that certificate (PEM) [env: FERMATA_CERTIFICATE_KEY_FILE]
    #[arg(long, value_name = "FILE", global = true)]
    certificate_key: Option<PathBuf>,

    /// The client's token [env: FERMATA_TOKEN_FILE; the token itself: FERMATA_TOKEN]
    #[arg(long, value_name = "FILE", global = true)]
    token_file: Option<PathBuf>,

    /// The table of the key [env: FERMATA_TABLE] [default: default]
    #[arg(long = "table", id = "table", value_name = "TABLE", global = true)]
    tables: Vec<String>,

    /// How long a call may take, retries included [default: 15s]
    #[arg(long, value_name = "SPAN", value_parser = parse_timeout, global = true)]
    timeout: Option<Span>,

    /// Print text, or json [default: text]
    #[arg(
        long,
        value_name = "FORMAT",
        value_enum,
        hide_possible_values = true,
        global = true
    )]
    output: Option<Format>,
}

impl Remote {
    /// The names of the options that were given.
    pub fn given(&self) -> impl Iterator<Item = &'static str> {
        let options = [
            ("--endpoint", !self.endpoints.is_empty()),
            ("--ca", self.ca.is_some()),
            ("--certificate", self.certificate.is_some()),
            ("--certificate-key", self.certificate_key.is_some()),
            ("--token-file", self.token_file.is_some()),
            ("--table", !self.tables.is_empty()),
            ("--timeout", self.timeout.is_some()),
            ("--output", self.output.is_some()),
        ];
        let given = options.into_iter().filter(|(_, is_given)| *is_given);
        given.map(|(name, _)| name)
    }

    /// The endpoints in force.
    pub fn endpoints(&self) -> Vec<String> {
        if !self.endpoints.is_empty() {
            return self.endpoints.clone();
        }
        let named = variable(ENDPOINT_VARIABLE).unwrap_or_else(|| ENDPOINT_DEFAULT.to_owned());
        named
            .split(',')
            .map(|endpoint| endpoint.trim().to_owned())
            .collect()
    }

    /// The table in force; empty for the server's default one.
    pub fn table(&self) -> String {
        let given = self.given_table().map(str::to_owned);
        given
            .or_else(|| variable(TABLE_VARIABLE))
            .unwrap_or_default()
    }

    /// The table that was given as an option; of several the last one.
    pub fn given_table(&self) -> Option<&str> {
        self.tables.last().map(String::as_str)
    }

    /// How long a call may take, where that was given.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout.map(Span::duration)
    }

    /// How to print.
    pub fn format(&self) -> Format {
        self.output.unwrap_or_default()
    }

    /// A client for these.
    pub fn client(&self) -> Result<Client, Failure> {
        self.client_with(ClientOptions::default())
    }

    /// The same; what is not given is as in `options`. Says on stderr, once, that no server answers, and why.
    pub fn client_with(&self, options: ClientOptions) -> Result<Client, Failure> {
        let client = self.quiet_client(options)?;
        let (endpoints, asking) = (self.endpoints(), client.clone());
        tokio::spawn(async move {
            let timeout = asking.options().timeout;
            let line = match nobody_listens(endpoints, timeout).await {
                None => nobody_answers(&asking, timeout).await,
                line => line,
            };
            if let Some(line) = line {
                say(&line);
            }
        });
        Ok(client)
    }

    /// A client for these that says nothing by itself, for who draws on the terminal. What is not given is as in
    /// `options`.
    pub fn quiet_client(&self, options: ClientOptions) -> Result<Client, Failure> {
        let options = self.client_options(options)?;
        Ok(Client::connect_with(self.endpoints(), options)?)
    }

    /// How a client for these connects. What is not given is as in `options`.
    pub fn client_options(&self, mut options: ClientOptions) -> Result<ClientOptions, Failure> {
        if let Some(timeout) = self.timeout() {
            options.timeout = timeout;
        }
        let within = (Instant::now(), options.timeout);
        options.token = self.token(within)?;
        options.tls = self.tls(within)?;
        Ok(options)
    }

    /// The variables for the files that were named: for a command that is to reach the same service.
    pub fn files(&self) -> Vec<(&'static str, String)> {
        let files = [
            (CA_VARIABLE, &self.ca),
            (CERTIFICATE_VARIABLE, &self.certificate),
            (KEY_VARIABLE, &self.certificate_key),
            (TOKEN_FILE_VARIABLE, &self.token_file),
        ];
        let given = files.into_iter().filter_map(|(name, file)| {
            let file = named(file, name)?;
            // Wherever that command changes to.
            let file = std::path::absolute(file).ok()?;
            Some((name, file.display().to_string()))
        });
        given.collect()
    }

    /// `within` is for the file system, and from when on.
    fn token(&self, within: (Instant, Duration)) -> Result<Option<Token>, Failure> {
        let file = named(&self.token_file, TOKEN_FILE_VARIABLE);
        let whence = match &file {
            Some(_) => whence(&self.token_file, "--token-file", TOKEN_FILE_VARIABLE),
            None => TOKEN_VARIABLE,
        };
        let token = match (file, variable(TOKEN_VARIABLE)) {
            (Some(file), _) => {
                let read = file.clone();
                let reading = move || Token::from_file(read);
                in_time(&file, within, reading).map_err(|why| at_file(whence, &file, &why))?
            }
            (None, Some(text)) => Token::from_text(&text),
            (None, None) => return Ok(None),
        };
        match token {
            Ok(token) => Ok(Some(token)),
            Err(error) => Err(Failure::usage(format!("{whence}: {error}"))),
        }
    }

    /// `within` is for the file system, and from when on.
    fn tls(&self, within: (Instant, Duration)) -> Result<Option<Tls>, Failure> {
        let ca = named(&self.ca, CA_VARIABLE);
        let certificate = named(&self.certificate, CERTIFICATE_VARIABLE);
        let key = named(&self.certificate_key, KEY_VARIABLE);
        let of_ca = whence(&self.ca, "--ca", CA_VARIABLE);
        let of_certificate = whence(&self.certificate, "--certificate", CERTIFICATE_VARIABLE);
        let of_key = whence(&self.certificate_key, "--certificate-key", KEY_VARIABLE);
        let alone = |whence, what, option, variable| {
            let words = format!("{whence}: {what}: name that with {option}, or {variable}");
            Err(Failure::usage(words))
        };
        let own = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) => {
                let what = "a certificate needs its key";
                return alone(of_certificate, what, "--certificate-key", KEY_VARIABLE);
            }
            (None, Some(_)) => {
                let what = "a key needs its certificate";
                return alone(of_key, what, "--certificate", CERTIFICATE_VARIABLE);
            }
        };
        let mut files: Vec<_> = ca.iter().map(|ca| (of_ca, ca.clone())).collect();
        if let Some((certificate, key)) = own.clone() {
            files.extend([(of_certificate, certificate), (of_key, key)]);
        }
        let Some((_, first)) = files.first() else {
            return Ok(None);
        };
        let read = in_time(first, within, move || match ca {
            Some(ca) => Tls::from_files(ca, own),
            None => Tls::from_system(own),
        });
        let read = read.map_err(|why| {
            // The one that hangs still does.
            let hangs = |(_, file): &&(&str, PathBuf)| {
                let read = file.clone();
                let reading = move || read_regular(&read, SMALL_FILE_BYTES_MAX).map(drop);
                in_time(file, (Instant::now(), FOUND_WITHIN), reading).is_err()
            };
            let (whence, file) = files.iter().find(hangs).unwrap_or(&files[0]);
            at_file(whence, file, &why)
        })?;
        let unusable = |error| {
            let (why, whence) = match error {
                // A client has no CA of clients.
                FileError::Ca(why) | FileError::ClientCa(why) => (why, of_ca),
                FileError::Certificate(why) => (why, of_certificate),
                FileError::Key(why) => (why, of_key),
            };
            Failure::usage(format!("{whence}: {why}"))
        };
        read.map(Some).map_err(unusable)
    }
}

/// The client goes on trying for its whole timeout, since a server may be just starting: whoever waits
/// for that is told at once. `None` where somebody listens, as far as that shows at once.
async fn nobody_listens(endpoints: Vec<String>, timeout: Duration) -> Option<String> {
    for endpoint in &endpoints {
        let connected = match endpoint.strip_prefix("unix:") {
            Some(path) => UnixStream::connect(path).await.map(drop),
            None => {
                let (_, address) = endpoint.split_once("://").unwrap_or(("", endpoint));
                let address = address.trim_end_matches('/');
                TcpStream::connect(address).await.map(drop)
            }
        };
        match connected.map_err(|error| error.kind()) {
            Err(io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => {}
            // It answers, or what is wrong takes its time to show.
            Ok(_) | Err(_) => return None,
        }
    }
    Some(format!(
        "nobody listens on {} (is `fermata serve` running there?); trying for {}",
        endpoints.join(", "),
        Span::from_duration(timeout)
    ))
}

/// Why no server has answered this client, once that has lasted for a second.
async fn nobody_answers(client: &Client, timeout: Duration) -> Option<String> {
    let failed = async {
        loop {
            sleep(LOOK_EVERY).await;
            if client.has_answered() {
                return None;
            }
            if let Some(error) = client.last_failure() {
                return Some(error);
            }
        }
    };
    let error = tokio::time::timeout(timeout, failed).await.ok()??;
    // A server gives a reason.
    let what = match error.reason.is_empty() {
        true => "no answer yet",
        false => "not done yet",
    };
    let timeout = Span::from_duration(timeout);
    Some(format!("{what}, trying for {timeout}: {error}"))
}

fn parse_timeout(text: &str) -> Result<Span, String> {
    let span: Span = text.parse().map_err(|error| format!("{error}"))?;
    match span.duration().is_zero() {
        true => Err("it must be more than 0".to_owned()),
        false => Ok(span),
    }
}

/// What an option, or else a variable, names.
fn named(option: &Option<PathBuf>, name: &str) -> Option<PathBuf> {
    let of_variable = || variable(name).map(PathBuf::from);
    option.clone().or_else(of_variable)
}

/// Which of both it was.
fn whence(given: &Option<PathBuf>, option: &'static str, variable: &'static str) -> &'static str {
    match given {
        Some(_) => option,
        None => variable,
    }
}

fn at_file(whence: &str, file: &Path, why: &str) -> Failure {
    Failure::usage(format!("{whence}: {}: {why}", file.display()))
}

/// What the reading of a file gives; fails where that takes too long, counted from `begun`.
fn in_time<T: Send + 'static>(
    file: &Path,
    (begun, within): (Instant, Duration),
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let left = within.saturating_sub(begun.elapsed());
    fermata_files::in_time(file, left, read).map_err(|error| match error {
        InTimeError::TooLate => {
            let within = Span::from_duration(within);
            format!(
                "it could not be read within {within} (--timeout), as where its file system hangs"
            )
        }
        InTimeError::NoThread(_) => error.to_string(),
    })
}

/// Who runs this, for labels: `user@host`.
pub fn who() -> String {
    let user = variable("USER").or_else(|| variable("LOGNAME"));
    let host = nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok());
    match (user, host) {
        (Some(user), Some(host)) => format!("{user}@{host}"),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => String::new(),
    }
}
