//! Numbered slots that stay where they are, in chunks, so that growing never copies a shard.

/// Slots in a chunk.
const CHUNK: usize = 64;

/// Values under small numbers that are used again once they are free.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    chunks: Vec<Vec<Slot<T>>>,
    /// The first of a chain of free slots.
    free: Option<u32>,
    used: usize,
}

#[derive(Debug)]
enum Slot<T> {
    Free { next: Option<u32> },
    Used(T),
}

impl<T> Slab<T> {
    /// An empty slab that is expected to come to this many slots.
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            chunks: Vec::with_capacity(slots.div_ceil(CHUNK)),
            free: None,
            used: 0,
        }
    }

    /// How many slots hold a value.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// How many slots there are, free or not: their numbers lie below.
    pub(crate) fn slots(&self) -> u32 {
        let last = self.chunks.last().map_or(0, Vec::len);
        let full = self.chunks.len().saturating_sub(1) * CHUNK;
        u32::try_from(full + last).unwrap_or(u32::MAX)
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        let (chunk, offset) = split(slot);
        match self.chunks.get(chunk)?.get(offset)? {
            Slot::Used(value) => Some(value),
            Slot::Free { .. } => None,
        }
    }

    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        let (chunk, offset) = split(slot);
        match self.chunks.get_mut(chunk)?.get_mut(offset)? {
            Slot::Used(value) => Some(value),
            Slot::Free { .. } => None,
        }
    }

    /// Puts a value into a free slot, or a new one.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        self.used += 1;
        if let Some(slot) = self.free {
            let (chunk, offset) = split(slot);
            let place = &mut self.chunks[chunk][offset];
            if let Slot::Free { next } = *place {
                self.free = next;
            }
            *place = Slot::Used(value);
            return slot;
        }
        let slot = self.slots();
        let (chunk, _) = split(slot);
        if chunk == self.chunks.len() {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        self.chunks[chunk].push(Slot::Used(value));
        slot
    }

    /// Frees a slot; what was in it.
    pub(crate) fn remove(&mut self, slot: u32) -> Option<T> {
        let (chunk, offset) = split(slot);
        let place = self.chunks.get_mut(chunk)?.get_mut(offset)?;
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

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten().filter_map(|slot| match slot {
            Slot::Used(value) => Some(value),
            Slot::Free { .. } => None,
        })
    }
}

fn split(slot: u32) -> (usize, usize) {
    let slot = usize::try_from(slot).unwrap_or(usize::MAX);
    (slot / CHUNK, slot % CHUNK)
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
        assert_eq!((slab.used(), slab.iter().count()), (100, 100));
        for value in 0..100 {
            let slot = slab.insert(1_000 + value);
            assert_eq!(slab.get(slot), Some(&(1_000 + value)));
        }
        assert_eq!((slab.used(), slab.slots()), (200, 200));
    }
}
