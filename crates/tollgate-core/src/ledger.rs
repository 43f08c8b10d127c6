//! A state with reservations, without its limit: the entry of a table.

use core::time::Duration;

use crate::arithmetic::{BookedUntil, Charge, LaterCharges};
use crate::{Arithmetic, Decision, Outcome, Timestamp};

/// A [`LimitLedger`](crate::LimitLedger) without its limit, for tables in which many keys share a limit. Each call gets
/// the limit under which the state is counted.
///
/// ```
/// use tollgate_core::{Arithmetic, Ledger, Rate, SlidingLog, Timestamp};
///
/// let limit = SlidingLog::new(Rate::per_second(2))?;
/// let mut ledgers = [Ledger::default(), Ledger::default()];
/// assert!(ledgers[0].decide(&limit, Timestamp::ZERO, 2).is_allowed());
/// assert!(!ledgers[0].allow(&limit, Timestamp::ZERO, 1));
/// assert!(ledgers[1].allow(&limit, Timestamp::ZERO, 1));
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Ledger<A: Arithmetic> {
    state: A::State,
    /// No request passes before this time, the act time of the latest booking. Only algorithms that store bookings as
    /// hits instead of debt use it: they can't otherwise tell a time before a booking from a clock that stepped back.
    booked_until: A::Floor,
    /// Counts events, so that a receipt can tell what came after it. The lower half counts charges. The upper half, the
    /// *era*, counts refunds, live changes and resets (see [`cancel`](Self::cancel)).
    version: u64,
}

/// The lowest bit of the era in a version.
const ERA_SHIFT: u32 = 32;

impl<A: Arithmetic> Default for Ledger<A> {
    fn default() -> Self {
        Self::from_parts(A::State::default(), Timestamp::ZERO)
    }
}

/// The receipt of a booking, needed to cancel it.
#[derive(Clone, Copy, Debug)]
pub struct Booking {
    charge: Charge,
    version: u64,
    booked_until_before: Timestamp,
}

impl Booking {
    /// The time at which the booked request may act.
    pub const fn at(&self) -> Timestamp {
        self.charge.at()
    }

    /// The booked tokens.
    ///
    /// ```
    /// use core::time::Duration;
    /// use tollgate_core::{Arithmetic, Ledger, Rate, Timestamp, TokenBucket};
    ///
    /// let limit = TokenBucket::new(Rate::per_second(10))?;
    /// let mut ledger = Ledger::default();
    /// let booked = ledger.reserve(&limit, Timestamp::ZERO, 4, Duration::ZERO).expect("a full bucket");
    /// assert_eq!(booked.cost(), 4);
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    pub const fn cost(&self) -> u64 {
        self.charge.cost()
    }
}

/// Why no reservation was made. Nothing was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BookingError {
    /// The request passes never, or not within the caller's timeout. The decision tells which.
    Denied(Decision),
    /// It would act further ahead than the algorithm books, see [`Arithmetic::max_booking_delay`], or rely on
    /// outstanding tokens, see [`Arithmetic::can_promise`].
    TooFarAhead(Decision),
}

impl BookingError {
    /// The decision of the limit.
    pub const fn decision(self) -> Decision {
        match self {
            Self::Denied(decision) | Self::TooFarAhead(decision) => decision,
        }
    }
}

impl<A: Arithmetic> Ledger<A> {
    /// The ledger in this state, with the latest booking acting at `floor`. The floor is the origin if there is no
    /// booking, or if the state itself implies it.
    pub fn from_parts(state: A::State, floor: Timestamp) -> Self {
        Self {
            state,
            booked_until: A::Floor::at(floor),
            version: 0,
        }
    }

    /// The state and the floor, as [`from_parts`](Self::from_parts) takes them.
    pub fn parts(&self) -> (&A::State, Timestamp) {
        (&self.state, self.booked_until.time())
    }

    /// The state.
    pub const fn state(&self) -> &A::State {
        &self.state
    }

    /// Decides one request and charges it if it passes. A cost of 0 peeks.
    #[inline]
    pub fn decide(&mut self, limit: &A, now: Timestamp, cost: u64) -> Decision {
        let at = self.charge_if_allowed(limit, now, cost);
        self.decision_at(limit, now, at)
    }

    /// Decides one request as [`decide`](Self::decide) would, and charges nothing.
    pub fn peek(&self, limit: &A, now: Timestamp, cost: u64) -> Decision {
        self.decision_at(limit, now, self.earliest(limit, now, cost))
    }

    /// Whether a request passes; it is charged if so.
    #[must_use = "a request that isn't allowed mustn't pass"]
    #[inline]
    pub fn allow(&mut self, limit: &A, now: Timestamp, cost: u64) -> bool {
        self.charge_if_allowed(limit, now, cost)
            .is_some_and(|at| at <= now)
    }

    /// Takes the cost, to act at the earliest possible time, if that is within `patience`.
    ///
    /// # Errors
    /// [`BookingError`] has the reason and the decision.
    pub fn reserve(
        &mut self,
        limit: &A,
        now: Timestamp,
        cost: u64,
        patience: Duration,
    ) -> Result<Booking, BookingError> {
        let at = self.earliest(limit, now, cost);
        let Some(act) = at.filter(|at| *at - now <= patience) else {
            return Err(BookingError::Denied(self.decision_at(limit, now, at)));
        };
        if act - now > limit.max_booking_delay() {
            return Err(BookingError::TooFarAhead(self.decision_at(limit, now, at)));
        }
        Ok(self.charge(limit, now, act.max(now), cost))
    }

    /// As [`reserve`](Self::reserve), while `out` tokens are outstanding: taken, and perhaps unspent. Some of those may
    /// come back, but the time is unknown, so no reservation relies on them.
    ///
    /// ```
    /// use core::time::Duration;
    /// use tollgate_core::{Arithmetic, Ledger, Rate, Timestamp, TokenBucket, BookingError};
    ///
    /// let limit = TokenBucket::new(Rate::per_second(10))?;
    /// let (mut ledger, now) = (Ledger::default(), Timestamp::ZERO);
    /// ledger.reserve(&limit, now, 8, Duration::ZERO).expect("a full bucket"); // these are out
    /// assert!(ledger.allow(&limit, now, 2));
    /// // Two drain whatever becomes of the eight; a third would be one of them.
    /// let denied = ledger.reserve_with_outstanding(&limit, 8, now, 3, Duration::MAX);
    /// assert!(matches!(denied, Err(BookingError::TooFarAhead(_))));
    /// let booked = ledger.reserve_with_outstanding(&limit, 8, now, 2, Duration::MAX);
    /// assert_eq!(booked.expect("beside them").at(), Timestamp::from_millis(200));
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub fn reserve_with_outstanding(
        &mut self,
        limit: &A,
        out: u64,
        now: Timestamp,
        cost: u64,
        patience: Duration,
    ) -> Result<Booking, BookingError> {
        if out == 0 || limit.can_promise(cost, out) {
            return self.reserve(limit, now, cost, patience);
        }
        let booked = self.reserve(limit, now, cost, Duration::ZERO);
        booked.map_err(|unbooked| {
            let decision = unbooked.decision();
            let in_time = decision.wait_or_max() <= patience;
            if decision.outcome == Outcome::Denied && in_time {
                return BookingError::TooFarAhead(decision);
            }
            unbooked
        })
    }

    /// Refunds the part of a booking that no later charge relies on. The caller must cancel a booking only once.
    ///
    /// An algorithm derives from the act times of later bookings how much they rely on this one. A refund, a live
    /// change or a reset moves those times, so a booking from an earlier era can't be cancelled: it stays booked.
    pub fn cancel(&mut self, limit: &A, now: Timestamp, booked: &Booking) {
        let same_era = booked.version >> ERA_SHIFT == self.version >> ERA_SHIFT;
        if booked.charge.cost() == 0 || !same_era {
            return;
        }
        let since = if booked.version == self.version {
            // The latest charge is undone completely, and the charge before it becomes the latest: cancelling in
            // reverse order restores everything.
            self.version -= 1;
            self.booked_until = A::Floor::at(booked.booked_until_before);
            LaterCharges::Nothing
        } else {
            LaterCharges::Others
        };
        limit.cancel(&mut self.state, now, &booked.charge, since);
    }

    /// Undoes a booking completely if it is the latest. Otherwise nothing changes, and the result is false.
    ///
    /// ```
    /// use core::time::Duration;
    /// use tollgate_core::{Arithmetic, Ledger, Rate, Timestamp, TokenBucket};
    ///
    /// let (limit, now) = (TokenBucket::new(Rate::per_second(1).burst(1))?, Timestamp::ZERO);
    /// let mut ledger = Ledger::default();
    /// let mut reserve = || ledger.reserve(&limit, now, 1, Duration::MAX).expect("in order");
    /// let booked = [reserve(), reserve(), reserve()];
    /// assert!(!ledger.cancel_if_last(&limit, now, &booked[1]));
    /// assert!(ledger.cancel_if_last(&limit, now, &booked[2]) && ledger.cancel_if_last(&limit, now, &booked[1]));
    /// assert_eq!(ledger.peek(&limit, now, 1).wait_or_max(), Duration::from_secs(1));
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    pub fn cancel_if_last(&mut self, limit: &A, now: Timestamp, booked: &Booking) -> bool {
        let is_latest = booked.version == self.version;
        if is_latest {
            self.cancel(limit, now, booked);
        }
        is_latest
    }

    /// Refunds `tokens` without a booking, at most as many as were spent.
    pub fn refund(&mut self, limit: &A, now: Timestamp, tokens: u64) {
        limit.refund(&mut self.state, now, tokens);
        self.invalidate_bookings();
    }

    /// Takes `tokens` without a request, at most until none remain.
    ///
    /// ```
    /// use tollgate_core::{Arithmetic, FixedWindow, Ledger, Rate, Timestamp};
    ///
    /// let limit = FixedWindow::new(Rate::per_hour(10))?;
    /// let (mut ledger, now) = (Ledger::default(), Timestamp::ZERO);
    /// ledger.penalize(&limit, now, 4);
    /// assert_eq!(ledger.peek(&limit, now, 0).remaining, 6);
    /// ledger.penalize(&limit, now, 100);
    /// assert_eq!(ledger.peek(&limit, now, 0).remaining, 0);
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    pub fn penalize(&mut self, limit: &A, now: Timestamp, tokens: u64) {
        let left = self.peek(limit, now, 0).remaining;
        self.charge_if_allowed(limit, now, tokens.min(left));
    }

    /// Keeps `out` outstanding tokens, which were taken and may be unspent, from draining.
    ///
    /// ```
    /// use core::time::Duration;
    /// use tollgate_core::{Arithmetic, Ledger, Rate, Timestamp, TokenBucket};
    ///
    /// let limit = TokenBucket::new(Rate::per_second(10))?;
    /// let (mut ledger, at) = (Ledger::default(), Timestamp::from_secs);
    /// let taken = ledger.reserve(&limit, at(0), 4, Duration::ZERO).expect("a full bucket");
    /// // A minute later the four are still out: six are there, not ten.
    /// ledger.keep_outstanding(&limit, at(60), 4);
    /// assert_eq!(ledger.peek(&limit, at(60), 0).remaining, 6);
    /// // Three come back unspent.
    /// ledger.settle_charge(&limit, at(60), &taken, 3);
    /// assert_eq!(ledger.peek(&limit, at(60), 0).remaining, 9);
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    pub fn keep_outstanding(&mut self, limit: &A, now: Timestamp, out: u64) {
        limit.keep_outstanding(&mut self.state, now, out);
    }

    /// Refunds the `tokens` of a booking that were outstanding and turned out to be unspent.
    pub fn settle_charge(&mut self, limit: &A, now: Timestamp, booked: &Booking, tokens: u64) {
        limit.settle_charge(&mut self.state, now, &booked.charge, tokens);
        // An earlier booking must not restore a state from before this refund.
        self.version = self.version.wrapping_add(1);
    }

    /// Charges tokens that were already spent beyond the estimate: as debt of up to a full bucket, or at most the
    /// remaining tokens of a window.
    pub fn charge_overrun(&mut self, limit: &A, now: Timestamp, tokens: u64) {
        limit.charge_overrun(&mut self.state, now, tokens);
        self.version = self.version.wrapping_add(1);
    }

    /// Converts the state from the limit `old` to `new`, at a live change.
    pub fn migrate(&mut self, old: &A, new: &A, now: Timestamp) {
        new.migrate_state(&mut self.state, old, now);
        self.invalidate_bookings();
    }

    /// Whether the state was already equivalent to one never used before `now`. A state that becomes idle at `now`
    /// doesn't count, because the last representable time stands for all times after it.
    pub fn is_idle(&self, limit: &A, now: Timestamp) -> bool {
        limit.idle_at(&self.state).max(self.booked_until.time()) < now
    }

    /// Forgets everything. Earlier bookings can't be cancelled afterwards.
    pub fn reset(&mut self) {
        self.state = A::State::default();
        self.booked_until = A::Floor::default();
        self.invalidate_bookings();
    }

    /// Converts the state from the limit `old` to `new` so that it can be converted again, to any other limit: spent
    /// tokens stay spent in every algorithm.
    pub fn migrate_spent(&mut self, old: &A, new: &A, now: Timestamp) {
        new.migrate_spent(&mut self.state, old, now);
        self.invalidate_bookings();
    }

    /// The earliest time at which a cost passes under `new`, if the ledger stays under `old` until then.
    pub fn earliest_before_migration(
        &self,
        old: &A,
        new: &A,
        now: Timestamp,
        cost: u64,
    ) -> Option<Timestamp> {
        let from = now.max(self.booked_until.time());
        new.earliest_before_migration(&self.state, old, from, cost)
    }

    /// Forgets bookings that act later than an empty bucket of this limit takes to fill. They would delay every request
    /// for longer than this limit should. An empty bucket remains.
    pub fn forget_bookings(&mut self, limit: &A, now: Timestamp) {
        if self.booked_until.time() <= now {
            return;
        }
        let empty = limit.empty(now);
        let full_again = |state: &A::State| limit.earliest(state, now, limit.limit());
        let longest = full_again(&empty);
        let owes_more = match (full_again(&self.state), longest) {
            (Some(own), Some(longest)) => own > longest,
            (None, Some(_)) => true,
            (_, None) => false,
        };
        if owes_more {
            self.state = empty;
        }
        if longest.is_some_and(|longest| self.booked_until.time() > longest) {
            self.booked_until = A::Floor::default();
        }
        self.invalidate_bookings();
    }

    /// As [`forget_bookings`](Self::forget_bookings), at a live change to this limit, and only if the latest booking
    /// acts that late. A window stores its bookings at times that no faster rate moves, so one booking an hour ahead
    /// would delay every request for that hour.
    ///
    /// ```
    /// use core::time::Duration;
    /// use tollgate_core::{Arithmetic, Ledger, Rate, SlidingLog, Timestamp};
    ///
    /// let (slow, fast) = (SlidingLog::new(Rate::per_hour(1))?, SlidingLog::new(Rate::per_second(5))?);
    /// let (mut ledger, now) = (Ledger::default(), Timestamp::from_secs(9));
    /// assert!(ledger.allow(&slow, now, 1));
    /// ledger.reserve(&slow, now, 1, Duration::MAX).expect("an hour ahead");
    /// ledger.migrate(&slow, &fast, now);
    /// ledger.cap_late_bookings(&fast, now);
    /// assert!(ledger.peek(&fast, now, 1).wait_or_max() <= Duration::from_secs(1));
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    pub fn cap_late_bookings(&mut self, limit: &A, now: Timestamp) {
        let full_again = limit.earliest(&limit.empty(now), now, limit.limit());
        if full_again.is_some_and(|at| self.booked_until.time() > at) {
            self.forget_bookings(limit, now);
        }
    }

    /// Moves the state to a clock that shows `to` when this one shows `from`.
    pub fn move_to_clock(&mut self, limit: &A, from: Timestamp, to: Timestamp) {
        limit.move_to_clock(&mut self.state, from, to);
        let floor = self.booked_until.time();
        self.booked_until = A::Floor::at(if floor > from {
            floor.shifted(from, to)
        } else {
            Timestamp::ZERO
        });
        self.invalidate_bookings();
    }

    /// Follows a clock that showed `from` and was set back to `to`, by more than the
    /// [lifetime of a state](Arithmetic::state_lifetime).
    ///
    /// Charges that may have been made before the clock ran ahead, and still count at `to`, stay unchanged. Charges
    /// made while it was ahead count for their remaining time. Charges that had expired at `from` are forgotten.
    /// Without this, the key would be denied until the clock shows `from` again.
    ///
    /// ```
    /// use tollgate_core::{Arithmetic, FixedWindow, Ledger, Rate, Timestamp};
    ///
    /// let limit = FixedWindow::new(Rate::per_minute(5))?;
    /// let (mut ledger, at) = (Ledger::default(), Timestamp::from_secs);
    /// assert!(ledger.allow(&limit, at(31_536_030), 5));
    /// ledger.follow_clock_back(&limit, at(31_536_040), at(40));
    /// assert!(!ledger.allow(&limit, at(40), 1));
    /// assert!(ledger.allow(&limit, at(60), 5));
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    pub fn follow_clock_back(&mut self, limit: &A, from: Timestamp, to: Timestamp) {
        let idle = limit.idle_at(&self.state).max(self.booked_until.time());
        if idle - to > limit.state_lifetime() {
            self.move_to_clock(limit, from, to);
        }
    }

    /// After this, no earlier booking can be cancelled.
    const fn invalidate_bookings(&mut self) {
        // The count of charges restarts at 0: a receipt of an older era never matches it, because the era differs.
        self.version = ((self.version >> ERA_SHIFT) + 1) << ERA_SHIFT;
    }

    /// Charges the cost if it passes now; returns the time at which it passes.
    #[inline]
    fn charge_if_allowed(&mut self, limit: &A, now: Timestamp, cost: u64) -> Option<Timestamp> {
        let at = self.earliest(limit, now, cost);
        if at.is_some_and(|at| at <= now) && cost > 0 {
            self.charge(limit, now, now, cost);
        }
        at
    }

    /// The earliest time at which this cost passes, never before an existing booking.
    #[inline]
    fn earliest(&self, limit: &A, now: Timestamp, cost: u64) -> Option<Timestamp> {
        let from = if cost == 0 {
            now
        } else {
            now.max(self.booked_until.time())
        };
        limit.earliest(&self.state, from, cost)
    }

    #[inline]
    pub(crate) fn charge(
        &mut self,
        limit: &A,
        now: Timestamp,
        at: Timestamp,
        cost: u64,
    ) -> Booking {
        let floor_before = self.booked_until.time();
        let charge = limit.charge(&mut self.state, now, at, cost);
        if cost > 0 {
            self.version = self.version.wrapping_add(1);
            if at > now {
                self.booked_until = A::Floor::at(at);
            }
        }
        Booking {
            charge,
            version: self.version,
            booked_until_before: floor_before,
        }
    }

    fn decision_at(&self, limit: &A, now: Timestamp, at: Option<Timestamp>) -> Decision {
        let mut decision = limit.decision_at(&self.state, now, at);
        if now < self.booked_until.time() && decision.outcome != Outcome::Never {
            decision.remaining = 0;
        }
        decision
    }
}

#[cfg(test)]
mod tests;
