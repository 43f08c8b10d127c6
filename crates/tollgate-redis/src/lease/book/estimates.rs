//! Tokens of a book that requests may return: held until their outcome is known, or spent and put back.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use tollgate::Timestamp;

use super::accounts::{HeldEstimate, TokenAccounts};
use super::{LeaseBook, SpendOutcome};
use crate::lease::request::FORGIVE_ALL;

/// When tokens were spent, relative to the reports to the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpendStamp {
    plans: u64,
    lapses: u64,
    at: Timestamp,
}

impl LeaseBook {
    /// A stamp from before a spending that may be put back.
    pub(in crate::lease) fn stamp(&self, at: Timestamp) -> SpendStamp {
        SpendStamp {
            plans: self.plans.load(Relaxed),
            lapses: self.lapses.load(Relaxed),
            at,
        }
    }

    /// Puts back what a cancelled request spent a moment ago: the next plan returns it to the store.
    pub(in crate::lease) fn restore_after_report(&self, cost: u64, now: Timestamp) {
        self.accounts().add_late(cost, now);
    }

    /// Puts back what was spent after this stamp. If a plan has reported it as spent since, the next plan
    /// returns it to the store. If the store has counted the lease as lost since, the tokens are lost too.
    pub(in crate::lease) fn restore(&self, now: Timestamp, cost: u64, stamp: SpendStamp) {
        // A plan increments its count first, and reads the tokens under this lock.
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

    /// Forgives this much of the debt to the store, and returns how much more is to be forgiven there.
    pub(in crate::lease) fn forgive(&self, tokens: u64) -> u64 {
        let mut accounts = self.accounts();
        let paid = accounts.owed.min(tokens);
        accounts.owed -= paid;
        match tokens {
            FORGIVE_ALL => tokens,
            _ => tokens - paid,
        }
    }

    /// Records that the store counts all that was out as spent, and all that isn't here any more.
    pub(super) fn mark_lapsed(&self, accounts: &mut TokenAccounts) {
        self.lapses.fetch_add(1, Relaxed);
        accounts.drop_all_estimates();
    }

    /// Holds a cost for a request, if there are enough tokens here.
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

    /// Settles an estimate to its actual cost. Unused tokens are here again; cost beyond the estimate is spent
    /// from the tokens here, or owed, up to `most_owed`. Returns whether the store needs a report soon.
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
            // The estimate or the lease has expired, so it was spent.
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
            // The unused part was recorded as spent, and wasn't.
            accounts.recorded_as_spent -= accounts.recorded_as_spent.min(rest);
            self.tokens.fetch_add(rest, Relaxed);
        }
        let beyond = spent.saturating_sub(tokens);
        self.charge_overrun(&mut accounts, now, beyond, most_owed);
        is_live || accounts.owed > 0
    }

    /// Charges cost beyond the estimate after it has expired: spent from the tokens here, or owed, up to
    /// `most_owed`. Returns whether the store needs a report soon.
    pub(in crate::lease) fn charge_late(&self, now: Timestamp, more: u64, most_owed: u64) -> bool {
        let mut accounts = self.accounts();
        accounts.expire_estimates(now);
        self.charge_overrun(&mut accounts, now, more, most_owed);
        accounts.owed > 0
    }

    /// Spends from the tokens here, if the lease hasn't expired; the rest is owed.
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

    /// Extends an estimate: it counts as spent at that time, and not before.
    pub(in crate::lease) fn prolong(&self, number: u64, until: Timestamp) {
        self.accounts().extend_estimate(number, until);
    }
}
