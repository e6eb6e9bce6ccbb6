//! How a command reaches Cassandra, from its flags.

use std::path::Path;

use super::failure::Failure;
use super::remote::variable;
use crate::store::cassandra::{CassandraOptions, Credentials, Keyspace};

/// Where the password is where no file is named.
const PASSWORD_VARIABLE: &str = "FERMATA_CASSANDRA_PASSWORD";

/// The options for a cluster; reads the password.
pub fn options(
    contact_points: Vec<String>,
    keyspace: &Keyspace,
    user: Option<String>,
    password_file: Option<&Path>,
) -> Result<CassandraOptions, Failure> {
    let password = match password_file {
        Some(file) => Some(
            std::fs::read_to_string(file)?
                .trim_end_matches('\n')
                .to_owned(),
        ),
        None => variable(PASSWORD_VARIABLE),
    };
    let credentials = match (user, password) {
        (Some(user), Some(password)) => Some(Credentials { user, password }),
        (Some(_), None) => {
            return Err(Failure::usage(format!(
                "--user needs --password-file or {PASSWORD_VARIABLE}"
            )));
        }
        (None, _) => None,
    };
    Ok(CassandraOptions {
        credentials,
        ..CassandraOptions::new(contact_points, keyspace.clone())
    })
}
