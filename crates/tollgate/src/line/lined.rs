//! The line of one limit, and the mark that says whether anybody stands in it, or holds something.

use std::fmt;

use super::State;
use super::places::Id;
use super::single::Single;
use crate::sync::{AtomicU32, Mutex, Ordering, PoisonError, fence};

/// Whoever comes stands behind others.
const WAITED_FOR: u32 = 1;
/// Something is out that doesn't drain, and whoever comes has to see to that first.
const HELD: u32 = 2;

/// A line, of which a check reads no more than the mark while nobody waits and nothing is held.
///
/// # Memory ordering
/// A check that hasn't seen the mark began before whoever set it, and passes before it: no order is needed.
/// Whoever gives something back must not miss one who has looked already and waits: one sets the mark and then
/// looks, the other gives back and then reads the mark, each with a fence between (sequentially
/// consistent), so that at least one of them sees what the other did.
///
/// Whoever holds something sets the mark and, after the fence, reads the clock: who hasn't seen the mark had read
/// the clock before, so its time is no later than the one from which on what is out doesn't drain.
#[derive(Debug)]
pub(crate) struct Lined<T> {
    mark: AtomicU32,
    state: Mutex<State<Single<T>>>,
}

impl<T: Clone + fmt::Debug> Lined<T> {
    pub(crate) fn new() -> Self {
        Self {
            mark: AtomicU32::new(0),
            state: Mutex::new(State::new(Single::new())),
        }
    }

    /// Whether somebody may wait, or hold something.
    #[inline]
    pub(crate) fn is_marked(&self) -> bool {
        self.mark.load(Ordering::Relaxed) != 0
    }

    /// Whether something may be out.
    pub(crate) fn is_held(&self) -> bool {
        self.mark.load(Ordering::Relaxed) & HELD != 0
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
        self.mark
            .store(WAITED_FOR | held(&state.waits), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let result = change(&mut state);
        let woken = state.settle(present);
        state.rest();
        let waited_for = if state.waits.is_empty() {
            0
        } else {
            WAITED_FOR
        };
        self.mark
            .store(waited_for | held(&state.waits), Ordering::Relaxed);
        drop(state);
        woken.wake();
        result
    }
}

const fn held<T>(waits: &Single<T>) -> u32 {
    if waits.is_held { HELD } else { 0 }
}
