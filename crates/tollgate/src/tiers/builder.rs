//! What can be chosen about tiers before they are built.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use super::{Allowance, TierDirectory, TierError, TierPlan, Tiers};
use crate::clock::{Clock, ClockChoice, Clocked, DefaultClock, Wall};
use crate::quota::{Quota, QuotaLimiter};
use crate::{KeyedConcurrency, KeyedLimiter, Stack};

/// Builds [`Tiers`]; made by [`Tiers::builder`].
///
/// Its clock is that of the rates and slots; quotas have their own ([`quotas`](Builder::quotas)).
///
/// ```
/// use tollgate::{Rate, Tiers, tiers::Allowance};
///
/// let tiers = Tiers::builder("free", Allowance::new(Rate::per_second(10)), 1_000_000)
///     .tier("standard", Allowance::new(Rate::per_second(100)))
///     .build()?;
/// assert_eq!(
///     tiers.assign("acme", "gold").unwrap_err().to_string(),
///     "no tier \"gold\"; there are free, standard"
/// );
/// # Ok::<(), tollgate::tiers::TierError>(())
/// ```
pub type Builder<C = DefaultClock, W = Wall> = Clocked<Settings<W>, C>;

/// What is chosen of tiers before they are built, but for the clock of their rates.
#[derive(Debug)]
pub struct Settings<W: Clock = Wall> {
    default: String,
    tiers: Vec<(String, Allowance)>,
    capacity: usize,
    quotas: QuotaLimiter<W>,
}

impl Builder {
    pub(super) fn new(default: &str, allowance: Allowance, capacity: usize) -> Self {
        Self::of(Settings {
            default: default.to_owned(),
            tiers: vec![(default.to_owned(), allowance)],
            capacity,
            quotas: QuotaLimiter::new(Quota::unlimited(), capacity),
        })
    }
}

impl<C, W: Clock> Builder<C, W> {
    /// Adds a tier, or changes one that was added before.
    pub fn tier(mut self, name: &str, allowance: Allowance) -> Self {
        self.settings.tiers.push((name.to_owned(), allowance));
        self
    }

    /// Counts quotas here: in a file that survives restarts, say, or with thresholds. Its own quota
    /// doesn't matter. By default they are counted in memory.
    pub fn quotas<V: Clock>(self, quotas: QuotaLimiter<V>) -> Builder<C, V> {
        let Self { settings, clock } = self;
        let settings = Settings {
            default: settings.default,
            tiers: settings.tiers,
            capacity: settings.capacity,
            quotas,
        };
        Clocked { settings, clock }
    }
}

impl<C: ClockChoice<Clock: Clone>, W: Clock> Builder<C, W> {
    /// Builds it.
    ///
    /// # Errors
    /// If a rate can't be represented.
    pub fn build(self) -> Result<Tiers<C::Clock, W>, TierError> {
        let Clocked { settings, clock } = self.with_clock();
        let mut tiers = HashMap::new();
        for (name, allowance) in settings.tiers {
            let plan = TierPlan::new(&name, allowance)?;
            tiers.insert(name, plan);
        }
        let Some(default) = tiers.get(&settings.default).cloned() else {
            return Err(TierError::Unknown {
                tier: settings.default,
                known: tiers.into_keys().collect(),
            });
        };
        let Allowance {
            rate, concurrency, ..
        } = default.allowance;
        let slots = KeyedConcurrency::builder(concurrency.unwrap_or(u32::MAX), settings.capacity)
            .clock(clock.clone())
            .finish();
        Ok(Tiers {
            rates: KeyedLimiter::builder(rate, settings.capacity)
                .clock(clock)
                .build()?,
            directory: RwLock::new(TierDirectory {
                default,
                tiers,
                tenants: HashMap::new(),
            }),
            quotas: settings.quotas,
            slots: Arc::new(slots),
            stack: Stack::new(),
            capacity: settings.capacity,
        })
    }
}
