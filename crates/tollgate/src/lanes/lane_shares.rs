//! The order of service among lanes: each within its own share, and on what the others leave unused.
//!
//! Every lane has its own bucket, and all lanes share a common one. The invariant: the common bucket
//! holds at least as much as the lanes' buckets together. A lane that spends its own tokens takes them
//! from both buckets. A lane that borrows spends what it has, and takes the rest from what the common
//! bucket holds beyond the other lanes' tokens. So a lane within its share always passes, and what a
//! full lane's bucket can't hold is available to the others.

use tollgate_core::{
    Arithmetic, Bucket, Decision, LimitError, Outcome, Rate, Timestamp, TokenBucket,
};

use crate::Algorithm;
use crate::cell::locked::drain_time;
use crate::clock_steps::LatestTime;
use crate::wait_queue::shared_queue::{ClientQueues, FirstChange, QueueDiscipline};
use crate::wait_queue::waiter_places::Fifo;

/// All lanes, highest first.
#[derive(Debug)]
pub struct LaneShares {
    total: RateBucket,
    lanes: Vec<LaneState>,
    /// The time of the latest visit: no request passes at an earlier time.
    last_visit: Timestamp,
    latest: LatestTime,
    max_waiters_per_lane: usize,
    /// Counts charges, so that a refund knows whether its charge was the latest.
    charges: u64,
}

/// A bucket with exact state, and its limit.
#[derive(Clone, Copy, Debug)]
struct RateBucket {
    limit: TokenBucket,
    bucket: Bucket,
}

#[derive(Debug)]
struct LaneState {
    own: RateBucket,
    /// The cost of the head of the lane's queue.
    first: Option<u64>,
    /// Tokens charged for waiters that left before they noticed: the next waiters of this lane use
    /// them.
    credit: u64,
    /// The latest charge that became credit.
    transferable_charge: Option<ChargeUndo>,
}

/// What the refund of a charge needs.
#[derive(Debug)]
pub struct LaneCharge {
    cost: u64,
    undo: ChargeUndo,
}

/// Both buckets as they were before a charge; valid until the next charge.
#[derive(Clone, Copy, Debug)]
struct ChargeUndo {
    cost: u64,
    own: Bucket,
    total: Bucket,
    charges: u64,
}

impl RateBucket {
    fn new(rate: Rate) -> Result<Self, LimitError> {
        Ok(Self {
            limit: TokenBucket::new(rate)?,
            bucket: Bucket::default(),
        })
    }

    fn earliest(&self, from: Timestamp, cost: u64) -> Option<Timestamp> {
        self.limit.earliest(&self.bucket, from, cost)
    }

    fn charge(&mut self, at: Timestamp, cost: u64) {
        self.limit.charge(&mut self.bucket, at, at, cost);
    }

    /// The tokens in the bucket, with a partial token rounded up.
    fn available_tokens(&self, at: Timestamp) -> u64 {
        let whole = self.limit.remaining(&self.bucket, at);
        self.limit.limit().min(whole.saturating_add(1))
    }

    /// When this much has passed from `from` on, one token after the other.
    fn pass_time(&self, from: Timestamp, cost: u128) -> Timestamp {
        let burst = self.limit.limit();
        let at_once = u64::try_from(cost).unwrap_or(u64::MAX).min(burst);
        let Some(at) = self.earliest(from, at_once) else {
            return Timestamp::MAX;
        };
        let later = cost - u128::from(at_once);
        at + drain_time(Algorithm::TokenBucket, self.limit.rate(), later)
    }
}

impl LaneShares {
    /// `lanes` have the rates of their shares, whose sum is within `total`.
    pub(super) fn new(
        total: Rate,
        lanes: impl Iterator<Item = Rate>,
        most_per_lane: usize,
        now: Timestamp,
    ) -> Result<Self, LimitError> {
        let state = |rate| {
            Ok(LaneState {
                own: RateBucket::new(rate)?,
                first: None,
                credit: 0,
                transferable_charge: None,
            })
        };
        let total = RateBucket::new(total)?;
        let lanes = lanes.map(state).collect::<Result<Vec<_>, _>>()?;
        let mut latest = LatestTime::new(&total.limit);
        lanes
            .iter()
            .for_each(|lane| latest.extend_reach(&lane.own.limit));
        Ok(Self {
            total,
            lanes,
            last_visit: now,
            latest,
            max_waiters_per_lane: most_per_lane,
            charges: 0,
        })
    }

    /// The guaranteed rate of a lane.
    pub(super) fn rate_of(&self, lane: u32) -> Rate {
        self.lanes[index(lane)].own.limit.rate()
    }

    /// Whether a lane above this one has waiters.
    fn has_higher_waiter(&self, lane: u32) -> bool {
        let above = &self.lanes[..index(lane)];
        above.iter().any(|lane| lane.first.is_some())
    }

    /// When this cost passes in this lane, by its own share or by what others leave; `None` if never.
    fn earliest(&self, lane: u32, from: Timestamp, cost: u64) -> Option<Timestamp> {
        let own = self.lanes[index(lane)].own.earliest(from, cost)?;
        let own = own.max(self.total.earliest(from, cost)?);
        // The spare tokens belong to the higher lane first.
        if own == from || self.has_higher_waiter(lane) {
            return Some(own);
        }
        let spare = self.spare_capacity_at(lane, from, cost);
        Some(spare.map_or(own, |spare| own.min(spare)))
    }

    /// When this much is available beyond the tokens of the other lanes.
    fn spare_capacity_at(&self, lane: u32, from: Timestamp, cost: u64) -> Option<Timestamp> {
        let mut at = from;
        // The tokens of the other lanes only grow while this lane waits, until they are full. So each
        // round approaches the right time from below, and few are needed. A time that is still too
        // early is corrected when it comes.
        for _ in 0..32 {
            let need = self.reserved_by_others(lane, at).saturating_add(cost);
            let next = self.total.earliest(from, need)?;
            if next <= at {
                break;
            }
            at = next;
        }
        Some(at)
    }

    fn other_lanes(&self, lane: u32) -> impl Iterator<Item = &LaneState> {
        let (before, rest) = self.lanes.split_at(index(lane));
        before.iter().chain(&rest[1..])
    }

    fn reserved_by_others(&self, lane: u32, at: Timestamp) -> u64 {
        let held = self
            .other_lanes(lane)
            .map(|other| other.own.available_tokens(at));
        held.fold(0, u64::saturating_add)
    }

    /// Follows a clock that was set back: all buckets keep their tokens.
    fn set_back(&mut self, from: Timestamp, to: Timestamp) {
        let lanes = self.lanes.iter_mut().map(|lane| &mut lane.own);
        for account in lanes.chain([&mut self.total]) {
            account.limit.move_to_clock(&mut account.bucket, from, to);
        }
        // Earlier charges can't be undone afterwards.
        self.charges += 1;
    }

    fn charge(&mut self, lane: u32, at: Timestamp, cost: u64) {
        if cost == 0 {
            return;
        }
        let own = &mut self.lanes[index(lane)].own;
        if own.earliest(at, cost) == Some(at) {
            own.charge(at, cost);
        } else {
            // It borrows: it spends its own tokens, and the rest comes from the common bucket alone.
            own.bucket = own.limit.empty(at);
        }
        self.total.charge(at, cost);
        self.charges += 1;
    }
}

impl QueueDiscipline for LaneShares {
    /// The index of a lane.
    type Client = u32;
    type Receipt = LaneCharge;

    fn advance_clock(&mut self, now: Timestamp) -> Option<Timestamp> {
        let before = self.latest.detect_set_back(now);
        if let Some(from) = before {
            self.set_back(from, now);
        }
        self.latest.advance_to(now);
        self.last_visit = now;
        before
    }

    fn pass_without_waiting(&mut self, now: Timestamp, lane: &u32, cost: u64) -> Outcome {
        match self.earliest(*lane, now, cost) {
            None => Outcome::Never,
            Some(at) if at <= now && self.lanes[index(*lane)].first.is_none() => {
                self.charge(*lane, now, cost);
                Outcome::Allowed
            }
            Some(_) => Outcome::Denied,
        }
    }

    fn choose_queue(&mut self, lines: &ClientQueues, lane: u32) -> Result<u32, Timestamp> {
        let line = lines.of(lane);
        if line.len() < self.max_waiters_per_lane {
            return Ok(lane);
        }
        let first = self.lanes[index(lane)].first.unwrap_or(0);
        Err(self
            .earliest(lane, self.last_visit, first)
            .unwrap_or(self.last_visit))
    }

    fn estimate(
        &self,
        lines: &ClientQueues,
        now: Timestamp,
        lane: &u32,
        cost: u64,
        _deadline: Timestamp,
    ) -> Timestamp {
        if lines.cost() == 0 {
            return self.earliest(*lane, now, cost).unwrap_or(Timestamp::MAX);
        }
        let state = &self.lanes[index(*lane)];
        let credit = u128::from(state.credit);
        let own = (lines.of(*lane).cost() + u128::from(cost)).saturating_sub(credit);
        let own = state.own.pass_time(now, own);
        // With all waiters before it, and all other lanes full.
        let bursts = self.other_lanes(*lane).map(|other| other.own.limit.limit());
        let held: u128 = bursts.map(u128::from).sum();
        let all = lines.cost() + u128::from(cost) + held;
        own.min(self.total.pass_time(now, all))
    }

    fn first_changed(&mut self, lane: u32, first: Option<u64>, _why: FirstChange) {
        let state = &mut self.lanes[index(lane)];
        state.first = first;
        if first.is_none() {
            state.credit = 0;
            state.transferable_charge = None;
        }
    }

    fn next(&self) -> Option<(u32, Timestamp)> {
        let turn = |(number, state): (usize, &LaneState)| {
            let lane = u32::try_from(number).ok()?;
            let cost = state.first?.saturating_sub(state.credit);
            let due = match cost {
                0 => self.last_visit,
                _ => self.earliest(lane, self.last_visit, cost)?,
            };
            Some((lane, due))
        };
        let turns = self.lanes.iter().enumerate().filter_map(turn);
        // The earliest; the highest lane among equals.
        turns.min_by_key(|(lane, due)| (*due, *lane))
    }

    fn should_shed(
        &mut self,
        _lane: u32,
        _line: &Fifo,
        _due: Timestamp,
        _arrived: Timestamp,
    ) -> bool {
        false
    }

    fn pass(&mut self, lane: u32, due: Timestamp, cost: u64) -> LaneCharge {
        let (total, state) = (self.total.bucket, &mut self.lanes[index(lane)]);
        let own = state.own.bucket;
        let covered = state.credit.min(cost);
        state.credit -= covered;
        self.last_visit = due;
        let handed_on = state.transferable_charge.take_if(|undo| undo.cost == cost);
        if covered == cost
            && let Some(undo) = handed_on
        {
            return LaneCharge { cost, undo };
        }
        let rest = cost - covered;
        self.charge(lane, due, rest);
        let undo = ChargeUndo {
            cost: rest,
            own,
            total,
            charges: self.charges,
        };
        LaneCharge { cost, undo }
    }

    fn refund(&mut self, _now: Timestamp, lane: u32, receipt: LaneCharge) {
        let LaneCharge { cost, undo } = receipt;
        let state = &mut self.lanes[index(lane)];
        // The next waiter uses the tokens as credit; it needs no refund.
        if state.first.is_some() {
            state.credit = state.credit.saturating_add(cost);
            state.transferable_charge = Some(undo);
        // Nobody waits, so the buckets are restored, unless another charge was made since.
        } else if undo.charges == self.charges && undo.cost == cost {
            state.own.bucket = undo.own;
            self.total.bucket = undo.total;
            self.charges += 1;
        }
    }

    fn decision(&self, now: Timestamp, outcome: Outcome, at: Timestamp) -> Decision {
        let at = (outcome != Outcome::Never).then_some(at);
        let mut decision = self.total.limit.decision_at(&self.total.bucket, now, at);
        decision.outcome = outcome;
        decision
    }

    fn time_when_drained(&self, lines: &ClientQueues) -> Timestamp {
        self.total.pass_time(self.last_visit, lines.cost())
    }
}

fn index(lane: u32) -> usize {
    usize::try_from(lane).unwrap_or(usize::MAX)
}
