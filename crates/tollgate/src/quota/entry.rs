//! What is kept of one key: what it has used by each sort of period that it was charged under.
//!
//! Every account counts every charge, so each quota is judged by what was spent within its own period,
//! whichever quota let it pass.
//!
//! If the clock is set back by more than a period, what counts goes on in the period that the clock shows then.

use std::sync::Arc;

use tollgate_core::{Decision, Outcome};

use super::Quota;
use super::period::{Period, PeriodPart};
use crate::Timestamp;
use crate::clock_steps::CLOCK_SLACK;

/// The most sorts of periods that are told apart for one key. Of more, the two that were asked longest ago
/// are counted as one, that lasts as long as either can.
pub(super) const MAX_PERIODS: usize = 4;

/// One key.
#[derive(Clone, Debug)]
pub(super) struct QuotaEntry {
    pub(super) key: Arc<[u8]>,
    /// A reset changes it, so that what was charged before isn't given back.
    pub(super) id: u64,
    /// The latest time it was charged at. It is never judged at an earlier one.
    pub(super) last_charge_nanos: u64,
    /// The account of the period that it was charged under last.
    pub(super) current: PeriodAccount,
    /// Those of other periods, the most recently charged first.
    pub(super) previous: Vec<PeriodAccount>,
    /// Whether it is to be saved.
    pub(super) is_dirty: bool,
    /// With [`Durability::WriteAhead`](super::Durability): how much more than was used the next save claims.
    pub(super) requested_claim: u64,
}

/// The answer to a key, before anything is charged.
pub(super) struct QuotaEvaluation {
    pub(super) decision: Decision,
    /// The time it was judged at: a key's time never goes back.
    pub(super) at: u64,
    /// What was used before it, which is more than the count after a quota got smaller.
    pub(super) used: u64,
    /// Where a charge that passes is counted by its quota.
    period_part: Option<PeriodPart>,
}

impl QuotaEvaluation {
    /// The answer of an unlimited quota, which counts nothing.
    pub(super) fn unlimited(at: u64) -> Self {
        Self {
            decision: Decision::UNLIMITED,
            at,
            used: 0,
            period_part: None,
        }
    }
}

impl QuotaEntry {
    pub(super) fn new(key: Arc<[u8]>, id: u64, own: PeriodAccount) -> Self {
        Self {
            key,
            id,
            last_charge_nanos: 0,
            current: own,
            previous: Vec::new(),
            is_dirty: false,
            requested_claim: 0,
        }
    }

    pub(super) fn accounts(&self) -> impl Iterator<Item = &PeriodAccount> {
        std::iter::once(&self.current).chain(&self.previous)
    }

    pub(super) fn accounts_mut(&mut self) -> impl Iterator<Item = &mut PeriodAccount> {
        std::iter::once(&mut self.current).chain(&mut self.previous)
    }

    pub(super) fn account(&self, quota: &Quota) -> Option<&PeriodAccount> {
        self.accounts().find(|account| account.counts_period(quota))
    }

    /// When it will be like a key that was never seen.
    pub(super) fn idle_at(&self) -> u64 {
        self.accounts()
            .map(PeriodAccount::idle_at)
            .max()
            .unwrap_or(0)
    }

    /// Its place in the order of idle keys.
    pub(super) fn idle_key(&self) -> (u64, u64) {
        (self.idle_at(), self.id)
    }

    /// What counts under a quota of a period that it was not charged under yet: the most that any other
    /// knows of, as if all of it had been charged when the latest was. That doesn't move as time passes,
    /// so a wait that was told comes true.
    fn carried_usage(&self, quota: &Quota, at: u64) -> Option<UsageLot> {
        let until = quota.part_at(self.last_charge_nanos).until;
        let used = self.accounts().map(|account| account.used(at));
        let amount = used.max().unwrap_or(0);
        (until > at && amount > 0).then_some(UsageLot { until, amount })
    }

    /// Charges a cost that was judged to fit; returns what is used then by its quota, and the peak before.
    pub(super) fn charge(
        &mut self,
        judged: &QuotaEvaluation,
        quota: &Quota,
        cost: u64,
    ) -> (u64, u64) {
        self.switch_period(quota, judged.at);
        self.current.set_part(judged.period_part);
        for account in self.accounts_mut() {
            account.charge(judged.at, cost);
        }
        self.last_charge_nanos = self.last_charge_nanos.max(judged.at);
        let own = &mut self.current;
        let (used, peak) = (own.used(judged.at), own.peak);
        own.peak = peak.max(used);
        (used, peak)
    }

    /// Makes the account of this quota the first; if it is new, it is opened with what counts.
    fn switch_period(&mut self, quota: &Quota, at: u64) {
        if self.current.counts_period(quota) {
            return;
        }
        let place = self
            .previous
            .iter()
            .position(|account| account.counts_period(quota));
        let own = match (place, quota.period()) {
            (Some(place), _) => self.previous.remove(place),
            (None, Some(period)) => {
                let mut own = PeriodAccount::new(Arc::clone(period));
                own.lots.extend(self.carried_usage(quota, at));
                own.peak = own.used(at);
                own
            }
            // It counts nothing, and isn't charged.
            (None, None) => return,
        };
        self.previous
            .insert(0, std::mem::replace(&mut self.current, own));
        if self.previous.len() >= MAX_PERIODS {
            self.merge_oldest(at);
        }
    }

    /// Merges the two accounts that were asked longest ago into one, whose span is as long as either period
    /// can be: whichever is asked again finds no less than was spent.
    fn merge_oldest(&mut self, at: u64) {
        let (Some(one), Some(other)) = (self.previous.pop(), self.previous.pop()) else {
            return;
        };
        let used = one.used(at).max(other.used(at));
        let period = Period::rolling(one.period.longest().max(other.period.longest()));
        let same = self
            .previous
            .iter_mut()
            .find(|account| account.period.tag == period.tag);
        match same {
            Some(same) => same.raise_to(used, at, self.last_charge_nanos),
            None => {
                let mut merged = PeriodAccount::new(Arc::new(period));
                merged.raise_to(used, at, self.last_charge_nanos);
                self.previous.push(merged);
            }
        }
    }

    /// How much of what the file counts already is left for a charge that was judged to fit.
    pub(super) fn claimed(&self, judged: &QuotaEvaluation, quota: &Quota) -> u64 {
        if self.account(quota).is_none() {
            return 0;
        }
        let claimed = self.accounts().map(|account| account.claimed(judged.at));
        claimed.min().unwrap_or(0)
    }

    /// Gives back what was charged at a time, wherever it still counts; returns how much.
    pub(super) fn refund_charge(&mut self, charged_at: u64, cost: u64, now: u64) -> u64 {
        self.update_accounts(now, |account| account.refund_charge(charged_at, cost))
    }

    /// Gives back to the latest lots, whatever they were charged for; returns how much.
    pub(super) fn refund(&mut self, units: u64, now: u64) -> u64 {
        self.update_accounts(now, |account| account.refund(units))
    }

    fn update_accounts(&mut self, now: u64, give: impl Fn(&mut PeriodAccount) -> u64) -> u64 {
        let at = now.max(self.last_charge_nanos);
        let given = self.accounts_mut().map(|account| {
            account.drop_expired(at);
            give(account)
        });
        given.max().unwrap_or(0)
    }
}

/// What a quota finds of a key.
#[derive(Default)]
struct UsageSnapshot {
    used: u64,
    /// When nothing of it will be left.
    reset_at: u64,
    /// When a cost fits.
    fits_at: u64,
}

impl UsageSnapshot {
    fn of(entry: &QuotaEntry, quota: &Quota, at: u64, cost: u64) -> Self {
        let left = quota.count().saturating_sub(cost);
        if let Some(account) = entry.account(quota) {
            return Self {
                used: account.used(at),
                reset_at: account.reset_at(at),
                fits_at: account.time_until_at_most(left, at),
            };
        }
        // Until the key is charged by this period, what counts runs out by whichever ends first.
        let Some(carried) = entry.carried_usage(quota, at) else {
            return Self::default();
        };
        let latest = |time: &dyn Fn(&PeriodAccount) -> u64| {
            let times = entry.accounts().map(time);
            times.max().unwrap_or(0).min(carried.until)
        };
        Self {
            used: carried.amount,
            reset_at: latest(&|account| account.reset_at(at)),
            fits_at: latest(&|account| account.time_until_at_most(left, at)),
        }
    }
}

/// Judges a cost without writing. A key that isn't there is judged no earlier than `floor`.
pub(super) fn evaluate(
    entry: Option<&QuotaEntry>,
    floor: u64,
    quota: &Quota,
    now: u64,
    cost: u64,
    part_at: impl FnOnce(u64) -> PeriodPart,
) -> QuotaEvaluation {
    let at = now.max(entry.map_or(floor, |entry| entry.last_charge_nanos));
    let seen = entry.map(|entry| UsageSnapshot::of(entry, quota, at, cost));
    let seen = seen.unwrap_or_default();
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
    QuotaEvaluation {
        decision,
        at,
        used: seen.used,
        period_part: part,
    }
}

/// The most lots of an account: the parts of a rolling period, and the one it is in.
pub(super) const MAX_LOTS: usize = 64;

/// What was used in one part of a period, and when that counts no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UsageLot {
    pub(super) until: u64,
    pub(super) amount: u64,
}

/// All that a key was charged, under whichever quota, counted by one sort of period. Its lots are in the
/// order of their `until`.
#[derive(Clone, Debug)]
pub(super) struct PeriodAccount {
    pub(super) period: Arc<Period>,
    /// The most that was used since anything ran out: thresholds up to it were told.
    pub(super) peak: u64,
    /// Where the latest charge was counted.
    period_part: PeriodPart,
    pub(super) lots: Vec<UsageLot>,
    /// With [`Durability::WriteAhead`](super::Durability): what the file counts already of the latest lot.
    pub(super) claim: UsageLot,
}

impl PeriodAccount {
    pub(super) fn new(period: Arc<Period>) -> Self {
        Self {
            period,
            peak: 0,
            period_part: PeriodPart::default(),
            // A calendar quota needs no second.
            lots: Vec::with_capacity(1),
            claim: UsageLot::default(),
        }
    }

    /// Whether it counts as this quota does.
    pub(super) fn counts_period(&self, quota: &Quota) -> bool {
        self.period.tag == quota.tag()
    }

    /// The part that a time lies in, if it is that of the latest charge.
    pub(super) fn known_part(&self, at: u64) -> Option<PeriodPart> {
        self.period_part.contains(at).then_some(self.period_part)
    }

    /// Notes the part that the next charge lies in, so that it need not be looked for.
    pub(super) fn set_part(&mut self, part: Option<PeriodPart>) {
        self.period_part = part.unwrap_or(self.period_part);
    }

    fn part_at(&self, at: u64) -> PeriodPart {
        self.known_part(at)
            .unwrap_or_else(|| self.period.part_at(at))
    }

    fn live_lots(&self, at: u64) -> impl Iterator<Item = &UsageLot> {
        self.lots.iter().filter(move |lot| lot.until > at)
    }

    pub(super) fn used(&self, at: u64) -> u64 {
        self.live_lots(at)
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
        let counted = self.live_lots(at).filter(|lot| lot.amount > 0);
        counted.last().map_or(0, |lot| lot.until)
    }

    /// When no more than this much will be used, if nobody uses more.
    pub(super) fn time_until_at_most(&self, most: u64, at: u64) -> u64 {
        let over = u128::from(self.used(at)).saturating_sub(u128::from(most));
        let mut freed = 0;
        let enough = |lot: &&UsageLot| {
            freed += u128::from(lot.amount);
            freed >= over
        };
        match over {
            0 => at,
            _ => self.live_lots(at).find(enough).map_or(at, |lot| lot.until),
        }
    }

    /// Drops what counts no more, and lets thresholds be told again from what is left.
    pub(super) fn drop_expired(&mut self, at: u64) {
        let before = self.lots.len();
        self.lots.retain(|lot| lot.until > at);
        if self.lots.len() < before {
            self.peak = self.used(at);
        }
    }

    /// Counts a cost at this time, in the part that it lies in.
    pub(super) fn charge(&mut self, at: u64, cost: u64) {
        self.drop_expired(at);
        self.period_part = self.part_at(at);
        match self.lots.last_mut() {
            Some(lot) if lot.until >= self.period_part.until => {
                lot.amount = lot.amount.saturating_add(cost);
            }
            _ => self.lots.push(UsageLot {
                until: self.period_part.until,
                amount: cost,
            }),
        }
    }

    /// Uncounts what was charged at this time, as far as it still counts; returns how much.
    pub(super) fn refund_charge(&mut self, charged_at: u64, cost: u64) -> u64 {
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
                self.lots.insert(place, UsageLot { until, amount });
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
    pub(super) fn next_claim(&self, wanted: u64) -> UsageLot {
        let latest = self.lots.last().copied().unwrap_or_default();
        let amount = latest.amount.saturating_add(wanted);
        let before = if self.claim.until == latest.until {
            self.claim.amount
        } else {
            0
        };
        UsageLot {
            until: latest.until,
            amount: amount.max(before),
        }
    }
}

/// How far ahead of the clock a time may be that something of this period was charged at: further, and the
/// clock was set back.
pub(super) fn max_lookahead(period: &Period) -> u64 {
    let slack = u64::try_from(CLOCK_SLACK.as_nanos()).unwrap_or(u64::MAX);
    period.longest().saturating_add(slack)
}

impl QuotaEntry {
    /// Whether it was charged so late that the clock must have been set back since.
    pub(super) fn is_ahead_of(&self, now: u64) -> bool {
        let ahead = self.last_charge_nanos.saturating_sub(now);
        ahead > 0
            && self
                .accounts()
                .all(|account| ahead > max_lookahead(&account.period))
    }

    /// The key as it counts for a clock that was set back to `now`.
    pub(super) fn at_clock(&self, now: u64) -> Self {
        let mut entry = self.clone();
        entry.follow_clock_back(now);
        entry
    }

    pub(super) fn follow_clock_back(&mut self, now: u64) {
        let from = self.last_charge_nanos;
        for account in self.accounts_mut() {
            account.follow_clock_back(from, now);
        }
        self.last_charge_nanos = now;
    }
}

impl PeriodAccount {
    /// What counted when the clock was ahead counts as charged now. What was over then is forgotten, but
    /// for what may be from before the clock went ahead.
    fn follow_clock_back(&mut self, from: u64, to: u64) {
        let counted = self.used(from);
        let reach = max_lookahead(&self.period);
        self.lots
            .retain(|lot| lot.until <= from && lot.until.saturating_sub(to) <= reach);
        self.set_part(Some(PeriodPart::default()));
        self.claim = UsageLot::default();
        if counted > 0 {
            let amount = self.used(to).saturating_add(counted);
            self.raise_to(amount, to, to);
        }
        self.peak = self.peak.min(self.used(to));
    }
}
