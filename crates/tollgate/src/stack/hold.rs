//! Reserve, then settle: for requests whose cost is known only afterwards. The terms define what an
//! unsettled reservation means.

use std::time::Duration;

use tollgate_core::Timestamp;

use super::limit::{ClockReading, LevelCharge};
use super::{
    CompositeLimiter, EstimateOutcome, ExpireScope, HeldEstimate, HeldPermits, Limit, LimitDenial,
    MostRestrictive, SettlementTiming, charge_in_order,
};
use crate::concurrency::PermitOutcome;

/// The charges of a request to all its limits, until its actual cost is known.
///
/// [`settle`](Self::settle) reports the actual cost. [Estimated](Limit::estimated) limits refund the
/// rest, or are owed the excess, up to a full bucket; limits with a plain cost keep it.
/// [`ReservationTerms`] define what dropping a reservation means: by default the whole estimate is
/// charged. The same happens when the reservation expires; a late settlement charges the excess and
/// refunds nothing.
///
/// A held estimate doesn't drain. However long a reservation lives, no other request gets the tokens
/// that it refunds later, and the limit's bound holds in every span of time. The final charge is the
/// actual cost; limits that can't guarantee that accept no estimate. Windows and logs refund to the
/// window or entry that was charged, and quotas to the period, as long as these still count. They have
/// no debt: of an excess they charge at most what remains.
///
/// Nobody knows when a reservation is settled. So a `retry_after` assumes that held tokens come back in
/// time, while a reservation that would rely on that is denied immediately. A key stays in the table
/// while it holds tokens. Where [`WhenFull::EvictNearestIdle`](crate::WhenFull::EvictNearestIdle) permits
/// eviction, such keys are evicted last, together with what they hold.
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
/// let composite = CompositeLimiter::new();
/// let acme = tokens.key("acme");
/// let hold = composite
///     .hold(&[Limit::estimated("tokens", &acme, 4_000)], Duration::from_secs(60))
///     .expect("a full bucket");
/// assert_eq!(tokens.key("acme").peek().remaining, 6_000);
/// clock.advance(Duration::from_secs(30));
/// assert_eq!(tokens.key("acme").peek().remaining, 6_000); // held tokens don't drain
/// hold.settle(1_500);
/// assert_eq!(tokens.key("acme").peek().remaining, 8_500);
/// # Ok::<(), tollgate::LimitError>(())
/// ```
///
/// If all limits are shared (an `Arc`, or a key handle that owns one), the reservation borrows nothing.
/// So a streamed response can be settled where it ends, in another task or thread. If that is dropped
/// halfway, the estimate is charged.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tollgate::{ConcurrencyLimiter, StoredKeyLimiter, Limit, Rate, CompositeLimiter, stack::CostReservation};
///
/// let tokens = StoredKeyLimiter::<String>::builder(Rate::per_minute(10_000), 1_000).build()?;
/// let (tokens, permits) = (Arc::new(tokens), Arc::new(ConcurrencyLimiter::new(50)));
/// let limits = [
///     Limit::estimated("tokens", tokens.key_owned("acme"), 4_000),
///     Limit::new("streams", Arc::clone(&permits)),
/// ];
/// let hold: CostReservation<'static> = CompositeLimiter::new()
///     .hold(&limits, Duration::from_secs(60))
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
/// assert_eq!(permits.available(), 50);
/// # Ok::<(), tollgate::LimitError>(())
/// ```
#[derive(Debug)]
#[must_use = "a reservation that is dropped is charged in full, unless its terms refund it: settle it"]
pub struct CostReservation<'a> {
    parts: Vec<HeldLevel<'a>>,
}

/// The charge of one limit.
#[derive(Debug)]
struct HeldLevel<'a> {
    level: Limit<'a>,
    max_duration: Duration,
    expires_at: Timestamp,
    on_drop: OnDrop,
    charge: Option<LevelCharge>,
    /// The part that stayed charged when the estimate expired, before the actual cost was reported.
    charged_at_expiry: Option<u64>,
}

impl CostReservation<'_> {
    /// Settles the estimated limits at this actual cost, and returns whether that was in time.
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
    /// assert_eq!(hold.settle(9_000), SettlementTiming::Late); // 200 are charged, so 8,800 more.
    /// assert!(tokens.key("acme").peek().remaining <= 1_001);
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub fn settle(mut self, spent: u64) -> SettlementTiming {
        self.settle_as(EstimateOutcome::Spent(spent))
    }

    /// Charges the held costs as they are: nothing is settled later. The returned value holds the
    /// permits while the request runs.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use tollgate::{ConcurrencyLimiter, Limit, Limiter, Rate, CompositeLimiter};
    ///
    /// let (rate, permits) = (Limiter::new(Rate::per_hour(9)), Arc::new(ConcurrencyLimiter::new(1)));
    /// let (limits, minute) = ([Limit::new("rate", &rate), Limit::new("permits", &permits)], Duration::from_secs(60));
    /// let hold = CompositeLimiter::new().hold(&limits, minute).expect("room");
    /// let pass = hold.keep();
    /// assert_eq!((rate.peek().remaining, permits.available()), (8, 0));
    /// drop(pass);
    /// assert_eq!((rate.peek().remaining, permits.available()), (8, 1));
    /// ```
    pub fn keep(mut self) -> HeldPermits {
        let pass = self.take_permits();
        let _ = self.settle_as(EstimateOutcome::Charged);
        pass
    }

    /// Takes the permits out.
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

    /// The request never ran: everything is refunded, whatever the terms define.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limit, Limiter, Rate, CompositeLimiter};
    ///
    /// let limiter = Limiter::new(Rate::per_hour(9));
    /// let limits = [Limit::estimated("tokens", &limiter, 5)];
    /// let hold = CompositeLimiter::new().hold(&limits, Duration::from_secs(60)).expect("room");
    /// hold.cancel();
    /// assert_eq!(limiter.peek().remaining, 9);
    /// ```
    pub fn cancel(mut self) {
        let _ = self.settle_as(EstimateOutcome::Cancelled);
    }

    /// Settles in the reverse of the charging order, so that the last charge is refunded first.
    fn settle_as(&mut self, settled: EstimateOutcome) -> SettlementTiming {
        let (mut seen, mut timing) = (ClockReading::default(), SettlementTiming::InTime);
        for part in &mut self.parts {
            let now = part.level.limit.now(&mut seen);
            timing = timing.max(part.settle_as(now, settled));
        }
        timing
    }
}

impl HeldLevel<'_> {
    fn settle_as(&mut self, now: Timestamp, settled: EstimateOutcome) -> SettlementTiming {
        let limit = &self.level.limit;
        let is_refunded = match settled {
            EstimateOutcome::Cancelled => true,
            EstimateOutcome::NotReported => self.on_drop != OnDrop::Charged,
            EstimateOutcome::Spent(_) | EstimateOutcome::Charged => false,
        };
        let reported = match settled {
            EstimateOutcome::Spent(spent) if self.level.is_estimated => Some(spent),
            _ => None,
        };
        match self.charge.take() {
            // A permit is held for as long as the request runs. It has no estimate that could expire.
            Some(LevelCharge::Permit(permit)) => match settled {
                _ if is_refunded => permit.cancel(),
                EstimateOutcome::NotReported => permit.end(PermitOutcome::Ignored),
                _ => permit.end(PermitOutcome::Success),
            },
            Some(taken) if now >= self.expires_at && self.on_drop != OnDrop::AlwaysRefunded => {
                limit.settle(now, taken, self.level.held_cost());
                self.charged_at_expiry = Some(self.level.held_cost());
            }
            Some(taken) => {
                let charged = if is_refunded {
                    0
                } else {
                    self.level.held_cost()
                };
                limit.settle(now, taken, reported.unwrap_or(charged));
                return SettlementTiming::of(reported.is_some() && now >= self.expires_at);
            }
            None => {}
        }
        let (Some(charged), Some(spent)) = (self.charged_at_expiry.take(), reported) else {
            return SettlementTiming::InTime;
        };
        if spent > charged {
            limit.charge_late(now, spent - charged);
        }
        SettlementTiming::Late
    }

    /// Expires the estimate as its terms define. The actual cost may still be settled late.
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
    /// A reservation of one limit that is charged already, with its expiry.
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
    /// Puts everything that the request holds into one value: its permits, and its estimates until
    /// [`HeldPermits::settle`] reports the actual cost.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use tollgate::{ConcurrencyLimiter, Limit, Limiter, Rate, CompositeLimiter};
    ///
    /// let tokens = Arc::new(Limiter::new(Rate::per_hour(10_000)));
    /// let permits = Arc::new(ConcurrencyLimiter::new(1));
    /// let limits = [
    ///     Limit::estimated("tokens", Arc::clone(&tokens), 4_000),
    ///     Limit::new("streams", Arc::clone(&permits)),
    /// ];
    /// let hold = CompositeLimiter::new().hold(&limits, Duration::from_secs(60)).expect("room");
    /// let mut pass = hold.into_permits();
    /// pass.settle(1_500);
    /// assert_eq!((tokens.peek().remaining, permits.available()), (8_500, 0));
    /// drop(pass);
    /// assert_eq!(permits.available(), 1);
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
    /// Holds the costs of all limits, or of none, until the reservation is settled or expires. An
    /// expired reservation counts as spent. A `Duration` converts to [`ReservationTerms::for_at_most`].
    ///
    /// # Errors
    /// The limit that denied; nothing was charged.
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
                // The reservation refunds it when it expires. If the limit knew the deadline, it would
                // count the estimate as spent.
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

/// How long a [`CostReservation`](super::CostReservation) may be settled, and what dropping it
/// unsettled means.
///
/// A dropped reservation is charged its whole estimate. So a client that disconnects early, which drops
/// the task that would have settled, has paid for what it may have used. If nothing can be used before
/// the settlement, [`refund_on_drop`](Self::refund_on_drop) refunds everything instead. In any case, a
/// drop releases the permits of concurrency limits.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limit, Limiter, Rate, CompositeLimiter, stack::ReservationTerms, clock::Manual};
///
/// let limiter = Limiter::with_clock(Rate::per_minute(1_000), Manual::new());
/// let (composite, minute) = (CompositeLimiter::new(), Duration::from_secs(60));
/// let limits = [Limit::estimated("tokens", &limiter, 400)];
///
/// drop(composite.hold(&limits, minute)); // as with `ReservationTerms::for_at_most(minute)`
/// assert_eq!(limiter.peek().remaining, 600);
///
/// drop(composite.hold(&limits, ReservationTerms::for_at_most(minute).refund_on_drop()));
/// assert_eq!(limiter.peek().remaining, 600);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "terms do nothing until a reservation uses them"]
pub struct ReservationTerms {
    pub(super) max_duration: Duration,
    pub(super) on_drop: OnDrop,
}

/// What an unsettled reservation means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnDrop {
    Charged,
    /// Refunds if it is dropped before it expires; charges if it expires.
    Refunded,
    /// Refunds in any case.
    AlwaysRefunded,
}

impl ReservationTerms {
    /// The reservation may be settled for this duration. If it expires or is dropped unsettled, all of
    /// it counts as spent. A late settlement charges the excess.
    pub const fn for_at_most(longest: Duration) -> Self {
        Self {
            max_duration: longest,
            on_drop: OnDrop::Charged,
        }
    }

    pub(crate) const fn longest(self) -> Duration {
        self.max_duration
    }

    /// Refunds the estimate if the reservation is dropped before it expires.
    pub const fn refund_on_drop(mut self) -> Self {
        self.on_drop = OnDrop::Refunded;
        self
    }

    /// Refunds the estimate if the reservation is dropped, or when it [is
    /// expired](super::HeldPermits::expire) after its deadline. Until then it stays held. A late
    /// settlement is charged.
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
