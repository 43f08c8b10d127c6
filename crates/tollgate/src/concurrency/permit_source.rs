//! What permits and waits need of their source: a limiter, or one key of a keyed limiter.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::Timestamp;

use super::gate::Gate;
use super::stats::ConcurrencyCounters;
use super::{ConcurrencyLimiter, PermitDenied, PermitObserver};
use crate::clock::Clock;
use crate::wait_queue::waiter_count::WaiterCount;

/// The source of a [`Permit`](super::Permit): `&ConcurrencyLimiter`, an `Arc` of one, a key of a
/// [`KeyedConcurrencyLimiter`](super::KeyedConcurrencyLimiter), or one of these [with a
/// value](PermitSourceWith).
///
/// The trait is sealed: use it in bounds, but don't implement it.
pub trait PermitSource: fmt::Debug + sealed::PermitSource {}

impl<H: fmt::Debug + sealed::PermitSource> PermitSource for H {}

pub(crate) mod sealed {
    use super::{Clock, Gate, PermitDenied, PermitSettings, Timestamp};

    pub trait PermitSource {
        fn gate(&self) -> &Gate;
        fn context(&self) -> &PermitSettings<dyn Clock + '_>;
        fn now(&self) -> Timestamp;
        /// Converts a denial by the gate into the denial for the caller.
        fn refusal(&self, by_gate: PermitDenied) -> PermitDenied {
            by_gate
        }
    }
}

/// The settings that all gates of a limiter share.
pub struct PermitSettings<C: ?Sized> {
    pub(super) counters: ConcurrencyCounters,
    pub(super) observer: Option<Box<dyn PermitObserver>>,
    /// The most waiters at one gate.
    pub(super) max_waiters: usize,
    /// The timeout of calls that set none.
    pub(super) timeout: Option<Duration>,
    /// The waiters at all gates together, if they are bounded too.
    pub(super) total_waiters: Option<WaiterCount>,
    pub(super) clock: C,
}

impl<C: ?Sized> PermitSettings<C> {
    /// Counts one more waiter, unless there are too many.
    pub(super) fn enter_wait(&self) -> bool {
        self.total_waiters.as_ref().is_none_or(WaiterCount::enter)
    }

    pub(super) fn leave_wait(&self) {
        self.total_waiters.iter().for_each(WaiterCount::leave);
    }
}

impl<C: ?Sized> fmt::Debug for PermitSettings<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PermitContext").finish_non_exhaustive()
    }
}

impl<C: Clock> sealed::PermitSource for ConcurrencyLimiter<C> {
    #[inline]
    fn gate(&self) -> &Gate {
        &self.gate
    }

    #[inline]
    fn context(&self) -> &PermitSettings<dyn Clock + '_> {
        &self.settings
    }

    #[inline]
    fn now(&self) -> Timestamp {
        self.settings.clock.now()
    }
}

/// Any pointer to a source: a reference, an `Arc`, or one with a value.
impl<P: Deref<Target: sealed::PermitSource>> sealed::PermitSource for P {
    #[inline]
    fn gate(&self) -> &Gate {
        (**self).gate()
    }

    #[inline]
    fn context(&self) -> &PermitSettings<dyn Clock + '_> {
        (**self).context()
    }

    #[inline]
    fn now(&self) -> Timestamp {
        (**self).now()
    }

    fn refusal(&self, by_gate: PermitDenied) -> PermitDenied {
        (**self).refusal(by_gate)
    }
}

/// A source whose permits keep a value until they are dropped.
#[derive(Debug)]
pub struct PermitSourceWith<H, T> {
    /// The inner source.
    pub home: H,
    /// Dropped after the permit was released.
    pub value: T,
}

impl<H, T> Deref for PermitSourceWith<H, T> {
    type Target = H;

    fn deref(&self) -> &H {
        &self.home
    }
}

/// A limiter on any clock.
pub(crate) type SharedSource = Arc<dyn PermitSource + Send + Sync>;
