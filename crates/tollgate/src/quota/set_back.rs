//! Following a clock that was set back by more than a period: what counts goes on in this period, and no
//! new key waits for a time that the clock showed by mistake.

use super::account::{Account, Lot};
use super::entry::Entry;
use super::period::{Part, Period};
use super::table::{Keys, changed};
use crate::steps::SLACK;

/// Keys of each shard that a full table lets follow the clock at once.
const FOLLOWED_WHEN_FULL: usize = 64;

/// How far ahead of the clock a time may be that something of this period was charged at: further, and the
/// clock was set back.
pub(super) fn reach(period: &Period) -> u64 {
    let slack = u64::try_from(SLACK.as_nanos()).unwrap_or(u64::MAX);
    period.longest().saturating_add(slack)
}

impl Keys {
    /// No key that isn't here is judged at an earlier time than this.
    pub(super) fn floor_at(&self, now: u64) -> u64 {
        if self.floor.saturating_sub(now) > self.reach {
            now
        } else {
            self.floor
        }
    }

    /// Lets a key follow a clock that was set back, and new keys too.
    pub(super) fn keep_pace(&mut self, key: &[u8], now: u64) {
        self.floor = self.floor_at(now);
        if let Some(entry) = self.entries.get_mut(key)
            && entry.is_ahead_of(now)
        {
            let indexed = entry.place();
            entry.set_back(now);
            changed(entry, indexed, &mut self.idle, &mut self.dirty);
        }
    }

    /// Lets those keys follow that would be idle last, so that they make room within a period.
    pub(super) fn keep_pace_of_last(&mut self, now: u64) {
        for _ in 0..FOLLOWED_WHEN_FULL {
            let last = self.idle.last_key_value();
            let Some(key) = last.map(|(_, key)| key.clone()) else {
                return;
            };
            let ahead = |entry: &Entry| entry.is_ahead_of(now);
            if !self.entries.get(&key).is_some_and(ahead) {
                return;
            }
            self.keep_pace(&key, now);
        }
    }
}

impl Entry {
    /// Whether it was charged so late that the clock must have been set back since.
    pub(super) fn is_ahead_of(&self, now: u64) -> bool {
        let ahead = self.latest.saturating_sub(now);
        ahead > 0
            && self
                .accounts()
                .all(|account| ahead > reach(&account.period))
    }

    /// The key as it counts for a clock that was set back to `now`.
    pub(super) fn as_of(&self, now: u64) -> Self {
        let mut entry = self.clone();
        entry.set_back(now);
        entry
    }

    fn set_back(&mut self, now: u64) {
        let from = self.latest;
        for account in self.accounts_mut() {
            account.set_back(from, now);
        }
        self.latest = now;
    }
}

impl Account {
    /// What counted when the clock was ahead counts as charged now. What was over then is forgotten, but
    /// for what may be from before the clock went ahead.
    fn set_back(&mut self, from: u64, to: u64) {
        let counted = self.used(from);
        let reach = reach(&self.period);
        self.lots
            .retain(|lot| lot.until <= from && lot.until.saturating_sub(to) <= reach);
        self.enter(Some(Part::EMPTY));
        self.claim = Lot::NONE;
        if counted > 0 {
            let amount = self.used(to).saturating_add(counted);
            self.raise_to(amount, to, to);
        }
        self.peak = self.peak.min(self.used(to));
    }
}
