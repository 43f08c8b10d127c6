//! What is kept of one key: what it has used by each sort of period that it was charged under.
//!
//! Every account counts every charge, so each quota is judged by what was spent within its own period,
//! whichever quota let it pass.

use std::sync::Arc;

use tollgate_core::{Decision, Outcome};

use super::Quota;
use super::account::{Account, Lot};
use super::period::{Part, Period};
use crate::Timestamp;

/// The most sorts of periods that are told apart for one key. Of more, the two that were asked longest ago
/// are counted as one, that lasts as long as either can.
pub(super) const MOST_PERIODS: usize = 4;

/// One key.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: Arc<[u8]>,
    /// A reset changes it, so that what was charged before isn't given back.
    pub(super) id: u64,
    /// The latest time it was charged at. It is never judged at an earlier one.
    pub(super) latest: u64,
    /// The account of the period that it was charged under last.
    pub(super) own: Account,
    /// Those of other periods, the most recently charged first.
    pub(super) others: Vec<Account>,
    /// Whether it is to be saved.
    pub(super) dirty: bool,
    /// With [`Durability::Ahead`](super::Durability): how much more than was used the next save claims.
    pub(super) wanted: u64,
}

/// The answer to a key, before anything is charged.
pub(super) struct Judged {
    pub(super) decision: Decision,
    /// The time it was judged at: a key's time never goes back.
    pub(super) at: u64,
    /// What was used before it, which is more than the count after a quota got smaller.
    pub(super) used: u64,
    /// Where a charge that passes is counted by its quota.
    part: Option<Part>,
}

impl Judged {
    /// The answer of an unlimited quota, which counts nothing.
    pub(super) fn unlimited(at: u64) -> Self {
        Self {
            decision: Decision::UNLIMITED,
            at,
            used: 0,
            part: None,
        }
    }
}

impl Entry {
    pub(super) fn new(key: Arc<[u8]>, id: u64, own: Account) -> Self {
        Self {
            key,
            id,
            latest: 0,
            own,
            others: Vec::new(),
            dirty: false,
            wanted: 0,
        }
    }

    pub(super) fn accounts(&self) -> impl Iterator<Item = &Account> {
        std::iter::once(&self.own).chain(&self.others)
    }

    pub(super) fn accounts_mut(&mut self) -> impl Iterator<Item = &mut Account> {
        std::iter::once(&mut self.own).chain(&mut self.others)
    }

    pub(super) fn account(&self, quota: &Quota) -> Option<&Account> {
        self.accounts().find(|account| account.is_of(quota))
    }

    /// When it will be like a key that was never seen.
    pub(super) fn idle_at(&self) -> u64 {
        self.accounts().map(Account::idle_at).max().unwrap_or(0)
    }

    /// Its place in the order of idle keys.
    pub(super) fn place(&self) -> (u64, u64) {
        (self.idle_at(), self.id)
    }

    /// What counts under a quota of a period that it was not charged under yet: the most that any other
    /// knows of, as if all of it had been charged when the latest was. That doesn't move as time passes,
    /// so a wait that was told comes true.
    fn carried(&self, quota: &Quota, at: u64) -> Option<Lot> {
        let until = quota.part_at(self.latest).until;
        let used = self.accounts().map(|account| account.used(at));
        let amount = used.max().unwrap_or(0);
        (until > at && amount > 0).then_some(Lot { until, amount })
    }

    /// Charges a cost that was judged to fit; returns what is used then by its quota, and the peak before.
    pub(super) fn charge(&mut self, judged: &Judged, quota: &Quota, cost: u64) -> (u64, u64) {
        self.open(quota, judged.at);
        self.own.enter(judged.part);
        for account in self.accounts_mut() {
            account.charge(judged.at, cost);
        }
        self.latest = self.latest.max(judged.at);
        let own = &mut self.own;
        let (used, peak) = (own.used(judged.at), own.peak);
        own.peak = peak.max(used);
        (used, peak)
    }

    /// Makes the account of this quota the first; if it is new, it is opened with what counts.
    fn open(&mut self, quota: &Quota, at: u64) {
        if self.own.is_of(quota) {
            return;
        }
        let place = self.others.iter().position(|account| account.is_of(quota));
        let own = match (place, quota.period()) {
            (Some(place), _) => self.others.remove(place),
            (None, Some(period)) => {
                let mut own = Account::new(Arc::clone(period));
                own.lots.extend(self.carried(quota, at));
                own.peak = own.used(at);
                own
            }
            // It counts nothing, and isn't charged.
            (None, None) => return,
        };
        self.others.insert(0, std::mem::replace(&mut self.own, own));
        if self.others.len() >= MOST_PERIODS {
            self.merge_oldest(at);
        }
    }

    /// Merges the two accounts that were asked longest ago into one, whose span is as long as either period
    /// can be: whichever is asked again finds no less than was spent.
    fn merge_oldest(&mut self, at: u64) {
        let (Some(one), Some(other)) = (self.others.pop(), self.others.pop()) else {
            return;
        };
        let used = one.used(at).max(other.used(at));
        let period = Period::rolling(one.period.longest().max(other.period.longest()));
        let same = self
            .others
            .iter_mut()
            .find(|account| account.period.tag == period.tag);
        match same {
            Some(same) => same.raise_to(used, at, self.latest),
            None => {
                let mut merged = Account::new(Arc::new(period));
                merged.raise_to(used, at, self.latest);
                self.others.push(merged);
            }
        }
    }

    /// How much of what the file counts already is left for a charge that was judged to fit.
    pub(super) fn claimed(&self, judged: &Judged, quota: &Quota) -> u64 {
        if self.account(quota).is_none() {
            return 0;
        }
        let claimed = self.accounts().map(|account| account.claimed(judged.at));
        claimed.min().unwrap_or(0)
    }

    /// Gives back what was charged at a time, wherever it still counts; returns how much.
    pub(super) fn give_back(&mut self, charged_at: u64, cost: u64, now: u64) -> u64 {
        let at = now.max(self.latest);
        let given = self.accounts_mut().map(|account| {
            account.settle(at);
            account.give_back(charged_at, cost)
        });
        given.max().unwrap_or(0)
    }

    /// Gives back to the latest lots, whatever they were charged for; returns how much.
    pub(super) fn refund(&mut self, units: u64, now: u64) -> u64 {
        let at = now.max(self.latest);
        let given = self.accounts_mut().map(|account| {
            account.settle(at);
            account.refund(units)
        });
        given.max().unwrap_or(0)
    }
}

/// What a quota finds of a key.
struct Seen {
    used: u64,
    /// When nothing of it will be left.
    reset_at: u64,
    /// When a cost fits.
    fits_at: u64,
}

impl Seen {
    const NOTHING: Self = Self {
        used: 0,
        reset_at: 0,
        fits_at: 0,
    };

    fn of(entry: &Entry, quota: &Quota, at: u64, cost: u64) -> Self {
        let left = quota.count().saturating_sub(cost);
        if let Some(account) = entry.account(quota) {
            return Self {
                used: account.used(at),
                reset_at: account.reset_at(at),
                fits_at: account.falls_to(left, at),
            };
        }
        // Until the key is charged by this period, what counts runs out by whichever ends first.
        let Some(carried) = entry.carried(quota, at) else {
            return Self::NOTHING;
        };
        let latest = |time: &dyn Fn(&Account) -> u64| {
            let times = entry.accounts().map(time);
            times.max().unwrap_or(0).min(carried.until)
        };
        Self {
            used: carried.amount,
            reset_at: latest(&|account| account.reset_at(at)),
            fits_at: latest(&|account| account.falls_to(left, at)),
        }
    }
}

/// Judges a cost without writing. A key that isn't there is judged no earlier than `floor`.
pub(super) fn judge(
    entry: Option<&Entry>,
    floor: u64,
    quota: &Quota,
    now: u64,
    cost: u64,
    part_at: impl FnOnce(u64) -> Part,
) -> Judged {
    let at = now.max(entry.map_or(floor, |entry| entry.latest));
    let seen = entry.map_or(Seen::NOTHING, |entry| Seen::of(entry, quota, at, cost));
    let wait = |until: u64| Timestamp::from_nanos(until) - Timestamp::from_nanos(now);
    let count = quota.count();
    let left = count.saturating_sub(seen.used);
    let mut part = None;
    let decision = if cost > count {
        let never = std::time::Duration::MAX;
        Decision::new(Outcome::Never, count, left, never, wait(seen.reset_at))
    } else if cost <= left {
        let mut reset_at = seen.reset_at;
        if cost > 0 {
            let known = entry.and_then(|entry| entry.account(quota)?.known_part(at));
            let found = known.unwrap_or_else(|| part_at(at));
            reset_at = reset_at.max(found.until);
            part = Some(found);
        }
        let zero = std::time::Duration::ZERO;
        Decision::new(Outcome::Allowed, count, left - cost, zero, wait(reset_at))
    } else {
        let (retry, reset) = (wait(seen.fits_at), wait(seen.reset_at));
        Decision::new(Outcome::Denied, count, left, retry, reset)
    };
    Judged {
        decision,
        at,
        used: seen.used,
        part,
    }
}
