//! Weighted fair queueing: the order of service by virtual finish times, in integers.
//!
//! The head of each client's queue has a *finish*: the virtual time at which it became the head, plus
//! its cost divided by its client's weight. The least finish is served next, and virtual time is the
//! finish of the request served last (self-clocked fair queueing). So a returning client starts from
//! the present without credit from the past, and a client without waiters needs no memory.

use std::collections::{BTreeSet, HashMap};

use foldhash::fast::FixedState;
use tollgate_core::{Arithmetic, Charge, Decision, Gcra, Outcome, Timestamp};

use super::anchored_bucket::AnchoredBucket;
use super::codel::{Codel, StandingQueue};
use crate::key_table::slab::Slab;
use crate::wait_queue::shared_queue::{ClientQueues, FirstChange, QueueDiscipline};
use crate::wait_queue::waiter_places::Fifo;

/// Fraction bits of virtual time for one cost at weight 1. Weights up to 2¹⁶ round by less than 2⁻¹⁶.
const TAG_FRACTION_BITS: u32 = 32;
/// The largest weight.
pub(super) const MAX_WEIGHT: u32 = 1 << 16;

/// A request's client: its fingerprint, and its weight.
#[derive(Clone, Copy, Debug)]
pub struct ClientClaim {
    pub(super) client: u64,
    pub(super) weight: u32,
}

/// The clients that have waiters, and the limit that they share.
#[derive(Debug)]
pub struct FairQueueing {
    meter: AnchoredBucket,
    /// The time of the latest visit: no request passes at an earlier time.
    seen: Timestamp,
    /// Tokens charged for waiters that left before they noticed: the next waiters use them.
    credit: u64,
    /// The latest charge that became credit.
    transferable_charge: Option<Charge>,
    /// Virtual time: the finish of the request served last. It restarts at 0 when nobody waits.
    virtual_time: u128,
    /// Counts heads, so that equal finishes are served in the order in which they became heads.
    next_turn_number: u64,
    index: HashMap<u64, u32, FixedState>,
    clients: Slab<QueuedClient>,
    by_finish: BTreeSet<FinishTag>,
    max_waiters_per_client: usize,
    codel: Option<Codel>,
}

#[derive(Debug)]
struct QueuedClient {
    key: u64,
    weight: u64,
    start: u128,
    turn: FinishTag,
    cost: u64,
    standing: StandingQueue,
}

/// A client's position in the order of service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct FinishTag {
    finish: u128,
    number: u64,
    owner: u32,
}

/// What the refund of a charge needs.
#[derive(Debug)]
pub struct FairCharge {
    charge: Charge,
    cost: u64,
}

impl FairQueueing {
    pub(super) fn new(
        meter: AnchoredBucket,
        now: Timestamp,
        most_per_client: usize,
        codel: Option<Codel>,
    ) -> Self {
        Self {
            meter,
            seen: now,
            credit: 0,
            transferable_charge: None,
            virtual_time: 0,
            next_turn_number: 0,
            index: HashMap::default(),
            clients: Slab::new(usize::MAX),
            by_finish: BTreeSet::new(),
            max_waiters_per_client: most_per_client,
            codel,
        }
    }

    /// The number of clients with waiters.
    pub(super) fn clients(&self) -> usize {
        self.by_finish.len()
    }

    /// The index of this client, if it has waiters.
    pub(super) fn client_slot(&self, client: u64) -> Option<u32> {
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
            standing: StandingQueue::default(),
        });
        self.index.insert(key, owner);
        owner
    }

    fn remove(&mut self, owner: u32) {
        if let Some(client) = self.clients.remove(owner) {
            self.index.remove(&client.key);
        }
        if self.by_finish.is_empty() {
            // Virtual time matters only relative to waiters, so it restarts instead of growing for ever.
            self.virtual_time = 0;
            self.credit = 0;
            self.transferable_charge = None;
        }
    }

    /// Gives a client another weight, for all its waiters.
    fn set_weight(&mut self, owner: u32, weight: u64) {
        let Some(client) = self.clients.get_mut(owner).filter(|c| c.weight != weight) else {
            return;
        };
        client.weight = weight;
        let old = client.turn;
        client.turn.finish = client.start + virtual_span(u128::from(client.cost), weight);
        let new = client.turn;
        self.by_finish.remove(&old);
        self.by_finish.insert(new);
    }

    /// When this total cost will have been served, one request after the other, if no more come.
    fn pass_time(&self, cost: u128) -> Timestamp {
        let cost = cost.saturating_sub(u128::from(self.credit));
        let burst = self.meter.limit().limit();
        let at_once = u64::try_from(cost).unwrap_or(u64::MAX).min(burst);
        let Some(at) = self.meter.earliest(self.seen, at_once) else {
            return Timestamp::MAX;
        };
        let later = cost - u128::from(at_once);
        at + self.meter.limit().params().refill_time(later)
    }
}

/// How far a cost moves a client of this weight in virtual time.
fn virtual_span(cost: u128, weight: u64) -> u128 {
    (cost << TAG_FRACTION_BITS).div_ceil(u128::from(weight))
}

impl QueueDiscipline for FairQueueing {
    type Client = ClientClaim;
    type Receipt = FairCharge;

    fn advance_clock(&mut self, now: Timestamp) -> Option<Timestamp> {
        self.seen = now;
        self.meter.follow_clock(now)
    }

    fn pass_without_waiting(&mut self, now: Timestamp, ask: &ClientClaim, cost: u64) -> Outcome {
        let at = self.meter.earliest(now, cost);
        match at {
            None => return Outcome::Never,
            Some(at) if at > now => return Outcome::Denied,
            Some(_) => {}
        }
        if let Some(first) = self.by_finish.first() {
            let finish = self.virtual_time + virtual_span(u128::from(cost), u64::from(ask.weight));
            // A client with waiters may not overtake them.
            if finish >= first.finish || self.index.contains_key(&ask.client) {
                return Outcome::Denied;
            }
            self.virtual_time = finish;
        }
        if cost > 0 {
            self.meter.charge(now, cost);
        }
        Outcome::Allowed
    }

    fn choose_queue(&mut self, lines: &ClientQueues, ask: ClientClaim) -> Result<u32, Timestamp> {
        let weight = u64::from(ask.weight);
        let Some(owner) = self.client_slot(ask.client) else {
            return Ok(self.add(ask.client, weight));
        };
        let line = lines.of(owner);
        if line.len() >= self.max_waiters_per_client {
            // If the whole queue is this client's, this is when one of its positions becomes free.
            let length = u64::try_from(line.len()).unwrap_or(u64::MAX).max(1);
            let wait = self.pass_time(lines.cost()).nanos_since(self.seen);
            return Err(self.seen.plus_nanos(wait.div_ceil(length)));
        }
        self.set_weight(owner, weight);
        Ok(owner)
    }

    fn estimate(
        &self,
        lines: &ClientQueues,
        _now: Timestamp,
        ask: &ClientClaim,
        cost: u64,
        deadline: Timestamp,
    ) -> Timestamp {
        let all = lines.cost() + u128::from(cost);
        let at_the_latest = self.pass_time(all);
        // The caller needs no better estimate, and the exact one visits every client.
        if at_the_latest <= deadline {
            return at_the_latest;
        }
        let weight = u64::from(ask.weight);
        let own = self.client_slot(ask.client);
        let line = own.map(|owner| lines.of(owner)).unwrap_or_default();
        let start = own.and_then(|owner| self.clients.get(owner));
        let start = start.map_or(self.virtual_time, |client| client.start);
        let before = line.cost() + u128::from(cost);
        // Each finish is rounded up by less than one.
        let rounding = u128::try_from(line.len()).unwrap_or(0);
        let finish = start + virtual_span(before, weight) + rounding;
        let ahead = |turn: &FinishTag| {
            let Some(client) = self
                .clients
                .get(turn.owner)
                .filter(|_| Some(turn.owner) != own)
            else {
                return 0;
            };
            // The most that this client is served before `finish`: at most what it has queued.
            let share = finish.saturating_sub(client.start);
            let share = share.saturating_mul(u128::from(client.weight)) >> TAG_FRACTION_BITS;
            share.min(lines.of(turn.owner).cost())
        };
        let ahead: u128 = self.by_finish.iter().map(ahead).sum();
        self.pass_time((ahead + before).min(all))
    }

    fn first_changed(&mut self, owner: u32, first: Option<u64>, why: FirstChange) {
        let present = self.virtual_time;
        let number = match why {
            FirstChange::Joined | FirstChange::Served => {
                self.next_turn_number += 1;
                Some(self.next_turn_number)
            }
            FirstChange::Left => None,
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
            client.turn.finish = client.start + virtual_span(u128::from(cost), client.weight);
        }
        let new = client.turn;
        if why != FirstChange::Joined {
            self.by_finish.remove(&old);
        }
        match first {
            Some(_) => {
                self.by_finish.insert(new);
            }
            None => self.remove(owner),
        }
    }

    fn next(&self) -> Option<(u32, Timestamp)> {
        let turn = self.by_finish.first()?;
        let cost = self.clients.get(turn.owner)?.cost;
        let cost = cost.saturating_sub(self.credit);
        let due = self.meter.earliest(self.seen, cost);
        Some((turn.owner, due.unwrap_or(Timestamp::MAX)))
    }

    fn should_shed(&mut self, owner: u32, line: &Fifo, due: Timestamp, arrived: Timestamp) -> bool {
        let codel = self.codel;
        let (Some(codel), Some(client)) = (codel, self.clients.get_mut(owner)) else {
            return false;
        };
        codel.should_drop(&mut client.standing, due, due - arrived, line.len() - 1)
    }

    fn pass(&mut self, owner: u32, due: Timestamp, cost: u64) -> FairCharge {
        if let Some(client) = self.clients.get(owner) {
            self.virtual_time = client.turn.finish;
        }
        let covered = self.credit.min(cost);
        self.credit -= covered;
        self.seen = due;
        let handed_on = self
            .transferable_charge
            .take_if(|charge| charge.cost() == cost);
        let charge = match handed_on {
            Some(charge) if covered == cost => charge,
            _ => self.meter.charge(due, cost - covered),
        };
        FairCharge { charge, cost }
    }

    fn refund(&mut self, now: Timestamp, _owner: u32, receipt: FairCharge) {
        if self.by_finish.is_empty() {
            self.meter.refund(now, &receipt.charge);
        } else {
            self.credit = self.credit.saturating_add(receipt.cost);
            self.transferable_charge = Some(receipt.charge);
        }
    }

    fn decision(&self, now: Timestamp, outcome: Outcome, at: Timestamp) -> Decision {
        let at = (outcome != Outcome::Never).then_some(at);
        let mut decision = self.meter.report(now, at);
        decision.outcome = outcome;
        decision
    }

    fn time_when_drained(&self, lines: &ClientQueues) -> Timestamp {
        self.pass_time(lines.cost())
    }
}
