//! `Limiter`: one limit shared by threads, with three verbs: check, reserve, wait.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::{BookingError, Decision, LimitError, Rate, Timestamp};

use crate::acquire::Acquire;
use crate::cell::{CancelScope, ChargeTicket, LimitCell};
use crate::clock::{Clock, Monotonic};
use crate::queued_limit::sealed::{LimitPointer, QueuedLimit};
use crate::wait_queue::fifo_queue::FifoQueue;
use crate::wait_queue::limiter_queue::LimiterQueue;
use crate::wait_queue::queue_limit::QueueLimit;
use crate::wait_queue::waiter_count::WaiterCount;
use crate::wait_queue::waiter_places::WaiterId;
use crate::wait_queue::{QueueState, WaitQueue};
use crate::{RateDenied, Reservation};

mod builder;

pub use builder::{Builder, LimiterSettings};

pub use crate::algorithm::Algorithm;
pub use crate::cell::switch::Switch;
pub use crate::clock::DefaultClock;

/// One limit, shared by any number of threads and tasks.
///
/// The algorithm is GCRA in one atomic word, unless [`builder`](Self::builder) selects another: lock-free, without
/// allocations, and a denial writes nothing. Share the limiter by reference or in an `Arc`.
///
/// ```
/// use tollgate::{Limiter, Rate, clock::Manual};
/// use std::time::Duration;
///
/// // 10/s burst 5: five pass, then none, then five more after half a second.
/// let clock = Manual::new();
/// let limiter = Limiter::with_clock(Rate::per_second(10).burst(5), clock.clone());
/// let passed = || (0..9).filter(|_| limiter.allow()).count();
/// assert_eq!([passed(), passed()], [5, 0]);
/// clock.advance(Duration::from_millis(500));
/// assert_eq!(passed(), 5);
/// ```
pub struct Limiter<C: Clock = Monotonic> {
    pub(crate) cell: LimitCell,
    pub(crate) clock: C,
    pub(crate) line: LimiterQueue<()>,
    waiting: WaiterCount,
}

impl Limiter {
    /// A limit that starts with a full burst, on the default clock.
    ///
    /// # Panics
    /// If GCRA can't represent the rate: outside 10⁻¹⁵ to 3·10¹⁰ a second, or burst × interval
    /// above two years. [`try_new`](Self::try_new) returns the error instead.
    pub fn new(rate: Rate) -> Self {
        Self::with_clock(rate, Monotonic::new())
    }

    /// A limit that starts with a full burst, on the default clock.
    ///
    /// # Errors
    /// If GCRA can't represent the rate. The error names the bound and an alternative.
    ///
    /// ```
    /// use tollgate::{Limiter, Rate};
    ///
    /// let error = Limiter::try_new(Rate::per_day(1).burst(1000)).unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "rate \"1/d burst 1000\": burst x interval is above two years, more than GCRA's one word \
    ///      holds; use a burst of at most 730, or the exact form (a token bucket or leaky bucket)"
    /// );
    /// ```
    pub fn try_new(rate: Rate) -> Result<Self, LimitError> {
        Self::builder(rate).build()
    }

    /// Sets the algorithm, the clock, the initial state, the stripes and the bound on waiters.
    ///
    /// ```
    /// use tollgate::{Algorithm, Limiter, Rate};
    ///
    /// let limiter = Limiter::builder(Rate::per_minute(100))
    ///     .algorithm(Algorithm::SlidingLog)
    ///     .build()?;
    /// assert_eq!(limiter.peek().remaining, 100);
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub fn builder(rate: Rate) -> Builder {
        Builder::new(rate)
    }
}

impl<C: Clock> Limiter<C> {
    /// A limit that starts with a full burst, on this clock.
    ///
    /// # Panics
    /// As [`new`](Limiter::new).
    pub fn with_clock(rate: Rate, clock: C) -> Self {
        let built = Limiter::builder(rate).clock(clock).build();
        built.unwrap_or_else(|error| panic!("{error}"))
    }

    // Check: decide now.

    /// Whether one request passes now; it is charged if so.
    #[must_use = "a request that isn't allowed mustn't pass"]
    #[inline]
    pub fn allow(&self) -> bool {
        self.allow_n(1)
    }

    /// Whether a request of this cost passes now; it is charged if so.
    #[must_use = "a request that isn't allowed mustn't pass"]
    #[inline]
    pub fn allow_n(&self, cost: u64) -> bool {
        let now = self.clock.now();
        if self.line.is_marked() {
            return self.allow_queued(now, cost);
        }
        self.cell.allow(now, cost)
    }

    // The queued paths below are `#[cold]` and never inlined: without waiters, a check needs no stack frame and no
    // call.

    #[cold]
    #[inline(never)]
    fn allow_queued(&self, now: Timestamp, cost: u64) -> bool {
        match self.decision_behind_waiters(now, cost) {
            Some(behind) => behind.is_allowed(),
            None => self.cell.allow(now, cost),
        }
    }

    /// Decides one request, and returns the remaining tokens and the time to retry.
    #[inline]
    pub fn check(&self) -> Decision {
        self.check_n(1)
    }

    /// Decides a request of this cost. A cost of 0 peeks.
    #[inline]
    pub fn check_n(&self, cost: u64) -> Decision {
        self.check_at(self.clock.now(), cost)
    }

    /// Decides a request of this cost at a time on the limiter's clock.
    #[inline]
    pub fn check_at(&self, now: Timestamp, cost: u64) -> Decision {
        if self.line.is_marked() {
            return self.check_queued(now, cost);
        }
        self.cell.check(now, cost)
    }

    #[cold]
    #[inline(never)]
    fn check_queued(&self, now: Timestamp, cost: u64) -> Decision {
        match self.decision_behind_waiters(now, cost) {
            Some(behind) => behind,
            // A peek at a later time must count outstanding charges as of that time; `cell.check` doesn't.
            None if cost == 0 => self.peek_unqueued(now, 0),
            None => self.cell.check(now, cost),
        }
    }

    /// The remaining tokens, without charging anything.
    pub fn peek(&self) -> Decision {
        self.check_n(0)
    }

    /// The remaining tokens at a time on the limiter's clock, without charging anything.
    pub fn peek_at(&self, now: Timestamp) -> Decision {
        self.check_at(now, 0)
    }

    /// The tokens available now, for display: fractional, negative in debt, and infinite when unlimited. Windows and
    /// logs have whole tokens and no debt.
    pub fn tokens(&self) -> f64 {
        self.cell.tokens(self.clock.now(), self.line.outstanding())
    }

    // Reserve: charge now, use later.

    /// Takes `cost` tokens now, to be used after the reservation's delay, however long that is.
    ///
    /// # Errors
    /// [`RateDenied::ExceedsBurst`] if the cost is above the burst; [`RateDenied::TooFarAhead`] if the algorithm
    /// can't book that far ahead (a sliding log books one window).
    pub fn reserve(&self, cost: u64) -> Result<Reservation<&Self>, RateDenied> {
        self.reserve_at(self.clock.now(), cost)
    }

    /// Takes `cost` tokens at a time on the limiter's clock.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub fn reserve_at(&self, now: Timestamp, cost: u64) -> Result<Reservation<&Self>, RateDenied> {
        let ticket = self.reserve_in_order(now, cost)?;
        Ok(Reservation::new(self, ticket))
    }

    /// Takes `cost` tokens now, in a reservation that can live in a task of its own.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tollgate::{Limiter, Rate};
    ///
    /// let limiter = Arc::new(Limiter::new(Rate::per_second(10)));
    /// let reservation = limiter.reserve_owned(2)?;
    /// std::thread::spawn(move || reservation.wait_blocking()).join().unwrap();
    /// # Ok::<(), tollgate::RateDenied>(())
    /// ```
    pub fn reserve_owned(
        self: &Arc<Self>,
        cost: u64,
    ) -> Result<Reservation<Arc<Self>>, RateDenied> {
        let ticket = (&**self).reserve_in_order(self.clock.now(), cost)?;
        Ok(Reservation::new(Arc::clone(self), ticket))
    }

    // Wait: sleep until the request fits.

    /// Waits for one token, first come first served. Await it, or call
    /// [`wait_blocking`](Acquire::wait_blocking).
    pub fn acquire(&self) -> Acquire<&Self> {
        self.acquire_n(1)
    }

    /// Waits for `cost` tokens, first come first served.
    pub fn acquire_n(&self, cost: u64) -> Acquire<&Self> {
        Acquire::new(self, cost)
    }

    /// Waits for one token, first come first served, in a future that borrows nothing.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tollgate::{Limiter, Rate};
    ///
    /// let limiter = Arc::new(Limiter::new(Rate::per_second(10)));
    /// let wait = limiter.acquire_owned();
    /// std::thread::spawn(move || wait.wait_blocking()).join().unwrap()?;
    /// # Ok::<(), tollgate::RateDenied>(())
    /// ```
    pub fn acquire_owned(self: &Arc<Self>) -> Acquire<Arc<Self>> {
        self.acquire_owned_n(1)
    }

    /// Waits for `cost` tokens as [`acquire_owned`](Self::acquire_owned) does.
    pub fn acquire_owned_n(self: &Arc<Self>, cost: u64) -> Acquire<Arc<Self>> {
        Acquire::new(Arc::clone(self), cost)
    }

    /// The number of requests that wait now.
    pub fn waiters(&self) -> usize {
        self.waiting.current()
    }

    // Live changes.

    /// The rate in force.
    pub fn rate(&self) -> Rate {
        self.cell.rate()
    }

    /// Changes the rate and keeps what was spent.
    ///
    /// # Errors
    /// If the algorithm can't represent the rate. Nothing changes then.
    ///
    /// ```
    /// use tollgate::{Limiter, Rate, clock::Manual};
    ///
    /// let limiter = Limiter::with_clock(Rate::per_second(10), Manual::new());
    /// assert!(limiter.allow_n(4));
    /// limiter.set_rate(Rate::per_second(100))?;
    /// assert_eq!(limiter.peek().remaining, 96);
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub fn set_rate(&self, rate: Rate) -> Result<(), LimitError> {
        self.set_rate_at(self.clock.now(), rate)
    }

    /// Changes the rate as of a time on the limiter's clock.
    ///
    /// # Errors
    /// As [`set_rate`](Self::set_rate).
    pub fn set_rate_at(&self, now: Timestamp, rate: Rate) -> Result<(), LimitError> {
        // Checked before `change_cell` cancels bookings, so that an error changes nothing.
        self.cell.check_rate(rate)?;
        self.change_cell(now, || self.cell.change_rate(now, |_| rate))
    }

    /// Changes the burst alone.
    ///
    /// # Errors
    /// As [`set_rate`](Self::set_rate).
    pub fn set_burst(&self, burst: u64) -> Result<(), LimitError> {
        self.set_burst_at(self.clock.now(), burst)
    }

    /// Changes the burst alone, as of a time on the limiter's clock.
    ///
    /// # Errors
    /// As [`set_rate`](Self::set_rate).
    pub fn set_burst_at(&self, now: Timestamp, burst: u64) -> Result<(), LimitError> {
        let with = |rate: Rate| rate.burst(burst);
        self.cell.check_rate(with(self.rate()))?;
        self.change_cell(now, || self.cell.change_rate(now, with))
    }

    /// Whether the limit is enforced or bypassed.
    pub fn switch(&self) -> Switch {
        self.cell.switch()
    }

    /// Bypasses the limit in an emergency, or enforces it again.
    ///
    /// ```
    /// use tollgate::{Limiter, Rate, limiter::Switch};
    ///
    /// let limiter = Limiter::new(Rate::zero());
    /// assert!(!limiter.allow());
    /// limiter.set_switch(Switch::Bypass);
    /// assert!(limiter.allow());
    /// ```
    pub fn set_switch(&self, switch: Switch) {
        let now = self.clock.now();
        self.change_cell(now, || self.cell.set_switch(now, switch));
    }

    /// Changes the limit. Waiters that are due by now pass under the old limit, all others under the new one.
    fn change_cell<T>(&self, now: Timestamp, change: impl FnOnce() -> T) -> T {
        // A waiter that joins meanwhile must see the change, so the lock is taken even if no mark is visible.
        self.visit(None, |state| {
            state.waits.advance(&self, now);
            state.waits.cancel_all_bookings(&self, now);
            let changed = change();
            state.waits.recheck_all(&self, now);
            changed
        })
    }

    /// The clock that the limiter reads.
    pub fn clock(&self) -> &C {
        &self.clock
    }
}

impl<C: Clock> WaitQueue for &Limiter<C> {
    type Waits = FifoQueue<()>;

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn visit<T>(
        &self,
        present: Option<WaiterId>,
        change: impl FnOnce(&mut QueueState<FifoQueue<()>>) -> T,
    ) -> T {
        self.line.visit(present, change)
    }

    fn advance(&self, waits: &mut FifoQueue<()>, now: Timestamp) {
        waits.advance(self, now);
    }

    fn leave(&self, waits: &mut FifoQueue<()>, now: Timestamp, id: WaiterId) {
        waits.leave(self, now, id);
    }

    fn waiter_left(&self) {
        self.waiting().leave();
    }
}

impl<C: Clock> QueueLimit for &Limiter<C> {
    type Terms = ();

    fn peek(&self, (): &(), now: Timestamp, cost: u64) -> Decision {
        self.peek_unqueued(now, cost)
    }

    fn book(
        &self,
        (): &(),
        now: Timestamp,
        cost: u64,
        patience: Duration,
    ) -> Result<ChargeTicket, RateDenied> {
        let booked = self
            .cell
            .reserve(now, cost, patience, self.line.outstanding());
        booked.map_err(|unbooked| match unbooked {
            BookingError::TooFarAhead(decision) => RateDenied::TooFarAhead(decision),
            BookingError::Denied(decision) => RateDenied::from_decision(decision),
        })
    }

    fn cancel(&self, (): &(), now: Timestamp, ticket: &ChargeTicket, undo: CancelScope) -> bool {
        self.cell.cancel(now, ticket, undo)
    }

    fn clock_time(&self) -> Timestamp {
        self.clock.now()
    }

    fn drain_time(&self, (): &(), tokens: u128) -> Duration {
        self.cell.drain_time(tokens)
    }
}

impl<C: Clock> QueuedLimit for &Limiter<C> {
    fn charge_terms(&self) {}

    fn waiting(&self) -> &WaiterCount {
        &self.waiting
    }

    fn peek_unqueued(&self, now: Timestamp, cost: u64) -> Decision {
        self.cell.peek(now, cost, self.line.outstanding())
    }

    fn keep_outstanding(&self, waits: &mut FifoQueue<()>, now: Timestamp) {
        if waits.is_held {
            waits.is_held = self.cell.expire_holds(now);
        }
    }

    fn visit_if_any<T>(
        &self,
        change: impl FnOnce(&mut QueueState<FifoQueue<()>>) -> T,
    ) -> Option<T> {
        self.line.is_marked().then(|| self.visit(None, change))
    }
}

impl<C: Clock> LimitPointer for &Limiter<C> {
    type Limit<'a>
        = Self
    where
        Self: 'a;

    fn limit(&self) -> Self {
        self
    }
}

impl<C: Clock> LimitPointer for Arc<Limiter<C>> {
    type Limit<'a>
        = &'a Limiter<C>
    where
        Self: 'a;

    fn limit(&self) -> &Limiter<C> {
        self
    }
}

impl<C: Clock> fmt::Debug for Limiter<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("rate", &self.rate())
            .field("switch", &self.switch())
            .field("waiters", &self.waiters())
            .finish_non_exhaustive()
    }
}
