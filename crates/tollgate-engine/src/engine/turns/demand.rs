//! What a request asks for that waits in a line, and whose line that is.

use std::time::Duration;

use tollgate::{Algorithm, Timestamp};
use tollgate_adaptive::shed::Criticality;

use crate::limits::{Check, LimitKind};

/// Whose line: a limit, the key that it is for, and how critical those are who stand there.
///
/// Who may use all of the slots isn't held up by who waits until less of them is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Spot {
    pub(super) limit: u64,
    pub(super) fingerprint: [u64; 2],
    pub(super) class: Criticality,
}

impl Spot {
    /// Where all may use all of it.
    pub(crate) const fn new(limit: u64, fingerprint: [u64; 2]) -> Self {
        Self {
            limit,
            fingerprint,
            class: Criticality::Critical,
        }
    }

    pub(crate) fn of(check: &Check<'_>) -> Self {
        Self::new(check.limit.id, check.key.fingerprint())
    }
}

/// What a request asks of the limit that it waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    pub(crate) spot: Spot,
    pub(super) cost: u64,
    /// How long one unit takes to come; zero if that isn't known, or if there are only some at once.
    pace: Duration,
    /// When that changes, if it does.
    pub(crate) until: Option<Timestamp>,
}

impl Demand {
    pub(crate) fn of(check: &Check<'_>) -> Self {
        let pace = match check.limit.kind() {
            LimitKind::Rate {
                rate,
                algorithm: Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket,
            } if !rate.is_zero() => rate.period().map_or(Duration::ZERO, |period| {
                let nanos = period.as_nanos() / u128::from(rate.count().max(1));
                Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
            }),
            _ => Duration::ZERO,
        };
        let cost = match check.limit.kind() {
            // A request takes one slot, however much it costs.
            LimitKind::Concurrency(_) | LimitKind::Adaptive(_) => 1,
            _ => check.cost,
        };
        Self {
            spot: Spot::of(check),
            cost,
            pace,
            until: None,
        }
    }

    /// The same demand of a request that is so critical.
    pub(crate) fn of_class(self, class: Criticality) -> Self {
        let spot = Spot { class, ..self.spot };
        Self { spot, ..self }
    }

    /// The same demand of a gate that stands until then beside this limit, in whose line it waits: that goes on when
    /// the gate is gone.
    pub(crate) fn beside(self, limit: u64, until: Timestamp) -> Self {
        Self {
            spot: Spot { limit, ..self.spot },
            until: Some(until),
            ..self
        }
    }

    /// How long so many units take to come.
    pub(super) fn takes(&self, units: u64) -> Duration {
        let nanos = self.pace.as_nanos().saturating_mul(u128::from(units));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}
