//! `tollgate convert`: converts envoyproxy/ratelimit's YAML to the native form.

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use tollgate_engine::envoy::{self, ConversionLoss, LossKind};
use tollgate_engine::native::codes;
use tollgate_engine::{Policy, render};

use super::check::files_of;
use super::policy_input::{is_stdin, parse_any_format, read_stdin};
use crate::outcome::CliError;
use crate::output::{map_write_error, write_json};

/// Options of `tollgate convert`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[command(after_help = "\
A setting that the native form can't express is reported on standard error, and is a comment in the output.
If such a loss changes decisions (a limit without a rule, or a request with another decision), nothing is
converted unless --lossy is given. Nothing is ever converted if no limit would remain.

Exit code 0: converted; 1: a file has errors; 2: the arguments are wrong; 3: a loss would change
decisions (with --json, policy is null then).

Examples:
  tollgate convert ratelimit.yaml > policy.yaml
  tollgate convert ratelimit/config > policy.yaml
  tollgate convert --lossy ratelimit.yaml > policy.yaml
  generate-config | tollgate convert -")]
pub struct ConvertArgs {
    /// Files in envoyproxy/ratelimit's form, or folders of them; or - for standard input.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Convert the rest even if a loss changes decisions.
    #[arg(long)]
    pub lossy: bool,
    /// Print one JSON object instead of the policy: {policy, lost: [{kind, decides, limit, what}]}.
    #[arg(long)]
    pub json: bool,
}

/// The converted files, or the reason why they can't be converted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Conversion {
    /// The native YAML. `None` if a loss changes decisions and `--lossy` isn't set.
    pub text: Option<String>,
    /// Settings that the native form can't express.
    pub losses: Vec<ConversionLoss>,
    /// The reason why there is no text.
    pub rejection: Option<&'static str>,
}

#[derive(Serialize)]
struct Report<'a> {
    policy: Option<&'a str>,
    lost: Vec<LossReport<'a>>,
}

#[derive(Serialize)]
struct LossReport<'a> {
    /// `not-converted`, `decided-otherwise` or `told-less-of`.
    kind: String,
    /// Whether the loss changes decisions.
    decides: bool,
    limit: &'a str,
    what: &'a str,
}

impl Conversion {
    /// The losses as text. Empty if there are none.
    pub fn losses_text(&self) -> String {
        let mut text = String::new();
        for one in &self.losses {
            let line = format!("{}: {}: {}", loss_name(one.loss), one.limit, one.what);
            // Writing to a string can't fail.
            let _ = writeln!(text, "{}", render::escaped(&line));
        }
        if !self.losses.is_empty() {
            let [limits, otherwise, told] =
                [LossKind::Limit, LossKind::Decision, LossKind::Reporting]
                    .map(|loss| count_losses(&self.losses, |other| other == loss));
            let _ = writeln!(
                text,
                "{limits} not converted, {otherwise} decided otherwise, {told} told less of"
            );
        }
        text
    }

    fn report(&self) -> Report<'_> {
        let lost = self.losses.iter().map(|one| LossReport {
            kind: loss_name(one.loss).replace(' ', "-"),
            decides: one.loss.affects_decisions(),
            limit: &one.limit,
            what: one.what,
        });
        Report {
            policy: self.text.as_deref(),
            lost: lost.collect(),
        }
    }
}

/// Converts, and writes the YAML to `out` and the losses to `notes`, or everything as JSON.
pub(crate) fn write_converted(
    options: &ConvertArgs,
    out: &mut impl Write,
    notes: &mut impl Write,
) -> Result<(), CliError> {
    let converted = convert(options)?;
    let lost = converted.losses_text();
    if options.json {
        map_write_error(write_json(&converted.report(), out))?;
    } else if let Some(text) = &converted.text {
        let noted = notes.write_all(lost.as_bytes());
        map_write_error(noted.and_then(|()| out.write_all(text.as_bytes())))?;
    }
    match converted.rejection {
        Some(message) => Err(CliError::new(
            3,
            format_args!("{message}\n{}", lost.trim_end()),
        )),
        None => Ok(()),
    }
}

/// Converts files to native YAML.
///
/// # Errors
/// A file can't be read, or has errors.
pub fn convert(options: &ConvertArgs) -> Result<Conversion, CliError> {
    let policy = read_envoy_files(&options.files)?;
    let converted = envoy::convert_to_rules(&policy.domains);
    let unsaid = converted.losses;
    let is_empty = converted.rules.is_empty();
    if is_empty && count_losses(&unsaid, |loss| loss == LossKind::Limit) == 0 {
        let message = "the files have no limit: there is nothing to convert";
        return Err(CliError::usage(message));
    }
    let refused = if is_empty {
        Some("our form can say none of the limits, so there would be no policy")
    } else if count_losses(&unsaid, LossKind::affects_decisions) > 0 && !options.lossy {
        Some("our form can't say all that decides about requests; say --lossy to convert the rest")
    } else {
        None
    };
    let text = match refused {
        Some(_) => None,
        None => Some(envoy::convert_to_yaml(&policy).map_err(|rejected| {
            let why: Vec<_> = rejected.errors.iter().take(3).collect();
            let why: Vec<_> = why.iter().map(|error| error.message.as_str()).collect();
            let why = why.join("; ");
            CliError::usage(format_args!(
                "our form can't say it: {why}; split the files"
            ))
        })?),
    };
    Ok(Conversion {
        text,
        losses: unsaid,
        rejection: refused,
    })
}

/// Reads all files as one policy.
fn read_envoy_files(files: &[PathBuf]) -> Result<Policy, CliError> {
    let usage = |message: String| Err(CliError::usage(message));
    let ours = "in our own form already: there is nothing to convert";
    let checked = match files {
        [only] if is_stdin(only) => {
            let text = read_stdin()?;
            if parse_any_format(&text).is_ok_and(|checked| checked.policy.domains.is_empty()) {
                return usage(format!("standard input is {ours}"));
            }
            Policy::from_envoy_files(&[("<stdin>".to_owned(), text)])
        }
        files if files.iter().any(|file| is_stdin(file)) => {
            return usage("- is standard input, and stands alone".to_owned());
        }
        files => {
            let files: Vec<_> = files.iter().flat_map(|file| files_of(file)).collect();
            if let Some(own) = files.iter().find(|file| is_native_policy(file)) {
                return usage(format!("{:?} is {ours}", own.display().to_string()));
            }
            Policy::from_envoy_paths(&files)
        }
    };
    match checked {
        Ok(checked) => Ok(checked.policy),
        Err(rejected) => match rejected.errors.as_slice() {
            [error] if error.code == codes::UNREADABLE => usage(error.message.clone()),
            _ => Err(rejected.into()),
        },
    }
}

/// Whether a file is a policy in the native form.
fn is_native_policy(path: &Path) -> bool {
    Policy::from_path(path).is_ok_and(|checked| checked.policy.domains.is_empty())
}

fn count_losses(unsaid: &[ConversionLoss], is: impl Fn(LossKind) -> bool) -> usize {
    unsaid.iter().filter(|unsaid| is(unsaid.loss)).count()
}

fn loss_name(loss: LossKind) -> &'static str {
    match loss {
        LossKind::Limit => "not converted",
        LossKind::Decision => "decided otherwise",
        LossKind::Reporting => "told less of",
    }
}
