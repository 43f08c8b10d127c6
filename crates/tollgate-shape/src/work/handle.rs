//! What all clones of a debouncer share: when the last one is gone, it ends.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use tollgate::Clock;

use super::{Store, Work};

/// What becomes of what waits when nobody can call any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtEnd {
    Discard,
    Flush,
}

/// The callers' side. The driver has the work alone, so that this is dropped with the last caller.
pub(crate) struct Handle<S: Store, C: Clock> {
    work: Arc<Work<S, C>>,
    at_end: AtEnd,
}

impl<S: Store, C: Clock> Handle<S, C> {
    pub(crate) const fn new(work: Arc<Work<S, C>>, at_end: AtEnd) -> Self {
        Self { work, at_end }
    }

    #[cfg(not(any(loom, shuttle)))]
    pub(crate) const fn work(&self) -> &Arc<Work<S, C>> {
        &self.work
    }
}

impl<S: Store, C: Clock> Deref for Handle<S, C> {
    type Target = Work<S, C>;

    fn deref(&self) -> &Work<S, C> {
        &self.work
    }
}

impl<S: Store, C: Clock> Drop for Handle<S, C> {
    fn drop(&mut self) {
        match self.at_end {
            AtEnd::Discard => drop(self.work.stop()),
            AtEnd::Flush => self.work.close(),
        }
    }
}

impl<S: Store, C: Clock> fmt::Debug for Handle<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}
