//! What a key has used by one sort of period: lots that run out.

use std::sync::Arc;

use super::Quota;
use super::period::{Part, Period};

/// The most lots of an account: the parts of a rolling period, and the one it is in.
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

/// All that a key was charged, under whichever quota, counted by one sort of period. Its lots are in the
/// order of their `until`.
#[derive(Clone, Debug)]
pub(super) struct Account {
    pub(super) period: Arc<Period>,
    /// The most that was used since anything ran out: thresholds up to it were told.
    pub(super) peak: u64,
    /// Where the latest charge was counted.
    part: Part,
    pub(super) lots: Vec<Lot>,
    /// With [`Durability::Ahead`](super::Durability): what the file counts already of the latest lot.
    pub(super) claim: Lot,
}

impl Account {
    pub(super) fn new(period: Arc<Period>) -> Self {
        Self {
            period,
            peak: 0,
            part: Part::EMPTY,
            // A calendar quota needs no second.
            lots: Vec::with_capacity(1),
            claim: Lot::NONE,
        }
    }

    /// Whether it counts as this quota does.
    pub(super) fn is_of(&self, quota: &Quota) -> bool {
        self.period.tag == quota.tag()
    }

    /// The part that a time lies in, if it is that of the latest charge.
    pub(super) fn known_part(&self, at: u64) -> Option<Part> {
        self.part.holds(at).then_some(self.part)
    }

    /// Notes the part that the next charge lies in, so that it need not be looked for.
    pub(super) fn enter(&mut self, part: Option<Part>) {
        self.part = part.unwrap_or(self.part);
    }

    fn part_at(&self, at: u64) -> Part {
        self.known_part(at)
            .unwrap_or_else(|| self.period.part_at(at))
    }

    fn live(&self, at: u64) -> impl Iterator<Item = &Lot> {
        self.lots.iter().filter(move |lot| lot.until > at)
    }

    pub(super) fn used(&self, at: u64) -> u64 {
        self.live(at)
            .fold(0, |sum, lot| sum.saturating_add(lot.amount))
    }

    /// What is in its latest lot.
    pub(super) fn latest(&self) -> u64 {
        self.lots.last().map_or(0, |lot| lot.amount)
    }

    /// When nothing will be left of it.
    pub(super) fn idle_at(&self) -> u64 {
        self.lots.last().map_or(0, |lot| lot.until)
    }

    /// When nothing that counts at `at` will be left.
    pub(super) fn reset_at(&self, at: u64) -> u64 {
        let counted = self.live(at).filter(|lot| lot.amount > 0);
        counted.last().map_or(0, |lot| lot.until)
    }

    /// When no more than this much will be used, if nobody uses more.
    pub(super) fn falls_to(&self, most: u64, at: u64) -> u64 {
        let over = u128::from(self.used(at)).saturating_sub(u128::from(most));
        let mut freed = 0;
        let enough = |lot: &&Lot| {
            freed += u128::from(lot.amount);
            freed >= over
        };
        match over {
            0 => at,
            _ => self.live(at).find(enough).map_or(at, |lot| lot.until),
        }
    }

    /// Drops what counts no more, and lets thresholds be told again from what is left.
    pub(super) fn settle(&mut self, at: u64) {
        let before = self.lots.len();
        self.lots.retain(|lot| lot.until > at);
        if self.lots.len() < before {
            self.peak = self.used(at);
        }
    }

    /// Counts a cost at this time, in the part that it lies in.
    pub(super) fn charge(&mut self, at: u64, cost: u64) {
        self.settle(at);
        self.part = self.part_at(at);
        match self.lots.last_mut() {
            Some(lot) if lot.until >= self.part.until => {
                lot.amount = lot.amount.saturating_add(cost);
            }
            _ => self.lots.push(Lot {
                until: self.part.until,
                amount: cost,
            }),
        }
    }

    /// Uncounts what was charged at this time, as far as it still counts; returns how much.
    pub(super) fn give_back(&mut self, charged_at: u64, cost: u64) -> u64 {
        let until = self.part_at(charged_at).until;
        let Some(lot) = self.lots.iter_mut().find(|lot| lot.until == until) else {
            return 0;
        };
        // A lot of nothing stays until its time, and with it what thresholds were told.
        let given = cost.min(lot.amount);
        lot.amount -= given;
        given
    }

    /// Uncounts from the latest lots; returns how much.
    pub(super) fn refund(&mut self, units: u64) -> u64 {
        let mut left = units;
        for lot in self.lots.iter_mut().rev() {
            let given = left.min(lot.amount);
            lot.amount -= given;
            left -= given;
        }
        units - left
    }

    /// Counts at least this much, as if what is missing had been charged then.
    pub(super) fn raise_to(&mut self, amount: u64, at: u64, charged_at: u64) {
        let until = self.part_at(charged_at).until;
        let missing = amount.saturating_sub(self.used(at));
        if missing == 0 || until <= at {
            return;
        }
        let place = self.lots.partition_point(|lot| lot.until < until);
        match self.lots.get_mut(place) {
            Some(lot) if lot.until == until => lot.amount = lot.amount.saturating_add(missing),
            _ => {
                let amount = missing;
                self.lots.insert(place, Lot { until, amount });
            }
        }
    }

    /// How much of what the file counts already is left for a charge at this time.
    pub(super) fn claimed(&self, at: u64) -> u64 {
        let until = self.part_at(at).until;
        if self.claim.until != until {
            return 0;
        }
        let lot = self.lots.last().filter(|lot| lot.until == until);
        let amount = lot.map_or(0, |lot| lot.amount);
        self.claim.amount.saturating_sub(amount)
    }

    /// What the next save counts of the latest lot, with this much more than was used: never less than
    /// one before did.
    pub(super) fn next_claim(&self, wanted: u64) -> Lot {
        let latest = self.lots.last().copied().unwrap_or(Lot::NONE);
        let amount = latest.amount.saturating_add(wanted);
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
}
