//! All nodes of a tree, under the one lock that the tree holds.

use std::sync::Arc;

use tollgate_core::Timestamp;

use super::class::{Class, Compiled, TreeError};
use super::lending::{Lending, RateSum};
use super::node::{Branch, Id, KeyedMember, Leaf, LeafAddress, Leaves, MAX_DEPTH, Node, NodeId};
use crate::table::due_heap::DueHeap;
use crate::table::slab::Slab;
use crate::table::slot_index::{SlotIndex, tag};

/// The nodes, and the sets of keyed leaves.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct NodeTable {
    nodes: Slab<Node>,
    sets: Slab<Set>,
    root: u32,
    births: u64,
    strict: bool,
    /// No decision is made before the latest charge, so that a leaf that was idle then and was
    /// forgotten can't start anew before.
    pub(super) latest: Timestamp,
}

/// A class with a leaf for each key.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
struct Set {
    name: Arc<str>,
    birth: u64,
    parent: u32,
    class: Compiled,
    capacity: u32,
    index: SlotIndex,
    /// The keys by when they are idle.
    heap: DueHeap,
    used: u32,
    /// The leaf that new keys share when there is no room.
    shared: Option<u32>,
    version: u64,
    changed_at: Timestamp,
}

impl NodeTable {
    pub(super) fn new(root: &Compiled, strict: bool) -> Self {
        let mut nodes = Slab::new(usize::MAX);
        let mut node = Node::new("root".into(), 0, None, root);
        node.lending = Some(Box::default());
        let root = nodes.insert(node);
        Self {
            nodes,
            sets: Slab::new(usize::MAX),
            root,
            births: 0,
            strict,
            latest: Timestamp::ZERO,
        }
    }

    pub(super) fn root(&self) -> Branch {
        Branch {
            slot: self.root,
            birth: 0,
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

    /// The node, if it is still the one that was born then.
    pub(super) fn live(&self, slot: u32, birth: u64) -> Option<&Node> {
        self.nodes.get(slot).filter(|node| node.birth == birth)
    }

    pub(super) fn live_node_mut(&mut self, slot: u32, birth: u64) -> Option<&mut Node> {
        self.nodes.get_mut(slot).filter(|node| node.birth == birth)
    }

    fn set(&self, leaves: Leaves) -> Option<&Set> {
        self.sets
            .get(leaves.set)
            .filter(|set| set.birth == leaves.birth)
    }

    /// The slot of a leaf, made if it is a key's and new; none if it was removed.
    pub(super) fn slot(&mut self, leaf: Leaf, now: Timestamp) -> Option<u32> {
        match leaf.0 {
            LeafAddress::Single { slot, birth } => self.live(slot, birth).map(|_| slot),
            LeafAddress::Keyed { leaves, hash } => self.member(leaves, hash, now),
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
        self.births += 1;
        let mut node = Node::new(name.into(), self.births, Some(parent.slot), &class);
        node.lending = lending;
        let slot = self.nodes.insert(node);
        self.adopt(parent.slot, RateSum::of(&class.rate, 1), class.stride);
        Ok((slot, self.births))
    }

    pub(super) fn add_set(
        &mut self,
        name: &str,
        parent: Branch,
        class: &Class,
        capacity: u32,
    ) -> Result<Leaves, TreeError> {
        let class = self.compile(name, parent, class, false)?;
        self.births += 1;
        let capacity = capacity.max(1);
        let room = usize::try_from(capacity).unwrap_or(usize::MAX);
        let set = Set {
            name: name.into(),
            birth: self.births,
            parent: parent.slot,
            class,
            capacity,
            index: SlotIndex::new(room),
            heap: DueHeap::new(room),
            used: 0,
            shared: None,
            version: 0,
            changed_at: Timestamp::ZERO,
        };
        self.adopt(parent.slot, set.promised(), set.class.stride);
        Ok(Leaves {
            set: self.sets.insert(set),
            birth: self.births,
        })
    }

    pub(super) fn change(
        &mut self,
        now: Timestamp,
        id: NodeId,
        class: &Class,
    ) -> Result<(), TreeError> {
        match id.0 {
            Id::Node { slot, birth } => {
                let node = self.live(slot, birth).ok_or(TreeError::Gone)?;
                let (parent, before) = (node.parent, RateSum::of(node.rate.limit(), 1));
                let compiled = class.compile(&node.name, self.strict)?;
                if parent.is_none() && compiled.ceil.is_some() {
                    return Err(TreeError::CeilOfRoot);
                }
                let at = now.max(self.latest);
                self.node_mut(slot).change(at, &compiled);
                if let Some(parent) = parent {
                    let after = RateSum::of(&compiled.rate, 1);
                    self.readopt(parent, before, after, compiled.stride);
                }
            }
            Id::Set(leaves) => {
                let strict = self.strict;
                let at = now.max(self.latest);
                let set = self.sets.get_mut(leaves.set);
                let set = set
                    .filter(|set| set.birth == leaves.birth)
                    .ok_or(TreeError::Gone)?;
                let (parent, before) = (set.parent, set.promised());
                set.class = class.compile(&set.name, strict)?;
                set.version += 1;
                set.changed_at = at;
                let (after, stride) = (set.promised(), set.class.stride);
                self.readopt(parent, before, after, stride);
            }
        }
        Ok(())
    }

    pub(super) fn class(&self, id: NodeId) -> Option<Class> {
        match id.0 {
            Id::Set(leaves) => self.set(leaves).map(|set| set.class.class),
            Id::Node { slot, birth } => self.live(slot, birth).map(|node| node.class),
        }
    }

    pub(super) fn remove(&mut self, id: NodeId) -> Result<(), TreeError> {
        match id.0 {
            Id::Node { slot, birth } => {
                let node = self.live(slot, birth).ok_or(TreeError::Gone)?;
                let parent = node.parent.ok_or(TreeError::IsRoot)?;
                if node.lending.as_ref().is_some_and(|own| own.children > 0) {
                    return Err(TreeError::HasChildren {
                        name: node.name.to_string(),
                    });
                }
                let promised = RateSum::of(node.rate.limit(), 1);
                self.nodes.remove(slot);
                self.disown(parent, promised);
            }
            Id::Set(leaves) => {
                self.set(leaves).ok_or(TreeError::Gone)?;
                let Some(mut set) = self.sets.remove(leaves.set) else {
                    return Err(TreeError::Gone);
                };
                while let Some((_, slot)) = set.heap.first() {
                    let place = self.node(slot).member.map_or(0, |member| member.place);
                    let nodes = &mut self.nodes;
                    set.heap
                        .remove(place, |slot, place| note(nodes, slot, place));
                    self.nodes.remove(slot);
                }
                if let Some(shared) = set.shared {
                    self.nodes.remove(shared);
                }
                self.disown(set.parent, set.promised());
            }
        }
        Ok(())
    }

    /// The names from the root down; none if it was removed.
    pub(super) fn names(&self, id: NodeId) -> Option<String> {
        let (mut names, mut next) = match id.0 {
            Id::Set(leaves) => {
                let set = self.set(leaves)?;
                (vec![&*set.name], Some(set.parent))
            }
            Id::Node { slot, birth } => {
                self.live(slot, birth)?;
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

    /// How many keys of the set have a leaf, and how many of those are idle is not looked at.
    pub(super) fn keys(&self, leaves: Leaves) -> u32 {
        self.set(leaves).map_or(0, |set| set.used)
    }

    /// Puts a key's leaf where it belongs among those that are idle next.
    pub(super) fn settle(&mut self, slot: u32) {
        let node = self.node(slot);
        let Some(member) = node.member else {
            return;
        };
        let due = node.idle_at();
        let (nodes, sets) = (&mut self.nodes, &mut self.sets);
        if let Some(set) = sets.get_mut(member.leaves.set)
            && set.shared != Some(slot)
            && set.heap.due(member.place) != due
        {
            set.heap
                .set(member.place, due, |slot, place| note(nodes, slot, place));
        }
    }

    /// The same with nobody wanting.
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
    ) -> Result<Compiled, TreeError> {
        self.live(parent.slot, parent.birth)
            .ok_or(TreeError::Gone)?;
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

    /// A branch promises its rate to one child more.
    fn adopt(&mut self, branch: u32, promised: RateSum, stride: u64) {
        if let Some(lending) = &mut self.node_mut(branch).lending {
            lending.children += 1;
        }
        self.readopt(branch, RateSum::default(), promised, stride);
    }

    /// A child of a branch has changed. One that is gone or lighter now makes turns coarser, no more.
    fn readopt(&mut self, branch: u32, before: RateSum, after: RateSum, stride: u64) {
        if let Some(lending) = &mut self.node_mut(branch).lending {
            lending.promised.change(before, after);
            lending.heaviest = lending.heaviest.min(stride);
        }
    }

    /// And one is gone.
    fn disown(&mut self, branch: u32, promised: RateSum) {
        if let Some(lending) = &mut self.node_mut(branch).lending {
            lending.promised.change(promised, RateSum::default());
            lending.children -= 1;
        }
    }

    /// The slot of a key's leaf: the one it has, a new one, one that is idle, or the shared one.
    fn member(&mut self, leaves: Leaves, hash: u64, now: Timestamp) -> Option<u32> {
        let set = self.set(leaves)?;
        let is = |slot| {
            self.nodes
                .get(slot)
                .is_some_and(|node| node.member.is_some_and(|member| member.hash == hash))
        };
        let slot = match set.index.find(tag(hash), is) {
            Some(slot) => slot,
            None => self.make(leaves, hash, now)?,
        };
        let set = self.sets.get(leaves.set)?;
        let (version, changed_at, class) = (set.version, set.changed_at, set.class);
        let node = self.nodes.get_mut(slot)?;
        if let Some(member) = &mut node.member
            && member.version != version
        {
            member.version = version;
            node.change(changed_at, &class);
            self.settle(slot);
        }
        Some(slot)
    }

    fn make(&mut self, leaves: Leaves, hash: u64, now: Timestamp) -> Option<u32> {
        let (nodes, set) = (&mut self.nodes, self.sets.get_mut(leaves.set)?);
        let mut node = Node::new(
            Arc::clone(&set.name),
            self.births + 1,
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
            // One that is idle is as if never seen; the longest idle one is on top.
            let idle = set.heap.first().filter(|(due, _)| *due <= now);
            let Some((due, slot)) = idle else {
                if set.shared.is_none() {
                    self.births += 1;
                    set.shared = Some(nodes.insert(node));
                }
                return set.shared;
            };
            let member = nodes.get(slot).and_then(|node| node.member)?;
            set.heap
                .remove(member.place, |slot, place| note(nodes, slot, place));
            set.index.remove(tag(member.hash), slot);
            nodes.remove(slot);
            self.latest = self.latest.max(due);
            set.used -= 1;
        }
        self.births += 1;
        set.used += 1;
        let slot = nodes.insert(node);
        set.index.insert(tag(hash), slot);
        set.heap.push(Timestamp::ZERO, slot, |slot, place| {
            note(nodes, slot, place)
        });
        Some(slot)
    }
}

impl Set {
    /// What is promised to all its keys.
    fn promised(&self) -> RateSum {
        RateSum::of(&self.class.rate, self.capacity)
    }
}

fn note(nodes: &mut Slab<Node>, slot: u32, place: u32) {
    if let Some(node) = nodes.get_mut(slot)
        && let Some(member) = &mut node.member
    {
        member.place = place;
    }
}
