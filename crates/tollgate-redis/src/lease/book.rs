//! What is held of one key, and what is known of the store: a few words, spent from without a lock.
//!
//! One at a time plans, asks and takes; anyone spends meanwhile. What a plan says is held may be spent
//! while the store is asked, and counts as held there until the next plan: that grants nothing extra.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tollgate::Timestamp;

use crate::lock::lock;

mod accounts;
mod estimates;

use accounts::TokenAccounts;
pub(crate) use estimates::SpendStamp;

/// A lease is to last so long at the present demand.
const TARGET_COVERAGE: Duration = Duration::from_millis(100);
/// Demand is not measured over less.
const MIN_MEASURE_TIME: Duration = Duration::from_millis(1);

/// What this node holds of one key. All times are nanoseconds on this node's clock.
#[derive(Debug, Default)]
pub(super) struct LeaseBook {
    /// Tokens to spend. Taken by compare-and-swap; relaxed, as nothing else is read by it.
    tokens: AtomicU64,
    /// They are worth nothing from then on. Written (release) after the tokens it is for.
    expires_at: AtomicU64,
    /// The store had nothing more: there is some at this time.
    denied_until: AtomicU64,
    /// How many it had left all the same, too few for that request. A request for no more than these and what is here
    /// asks.
    store_remaining: AtomicU64,
    /// It isn't asked again before this, which is sooner than that if that is far off: others may return some, or reset
    /// all.
    next_refill_at: AtomicU64,
    /// Below so many, more are asked for ahead.
    refill_below: AtomicU64,
    /// What was asked of this node and refused since the last plan.
    denied_since_plan: AtomicU64,
    /// How many there were after the last take.
    tokens_after_take: AtomicU64,
    /// When the last plan was made, and what demand called for then.
    planned_at: AtomicU64,
    demand: AtomicU64,
    /// Plans so far: what was spent before one was told to the store as spent.
    plans: AtomicU64,
    /// How often the store took all that was held for lost.
    lapses: AtomicU64,
    /// When the key was last asked about, as far as was noticed.
    used_at: AtomicU64,
    renewing: AtomicBool,
    /// Held while tokens come, or go other than by being spent.
    accounts: Mutex<TokenAccounts>,
}

/// What came of a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpendOutcome {
    /// It was spent; so much is left here, and it may be time to ask for more.
    Passed { left: u64, runs_low: bool },
    /// There isn't as much, and the store had no more: not before this time.
    Denied { left: u64, until: Timestamp },
    /// The store has to be asked.
    Unknown,
}

/// What is told to the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RefillPlan {
    /// Here.
    pub(super) holds: u64,
    /// For requests.
    pub(super) out: u64,
    pub(super) returns: u64,
    pub(super) more: u64,
    /// How much of that is owed.
    pub(super) owed: u64,
    /// What was told as spent before, and came back.
    pub(super) late: u64,
    /// Since when that may have drained.
    pub(super) late_since: Timestamp,
}

/// What the store gave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) more: u64,
    /// What it didn't know was held here, and has no room for.
    pub(super) dropped: u64,
    pub(super) expires_at: Timestamp,
    pub(super) retry_after: Duration,
    pub(super) asked: u64,
    /// What is left in the store.
    pub(super) remaining: u64,
}

/// What is to be done about a lease, apart from spending it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Upkeep {
    None,
    Return,
    Renew,
    Forget,
}

impl LeaseBook {
    #[inline]
    pub(super) fn spend(&self, now: Timestamp, cost: u64) -> SpendOutcome {
        let now = now.as_nanos();
        // Acquire: a thread that sees a lease's end sees no tokens of an earlier one.
        let is_live = now < self.expires_at.load(Acquire);
        let mut tokens = self.tokens.load(Relaxed);
        while is_live && tokens >= cost {
            let left = tokens - cost;
            let swapped = (self.tokens).compare_exchange_weak(tokens, left, Relaxed, Relaxed);
            match swapped {
                Ok(_) => {
                    let runs_low = left < self.refill_below.load(Relaxed)
                        && now >= self.next_refill_at.load(Relaxed);
                    return SpendOutcome::Passed { left, runs_low };
                }
                Err(now_there) => tokens = now_there,
            }
        }
        // What was here once and is spent by now can't be had by asking.
        self.outcome_without_tokens(now, cost, if is_live { tokens } else { 0 })
    }

    /// What would come of a cost, without spending it.
    pub(super) fn peek(&self, now: Timestamp, cost: u64) -> SpendOutcome {
        let now = now.as_nanos();
        let is_live = now < self.expires_at.load(Acquire);
        let tokens = self.tokens.load(Relaxed);
        if is_live && tokens >= cost {
            let (left, runs_low) = (tokens - cost, false);
            return SpendOutcome::Passed { left, runs_low };
        }
        self.outcome_without_tokens(now, cost, if is_live { tokens } else { 0 })
    }

    /// What is said to a cost that isn't here.
    fn outcome_without_tokens(&self, now: u64, cost: u64, here: u64) -> SpendOutcome {
        let is_enough = cost <= here.saturating_add(self.store_remaining.load(Relaxed));
        let is_refused = now < self.next_refill_at.load(Relaxed) && !(is_enough && cost > 0);
        if is_refused && cost == 0 {
            // A peek is never refused.
            let (left, runs_low) = (0, false);
            return SpendOutcome::Passed { left, runs_low };
        }
        if is_refused {
            self.denied_since_plan.fetch_add(cost, Relaxed);
            let until = self.denied_until.load(Relaxed).max(now);
            return SpendOutcome::Denied {
                left: here,
                until: Timestamp::from_nanos(until),
            };
        }
        SpendOutcome::Unknown
    }

    /// Plans: what was spent before is told as spent. What isn't enough for a cost is
    /// returned: if each node kept some, there might never be enough for any of them.
    pub(super) fn plan(&self, now: Timestamp, cost: u64, part: u64) -> RefillPlan {
        let plan = self.begin_plan(now);
        let covers = self.measure_demand(now, plan.holds).min(part);
        if cost > 0 {
            self.used_at.store(now.as_nanos(), Relaxed);
        }
        self.refill_below.store(covers / 4, Relaxed);
        let (holds, returns) = if plan.holds < cost {
            // What is returned isn't demand.
            self.tokens_after_take.store(0, Relaxed);
            (0, self.withdraw(plan.holds))
        } else {
            (plan.holds, 0)
        };
        let more = covers.max(cost).saturating_sub(holds);
        RefillPlan {
            holds,
            returns,
            more: more.saturating_add(plan.owed),
            ..plan
        }
    }

    /// What the store is told in any case: all that is in the accounts, and what came back late goes with that.
    fn begin_plan(&self, now: Timestamp) -> RefillPlan {
        self.plans.fetch_add(1, Relaxed);
        let (holds, out, owed) = self.expire_and_count(now);
        let mut accounts = self.accounts();
        accounts.has_settled_estimates = false;
        let (late, late_since) = accounts.take_late();
        RefillPlan {
            holds,
            out,
            owed,
            late,
            late_since,
            ..RefillPlan::default()
        }
    }

    /// Plans to return what is far more than demand calls for.
    pub(super) fn plan_trim(&self, now: Timestamp, part: u64) -> RefillPlan {
        let plan = self.plan(now, 0, part);
        let covers = self.demand.load(Relaxed).min(part);
        let returns = self.withdraw(plan.holds.saturating_sub(covers.saturating_mul(2).max(1)));
        RefillPlan {
            holds: plan.holds - returns,
            returns,
            ..plan
        }
    }

    /// How much would be asked for in the time that a lease is to cover. What was measured before fades in
    /// that time.
    fn measure_demand(&self, now: Timestamp, holds: u64) -> u64 {
        let level = self.tokens_after_take.swap(holds, Relaxed);
        let spent = level.saturating_sub(holds);
        let wanted = spent.saturating_add(self.denied_since_plan.swap(0, Relaxed));
        let before = self.planned_at.swap(now.as_nanos(), Relaxed);
        let elapsed = u128::from(now.as_nanos().saturating_sub(before));
        let whole = TARGET_COVERAGE.as_nanos();
        let seen = u128::from(wanted) * whole / elapsed.max(MIN_MEASURE_TIME.as_nanos());
        let known = u128::from(self.demand.load(Relaxed));
        let faded = known * whole.saturating_sub(elapsed) / whole;
        let covers = u64::try_from(seen.max(faded)).unwrap_or(u64::MAX);
        self.demand.store(covers, Relaxed);
        if wanted > 0 {
            self.used_at.store(now.as_nanos(), Relaxed);
        }
        covers
    }

    /// Whether it is still time to ask for more.
    pub(super) fn runs_low(&self, now: Timestamp) -> bool {
        self.held(now) < self.refill_below.load(Relaxed)
            && now.as_nanos() >= self.next_refill_at.load(Relaxed)
    }

    /// Plans to return everything.
    pub(super) fn plan_return_all(&self, now: Timestamp) -> RefillPlan {
        let plan = self.begin_plan(now);
        let returns = self.withdraw(u64::MAX);
        self.refill_below.store(0, Relaxed);
        RefillPlan {
            holds: 0,
            returns,
            more: plan.owed,
            ..plan
        }
    }

    /// What is still worth something, here and out; and what is owed.
    fn expire_and_count(&self, now: Timestamp) -> (u64, u64, u64) {
        let mut accounts = self.accounts();
        accounts.expire_estimates(now);
        let is_live = now.as_nanos() < self.expires_at.load(Acquire);
        if !is_live {
            self.withdraw_from(&mut accounts, u64::MAX);
            self.mark_lapsed(&mut accounts);
        }
        // Under the lock: what is held for a request moves from the one to the other.
        let tokens = self.tokens.load(Relaxed);
        (
            if is_live { tokens } else { 0 },
            accounts.held_for_requests,
            accounts.owed,
        )
    }

    /// What the store had left when it was last asked.
    pub(super) fn store_remaining(&self) -> u64 {
        self.store_remaining.load(Relaxed)
    }

    /// Whether the store has to be told something: tokens are here, some are owed, or less is out than it knows.
    pub(super) fn has_unreported(&self, now: Timestamp) -> bool {
        let accounts = self.accounts();
        accounts.owed > 0
            || accounts.has_settled_estimates
            || accounts.returned_after_report > 0
            || self.held(now) > 0
    }

    /// What was spent since this was last asked.
    pub(super) fn take_newly_spent(&self) -> u64 {
        let mut accounts = self.accounts();
        let left = self.tokens.load(Relaxed);
        // What is out may come back, or not: it counts until it does.
        let spent = accounts.received.saturating_sub(left);
        accounts.record_spent(spent)
    }

    /// The same, with all that is held, as if that were spent too.
    pub(super) fn take_all_as_spent(&self, now: Timestamp) -> u64 {
        self.expire_and_count(now);
        let mut accounts = self.accounts();
        let all = accounts.received;
        accounts.record_spent(all)
    }

    /// What is owed to the store.
    #[cfg(test)]
    pub(super) fn owed(&self) -> u64 {
        self.accounts().owed
    }

    /// Whether an estimate is still held.
    pub(super) fn holds_estimate(&self, now: Timestamp, number: u64) -> bool {
        let mut accounts = self.accounts();
        accounts.expire_estimates(now);
        accounts.estimates.contains_key(&number)
    }

    fn accounts(&self) -> MutexGuard<'_, TokenAccounts> {
        lock(&self.accounts)
    }

    /// Takes up to so many tokens out; returns how many.
    fn withdraw(&self, most: u64) -> u64 {
        self.withdraw_from(&mut self.accounts(), most)
    }

    fn withdraw_from(&self, accounts: &mut TokenAccounts, most: u64) -> u64 {
        let taken = self.remove_tokens(most);
        accounts.remove_received(taken);
        taken
    }

    /// The same, as tokens that are spent.
    fn remove_tokens(&self, most: u64) -> u64 {
        let fewer = |tokens: u64| Some(tokens - tokens.min(most));
        let before = self.tokens.fetch_update(Relaxed, Relaxed, fewer);
        before.unwrap_or(0).min(most)
    }

    /// Takes what the store gave, pays what is owed, and spends this much of the rest first, if there is as much and
    /// it isn't over yet: says what is left then, and what it is held by if it is held until then. Nobody else
    /// has seen what was given before.
    pub(super) fn take(
        &self,
        now: Timestamp,
        granted: &Grant,
        cost: u64,
        hold: Option<Timestamp>,
    ) -> Option<(u64, Option<u64>)> {
        let is_live = now < granted.expires_at;
        let mut accounts = self.accounts();
        if self.withdraw_from(&mut accounts, granted.dropped) < granted.dropped {
            self.mark_lapsed(&mut accounts);
        }
        accounts.received += granted.more;
        let paid = accounts.owed.min(granted.more);
        accounts.owed -= paid;
        let more = granted.more - paid;
        let spent = |all: u64| all.checked_sub(cost).filter(|_| is_live);
        let after = |tokens| Some(spent(tokens + more).unwrap_or(tokens + more));
        let before = self.tokens.fetch_update(Relaxed, Relaxed, after);
        let all = before.unwrap_or(0) + more;
        let left = spent(all);
        let number = match (left, hold) {
            (Some(_), Some(until)) => Some(accounts.open_estimate(cost, until)),
            _ => None,
        };
        drop(accounts);
        let (refused_until, asked_from) = if granted.more < granted.asked {
            let until = now + granted.retry_after;
            (until.as_nanos(), until.min(granted.expires_at).as_nanos())
        } else {
            (0, 0)
        };
        self.denied_until.store(refused_until, Relaxed);
        self.store_remaining.store(granted.remaining, Relaxed);
        self.next_refill_at.store(asked_from, Relaxed);
        self.tokens_after_take.store(all, Relaxed);
        // Release: those who see it see the tokens.
        self.expires_at
            .store(granted.expires_at.as_nanos(), Release);
        left.map(|left| (left, number))
    }

    pub(super) fn plan_count(&self) -> u64 {
        self.plans.load(Relaxed)
    }

    pub(super) fn held(&self, now: Timestamp) -> u64 {
        if now.as_nanos() < self.expires_at.load(Acquire) {
            self.tokens.load(Relaxed)
        } else {
            0
        }
    }

    /// Whether the caller is the one to renew it: only one does at a time.
    pub(super) fn begin_renewal(&self) -> bool {
        !self.renewing.swap(true, Relaxed)
    }

    pub(super) fn end_renewal(&self) {
        self.renewing.store(false, Relaxed);
    }

    /// What is to be done for it, looked at four times in a lease's life.
    pub(super) fn needed_upkeep(&self, now: Timestamp, life: Duration) -> Upkeep {
        let tokens = self.tokens.load(Relaxed);
        let until = self.expires_at.load(Acquire);
        let level = self.tokens_after_take.load(Relaxed);
        let was_used = tokens < level || self.denied_since_plan.load(Relaxed) > 0;
        let nanos = now.as_nanos();
        if was_used {
            // Spending records no time, so it counts as of now.
            self.measure_demand(now, tokens);
        }
        let life = u64::try_from(life.as_nanos()).unwrap_or(u64::MAX);
        let idle = nanos.saturating_sub(self.used_at.load(Relaxed));
        let (out, unsaid) = {
            let mut accounts = self.accounts();
            accounts.expire_estimates(now);
            (
                accounts.held_for_requests,
                accounts.owed + accounts.returned_after_report,
            )
        };
        let is_held = out > 0 && nanos < until;
        if unsaid > 0 || (is_held && until - nanos <= life / 2) {
            return Upkeep::Renew;
        }
        if nanos >= until || tokens == 0 {
            let is_forgotten = idle > life && nanos >= until;
            return if is_forgotten {
                Upkeep::Forget
            } else {
                Upkeep::None
            };
        }
        if idle >= life / 2 {
            Upkeep::Return
        } else if until - nanos <= life / 2 {
            Upkeep::Renew
        } else {
            Upkeep::None
        }
    }
}
