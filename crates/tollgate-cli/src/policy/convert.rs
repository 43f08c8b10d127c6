//! `tollgate convert`: envoyproxy/ratelimit's YAML as ours.

use std::path::PathBuf;

use clap::Args;
use tollgate_engine::document::Format;
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
    let mut files = Vec::new();
    for path in &options.files {
        let name = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) if is_ours(&text) => {
                return Err(PolicyFailure::Usage(format!(
                    "{name:?} is in our own form already: there is nothing to convert"
                )));
            }
            Ok(text) => files.push((name, text)),
            Err(error) => {
                return Err(PolicyFailure::Usage(format!(
                    "can't read {name:?}: {error}"
                )));
            }
        }
    }
    let checked = Policy::from_envoy_files(&files)?;
    Ok(envoy::convert(&checked.policy))
}

/// Whether a text is a policy in our own form.
fn is_ours(text: &str) -> bool {
    Policy::from_text(text, Format::Yaml).is_ok_and(|checked| checked.policy.domains.is_empty())
}
