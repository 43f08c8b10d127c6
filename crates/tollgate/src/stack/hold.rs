//! Reserve, then settle: a request whose cost is known only afterwards, on terms that say what an unsettled hold means.

use std::time::Duration;

use tollgate_core::Timestamp;

use super::limit::{ClockReading, LevelCharge};
use super::{
    CompositeLimiter, EstimateOutcome, ExpireScope, HeldEstimate, HeldPermits, Limit, LimitDenial,
    MostRestrictive, SettlementTiming, charge_in_order,
};
use crate::concurrency::PermitOutcome;

/// What a request holds of all its limits until its real cost is known.
///
/// [`settle`](Self::settle) says what was spent: levels that were [estimated](Limit::estimated) get the rest back, or
/// owe what was underestimated, up to a full bucket; levels with a plain cost keep it. What dropping a hold means is
/// chosen when it is made, by its [`ReservationTerms`]: by default the whole estimate is charged. So it is at the end of its time, and
/// what is settled later is charged as far as it is more: nothing comes back then.
///
/// What is held doesn't drain: however long a hold lives, what it gives back was not given to anybody else
/// meanwhile, and the limit's bound holds in every span of time. What is charged in the end is what was spent,
/// and limits that can't keep to that take no estimate. Windows and logs give back to the window or entry that
/// was charged, and quotas to the period, as long as that counts; they know no debt, so of what was
/// underestimated they take what is left.
///
/// Nobody knows when a hold is settled. So a `retry_after` assumes that what is held comes back in time, and a
/// reservation that would rely on it is refused at once. A key keeps its room in the table while something of
/// it is out, and where [`WhenFull::EvictNearestIdle`](crate::UnsupportedWhenFull) says so is evicted after all others, with
/// what it holds.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Algorithm, StoredKeyLimiter, Limit, Rate, CompositeLimiter, clock::Manual};
///
/// let clock = Manual::new();
/// let tokens = StoredKeyLimiter::builder(Rate::per_minute(10_000), 1_000)
///     .algorithm(Algorithm::TokenBucket)
///     .clock(clock.clone())
///     .build()?;
/// let stack = CompositeLimiter::new();
/// let acme = tokens.key("acme");
/// let hold = stack
///     .hold(&[Limit::estimated("tokens", &acme, 4_000)], Duration::from_secs(60))
///     .expect("a full bucket");
/// assert_eq!(tokens.key("acme").peek().remaining, 6_000);
/// clock.advance(Duration::from_secs(30));
/// assert_eq!(tokens.key("acme").peek().remaining, 6_000); // what is out doesn't drain
/// hold.settle(1_500);
/// assert_eq!(tokens.key("acme").peek().remaining, 8_500);
/// # Ok::<(), tollgate::LimitError>(())
/// ```
///
/// Of levels that share their limits (an `Arc`, or a key that has one), the hold borrows nothing. So a streamed
/// answer is settled where it ends, in a task or thread of its own; if that is dropped half-way, the estimate
/// is charged.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tollgate::{ConcurrencyLimiter, StoredKeyLimiter, Limit, Rate, CompositeLimiter, stack::CostReservation};
///
/// let tokens = StoredKeyLimiter::<String>::builder(Rate::per_minute(10_000), 1_000).build()?;
/// let (tokens, slots) = (Arc::new(tokens), Arc::new(ConcurrencyLimiter::new(50)));
/// let levels = [
///     Limit::estimated("tokens", tokens.key_owned("acme"), 4_000),
///     Limit::new("streams", Arc::clone(&slots)),
/// ];
/// let hold: CostReservation<'static> = CompositeLimiter::new()
///     .hold(&levels, Duration::from_secs(60))
///     .expect("a full bucket");
///
/// let stream = std::thread::spawn(move || {
///     let mut used = 0;
///     for chunk in ["Once", "upon", "a", "time"] {
///         used += chunk.len() as u64; // sent on to the client
///     }
///     hold.settle(used);
/// });
/// # stream.join().unwrap();
/// assert!(tokens.key("acme").peek().remaining >= 9_985);
/// assert_eq!(slots.available(), 50);
/// # Ok::<(), tollgate::LimitError>(())
/// ```
#[derive(Debug)]
#[must_use = "a hold that is dropped is charged as it stands, unless its terms say otherwise: settle it"]
pub struct CostReservation<'a> {
    parts: Vec<HeldLevel<'a>>,
}

/// What one level holds.
#[derive(Debug)]
struct HeldLevel<'a> {
    level: Limit<'a>,
    max_duration: Duration,
    expires_at: Timestamp,
    on_drop: OnDrop,
    charge: Option<LevelCharge>,
    /// What stays charged of an estimate that has ended before the request said what it cost.
    charged_at_expiry: Option<u64>,
}

impl CostReservation<'_> {
    /// The request is done and cost so much, at the levels that were given an estimate; and whether that is said in time.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{StoredKeyLimiter, Limit, Rate, CompositeLimiter, clock::Manual, stack::SettlementTiming};
    ///
    /// let clock = Manual::new();
    /// let tokens = StoredKeyLimiter::builder(Rate::per_day(10_000), 1_000).clock(clock.clone()).build()?;
    /// let acme = tokens.key("acme");
    /// let hold = CompositeLimiter::new().hold(&[Limit::estimated("tokens", &acme, 200)], Duration::from_secs(60)).expect("room");
    /// clock.advance(Duration::from_secs(60));
    /// assert_eq!(hold.settle(9_000), SettlementTiming::Late); // It is charged: 200 are, so 8,800 more.
    /// assert!(tokens.key("acme").peek().remaining <= 1_001);
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub fn settle(mut self, spent: u64) -> SettlementTiming {
        self.settle_as(EstimateOutcome::Spent(spent))
    }

    /// The request passes at the costs that are held: nothing is settled later. The slots among them are
    /// held by what this returns, while it runs.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use tollgate::{ConcurrencyLimiter, Limit, Limiter, Rate, CompositeLimiter};
    ///
    /// let (rate, slots) = (Limiter::new(Rate::per_hour(9)), Arc::new(ConcurrencyLimiter::new(1)));
    /// let (levels, minute) = ([Limit::new("rate", &rate), Limit::new("slots", &slots)], Duration::from_secs(60));
    /// let hold = CompositeLimiter::new().hold(&levels, minute).expect("room");
    /// let pass = hold.keep();
    /// assert_eq!((rate.peek().remaining, slots.available()), (8, 0));
    /// drop(pass);
    /// assert_eq!((rate.peek().remaining, slots.available()), (8, 1));
    /// ```
    pub fn keep(mut self) -> HeldPermits {
        let pass = self.take_permits();
        let _ = self.settle_as(EstimateOutcome::Charged);
        pass
    }

    /// Takes the slots out.
    fn take_permits(&mut self) -> HeldPermits {
        let mut pass = HeldPermits::default();
        for part in &mut self.parts {
            let slot = part
                .charge
                .take_if(|taken| matches!(taken, LevelCharge::Permit(_)));
            slot.into_iter().for_each(|slot| pass.push(slot));
        }
        pass
    }

    /// The request never happened: everything comes back, whatever the terms say.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limit, Limiter, Rate, CompositeLimiter};
    ///
    /// let limiter = Limiter::new(Rate::per_hour(9));
    /// let levels = [Limit::estimated("tokens", &limiter, 5)];
    /// let hold = CompositeLimiter::new().hold(&levels, Duration::from_secs(60)).expect("room");
    /// hold.cancel();
    /// assert_eq!(limiter.peek().remaining, 9);
    /// ```
    pub fn cancel(mut self) {
        let _ = self.settle_as(EstimateOutcome::Cancelled);
    }

    /// In the reverse of the order of charging, so that what was charged last comes back first.
    fn settle_as(&mut self, settled: EstimateOutcome) -> SettlementTiming {
        let (mut seen, mut said) = (ClockReading::default(), SettlementTiming::InTime);
        for part in &mut self.parts {
            let now = part.level.limit.now(&mut seen);
            said = said.max(part.settle_as(now, settled));
        }
        said
    }
}

impl HeldLevel<'_> {
    fn settle_as(&mut self, now: Timestamp, settled: EstimateOutcome) -> SettlementTiming {
        let limit = &self.level.limit;
        let mark_answered = match settled {
            EstimateOutcome::Cancelled => true,
            EstimateOutcome::NotReported => self.on_drop != OnDrop::Charged,
            EstimateOutcome::Spent(_) | EstimateOutcome::Charged => false,
        };
        let said = match settled {
            EstimateOutcome::Spent(spent) if self.level.is_estimated => Some(spent),
            _ => None,
        };
        match self.charge.take() {
            // It is held for as long as the request runs, and has no estimate that could be over.
            Some(LevelCharge::Permit(permit)) => match settled {
                _ if mark_answered => permit.cancel(),
                EstimateOutcome::NotReported => permit.end(PermitOutcome::Ignored),
                _ => permit.end(PermitOutcome::Success),
            },
            Some(taken) if now >= self.expires_at && self.on_drop != OnDrop::AlwaysRefunded => {
                limit.settle(now, taken, self.level.held_cost());
                self.charged_at_expiry = Some(self.level.held_cost());
            }
            Some(taken) => {
                let charged = if mark_answered {
                    0
                } else {
                    self.level.held_cost()
                };
                limit.settle(now, taken, said.unwrap_or(charged));
                return SettlementTiming::of(said.is_some() && now >= self.expires_at);
            }
            None => {}
        }
        let (Some(charged), Some(spent)) = (self.charged_at_expiry.take(), said) else {
            return SettlementTiming::InTime;
        };
        if spent > charged {
            limit.charge_late(now, spent - charged);
        }
        SettlementTiming::Late
    }

    /// Ends it as its terms say of one that nobody settles. What the request cost may still be said.
    fn expire(&mut self, now: Timestamp) {
        let charged = match self.on_drop {
            OnDrop::Refunded if now < self.expires_at => 0,
            OnDrop::Charged | OnDrop::Refunded => self.level.held_cost(),
            OnDrop::AlwaysRefunded => 0,
        };
        if let Some(taken) = self.charge.take() {
            self.level.limit.settle(now, taken, charged);
            self.charged_at_expiry = Some(charged);
        }
    }
}

impl<'a> CostReservation<'a> {
    /// What one level holds already, until this time.
    pub(crate) fn taken(
        level: Limit<'a>,
        ReservationTerms {
            on_drop: dropped,
            max_duration: longest,
        }: ReservationTerms,
        taken: Option<(LevelCharge, Timestamp)>,
    ) -> Self {
        let part = taken.map(|(taken, until)| HeldLevel {
            level,
            max_duration: longest,
            expires_at: until,
            on_drop: dropped,
            charge: Some(taken),
            charged_at_expiry: None,
        });
        Self {
            parts: part.into_iter().collect(),
        }
    }
}

impl CostReservation<'static> {
    /// The request runs, and what it holds is in one pass: its slots, and its estimates until
    /// [`HeldPermits::settle`] tells what it did cost.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use tollgate::{ConcurrencyLimiter, Limit, Limiter, Rate, CompositeLimiter};
    ///
    /// let tokens = Arc::new(Limiter::new(Rate::per_hour(10_000)));
    /// let slots = Arc::new(ConcurrencyLimiter::new(1));
    /// let levels = [
    ///     Limit::estimated("tokens", Arc::clone(&tokens), 4_000),
    ///     Limit::new("streams", Arc::clone(&slots)),
    /// ];
    /// let hold = CompositeLimiter::new().hold(&levels, Duration::from_secs(60)).expect("room");
    /// let mut pass = hold.into_permits();
    /// pass.settle(1_500);
    /// assert_eq!((tokens.peek().remaining, slots.available()), (8_500, 0));
    /// drop(pass);
    /// assert_eq!(slots.available(), 1);
    /// ```
    pub fn into_permits(mut self) -> HeldPermits {
        let mut pass = self.take_permits();
        if !self.parts.iter().all(|part| part.charge.is_none()) {
            pass.hold_estimate(self);
        }
        pass
    }
}

impl HeldEstimate for CostReservation<'static> {
    fn settle(&mut self, settled: EstimateOutcome) -> SettlementTiming {
        self.settle_as(settled)
    }

    fn time_left(&self) -> Option<Duration> {
        let mut seen = ClockReading::default();
        let held = self.parts.iter().filter(|part| part.charge.is_some());
        held.map(|part| part.expires_at - part.level.limit.now(&mut seen))
            .min()
    }

    fn expire(&mut self, which: ExpireScope) {
        let mut seen = ClockReading::default();
        for part in &mut self.parts {
            let now = part.level.limit.now(&mut seen);
            if which == ExpireScope::All || now >= part.expires_at {
                part.expire(now);
            }
        }
    }

    fn renew(&mut self) {
        let mut seen = ClockReading::default();
        for part in &mut self.parts {
            let now = part.level.limit.now(&mut seen);
            if let Some(taken) = &mut part.charge
                && now < part.expires_at
            {
                part.expires_at = now + part.max_duration;
                if part.on_drop != OnDrop::AlwaysRefunded {
                    part.level.limit.extend_hold(taken, part.expires_at);
                }
            }
        }
    }
}

impl Drop for CostReservation<'_> {
    fn drop(&mut self) {
        let _ = self.settle_as(EstimateOutcome::NotReported);
    }
}

impl CompositeLimiter {
    /// Holds the costs of all levels, or of none, until the hold is settled, and at most for as long as the
    /// terms say: after that all of it counts as spent. A `Duration` is [`ReservationTerms::within`] it.
    ///
    /// # Errors
    /// The limit that refused; nothing was charged.
    pub fn hold<'a>(
        &self,
        levels: &[Limit<'a>],
        terms: impl Into<ReservationTerms>,
    ) -> Result<CostReservation<'a>, LimitDenial<'a>> {
        let terms = terms.into();
        let own = |level: &Limit<'a>| level.terms.unwrap_or(terms);
        let mut seen = ClockReading::default();
        let worst = MostRestrictive::of(levels, &mut seen, |level, now| {
            level.limit.peek_with_demand(now, level.held_cost())
        });
        if let Some(refusal) = worst.denial() {
            return Err(refusal);
        }
        let mut parts = Vec::with_capacity(levels.len());
        let take = |level: &Limit<'a>, now: Timestamp| {
            let ReservationTerms {
                max_duration: longest,
                on_drop: dropped,
            } = own(level);
            let until = match dropped {
                OnDrop::Charged | OnDrop::Refunded => now + longest,
                // Whoever holds it gives it back: the limit itself would count it as spent.
                OnDrop::AlwaysRefunded => Timestamp::MAX,
            };
            level.limit.hold_estimate(now, level.held_cost(), until)
        };
        let keep = &mut |level: &Limit<'a>, now: Timestamp, taken| {
            let ReservationTerms {
                max_duration: longest,
                on_drop: dropped,
            } = own(level);
            parts.push(HeldLevel {
                level: level.clone(),
                max_duration: longest,
                expires_at: now + longest,
                on_drop: dropped,
                charge: Some(taken),
                charged_at_expiry: None,
            });
        };
        match charge_in_order(levels, 0, &mut seen, &take, keep) {
            Ok(()) => Ok(CostReservation { parts }),
            Err(refusal) => {
                self.count_lost_race();
                Err(refusal)
            }
        }
    }
}

/// For how long a [`CostReservation`](super::CostReservation) may be settled, and what it means if it is dropped before.
///
/// A hold that is dropped is charged its whole estimate. So a client that disconnects early, and so ends the task that
/// would have settled the hold, has paid for what it may have used. Where nothing can have been used before the hold is
/// settled, [`refund_on_drop`](Self::refund_on_drop) gives everything back instead. Slots of concurrency limits are
/// free in any case once it is dropped.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limit, Limiter, Rate, CompositeLimiter, stack::ReservationTerms, clock::Manual};
///
/// let limiter = Limiter::with_clock(Rate::per_minute(1_000), Manual::new());
/// let (stack, minute) = (CompositeLimiter::new(), Duration::from_secs(60));
/// let levels = [Limit::estimated("tokens", &limiter, 400)];
///
/// drop(stack.hold(&levels, minute)); // as `Terms::within(minute)`
/// assert_eq!(limiter.peek().remaining, 600);
///
/// drop(stack.hold(&levels, ReservationTerms::for_at_most(minute).refund_on_drop()));
/// assert_eq!(limiter.peek().remaining, 600);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "terms do nothing until something is held by them"]
pub struct ReservationTerms {
    pub(super) max_duration: Duration,
    pub(super) on_drop: OnDrop,
}

/// What it means that a hold wasn't settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnDrop {
    Charged,
    /// Nothing was spent, if its time isn't over.
    Refunded,
    /// Nothing was spent.
    AlwaysRefunded,
}

impl ReservationTerms {
    /// It may be settled for so long; after that all of it counts as spent, and if it is dropped before, too. What is
    /// settled later is charged as far as it is more.
    pub const fn for_at_most(longest: Duration) -> Self {
        Self {
            max_duration: longest,
            on_drop: OnDrop::Charged,
        }
    }

    pub(crate) const fn longest(self) -> Duration {
        self.max_duration
    }

    /// If it is dropped before its time is over, nothing was spent.
    pub const fn refund_on_drop(mut self) -> Self {
        self.on_drop = OnDrop::Refunded;
        self
    }

    /// Nothing was spent if it is dropped, or at the end of its time, once somebody [ends](super::HeldPermits::expire) it then; what
    /// is settled later is charged. Until it ends it is held.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limit, Limiter, Rate, CompositeLimiter, clock::Manual, stack::ReservationTerms};
    ///
    /// let clock = Manual::new();
    /// let limiter = Limiter::with_clock(Rate::per_day(1_000), clock.clone());
    /// let terms = ReservationTerms::for_at_most(Duration::from_secs(60)).refund_unsettled();
    /// let hold = CompositeLimiter::new().hold(&[Limit::estimated("tokens", &limiter, 400)], terms).expect("room");
    /// clock.advance(Duration::from_secs(61));
    /// drop(hold);
    /// assert_eq!(limiter.peek().remaining, 1_000);
    /// ```
    pub const fn refund_unsettled(mut self) -> Self {
        self.on_drop = OnDrop::AlwaysRefunded;
        self
    }
}

impl From<Duration> for ReservationTerms {
    fn from(longest: Duration) -> Self {
        Self::for_at_most(longest)
    }
}
