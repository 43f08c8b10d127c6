//! Which actions run on this thread right now: those inside of which another call would nest.

use std::cell::RefCell;

#[cfg(not(any(loom, shuttle)))]
thread_local! {
    static INSIDE: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

// A model's threads have their own, and begin with it at run time.
#[cfg(any(loom, shuttle))]
crate::sync::thread_local! {
    static INSIDE: RefCell<Vec<usize>> = RefCell::new(Vec::new());
}

/// As long as it lives, this thread is inside of an action.
pub(super) struct Inside;

/// This thread begins to run an action of this work.
pub(super) fn enter(id: usize) -> Inside {
    INSIDE.with(|inside| inside.borrow_mut().push(id));
    Inside
}

/// Whether this thread runs an action of this work, and how many inside of each other.
pub(super) fn depth(id: usize) -> usize {
    INSIDE.with(|inside| inside.borrow().iter().filter(|other| **other == id).count())
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.with(|inside| inside.borrow_mut().pop());
    }
}
