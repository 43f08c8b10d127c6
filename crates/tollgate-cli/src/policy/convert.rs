//! `tollgate convert`: envoyproxy/ratelimit's YAML as ours.

use std::path::{Path, PathBuf};

use clap::Args;
use tollgate_engine::native::codes;
use tollgate_engine::{Policy, envoy};

use super::PolicyFailure;

/// The files to convert.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[command(after_help = "\
What can't be said in our form is left as a comment.

Example:
  tollgate convert ratelimit.yaml > policy.yaml")]
pub struct Convert {
    /// Files in envoyproxy/ratelimit's form.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// Our YAML for their files.
///
/// # Errors
/// A file that can't be read or has errors.
pub fn convert(options: &Convert) -> Result<String, PolicyFailure> {
    for path in &options.files {
        if is_ours(path) {
            return Err(PolicyFailure::Usage(format!(
                "{:?} is in our own form already: there is nothing to convert",
                path.display().to_string()
            )));
        }
    }
    let checked = Policy::from_envoy_paths(&options.files).map_err(|rejected| {
        match rejected.errors.as_slice() {
            [error] if error.code == codes::UNREADABLE => {
                PolicyFailure::Usage(error.message.clone())
            }
            _ => rejected.into(),
        }
    })?;
    envoy::convert(&checked.policy).map_err(|rejected| {
        let why: Vec<_> = rejected.errors.iter().take(3).collect();
        let why: Vec<_> = why.iter().map(|error| error.message.as_str()).collect();
        let why = why.join("; ");
        PolicyFailure::Usage(format!("our form can't say it: {why}; split the files"))
    })
}

/// Whether a file is a policy in our own form.
fn is_ours(path: &Path) -> bool {
    Policy::from_path(path).is_ok_and(|checked| checked.policy.domains.is_empty())
}
