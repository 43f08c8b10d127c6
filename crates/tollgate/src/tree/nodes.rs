//! All nodes of a tree, under the tree's one lock.

use std::sync::Arc;

use tollgate_core::Timestamp;

use super::class::{Class, CompiledClass, TreeError};
use super::lending::{Lending, RateSum};
use super::node::{
    Branch, KeyedMember, Leaf, LeafAddress, LeafSet, MAX_DEPTH, Node, NodeAddress, NodeId,
};
use crate::key_table::due_heap::DueHeap;
use crate::key_table::slab::Slab;
use crate::key_table::slot_index::{SlotIndex, tag};

/// The nodes, and the sets of keyed leaves.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct NodeTable {
    nodes: Slab<Node>,
    sets: Slab<LeafSetEntry>,
    root: u32,
    next_generation: u64,
    strict: bool,
    /// No decision is made at an earlier time than the latest charge, so that a leaf that was removed
    /// as idle then can't restart before.
    pub(super) latest: Timestamp,
}

/// A class with a leaf for each key.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
struct LeafSetEntry {
    name: Arc<str>,
    birth: u64,
    parent: u32,
    class: CompiledClass,
    capacity: u32,
    index: SlotIndex,
    /// The keys by the time when they become idle.
    heap: DueHeap,
    used: u32,
    /// The leaf that new keys share when there is no room.
    overflow_leaf: Option<u32>,
    version: u64,
    changed_at: Timestamp,
}

impl NodeTable {
    pub(super) fn new(root: &CompiledClass, strict: bool) -> Self {
        let mut nodes = Slab::new(usize::MAX);
        let mut node = Node::new("root".into(), 0, None, root);
        node.lending = Some(Box::default());
        let root = nodes.insert(node);
        Self {
            nodes,
            sets: Slab::new(usize::MAX),
            root,
            next_generation: 0,
            strict,
            latest: Timestamp::ZERO,
        }
    }

    pub(super) fn root(&self) -> Branch {
        Branch {
            slot: self.root,
            generation: 0,
        }
    }

    pub(super) fn node(&self, slot: u32) -> &Node {
        self.nodes
            .get(slot)
            .expect("a node stays as long as others name it as their parent")
    }

    pub(super) fn node_mut(&mut self, slot: u32) -> &mut Node {
        self.nodes
            .get_mut(slot)
            .expect("a node stays as long as others name it as their parent")
    }

    /// The node in this slot, if it is still the one of that birth.
    pub(super) fn live_node(&self, slot: u32, birth: u64) -> Option<&Node> {
        self.nodes.get(slot).filter(|node| node.generation == birth)
    }

    pub(super) fn live_node_mut(&mut self, slot: u32, birth: u64) -> Option<&mut Node> {
        self.nodes
            .get_mut(slot)
            .filter(|node| node.generation == birth)
    }

    fn set(&self, leaves: LeafSet) -> Option<&LeafSetEntry> {
        self.sets
            .get(leaves.set)
            .filter(|set| set.birth == leaves.generation)
    }

    /// The slot of a leaf, which is made if it is a new key's; none if it was removed.
    pub(super) fn slot(&mut self, leaf: Leaf, now: Timestamp) -> Option<u32> {
        match leaf.0 {
            LeafAddress::Single { slot, birth } => self.live_node(slot, birth).map(|_| slot),
            LeafAddress::Keyed { leaves, hash } => self.find_or_make_member(leaves, hash, now),
        }
    }

    pub(super) fn add(
        &mut self,
        name: &str,
        parent: Branch,
        class: &Class,
        lending: Option<Box<Lending>>,
    ) -> Result<(u32, u64), TreeError> {
        let class = self.compile(name, parent, class, lending.is_some())?;
        self.next_generation += 1;
        let mut node = Node::new(name.into(), self.next_generation, Some(parent.slot), &class);
        node.lending = lending;
        let slot = self.nodes.insert(node);
        self.add_child(parent.slot, RateSum::of(&class.rate, 1), class.stride);
        Ok((slot, self.next_generation))
    }

    pub(super) fn add_set(
        &mut self,
        name: &str,
        parent: Branch,
        class: &Class,
        capacity: u32,
    ) -> Result<LeafSet, TreeError> {
        let class = self.compile(name, parent, class, false)?;
        self.next_generation += 1;
        let capacity = capacity.max(1);
        let room = usize::try_from(capacity).unwrap_or(usize::MAX);
        let set = LeafSetEntry {
            name: name.into(),
            birth: self.next_generation,
            parent: parent.slot,
            class,
            capacity,
            index: SlotIndex::new(room),
            heap: DueHeap::new(room),
            used: 0,
            overflow_leaf: None,
            version: 0,
            changed_at: Timestamp::ZERO,
        };
        self.add_child(parent.slot, set.promised_sum(), set.class.stride);
        Ok(LeafSet {
            set: self.sets.insert(set),
            generation: self.next_generation,
        })
    }

    pub(super) fn change(
        &mut self,
        now: Timestamp,
        id: NodeId,
        class: &Class,
    ) -> Result<(), TreeError> {
        match id.0 {
            NodeAddress::Node { slot, birth } => {
                let node = self.live_node(slot, birth).ok_or(TreeError::NodeRemoved)?;
                let (parent, before) = (node.parent, RateSum::of(node.rate.limit(), 1));
                let compiled = class.compile(&node.name, self.strict)?;
                if parent.is_none() && compiled.ceil.is_some() {
                    return Err(TreeError::CeilingOfRoot);
                }
                let at = now.max(self.latest);
                self.node_mut(slot).change(at, &compiled);
                if let Some(parent) = parent {
                    let after = RateSum::of(&compiled.rate, 1);
                    self.change_child(parent, before, after, compiled.stride);
                }
            }
            NodeAddress::Set(leaves) => {
                let strict = self.strict;
                let at = now.max(self.latest);
                let set = self.sets.get_mut(leaves.set);
                let set = set
                    .filter(|set| set.birth == leaves.generation)
                    .ok_or(TreeError::NodeRemoved)?;
                let (parent, before) = (set.parent, set.promised_sum());
                set.class = class.compile(&set.name, strict)?;
                set.version += 1;
                set.changed_at = at;
                let (after, stride) = (set.promised_sum(), set.class.stride);
                self.change_child(parent, before, after, stride);
            }
        }
        Ok(())
    }

    pub(super) fn class(&self, id: NodeId) -> Option<Class> {
        match id.0 {
            NodeAddress::Set(leaves) => self.set(leaves).map(|set| set.class.class),
            NodeAddress::Node { slot, birth } => self.live_node(slot, birth).map(|node| node.class),
        }
    }

    pub(super) fn remove(&mut self, id: NodeId) -> Result<(), TreeError> {
        match id.0 {
            NodeAddress::Node { slot, birth } => {
                let node = self.live_node(slot, birth).ok_or(TreeError::NodeRemoved)?;
                let parent = node.parent.ok_or(TreeError::IsRoot)?;
                if node.lending.as_ref().is_some_and(|own| own.children > 0) {
                    return Err(TreeError::HasChildren {
                        name: node.name.to_string(),
                    });
                }
                let promised = RateSum::of(node.rate.limit(), 1);
                self.nodes.remove(slot);
                self.remove_child(parent, promised);
            }
            NodeAddress::Set(leaves) => {
                self.set(leaves).ok_or(TreeError::NodeRemoved)?;
                let Some(mut set) = self.sets.remove(leaves.set) else {
                    return Err(TreeError::NodeRemoved);
                };
                while let Some((_, slot)) = set.heap.first() {
                    let place = self.node(slot).member.map_or(0, |member| member.place);
                    let nodes = &mut self.nodes;
                    set.heap
                        .remove(place, |slot, place| set_heap_place(nodes, slot, place));
                    self.nodes.remove(slot);
                }
                if let Some(shared) = set.overflow_leaf {
                    self.nodes.remove(shared);
                }
                self.remove_child(set.parent, set.promised_sum());
            }
        }
        Ok(())
    }

    /// The names from the root down; none if it was removed.
    pub(super) fn path(&self, id: NodeId) -> Option<String> {
        let (mut names, mut next) = match id.0 {
            NodeAddress::Set(leaves) => {
                let set = self.set(leaves)?;
                (vec![&*set.name], Some(set.parent))
            }
            NodeAddress::Node { slot, birth } => {
                self.live_node(slot, birth)?;
                (Vec::new(), Some(slot))
            }
        };
        while let Some(node) = next.map(|slot| self.node(slot)) {
            names.push(&node.name);
            next = node.parent;
        }
        names.reverse();
        Some(names.join("/"))
    }

    /// The number of keys of the set with a leaf, including idle ones.
    pub(super) fn keys(&self, leaves: LeafSet) -> u32 {
        self.set(leaves).map_or(0, |set| set.used)
    }

    /// Updates the position of a key's leaf in the heap of idle times.
    pub(super) fn update_idle_time(&mut self, slot: u32) {
        let node = self.node(slot);
        let Some(member) = node.member else {
            return;
        };
        let due = node.idle_at();
        let (nodes, sets) = (&mut self.nodes, &mut self.sets);
        if let Some(set) = sets.get_mut(member.leaves.set)
            && set.overflow_leaf != Some(slot)
            && set.heap.due(member.place) != due
        {
            set.heap.set(member.place, due, |slot, place| {
                set_heap_place(nodes, slot, place)
            });
        }
    }

    /// A copy without demand.
    #[cfg(test)]
    pub(super) fn without_wants(&self) -> Self {
        let mut nodes = self.clone();
        for slot in 0..nodes.nodes.slots() {
            if let Some(node) = nodes.nodes.get_mut(slot)
                && let Some(lending) = &mut node.lending
            {
                lending.forget_wants();
            }
        }
        nodes
    }

    fn compile(
        &self,
        name: &str,
        parent: Branch,
        class: &Class,
        lends: bool,
    ) -> Result<CompiledClass, TreeError> {
        self.live_node(parent.slot, parent.generation)
            .ok_or(TreeError::NodeRemoved)?;
        let mut depth = if lends { 3 } else { 2 };
        let mut above = self.node(parent.slot).parent;
        while let Some(slot) = above {
            depth += 1;
            above = self.node(slot).parent;
        }
        // A branch on the last level could never have a leaf.
        if depth > MAX_DEPTH {
            return Err(TreeError::TooDeep { name: name.into() });
        }
        class.compile(name, self.strict)
    }

    /// A branch guarantees its rate to one more child.
    fn add_child(&mut self, branch: u32, promised: RateSum, stride: u64) {
        if let Some(lending) = &mut self.node_mut(branch).lending {
            lending.children += 1;
        }
        self.change_child(branch, RateSum::default(), promised, stride);
    }

    /// A child of a branch has changed. The least stride stays when a child leaves or becomes lighter:
    /// that only makes the order of borrowers coarser.
    fn change_child(&mut self, branch: u32, before: RateSum, after: RateSum, stride: u64) {
        if let Some(lending) = &mut self.node_mut(branch).lending {
            lending.promised.change(before, after);
            lending.smallest_stride = lending.smallest_stride.min(stride);
        }
    }

    /// A child was removed.
    fn remove_child(&mut self, branch: u32, promised: RateSum) {
        if let Some(lending) = &mut self.node_mut(branch).lending {
            lending.promised.change(promised, RateSum::default());
            lending.children -= 1;
        }
    }

    /// The slot of a key's leaf: its own, a new one, an idle one, or the shared one.
    fn find_or_make_member(&mut self, leaves: LeafSet, hash: u64, now: Timestamp) -> Option<u32> {
        let set = self.set(leaves)?;
        let is = |slot| {
            self.nodes
                .get(slot)
                .is_some_and(|node| node.member.is_some_and(|member| member.hash == hash))
        };
        let slot = match set.index.find(tag(hash), is) {
            Some(slot) => slot,
            None => self.make_member(leaves, hash, now)?,
        };
        let set = self.sets.get(leaves.set)?;
        let (version, changed_at, class) = (set.version, set.changed_at, set.class);
        let node = self.nodes.get_mut(slot)?;
        if let Some(member) = &mut node.member
            && member.version != version
        {
            member.version = version;
            node.change(changed_at, &class);
            self.update_idle_time(slot);
        }
        Some(slot)
    }

    fn make_member(&mut self, leaves: LeafSet, hash: u64, now: Timestamp) -> Option<u32> {
        let (nodes, set) = (&mut self.nodes, self.sets.get_mut(leaves.set)?);
        let mut node = Node::new(
            Arc::clone(&set.name),
            self.next_generation + 1,
            Some(set.parent),
            &set.class,
        );
        node.member = Some(KeyedMember {
            leaves,
            hash,
            place: 0,
            version: set.version,
        });
        if set.used >= set.capacity {
            // An idle leaf is like an unused one; the longest idle is on top.
            let idle = set.heap.first().filter(|(due, _)| *due <= now);
            let Some((due, slot)) = idle else {
                if set.overflow_leaf.is_none() {
                    self.next_generation += 1;
                    set.overflow_leaf = Some(nodes.insert(node));
                }
                return set.overflow_leaf;
            };
            let member = nodes.get(slot).and_then(|node| node.member)?;
            set.heap.remove(member.place, |slot, place| {
                set_heap_place(nodes, slot, place)
            });
            set.index.remove(tag(member.hash), slot);
            nodes.remove(slot);
            self.latest = self.latest.max(due);
            set.used -= 1;
        }
        self.next_generation += 1;
        set.used += 1;
        let slot = nodes.insert(node);
        set.index.insert(tag(hash), slot);
        set.heap.push(Timestamp::ZERO, slot, |slot, place| {
            set_heap_place(nodes, slot, place)
        });
        Some(slot)
    }
}

impl LeafSetEntry {
    /// The guarantees of all its keys.
    fn promised_sum(&self) -> RateSum {
        RateSum::of(&self.class.rate, self.capacity)
    }
}

fn set_heap_place(nodes: &mut Slab<Node>, slot: u32, place: u32) {
    if let Some(node) = nodes.get_mut(slot)
        && let Some(member) = &mut node.member
    {
        member.place = place;
    }
}
