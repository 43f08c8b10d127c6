//! Tokens that requests have of a book, and that may come back: held until it is known what becomes of them, or spent and
//! put back.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use tollgate::Timestamp;

use super::accounts::{HeldEstimate, TokenAccounts};
use super::{LeaseBook, SpendOutcome};
use crate::lease::request::FORGIVE_ALL;

/// When something was spent, in terms of what the store was told of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpendStamp {
    plans: u64,
    lapses: u64,
    at: Timestamp,
}

impl LeaseBook {
    /// To be taken before something is spent that may be put back.
    pub(in crate::lease) fn stamp(&self, at: Timestamp) -> SpendStamp {
        SpendStamp {
            plans: self.plans.load(Relaxed),
            lapses: self.lapses.load(Relaxed),
            at,
        }
    }

    /// Puts back what was spent a moment ago by a request that was given up: the next plan returns it.
    pub(in crate::lease) fn restore_after_report(&self, cost: u64, now: Timestamp) {
        self.accounts().add_late(cost, now);
    }

    /// Puts back what was spent after this. If the store was told meanwhile that it is spent, it goes to an account, and
    /// the next plan returns it; if the store has taken all of it for lost, so it is.
    pub(in crate::lease) fn restore(&self, now: Timestamp, cost: u64, stamp: SpendStamp) {
        // A plan counts first, and looks at what is here under the lock.
        let mut accounts = self.accounts();
        if self.lapses.load(Relaxed) != stamp.lapses {
            return;
        }
        if self.plans.load(Relaxed) != stamp.plans {
            accounts.add_late(cost, stamp.at);
        } else if now.as_nanos() < self.expires_at.load(Acquire) {
            self.tokens.fetch_add(cost, Relaxed);
        }
    }

    /// Forgives so much of what is owed to the store, and says how much more is to be forgiven there.
    pub(in crate::lease) fn forgive(&self, tokens: u64) -> u64 {
        let mut accounts = self.accounts();
        let paid = accounts.owed.min(tokens);
        accounts.owed -= paid;
        match tokens {
            FORGIVE_ALL => tokens,
            _ => tokens - paid,
        }
    }

    /// The store counts all that was out as spent, and what isn't here any more.
    pub(super) fn mark_lapsed(&self, accounts: &mut TokenAccounts) {
        self.lapses.fetch_add(1, Relaxed);
        accounts.drop_all_estimates();
    }

    /// Holds a cost for a request, if it is here.
    pub(in crate::lease) fn hold(
        &self,
        now: Timestamp,
        cost: u64,
        until: Timestamp,
    ) -> (SpendOutcome, Option<u64>) {
        let mut accounts = self.accounts();
        let spent = self.spend(now, cost);
        let number = match spent {
            SpendOutcome::Passed { .. } => Some(accounts.open_estimate(cost, until)),
            _ => None,
        };
        (spent, number)
    }

    /// A request cost so much of what it held: the rest is here again, and what it cost beyond that is spent from
    /// what is here, or owed, up to this. Returns whether the store has to be told soon.
    pub(in crate::lease) fn settle_estimate(
        &self,
        now: Timestamp,
        number: u64,
        spent: u64,
        most_owed: u64,
    ) -> bool {
        let mut accounts = self.accounts();
        accounts.expire_estimates(now);
        let is_live = now.as_nanos() < self.expires_at.load(Acquire);
        let Some(HeldEstimate { tokens, .. }) = accounts.estimates.remove(&number) else {
            // It was spent when its time, or the lease's, was over.
            return false;
        };
        accounts.held_for_requests -= tokens;
        accounts.has_settled_estimates = true;
        let mut rest = tokens.saturating_sub(spent);
        if is_live {
            let paid = rest.min(accounts.owed);
            (accounts.owed, rest) = (accounts.owed - paid, rest - paid);
        }
        if rest > 0 && is_live {
            // What was noted of it wasn't spent.
            accounts.recorded_as_spent -= accounts.recorded_as_spent.min(rest);
            self.tokens.fetch_add(rest, Relaxed);
        }
        let beyond = spent.saturating_sub(tokens);
        self.charge_overrun(&mut accounts, now, beyond, most_owed);
        is_live || accounts.owed > 0
    }

    /// A request cost so much more than was charged when its estimate ended: that is spent from what is here, or owed, up to
    /// this. Returns whether the store has to be told soon.
    pub(in crate::lease) fn charge_late(&self, now: Timestamp, more: u64, most_owed: u64) -> bool {
        let mut accounts = self.accounts();
        accounts.expire_estimates(now);
        self.charge_overrun(&mut accounts, now, more, most_owed);
        accounts.owed > 0
    }

    /// Spends from what is here, if that is live; the rest is owed.
    fn charge_overrun(
        &self,
        accounts: &mut TokenAccounts,
        now: Timestamp,
        mut beyond: u64,
        most_owed: u64,
    ) {
        let is_live = now.as_nanos() < self.expires_at.load(Acquire);
        if beyond > 0 && is_live {
            beyond -= self.remove_tokens(beyond);
        }
        accounts.owed = accounts.owed.saturating_add(beyond).min(most_owed);
    }

    /// An estimate is spent by itself then, and not before.
    pub(in crate::lease) fn prolong(&self, number: u64, until: Timestamp) {
        self.accounts().extend_estimate(number, until);
    }
}
