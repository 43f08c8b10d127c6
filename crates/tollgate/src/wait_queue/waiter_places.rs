//! The places of a queue of waiters: numbered, reused once they are free, and linked from first to
//! last. Every queue of this crate consists of them: those of limits, of clients and lanes that share
//! one, and of permits.

use std::collections::BTreeSet;
use std::mem;

use tollgate_core::Timestamp;

use crate::key_table::slab::Slab;

/// The number of a place.
pub(crate) type WaiterId = u32;

/// A waiter, or one whose wait has ended and that hasn't polled since.
#[derive(Debug)]
pub(crate) struct WaiterPlace<R, X = ()> {
    pub(crate) cost: u64,
    pub(super) arrived: Timestamp,
    /// Its deadline; the end of time if it has none.
    pub(super) deadline: Timestamp,
    pub(super) stage: WaiterStage<R>,
    /// Additional data of the queue's kind.
    pub(super) data: X,
}

/// The state of a waiter.
#[derive(Debug)]
pub(super) enum WaiterStage<R> {
    Queued {
        before: Option<WaiterId>,
        after: Option<WaiterId>,
    },
    /// The wait has ended with this result.
    Ended(R),
}

/// All places of a queue.
#[derive(Debug)]
pub(crate) struct WaiterPlaces<R, X = ()> {
    places: Slab<WaiterPlace<R, X>>,
    /// Of waiters that are still queued.
    deadlines: BTreeSet<(Timestamp, WaiterId)>,
    /// Waiters whose wait has ended and that haven't been woken.
    done: Vec<WaiterId>,
}

/// One owner's places, from first to last.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fifo {
    first: Option<WaiterId>,
    last: Option<WaiterId>,
    len: usize,
    cost: u128,
}

impl Fifo {
    pub(crate) const EMPTY: Self = Self {
        first: None,
        last: None,
        len: 0,
        cost: 0,
    };

    /// The head of the queue.
    pub(crate) const fn first(&self) -> Option<WaiterId> {
        self.first
    }

    /// The number of waiters.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The sum of their costs.
    pub(crate) const fn cost(&self) -> u128 {
        self.cost
    }

    /// Adds a cost that isn't charged in advance any more.
    pub(super) fn add_cost(&mut self, cost: u64) {
        self.cost += u128::from(cost);
    }
}

impl<R, X> WaiterPlace<R, X> {
    /// A new waiter.
    pub(crate) fn new(now: Timestamp, cost: u64, deadline: Option<Timestamp>, extra: X) -> Self {
        Self {
            cost,
            arrived: now,
            deadline: deadline.unwrap_or(Timestamp::MAX),
            stage: WaiterStage::Queued {
                before: None,
                after: None,
            },
            data: extra,
        }
    }

    /// Whether it is still waiting.
    pub(crate) const fn is_queued(&self) -> bool {
        matches!(self.stage, WaiterStage::Queued { .. })
    }

    /// Its deadline, if it has one.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        Some(self.deadline).filter(|deadline| *deadline < Timestamp::MAX)
    }

    /// The next waiter behind it.
    pub(crate) const fn next(&self) -> Option<WaiterId> {
        match self.stage {
            WaiterStage::Queued { after, .. } => after,
            _ => None,
        }
    }
}

impl<R, X> WaiterPlaces<R, X> {
    /// Moves deadlines with a clock that was set back, so that no waiter waits longer than it
    /// requested.
    pub(super) fn shift_deadlines(&mut self, from: Timestamp, to: Timestamp) {
        for (deadline, id) in mem::take(&mut self.deadlines) {
            let deadline = deadline.shifted(from, to);
            if let Some(place) = self.get_mut(id) {
                place.deadline = deadline;
            }
            self.deadlines.insert((deadline, id));
        }
    }

    pub(crate) const fn new() -> Self {
        Self {
            places: Slab::new(usize::MAX),
            deadlines: BTreeSet::new(),
            done: Vec::new(),
        }
    }

    /// The earliest deadline, and its waiter.
    pub(super) fn first_deadline(&self) -> Option<(Timestamp, WaiterId)> {
        self.deadlines.first().copied()
    }

    /// The waiters whose wait has ended since the last call.
    pub(crate) fn take_done(&mut self) -> Vec<WaiterId> {
        mem::take(&mut self.done)
    }

    /// The number of places in use, by waiters and by those that haven't collected their result.
    pub(crate) const fn used(&self) -> usize {
        self.places.used()
    }

    pub(crate) fn get(&self, id: WaiterId) -> Option<&WaiterPlace<R, X>> {
        self.places.get(id)
    }

    pub(super) fn get_mut(&mut self, id: WaiterId) -> Option<&mut WaiterPlace<R, X>> {
        self.places.get_mut(id)
    }

    pub(crate) fn insert(&mut self, place: WaiterPlace<R, X>) -> WaiterId {
        self.places.make_room();
        self.places.insert(place)
    }

    pub(crate) fn remove(&mut self, id: WaiterId) -> Option<WaiterPlace<R, X>> {
        self.places.remove(id)
    }

    /// The result of a waiter, which frees its place; none while it waits.
    pub(crate) fn collect(&mut self, id: WaiterId) -> Option<R> {
        if self.get(id)?.is_queued() {
            return None;
        }
        match self.remove(id)?.stage {
            WaiterStage::Ended(result) => Some(result),
            WaiterStage::Queued { .. } => None,
        }
    }

    /// Stores the result of a waiter of `fifo`.
    pub(crate) fn finish(&mut self, fifo: &mut Fifo, id: WaiterId, result: R) {
        self.unlink(fifo, id);
        if let Some(place) = self.get_mut(id) {
            place.stage = WaiterStage::Ended(result);
            self.done.push(id);
        }
    }

    /// Appends a place at the end.
    pub(crate) fn push(&mut self, fifo: &mut Fifo, id: WaiterId) {
        let before = fifo.last;
        let Some(place) = self.get_mut(id) else {
            return;
        };
        place.stage = WaiterStage::Queued {
            before,
            after: None,
        };
        fifo.cost += u128::from(place.cost);
        fifo.len += 1;
        fifo.last = Some(id);
        let deadline = place.deadline();
        self.deadlines
            .extend(deadline.map(|deadline| (deadline, id)));
        match before {
            None => fifo.first = Some(id),
            Some(before) => self.link(before, |_, after| *after = Some(id)),
        }
    }

    /// Removes a place, wherever it is.
    pub(crate) fn unlink(&mut self, fifo: &mut Fifo, id: WaiterId) {
        let Some(place) = self.get(id) else { return };
        let WaiterStage::Queued { before, after } = place.stage else {
            return;
        };
        fifo.cost -= u128::from(place.cost);
        fifo.len -= 1;
        let deadline = place.deadline;
        self.deadlines.remove(&(deadline, id));
        match before {
            None => fifo.first = after,
            Some(before) => self.link(before, |_, next| *next = after),
        }
        match after {
            None => fifo.last = before,
            Some(after) => self.link(after, |previous, _| *previous = before),
        }
    }

    fn link(
        &mut self,
        id: WaiterId,
        change: impl FnOnce(&mut Option<WaiterId>, &mut Option<WaiterId>),
    ) {
        if let Some(WaiterPlace {
            stage: WaiterStage::Queued { before, after },
            ..
        }) = self.get_mut(id)
        {
            change(before, after);
        }
    }
}
