//! Waiting in line for a limit that somebody has to share out: the shell around `line/queue.rs`.
//!
//! There is no background thread. Whoever is next in line keeps the time for all: it arms a timer for
//! its turn, and when that comes it moves the line on and wakes exactly those who passed or were
//! dropped. When it leaves, for whatever reason, the one who is next then is woken to take over. Beside
//! it only those with a deadline have a timer, each for its own. Everyone who touches the line moves it
//! on as well, so a timer that fires late delays, but loses no token: each turn counts from the time at
//! which it came.

use std::fmt;
use std::mem;
use std::task::Waker;
use std::time::Duration;

use tollgate_core::{Decision, Timestamp};

#[cfg(not(any(loom, shuttle)))]
mod future;
pub(crate) mod places;
pub(crate) mod queue;
mod turn;

use crate::Refused;
use crate::clock::Clock;
use crate::sync::{Mutex, MutexGuard, PoisonError};
#[cfg(not(any(loom, shuttle)))]
pub use future::Turning;
use places::Id;
use queue::{Discipline, Entered, Queue};
pub use turn::Turn;

/// A line shared by threads and tasks, with its clock.
pub(crate) struct Line<D: Discipline, C> {
    state: Mutex<State<D>>,
    clock: C,
}

struct State<D: Discipline> {
    queue: Queue<D>,
    /// By place: how to wake who stands there.
    wakers: Vec<Option<Waker>>,
    keeper: Option<Keeper>,
    /// Dropping a waker may drop a task, and with it a place in this very line: not under the lock.
    discarded: Vec<Waker>,
}

/// Who keeps the time, and until when it was told to wait.
#[derive(Clone, Copy)]
struct Keeper {
    id: Id,
    until: Timestamp,
}

/// Where one who waits stands.
enum Progress {
    Done(Result<Duration, Refused>),
    /// Until it is woken, or until this time if it keeps the time or has a deadline.
    Waiting(Option<Timestamp>),
}

/// A place in line; dropping it frees the place, and costs nothing.
struct Standing<'a, D: Discipline, C: Clock> {
    line: &'a Line<D, C>,
    /// None once it is free, and may be another's.
    id: Option<Id>,
}

impl<D: Discipline, C: Clock> Line<D, C> {
    pub(crate) fn new(discipline: D, most: usize, clock: C) -> Self {
        Self {
            state: Mutex::new(State {
                queue: Queue::new(discipline, most),
                wakers: Vec::new(),
                keeper: None,
                discarded: Vec::new(),
            }),
            clock,
        }
    }

    pub(crate) const fn clock(&self) -> &C {
        &self.clock
    }

    /// Reads the line as it stood when it was last touched.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Queue<D>) -> T) -> T {
        read(&self.lock().queue)
    }

    pub(crate) fn allow(&self, ask: &D::Ask, cost: u64) -> bool {
        self.visit(None, |state| {
            let now = self.clock.now();
            state.queue.allow(now, ask, cost)
        })
    }

    pub(crate) fn check(&self, ask: &D::Ask, cost: u64) -> Decision {
        self.visit(None, |state| {
            let now = self.clock.now();
            state.queue.check(now, ask, cost)
        })
    }

    /// Passes, or takes a place.
    fn enter(
        &self,
        ask: D::Ask,
        cost: u64,
        patience: impl FnOnce(Timestamp) -> Option<Timestamp>,
    ) -> Result<Option<Standing<'_, D, C>>, Refused> {
        let entered = self.visit(None, |state| {
            let now = self.clock.now();
            // One who takes a place looks again as soon as it is able to wait: till then it needs no
            // waking.
            state.queue.enter(now, ask, cost, patience(now))
        })?;
        Ok(match entered {
            Entered::Passed => None,
            Entered::Waiting(id) => Some(Standing {
                line: self,
                id: Some(id),
            }),
        })
    }

    /// Changes the line, then sees to it that somebody keeps the time; wakes whom that concerns,
    /// but for `present`, who is looking at it already.
    fn visit<T>(&self, present: Option<Id>, change: impl FnOnce(&mut State<D>) -> T) -> T {
        let mut state = self.lock();
        let result = change(&mut state);
        let woken = state.settle(present);
        let discarded = mem::take(&mut state.discarded);
        drop(state);
        for waker in woken {
            waker.wake();
        }
        drop(discarded);
        result
    }

    fn lock(&self) -> MutexGuard<'_, State<D>> {
        // Nothing in here panics between two writes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: Discipline> State<D> {
    fn forget(&mut self, id: Id) {
        let waker = self.take_waker(id);
        self.discarded.extend(waker);
    }

    fn take_waker(&mut self, id: Id) -> Option<Waker> {
        self.wakers.get_mut(index(id))?.take()
    }

    fn remember(&mut self, id: Id, waker: &Waker) {
        if index(id) >= self.wakers.len() {
            self.wakers.resize(index(id) + 1, None);
        }
        let known = &mut self.wakers[index(id)];
        if !known.as_ref().is_some_and(|known| known.will_wake(waker)) {
            let old = known.replace(waker.clone());
            self.discarded.extend(old);
        }
    }

    /// Who has to be woken: those who needn't wait any more, and a new keeper of the time.
    fn settle(&mut self, present: Option<Id>) -> Vec<Waker> {
        let mut woken = Vec::new();
        for id in self.queue.take_done() {
            if present == Some(id) {
                self.forget(id);
            } else {
                woken.extend(self.take_waker(id));
            }
        }
        let next = self.queue.first();
        self.keeper = next.map(|(id, until)| {
            let keeps = |keeper: Keeper| keeper.id == id && keeper.until <= until;
            if let Some(keeper) = self.keeper.filter(|keeper| keeps(*keeper)) {
                return keeper;
            }
            if present != Some(id) {
                let waker = self.wakers.get(index(id));
                woken.extend(waker.and_then(Clone::clone));
            }
            Keeper { id, until }
        });
        woken
    }
}

impl<D: Discipline, C: Clock> Standing<'_, D, C> {
    /// Looks whether it has to wait any longer, and says how to be woken if so.
    fn look(&mut self, waker: &Waker) -> Progress {
        let Some(id) = self.id else {
            panic!("a place in line was looked at after it had been left");
        };
        let line = self.line;
        line.visit(Some(id), |state| {
            let now = line.clock.now();
            state.queue.advance(now);
            let waited = state.queue.waited(now, id);
            if let Some(result) = state.queue.collect(id) {
                state.forget(id);
                self.id = None;
                return Progress::Done(result.map(|()| waited));
            }
            state.remember(id, waker);
            // Whatever it was told before, it is here now and can be told anew.
            state.keeper = state.keeper.filter(|keeper| keeper.id != id);
            Progress::Waiting(state.queue.look_again(id))
        })
    }
}

impl<D: Discipline, C: Clock> Drop for Standing<'_, D, C> {
    fn drop(&mut self) {
        let Some(id) = self.id else {
            return;
        };
        self.line.visit(None, |state| {
            let now = self.line.clock.now();
            state.queue.advance(now);
            state.queue.leave(now, id);
            state.forget(id);
            // What it leaves behind may be another's turn right now.
            state.queue.advance(now);
        });
    }
}

impl<D: Discipline, C> fmt::Debug for Line<D, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").finish_non_exhaustive()
    }
}

fn index(id: Id) -> usize {
    usize::try_from(id).unwrap_or(usize::MAX)
}
