//! Numbered slots for the keys of one shard.

/// Values under small numbers, which are reused once they are free.
///
/// A shard is small, so growing by a quarter copies at most some hundred kilobytes. In return a slot is one load away.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    /// The first of a chain of free slots.
    free: Option<u32>,
    used: usize,
    most: usize,
}

#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
enum Slot<T> {
    Free { next: Option<u32> },
    Used(T),
}

impl<T> Slab<T> {
    /// An empty slab for at most this many slots.
    pub(crate) const fn new(most: usize) -> Self {
        Self {
            slots: Vec::new(),
            free: None,
            used: 0,
            most,
        }
    }

    /// The bytes of this many slots.
    pub(crate) const fn bytes(most: usize) -> usize {
        most * size_of::<Slot<T>>()
    }

    /// The number of slots with a value.
    pub(crate) const fn used(&self) -> usize {
        self.used
    }

    /// The number of slots, free or not. All slot numbers are below it.
    pub(crate) fn slots(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        match self.slots.get(to_index(slot))? {
            Slot::Used(value) => Some(value),
            Slot::Free { .. } => None,
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        match self.slots.get_mut(to_index(slot))? {
            Slot::Used(value) => Some(value),
            Slot::Free { .. } => None,
        }
    }

    /// Makes room for one more value, and for few beyond it.
    pub(crate) fn make_room(&mut self) {
        if self.free.is_none() {
            make_room(&mut self.slots, 1);
        }
    }

    /// Puts a value into a free slot, or a new one.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        self.used += 1;
        if let Some(slot) = self.free {
            let place = &mut self.slots[to_index(slot)];
            if let Slot::Free { next } = *place {
                self.free = next;
            }
            *place = Slot::Used(value);
            return slot;
        }
        let slot = self.slots();
        push(&mut self.slots, Slot::Used(value), self.most);
        slot
    }

    /// Frees a slot; returns its value.
    pub(crate) fn remove(&mut self, slot: u32) -> Option<T> {
        let place = self.slots.get_mut(to_index(slot))?;
        if let Slot::Free { .. } = place {
            return None;
        }
        let freed = Slot::Free { next: self.free };
        let Slot::Used(value) = std::mem::replace(place, freed) else {
            return None;
        };
        self.free = Some(slot);
        self.used -= 1;
        Some(value)
    }
}

/// Adds a value to a vector of at most `most` values. The vector grows by a quarter, and never has more capacity than
/// `most`.
pub(crate) fn push<T>(values: &mut Vec<T>, value: T, most: usize) {
    let length = values.len();
    if length == values.capacity() {
        let quarter = (length / 4).max(8);
        values.reserve_exact(quarter.min(most.saturating_sub(length)).max(1));
    }
    values.push(value);
}

/// Makes room for `more` values. It doesn't double the capacity: most lists are short, and long lists would waste much.
pub(crate) fn make_room<T>(list: &mut Vec<T>, more: usize) {
    if list.capacity() - list.len() < more {
        list.reserve_exact(more.max(list.len() / 8));
    }
}

/// A number as the index of a vector.
#[inline]
pub(crate) fn to_index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_slots_are_used_again() {
        let mut slab = Slab::new(200);
        let slots: Vec<_> = (0..200).map(|value| slab.insert(value)).collect();
        assert_eq!(slab.slots(), 200);
        for slot in slots.iter().step_by(2) {
            assert!(slab.remove(*slot).is_some());
            assert_eq!(slab.remove(*slot), None);
        }
        assert_eq!(slab.used(), 100);
        for value in 0..100 {
            let slot = slab.insert(1_000 + value);
            assert_eq!(slab.get(slot), Some(&(1_000 + value)));
        }
        assert_eq!((slab.used(), slab.slots()), (200, 200));
    }

    #[test]
    fn a_vector_ends_with_no_room_to_spare() {
        for most in [1, 7, 64, 1_000] {
            let mut values = Vec::new();
            (0..most).for_each(|value| push(&mut values, value, most));
            assert_eq!((values.len(), values.capacity()), (most, most));
        }
    }
}
