//! A limit with its state and its reservations: the content of a lock or of a table entry.

use core::time::Duration;

use crate::{Arithmetic, Booking, BookingError, Decision, Ledger, Timestamp};

/// One limit, its state, and the data for reservations in order.
///
/// [`Arithmetic`] alone decides requests one after the other. A `LimitLedger` also takes reservations: no request
/// passes before an existing reservation, and a reservation can be cancelled.
///
/// ```
/// use core::time::Duration;
/// use tollgate_core::{Arithmetic, LimitLedger, FixedWindow, Rate, Timestamp};
///
/// let mut book = LimitLedger::new(FixedWindow::new(Rate::per_second(2))?);
/// let now = Timestamp::ZERO;
/// assert!(book.decide(now, 2).is_allowed());
/// let booked = book.reserve(now, 1, Duration::MAX).expect("the next window has room");
/// assert_eq!(booked.at(), Timestamp::from_secs(1));
/// book.cancel(now, &booked);
/// assert_eq!(book.decide(now, 1).wait_or_max(), Duration::from_secs(1));
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Debug)]
pub struct LimitLedger<A: Arithmetic> {
    limit: A,
    /// The limit under which the state is counted: the limit in force, or the last one that counted.
    counting_limit: A,
    ledger: Ledger<A>,
}

impl<A: Arithmetic> LimitLedger<A> {
    /// A limit that was never used.
    pub fn new(limit: A) -> Self {
        Self::from_state(limit, A::State::default())
    }

    /// A limit with this state.
    pub fn from_state(limit: A, state: A::State) -> Self {
        Self {
            limit,
            counting_limit: limit,
            ledger: Ledger::from_parts(state, Timestamp::ZERO),
        }
    }

    /// The limit in force.
    pub const fn limit(&self) -> &A {
        &self.limit
    }

    /// The state.
    pub const fn state(&self) -> &A::State {
        self.ledger.state()
    }

    /// Decides one request and charges it if it passes. A cost of 0 peeks.
    pub fn decide(&mut self, now: Timestamp, cost: u64) -> Decision {
        self.ledger.decide(&self.limit, now, cost)
    }

    /// Decides one request as [`decide`](Self::decide) would, and charges nothing.
    pub fn peek(&self, now: Timestamp, cost: u64) -> Decision {
        self.ledger.peek(&self.limit, now, cost)
    }

    /// Whether a request passes; it is charged if so.
    #[must_use = "a request that isn't allowed mustn't pass"]
    pub fn allow(&mut self, now: Timestamp, cost: u64) -> bool {
        self.ledger.allow(&self.limit, now, cost)
    }

    /// Takes the cost, to act at the earliest possible time, if that is within `patience`.
    ///
    /// # Errors
    /// [`BookingError`] has the reason and the decision.
    pub fn reserve(
        &mut self,
        now: Timestamp,
        cost: u64,
        patience: Duration,
    ) -> Result<Booking, BookingError> {
        self.ledger.reserve(&self.limit, now, cost, patience)
    }

    /// Charges the cost at `now` without deciding: for a caller that has already decided that it passes.
    ///
    /// ```
    /// use tollgate_core::{Arithmetic, LimitLedger, Rate, Timestamp, TokenBucket};
    ///
    /// let mut book = LimitLedger::new(TokenBucket::new(Rate::per_second(10))?);
    /// let now = Timestamp::ZERO;
    /// assert!(book.limit().has_tokens(book.state(), now, 4));
    /// let booked = book.charge(now, 4);
    /// assert_eq!(book.decide(now, 0).remaining, 6);
    /// book.cancel(now, &booked);
    /// assert_eq!(book.decide(now, 0).remaining, 10);
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    #[inline]
    pub fn charge(&mut self, now: Timestamp, cost: u64) -> Booking {
        self.ledger.charge(&self.limit, now, now, cost)
    }

    /// Refunds the part of a booking that no later charge relies on. The caller must cancel a booking only once.
    pub fn cancel(&mut self, now: Timestamp, booked: &Booking) {
        self.ledger.cancel(&self.limit, now, booked);
    }

    /// Refunds `tokens` without a booking, at most as many as were spent.
    ///
    /// ```
    /// use tollgate_core::{Arithmetic, LimitLedger, Rate, SlidingLog, Timestamp};
    ///
    /// let mut book = LimitLedger::new(SlidingLog::new(Rate::per_hour(10))?);
    /// book.decide(Timestamp::ZERO, 8);
    /// book.refund(Timestamp::ZERO, 5);
    /// assert_eq!(book.decide(Timestamp::ZERO, 0).remaining, 7);
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    pub fn refund(&mut self, now: Timestamp, tokens: u64) {
        self.ledger.refund(&self.limit, now, tokens);
    }

    /// The limit under which the state is counted, which may be older than the limit in force, and the state.
    ///
    /// ```
    /// use tollgate_core::{Arithmetic, LimitLedger, Rate, SlidingLog, Timestamp};
    ///
    /// let mut book = LimitLedger::new(SlidingLog::new(Rate::per_hour(1))?);
    /// let (ahead, now) = (Timestamp::from_secs(100_000_000), Timestamp::from_secs(1));
    /// assert!(book.allow(ahead, 1));
    /// book.set_limit(ahead, SlidingLog::new(Rate::unlimited())?);
    /// // The clock is set back: what was counted follows it, though nothing counts now.
    /// let (counted_by, ledger) = book.counting_parts_mut();
    /// ledger.follow_clock_back(counted_by, ahead, now);
    /// book.set_limit(now, SlidingLog::new(Rate::per_hour(1))?);
    /// assert_eq!(book.peek(now, 1).wait_or_max().as_secs(), 3_600);
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    pub const fn counting_parts_mut(&mut self) -> (&A, &mut Ledger<A>) {
        (&self.counting_limit, &mut self.ledger)
    }

    /// The limit, and the state counted under it.
    pub const fn parts_mut(&mut self) -> (&A, &mut Ledger<A>) {
        (&self.limit, &mut self.ledger)
    }

    /// Converts the state to another limit, at a live change.
    pub fn set_limit(&mut self, now: Timestamp, limit: A) {
        self.limit = limit;
        // A limit that counts nothing leaves the state unchanged for the next limit that counts.
        if limit.is_counting() {
            self.ledger.migrate(&self.counting_limit, &limit, now);
            self.ledger.cap_late_bookings(&limit, now);
            self.counting_limit = limit;
        }
    }
}
