//! The wakers of waiters, by the number of their place. They are called after a change, once no lock is
//! held.

use std::mem;
use std::task::Waker;

use tollgate_core::Timestamp;

use super::waiter_places::WaiterId;
use crate::key_table::slab::{make_room, to_index};

/// How many places an empty queue keeps for later waiters; memory for more is freed.
pub(crate) const KEPT_SLOTS: usize = 64;

/// The wakers of a queue.
#[derive(Debug, Default)]
pub(crate) struct WaiterWakers {
    /// By place.
    seats: Vec<WakerSlot>,
    /// Dropping a waker may drop a task, and with it a place in this very queue. So it isn't dropped
    /// under the lock.
    discarded_wakers: Vec<Waker>,
}

#[derive(Debug)]
struct WakerSlot {
    waker: Option<Waker>,
    /// When it polls by itself, or was woken to do so; the end of time if neither.
    armed_until: Timestamp,
}

impl Default for WakerSlot {
    fn default() -> Self {
        Self {
            waker: None,
            armed_until: Timestamp::MAX,
        }
    }
}

impl WaiterWakers {
    pub(crate) const fn new() -> Self {
        Self {
            seats: Vec::new(),
            discarded_wakers: Vec::new(),
        }
    }

    /// The wakers to call and to drop after a change, once the lock is released: those of waiters that
    /// are done, and of the head if it has to keep the time until then. Not `present`, which is polling
    /// already.
    pub(crate) fn collect_wakeups(
        &mut self,
        done: Vec<WaiterId>,
        first: Option<(WaiterId, Timestamp)>,
        present: Option<WaiterId>,
    ) -> PendingWakeups {
        let mut wake = Vec::new();
        for id in done {
            let waker = self.seat(id).and_then(|seat| seat.waker.take());
            if present == Some(id) {
                self.discarded_wakers.extend(waker)
            } else {
                wake.extend(waker)
            }
        }
        if let Some((id, until)) = first
            && present != Some(id)
            && let Some(seat) = self.seat(id)
            && seat.armed_until > until
            && let Some(waker) = &seat.waker
        {
            // The waiter that keeps the time from now on.
            wake.push(waker.clone());
            seat.armed_until = until;
        }
        PendingWakeups {
            wake,
            _discarded: mem::take(&mut self.discarded_wakers),
        }
    }

    /// Whether this is the memory of many waiters.
    pub(crate) const fn are_many(&self) -> bool {
        self.seats.len() > KEPT_SLOTS
    }

    /// Frees the memory, once nobody waits.
    pub(crate) fn clear(&mut self) {
        self.seats = Vec::new();
    }

    fn seat(&mut self, id: WaiterId) -> Option<&mut WakerSlot> {
        self.seats.get_mut(to_index(id))
    }

    /// Removes the waker of a place that is free.
    pub(crate) fn remove_waker(&mut self, id: WaiterId) {
        let seat = self.seat(id).map(mem::take);
        self.discarded_wakers
            .extend(seat.and_then(|seat| seat.waker));
    }

    /// Stores the waker of a waiter, which polls by itself at the given time, if any.
    pub(crate) fn store_waker(&mut self, id: WaiterId, waker: &Waker, armed: Option<Timestamp>) {
        if to_index(id) >= self.seats.len() {
            let more = to_index(id) + 1 - self.seats.len();
            make_room(&mut self.seats, more);
            self.seats.resize_with(to_index(id) + 1, WakerSlot::default);
        }
        let seat = &mut self.seats[to_index(id)];
        seat.armed_until = armed.unwrap_or(Timestamp::MAX);
        let known = seat.waker.as_ref();
        if !known.is_some_and(|known| known.will_wake(waker)) {
            let old = seat.waker.replace(waker.clone());
            self.discarded_wakers.extend(old);
        }
    }
}

/// Wakers to call, and some to drop, once no lock is held.
#[must_use = "waiters are woken by this"]
pub(crate) struct PendingWakeups {
    wake: Vec<Waker>,
    _discarded: Vec<Waker>,
}

impl PendingWakeups {
    /// Calls the wakers. No lock may be held.
    pub(crate) fn wake(self) {
        self.wake.into_iter().for_each(Waker::wake);
    }
}
