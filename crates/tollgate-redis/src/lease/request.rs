//! What a node and the store tell each other about a lease: how much is asked for, made of what its book says, and what came
//! of it.

use std::time::Duration;

use tollgate::Timestamp;

use super::book::{Grant, LeaseBook, RefillPlan};
use crate::error::StoreError;
use crate::query::{LimitParams, to_micros_ceil, wait_from_micros, write_doubles};

/// How much is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum RefillGoal {
    /// As much as demand calls for, and this at least.
    More(u64),
    /// As much as demand calls for: what is far more is returned.
    Enough,
    /// This and no more: it isn't kept.
    Exactly(u64),
    /// Nothing: all that is held is returned.
    ReturnAll,
    /// That so many tokens of what is owed are forgiven. All that is held is returned.
    ForgiveOwed(u64),
}

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseQuery {
    plan: RefillPlan,
    /// What is to be spent before anyone else sees what came.
    pub(super) least: u64,
    /// What may be taken ahead; nothing if the store is asked about each request.
    part: u64,
    numbers: LimitParams,
    /// When.
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

    /// As the store reads it, of somebody who says the rest.
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

    /// What the store gave, from before it was asked: the store counts from later on.
    pub(super) fn grant_until(&self, reply: &LeaseReply, until: Timestamp) -> Grant {
        let plan = &self.plan;
        // What is owed is paid before anything else, which the store doesn't know of.
        let retry_after = reply.retry_after.saturating_add(self.debt_delay(reply));
        Grant {
            more: reply.granted,
            dropped: plan.holds + plan.out - self.kept(reply),
            expires_at: until,
            retry_after: retry_after.max(min_refill_pause(&self.numbers)),
            // If the store is asked about each request, a refusal is for that request alone.
            asked: if self.part > 0 {
                plan.more
            } else {
                reply.granted
            },
            remaining: reply.remaining,
        }
    }

    /// Whether it isn't as much as is to be spent.
    pub(super) fn is_too_little(&self, reply: &LeaseReply) -> bool {
        self.kept(reply) + self.after_debt(reply.granted) < self.at_least()
    }

    /// What is left of a grant when what is owed is paid.
    fn after_debt(&self, granted: u64) -> u64 {
        granted.saturating_sub(self.plan.owed)
    }

    /// How much longer than the store says it takes until a cost can be had, because of what is owed.
    fn debt_delay(&self, reply: &LeaseReply) -> Duration {
        let RefillPlan { holds, owed, .. } = self.plan;
        let had = holds + reply.granted;
        let needed = (self.least + owed).saturating_sub(had);
        let journal_error = self.least.saturating_sub(had).max(1);
        let [price, drain, ..] = self.numbers.values;
        let units = u128::from(needed.saturating_sub(journal_error)) * u128::from(price);
        let micros = units.checked_div(u128::from(drain)).unwrap_or(0);
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// What can't have drained of what was told as spent since then.
    fn undrained(&self, tokens: u64, since: Timestamp) -> u64 {
        let [price, drain, ..] = self.numbers.values;
        let micros = u128::from(to_micros_ceil(self.at - since));
        let drained = (u128::from(drain) * micros).div_ceil(u128::from(price.max(1)));
        tokens.saturating_sub(u64::try_from(drained).unwrap_or(u64::MAX))
    }

    fn kept(&self, reply: &LeaseReply) -> u64 {
        reply.kept.min(self.plan.holds + self.plan.out)
    }

    /// What must be held in the end, else nothing is taken.
    fn at_least(&self) -> u64 {
        match self.least {
            0 => 0,
            least => least + self.plan.out,
        }
    }
}

/// For so long at least nothing more is asked for after the store had nothing: a hundredth of a second,
/// or a quarter of the time in which the bucket fills, so that it doesn't run over meanwhile.
fn min_refill_pause(numbers: &LimitParams) -> Duration {
    let [_, drain, capacity, ..] = numbers.values;
    let fills = Duration::from_micros(capacity / drain.max(1));
    (fills / 4).min(Duration::from_millis(10))
}

/// What a node says to the store.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeaseRequest {
    /// 0 for nobody: who holds nothing, and so changes nothing for those who do.
    pub(super) holder: u64,
    /// How often it has asked; 0 if that isn't counted.
    pub(super) number: u64,
    pub(super) holds: u64,
    pub(super) returns: u64,
    pub(super) more: u64,
    /// The most that it may hold.
    pub(super) most: u64,
    pub(super) life: Duration,
    /// If it can't hold as much, it gets nothing.
    pub(super) least: u64,
    /// So many units are owed at least, beside what is out; 0 if that isn't known.
    pub(super) spent: u64,
    /// So many tokens of what is owed are forgiven, beside what is out.
    pub(super) forgiven: u64,
}

/// All that is owed.
pub(crate) const FORGIVE_ALL: u64 = 1 << 53;

impl LeaseRequest {
    /// One who holds nothing and takes nothing.
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

/// What the store says to a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseReply {
    pub(super) granted: u64,
    /// Of what it holds.
    pub(super) kept: u64,
    /// What is left for others.
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
