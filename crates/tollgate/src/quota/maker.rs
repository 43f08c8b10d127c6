//! Which process opened a store: a child that was forked since is another.

/// The process that made it.
#[derive(Debug)]
pub(super) struct Maker(usize);

impl Maker {
    pub(super) fn new() -> Self {
        Self(forks())
    }

    /// Whether this is a child of the process that made it.
    #[inline]
    pub(super) fn is_forked(&self) -> bool {
        forks() != self.0
    }
}

#[cfg(unix)]
use crate::clock::fork::forks;

/// Nothing forks here.
#[cfg(not(unix))]
const fn forks() -> usize {
    0
}
