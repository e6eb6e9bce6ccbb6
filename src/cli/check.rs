//! `fermata check`: the problems of the configuration, or the settings in force.

use std::io;

use fermata_command::exit;
use fermata_command::output::{Format, print_json, print_text, say};
use serde_json::json;

use super::settings::Settings;
use crate::config::{Config, Problem, StoreKind};

/// Check the configuration and print the settings in force
///
/// Reads the file, environment variables and flags as `fermata serve` does, and prints all settings as a file. Lists all
/// problems at once, each with its source. Opens and starts nothing.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Exit status: 0 the configuration is valid; 74 it cannot be printed; 78 it is not valid."
)]
pub struct Args {
    #[command(flatten)]
    settings: Settings,

    /// Print text (TOML), or json with the problems [default: text]
    #[arg(long, value_name = "FORMAT", value_enum)]
    output: Option<Format>,
}

/// Runs the command.
pub async fn run(args: Args) -> Result<u8, io::Error> {
    let loaded = args.settings.load();
    match (args.output.unwrap_or_default(), loaded) {
        (Format::Text, Ok(config)) => {
            print_text(&effective_toml(&config)?)?;
            Ok(0)
        }
        (Format::Text, Err(problems)) => {
            say(&problems.to_string());
            Ok(exit::CONFIG)
        }
        (Format::Json, Ok(config)) => {
            print_json(&answer(Some(&effective(config)), &[]))?;
            Ok(0)
        }
        (Format::Json, Err(problems)) => {
            print_json(&answer(None, &problems.0))?;
            Ok(exit::CONFIG)
        }
    }
}

/// The configuration with its defaults of the start.
fn effective(mut config: Config) -> Config {
    if config.store.kind == StoreKind::Embedded {
        config.data_dir = config.data_dir().ok();
    }
    config.commit = Some(config.commit());
    config
}

fn effective_toml(config: &Config) -> Result<String, io::Error> {
    toml::to_string(&effective(config.clone())).map_err(io::Error::other)
}

fn answer(config: Option<&Config>, problems: &[Problem]) -> serde_json::Value {
    json!({
        "valid": config.is_some(),
        "config": config,
        "problems": problems,
    })
}
