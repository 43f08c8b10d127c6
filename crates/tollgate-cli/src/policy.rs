//! Commands on a policy file: is it right, what does it do to one request, what would another change, and what is
//! theirs in our words.

mod check;
mod convert;
mod diff;
mod explain;
mod facts;
mod input;
mod leases;
mod request;
mod stage;
mod time;

pub use check::{Check, check};
pub(crate) use convert::write_converted;
pub use convert::{Conversion, Convert, convert};
pub use diff::{Diff, diff};
pub use explain::{Explain, Only, explain};
pub(crate) use facts::one_value_each;
pub use facts::{Asked, Entries, Fact, Hits, OfDescriptor};
pub use stage::Store;
pub use time::Date;

pub(crate) use input::{checked, policy};
pub(crate) use leases::{leases, quotas, untold};
pub(crate) use request::{Extras, Request, Running};
pub(crate) use stage::Stage;
pub(crate) use time::{duration, readable};

use std::fmt;

use tollgate_engine::{PolicyError, Rejected};

use crate::ended::CliError;

/// Why a command on a policy came to nothing.
#[derive(Debug)]
#[non_exhaustive]
pub enum PolicyFailure {
    /// The file is no policy; its text shows every error.
    Rejected(Box<Rejected>),
    /// It is one that can't be put in force.
    Policy(PolicyError),
    /// The arguments make no sense for this file.
    Usage(String),
}

impl fmt::Display for PolicyFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected(rejected) => write!(f, "the policy has errors\n{rejected}"),
            Self::Policy(error) => error.fmt(f),
            Self::Usage(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for PolicyFailure {}

impl From<PolicyFailure> for CliError {
    fn from(failure: PolicyFailure) -> Self {
        match failure {
            PolicyFailure::Rejected(rejected) => Self::rejected(rejected),
            PolicyFailure::Policy(error) => Self::failed(error),
            PolicyFailure::Usage(message) => Self::usage(message),
        }
    }
}

impl From<Rejected> for PolicyFailure {
    fn from(rejected: Rejected) -> Self {
        Self::Rejected(Box::new(rejected))
    }
}

impl From<PolicyError> for PolicyFailure {
    fn from(error: PolicyError) -> Self {
        Self::Policy(error)
    }
}
