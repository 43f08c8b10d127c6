//! The line of one limit, and the mark that says whether anybody stands in it.

use std::fmt;

use super::State;
use super::places::Id;
use super::single::Single;
use crate::sync::{AtomicBool, Mutex, Ordering, PoisonError, fence};

/// A line, of which a check reads no more than the mark while nobody waits.
///
/// # Memory ordering
/// A check that hasn't seen the mark began before whoever set it, and passes before it: no order is needed.
/// Whoever gives something back must not miss one who has looked already and waits: one sets the mark and then
/// looks, the other gives back and then reads the mark, each with a fence between (sequentially
/// consistent), so that at least one of them sees what the other did.
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
        fence(Ordering::SeqCst);
        let result = change(&mut state);
        let woken = state.settle(present);
        state.rest();
        self.is_marked
            .store(!state.waits.is_empty(), Ordering::Relaxed);
        drop(state);
        woken.wake();
        result
    }
}
