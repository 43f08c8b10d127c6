//! A slow and obvious bucket that drains: its debt, in units of which a token has as many as a period has
//! microseconds.

use crate::world::scenario::Amount;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bucket {
    pub(super) debt: u128,
    at: u64,
}

impl Bucket {
    /// Drains the bucket until a time. An earlier time changes nothing.
    pub(super) fn drain(&mut self, now: u64, amount: Amount) {
        if now > self.at {
            let passed = u128::from(now - self.at) * u128::from(amount.count);
            self.debt = self.debt.saturating_sub(passed);
            self.at = now;
        }
    }

    /// Charges a cost if there is room.
    pub(super) fn take(&mut self, now: u64, cost: u64, amount: Amount) -> bool {
        self.drain(now, amount);
        let fits = self.debt + units(cost, amount) <= units(amount.burst, amount);
        if fits {
            self.debt += units(cost, amount);
        }
        fits
    }

    /// How many microseconds until a cost passes.
    pub(super) fn wait(&self, cost: u64, amount: Amount) -> u64 {
        let over = (self.debt + units(cost, amount)).saturating_sub(units(amount.burst, amount));
        let micros = over.div_ceil(u128::from(amount.count.max(1)));
        u64::try_from(micros).unwrap_or(u64::MAX)
    }

    /// Charges as much of a cost as there is room for, in whole tokens.
    pub(super) fn fill(&mut self, now: u64, cost: u64, amount: Amount) {
        self.drain(now, amount);
        let room = units(amount.burst, amount).saturating_sub(self.debt);
        let tokens = (room / units(1, amount).max(1)).min(u128::from(cost));
        self.debt += tokens * units(1, amount);
    }

    /// Charges a cost, even without room for it.
    pub(super) fn charge(&mut self, now: u64, cost: u64, amount: Amount) {
        self.drain(now, amount);
        self.debt += units(cost, amount);
    }

    /// Forgets the debt: from this time on, only the bound of a full bucket is known.
    pub(super) fn forget(&mut self, now: u64, amount: Amount) {
        self.at = now.max(self.at);
        self.debt = self.debt.max(units(amount.burst, amount));
    }
}

/// Tokens in units.
pub(super) fn units(tokens: u64, amount: Amount) -> u128 {
    u128::from(tokens) * u128::from(amount.period)
}
