//! The settings of tiers before they are built.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use super::{TierDirectory, TierError, TierLimits, TierPlan, Tiers};
use crate::clock::{Clock, ClockChoice, DefaultClock, Wall, WithClock};
use crate::quota::{Quota, QuotaLimiter};
use crate::{CompositeLimiter, KeyedConcurrencyLimiter, KeyedLimiter};

/// Builds [`Tiers`]; made by [`Tiers::builder`].
///
/// The clock is that of rates and permits; quotas have their own ([`quotas`](Builder::quotas)).
///
/// ```
/// use tollgate::{Rate, Tiers, tiers::TierLimits};
///
/// let tiers = Tiers::builder("free", TierLimits::new(Rate::per_second(10)), 1_000_000)
///     .tier("standard", TierLimits::new(Rate::per_second(100)))
///     .build()?;
/// assert_eq!(
///     tiers.assign("acme", "gold").unwrap_err().to_string(),
///     "no tier \"gold\"; there are free, standard"
/// );
/// # Ok::<(), tollgate::tiers::TierError>(())
/// ```
pub type Builder<C = DefaultClock, W = Wall> = WithClock<Settings<W>, C>;

/// The settings of tiers, except the clock of their rates.
#[derive(Debug)]
pub struct Settings<W: Clock = Wall> {
    default_tier: String,
    tiers: Vec<(String, TierLimits)>,
    capacity: usize,
    quotas: QuotaLimiter<W>,
}

impl Builder {
    pub(super) fn new(default: &str, allowance: TierLimits, capacity: usize) -> Self {
        Self::from_settings(Settings {
            default_tier: default.to_owned(),
            tiers: vec![(default.to_owned(), allowance)],
            capacity,
            quotas: QuotaLimiter::new(Quota::unlimited(), capacity),
        })
    }
}

impl<C, W: Clock> Builder<C, W> {
    /// Adds a tier, or replaces one that was added before.
    pub fn tier(mut self, name: &str, allowance: TierLimits) -> Self {
        self.settings.tiers.push((name.to_owned(), allowance));
        self
    }

    /// Counts quotas in this limiter: in a file that survives restarts, for example, or with
    /// thresholds. The limiter's own default quota isn't used. By default, quotas are counted in
    /// memory.
    pub fn quotas<V: Clock>(self, quotas: QuotaLimiter<V>) -> Builder<C, V> {
        let Self { settings, clock } = self;
        let settings = Settings {
            default_tier: settings.default_tier,
            tiers: settings.tiers,
            capacity: settings.capacity,
            quotas,
        };
        WithClock { settings, clock }
    }
}

impl<C: ClockChoice<Clock: Clone>, W: Clock> Builder<C, W> {
    /// Builds the tiers.
    ///
    /// # Errors
    /// If a rate can't be represented.
    pub fn build(self) -> Result<Tiers<C::Clock, W>, TierError> {
        let WithClock { settings, clock } = self.resolve_clock();
        let mut tiers = HashMap::new();
        for (algorithm_name, allowance) in settings.tiers {
            let plan = TierPlan::new(&algorithm_name, allowance)?;
            tiers.insert(algorithm_name, plan);
        }
        let Some(default) = tiers.get(&settings.default_tier).cloned() else {
            return Err(TierError::UnknownTier {
                tier: settings.default_tier,
                known: tiers.into_keys().collect(),
            });
        };
        let TierLimits {
            rate, concurrency, ..
        } = default.allowance;
        let slots =
            KeyedConcurrencyLimiter::builder(concurrency.unwrap_or(u32::MAX), settings.capacity)
                .clock(clock.clone())
                .build_unchecked();
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
            concurrency: Arc::new(slots),
            stack: CompositeLimiter::new(),
            capacity: settings.capacity,
        })
    }
}
