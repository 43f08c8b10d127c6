//! A heap of slots by the time at which they are due.

use tollgate_core::Timestamp;

use super::slab::{push, to_index};

/// The children of a node. Their times are adjacent in half a cache line.
const WIDTH: usize = 4;

/// A heap with the slot that is due next at its top. The owner stores each slot's position, so that nothing has to be
/// searched.
///
/// A time in the heap may be too early: a charge makes a key idle later, and doesn't move it here. So the caller must
/// check the real time of the top's key first, and put the slot back if that is later.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct DueHeap {
    dues: Vec<Timestamp>,
    slots: Vec<u32>,
    most: usize,
}

impl DueHeap {
    /// An empty heap for at most this many slots.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            dues: Vec::new(),
            slots: Vec::new(),
            most,
        }
    }

    /// The bytes of a heap of this many slots.
    pub(crate) const fn bytes(most: usize) -> usize {
        most * (size_of::<Timestamp>() + size_of::<u32>())
    }

    /// The slot that is due next, and its time.
    pub(crate) fn first(&self) -> Option<(Timestamp, u32)> {
        Some((*self.dues.first()?, *self.slots.first()?))
    }

    /// The time at which the slot at this position is due.
    pub(crate) fn due(&self, place: u32) -> Timestamp {
        self.dues[to_index(place)]
    }

    /// Adds a slot. `moved` is called with every slot that moves and its new position, here and below.
    pub(crate) fn push(&mut self, due: Timestamp, slot: u32, moved: impl FnMut(u32, u32)) {
        push(&mut self.dues, due, self.most);
        push(&mut self.slots, slot, self.most);
        self.sift(self.dues.len() - 1, moved);
    }

    /// Changes the time at which the slot at this position is due.
    pub(crate) fn set(&mut self, place: u32, due: Timestamp, moved: impl FnMut(u32, u32)) {
        self.dues[to_index(place)] = due;
        self.sift(to_index(place), moved);
    }

    /// Removes the slot at this position.
    pub(crate) fn remove(&mut self, place: u32, moved: impl FnMut(u32, u32)) {
        self.dues.swap_remove(to_index(place));
        self.slots.swap_remove(to_index(place));
        if to_index(place) < self.dues.len() {
            self.sift(to_index(place), moved);
        }
    }

    /// Moves one node to its right position.
    fn sift(&mut self, mut place: usize, mut moved: impl FnMut(u32, u32)) {
        let (due, slot) = (self.dues[place], self.slots[place]);
        while place > 0 && due < self.dues[(place - 1) / WIDTH] {
            let parent = (place - 1) / WIDTH;
            self.place_slot(place, self.dues[parent], self.slots[parent], &mut moved);
            place = parent;
        }
        loop {
            let first = place * WIDTH + 1;
            let children = first..(first + WIDTH).min(self.dues.len());
            let next = children.min_by_key(|child| self.dues[*child]);
            let Some(next) = next.filter(|next| self.dues[*next] < due) else {
                break;
            };
            self.place_slot(place, self.dues[next], self.slots[next], &mut moved);
            place = next;
        }
        self.place_slot(place, due, slot, &mut moved);
    }

    fn place_slot(
        &mut self,
        place: usize,
        due: Timestamp,
        slot: u32,
        moved: &mut impl FnMut(u32, u32),
    ) {
        self.dues[place] = due;
        self.slots[place] = slot;
        moved(slot, u32::try_from(place).unwrap_or(u32::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_testkit::traffic::Random;

    #[test]
    fn the_top_is_always_the_least() {
        let mut random = Random::new(5);
        let mut heap = DueHeap::new(50);
        let mut places = [None; 50];
        let mut dues = [Timestamp::ZERO; 50];
        for _ in 0..20_000 {
            let slot = u32::try_from(random.below(50)).unwrap();
            let index = to_index(slot);
            let due = Timestamp::from_nanos(random.below(1_000));
            let place = places[index];
            let mut moved = |slot, place| places[to_index(slot)] = Some(place);
            match place {
                None => heap.push(due, slot, moved),
                Some(place) if random.below(3) == 0 => {
                    heap.remove(place, &mut moved);
                    places[index] = None;
                }
                Some(place) => heap.set(place, due, moved),
            }
            dues[index] = due;
            let there = || (0..50).filter(|slot| places[*slot].is_some());
            let least = there().map(|slot| dues[slot]).min();
            assert_eq!(heap.first().map(|(due, _)| due), least);
            assert!(there().all(|slot| heap.due(places[slot].unwrap()) == dues[slot]));
        }
    }
}
