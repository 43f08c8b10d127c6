//! The line of one limit, and the mark that says whether anybody stands in it.

use std::fmt;

use super::State;
use super::places::Id;
use super::single::Single;
use crate::sync::{AtomicBool, Mutex, Ordering, PoisonError};

/// A line, of which a check reads no more than the mark while nobody waits.
///
/// The mark orders nothing: a check that hasn't seen it began before whoever set it, and passes before it.
#[derive(Debug)]
pub(crate) struct Lined<T> {
    is_marked: AtomicBool,
    state: Mutex<State<Single<T>>>,
}

impl<T: Clone + fmt::Debug> Lined<T> {
    pub(crate) fn new() -> Self {
        Self {
            is_marked: AtomicBool::new(false),
            state: Mutex::new(State::new(Single::new())),
        }
    }

    /// Whether somebody may wait.
    #[inline]
    pub(crate) fn is_marked(&self) -> bool {
        self.is_marked.load(Ordering::Relaxed)
    }

    /// Changes the line, and wakes whom that concerns.
    pub(crate) fn visit<R>(
        &self,
        present: Option<Id>,
        change: impl FnOnce(&mut State<Single<T>>) -> R,
    ) -> R {
        // Nothing in here panics between two writes that belong together.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Before the first look at the limit: whoever comes from now on stands behind.
        self.is_marked.store(true, Ordering::Relaxed);
        let result = change(&mut state);
        let woken = state.settle(present);
        self.is_marked
            .store(!state.waits.is_empty(), Ordering::Relaxed);
        drop(state);
        woken.wake();
        result
    }
}
