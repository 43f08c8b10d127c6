//! The state of one key: its usage, counted separately by each kind of period that it was charged
//! under.
//!
//! Every account counts every charge. So each quota is evaluated by the usage within its own period,
//! whichever quota allowed the charges.
//!
//! If the clock is set back by more than a period, the counted usage continues in the period that the
//! clock shows then.

use std::sync::Arc;

use tollgate_core::{Decision, Outcome};

use super::Quota;
use super::period::{Period, PeriodPart};
use crate::Timestamp;
use crate::clock_steps::CLOCK_SLACK;

/// The most kinds of periods that are counted separately for a key. Beyond that, the two that were
/// charged least recently are merged into one whose lots live as long as either's.
pub(super) const MAX_PERIODS: usize = 4;

/// One key.
#[derive(Clone, Debug)]
pub(super) struct QuotaEntry {
    pub(super) key: Arc<[u8]>,
    /// A reset changes it, so that earlier charges can't be refunded.
    pub(super) id: u64,
    /// The time of the latest charge. The key is never evaluated at an earlier time.
    pub(super) last_charge_nanos: u64,
    /// The account of the period of the latest charge.
    pub(super) current: PeriodAccount,
    /// The accounts of other periods, the most recently charged first.
    pub(super) previous: Vec<PeriodAccount>,
    /// Whether it has changes that aren't saved.
    pub(super) is_dirty: bool,
    /// With [`Durability::WriteAhead`](super::Durability): how many units beyond the used ones the next
    /// save claims.
    pub(super) requested_claim: u64,
}

/// The decision about a key, before anything is charged.
pub(super) struct QuotaEvaluation {
    pub(super) decision: Decision,
    /// The time of the evaluation, which never goes back for a key.
    pub(super) at: u64,
    /// The usage before the charge; above the count if the quota was lowered.
    pub(super) used: u64,
    /// The part of the period in which the quota counts the charge.
    period_part: Option<PeriodPart>,
}

impl QuotaEvaluation {
    /// The decision of an unlimited quota, which counts nothing.
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

    /// The time from which it is indistinguishable from an unknown key.
    pub(super) fn idle_at(&self) -> u64 {
        self.accounts()
            .map(PeriodAccount::idle_at)
            .max()
            .unwrap_or(0)
    }

    /// Its position in the order of idle keys.
    pub(super) fn idle_key(&self) -> (u64, u64) {
        (self.idle_at(), self.id)
    }

    /// The usage that a new kind of period starts with: the most that any other account counts, as if
    /// all of it had been charged at the latest charge. That doesn't change as time passes, so an
    /// announced wait stays true.
    fn carried_usage(&self, quota: &Quota, at: u64) -> Option<UsageLot> {
        let until = quota.part_at(self.last_charge_nanos).until;
        let used = self.accounts().map(|account| account.used(at));
        let amount = used.max().unwrap_or(0);
        (until > at && amount > 0).then_some(UsageLot { until, amount })
    }

    /// Charges a cost that was evaluated to fit. Returns the usage under its quota, and the peak
    /// before.
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

    /// Makes the account of this quota the current one; a new one starts with the carried usage.
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
            // An unlimited quota counts nothing, so it has no account.
            (None, None) => return,
        };
        self.previous
            .insert(0, std::mem::replace(&mut self.current, own));
        if self.previous.len() >= MAX_PERIODS {
            self.merge_oldest(at);
        }
    }

    /// Merges the two accounts that were charged least recently into one, whose span covers both.
    /// Whichever period is used again finds no less than was spent.
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

    /// How many units of the saved claim remain for a charge that was evaluated to fit.
    pub(super) fn claimed(&self, judged: &QuotaEvaluation, quota: &Quota) -> u64 {
        if self.account(quota).is_none() {
            return 0;
        }
        let claimed = self.accounts().map(|account| account.claimed(judged.at));
        claimed.min().unwrap_or(0)
    }

    /// Refunds a charge that was made at this time, in every account where it still counts. Returns the
    /// refunded units.
    pub(super) fn refund_charge(&mut self, charged_at: u64, cost: u64, now: u64) -> u64 {
        self.update_accounts(now, |account| account.refund_charge(charged_at, cost))
    }

    /// Refunds units of the latest lots, whatever they were charged for. Returns the refunded units.
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

/// A key's usage under one quota.
#[derive(Default)]
struct UsageSnapshot {
    used: u64,
    /// The time when nothing of it counts any more.
    reset_at: u64,
    /// The time when the cost fits.
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
        // Until the key is charged under this period, its usage expires with the account or the period,
        // whichever is first.
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

/// Evaluates a cost without writing. An unknown key is evaluated no earlier than `floor`.
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

/// The most lots of an account: the parts of a rolling period, and the current part.
pub(super) const MAX_LOTS: usize = 64;

/// The usage within one part of a period, and the time until which it counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UsageLot {
    pub(super) until: u64,
    pub(super) amount: u64,
}

/// All charges of a key, whatever their quota, counted by one kind of period. Lots are ordered by
/// `until`.
#[derive(Clone, Debug)]
pub(super) struct PeriodAccount {
    pub(super) period: Arc<Period>,
    /// The most usage since the last lot expired. Thresholds up to it were notified already.
    pub(super) peak: u64,
    /// The part of the latest charge.
    period_part: PeriodPart,
    pub(super) lots: Vec<UsageLot>,
    /// With [`Durability::WriteAhead`](super::Durability): the units of the latest lot that the file
    /// counts as used already.
    pub(super) claim: UsageLot,
}

impl PeriodAccount {
    pub(super) fn new(period: Arc<Period>) -> Self {
        Self {
            period,
            peak: 0,
            period_part: PeriodPart::default(),
            // A calendar quota needs no second lot.
            lots: Vec::with_capacity(1),
            claim: UsageLot::default(),
        }
    }

    /// Whether it counts by the same period as this quota.
    pub(super) fn counts_period(&self, quota: &Quota) -> bool {
        self.period.tag == quota.tag()
    }

    /// The part that contains a time, if that is the part of the latest charge.
    pub(super) fn known_part(&self, at: u64) -> Option<PeriodPart> {
        self.period_part.contains(at).then_some(self.period_part)
    }

    /// Remembers the part of the next charge, so that it needn't be computed again.
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

    /// The units in the latest lot.
    pub(super) fn latest(&self) -> u64 {
        self.lots.last().map_or(0, |lot| lot.amount)
    }

    /// The time when nothing of it counts any more.
    pub(super) fn idle_at(&self) -> u64 {
        self.lots.last().map_or(0, |lot| lot.until)
    }

    /// The time when nothing that counts at `at` counts any more.
    pub(super) fn reset_at(&self, at: u64) -> u64 {
        let counted = self.live_lots(at).filter(|lot| lot.amount > 0);
        counted.last().map_or(0, |lot| lot.until)
    }

    /// The time when usage has fallen to `most`, if no further request comes.
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

    /// Drops expired lots, and lowers the peak so that thresholds can be notified again.
    pub(super) fn drop_expired(&mut self, at: u64) {
        let before = self.lots.len();
        self.lots.retain(|lot| lot.until > at);
        if self.lots.len() < before {
            self.peak = self.used(at);
        }
    }

    /// Counts a cost in the part that contains this time.
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

    /// Refunds a charge of this time, as far as it still counts. Returns the refunded units.
    pub(super) fn refund_charge(&mut self, charged_at: u64, cost: u64) -> u64 {
        let until = self.part_at(charged_at).until;
        let Some(lot) = self.lots.iter_mut().find(|lot| lot.until == until) else {
            return 0;
        };
        // An empty lot stays until it expires, and so does the peak that marks notified thresholds.
        let given = cost.min(lot.amount);
        lot.amount -= given;
        given
    }

    /// Refunds units of the latest lots. Returns the refunded units.
    pub(super) fn refund(&mut self, units: u64) -> u64 {
        let mut left = units;
        for lot in self.lots.iter_mut().rev() {
            let given = left.min(lot.amount);
            lot.amount -= given;
            left -= given;
        }
        units - left
    }

    /// Raises the usage to at least this amount, as if the missing units had been charged at that time.
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

    /// How many units of the saved claim remain for a charge at this time.
    pub(super) fn claimed(&self, at: u64) -> u64 {
        let until = self.part_at(at).until;
        if self.claim.until != until {
            return 0;
        }
        let lot = self.lots.last().filter(|lot| lot.until == until);
        let amount = lot.map_or(0, |lot| lot.amount);
        self.claim.amount.saturating_sub(amount)
    }

    /// What the next save counts for the latest lot, with `wanted` units beyond the used ones. Never
    /// less than an earlier save counted.
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

/// How far ahead of the clock a charge of this period may be counted. Anything further means that the
/// clock was set back.
pub(super) fn max_lookahead(period: &Period) -> u64 {
    let slack = u64::try_from(CLOCK_SLACK.as_nanos()).unwrap_or(u64::MAX);
    period.longest().saturating_add(slack)
}

impl QuotaEntry {
    /// Whether its charges are so far ahead of `now` that the clock must have been set back since.
    pub(super) fn is_ahead_of(&self, now: u64) -> bool {
        let ahead = self.last_charge_nanos.saturating_sub(now);
        ahead > 0
            && self
                .accounts()
                .all(|account| ahead > max_lookahead(&account.period))
    }

    /// The key as it counts after the clock was set back to `now`.
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
    /// Moves usage from the time before the clock was set back: what counted then counts as charged
    /// now. What had expired by then is dropped, unless it may date from before the clock went ahead.
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
