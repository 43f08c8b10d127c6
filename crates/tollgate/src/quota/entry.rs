//! What is kept of one key: what it has used, and until when that counts.

use std::sync::Arc;

use tollgate_core::{Decision, Outcome};

use super::Quota;
use super::period::Part;
use crate::Timestamp;

/// The most lots of a key: the parts of a rolling period, the one it is in, and one carried over.
pub(super) const MOST_LOTS: usize = 64;

/// What was used in one part of a period, and when that counts no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lot {
    pub(super) until: u64,
    pub(super) amount: u64,
}

impl Lot {
    pub(super) const NONE: Self = Self {
        until: 0,
        amount: 0,
    };
}

/// One key. Its lots are in the order of their `until`.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: Arc<[u8]>,
    /// Another one after a reset or a change of period: what was charged before isn't given back.
    pub(super) id: u64,
    /// The latest time it was charged at. It decides at no earlier one.
    pub(super) latest: u64,
    /// The most that was used since anything ran out: thresholds up to it were told.
    pub(super) peak: u64,
    /// The period it is counted by.
    pub(super) tag: u64,
    /// Where the latest charge was counted.
    pub(super) part: Part,
    pub(super) lots: Vec<Lot>,
    /// Whether it is to be saved.
    pub(super) dirty: bool,
    /// With [`Durability::Ahead`](super::Durability): what the file counts already of the latest lot.
    pub(super) claim: Lot,
    /// How much more than was used the next save claims.
    pub(super) wanted: u64,
}

/// The answer to a key, before anything is charged.
pub(super) struct Judged {
    pub(super) decision: Decision,
    /// The time it was judged at: a key's time never goes back.
    pub(super) at: u64,
    pub(super) part: Part,
}

impl Entry {
    pub(super) fn new(key: Arc<[u8]>, id: u64, tag: u64, part: Part) -> Self {
        Self {
            key,
            id,
            latest: 0,
            peak: 0,
            tag,
            part,
            // A calendar quota needs no second.
            lots: Vec::with_capacity(1),
            dirty: false,
            claim: Lot::NONE,
            wanted: 0,
        }
    }

    pub(super) fn live(&self, at: u64) -> impl Iterator<Item = &Lot> {
        self.lots.iter().filter(move |lot| lot.until > at)
    }

    pub(super) fn used(&self, at: u64) -> u64 {
        self.live(at)
            .fold(0, |sum, lot| sum.saturating_add(lot.amount))
    }

    /// When it will be as one never seen.
    pub(super) fn idle_at(&self) -> u64 {
        self.lots.last().map_or(0, |lot| lot.until)
    }

    /// Its place in the order of idle keys.
    pub(super) fn place(&self) -> (u64, u64) {
        (self.idle_at(), self.id)
    }

    /// Drops what counts no more, and lets thresholds be told again from what is left.
    fn settle(&mut self, at: u64) {
        let before = self.lots.len();
        self.lots.retain(|lot| lot.until > at);
        if self.lots.len() < before {
            self.peak = self.used(at);
        }
    }

    /// What still counts under a quota with another period: as if all of it had been charged when the
    /// latest was. That doesn't move as time passes, so a wait that was told comes true.
    fn carried(&self, quota: &Quota, at: u64) -> Option<Lot> {
        let until = quota.part_at(self.latest).until;
        let amount = self.used(at);
        (until > at && amount > 0).then_some(Lot { until, amount })
    }

    /// Charges a cost that was judged to fit; returns what is used then, and the peak before.
    /// `id` is for a key that is counted by another period from now on.
    pub(super) fn charge(
        &mut self,
        judged: &Judged,
        quota: &Quota,
        id: u64,
        cost: u64,
    ) -> (u64, u64) {
        let part = judged.part;
        if self.tag == quota.tag() {
            self.settle(judged.at);
        } else {
            self.lots = Vec::from_iter(self.carried(quota, judged.at));
            (self.tag, self.id, self.peak) = (quota.tag(), id, self.used(0));
            self.claim = Lot::NONE;
        }
        match self.lots.last_mut() {
            Some(lot) if lot.until >= part.until => {
                lot.amount = lot.amount.saturating_add(cost);
            }
            _ => self.lots.push(Lot {
                until: part.until,
                amount: cost,
            }),
        }
        self.part = part;
        self.latest = self.latest.max(judged.at);
        let (used, peak) = (self.used(judged.at), self.peak);
        self.peak = peak.max(used);
        (used, peak)
    }

    /// How much of what the file counts already is left for a charge that was judged to fit.
    pub(super) fn claimed(&self, judged: &Judged, quota: &Quota) -> u64 {
        let until = judged.part.until;
        if self.tag != quota.tag() || self.claim.until != until {
            return 0;
        }
        let lot = self.lots.last().filter(|lot| lot.until == until);
        let amount = lot.map_or(0, |lot| lot.amount);
        self.claim.amount.saturating_sub(amount)
    }

    /// What the next save counts of the latest lot: never less than one before did.
    pub(super) fn next_claim(&self) -> Lot {
        let latest = self.lots.last().copied().unwrap_or(Lot::NONE);
        let amount = latest.amount.saturating_add(self.wanted);
        let before = if self.claim.until == latest.until {
            self.claim.amount
        } else {
            0
        };
        Lot {
            until: latest.until,
            amount: amount.max(before),
        }
    }

    /// Gives back to the lot that was charged, if it still counts; returns how much.
    pub(super) fn give_back(&mut self, until: u64, cost: u64, at: u64) -> u64 {
        self.settle(at.max(self.latest));
        let Some(lot) = self.lots.iter_mut().find(|lot| lot.until == until) else {
            return 0;
        };
        // A lot of nothing stays until its time, and with it what thresholds were told.
        let given = cost.min(lot.amount);
        lot.amount -= given;
        given
    }

    /// Gives back to the latest lots, whatever they were charged for; returns how much.
    pub(super) fn refund(&mut self, units: u64, at: u64) -> u64 {
        self.settle(at.max(self.latest));
        let mut left = units;
        for lot in self.lots.iter_mut().rev() {
            let given = left.min(lot.amount);
            lot.amount -= given;
            left -= given;
        }
        units - left
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
    let tag = quota.tag();
    let known =
        entry.filter(|entry| entry.tag == tag && entry.part.start <= at && at < entry.part.end);
    let part = known.map_or_else(|| part_at(at), |entry| entry.part);
    let (mut used, mut last) = (0u64, 0);
    // Until the key is charged by another period, what counts runs out by whichever ends first.
    let mut at_most = u64::MAX;
    if let Some(entry) = entry {
        if entry.tag != tag {
            at_most = entry.carried(quota, at).map_or(0, |lot| lot.until);
        }
        for lot in entry.live(at).filter(|lot| lot.amount > 0 && at_most > at) {
            used = used.saturating_add(lot.amount);
            last = lot.until.min(at_most);
        }
    }
    let wait = |until: u64| Timestamp::from_nanos(until) - Timestamp::from_nanos(now);
    let count = quota.count();
    let left = count.saturating_sub(used);
    let decision = if cost > count {
        let never = std::time::Duration::MAX;
        Decision::new(Outcome::Never, count, left, never, wait(last))
    } else if cost <= left {
        if cost > 0 {
            last = last.max(part.until);
        }
        let zero = std::time::Duration::ZERO;
        Decision::new(Outcome::Allowed, count, left - cost, zero, wait(last))
    } else {
        let needed = u128::from(used) + u128::from(cost) - u128::from(count);
        let free_at = entry.and_then(|entry| freed_at(entry, at, needed));
        let free_at = free_at.unwrap_or(last).min(at_most);
        Decision::new(Outcome::Denied, count, left, wait(free_at), wait(last))
    };
    Judged { decision, at, part }
}

/// When so much will have run out.
fn freed_at(entry: &Entry, at: u64, needed: u128) -> Option<u64> {
    let mut freed = 0;
    entry.live(at).find_map(|lot| {
        freed += u128::from(lot.amount);
        (freed >= needed).then_some(lot.until)
    })
}
