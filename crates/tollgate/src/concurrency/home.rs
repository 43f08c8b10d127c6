//! What permits and waits need of whoever gave them: a limiter, or one key of a keyed one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::Timestamp;

use super::gate::Gate;
use super::stats::Tally;
use super::{ConcurrencyLimiter, NoPermit, PermitObserver};
use crate::clock::Clock;
use crate::line::waiting::Waiting;

/// Who gave a [`Permit`](super::Permit): `&ConcurrencyLimiter`, an `Arc` of one, a key of a
/// [`KeyedConcurrency`](super::KeyedConcurrency), or one of these [with a value](Attached).
///
/// The trait is sealed: it is there to be named, not to be implemented.
pub trait PermitHome: fmt::Debug + sealed::PermitHome {}

impl<H: fmt::Debug + sealed::PermitHome> PermitHome for H {}

pub(crate) mod sealed {
    use super::{Clock, Gate, NoPermit, PermitContext, Timestamp};

    pub trait PermitHome {
        fn gate(&self) -> &Gate;
        fn context(&self) -> &PermitContext<dyn Clock + '_>;
        fn now(&self) -> Timestamp;
        /// What a refusal by the gate means to the one who asked.
        fn refusal(&self, by_gate: NoPermit) -> NoPermit {
            by_gate
        }
    }
}

/// What all gates of a limiter have in common.
pub struct PermitContext<C: ?Sized> {
    pub(super) tally: Tally,
    pub(super) observer: Option<Box<dyn PermitObserver>>,
    /// How many may wait at one gate.
    pub(super) max_waiters: usize,
    /// How long a wait may take if the call doesn't say.
    pub(super) timeout: Option<Duration>,
    /// Who waits at all gates together, if that is bounded too.
    pub(super) waiting_in_total: Option<Waiting>,
    pub(super) clock: C,
}

impl<C: ?Sized> fmt::Debug for PermitContext<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PermitContext").finish_non_exhaustive()
    }
}

impl<C: Clock> sealed::PermitHome for ConcurrencyLimiter<C> {
    #[inline]
    fn gate(&self) -> &Gate {
        &self.gate
    }

    #[inline]
    fn context(&self) -> &PermitContext<dyn Clock + '_> {
        &self.context
    }

    #[inline]
    fn now(&self) -> Timestamp {
        self.context.clock.now()
    }
}

/// The methods of a home that is another one's.
macro_rules! as_home {
    ($self:ident => $home:expr) => {
        #[inline]
        fn gate(&$self) -> &Gate {
            $home.gate()
        }

        #[inline]
        fn context(&$self) -> &PermitContext<dyn Clock + '_> {
            $home.context()
        }

        #[inline]
        fn now(&$self) -> Timestamp {
            $home.now()
        }

        fn refusal(&$self, by_gate: NoPermit) -> NoPermit {
            $home.refusal(by_gate)
        }
    };
}

impl<C: Clock> sealed::PermitHome for &ConcurrencyLimiter<C> {
    as_home!(self => (**self));
}

impl<C: Clock> sealed::PermitHome for Arc<ConcurrencyLimiter<C>> {
    as_home!(self => (**self));
}

/// Gives permits that keep a value until they are dropped.
#[derive(Debug)]
pub struct Attached<H, T> {
    /// Gives the permits.
    pub home: H,
    /// Dropped after the permit was given back.
    pub value: T,
}

impl<H: sealed::PermitHome, T> sealed::PermitHome for Attached<H, T> {
    as_home!(self => self.home);
}

/// A limiter whatever its clock.
pub(crate) struct SharedHome(pub(crate) Arc<dyn sealed::PermitHome + Send + Sync>);

impl fmt::Debug for SharedHome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedHome")
    }
}

impl sealed::PermitHome for SharedHome {
    as_home!(self => self.0);
}
