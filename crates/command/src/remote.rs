//! The options of all client commands: the service, credentials, the table, the form of output. They may stand before or after
//! the command.

use std::path::PathBuf;
use std::time::Duration;

use fermata_client::{Client, ClientOptions, FileError, Tls, Token, TraceContext};
use tokio::time::sleep;

pub use crate::environment::variable;
use crate::failure::Failure;
use crate::output::{Format, say};
use crate::span::Span;

/// The heading of the options that all client commands have.
pub const CLIENT_OPTIONS: &str = "Options of all client commands";

/// The interval between two looks for an answer of a server.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The default address of a service.
const ENDPOINT_DEFAULT: &str = "http://127.0.0.1:7450";
/// The variable for endpoints.
pub const ENDPOINT_VARIABLE: &str = "FERMATA_ENDPOINT";
/// The variable for the table.
pub const TABLE_VARIABLE: &str = "FERMATA_TABLE";
/// The variable that hands the lockRef of `fermata lock` to its command.
pub const LOCK_REF_VARIABLE: &str = "FERMATA_LOCK_REF";
/// The variables for credentials and the CA.
const TOKEN_VARIABLE: &str = "FERMATA_TOKEN";
const TOKEN_FILE_VARIABLE: &str = "FERMATA_TOKEN_FILE";
const CA_VARIABLE: &str = "FERMATA_CA_FILE";
/// The variable with the trace that a command is part of, as OpenTelemetry names it.
const TRACEPARENT_VARIABLE: &str = "TRACEPARENT";
const CERTIFICATE_VARIABLE: &str = "FERMATA_CERTIFICATE_FILE";
const KEY_VARIABLE: &str = "FERMATA_CERTIFICATE_KEY_FILE";

/// The options, as given.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = CLIENT_OPTIONS)]
pub struct Remote {
    /// A replica of the service; may be repeated [env: FERMATA_ENDPOINT] [default: http://127.0.0.1:7450]
    #[arg(long = "endpoint", value_name = "URL", global = true)]
    endpoints: Vec<String>,

    /// Trust this CA (PEM), in place of the CAs of the system [env: FERMATA_CA_FILE]
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
    /// The names of the given options.
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

    /// Whether endpoints are named, by an option or the variable.
    pub fn names_endpoints(&self) -> bool {
        !self.endpoints.is_empty() || variable(ENDPOINT_VARIABLE).is_some()
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

    /// The table of the options; the last of several.
    pub fn given_table(&self) -> Option<&str> {
        self.tables.last().map(String::as_str)
    }

    /// The time for a call, if given.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout.map(Span::duration)
    }

    /// The form of output.
    pub fn format(&self) -> Format {
        self.output.unwrap_or_default()
    }

    /// A client with these options.
    pub fn client(&self) -> Result<Client, Failure> {
        self.client_with(ClientOptions::default())
    }

    /// The same, with other defaults. One line on stderr tells that no server answers, and why.
    pub fn client_with(&self, options: ClientOptions) -> Result<Client, Failure> {
        let client = self.quiet_client(options)?;
        let asking = client.clone();
        tokio::spawn(async move {
            let timeout = asking.options().timeout;
            if let Some(line) = nobody_answers(&asking, timeout).await {
                say(&line);
            }
        });
        Ok(client)
    }

    /// The same without that line, for commands that draw on the terminal.
    pub fn quiet_client(&self, options: ClientOptions) -> Result<Client, Failure> {
        let options = self.client_options(options)?;
        Ok(Client::connect_with(self.endpoints(), options)?)
    }

    /// The options of such a client.
    pub fn client_options(&self, mut options: ClientOptions) -> Result<ClientOptions, Failure> {
        if let Some(timeout) = self.timeout() {
            options.timeout = timeout;
        }
        options.token = self.token()?;
        options.traces = variable(TRACEPARENT_VARIABLE)
            .map(|trace| TraceContext::new(move || Some(trace.clone())));
        options.tls = self.tls()?;
        Ok(options)
    }

    /// The variables of the named files, for a command that reaches the same service.
    pub fn files(&self) -> Vec<(&'static str, String)> {
        let files = [
            (CA_VARIABLE, &self.ca),
            (CERTIFICATE_VARIABLE, &self.certificate),
            (KEY_VARIABLE, &self.certificate_key),
            (TOKEN_FILE_VARIABLE, &self.token_file),
        ];
        let given = files.into_iter().filter_map(|(name, file)| {
            let file = named(file, name)?;
            // In any working directory.
            let file = std::path::absolute(file).ok()?;
            Some((name, file.display().to_string()))
        });
        given.collect()
    }

    fn token(&self) -> Result<Option<Token>, Failure> {
        let file = named(&self.token_file, TOKEN_FILE_VARIABLE);
        let (whence, token) = match (file, variable(TOKEN_VARIABLE)) {
            (Some(file), _) => {
                let whence = whence(&self.token_file, "--token-file", TOKEN_FILE_VARIABLE);
                (whence, Token::from_file(file))
            }
            (None, Some(text)) => (TOKEN_VARIABLE, Token::from_text(&text)),
            (None, None) => return Ok(None),
        };
        let token = token.map_err(|error| Failure::usage(format!("{whence}: {error}")))?;
        Ok(Some(token))
    }

    fn tls(&self) -> Result<Option<Tls>, Failure> {
        let ca = named(&self.ca, CA_VARIABLE);
        let certificate = named(&self.certificate, CERTIFICATE_VARIABLE);
        let key = named(&self.certificate_key, KEY_VARIABLE);
        let of_ca = whence(&self.ca, "--ca", CA_VARIABLE);
        let of_certificate = whence(&self.certificate, "--certificate", CERTIFICATE_VARIABLE);
        let of_key = whence(&self.certificate_key, "--certificate-key", KEY_VARIABLE);
        let alone = |whence, what, option, variable| {
            let words = format!("{whence}: {what}; name it with {option}, or {variable}");
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
        let read = match (ca, own) {
            (None, None) => return Ok(None),
            (Some(ca), own) => Tls::from_files(ca, own),
            (None, own) => Tls::from_system(own),
        };
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

/// The reason why no server answers, after a second without an answer.
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

/// The value of an option, or else of a variable.
fn named(option: &Option<PathBuf>, name: &str) -> Option<PathBuf> {
    let of_variable = || variable(name).map(PathBuf::from);
    option.clone().or_else(of_variable)
}

/// The name of the option or of the variable.
fn whence(given: &Option<PathBuf>, option: &'static str, variable: &'static str) -> &'static str {
    match given {
        Some(_) => option,
        None => variable,
    }
}

/// The label of the user of this command: `user@host`.
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
