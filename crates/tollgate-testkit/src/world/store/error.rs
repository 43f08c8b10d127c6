//! Errors with the wording of a server.

use std::fmt;

use crate::redis::Reply;

/// An error reply: a code and a text, with the wording of Redis 7.
///
/// ```
/// use tollgate_testkit::world::Store;
///
/// let error = Store::new().evalsha(0, "c0ffee", &[], &[]).unwrap_err();
/// assert_eq!(error.code(), "NOSCRIPT");
/// assert_eq!(error.to_string(), "NOSCRIPT No matching script. Please use EVAL.");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerError {
    line: String,
}

/// A reply, or a top-level error.
pub(super) type Answer = Result<Reply, ServerError>;

pub(super) const BUSY: &str = "BUSY Redis is busy running a script. You can only call SCRIPT KILL or \
                               SHUTDOWN NOSAVE.";
pub(super) const LOADING: &str = "LOADING Redis is loading the dataset in memory";
pub(super) const NO_SCRIPT: &str = "NOSCRIPT No matching script. Please use EVAL.";
pub(super) const OOM: &str = "OOM command not allowed when used memory > 'maxmemory'.";
pub(super) const READ_ONLY: &str = "READONLY You can't write against a read only replica.";
pub(super) const WRONG_TYPE: &str =
    "WRONGTYPE Operation against a key holding the wrong kind of value";
pub(super) const SYNTAX: &str = "ERR syntax error";
pub(super) const NO_INTEGER: &str = "ERR value is not an integer or out of range";

impl ServerError {
    /// The whole line, such as `ERR syntax error`.
    pub(super) fn new(line: impl Into<String>) -> Self {
        Self { line: line.into() }
    }

    /// The first word, such as `ERR`, `NOSCRIPT` or `READONLY`.
    pub fn code(&self) -> &str {
        self.line.split(' ').next().unwrap_or_default()
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl std::error::Error for ServerError {}
