//! The details of a decision: the remaining tokens, when to retry, and the deciding class.

use std::time::Duration;

use tollgate_core::{Arithmetic, Decision, LimitLedger, Outcome, Timestamp, TokenBucket};

use super::node::{MAX_DEPTH, NodeId};
use super::path::{DenyCause, LendingReserve, NodePath, PathEvaluation};

/// The most steps from change to change before a binary search takes over.
const MAX_STEPS: usize = 4 * MAX_DEPTH;

impl NodePath<'_> {
    /// The decision about the request that `look` evaluated, after it was charged if it passed. A time
    /// before the `latest` charge counts as the time of that charge.
    pub(super) fn decision(
        &self,
        look: &PathEvaluation,
        asked_at: Timestamp,
        latest: Timestamp,
        cost: u64,
    ) -> Decision {
        let now = asked_at.max(latest);
        let (mut limit, mut idle_at) = (u64::MAX, Timestamp::ZERO);
        for node in self.nodes() {
            limit = limit.min(node.max_burst());
            idle_at = idle_at.max(node.idle_at());
        }
        let (outcome, retry_after) = if look.is_allowed() {
            (Outcome::Allowed, Duration::ZERO)
        } else {
            match self.allowed_at(look, now, cost) {
                Some(at) => (Outcome::Denied, at - asked_at),
                None => (Outcome::Never, Duration::MAX),
            }
        };
        let remaining = self.remaining(now);
        Decision::new(outcome, limit, remaining, retry_after, idle_at - asked_at)
    }

    /// The class that denied, or whose rate covered the request: the lowest one.
    pub(super) fn deciding_node(&self, look: &PathEvaluation) -> NodeId {
        let place = match look.denied_by {
            Some((place, _)) => place,
            None => look.charged_to_rate.first().unwrap_or(0),
        };
        let place = place.min(self.path.len - 1);
        self.nodes()[place].id(self.path.slots[place])
    }

    /// When this cost first passes if no other request comes; `None` if never.
    fn allowed_at(&self, refused: &PathEvaluation, now: Timestamp, cost: u64) -> Option<Timestamp> {
        // Steps from one moment at which something changes to the next.
        let (mut look, mut at, mut denied) = (*refused, now, now);
        let mut lent = false;
        for _ in 0..MAX_STEPS {
            if look.is_allowed() {
                break;
            }
            denied = at;
            lent |= !look.borrows_from.is_empty();
            at = self.next_change(&look, at, cost)?;
            look = self.evaluate(at, cost);
        }
        let passes = |nanos| {
            self.evaluate(Timestamp::from_nanos(nanos), cost)
                .is_allowed()
        };
        let (mut denied, mut passed) = (denied.as_nanos(), at.as_nanos());
        if look.is_allowed() {
            // Reserves for claims grow by whole tokens. Where they grow as fast as the bucket, the
            // request may pass a nanosecond earlier as well.
            if !lent || passed - denied <= 1 || !passes(passed - 1) {
                return Some(at);
            }
            passed -= 1;
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

    /// The next moment at which a denied request may pass: when a bucket on the path has what it needs,
    /// or when a demand expires.
    fn next_change(&self, look: &PathEvaluation, at: Timestamp, cost: u64) -> Option<Timestamp> {
        let filled = self.refilled_at(look, &look.floors, at, at.plus_nanos(1), cost);
        let forgotten = (1..self.path.len)
            .filter(|place| look.borrows_from.has(*place))
            .filter_map(|place| self.demand_expires_at(place, at))
            .min();
        match forgotten {
            Some(forgotten) if filled.is_none_or(|filled| forgotten < filled) => {
                // Not before there would be enough if all demands had expired.
                let least = self.refilled_at(look, &[0; MAX_DEPTH], at, at, cost)?;
                let next = forgotten.max(least);
                Some(filled.map_or(next, |filled| filled.min(next)))
            }
            _ => filled,
        }
    }

    /// When the first bucket that couldn't cover the cost has what it needs, with these floors. A
    /// bucket that wasn't checked may have it `at` once, which counts if that is not before `from`.
    fn refilled_at(
        &self,
        look: &PathEvaluation,
        floors: &[u64; MAX_DEPTH],
        at: Timestamp,
        from: Timestamp,
        cost: u64,
    ) -> Option<Timestamp> {
        let (refused_by, why) = look.denied_by?;
        let when = |place: usize, book: &LimitLedger<TokenBucket>| {
            if look.borrows_from.has(place) {
                self.lendable_at(place, book, floors[place], at, cost)
            } else {
                book.limit().earliest(book.state(), at, cost)
            }
        };
        let ceil = self.nodes()[refused_by].ceil.as_ref();
        let ceil = ceil.filter(|_| why != DenyCause::Rate);
        (0..=refused_by)
            .filter(|place| !look.charged_to_rate.has(*place))
            .filter_map(|place| when(place, &self.nodes()[place].rate))
            .chain(ceil.and_then(|ceil| when(refused_by, ceil)))
            .filter(|then| *then >= from)
            .min()
    }

    /// When a bucket of the class at `place` has what a loan needs, with this floor.
    fn lendable_at(
        &self,
        place: usize,
        book: &LimitLedger<TokenBucket>,
        floor: u64,
        at: Timestamp,
        cost: u64,
    ) -> Option<Timestamp> {
        let (limit, state) = (book.limit(), book.state());
        let promised = self.nodes()[place].lending.as_ref()?.promised.bucket();
        let keep = LendingReserve {
            promised: promised.map_or(0, |promised| promised.limit().limit()),
            floor,
        };
        // With everything that can ever be claimed reserved, or with the whole bucket.
        let surely = limit.earliest(state, at, keep.needed_tokens(limit.limit(), cost))?;
        let beside = promised.and_then(|promised| {
            let (tokens, other) = (cost.saturating_add(floor), promised.limit());
            limit.earliest_beyond(state, at, tokens, other, promised.state())
        });
        Some(beside.map_or(surely, |beside| beside.min(surely)))
    }

    /// When the first demand expires that a loan from the class at `place` leaves something for.
    fn demand_expires_at(&self, place: usize, at: Timestamp) -> Option<Timestamp> {
        let lending = self.nodes()[place].lending.as_ref()?;
        lending.demand_expires_at(&self.borrower(place), at)
    }

    /// The largest cost that passes now.
    fn remaining(&self, now: Timestamp) -> u64 {
        // The reserves depend on the cost itself, so the result lies between two bounds. They are equal
        // unless several classes borrow at several levels.
        let (mut fits, mut most) = self.bounds(now);
        let passes = |cost| self.evaluate(now, cost).is_allowed();
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

    /// The largest cost that passes if every reserve below a lender has to be left, and if none has to
    /// be.
    fn bounds(&self, now: Timestamp) -> (u64, u64) {
        let (mut all, mut none) = (RemainingBound::default(), RemainingBound::default());
        let mut turns = 0;
        for (place, node) in self.nodes().iter().enumerate() {
            let left = node.rate.limit().remaining(node.rate.state(), now);
            let ceil = node.ceil.as_ref();
            let to_ceil = ceil.map(|ceil| ceil.limit().remaining(ceil.state(), now));
            if place == 0 {
                all.start_at_leaf(left, to_ceil);
                none = all;
                continue;
            }
            let below = turns;
            let keep = self.lending_reserve(place, now, &mut turns);
            let own = LendingReserve {
                floor: keep.floor.saturating_sub(below),
                ..keep
            };
            let bursts = (node.burst(), node.max_burst());
            all.pass_node(&keep, bursts, left, to_ceil);
            none.pass_node(&own, bursts, left, to_ceil);
        }
        (all.most, none.most)
    }
}

/// The largest cost that passes, computed from the leaf up.
#[derive(Clone, Copy, Debug, Default)]
struct RemainingBound {
    most: u64,
    /// What the class below covers.
    covered: u64,
}

impl RemainingBound {
    /// The leaf has `left` remaining of its rate, and `to_ceil` up to its ceil.
    fn start_at_leaf(&mut self, left: u64, to_ceil: Option<u64>) {
        // A leaf's ceil is checked for the cost alone.
        (self.most, self.covered) = (to_ceil.unwrap_or(left), left);
    }

    /// Adds a class above, with the bursts of its rate and of its ceil.
    fn pass_node(
        &mut self,
        keep: &LendingReserve,
        bursts: (u64, u64),
        left: u64,
        to_ceil: Option<u64>,
    ) {
        let (below, (burst, most)) = (self.covered, bursts);
        self.covered = left.min(below).max(keep.largest_loan(burst, left));
        let own = match to_ceil {
            Some(to_ceil) => to_ceil.min(below).max(keep.largest_loan(most, to_ceil)),
            None => self.covered,
        };
        self.most = self.most.min(own);
    }
}
