//! Commands on a policy file: is it right, what does it do to one request, and what is theirs in our
//! words.

mod check;
mod convert;
mod explain;
mod facts;
mod input;
mod length;
mod request;

pub use check::{Check, check};
pub use convert::{Conversion, Convert, convert};
pub use explain::{Explain, explain};
pub use facts::{Entries, Fact};

pub(crate) use explain::duration;
pub(crate) use input::policy;
pub(crate) use request::{Request, Running, engine};

use std::fmt;

use tollgate_engine::{PolicyError, Rejected};

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
    /// Something that decides would be lost, and nobody said that it may.
    Lossy(String),
}

impl fmt::Display for PolicyFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected(rejected) => write!(f, "the policy has errors\n{rejected}"),
            Self::Policy(error) => error.fmt(f),
            Self::Usage(message) | Self::Lossy(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for PolicyFailure {}

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
