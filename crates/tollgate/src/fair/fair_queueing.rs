//! Weighted fair queueing: whose turn it is, by virtual finish times in whole numbers.
//!
//! The first of each client's line has a *finish*: the virtual time at which it became first, plus its
//! cost over its client's weight. The least finish is next, and virtual time is the finish of the last
//! one that passed (self-clocked fair queueing). So a client that comes back starts from the present,
//! with no credit from the past, and nothing is remembered of one that has nothing in line.

use std::collections::{BTreeSet, HashMap};

use foldhash::fast::FixedState;
use tollgate_core::{Arithmetic, Charge, Decision, Gcra, Outcome, Timestamp};

use super::codel::{Codel, Standing};
use super::meter::Meter;
use crate::table::slab::Slab;
use crate::wait_queue::places::Fifo;
use crate::wait_queue::queue::{Change, Discipline, Lines};

/// One cost over a weight of one, in virtual time: weights up to 2¹⁶ round by less than 2⁻¹⁶.
const SHIFT: u32 = 32;
/// The largest weight.
pub(super) const MAX_WEIGHT: u32 = 1 << 16;

/// Who asks: the fingerprint of a client, and its weight.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    pub(super) client: u64,
    pub(super) weight: u32,
}

/// The clients that have something in line, and the limit that they share.
#[derive(Debug)]
pub struct Fair {
    meter: Meter,
    /// The latest visit: nobody passes at an earlier time.
    seen: Timestamp,
    /// Tokens charged for waiters that left before noticing their turn: the next in line use them.
    credit: u64,
    /// The latest charge that became credit.
    handed_on: Option<Charge>,
    /// Virtual time: the finish of the last one that passed. It starts again with an empty line.
    finished: u128,
    /// Counts who became first, so that equal claims pass in that order.
    turns: u64,
    index: HashMap<u64, u32, FixedState>,
    clients: Slab<QueuedClient>,
    order: BTreeSet<FinishTag>,
    most_per_client: usize,
    codel: Option<Codel>,
}

#[derive(Debug)]
struct QueuedClient {
    key: u64,
    weight: u64,
    start: u128,
    turn: FinishTag,
    cost: u64,
    standing: Standing,
}

/// A place in the order of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct FinishTag {
    finish: u128,
    number: u64,
    owner: u32,
}

/// What a charge is given back by.
#[derive(Debug)]
pub struct Receipt {
    charge: Charge,
    cost: u64,
}

impl Fair {
    pub(super) fn new(
        meter: Meter,
        now: Timestamp,
        most_per_client: usize,
        codel: Option<Codel>,
    ) -> Self {
        Self {
            meter,
            seen: now,
            credit: 0,
            handed_on: None,
            finished: 0,
            turns: 0,
            index: HashMap::default(),
            clients: Slab::new(usize::MAX),
            order: BTreeSet::new(),
            most_per_client,
            codel,
        }
    }

    /// How many clients have something in line.
    pub(super) fn clients(&self) -> usize {
        self.order.len()
    }

    /// The number of this client, if it has something in line.
    pub(super) fn owner(&self, client: u64) -> Option<u32> {
        self.index.get(&client).copied()
    }

    pub(super) const fn limit(&self) -> &Gcra {
        self.meter.limit()
    }

    fn add(&mut self, key: u64, weight: u64) -> u32 {
        let owner = self.clients.insert(QueuedClient {
            key,
            weight,
            start: 0,
            turn: FinishTag::default(),
            cost: 0,
            standing: Standing::default(),
        });
        self.index.insert(key, owner);
        owner
    }

    fn remove(&mut self, owner: u32) {
        if let Some(client) = self.clients.remove(owner) {
            self.index.remove(&client.key);
        }
        if self.order.is_empty() {
            self.finished = 0;
            self.credit = 0;
            self.handed_on = None;
        }
    }

    /// Gives a client another weight, for everything that it has in line.
    fn weigh(&mut self, owner: u32, weight: u64) {
        let Some(client) = self.clients.get_mut(owner).filter(|c| c.weight != weight) else {
            return;
        };
        client.weight = weight;
        let old = client.turn;
        client.turn.finish = client.start + span(u128::from(client.cost), weight);
        let new = client.turn;
        self.order.remove(&old);
        self.order.insert(new);
    }

    /// When this much cost will have passed, one request after the other, if no more come.
    fn passed_by(&self, cost: u128) -> Timestamp {
        let cost = cost.saturating_sub(u128::from(self.credit));
        let burst = self.meter.limit().limit();
        let at_once = u64::try_from(cost).unwrap_or(u64::MAX).min(burst);
        let Some(at) = self.meter.earliest(self.seen, at_once) else {
            return Timestamp::MAX;
        };
        let later = cost - u128::from(at_once);
        at + self.meter.limit().pace().refill_time(later)
    }
}

/// How far a cost moves a client of this weight in virtual time.
fn span(cost: u128, weight: u64) -> u128 {
    (cost << SHIFT).div_ceil(u128::from(weight))
}

impl Discipline for Fair {
    type Asker = Claim;
    type Receipt = Receipt;

    fn visited(&mut self, now: Timestamp) -> Option<Timestamp> {
        self.seen = now;
        self.meter.follow(now)
    }

    fn pass_at_once(&mut self, now: Timestamp, ask: &Claim, cost: u64) -> Outcome {
        let at = self.meter.earliest(now, cost);
        match at {
            None => return Outcome::Never,
            Some(at) if at > now => return Outcome::Denied,
            Some(_) => {}
        }
        if let Some(first) = self.order.first() {
            let finish = self.finished + span(u128::from(cost), u64::from(ask.weight));
            if finish >= first.finish || self.index.contains_key(&ask.client) {
                return Outcome::Denied;
            }
            self.finished = finish;
        }
        if cost > 0 {
            self.meter.charge(now, cost);
        }
        Outcome::Allowed
    }

    fn stand_in(&mut self, lines: &Lines, ask: Claim) -> Result<u32, Timestamp> {
        let weight = u64::from(ask.weight);
        let Some(owner) = self.owner(ask.client) else {
            return Ok(self.add(ask.client, weight));
        };
        let line = lines.of(owner);
        if line.len() >= self.most_per_client {
            // If all of the line is this client's, this is when one of its places becomes free.
            let length = u64::try_from(line.len()).unwrap_or(u64::MAX).max(1);
            let wait = self.passed_by(lines.cost()).nanos_since(self.seen);
            return Err(self.seen.plus_nanos(wait.div_ceil(length)));
        }
        self.weigh(owner, weight);
        Ok(owner)
    }

    fn estimate(
        &self,
        lines: &Lines,
        _now: Timestamp,
        ask: &Claim,
        cost: u64,
        deadline: Timestamp,
    ) -> Timestamp {
        let all = lines.cost() + u128::from(cost);
        let at_the_latest = self.passed_by(all);
        if at_the_latest <= deadline {
            return at_the_latest;
        }
        let weight = u64::from(ask.weight);
        let own = self.owner(ask.client);
        let line = own.map(|owner| lines.of(owner)).unwrap_or_default();
        let start = own.and_then(|owner| self.clients.get(owner));
        let start = start.map_or(self.finished, |client| client.start);
        let before = line.cost() + u128::from(cost);
        // Each finish is rounded up by less than one.
        let rounding = u128::try_from(line.len()).unwrap_or(0);
        let finish = start + span(before, weight) + rounding;
        let ahead = |turn: &FinishTag| {
            let Some(client) = self
                .clients
                .get(turn.owner)
                .filter(|_| Some(turn.owner) != own)
            else {
                return 0;
            };
            let share = finish.saturating_sub(client.start);
            let share = share.saturating_mul(u128::from(client.weight)) >> SHIFT;
            share.min(lines.of(turn.owner).cost())
        };
        let ahead: u128 = self.order.iter().map(ahead).sum();
        self.passed_by((ahead + before).min(all))
    }

    fn first_changed(&mut self, owner: u32, first: Option<u64>, why: Change) {
        let present = self.finished;
        let number = match why {
            Change::Came | Change::Passed => {
                self.turns += 1;
                Some(self.turns)
            }
            Change::Left => None,
        };
        let Some(client) = self.clients.get_mut(owner) else {
            return;
        };
        let old = client.turn;
        if let Some(cost) = first {
            if let Some(number) = number {
                client.start = present;
                client.turn.number = number;
            }
            client.cost = cost;
            client.turn.owner = owner;
            client.turn.finish = client.start + span(u128::from(cost), client.weight);
        }
        let new = client.turn;
        if why != Change::Came {
            self.order.remove(&old);
        }
        match first {
            Some(_) => {
                self.order.insert(new);
            }
            None => self.remove(owner),
        }
    }

    fn next(&self) -> Option<(u32, Timestamp)> {
        let turn = self.order.first()?;
        let cost = self.clients.get(turn.owner)?.cost;
        let cost = cost.saturating_sub(self.credit);
        let due = self.meter.earliest(self.seen, cost);
        Some((turn.owner, due.unwrap_or(Timestamp::MAX)))
    }

    fn sheds(&mut self, owner: u32, line: &Fifo, due: Timestamp, arrived: Timestamp) -> bool {
        let codel = self.codel;
        let (Some(codel), Some(client)) = (codel, self.clients.get_mut(owner)) else {
            return false;
        };
        codel.sheds(&mut client.standing, due, due - arrived, line.len() - 1)
    }

    fn pass(&mut self, owner: u32, due: Timestamp, cost: u64) -> Receipt {
        if let Some(client) = self.clients.get(owner) {
            self.finished = client.turn.finish;
        }
        let covered = self.credit.min(cost);
        self.credit -= covered;
        self.seen = due;
        let handed_on = self.handed_on.take_if(|charge| charge.cost() == cost);
        let charge = match handed_on {
            Some(charge) if covered == cost => charge,
            _ => self.meter.charge(due, cost - covered),
        };
        Receipt { charge, cost }
    }

    fn give_back(&mut self, now: Timestamp, _owner: u32, receipt: Receipt) {
        if self.order.is_empty() {
            self.meter.give_back(now, &receipt.charge);
        } else {
            self.credit = self.credit.saturating_add(receipt.cost);
            self.handed_on = Some(receipt.charge);
        }
    }

    fn decision(&self, now: Timestamp, outcome: Outcome, at: Timestamp) -> Decision {
        let at = (outcome != Outcome::Never).then_some(at);
        let mut decision = self.meter.report(now, at);
        decision.outcome = outcome;
        decision
    }

    fn all_passed(&self, lines: &Lines) -> Timestamp {
        self.passed_by(lines.cost())
    }
}
