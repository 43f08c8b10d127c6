//! What can be chosen about tiers before they are built.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use super::{Allowance, Directory, Plan, TierError, Tiers};
use crate::clock::{Clock, Monotonic, Wall};
use crate::limiter::DefaultClock;
use crate::quota::{Quota, QuotaLimiter};
use crate::{KeyedConcurrency, KeyedLimiter, Stack};

/// Builds [`Tiers`]; made by [`Tiers::builder`].
///
/// ```
/// use tollgate::{Rate, Tiers, tiers::Allowance};
///
/// let tiers = Tiers::builder(("free", Allowance::new(Rate::per_second(10))), 1_000_000)
///     .tier("standard", Allowance::new(Rate::per_second(100)))
///     .build()?;
/// assert_eq!(
///     tiers.assign("acme", "gold").unwrap_err().to_string(),
///     "no tier \"gold\"; there are free, standard"
/// );
/// # Ok::<(), tollgate::tiers::TierError>(())
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct Builder<C = DefaultClock, W: Clock = Wall> {
    default: String,
    tiers: Vec<(String, Allowance)>,
    capacity: usize,
    quotas: QuotaLimiter<W>,
    clock: C,
}

impl Builder {
    pub(super) fn new((default, allowance): (&str, Allowance), capacity: usize) -> Self {
        Self {
            default: default.to_owned(),
            tiers: vec![(default.to_owned(), allowance)],
            capacity,
            quotas: QuotaLimiter::new(Quota::unlimited(), capacity),
            clock: DefaultClock::new(),
        }
    }
}

impl<W: Clock> Builder<DefaultClock, W> {
    /// Builds it on the default clock.
    ///
    /// # Errors
    /// If a rate can't be represented.
    pub fn build(self) -> Result<Tiers<Monotonic, W>, TierError> {
        self.clock(Monotonic::new()).build()
    }
}

impl<C, W: Clock> Builder<C, W> {
    /// Adds a tier, or changes one that was added before.
    pub fn tier(mut self, name: &str, allowance: Allowance) -> Self {
        self.tiers.push((name.to_owned(), allowance));
        self
    }

    /// Counts quotas here: in a file that survives restarts, say, or with thresholds. Its own quota
    /// doesn't matter. By default they are counted in memory.
    pub fn quotas<V: Clock>(self, quotas: QuotaLimiter<V>) -> Builder<C, V> {
        Builder {
            default: self.default,
            tiers: self.tiers,
            capacity: self.capacity,
            quotas,
            clock: self.clock,
        }
    }

    /// Reads this clock for rates instead of the default one.
    pub fn clock<D: Clock>(self, clock: D) -> Builder<D, W> {
        Builder {
            default: self.default,
            tiers: self.tiers,
            capacity: self.capacity,
            quotas: self.quotas,
            clock,
        }
    }
}

impl<C: Clock + Clone, W: Clock> Builder<C, W> {
    /// Builds it.
    ///
    /// # Errors
    /// If a rate can't be represented.
    pub fn build(self) -> Result<Tiers<C, W>, TierError> {
        let mut tiers = HashMap::new();
        for (name, allowance) in self.tiers {
            let plan = Plan::new(&name, allowance)?;
            tiers.insert(name, plan);
        }
        let Some(default) = tiers.get(&self.default).cloned() else {
            return Err(TierError::Unknown {
                tier: self.default,
                known: tiers.into_keys().collect(),
            });
        };
        let Allowance {
            rate, concurrency, ..
        } = default.allowance;
        let slots = KeyedConcurrency::builder(concurrency.unwrap_or(u32::MAX), self.capacity)
            .clock(self.clock.clone())
            .finish();
        Ok(Tiers {
            rates: KeyedLimiter::builder(rate, self.capacity)
                .clock(self.clock)
                .build()?,
            directory: RwLock::new(Directory {
                default,
                tiers,
                tenants: HashMap::new(),
            }),
            quotas: self.quotas,
            slots: Arc::new(slots),
            stack: Stack::new(),
            capacity: self.capacity,
        })
    }
}
