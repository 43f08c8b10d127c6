//! One request on its path from a leaf to the root: which class covers it, lends, or denies.
//!
//! Each class on the path either *covers* the request from its own rate, or passes it on to its parent
//! as a loan, which only a class with a ceil may do. To the parent, what a child covers is a *claim*,
//! which passes as long as the parent has the tokens. A *loan* also has to leave in the parent's bucket
//! what its children could claim (at most three quarters of the bucket) and its floor, see `lending`.
//! So a claim finds its tokens whatever the borrowers do. The root has no parent: it covers, or the
//! request is denied.

use tollgate_core::Timestamp;

use super::lending::Borrower;
use super::node::{MAX_DEPTH, Node, PRIORITIES};
use super::nodes::NodeTable;
use super::path_charge::{ClassCharge, PathCharge};

/// The number of quanta in a lender's burst.
const QUANTA_PER_BURST: u64 = 64;

/// The slots from a leaf to the root, and the priority of the leaf's loans.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotPath {
    pub(super) slots: [u32; MAX_DEPTH],
    pub(super) len: usize,
    priority: usize,
}

/// The same path with the classes, each looked up once and read several times.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodePath<'a> {
    nodes: [&'a Node; MAX_DEPTH],
    pub(super) path: SlotPath,
}

/// The evaluation of each class on the path, the leaf first.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathEvaluation {
    /// The classes that cover the request, and those from which a child borrows.
    pub(super) charged_to_rate: PlaceSet,
    pub(super) borrows_from: PlaceSet,
    /// What a loan must leave for borrowers that have precedence.
    pub(super) floors: [u64; MAX_DEPTH],
    pub(super) denied_by: Option<(usize, DenyCause)>,
}

/// A set of positions on the path, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PlaceSet(u8);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DenyCause {
    /// The class is at its ceil.
    Ceil,
    /// The class may not borrow, and has too few tokens or must leave them to others.
    Rate,
}

impl PlaceSet {
    fn add(&mut self, place: usize) {
        self.0 |= 1 << place;
    }

    pub(super) const fn has(self, place: usize) -> bool {
        self.0 >> place & 1 == 1
    }

    /// The lowest position.
    pub(super) fn first(self) -> Option<usize> {
        (0..MAX_DEPTH).find(|place| self.has(*place))
    }

    pub(super) const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl PathEvaluation {
    pub(super) fn is_allowed(&self) -> bool {
        self.denied_by.is_none()
    }
}

impl SlotPath {
    pub(super) fn slots(&self) -> &[u32] {
        &self.slots[..self.len]
    }
}

impl<'a> NodePath<'a> {
    pub(super) fn nodes(&self) -> &[&'a Node] {
        &self.nodes[..self.path.len]
    }

    /// Evaluates a request; nothing is written.
    pub(super) fn evaluate(&self, now: Timestamp, cost: u64) -> PathEvaluation {
        let mut look = PathEvaluation {
            charged_to_rate: PlaceSet::default(),
            borrows_from: PlaceSet::default(),
            floors: [0; MAX_DEPTH],
            denied_by: None,
        };
        // Nothing is below the leaf, so a request to it is its own claim.
        let (mut claim, mut turns) = (true, 0);
        for (place, node) in self.nodes().iter().enumerate() {
            let (mut need, mut ceil_need) = (cost, cost);
            if claim {
                turns = 0;
            } else {
                look.borrows_from.add(place);
                let keep = self.lending_reserve(place, now, &mut turns);
                look.floors[place] = keep.floor;
                need = keep.needed_tokens(node.burst(), cost);
                ceil_need = keep.needed_tokens(node.max_burst(), cost);
            }
            if let Some(ceil) = &node.ceil
                && !ceil.limit().has_tokens(ceil.state(), now, ceil_need)
            {
                look.denied_by = Some((place, DenyCause::Ceil));
                return look;
            }
            claim = (node.rate.limit()).has_tokens(node.rate.state(), now, need);
            if claim {
                look.charged_to_rate.add(place);
            } else if node.ceil.is_none() {
                look.denied_by = Some((place, DenyCause::Rate));
                return look;
            }
        }
        look
    }

    /// What a loan from the class at `place` to the one below it must leave.
    pub(super) fn lending_reserve(
        &self,
        place: usize,
        now: Timestamp,
        turns: &mut u64,
    ) -> LendingReserve {
        let who = self.borrower(place);
        let Some(lending) = &self.nodes[place].lending else {
            return LendingReserve::default();
        };
        *turns = turns.saturating_add(lending.turn_reserve(&who, now));
        LendingReserve {
            // The same for every borrower; otherwise the one with the least to leave would take
            // everything.
            promised: lending.promised.upper_bound(now),
            floor: turns.saturating_add(lending.higher_priority_reserve(&who, now)),
        }
    }

    /// The borrower that requests a loan from the class at `place`.
    pub(super) fn borrower(&self, place: usize) -> Borrower {
        let path = &self.path;
        Borrower::new(path, place, self.nodes[place - 1], self.nodes[place])
    }
}

impl Borrower {
    fn new(path: &SlotPath, place: usize, child: &Node, lender: &Node) -> Self {
        Self {
            slot: path.slots[place - 1],
            priority: path.priority,
            tag: child.tag(path.priority),
            stride: child.stride,
            quantum: (lender.burst() / QUANTA_PER_BURST).clamp(1, 1 << 32),
        }
    }
}

impl NodeTable {
    /// The path from a leaf to the root.
    pub(super) fn path_of(&self, leaf: u32) -> NodePath<'_> {
        let mut node = self.node(leaf);
        let mut nodes = [node; MAX_DEPTH];
        let mut slots = [leaf; MAX_DEPTH];
        let (mut len, mut level) = (1, node.priority);
        while let Some(slot) = node.parent
            && len < MAX_DEPTH
        {
            node = self.node(slot);
            (slots[len], nodes[len]) = (slot, node);
            len += 1;
            level = level.or(node.priority);
        }
        let level = usize::from(level.unwrap_or(0)).min(PRIORITIES - 1);
        let path = SlotPath {
            slots,
            len,
            priority: level,
        };
        NodePath { nodes, path }
    }

    /// Charges what `look` evaluated at the same time for the same cost.
    pub(super) fn charge(
        &mut self,
        path: &SlotPath,
        look: &PathEvaluation,
        now: Timestamp,
        cost: u64,
        mut taken: Option<&mut PathCharge>,
    ) {
        self.latest = self.latest.max(now);
        for (place, slot) in path.slots().iter().enumerate() {
            let moved = if look.borrows_from.has(place) {
                self.record_loan(path, place, now, cost)
            } else {
                None
            };
            let node = self.node_mut(*slot);
            let claimed = match &mut node.lending {
                Some(lending) if !look.borrows_from.has(place) => {
                    lending.promised.charge(now, cost);
                    true
                }
                _ => false,
            };
            let rate = Some(&mut node.rate).filter(|_| look.charged_to_rate.has(place));
            // `look` found that both pass.
            let Some(taken) = taken.as_deref_mut() else {
                for book in rate.into_iter().chain(&mut node.ceil) {
                    book.charge(now, cost);
                }
                continue;
            };
            taken.push_class(ClassCharge {
                slot: *slot,
                birth: node.generation,
                rate: rate.map(|rate| rate.charge(now, cost)),
                ceil: node.ceil.as_mut().map(|ceil| ceil.charge(now, cost)),
                claimed,
            });
            if let Some(moved) = moved {
                taken.push_tag(place - 1, path.priority, moved);
            }
        }
        self.update_idle_time(path.slots[0]);
    }

    /// Records the demand of classes that wanted to borrow and couldn't for lack of tokens to lend.
    pub(super) fn note_demand(&mut self, path: &SlotPath, look: &PathEvaluation, now: Timestamp) {
        let for_want = match look.denied_by {
            Some((_, DenyCause::Rate)) => true,
            // Classes below the ceil compete for what remains under it.
            Some((place, DenyCause::Ceil)) => look.borrows_from.has(place),
            None => false,
        };
        if !for_want || look.borrows_from.is_empty() {
            return;
        }
        for place in (1..path.len).filter(|place| look.borrows_from.has(*place)) {
            let who = self.borrower(path, place);
            if let Some(lending) = &mut self.node_mut(path.slots[place]).lending {
                lending.note_demand(&who, now);
            }
        }
    }

    fn borrower(&self, path: &SlotPath, place: usize) -> Borrower {
        let [child, lender] = [place - 1, place].map(|place| self.node(path.slots[place]));
        Borrower::new(path, place, child, lender)
    }

    /// Lends to the class below `place`; returns its virtual time before and after.
    fn record_loan(
        &mut self,
        path: &SlotPath,
        place: usize,
        now: Timestamp,
        cost: u64,
    ) -> Option<(u128, u128)> {
        let who = self.borrower(path, place);
        let lending = self.node_mut(path.slots[place]).lending.as_mut()?;
        lending.note_demand(&who, now);
        let tag = lending.advance_tag(&who, cost);
        *self.node_mut(who.slot).tag_mut(path.priority) = tag;
        Some((who.tag, tag))
    }
}

/// What a loan must leave in a lender's bucket.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LendingReserve {
    /// For what its children could claim, at most three quarters of the bucket.
    pub(super) promised: u64,
    /// For borrowers that have precedence.
    pub(super) floor: u64,
}

impl LendingReserve {
    /// How many tokens a loan of this cost needs, in a bucket of this burst.
    pub(super) fn needed_tokens(&self, burst: u64, cost: u64) -> u64 {
        let most = burst.saturating_sub(burst.div_ceil(4).max(cost));
        let reserve = self.promised.min(most);
        // A full bucket lends to any class: what it doesn't lend is lost.
        let need = cost.saturating_add(reserve).saturating_add(self.floor);
        need.min(burst).max(cost)
    }

    /// The largest cost that needs at most the remaining tokens.
    pub(super) fn largest_loan(&self, burst: u64, left: u64) -> u64 {
        if left >= burst {
            return burst;
        }
        let reserve = self.promised.min(burst - burst.div_ceil(4));
        left.saturating_sub(reserve).saturating_sub(self.floor)
    }
}
