//! Slots in the order in which their keys become idle.

use tollgate_core::Timestamp;

/// Children of a node: four of them fill a cache line.
const WIDTH: usize = 4;

/// A heap with the key that is idle next at its top. Each slot remembers its place, so that a charge
/// moves it at once: what is at the top is always the truth, and nothing has to be searched.
#[derive(Debug)]
pub(super) struct Heap {
    nodes: Vec<Node>,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    due: Timestamp,
    slot: u32,
}

impl Heap {
    /// Room for this many slots before anything has to be copied.
    pub(super) fn with_capacity(slots: usize) -> Self {
        Self {
            nodes: Vec::with_capacity(slots),
        }
    }

    /// The slot that is due next, and when.
    pub(super) fn first(&self) -> Option<(Timestamp, u32)> {
        self.nodes.first().map(|node| (node.due, node.slot))
    }

    /// When the slot at this place is due.
    pub(super) fn due(&self, place: u32) -> Timestamp {
        self.nodes[at(place)].due
    }

    /// Adds a slot; `moved` learns of every slot's new place, here and below.
    pub(super) fn push(&mut self, due: Timestamp, slot: u32, moved: impl FnMut(u32, u32)) {
        self.nodes.push(Node { due, slot });
        self.settle(self.nodes.len() - 1, moved);
    }

    /// Changes when the slot at this place is due.
    pub(super) fn set(&mut self, place: u32, due: Timestamp, moved: impl FnMut(u32, u32)) {
        self.nodes[at(place)].due = due;
        self.settle(at(place), moved);
    }

    /// Takes the slot at this place out.
    pub(super) fn remove(&mut self, place: u32, moved: impl FnMut(u32, u32)) {
        self.nodes.swap_remove(at(place));
        if at(place) < self.nodes.len() {
            self.settle(at(place), moved);
        }
    }

    /// Moves one node to where it belongs.
    fn settle(&mut self, mut place: usize, mut moved: impl FnMut(u32, u32)) {
        let node = self.nodes[place];
        while place > 0 && node.due < self.nodes[(place - 1) / WIDTH].due {
            let parent = (place - 1) / WIDTH;
            self.put(place, self.nodes[parent], &mut moved);
            place = parent;
        }
        loop {
            let first = place * WIDTH + 1;
            let children = first..(first + WIDTH).min(self.nodes.len());
            let next = children.min_by_key(|child| self.nodes[*child].due);
            let Some(next) = next.filter(|next| self.nodes[*next].due < node.due) else {
                break;
            };
            self.put(place, self.nodes[next], &mut moved);
            place = next;
        }
        self.put(place, node, &mut moved);
    }

    fn put(&mut self, place: usize, node: Node, moved: &mut impl FnMut(u32, u32)) {
        self.nodes[place] = node;
        moved(node.slot, u32::try_from(place).unwrap_or(u32::MAX));
    }
}

fn at(place: u32) -> usize {
    usize::try_from(place).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_testkit::traffic::Random;

    #[test]
    fn the_top_is_always_the_least() {
        let mut random = Random::new(5);
        let mut heap = Heap::with_capacity(0);
        let mut places = [None; 50];
        let mut dues = [Timestamp::ZERO; 50];
        for _ in 0..20_000 {
            let slot = u32::try_from(random.below(50)).unwrap();
            let index = at(slot);
            let due = Timestamp::from_nanos(random.below(1_000));
            let place = places[index];
            let mut moved = |slot, place| places[at(slot)] = Some(place);
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
