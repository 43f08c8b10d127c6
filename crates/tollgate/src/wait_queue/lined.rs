//! The line of one limit, and the mark that says whether there are waiters, or something is held.

use std::fmt;

use super::State;
use super::places::Id;
use super::single::Single;
use crate::cell::Outstanding;
use crate::sync::{AtomicU32, Mutex, Ordering, fence, unpoisoned};

/// There are waiters, and newcomers stand behind them.
const HAS_WAITERS: u32 = 1;
/// Something is out that must not drain, and every caller has to bring that up to its time first.
const HELD: u32 = 2;

/// A line, of which a check reads no more than the mark while nobody waits and nothing is held.
///
/// # Memory ordering
/// A check that hasn't seen the mark began before it was set, and counts as coming before the waiter: no order is
/// needed. A thread that gives tokens back must not miss a waiter that has looked already: the waiter sets the mark and
/// then looks, the other gives back and then reads the mark, each with a sequentially consistent fence between. So at
/// least one of them sees what the other did.
///
/// A thread that takes a hold sets the mark and, after the fence, reads the clock. A check that hasn't seen the mark
/// read the clock before, so its time is no later than that from which what is out must not drain.
#[derive(Debug)]
pub(crate) struct LimiterQueue<T> {
    mark: AtomicU32,
    state: Mutex<State<Single<T>>>,
}

impl<T: Clone + fmt::Debug> LimiterQueue<T> {
    pub(crate) fn new() -> Self {
        Self {
            mark: AtomicU32::new(0),
            state: Mutex::new(State::new(Single::new())),
        }
    }

    /// Whether there may be waiters, or something held.
    #[inline]
    pub(crate) fn is_marked(&self) -> bool {
        self.mark.load(Ordering::Relaxed) != 0
    }

    /// Whether something may be out.
    pub(crate) fn out(&self) -> Outstanding {
        match self.mark.load(Ordering::Relaxed) & HELD {
            0 => Outstanding::Nothing,
            _ => Outstanding::Something,
        }
    }

    /// Changes the line, and wakes the waiters that are affected.
    pub(crate) fn visit<R>(
        &self,
        present: Option<Id>,
        change: impl FnOnce(&mut State<Single<T>>) -> R,
    ) -> R {
        let mut state = unpoisoned(self.state.lock());
        // Before the first look at the limit: callers that come from now on stand behind.
        self.mark
            .store(HAS_WAITERS | held(&state.waits), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let result = change(&mut state);
        let woken = state.settle(present);
        state.rest();
        let waited_for = if state.waits.is_free() {
            0
        } else {
            HAS_WAITERS
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
