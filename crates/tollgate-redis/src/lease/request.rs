//! Requests and replies between a node and the store about a lease: how much is requested, from the book, and
//! what was granted.

use std::time::Duration;

use tollgate::Timestamp;

use super::book::{Grant, LeaseBook, RefillPlan};
use crate::error::StoreError;
use crate::query::{LimitParams, to_micros_ceil, wait_from_micros, write_doubles};

/// How many tokens are requested.
#[derive(Clone, Copy, Debug)]
pub(super) enum RefillGoal {
    /// As many as demand calls for, and at least this many.
    More(u64),
    /// As many as demand calls for. Far more than that is returned.
    Enough,
    /// Exactly this many, and the lease isn't kept.
    Exactly(u64),
    /// None: all held tokens are returned.
    ReturnAll,
    /// None: this many owed tokens are forgiven, and all held tokens are returned.
    ForgiveOwed(u64),
}

/// One query about a lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseQuery {
    plan: RefillPlan,
    /// The cost that is spent before any other request sees the grant.
    pub(super) least: u64,
    /// The most to lease in advance; 0 if the limit queries the store for each request.
    part: u64,
    numbers: LimitParams,
    /// When the query is made.
    at: Timestamp,
}

impl LeaseQuery {
    pub(super) fn new(
        book: &LeaseBook,
        wants: RefillGoal,
        now: Timestamp,
        part: u64,
        numbers: LimitParams,
    ) -> Self {
        let (plan, least) = match wants {
            RefillGoal::ReturnAll | RefillGoal::ForgiveOwed(_) => (book.plan_return_all(now), 0),
            RefillGoal::More(cost) => (book.plan(now, cost, part), cost),
            RefillGoal::Enough => (book.plan_trim(now, part), 0),
            RefillGoal::Exactly(more) => {
                let plan = RefillPlan {
                    more,
                    ..RefillPlan::default()
                };
                (plan, more)
            }
        };
        Self {
            plan,
            least,
            part,
            numbers,
            at: now,
        }
    }

    /// The request in the store's terms; `lessee` has the fields that the book doesn't know.
    pub(super) fn request_for(&self, lessee: LeaseRequest) -> LeaseRequest {
        let plan = &self.plan;
        let most = (self.part).max(plan.more.min(self.numbers.max_burst));
        let late = self.undrained(plan.late, plan.late_since);
        LeaseRequest {
            holds: plan.holds + plan.out,
            returns: plan.returns,
            more: plan.more,
            most: most.max(plan.holds) + plan.out,
            least: self.at_least(),
            forgiven: lessee.forgiven.saturating_add(late).min(FORGIVE_ALL),
            ..lessee
        }
    }

    /// The grant, which expires by a time from before the query: the store counts from later on, so it never
    /// expires first.
    pub(super) fn grant_until(&self, reply: &LeaseReply, until: Timestamp) -> Grant {
        let plan = &self.plan;
        // What is owed is paid before anything else, and the store doesn't know of that.
        let retry_after = reply.retry_after.saturating_add(self.debt_delay(reply));
        Grant {
            more: reply.granted,
            dropped: plan.holds + plan.out - self.kept(reply),
            expires_at: until,
            retry_after: retry_after.max(min_refill_pause(&self.numbers)),
            // If the limit queries the store for each request, a denial is for that request alone.
            asked: if self.part > 0 {
                plan.more
            } else {
                reply.granted
            },
            remaining: reply.remaining,
        }
    }

    /// Whether the grant is less than the request's cost.
    pub(super) fn is_too_little(&self, reply: &LeaseReply) -> bool {
        self.kept(reply) + self.after_debt(reply.granted) < self.at_least()
    }

    /// What remains of a grant when the debt is paid.
    fn after_debt(&self, granted: u64) -> u64 {
        granted.saturating_sub(self.plan.owed)
    }

    /// How much longer than the store's `retry_after` a cost has to wait, because of the debt.
    fn debt_delay(&self, reply: &LeaseReply) -> Duration {
        let RefillPlan { holds, owed, .. } = self.plan;
        let had = holds + reply.granted;
        let needed = (self.least + owed).saturating_sub(had);
        // The part of the shortfall that the store counted in its own `retry_after`.
        let in_store_delay = self.least.saturating_sub(had).max(1);
        let [price, drain, ..] = self.numbers.values;
        let units = u128::from(needed.saturating_sub(in_store_delay)) * u128::from(price);
        let micros = units.checked_div(u128::from(drain)).unwrap_or(0);
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// Of tokens that were reported as spent since then, those that can't have drained. Rounded so that too few
    /// are forgiven rather than too many.
    fn undrained(&self, tokens: u64, since: Timestamp) -> u64 {
        let [price, drain, ..] = self.numbers.values;
        let micros = u128::from(to_micros_ceil(self.at - since));
        let drained = (u128::from(drain) * micros).div_ceil(u128::from(price.max(1)));
        tokens.saturating_sub(u64::try_from(drained).unwrap_or(u64::MAX))
    }

    fn kept(&self, reply: &LeaseReply) -> u64 {
        reply.kept.min(self.plan.holds + self.plan.out)
    }

    /// The tokens that must be held in the end; otherwise nothing is taken.
    fn at_least(&self) -> u64 {
        match self.least {
            0 => 0,
            least => least + self.plan.out,
        }
    }
}

/// The shortest pause before more is requested after the store had too little: 10 ms, or a quarter of the time
/// in which the bucket fills, so that the bucket doesn't overflow in the pause.
fn min_refill_pause(numbers: &LimitParams) -> Duration {
    let [_, drain, capacity, ..] = numbers.values;
    let fills = Duration::from_micros(capacity / drain.max(1));
    (fills / 4).min(Duration::from_millis(10))
}

/// A node's request to the store.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeaseRequest {
    /// The holder. 0 is a holder without tokens, which changes nothing for the others.
    pub(super) holder: u64,
    /// The number of this request among the holder's; 0 if they aren't counted.
    pub(super) number: u64,
    pub(super) holds: u64,
    pub(super) returns: u64,
    pub(super) more: u64,
    /// The most tokens that the holder may have.
    pub(super) most: u64,
    pub(super) life: Duration,
    /// If it can't have as many, it gets none.
    pub(super) least: u64,
    /// Units that are owed at least, beside the leased tokens; 0 if that isn't known.
    pub(super) spent: u64,
    /// Owed tokens to forgive, beside the leased tokens.
    pub(super) forgiven: u64,
}

/// Forgives the whole debt.
pub(crate) const FORGIVE_ALL: u64 = 1 << 53;

impl LeaseRequest {
    /// A holder without tokens that takes none.
    pub(super) fn anonymous(life: Duration) -> Self {
        Self {
            life,
            ..Self::default()
        }
    }

    pub(super) fn encode(&self, numbers: &LimitParams) -> Vec<u8> {
        let [price, drain, capacity, ..] = numbers.values;
        let (life, mut record) = (to_micros_ceil(self.life), Vec::with_capacity(13 * 8));
        write_doubles(&mut record, &[price, drain, capacity]);
        write_doubles(&mut record, &[self.holder, self.number, self.holds]);
        write_doubles(&mut record, &[self.returns, self.more, self.most, life]);
        write_doubles(&mut record, &[self.least, self.spent, self.forgiven]);
        record
    }
}

/// The store's reply to a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseReply {
    pub(super) granted: u64,
    /// How many of its held tokens the node keeps.
    pub(super) kept: u64,
    /// Tokens that remain for other nodes.
    pub(super) remaining: u64,
    pub(super) retry_after: Duration,
}

impl LeaseReply {
    pub(super) fn parse(reply: &[i64]) -> Result<Self, StoreError> {
        let [granted, kept, remaining, retry_after, _] = *reply else {
            let what = format!("5 numbers of a lease expected, {} came", reply.len());
            return Err(StoreError::garbled(what));
        };
        let number = |number: i64| u64::try_from(number).unwrap_or(0);
        Ok(Self {
            granted: number(granted),
            kept: number(kept),
            remaining: number(remaining),
            retry_after: wait_from_micros(retry_after),
        })
    }
}
