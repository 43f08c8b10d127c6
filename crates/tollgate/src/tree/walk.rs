//! One request on its way from a leaf to the root: who covers it, who lends, who refuses.
//!
//! Each class on the way either *covers* the request from its own rate, or passes it on to its parent
//! as a loan, which only a class with a ceil may do. To the parent, what a child covers is a *claim*,
//! and passes as long as the parent has the tokens. A *loan* also has to leave in the parent's bucket
//! what its children could claim (at most three quarters of the bucket) and its floor, see `share`.
//! So a claim finds its tokens whatever the borrowers do. The root has no parent: it covers, or the
//! request is refused.

use std::time::Duration;

use tollgate_core::{Algorithm, Book, Booked, Decision, Outcome, Timestamp, TokenBucket};

use super::node::{LEVELS, MAX_DEPTH, Node, NodeId};
use super::nodes::Nodes;
use super::share::Borrower;

/// The slots from a leaf to the root, and the priority that the leaf borrows with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    slots: [u32; MAX_DEPTH],
    len: usize,
    level: usize,
}

/// What each class on the way says, the leaf first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// Whether it covers the request.
    covers: [bool; MAX_DEPTH],
    /// Whether its child asked it for a loan.
    asked: [bool; MAX_DEPTH],
    /// How many tokens it has to have in order to cover the request.
    needs: [u64; MAX_DEPTH],
    refused: Option<(usize, Why)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// It is at its ceil, which would have to have this many tokens.
    Ceil(u64),
    /// It may not borrow, and has too few tokens or has to leave them to others.
    Rate,
}

/// What a charge is given back by.
#[derive(Clone, Debug, Default)]
pub(super) struct Taken {
    books: Vec<(u32, u64, Which, Booked)>,
    /// Whose virtual time moved, from when to when.
    tags: Vec<(u32, u64, usize, u128, u128)>,
    /// What was claimed of whom.
    claims: Vec<(u32, u64, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Rate,
    Ceil,
}

impl Taken {
    /// Room for the longest way, so that nothing is allocated under the lock.
    pub(super) fn with_room() -> Self {
        Self {
            books: Vec::with_capacity(2 * MAX_DEPTH),
            tags: Vec::with_capacity(MAX_DEPTH),
            claims: Vec::with_capacity(MAX_DEPTH),
        }
    }
}

impl Look {
    pub(super) fn passes(&self) -> bool {
        self.refused.is_none()
    }
}

impl Path {
    fn slots(&self) -> &[u32] {
        &self.slots[..self.len]
    }
}

impl Nodes {
    /// The way from a leaf to the root.
    pub(super) fn path(&self, leaf: u32) -> Path {
        let mut path = Path {
            slots: [leaf; MAX_DEPTH],
            len: 0,
            level: 0,
        };
        let (mut next, mut level) = (Some(leaf), None);
        while let Some(slot) = next
            && path.len < MAX_DEPTH
        {
            path.slots[path.len] = slot;
            path.len += 1;
            let node = self.node(slot);
            level = level.or(node.level);
            next = node.parent;
        }
        path.level = usize::from(level.unwrap_or(0)).min(LEVELS - 1);
        path
    }

    /// What would come of a request; nothing is written.
    pub(super) fn look(&self, path: &Path, now: Timestamp, cost: u64) -> Look {
        let mut look = Look {
            covers: [false; MAX_DEPTH],
            asked: [false; MAX_DEPTH],
            needs: [cost; MAX_DEPTH],
            refused: None,
        };
        // Nobody is below the leaf: what it is asked for is its own.
        let (mut claim, mut turns) = (true, 0);
        for (place, slot) in path.slots().iter().enumerate() {
            let node = self.node(*slot);
            let mut ceil_need = cost;
            if claim {
                turns = 0;
            } else {
                look.asked[place] = true;
                let keep = self.keep(path, place, now, &mut turns);
                look.needs[place] = keep.need(node.burst(), cost);
                ceil_need = keep.need(node.most(), cost);
            }
            if let Some(ceil) = &node.ceil
                && !has(ceil, now, ceil_need)
            {
                look.refused = Some((place, Why::Ceil(ceil_need)));
                return look;
            }
            claim = has(&node.rate, now, look.needs[place]);
            look.covers[place] = claim;
            if !claim && node.ceil.is_none() {
                look.refused = Some((place, Why::Rate));
                return look;
            }
        }
        look
    }

    /// Takes what `look` found at the same time for the same cost.
    pub(super) fn charge(
        &mut self,
        path: &Path,
        look: &Look,
        now: Timestamp,
        cost: u64,
        mut taken: Option<&mut Taken>,
    ) {
        self.latest = self.latest.max(now);
        for (place, slot) in path.slots().iter().enumerate() {
            if look.asked[place] {
                self.lend(path, place, now, cost, taken.as_deref_mut());
            } else if let Some(lending) = &mut self.node_mut(*slot).lending {
                lending.promised.claimed(now, cost);
                if let Some(taken) = taken.as_deref_mut() {
                    taken.claims.push((*slot, self.node(*slot).birth, cost));
                }
            }
            let node = self.node_mut(*slot);
            let birth = node.birth;
            let books = [
                (
                    Which::Rate,
                    Some(&mut node.rate).filter(|_| look.covers[place]),
                ),
                (Which::Ceil, node.ceil.as_mut()),
            ];
            for (which, book) in books {
                // `look` saw that they pass.
                if let Some(book) = book
                    && let Ok(booked) = book.reserve(now, cost, Duration::ZERO)
                    && let Some(taken) = taken.as_deref_mut()
                {
                    taken.books.push((*slot, birth, which, booked));
                }
            }
        }
        self.settle(path.slots[0]);
    }

    /// Notes who wanted to borrow and could not, if it was for want of tokens to lend.
    pub(super) fn note_refused(&mut self, path: &Path, look: &Look, now: Timestamp) {
        let for_want = match look.refused {
            Some((_, Why::Rate)) => true,
            // Those below compete for what is left below the ceil.
            Some((place, Why::Ceil(_))) => look.asked[place],
            None => false,
        };
        if !for_want {
            return;
        }
        for place in (1..path.len).filter(|place| look.asked[*place]) {
            let who = self.borrower(path, place);
            if let Some(lending) = &mut self.node_mut(path.slots[place]).lending {
                lending.asked(&who, now);
            }
        }
    }

    /// Gives back what nothing was built on.
    pub(super) fn give_back(&mut self, now: Timestamp, taken: &Taken) {
        for (slot, birth, level, before, after) in taken.tags.iter().rev() {
            if let Some(node) = self.live_mut(*slot, *birth) {
                let tag = node.tag_mut(*level);
                if tag == after {
                    *tag = *before;
                }
            }
        }
        for (slot, birth, cost) in taken.claims.iter().rev() {
            if let Some(node) = self.live_mut(*slot, *birth)
                && let Some(lending) = &mut node.lending
            {
                lending.promised.unclaimed(now, *cost);
            }
        }
        for (slot, birth, which, booked) in taken.books.iter().rev() {
            let Some(node) = self.live_mut(*slot, *birth) else {
                continue;
            };
            match (which, &mut node.ceil) {
                (Which::Rate, _) => node.rate.give_back(now, booked),
                (Which::Ceil, Some(ceil)) => ceil.give_back(now, booked),
                (Which::Ceil, None) => {}
            }
            self.settle(*slot);
        }
    }

    /// The decision for a request that `look` was about, after it was charged if it passed.
    pub(super) fn report(
        &self,
        path: &Path,
        look: &Look,
        asked_at: Timestamp,
        cost: u64,
    ) -> Decision {
        let now = asked_at.max(self.latest);
        let nodes = || path.slots().iter().map(|slot| self.node(*slot));
        let limit = nodes().map(Node::most).min().unwrap_or(0);
        let idle_at = nodes().map(Node::idle_at).max().unwrap_or(now);
        let (outcome, retry_after) = if look.passes() {
            (Outcome::Allowed, Duration::ZERO)
        } else {
            match self.passes_at(path, now, cost) {
                Some(at) => (Outcome::Denied, at - asked_at),
                None => (Outcome::Never, Duration::MAX),
            }
        };
        let remaining = self.remaining(path, now);
        Decision::new(outcome, limit, remaining, retry_after, idle_at - asked_at)
    }

    /// Who refused, or whose rate covered it: the lowest that did.
    pub(super) fn decided_by(&self, path: &Path, look: &Look) -> NodeId {
        let covered = || look.covers.iter().position(|covers| *covers);
        let place = match look.refused {
            Some((place, _)) => place,
            None => covered().unwrap_or(0),
        };
        let slot = path.slots[place.min(path.len - 1)];
        self.node(slot).id(slot)
    }

    /// What a loan from the class at `place` to the one below it has to leave.
    fn keep(&self, path: &Path, place: usize, now: Timestamp, turns: &mut u64) -> Keep {
        let who = self.borrower(path, place);
        let Some(lending) = &self.node(path.slots[place]).lending else {
            return Keep::default();
        };
        *turns = turns.saturating_add(lending.turn(&who, now));
        Keep {
            // The same for every borrower, or the one with the least to leave would take all.
            promised: lending.promised.at_most(now),
            floor: turns.saturating_add(lending.step(&who, now)),
        }
    }

    /// Who asks the class at `place` for a loan.
    fn borrower(&self, path: &Path, place: usize) -> Borrower {
        let slot = path.slots[place - 1];
        let child = self.node(slot);
        let burst = self.node(path.slots[place]).burst();
        Borrower {
            slot,
            level: path.level,
            tag: child.tag(path.level),
            stride: child.stride,
            quantum: (burst / 64).clamp(1, 1 << 32),
        }
    }

    fn lend(
        &mut self,
        path: &Path,
        place: usize,
        now: Timestamp,
        cost: u64,
        taken: Option<&mut Taken>,
    ) {
        let who = self.borrower(path, place);
        let Some(lending) = &mut self.node_mut(path.slots[place]).lending else {
            return;
        };
        lending.asked(&who, now);
        let tag = lending.lent(&who, cost);
        let child = self.node_mut(who.slot);
        *child.tag_mut(path.level) = tag;
        if let Some(taken) = taken {
            let moved = (who.slot, child.birth, path.level, who.tag, tag);
            taken.tags.push(moved);
        }
    }

    /// When this cost first passes if nobody else asks for anything; `None` if never.
    fn passes_at(&self, path: &Path, now: Timestamp, cost: u64) -> Option<Timestamp> {
        // From one bucket's change to the next: exact unless it is a loan, for which what has to be
        // left changes as well.
        let (mut at, mut denied) = (now, now);
        let mut look = self.look(path, at, cost);
        for _ in 0..MAX_DEPTH {
            let Some((place, why)) = look.refused else {
                break;
            };
            denied = at;
            let own = (0..=place)
                .filter(|place| !look.covers[*place])
                .map(|place| (&self.node(path.slots[place]).rate, look.needs[place]));
            let ceil = match why {
                Why::Ceil(need) => self.node(path.slots[place]).ceil.as_ref().zip(Some(need)),
                Why::Rate => None,
            };
            at = own
                .chain(ceil)
                .filter_map(|(book, need)| book.limit().earliest(book.state(), at, need))
                .filter(|then| *then > at)
                .min()?;
            look = self.look(path, at, cost);
        }
        let passes = |nanos| self.look(path, Timestamp::from_nanos(nanos), cost).passes();
        let (mut denied, mut passed) = (denied.as_nanos(), at.as_nanos());
        if look.passes() {
            // A want that was forgotten on the way may have let it pass earlier.
            if passed - denied <= 1 || !passes(passed - 1) {
                return Some(at);
            }
            (denied, passed) = (now.as_nanos(), passed - 1);
        } else {
            let mut step = passed.saturating_sub(denied).max(1);
            denied = passed;
            loop {
                if passed == u64::MAX {
                    return None;
                }
                passed = passed.saturating_add(step);
                step = step.saturating_mul(2);
                if passes(passed) {
                    break;
                }
                denied = passed;
            }
        }
        while passed - denied > 1 {
            let middle = denied + (passed - denied) / 2;
            if passes(middle) {
                passed = middle;
            } else {
                denied = middle;
            }
        }
        Some(Timestamp::from_nanos(passed))
    }

    /// The largest cost that passes now.
    fn remaining(&self, path: &Path, now: Timestamp) -> u64 {
        // Which turns have to be left depends on the cost itself, so this is between two bounds, which
        // are one unless several classes borrow at several levels.
        let (mut fits, mut most) = (self.most(path, now, true), self.most(path, now, false));
        let passes = |cost| self.look(path, now, cost).passes();
        if fits == most || !passes(fits + 1) {
            return fits;
        }
        while fits < most {
            let middle = fits + (most - fits).div_ceil(2);
            if passes(middle) {
                fits = middle;
            } else {
                most = middle - 1;
            }
        }
        fits
    }

    /// The largest cost that passes if all turns below a lender have to be left, or none of them.
    fn most(&self, path: &Path, now: Timestamp, all_turns: bool) -> u64 {
        let (mut most, mut below, mut turns) = (u64::MAX, 0, 0);
        for (place, slot) in path.slots().iter().enumerate() {
            let node = self.node(*slot);
            let left = node.rate.limit().remaining(node.rate.state(), now);
            let ceil = node.ceil.as_ref();
            let mut to_ceil = ceil.map_or(0, |ceil| ceil.limit().remaining(ceil.state(), now));
            below = if place == 0 {
                left
            } else {
                let mut own_turn = 0;
                let turns = if all_turns { &mut turns } else { &mut own_turn };
                let keep = self.keep(path, place, now, turns);
                let loan = keep.largest(node.most(), to_ceil);
                to_ceil = to_ceil.min(below).max(loan);
                left.min(below).max(keep.largest(node.burst(), left))
            };
            most = most.min(if ceil.is_some() { to_ceil } else { below });
        }
        most
    }
}

/// Whether a bucket has this many tokens.
fn has(book: &Book<TokenBucket>, now: Timestamp, tokens: u64) -> bool {
    let at = book.limit().earliest(book.state(), now, tokens);
    at.is_some_and(|at| at <= now)
}

/// What a loan has to leave in a lender's bucket.
#[derive(Clone, Copy, Debug, Default)]
struct Keep {
    /// For what its children could claim, at most three quarters of the bucket.
    promised: u64,
    /// For borrowers who come first.
    floor: u64,
}

impl Keep {
    /// How many tokens have to be there for a loan of this cost, in a bucket of this burst.
    fn need(&self, burst: u64, cost: u64) -> u64 {
        let most = burst.saturating_sub(burst.div_ceil(4).max(cost));
        let reserve = self.promised.min(most);
        // A full bucket lends to anyone: what it doesn't lend is lost.
        let need = cost.saturating_add(reserve).saturating_add(self.floor);
        need.min(burst).max(cost)
    }

    /// The largest cost whose need is within what is left.
    fn largest(&self, burst: u64, left: u64) -> u64 {
        if left >= burst {
            return burst;
        }
        let reserve = self.promised.min(burst - burst.div_ceil(4));
        left.saturating_sub(reserve).saturating_sub(self.floor)
    }
}
