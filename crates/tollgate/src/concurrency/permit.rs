//! A permit: a share of a concurrency limit while it is held.

use std::fmt;

use tollgate_core::Timestamp;

use super::gate::Gate;
use super::permit_source::PermitSource;
use super::stats::Counter;
use super::{CompletedCall, PermitDenied, PermitObserver, PermitOutcome};

/// A share of a limit; dropping it releases the share.
///
/// It ends in one of three ways, which matter to a [`PermitObserver`](super::PermitObserver):
/// [`success`](Self::success), [`dropped`](Self::dropped) for a sign of overload, or
/// [`ignored`](Self::ignored). A permit that goes out of scope, by an early return or a panic, is
/// ignored, because its outcome wasn't reported. [`report`](Self::report) reports the outcome while the
/// share is still needed. [`cancel`](Self::cancel) is for work that never started.
///
/// A permit borrows its limiter, or shares it ([`OwnedPermit`](super::OwnedPermit)).
///
/// ```
/// use tollgate::ConcurrencyLimiter;
///
/// # fn call() -> Result<(), &'static str> { Err("timed out") }
/// let limiter = ConcurrencyLimiter::new(10);
/// let permit = limiter.try_acquire()?;
/// match call() {
///     Ok(()) => permit.success(),
///     Err("timed out") => permit.dropped(),
///     Err(_) => permit.ignored(),
/// }
/// assert_eq!(limiter.peek().in_use, 0);
/// assert_eq!(limiter.stats().dropped, 1);
/// # Ok::<(), tollgate::concurrency::PermitDenied>(())
/// ```
#[must_use = "a permit that is dropped immediately limits nothing"]
pub struct Permit<H: PermitSource> {
    home: H,
    weight_and_in_flight: WeightAndInFlight,
    /// Read from the clock only if there is an observer; otherwise zero.
    started: Timestamp,
    /// The outcome that is counted and reported at the drop; `None` if it was reported before, or
    /// cancelled.
    ending: Option<PermitOutcome>,
}

/// The weight of a permit, and the permits in use when it was granted, in one word.
///
/// All fields of a permit are whole words. A permit is moved right after it was made, eight bytes at a
/// time. A processor that reads a word of which only a part was just written waits until that part has
/// reached the cache: some 5 ns for each, as much as all the rest.
#[derive(Clone, Copy)]
struct WeightAndInFlight(u64);

impl WeightAndInFlight {
    #[inline]
    fn new(weight: u32, in_flight: u32) -> Self {
        Self(u64::from(weight) << 32 | u64::from(in_flight))
    }

    #[inline]
    fn weight(self) -> u32 {
        u32::try_from(self.0 >> 32).unwrap_or(u32::MAX)
    }

    #[inline]
    fn in_flight(self) -> u32 {
        u32::try_from(self.0 & u64::from(u32::MAX)).unwrap_or(u32::MAX)
    }
}

impl<H: PermitSource> Permit<H> {
    /// A permit for a weight that has entered the gate already.
    #[inline]
    pub(super) fn new(home: H, weight: u32, in_flight: u32) -> Self {
        home.context().counters.increment(Counter::Acquired);
        let started = match home.context().observer {
            Some(_) => home.now(),
            None => Timestamp::ZERO,
        };
        Self {
            home,
            weight_and_in_flight: WeightAndInFlight::new(weight, in_flight),
            started,
            ending: Some(PermitOutcome::Ignored),
        }
    }

    #[inline]
    pub(crate) fn try_new(home: H, weight: u32) -> Result<Self, PermitDenied> {
        let in_flight = home.gate().try_enter(weight);
        Self::from_entry(home, weight, in_flight)
    }

    /// A permit while less than this percentage of the limit is in use: for the crates of this project.
    ///
    /// # Errors
    /// [`PermitDenied`]: nothing was acquired.
    #[doc(hidden)]
    #[inline]
    pub fn try_new_within(home: H, percent: u8) -> Result<Self, PermitDenied> {
        let in_flight = home.gate().try_enter_within(1, percent);
        Self::from_entry(home, 1, in_flight)
    }

    /// A permit even if the limit is reached, for a caller to which one was promised at the current
    /// limit: for the crates of this project.
    ///
    /// # Errors
    /// [`PermitDenied`]: nothing was acquired.
    #[doc(hidden)]
    pub fn try_new_promised(
        home: H,
        is_promised: impl FnOnce(u32) -> bool,
    ) -> Result<Self, PermitDenied> {
        let gate = home.gate();
        let anyway = || is_promised(gate.limit()).then(|| gate.enter_over_limit(1));
        let in_flight = gate.try_enter(1).or_else(anyway);
        Self::from_entry(home, 1, in_flight)
    }

    #[inline]
    fn from_entry(home: H, weight: u32, in_flight: Option<u32>) -> Result<Self, PermitDenied> {
        match in_flight {
            Some(in_flight) => Ok(Self::new(home, weight, in_flight)),
            None => Err(deny(&home, weight)),
        }
    }

    /// The weight of the permit.
    #[inline]
    pub fn weight(&self) -> u32 {
        self.weight_and_in_flight.weight()
    }

    /// The permits in use when it was granted, including this one.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.weight_and_in_flight.in_flight()
    }

    /// When it was granted, on the limiter's clock; `None` without an observer, because then no clock
    /// is read.
    pub fn started(&self) -> Option<Timestamp> {
        self.home.context().observer.as_ref().map(|_| self.started)
    }

    /// Restarts the latency: the work begins only now, and the time since the grant doesn't count.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::ConcurrencyLimiter;
    /// use tollgate::clock::Manual;
    /// use tollgate::concurrency::{CompletedCall, PermitObserver};
    ///
    /// struct LogLatency;
    ///
    /// impl PermitObserver for LogLatency {
    ///     fn on_completed(&self, ended: &CompletedCall) -> Option<u32> {
    ///         println!("took {:?}", ended.latency);
    ///         None
    ///     }
    /// }
    ///
    /// let clock = Manual::new();
    /// let limiter = ConcurrencyLimiter::builder(200).observer(LogLatency).clock(clock.clone()).build();
    /// let mut permit = limiter.try_acquire()?;
    /// clock.advance(Duration::from_millis(3)); // Another limit is checked, too.
    /// permit.restart();
    /// assert_eq!(permit.started().map(|at| at.as_nanos()), Some(3_000_000));
    /// # Ok::<(), tollgate::concurrency::PermitDenied>(())
    /// ```
    pub fn restart(&mut self) {
        if self.home.context().observer.is_some() {
            self.started = self.home.now();
        }
    }

    /// The work was done.
    #[inline]
    pub fn success(self) {
        self.end(PermitOutcome::Success);
    }

    /// The work timed out or was rejected for overload.
    #[inline]
    pub fn dropped(self) {
        self.end(PermitOutcome::Dropped);
    }

    /// The work ended with an outcome that has no information about capacity. A plain drop means the
    /// same.
    #[inline]
    pub fn ignored(self) {
        self.end(PermitOutcome::Ignored);
    }

    /// The work ended with this outcome.
    #[inline]
    pub fn end(mut self, ending: PermitOutcome) {
        if self.ending.is_some() {
            self.ending = Some(ending);
        }
    }

    /// Reports the outcome now, and keeps the share until the permit is dropped. The head of a response
    /// shows how the call went and how long it took, while its body is still to be sent. Later reports
    /// have no effect.
    ///
    /// ```
    /// use tollgate::{ConcurrencyLimiter, concurrency::PermitOutcome};
    ///
    /// let limiter = ConcurrencyLimiter::new(10);
    /// let mut permit = limiter.try_acquire()?;
    /// permit.report(PermitOutcome::Success); // the head has arrived …
    /// assert_eq!((limiter.stats().succeeded, limiter.peek().in_use), (1, 1));
    /// drop(permit); // … and now the body has ended
    /// assert_eq!(limiter.peek().in_use, 0);
    /// # Ok::<(), tollgate::concurrency::PermitDenied>(())
    /// ```
    pub fn report(&mut self, ending: PermitOutcome) {
        if self.ending.take().is_some() {
            self.report_outcome(ending);
        }
    }

    /// Releases the permit as if it had never been granted: no observer is notified.
    ///
    /// ```
    /// use tollgate::ConcurrencyLimiter;
    ///
    /// let limiter = ConcurrencyLimiter::new(10);
    /// let permit = limiter.try_acquire()?;
    /// permit.cancel(); // another limit denied, so there is nothing to do
    /// assert_eq!(limiter.peek().in_use, 0);
    /// assert_eq!(limiter.stats().cancelled, 1);
    /// # Ok::<(), tollgate::concurrency::PermitDenied>(())
    /// ```
    #[inline]
    pub fn cancel(mut self) {
        if self.ending.take().is_some() {
            self.home.context().counters.increment(Counter::Cancelled);
        }
    }

    /// Counts the outcome, and notifies the observer.
    #[inline]
    fn report_outcome(&self, ending: PermitOutcome) {
        self.home.context().counters.increment(ending.into());
        let Some(observer) = self.home.context().observer.as_deref() else {
            return;
        };
        let gate = self.home.gate();
        let limit = gate.limit();
        let answer = observer.on_completed(&CompletedCall {
            ending,
            weight: self.weight(),
            in_flight: self.in_flight(),
            limit,
            started: self.started,
            latency: self.home.now() - self.started,
        });
        if answer.is_some() || gate.limit() != limit {
            apply_limit(gate, observer, answer);
        }
    }
}

/// Applies a limit, then checks again: of two concurrent changes, the earlier one may be applied last.
#[cold]
fn apply_limit(gate: &Gate, observer: &dyn PermitObserver, answer: Option<u32>) {
    let mut next = answer.or_else(|| observer.limit());
    while let Some(limit) = next {
        gate.set_limit(limit);
        next = observer.limit().filter(|now| *now != limit);
    }
}

/// Counts a denial, and returns how full the limit is.
#[cold]
pub(super) fn deny<H: PermitSource>(home: &H, weight: u32) -> PermitDenied {
    home.context().counters.increment(Counter::Denied);
    let occupancy = home.gate().occupancy();
    home.refusal(if weight > occupancy.limit {
        PermitDenied::ExceedsLimit(occupancy)
    } else {
        PermitDenied::Full(occupancy)
    })
}

impl<H: PermitSource> Drop for Permit<H> {
    #[inline]
    fn drop(&mut self) {
        // Release first, so that a panicking observer doesn't leak the share.
        self.home.gate().release(self.weight());
        if let Some(ending) = self.ending {
            self.report_outcome(ending);
        }
    }
}

impl<H: PermitSource> fmt::Debug for Permit<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("weight", &self.weight())
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}
