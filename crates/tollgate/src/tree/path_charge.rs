//! What is needed to give a charge back: how each class on the way stood before.

use tollgate_core::{Booking, Timestamp};

use super::node::MAX_DEPTH;
use super::nodes::NodeTable;

/// A charge, class by class, in place: nothing is allocated for it.
#[derive(Clone, Debug)]
pub(super) struct PathCharge {
    classes: [Option<ClassCharge>; MAX_DEPTH],
    /// Whose virtual time moved, from when to when.
    tags: [Option<(u128, u128)>; MAX_DEPTH],
    len: usize,
    level: usize,
    cost: u64,
}

/// What was taken from one class.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClassCharge {
    pub(super) slot: u32,
    pub(super) birth: u64,
    pub(super) rate: Option<Booking>,
    pub(super) ceil: Option<Booking>,
    /// Whether it was claimed from what the class promises to those below it.
    pub(super) claimed: bool,
}

impl PathCharge {
    /// Nothing yet.
    pub(super) const fn new(cost: u64) -> Self {
        Self {
            classes: [None; MAX_DEPTH],
            tags: [None; MAX_DEPTH],
            len: 0,
            level: 0,
            cost,
        }
    }

    /// Notes the next class on the way.
    pub(super) fn push_class(&mut self, step: ClassCharge) {
        if let Some(place) = self.classes.get_mut(self.len) {
            *place = Some(step);
            self.len += 1;
        }
    }

    /// Notes that the virtual time of a class moved, at this priority.
    pub(super) fn push_tag(&mut self, place: usize, level: usize, tags: (u128, u128)) {
        self.tags[place] = Some(tags);
        self.level = level;
    }
}

impl NodeTable {
    /// Gives back what nobody else relies on.
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
        // Only a leaf is ever forgotten when it is idle.
        if let Some(leaf) = &taken.classes[0]
            && self.live_node(leaf.slot, leaf.birth).is_some()
        {
            self.update_idle_time(leaf.slot);
        }
    }
}
