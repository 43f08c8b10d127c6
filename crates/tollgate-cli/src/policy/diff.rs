//! `tollgate diff`: compares two policies before the second is put in force.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use tollgate_engine::diff::PolicyDiff as Difference;

use super::policy_input::{is_stdin, read_policy};
use crate::outcome::{CliError, CommandOutcome};
use crate::output::write_report;

/// Options of `tollgate diff`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[command(after_help = "\
Reports each rule, tier, list, descriptor and setting that differs, field by field, and what happens to its
counters: a limit with the same name and algorithm in both policies keeps what its keys have spent.
Comments and the order of fields are no difference.

With --json one object: {changes: [{kind, name, what, fields: [{name, old, new}], state, in_store}]}, where
what is added, removed or changed, and state is kept, partly-kept, anew, other-keys, retired or null;
in_store is the state in a store, where it differs.

Exit code 0: the policies are equivalent; 1: they differ; 2: the arguments are wrong, or a policy has errors.

Examples:
  tollgate diff policy.yaml policy.new.yaml
  git show HEAD:policy.yaml | tollgate diff - policy.yaml
  tollgate diff --json ratelimit/config/ policy.yaml")]
pub struct DiffArgs {
    /// The policy in force: a file, a folder, or - for standard input.
    pub old: PathBuf,
    /// The new policy, likewise.
    pub new: PathBuf,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Compares two policies, and writes the differences. Returns whether there are any.
///
/// # Errors
/// A policy has errors, or the arguments exclude one another.
pub fn diff(options: &DiffArgs, out: &mut impl Write) -> Result<CommandOutcome, CliError> {
    if is_stdin(&options.old) && is_stdin(&options.new) {
        let why = "standard input is one policy: give the other as a file";
        return Err(CliError::usage(why));
    }
    // Exit code 1 means that the policies differ, as for diff(1), so errors have another.
    let read = |path| read_policy(path).map_err(|failure| failure.with_exit_code(2));
    let found = Difference::new(&read(&options.old)?, &read(&options.new)?);
    write_report(&found, options.json, out)?;
    Ok(if found.is_empty() {
        CommandOutcome::Success
    } else {
        CommandOutcome::PoliciesDiffer
    })
}
