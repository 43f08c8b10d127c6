//! The outcome of a command: success, a result with its own exit code, or an error.

use std::fmt;

use derive_more::{Display, Error};
use tollgate_engine::{LoadError, PolicyError};

use crate::color::Color;

/// The outcome of a command that ran without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandOutcome {
    /// Success: exit code 0.
    Success,
    /// A policy is invalid: exit code 1.
    InvalidPolicy,
    /// Two policies differ: exit code 1, as for diff(1).
    PoliciesDiffer,
    /// A request was denied: exit code 3.
    Denied,
}

/// The error of a failed command, with its exit code.
#[derive(Debug, Display, Error)]
#[display("{why}")]
pub struct CliError {
    exit_code: u8,
    why: ErrorCause,
}

#[derive(Debug, Display)]
enum ErrorCause {
    Text(String),
    /// The policy is invalid. Each of its errors is shown.
    #[display("{POLICY_HAS_ERRORS}\n{_0}")]
    Rejected(Box<LoadError>),
}

const POLICY_HAS_ERRORS: &str = "the policy has errors";

impl CliError {
    pub(crate) fn new(exit_code: u8, why: impl fmt::Display) -> Self {
        let why = ErrorCause::Text(why.to_string());
        Self { exit_code, why }
    }

    /// An error in the arguments.
    pub(crate) fn usage(why: impl fmt::Display) -> Self {
        Self::new(2, why)
    }

    /// An error while running the command.
    pub(crate) fn failed(why: impl fmt::Display) -> Self {
        Self::new(1, why)
    }

    /// The errors of the policy, if an invalid policy is the cause.
    pub(crate) fn policy_errors(&self) -> Option<&LoadError> {
        match &self.why {
            ErrorCause::Rejected(rejected) => Some(rejected),
            ErrorCause::Text(_) => None,
        }
    }

    /// The same error in one line, for a log: of a policy's errors only the likeliest cause.
    pub(crate) fn in_one_line(self) -> Self {
        match self.policy_errors() {
            Some(rejected) => Self::failed(rejected.summary()),
            None => self,
        }
    }

    /// The same error with another exit code.
    pub(crate) fn with_exit_code(self, exit_code: u8) -> Self {
        Self { exit_code, ..self }
    }

    /// The exit code, which names the fault for scripts: 2 for usage errors, as in clap; 3 for a conversion that
    /// would lose something; 128 and the signal's number for a signal; 1 for other errors.
    pub const fn exit_code(&self) -> u8 {
        self.exit_code
    }

    /// The error as text, with its label, in color if enabled.
    pub fn rendered(&self, color: Color) -> String {
        let error = color.error_label();
        match &self.why {
            ErrorCause::Rejected(rejected) => {
                let shown = color.paint_diagnostics(&rejected.errors, &rejected.sources);
                format!("{error} {POLICY_HAS_ERRORS}\n{shown}")
            }
            ErrorCause::Text(text) => format!("{error} {text}"),
        }
    }
}

impl From<LoadError> for CliError {
    fn from(rejected: LoadError) -> Self {
        let why = ErrorCause::Rejected(Box::new(rejected));
        Self { exit_code: 1, why }
    }
}

impl From<PolicyError> for CliError {
    fn from(error: PolicyError) -> Self {
        Self::failed(error)
    }
}
