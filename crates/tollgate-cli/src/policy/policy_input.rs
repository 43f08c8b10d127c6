//! Reads policies from files, and from standard input for the path `-`.

use std::io::{self, Read};
use std::path::Path;

use tollgate_engine::document::{Format, MAX_BYTES, SYNTAX};
use tollgate_engine::{LoadError, LoadedPolicy, Policy};

use crate::outcome::CliError;

/// Whether a path stands for standard input.
pub(super) fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// The policy at a path.
pub(crate) fn read_policy(path: &Path) -> Result<Policy, CliError> {
    Ok(read_checked_policy(path)?.policy)
}

/// The policy at a path, with its warnings.
pub(crate) fn read_checked_policy(path: &Path) -> Result<LoadedPolicy, CliError> {
    let checked = if is_stdin(path) {
        parse_any_format(&read_stdin()?)
    } else {
        Policy::from_path(path)
    };
    Ok(checked?)
}

/// Parses a policy of unknown format: as TOML if that succeeds, otherwise as YAML.
pub(super) fn parse_any_format(text: &str) -> Result<LoadedPolicy, LoadError> {
    let as_toml = Policy::from_text(text, Format::Toml);
    let is_toml = match &as_toml {
        Ok(_) => true,
        Err(rejected) => rejected.errors.iter().all(|error| error.code != SYNTAX),
    };
    if is_toml {
        as_toml
    } else {
        Policy::from_text(text, Format::Yaml)
    }
}

/// The text of standard input, up to the size limit of a policy.
pub(super) fn read_stdin() -> Result<String, CliError> {
    let most = u64::try_from(MAX_BYTES).unwrap_or(u64::MAX);
    let mut text = String::new();
    let read = io::stdin().lock().take(most + 1).read_to_string(&mut text);
    match read {
        Ok(_) => Ok(text),
        Err(error) => Err(CliError::usage(format_args!(
            "can't read standard input: {error}"
        ))),
    }
}
