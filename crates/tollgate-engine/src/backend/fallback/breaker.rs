//! When a store that fails isn't even asked.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tollgate::Timestamp;

/// When rules that circuit-break stop asking a store, and for how long.
///
/// ```
/// use std::time::Duration;
/// use tollgate_engine::backend::Breaker;
///
/// let breaker = Breaker { errors: 5, ..Breaker::default() };
/// assert_eq!(breaker.failing_for, Duration::from_secs(10));
/// assert_eq!(breaker.stays_open, Duration::from_secs(60));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breaker {
    /// Once it has failed for so long without one success: 10 seconds unless said otherwise.
    pub failing_for: Duration,
    /// Or so many times in a row: 100 unless said otherwise.
    pub errors: u64,
    /// It isn't asked for so long, and then by one request: 60 seconds unless said otherwise.
    pub stays_open: Duration,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            failing_for: Duration::from_secs(10),
            errors: 100,
            stays_open: Duration::from_secs(60),
        }
    }
}

/// Whether the store may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    Open,
    /// By this one alone.
    Probe,
    Shut,
}

/// A probe's turn to ask, if it is one. All others wait for what comes of it; if it has no need to ask, or
/// is given up, the next one may.
#[derive(Debug)]
pub(super) struct Turn<'a>(Option<&'a Circuit>);

impl Turn<'_> {
    /// The store was asked, and something came of it.
    pub(super) fn is_over(&mut self) {
        self.0 = None;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(circuit) = self.0 {
            circuit.open_until.store(0, Ordering::Relaxed);
        }
    }
}

/// What is known of the store. All is relaxed: a request that sees it late asks once more, or once less.
#[derive(Debug)]
pub(super) struct Circuit {
    breaker: Breaker,
    /// Failures since the last success.
    errors: AtomicU64,
    /// When the first of them was; 0 if there is none.
    since: AtomicU64,
    /// It isn't asked before; 0 if it is.
    open_until: AtomicU64,
    is_open: AtomicBool,
    trips: AtomicU64,
}

impl Circuit {
    pub(super) fn new(breaker: Breaker) -> Self {
        Self {
            breaker,
            errors: AtomicU64::new(0),
            since: AtomicU64::new(0),
            open_until: AtomicU64::new(0),
            is_open: AtomicBool::new(false),
            trips: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        !self.is_open.load(Ordering::Relaxed)
    }

    pub(super) fn trips(&self) -> u64 {
        self.trips.load(Ordering::Relaxed)
    }

    /// Whether a request may ask while it is open.
    pub(super) fn ask(&self, now: Timestamp) -> Gate {
        let until = self.open_until.load(Ordering::Relaxed);
        if now.as_nanos() < until {
            return Gate::Shut;
        }
        // One goes first, and the others wait for what comes of it as long again.
        let next = (now + self.breaker.stays_open).as_nanos();
        let relaxed = Ordering::Relaxed;
        let claimed = self
            .open_until
            .compare_exchange(until, next, relaxed, relaxed);
        match claimed {
            Ok(_) => Gate::Probe,
            Err(_) => Gate::Shut,
        }
    }

    /// The turn of one that this was said to.
    pub(super) fn turn(&self, gate: Gate) -> Turn<'_> {
        Turn((gate == Gate::Probe).then_some(self))
    }

    /// The store answered. Returns whether that closed the circuit.
    pub(super) fn works(&self) -> bool {
        self.errors.store(0, Ordering::Relaxed);
        self.since.store(0, Ordering::Relaxed);
        self.is_open.swap(false, Ordering::Relaxed)
    }

    /// The store failed. Returns for how long it isn't asked, if that begins now.
    pub(super) fn fails(&self, now: Timestamp) -> Option<Duration> {
        let errors = self.errors.fetch_add(1, Ordering::Relaxed) + 1;
        let relaxed = Ordering::Relaxed;
        let nanos = now.as_nanos().max(1);
        let since = match self.since.compare_exchange(0, nanos, relaxed, relaxed) {
            Ok(_) => nanos,
            Err(since) => since,
        };
        let failing = now.nanos_since(Timestamp::from_nanos(since));
        let is_long = u128::from(failing) >= self.breaker.failing_for.as_nanos();
        if !is_long && errors < self.breaker.errors {
            return None;
        }
        let until = (now + self.breaker.stays_open).as_nanos();
        if self.is_open.swap(true, Ordering::Relaxed) {
            return None;
        }
        self.open_until.store(until, Ordering::Relaxed);
        self.trips.fetch_add(1, Ordering::Relaxed);
        Some(self.breaker.stays_open)
    }
}
