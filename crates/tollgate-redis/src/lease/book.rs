//! The book of one key: the tokens held here, and what is known of the store. A few words, spent without a
//! lock.
//!
//! One task at a time plans, queries and takes. All others spend meanwhile. Tokens that a plan reports as held
//! may be spent during the query, and count as held in the store until the next plan: that grants nothing
//! extra.

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

/// How long a lease is meant to last at the present demand.
const TARGET_COVERAGE: Duration = Duration::from_millis(100);
/// The shortest time over which demand is measured.
const MIN_MEASURE_TIME: Duration = Duration::from_millis(1);

/// The tokens of one key that this node holds. All times are nanoseconds on this node's clock.
#[derive(Debug, Default)]
pub(super) struct LeaseBook {
    /// Tokens to spend. Taken by compare-and-swap. Relaxed, because no other memory is read on account of it.
    tokens: AtomicU64,
    /// The tokens are worthless from then on. Written (release) after the tokens it belongs to.
    expires_at: AtomicU64,
    /// The store granted too little: it has enough again at this time.
    denied_until: AtomicU64,
    /// Tokens that the store had left at that time, too few for that request. A later request that fits into
    /// these and the tokens here queries the store.
    store_remaining: AtomicU64,
    /// The earliest next query. Earlier than `denied_until` if that is far off, because other nodes may return
    /// tokens or reset the key.
    next_refill_at: AtomicU64,
    /// Below this many tokens, the lease is refilled in advance.
    refill_below: AtomicU64,
    /// The cost of requests that this node denied since the last plan.
    denied_since_plan: AtomicU64,
    /// The number of tokens after the last take.
    tokens_after_take: AtomicU64,
    /// When the last plan was made, and the demand at that time.
    planned_at: AtomicU64,
    demand: AtomicU64,
    /// The number of plans so far. A plan reports to the store all that was spent before it.
    plans: AtomicU64,
    /// How often the store counted all held tokens as lost.
    lapses: AtomicU64,
    /// When the key was last requested, as far as was noticed.
    used_at: AtomicU64,
    renewing: AtomicBool,
    /// Held while tokens are added, or removed in any way other than by spending.
    accounts: Mutex<TokenAccounts>,
}

/// The outcome of spending a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpendOutcome {
    /// The cost was spent. `left` tokens remain here, and `runs_low` says whether to refill.
    Passed { left: u64, runs_low: bool },
    /// There are too few tokens here, and the store has no more before this time.
    Denied { left: u64, until: Timestamp },
    /// The store has to be queried.
    Unknown,
}

/// What a node reports to the store, and requests from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RefillPlan {
    /// Tokens held here.
    pub(super) holds: u64,
    /// Tokens held by requests.
    pub(super) out: u64,
    pub(super) returns: u64,
    pub(super) more: u64,
    /// How many of the requested tokens are owed.
    pub(super) owed: u64,
    /// Tokens that were reported as spent, and came back.
    pub(super) late: u64,
    /// When the store began to drain those.
    pub(super) late_since: Timestamp,
}

/// The store's grant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) more: u64,
    /// Tokens that the store didn't know were held here, and has no room for.
    pub(super) dropped: u64,
    pub(super) expires_at: Timestamp,
    pub(super) retry_after: Duration,
    pub(super) asked: u64,
    /// Tokens that remain in the store.
    pub(super) remaining: u64,
}

/// The maintenance that a lease needs.
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
        // Acquire: a thread that sees the expiry of a lease sees no tokens of an earlier lease.
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
        // Tokens that were here and are spent meanwhile are no reason to query the store.
        self.outcome_without_tokens(now, cost, if is_live { tokens } else { 0 })
    }

    /// The outcome of a cost, without spending it.
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

    /// The outcome of a cost for which there are too few tokens here.
    fn outcome_without_tokens(&self, now: u64, cost: u64, here: u64) -> SpendOutcome {
        let is_enough = cost <= here.saturating_add(self.store_remaining.load(Relaxed));
        let is_refused = now < self.next_refill_at.load(Relaxed) && !(is_enough && cost > 0);
        if is_refused && cost == 0 {
            // A peek is never denied.
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

    /// Plans a refill, which reports what was spent before it. Tokens that are too few for the cost are
    /// returned: if each node kept a few, there might never be enough for any of them.
    pub(super) fn plan(&self, now: Timestamp, cost: u64, part: u64) -> RefillPlan {
        let plan = self.begin_plan(now);
        let covers = self.measure_demand(now, plan.holds).min(part);
        if cost > 0 {
            self.used_at.store(now.as_nanos(), Relaxed);
        }
        self.refill_below.store(covers / 4, Relaxed);
        let (holds, returns) = if plan.holds < cost {
            // Returned tokens aren't demand.
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

    /// The part that every plan reports: the accounts, and what came back late.
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

    /// Plans to return tokens, if there are far more than demand calls for.
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

    /// The cost that arrives in the time that a lease is meant to last. Earlier measurements fade in that time.
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
        // The larger of the two, so that demand rises immediately and falls gradually.
        let covers = u64::try_from(seen.max(faded)).unwrap_or(u64::MAX);
        self.demand.store(covers, Relaxed);
        if wanted > 0 {
            self.used_at.store(now.as_nanos(), Relaxed);
        }
        covers
    }

    /// Whether the lease still needs a refill.
    pub(super) fn runs_low(&self, now: Timestamp) -> bool {
        self.held(now) < self.refill_below.load(Relaxed)
            && now.as_nanos() >= self.next_refill_at.load(Relaxed)
    }

    /// Plans to return all tokens.
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

    /// The tokens that haven't expired, here and held by requests; and those owed.
    fn expire_and_count(&self, now: Timestamp) -> (u64, u64, u64) {
        let mut accounts = self.accounts();
        accounts.expire_estimates(now);
        let is_live = now.as_nanos() < self.expires_at.load(Acquire);
        if !is_live {
            self.withdraw_from(&mut accounts, u64::MAX);
            self.mark_lapsed(&mut accounts);
        }
        // Read under the lock: tokens held for a request move between `tokens` and the accounts.
        let tokens = self.tokens.load(Relaxed);
        (
            if is_live { tokens } else { 0 },
            accounts.held_for_requests,
            accounts.owed,
        )
    }

    /// Tokens that the store had left when it was last queried.
    pub(super) fn store_remaining(&self) -> u64 {
        self.store_remaining.load(Relaxed)
    }

    /// Whether the store needs a report: tokens are here, some are owed, or less is out than the store knows.
    pub(super) fn has_unreported(&self, now: Timestamp) -> bool {
        let accounts = self.accounts();
        accounts.owed > 0
            || accounts.has_settled_estimates
            || accounts.returned_after_report > 0
            || self.held(now) > 0
    }

    /// Tokens spent since the last call.
    pub(super) fn take_newly_spent(&self) -> u64 {
        let mut accounts = self.accounts();
        let left = self.tokens.load(Relaxed);
        // Tokens held for requests may come back. They count as spent until they do.
        let spent = accounts.received.saturating_sub(left);
        accounts.record_spent(spent)
    }

    /// Like [`take_newly_spent`](Self::take_newly_spent), but all held tokens count as spent too.
    pub(super) fn take_all_as_spent(&self, now: Timestamp) -> u64 {
        self.expire_and_count(now);
        let mut accounts = self.accounts();
        let all = accounts.received;
        accounts.record_spent(all)
    }

    /// Tokens owed to the store.
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

    /// Removes up to this many tokens that nobody spent, and returns how many.
    fn withdraw(&self, most: u64) -> u64 {
        self.withdraw_from(&mut self.accounts(), most)
    }

    fn withdraw_from(&self, accounts: &mut TokenAccounts, most: u64) -> u64 {
        let taken = self.remove_tokens(most);
        accounts.remove_received(taken);
        taken
    }

    /// Removes up to this many tokens that count as spent, and returns how many.
    fn remove_tokens(&self, most: u64) -> u64 {
        let fewer = |tokens: u64| Some(tokens - tokens.min(most));
        let before = self.tokens.fetch_update(Relaxed, Relaxed, fewer);
        before.unwrap_or(0).min(most)
    }

    /// Adds the store's grant, pays what is owed, and spends the cost first, if there is enough and the lease
    /// hasn't expired. Returns what remains, and the number of the estimate if the cost is held. No other
    /// request sees the grant before that.
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
        // A grant below the request means that the store has no more: don't query it again before it has, or before
        // this lease expires.
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
        // Release: a thread that sees the expiry sees the tokens.
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

    /// Whether the caller may renew the lease: only one task does at a time.
    pub(super) fn begin_renewal(&self) -> bool {
        !self.renewing.swap(true, Relaxed)
    }

    pub(super) fn end_renewal(&self) {
        self.renewing.store(false, Relaxed);
    }

    /// The maintenance that the lease needs, checked four times in a lease's duration.
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
