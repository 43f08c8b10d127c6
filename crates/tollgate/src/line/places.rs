//! Places in a line: numbered, used again once they are free, and linked first to last.

use std::collections::BTreeSet;
use std::mem;

use tollgate_core::Timestamp;

use crate::Refused;

/// The number of a place.
pub(crate) type Id = u32;

/// A waiter, or one that needn't wait any more and hasn't noticed yet.
#[derive(Debug)]
pub(super) struct LinePlace<R, X = ()> {
    /// Whose line it stands in: a client, or a lane.
    pub(super) owner: u32,
    pub(super) cost: u64,
    pub(super) arrived: Timestamp,
    /// Until when it waits; the end of time if there is no deadline.
    pub(super) deadline: Timestamp,
    pub(super) stage: Stage<R>,
    /// What else is kept of it.
    pub(super) extra: X,
}

/// How far a waiter has come.
#[derive(Debug)]
pub(super) enum Stage<R> {
    Queued {
        before: Option<Id>,
        after: Option<Id>,
    },
    /// It was charged as of this time; the receipt is for giving back.
    Passed(R, Timestamp),
    /// Rare, and large.
    Refused(Box<Refused>),
}

/// All places of a line.
#[derive(Debug)]
pub(super) struct Places<R, X = ()> {
    slots: Vec<Slot<R, X>>,
    free: Option<Id>,
    used: usize,
}

#[derive(Debug)]
enum Slot<R, X> {
    Free(Option<Id>),
    Used(LinePlace<R, X>),
}

/// First to last of one owner's places.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fifo {
    first: Option<Id>,
    last: Option<Id>,
    len: usize,
    cost: u128,
}

impl Fifo {
    pub(super) const EMPTY: Self = Self {
        first: None,
        last: None,
        len: 0,
        cost: 0,
    };

    /// Who is first.
    pub(crate) const fn first(&self) -> Option<Id> {
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
    pub(super) fn asks_again(&mut self, cost: u64) {
        self.cost += u128::from(cost);
    }
}

impl<R, X> LinePlace<R, X> {
    /// Until when it waits, if that was said.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        Some(self.deadline).filter(|deadline| *deadline < Timestamp::MAX)
    }

    /// Who stands behind it.
    pub(super) const fn next(&self) -> Option<Id> {
        match self.stage {
            Stage::Queued { after, .. } => after,
            _ => None,
        }
    }
}

impl<R, X> Places<R, X> {
    /// Moves deadlines with a clock that was set back, so that no waiter waits longer than it asked for.
    pub(super) fn shift_deadlines(
        &mut self,
        deadlines: &mut BTreeSet<(Timestamp, Id)>,
        from: Timestamp,
        to: Timestamp,
    ) {
        let shifted = mem::take(deadlines).into_iter().map(|(deadline, id)| {
            let deadline = deadline.shifted(from, to);
            if let Some(place) = self.get_mut(id) {
                place.deadline = deadline;
            }
            (deadline, id)
        });
        deadlines.extend(shifted);
    }

    pub(super) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: None,
            used: 0,
        }
    }

    /// How many places are taken, by waiters and by those that haven't noticed that they needn't wait any more.
    pub(super) const fn used(&self) -> usize {
        self.used
    }

    pub(super) fn get(&self, id: Id) -> Option<&LinePlace<R, X>> {
        match self.slots.get(index(id))? {
            Slot::Used(place) => Some(place),
            Slot::Free(_) => None,
        }
    }

    pub(super) fn get_mut(&mut self, id: Id) -> Option<&mut LinePlace<R, X>> {
        match self.slots.get_mut(index(id))? {
            Slot::Used(place) => Some(place),
            Slot::Free(_) => None,
        }
    }

    pub(super) fn insert(&mut self, place: LinePlace<R, X>) -> Id {
        self.used += 1;
        if let Some(id) = self.free {
            let old = mem::replace(&mut self.slots[index(id)], Slot::Used(place));
            if let Slot::Free(next) = old {
                self.free = next;
            }
            return id;
        }
        make_room(&mut self.slots, 1);
        self.slots.push(Slot::Used(place));
        Id::try_from(self.slots.len() - 1).unwrap_or(Id::MAX)
    }

    pub(super) fn remove(&mut self, id: Id) -> Option<LinePlace<R, X>> {
        self.get(id)?;
        let freed = mem::replace(&mut self.slots[index(id)], Slot::Free(self.free));
        self.free = Some(id);
        self.used -= 1;
        match freed {
            Slot::Used(place) => Some(place),
            Slot::Free(_) => None,
        }
    }

    /// The result for a waiter, whose place is free then; none while it has to wait.
    pub(super) fn collect(&mut self, id: Id) -> Option<Result<Timestamp, Refused>> {
        let result = match &self.get(id)?.stage {
            Stage::Queued { .. } => return None,
            Stage::Passed(_, at) => Ok(*at),
            Stage::Refused(refused) => Err(**refused),
        };
        self.remove(id);
        Some(result)
    }

    /// Notes the result for a waiter that stood in `fifo`.
    pub(super) fn finish(&mut self, fifo: &mut Fifo, id: Id, stage: Stage<R>) {
        self.unlink(fifo, id);
        if let Some(place) = self.get_mut(id) {
            place.stage = stage;
        }
    }

    /// Puts a place at the end.
    pub(super) fn push(&mut self, fifo: &mut Fifo, id: Id) {
        let before = fifo.last;
        let Some(place) = self.get_mut(id) else {
            return;
        };
        place.stage = Stage::Queued {
            before,
            after: None,
        };
        fifo.cost += u128::from(place.cost);
        fifo.len += 1;
        fifo.last = Some(id);
        match before {
            None => fifo.first = Some(id),
            Some(before) => self.link(before, |_, after| *after = Some(id)),
        }
    }

    /// Takes a place out, wherever it stands.
    pub(super) fn unlink(&mut self, fifo: &mut Fifo, id: Id) {
        let Some(place) = self.get(id) else {
            return;
        };
        let Stage::Queued { before, after } = place.stage else {
            return;
        };
        fifo.cost -= u128::from(place.cost);
        fifo.len -= 1;
        match before {
            None => fifo.first = after,
            Some(before) => self.link(before, |_, next| *next = after),
        }
        match after {
            None => fifo.last = before,
            Some(after) => self.link(after, |previous, _| *previous = before),
        }
    }

    fn link(&mut self, id: Id, change: impl FnOnce(&mut Option<Id>, &mut Option<Id>)) {
        if let Some(LinePlace {
            stage: Stage::Queued { before, after },
            ..
        }) = self.get_mut(id)
        {
            change(before, after);
        }
    }
}

/// Room for so many more, and not for twice as many as there are: most lines are short, and long ones large.
pub(super) fn make_room<T>(list: &mut Vec<T>, more: usize) {
    if list.capacity() - list.len() < more {
        list.reserve_exact(more.max(list.len() / 8));
    }
}

fn index(id: Id) -> usize {
    usize::try_from(id).unwrap_or(usize::MAX)
}
