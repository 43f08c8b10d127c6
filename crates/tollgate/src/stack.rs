//! `CompositeLimiter`: several limits for one request, which is charged to all of them or to none.

use tollgate_core::{Decision, Timestamp};

// Not loom's atomics: no decision reads this count, so its ordering needs no model.
use std::sync::atomic::{AtomicU64, Ordering};

mod decision;
mod estimate;
mod held_permits;
mod hold;
mod level;
mod limit;
mod limits;

pub use decision::{Allowed, CompositeDecision, LimitDenial, LimitKind};
pub use estimate::{EstimateOutcome, ExpireScope, HeldEstimate, SettlementTiming};
pub use held_permits::HeldPermits;
use held_permits::{HeldResource, PermitPointer};
pub use hold::{CostReservation, ReservationTerms};
pub use level::{Limit, LimitRef, SettlesEstimates};

use decision::MostRestrictive;
use level::LimitScope;
use limit::{ClockReading, LevelCharge};

/// Several limits for one request, which is charged to all of them or to none.
///
/// A request lists its [`Limit`]s from the narrowest (its user) to the broadest (the whole service),
/// with permits of a [`ConcurrencyLimiter`](crate::ConcurrencyLimiter) last. The decision has two
/// phases:
///
/// 1. Peek at each limit in that order. Nothing is written, so a denied request costs nothing: a noisy
///    tenant can't use up the limit that all tenants share.
/// 2. Charge all limits, those of a key first and shared ones last. If another request took the last
///    token between the two phases, the charges so far are refunded, as far as no later decision relies
///    on them, and the request is denied; [`lost_races`](Self::lost_races) counts these.
///
/// Each clock is read once per request. No lock is held from one limit to the next, so requests that
/// list the same limits in different orders can't deadlock.
///
/// ```
/// use std::sync::Arc;
/// use tollgate::{ConcurrencyLimiter, KeyedLimiter, Limit, Limiter, Rate, CompositeLimiter, stack::{LimitKind, CompositeDecision}};
///
/// let users = KeyedLimiter::new(Rate::per_minute(2), 10_000);
/// let service = Limiter::new(Rate::per_second(1_000));
/// let permits = Arc::new(ConcurrencyLimiter::new(50));
/// let composite = CompositeLimiter::new();
///
/// let request = |user: &str| {
///     composite.check(&[
///         Limit::new("user", &users.key(user)),
///         Limit::new("service", &service),
///         Limit::new("permits", &permits),
///     ])
/// };
/// let CompositeDecision::Allowed(passed) = request("ada") else { panic!("the first") };
/// assert_eq!(passed.decision.remaining, 1); // the tightest: one more for this user
/// passed.permits.success(); // at the end of the request
///
/// assert!(request("ada").allowed().is_some());
/// let CompositeDecision::Denied(denial) = request("ada") else { panic!("the third in a minute") };
/// assert_eq!((denial.name, denial.kind), ("user", LimitKind::Rate));
/// assert_eq!(service.peek().remaining, 998); // nothing was charged for the third
/// ```
#[derive(Debug, Default)]
pub struct CompositeLimiter {
    lost_races: AtomicU64,
}

impl CompositeLimiter {
    /// A composite limiter that has decided nothing so far.
    pub fn new() -> Self {
        Self::default()
    }

    /// Charges all limits or none; stops at the first denial. The result holds the permits of
    /// concurrency limits until it is dropped.
    ///
    /// ```
    /// use tollgate::{Limit, Limiter, Rate, CompositeLimiter};
    ///
    /// let (narrow, broad) = (Limiter::new(Rate::per_hour(1)), Limiter::new(Rate::per_hour(9)));
    /// let composite = CompositeLimiter::new();
    /// let limits = [Limit::new("narrow", &narrow), Limit::new("broad", &broad).cost(3)];
    /// assert!(composite.allow(&limits).is_some());
    /// assert!(composite.allow(&limits).is_none());
    /// assert_eq!(broad.peek().remaining, 6);
    /// ```
    #[must_use = "a request that isn't allowed mustn't pass"]
    #[inline]
    pub fn allow<'a>(&self, levels: &[Limit<'a>]) -> Option<HeldPermits> {
        let mut seen = ClockReading::default();
        for level in levels {
            if !level.limit.fits(&mut seen, level.cost) {
                return None;
            }
        }
        self.charge_all(levels, &mut seen).ok()
    }

    /// Charges all limits or none, and reports the details: when denied, the limit with the longest
    /// `retry_after`; when allowed, the remaining tokens of the most restrictive limit.
    pub fn check<'a>(&self, levels: &[Limit<'a>]) -> CompositeDecision<'a> {
        // Start all loads before the first is needed, so that cache misses overlap.
        for level in levels {
            level.limit.prefetch();
        }
        let mut seen = ClockReading::default();
        let all_fit = levels
            .iter()
            .all(|level| level.limit.fits(&mut seen, level.cost));
        if !all_fit && let Some(refusal) = Self::most_restrictive_denial(levels, &mut seen) {
            return CompositeDecision::Denied(refusal);
        }
        match self.charge_all(levels, &mut seen) {
            Ok(pass) => {
                let left =
                    MostRestrictive::of(levels, &mut seen, |level, now| level.limit.peek(now, 0));
                CompositeDecision::new(&left, pass)
            }
            Err(refusal) => CompositeDecision::Denied(refusal),
        }
    }

    /// What every limit would decide, without charging any.
    ///
    /// ```
    /// use tollgate::{Limit, Limiter, Rate, CompositeLimiter};
    ///
    /// let limiter = Limiter::new(Rate::per_hour(9));
    /// let composite = CompositeLimiter::new();
    /// assert!(composite.peek(&[Limit::new("all", &limiter).cost(10)]).denial().is_some());
    /// assert_eq!(limiter.peek().remaining, 9);
    /// ```
    pub fn peek<'a>(&self, levels: &[Limit<'a>]) -> CompositeDecision<'a> {
        let mut seen = ClockReading::default();
        let worst = MostRestrictive::of(levels, &mut seen, |level, now| {
            level.limit.peek(now, level.cost)
        });
        match worst.denial() {
            Some(refusal) => CompositeDecision::Denied(refusal),
            None => CompositeDecision::new(&worst, HeldPermits::default()),
        }
    }

    /// The number of requests that were denied although the peek found room in every limit, because
    /// another request was charged in between.
    pub fn lost_races(&self) -> u64 {
        self.lost_races.load(Ordering::Relaxed)
    }

    /// The denial with the longest wait; none if everything fits by now.
    #[cold]
    fn most_restrictive_denial<'a>(
        levels: &[Limit<'a>],
        seen: &mut ClockReading,
    ) -> Option<LimitDenial<'a>> {
        MostRestrictive::of(levels, seen, |level, now| {
            level.limit.peek_with_demand(now, level.cost)
        })
        .denial()
    }

    /// Charges limits on the fast path, with a refund record of two words each, as far as that goes: in
    /// most requests, for all limits. The first limit that needs more, and all after it, take the slow
    /// path.
    #[inline(never)]
    fn charge_all<'a>(
        &self,
        levels: &[Limit<'a>],
        seen: &mut ClockReading,
    ) -> Result<HeldPermits, LimitDenial<'a>> {
        let mut marks = [(0, None); MAX_FAST_CHARGES];
        let mut marked = 0;
        let mut are_all = true;
        'marking: for breadth in LimitScope::ALL {
            for (index, level) in levels.iter().enumerate() {
                if level.limit.breadth() != breadth {
                    continue;
                }
                let place = marks.get_mut(marked);
                let mark = place.and_then(|place| {
                    let mark = level.limit.charge_fast(seen, level.cost)?;
                    *place = (index, Some(mark));
                    Some(())
                });
                if mark.is_none() {
                    are_all = false;
                    break 'marking;
                }
                marked += 1;
            }
        }
        if are_all {
            return Ok(HeldPermits::default());
        }
        let rest = self.charge_rest_slowly(levels, marked, seen);
        if rest.is_err() {
            for (index, mark) in marks[..marked].iter().rev() {
                let (level, now) = (&levels[*index], levels[*index].limit.now(seen));
                if let Some(mark) = mark {
                    level.limit.settle(now, mark.taken(now), 0);
                }
            }
        }
        rest
    }

    fn charge_rest_slowly<'a>(
        &self,
        levels: &[Limit<'a>],
        marked: usize,
        seen: &mut ClockReading,
    ) -> Result<HeldPermits, LimitDenial<'a>> {
        let mut pass = HeldPermits::default();
        let take = |level: &Limit<'a>, now| level.limit.charge_slow(now, level.cost);
        let keep = &mut |_: &Limit<'a>, _, taken| pass.push(taken);
        match charge_in_order(levels, marked, seen, &take, keep) {
            Ok(()) => Ok(pass),
            Err(refusal) => {
                self.count_lost_race();
                Err(refusal)
            }
        }
    }

    #[cold]
    fn count_lost_race(&self) {
        self.lost_races.fetch_add(1, Ordering::Relaxed);
    }
}

/// The most limits that are charged on the fast path; most requests have fewer.
const MAX_FAST_CHARGES: usize = 8;

/// Limits with their indices, in the order in which they are charged.
fn in_charging_order<'l, 'a>(
    levels: &'l [Limit<'a>],
) -> impl Iterator<Item = (usize, &'l Limit<'a>)> {
    LimitScope::ALL.into_iter().flat_map(move |breadth| {
        let all = levels.iter().enumerate();
        all.filter(move |(_, level)| level.limit.breadth() == breadth)
    })
}

/// The number of charges that are recorded without an allocation.
const INLINE_CHARGES: usize = 8;

/// Charges all limits but the first `skip` of the charging order, and refunds these charges if a limit
/// denies. A loop, not a recursion, because a request may have any number of limits. Charges are kept
/// or refunded from the last to the first.
fn charge_in_order<'a>(
    levels: &[Limit<'a>],
    skip: usize,
    seen: &mut ClockReading,
    take: &impl Fn(&Limit<'a>, Timestamp) -> Result<LevelCharge, Decision>,
    keep: &mut impl FnMut(&Limit<'a>, Timestamp, LevelCharge),
) -> Result<(), LimitDenial<'a>> {
    let mut inline: [Option<(usize, Timestamp, LevelCharge)>; INLINE_CHARGES] =
        [const { None }; INLINE_CHARGES];
    let (mut used, mut more) = (0, Vec::new());
    let mut refusal = None;
    for (index, level) in in_charging_order(levels).skip(skip) {
        let now = level.limit.now(seen);
        match (take(level, now), inline.get_mut(used)) {
            (Ok(taken), Some(place)) => (*place, used) = (Some((index, now, taken)), used + 1),
            (Ok(taken), None) => more.push((index, now, taken)),
            (Err(decision), _) => {
                refusal = Some(LimitDenial::new(index, level, decision));
                break;
            }
        }
    }
    let first = inline.into_iter().flatten().rev();
    for (index, now, taken) in more.into_iter().rev().chain(first) {
        let level = &levels[index];
        match refusal {
            None => keep(level, now, taken),
            Some(_) => level.limit.settle(now, taken, 0),
        }
    }
    refusal.map_or(Ok(()), Err)
}
