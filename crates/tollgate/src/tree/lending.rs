//! Who may borrow spare capacity: by virtual time among borrowers of one priority, and lower priorities
//! after higher ones.
//!
//! A limiter has no queue to serve in order; it decides each request as it comes. So the order comes
//! from how much a borrower must leave in the lender's bucket (its *floor*): the borrower that should
//! be served next has the lowest floor. As the bucket refills, that borrower passes first if it
//! requests; if it doesn't, the bucket fills on until the next one passes. Nothing is lost as long as
//! the bucket isn't full, and with a full bucket every borrower passes.

use std::time::Duration;

use tollgate_core::{Arithmetic, LimitLedger, Rate, Timestamp, TokenBucket};

use super::node::PRIORITIES;

/// How long a borrower has demand after a request.
pub(super) const DEMAND_DURATION: Duration = Duration::from_secs(1);

/// The state of a branch for its borrowers, and for its own borrowing.
#[derive(Clone, Debug)]
pub(super) struct Lending {
    /// What is guaranteed to the children, as one bucket.
    pub(super) promised: PromisedRate,
    /// The least stride, that of the heaviest child.
    pub(super) smallest_stride: u64,
    /// The number of children.
    pub(super) children: u32,
    shares: [PriorityShare; PRIORITIES],
    /// The virtual time of its own loans from its parent, for each priority.
    pub(super) tags: [u128; PRIORITIES],
}

/// The borrowers of one priority.
#[derive(Clone, Debug, Default)]
struct PriorityShare {
    /// The virtual time: the latest at which any borrower was served.
    clock: u128,
    /// The borrower that requested last and its time; and the latest time of any other.
    last_asker: u32,
    last_asked: Option<Timestamp>,
    other_asked: Option<Timestamp>,
}

/// A class that wants to borrow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Borrower {
    pub(super) slot: u32,
    pub(super) priority: usize,
    /// The virtual time at which it has used up its share.
    pub(super) tag: u128,
    /// How far a token moves that time.
    pub(super) stride: u64,
    /// A 64th of the lender's burst: what a borrower leaves for others with demand.
    pub(super) quantum: u64,
}

/// What the children of a branch could claim: a bucket with the sums of their rates and of their
/// bursts, charged with their claims.
///
/// It never has less than the children have together. The sums are equal when all are full, a claim is
/// taken from both, and this bucket refills as fast as all children together, while a full child stops
/// refilling.
#[derive(Clone, Debug, Default)]
pub(super) struct PromisedRate {
    /// Tokens an hour.
    rate: u128,
    burst: u128,
    /// None as long as nothing is guaranteed.
    bucket: Option<LimitLedger<TokenBucket>>,
}

/// The rate and burst of one class, or the sum of several.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RateSum {
    pub(super) rate: u128,
    pub(super) burst: u128,
}

const HOUR: Duration = Duration::from_secs(3_600);
/// The highest rate of a bucket, which stands for all higher ones.
const FASTEST_AN_HOUR: u64 = 100_000_000_000_000;
const LARGEST_BURST: u64 = 1 << 60;

impl RateSum {
    /// The sum of this many classes of this rate.
    pub(super) fn of(limit: &TokenBucket, classes: u32) -> Self {
        let rate = limit.rate();
        let an_hour = match rate.period() {
            Some(period) => {
                let hours = u128::from(rate.count()).saturating_mul(HOUR.as_nanos());
                hours.div_ceil(period.as_nanos())
            }
            None => u128::from(rate.count()),
        };
        let classes = u128::from(classes);
        Self {
            rate: an_hour.saturating_mul(classes),
            burst: u128::from(limit.limit()).saturating_mul(classes),
        }
    }
}

impl PromisedRate {
    /// Replaces the guarantee `before` by `after`.
    pub(super) fn change(&mut self, before: RateSum, after: RateSum) {
        let change = |sum: u128, less: u128, more| sum.saturating_sub(less).saturating_add(more);
        self.rate = change(self.rate, before.rate, after.rate);
        self.burst = change(self.burst, before.burst, after.burst);
        let fit = |wide, most: u64| u64::try_from(wide).unwrap_or(most).min(most);
        let rate = Rate::new(fit(self.rate, FASTEST_AN_HOUR), HOUR);
        let rate = rate.burst(fit(self.burst, LARGEST_BURST));
        // An added guarantee counts immediately, so the bucket can't be carried over. A full bucket is
        // never less than what the children have.
        self.bucket = TokenBucket::new(rate).ok().map(LimitLedger::new);
    }

    /// The guarantees; none as long as there are none.
    pub(super) const fn bucket(&self) -> Option<&LimitLedger<TokenBucket>> {
        self.bucket.as_ref()
    }

    /// The most that the children could claim now.
    pub(super) fn upper_bound(&self, now: Timestamp) -> u64 {
        let Some(book) = &self.bucket else {
            return 0;
        };
        let left = book.limit().remaining(book.state(), now);
        // A partial token counts as a whole one.
        left.saturating_add(1).min(book.limit().limit())
    }

    /// Takes a child's claim, as far as it is there.
    pub(super) fn charge(&mut self, now: Timestamp, cost: u64) {
        if let Some(book) = &mut self.bucket {
            let _ = book.allow(now, cost);
        }
    }

    /// Returns a refunded claim. This bucket is an upper bound of claims, so an extra refund is safe.
    pub(super) fn refund(&mut self, now: Timestamp, cost: u64) {
        if let Some(book) = &mut self.bucket {
            book.refund(now, cost);
        }
    }
}

/// How many quanta a borrower may be behind its share and still catch up later.
const REMEMBERED_QUANTA: u64 = 8;

impl Default for Lending {
    fn default() -> Self {
        Self {
            promised: PromisedRate::default(),
            smallest_stride: u64::MAX,
            children: 0,
            shares: Default::default(),
            tags: [0; PRIORITIES],
        }
    }
}

impl Lending {
    /// How much it must leave for lower priority numbers, as long as they have demand.
    pub(super) fn higher_priority_reserve(&self, who: &Borrower, now: Timestamp) -> u64 {
        let ahead = self.shares[..who.priority]
            .iter()
            .filter(|share| is_demanding(share.last_asked, now))
            .count();
        u64::try_from(ahead)
            .unwrap_or(0)
            .saturating_mul(who.quantum.saturating_mul(2))
    }

    /// How much it must leave for others of its own priority, as long as they have demand: a quantum,
    /// and more or less by how far it is ahead of its share or behind.
    ///
    /// That is measured in the same unit of virtual time for all, a token of the heaviest class.
    /// Measured in its own tokens, a light class would be admitted one token early, which is hundreds
    /// of the heaviest's.
    pub(super) fn turn_reserve(&self, who: &Borrower, now: Timestamp) -> u64 {
        let share = &self.shares[who.priority];
        if !is_demanding(share.last_asked_by_others(who), now) {
            return 0;
        }
        let unit = self.smallest_stride.min(who.stride);
        let quanta = |count: u64| u128::from(unit) * u128::from(who.quantum * count);
        let ahead = who
            .tag
            .saturating_add(quanta(1))
            .saturating_sub(share.clock)
            .min(quanta(2));
        // Below two quanta it nearly always fits 64 bits, where division is fast.
        match u64::try_from(ahead) {
            Ok(ahead) => ahead / unit,
            Err(_) => u64::try_from(ahead / u128::from(unit)).unwrap_or(u64::MAX),
        }
    }

    /// When the first demand expires that this borrower leaves something for.
    pub(super) fn demand_expires_at(&self, who: &Borrower, now: Timestamp) -> Option<Timestamp> {
        let first = self.shares[..who.priority]
            .iter()
            .map(|share| share.last_asked);
        first
            .chain([self.shares[who.priority].last_asked_by_others(who)])
            .flatten()
            .filter(|asked| is_demanding(Some(*asked), now))
            .min()
            .map(|asked| asked + DEMAND_DURATION)
    }

    /// Records the demand of a borrower.
    pub(super) fn note_demand(&mut self, who: &Borrower, now: Timestamp) {
        let share = &mut self.shares[who.priority];
        if share.last_asker != who.slot {
            share.other_asked = share.last_asked;
            share.last_asker = who.slot;
        }
        share.last_asked = share.last_asked.max(Some(now));
    }

    /// Clears all demand, as if no request had come lately.
    #[cfg(test)]
    pub(super) fn forget_wants(&mut self) {
        for share in &mut self.shares {
            (share.last_asker, share.last_asked, share.other_asked) = (0, None, None);
        }
    }

    /// Records a loan; returns the borrower's new tag.
    pub(super) fn advance_tag(&mut self, who: &Borrower, cost: u64) -> u128 {
        // Start-time fair queueing with a memory: a borrower that is a little behind catches up.
        let by_time = u128::from(self.smallest_stride.min(who.stride)) * u128::from(who.quantum);
        let by_tokens = u128::from(who.stride) * u128::from(who.quantum.min(REMEMBERED_QUANTA));
        let share = &mut self.shares[who.priority];
        let start = share.clock.saturating_sub(by_time.max(by_tokens));
        let start = start.max(who.tag);
        share.clock = share.clock.max(start);
        start.saturating_add(u128::from(who.stride) * u128::from(cost))
    }
}

impl PriorityShare {
    /// The latest request of any other borrower.
    fn last_asked_by_others(&self, who: &Borrower) -> Option<Timestamp> {
        if self.last_asker == who.slot {
            self.other_asked
        } else {
            self.last_asked
        }
    }
}

fn is_demanding(asked: Option<Timestamp>, now: Timestamp) -> bool {
    asked.is_some_and(|asked| now - asked < DEMAND_DURATION)
}
