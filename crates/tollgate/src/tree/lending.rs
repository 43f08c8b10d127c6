//! Who may borrow what is spare: by virtual time among borrowers of one priority, and lower priorities after
//! higher ones.
//!
//! A limiter has no queue to serve in order; it decides each request as it comes. So order is made
//! by how much a borrower has to leave in the lender's bucket (its *floor*): whoever is served next
//! has the lowest one. As the bucket refills, the borrower with the lowest floor passes first if it
//! is asking, and if it isn't, the bucket fills on until the next one passes. Nothing is lost as
//! long as the bucket isn't full, and with a full bucket everyone passes.

use std::time::Duration;

use tollgate_core::{Arithmetic, LimitLedger, Rate, Timestamp, TokenBucket};

use super::node::PRIORITIES;

/// For how long after it asked a borrower counts as wanting.
pub(super) const DEMAND_DURATION: Duration = Duration::from_secs(1);

/// What a branch keeps about those who borrow from it, and about its own borrowing.
#[derive(Clone, Debug)]
pub(super) struct Lending {
    /// What is promised to the classes below, as one bucket.
    pub(super) promised: PromisedRate,
    /// The least stride, that of the heaviest class below.
    pub(super) smallest_stride: u64,
    /// How many classes hang on it.
    pub(super) children: u32,
    shares: [PriorityShare; PRIORITIES],
    /// The virtual time of its own loans from its parent, one a priority.
    pub(super) tags: [u128; PRIORITIES],
}

/// Those of one priority.
#[derive(Clone, Debug, Default)]
struct PriorityShare {
    /// The virtual time: the latest at which anyone was served.
    clock: u128,
    /// Who asked last, and when; and when anybody else did.
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
    /// A 64th of the lender's burst: what a borrower leaves for others who want.
    pub(super) quantum: u64,
}

/// What the children of a branch could claim: a bucket with the sum of their rates and of their bursts,
/// charged with what they claim.
///
/// It never has less than they have together: their sums are the same when all are full, what they
/// claim is taken from both, and it refills as fast as all of them, while a child that is full stops.
#[derive(Clone, Debug, Default)]
pub(super) struct PromisedRate {
    /// Tokens an hour.
    rate: u128,
    burst: u128,
    /// None as long as nothing is promised.
    bucket: Option<LimitLedger<TokenBucket>>,
}

/// One class, or several, as they add up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RateSum {
    pub(super) rate: u128,
    pub(super) burst: u128,
}

const HOUR: Duration = Duration::from_secs(3_600);
/// The fastest and the largest that a bucket takes, which stand for all beyond.
const FASTEST_AN_HOUR: u64 = 100_000_000_000_000;
const LARGEST_BURST: u64 = 1 << 60;

impl RateSum {
    /// So many classes of this rate.
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
    /// Promises `after` instead of `before`.
    pub(super) fn change(&mut self, before: RateSum, after: RateSum) {
        let change = |sum: u128, less: u128, more| sum.saturating_sub(less).saturating_add(more);
        self.rate = change(self.rate, before.rate, after.rate);
        self.burst = change(self.burst, before.burst, after.burst);
        let fit = |wide, most: u64| u64::try_from(wide).unwrap_or(most).min(most);
        let rate = Rate::new(fit(self.rate, FASTEST_AN_HOUR), HOUR);
        let rate = rate.burst(fit(self.burst, LARGEST_BURST));
        // What is added is promised at once, so the bucket can't be carried over: full is never less
        // than what the children have.
        self.bucket = TokenBucket::new(rate).ok().map(LimitLedger::new);
    }

    /// What is promised; none as long as that is nothing.
    pub(super) const fn bucket(&self) -> Option<&LimitLedger<TokenBucket>> {
        self.bucket.as_ref()
    }

    /// The most that the children could claim now.
    pub(super) fn upper_bound(&self, now: Timestamp) -> u64 {
        let Some(book) = &self.bucket else {
            return 0;
        };
        let left = book.limit().remaining(book.state(), now);
        // A part of a token counts as one.
        left.saturating_add(1).min(book.limit().limit())
    }

    /// Takes what a child claimed, as far as it is there.
    pub(super) fn charge(&mut self, now: Timestamp, cost: u64) {
        if let Some(book) = &mut self.bucket {
            let _ = book.allow(now, cost);
        }
    }

    /// Takes back a claim that was given back. More can't be claimed than this, so a gift is safe.
    pub(super) fn refund(&mut self, now: Timestamp, cost: u64) {
        if let Some(book) = &mut self.bucket {
            book.refund(now, cost);
        }
    }
}

/// How many tokens of its own a borrower may be behind its share and still get them later.
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
    /// How much it has to leave for those of lower numbers, as long as they want.
    pub(super) fn higher_priority_reserve(&self, who: &Borrower, now: Timestamp) -> u64 {
        let ahead = self.shares[..who.priority]
            .iter()
            .filter(|share| is_demanding(share.last_asked, now))
            .count();
        u64::try_from(ahead)
            .unwrap_or(0)
            .saturating_mul(who.quantum.saturating_mul(2))
    }

    /// How much it has to leave for others of its own priority, as long as they want: a quantum,
    /// and as much more or less as it is ahead of its share or behind.
    ///
    /// That is measured for all by the same length of virtual time, a token of the heaviest class. By
    /// tokens of its own, a light class would be let in a token early, which is hundreds of the
    /// heaviest's.
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
        // Below two quanta it nearly always fits, and is divided quickly.
        match u64::try_from(ahead) {
            Ok(ahead) => ahead / unit,
            Err(_) => u64::try_from(ahead / u128::from(unit)).unwrap_or(u64::MAX),
        }
    }

    /// When the first of the wants is forgotten that this borrower leaves something for.
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

    /// Notes that it wants.
    pub(super) fn note_demand(&mut self, who: &Borrower, now: Timestamp) {
        let share = &mut self.shares[who.priority];
        if share.last_asker != who.slot {
            share.other_asked = share.last_asked;
            share.last_asker = who.slot;
        }
        share.last_asked = share.last_asked.max(Some(now));
    }

    /// As if nobody had asked lately.
    #[cfg(test)]
    pub(super) fn forget_wants(&mut self) {
        for share in &mut self.shares {
            (share.last_asker, share.last_asked, share.other_asked) = (0, None, None);
        }
    }

    /// Notes what it got; its tag from now on.
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
    /// When anybody but this one asked.
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
