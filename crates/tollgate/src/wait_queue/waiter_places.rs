//! Places in a queue of waiters: numbered, used again once they are free, and linked first to last. Every queue of this crate
//! is made of them: those of limits, of clients and lanes that share one, and of permits.

use std::collections::BTreeSet;
use std::mem;

use tollgate_core::Timestamp;

use crate::key_table::slab::Slab;

/// The number of a place.
pub(crate) type WaiterId = u32;

/// A waiter, or one that needn't wait any more and hasn't noticed yet.
#[derive(Debug)]
pub(crate) struct WaiterPlace<R, X = ()> {
    pub(crate) cost: u64,
    pub(super) arrived: Timestamp,
    /// Until when it waits; the end of time if there is no deadline.
    pub(super) deadline: Timestamp,
    pub(super) stage: WaiterStage<R>,
    /// What else is kept of it.
    pub(super) data: X,
}

/// How far a waiter has come.
#[derive(Debug)]
pub(super) enum WaiterStage<R> {
    Queued {
        before: Option<WaiterId>,
        after: Option<WaiterId>,
    },
    /// It needn't wait any more: its result.
    Ended(R),
}

/// All places of a queue.
#[derive(Debug)]
pub(crate) struct WaiterPlaces<R, X = ()> {
    places: Slab<WaiterPlace<R, X>>,
    /// Of waiters that stand in line.
    deadlines: BTreeSet<(Timestamp, WaiterId)>,
    /// Waiters that needn't wait any more and haven't been woken.
    done: Vec<WaiterId>,
}

/// First to last of one owner's places.
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

    /// Who is first.
    pub(crate) const fn first(&self) -> Option<WaiterId> {
        self.first
    }

    /// How many stand in it.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// What they ask for in sum.
    pub(crate) const fn cost(&self) -> u128 {
        self.cost
    }

    /// This much of the sum isn't charged ahead any more.
    pub(super) fn add_cost(&mut self, cost: u64) {
        self.cost += u128::from(cost);
    }
}

impl<R, X> WaiterPlace<R, X> {
    /// A waiter that comes now.
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

    /// Whether it has to wait.
    pub(crate) const fn is_queued(&self) -> bool {
        matches!(self.stage, WaiterStage::Queued { .. })
    }

    /// Until when it waits, if that was said.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        Some(self.deadline).filter(|deadline| *deadline < Timestamp::MAX)
    }

    /// Who stands behind it.
    pub(crate) const fn next(&self) -> Option<WaiterId> {
        match self.stage {
            WaiterStage::Queued { after, .. } => after,
            _ => None,
        }
    }
}

impl<R, X> WaiterPlaces<R, X> {
    /// Moves deadlines with a clock that was set back, so that no waiter waits longer than it asked for.
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

    /// Whose deadline comes first, and when.
    pub(super) fn first_deadline(&self) -> Option<(Timestamp, WaiterId)> {
        self.deadlines.first().copied()
    }

    /// Who needn't wait any more since this was asked last.
    pub(crate) fn take_done(&mut self) -> Vec<WaiterId> {
        mem::take(&mut self.done)
    }

    /// How many places are taken, by waiters and by those that haven't noticed that they needn't wait any more.
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

    /// The result for a waiter, whose place is free then; none while it has to wait.
    pub(crate) fn collect(&mut self, id: WaiterId) -> Option<R> {
        if self.get(id)?.is_queued() {
            return None;
        }
        match self.remove(id)?.stage {
            WaiterStage::Ended(result) => Some(result),
            WaiterStage::Queued { .. } => None,
        }
    }

    /// Notes the result for a waiter that stood in `fifo`.
    pub(crate) fn finish(&mut self, fifo: &mut Fifo, id: WaiterId, result: R) {
        self.unlink(fifo, id);
        if let Some(place) = self.get_mut(id) {
            place.stage = WaiterStage::Ended(result);
            self.done.push(id);
        }
    }

    /// Puts a place at the end.
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

    /// Takes a place out, wherever it stands.
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
