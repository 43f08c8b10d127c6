//! What the refund of a charge needs: the state of each class on the path before it.

use tollgate_core::{Booking, Timestamp};

use super::node::MAX_DEPTH;
use super::nodes::NodeTable;

/// A charge, class by class, stored inline: nothing is allocated for it.
#[derive(Clone, Debug)]
pub(super) struct PathCharge {
    classes: [Option<ClassCharge>; MAX_DEPTH],
    /// Which virtual times moved, from when to when.
    tags: [Option<(u128, u128)>; MAX_DEPTH],
    len: usize,
    level: usize,
    cost: u64,
}

/// What was charged to one class.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClassCharge {
    pub(super) slot: u32,
    pub(super) birth: u64,
    pub(super) rate: Option<Booking>,
    pub(super) ceil: Option<Booking>,
    /// Whether it was claimed from the parent's guarantees to its children.
    pub(super) claimed: bool,
}

impl PathCharge {
    /// An empty charge.
    pub(super) const fn new(cost: u64) -> Self {
        Self {
            classes: [None; MAX_DEPTH],
            tags: [None; MAX_DEPTH],
            len: 0,
            level: 0,
            cost,
        }
    }

    /// Adds the next class on the path.
    pub(super) fn push_class(&mut self, step: ClassCharge) {
        if let Some(place) = self.classes.get_mut(self.len) {
            *place = Some(step);
            self.len += 1;
        }
    }

    /// Adds that the virtual time of a class moved, at this priority.
    pub(super) fn push_tag(&mut self, place: usize, level: usize, tags: (u128, u128)) {
        self.tags[place] = Some(tags);
        self.level = level;
    }
}

impl NodeTable {
    /// Refunds the part that no later decision relies on.
    pub(super) fn refund(&mut self, now: Timestamp, taken: &PathCharge) {
        for (step, tags) in taken.classes[..taken.len].iter().zip(&taken.tags).rev() {
            let Some(step) = step else {
                continue;
            };
            let Some(node) = self.live_node_mut(step.slot, step.birth) else {
                continue;
            };
            if let Some((before, after)) = tags {
                let tag = node.tag_mut(taken.level);
                if tag == after {
                    *tag = *before;
                }
            }
            if let Some(lending) = &mut node.lending
                && step.claimed
            {
                lending.promised.refund(now, taken.cost);
            }
            if let Some(booked) = &step.rate {
                node.rate.cancel(now, booked);
            }
            if let (Some(booked), Some(ceil)) = (&step.ceil, &mut node.ceil) {
                ceil.cancel(now, booked);
            }
        }
        // Only leaves are removed when they are idle.
        if let Some(leaf) = &taken.classes[0]
            && self.live_node(leaf.slot, leaf.birth).is_some()
        {
            self.update_idle_time(leaf.slot);
        }
    }
}
