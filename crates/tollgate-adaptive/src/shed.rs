//! Which requests are admitted when not all can be: by criticality, or by guaranteed shares.

use std::fmt;
use std::sync::Arc;
// Not loom's atomics: each count is a word of its own, and the gate decides.
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use derive_more::{Display, Error};
use tollgate::ConcurrencyLimiter;
use tollgate::clock::{Clock, Monotonic};
use tollgate::concurrency::{
    OwnedPermit, Permit, PermitDenied, PermitSource, PermitSourceWith, percent_of_limit,
};

/// How much a request matters.
///
/// ```
/// use tollgate_adaptive::shed::Criticality;
///
/// assert_eq!("sheddable".parse(), Ok(Criticality::Sheddable));
/// assert_eq!(Criticality::default(), Criticality::Default);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Criticality {
    /// It can be retried later, such as a nightly job.
    Sheddable,
    /// Users notice its failure.
    #[default]
    Default,
    /// It must be done, such as a payment.
    Critical,
}

impl Criticality {
    /// All classes, in the order in which they are shed.
    pub const ALL: [Self; 3] = [Self::Sheddable, Self::Default, Self::Critical];

    /// The name of the class.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sheddable => "sheddable",
            Self::Default => "default",
            Self::Critical => "critical",
        }
    }
}

impl fmt::Display for Criticality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Criticality {
    type Err = UnknownCriticality;

    fn from_str(name: &str) -> Result<Self, UnknownCriticality> {
        let class = Self::ALL.into_iter().find(|class| class.name() == name);
        class.ok_or_else(|| UnknownCriticality(name.to_owned()))
    }
}

/// A name that isn't a class.
#[derive(Clone, Debug, Display, Error, PartialEq, Eq)]
#[display("no class is named {_0}; there are critical, default and sheddable")]
pub struct UnknownCriticality(#[error(not(source))] String);

/// The part of a limit that each class may use: by default 70 % for sheddable requests, 90 % for
/// default ones and all of it for critical ones.
///
/// ```
/// use tollgate_adaptive::shed::{Criticality, CriticalityShares};
///
/// let shares = CriticalityShares::default();
/// assert_eq!(Criticality::ALL.map(|class| shares.of(class, 10)), [7, 9, 10]);
/// assert_eq!(CriticalityShares::new(50, 80).percent(Criticality::Default), 80);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CriticalityShares([u8; 3]);

impl CriticalityShares {
    /// The percentages for sheddable and default requests. A class never has a higher share than the
    /// class above it.
    pub const fn new(sheddable: u8, default: u8) -> Self {
        let default = if default < 100 { default } else { 100 };
        let sheddable = if sheddable < default {
            sheddable
        } else {
            default
        };
        Self([sheddable, default, 100])
    }

    /// The share of a class, in percent.
    pub const fn percent(self, class: Criticality) -> u8 {
        self.0[class as usize]
    }

    /// How many of `limit` permits a class may use, rounded down; at least 1 unless the limit is 0.
    pub fn of(self, class: Criticality, limit: u32) -> u32 {
        percent_of_limit(limit, self.percent(class))
    }
}

impl Default for CriticalityShares {
    fn default() -> Self {
        Self::new(70, 90)
    }
}

/// Load shedding by criticality: each class may use a part of one limit.
///
/// Sheddable requests pass while less than 70 % of the limit is in use, default ones up to 90 %, and
/// critical ones up to all of it. As the limit falls (it may be an
/// [adaptive](crate::AdaptiveController) one) or load rises, sheddable requests are denied first and
/// critical ones last. While nothing is in use, one request of any class passes.
///
/// ```
/// use std::sync::Arc;
/// use tollgate::ConcurrencyLimiter;
/// use tollgate_adaptive::shed::{Criticality, LoadShedder};
///
/// let shedder = LoadShedder::new(Arc::new(ConcurrencyLimiter::new(10)));
/// let passed = |class, count| (0..count).filter_map(|_| shedder.try_acquire(class).ok()).collect::<Vec<_>>();
/// let cheap = passed(Criticality::Sheddable, 10);
/// let usual = passed(Criticality::Default, 10);
/// let critical = passed(Criticality::Critical, 10);
/// assert_eq!([cheap.len(), usual.len(), critical.len()], [7, 2, 1]);
/// assert_eq!(shedder.shed(Criticality::Sheddable), 3);
/// ```
#[derive(Debug)]
pub struct LoadShedder<C: Clock = Monotonic> {
    limiter: Arc<ConcurrencyLimiter<C>>,
    shares: CriticalityShares,
    shed: [AtomicU64; 3],
}

impl<C: Clock> LoadShedder<C> {
    /// 70 %, 90 % and 100 % of this limit.
    pub fn new(limiter: Arc<ConcurrencyLimiter<C>>) -> Self {
        Self {
            limiter,
            shares: CriticalityShares::default(),
            shed: [const { AtomicU64::new(0) }; 3],
        }
    }

    /// Sets the percentages for sheddable and default requests. A class never has a higher share than
    /// the class above it.
    #[must_use]
    pub fn percents(self, sheddable: u8, default: u8) -> Self {
        self.shares(CriticalityShares::new(sheddable, default))
    }

    /// Sets the parts of the limit.
    #[must_use]
    pub const fn shares(mut self, shares: CriticalityShares) -> Self {
        self.shares = shares;
        self
    }

    /// Acquires a permit without waiting, if this class may have one.
    ///
    /// # Errors
    /// [`PermitDenied`]: the class's part of the limit is in use.
    pub fn try_acquire(
        &self,
        class: Criticality,
    ) -> Result<Permit<&ConcurrencyLimiter<C>>, PermitDenied> {
        self.take(&*self.limiter, class)
    }

    /// As [`try_acquire`](Self::try_acquire), with a permit that shares the limiter, so that it can
    /// move into a task.
    ///
    /// # Errors
    /// [`PermitDenied`]: the class's part of the limit is in use.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tollgate::ConcurrencyLimiter;
    /// use tollgate_adaptive::shed::{Criticality, LoadShedder};
    ///
    /// let shedder = LoadShedder::new(Arc::new(ConcurrencyLimiter::new(10)));
    /// let permit = shedder.try_acquire_owned(Criticality::Critical)?;
    /// std::thread::spawn(move || permit.success()).join().unwrap();
    /// assert_eq!(shedder.limiter().available(), 10);
    /// # Ok::<(), tollgate::concurrency::PermitDenied>(())
    /// ```
    pub fn try_acquire_owned(&self, class: Criticality) -> Result<OwnedPermit<C>, PermitDenied> {
        self.take(Arc::clone(&self.limiter), class)
    }

    fn take<H: PermitSource>(
        &self,
        home: H,
        class: Criticality,
    ) -> Result<Permit<H>, PermitDenied> {
        let percent = self.shares.percent(class);
        Permit::try_new_within(home, percent).inspect_err(|_| {
            self.shed[class as usize].fetch_add(1, Ordering::Relaxed);
        })
    }

    /// The number of this class's requests that were denied.
    pub fn shed(&self, class: Criticality) -> u64 {
        self.shed[class as usize].load(Ordering::Relaxed)
    }

    /// The limiter that all classes share.
    pub fn limiter(&self) -> &Arc<ConcurrencyLimiter<C>> {
        &self.limiter
    }
}

/// One limit with a guaranteed share for each of several partitions.
///
/// A partition may use what the others leave unused, up to the whole limit. Its own share is always
/// available: it passes while it uses less than that, even if others have used up the limit. Then the
/// limit is exceeded by what was lent (as in Netflix's partitioned limiter).
///
/// ```
/// use std::sync::Arc;
/// use tollgate::ConcurrencyLimiter;
/// use tollgate_adaptive::shed::Partitions;
///
/// let limiter = Arc::new(ConcurrencyLimiter::new(10));
/// let partitions = Partitions::new(limiter, &[("live", 90), ("batch", 10)]);
/// let batch: Vec<_> = (0..20).filter_map(|_| partitions.try_acquire("batch").ok()).collect();
/// assert_eq!(batch.len(), 10, "all, as nobody else wants any");
/// let live: Vec<_> = (0..20).filter_map(|_| partitions.try_acquire("live").ok()).collect();
/// assert_eq!(live.len(), 9, "what it was promised");
/// ```
#[derive(Debug)]
pub struct Partitions<C: Clock = Monotonic> {
    limiter: Arc<ConcurrencyLimiter<C>>,
    partitions: Vec<PartitionState>,
}

#[derive(Debug)]
struct PartitionState {
    name: String,
    percent: u8,
    in_use: Arc<AtomicU32>,
}

/// The source of a partition's permit: the limiter `H`, and the count of the partition.
pub type PartitionPermitSource<H> = PermitSourceWith<H, PartitionCount>;

/// One permit in the count of its partition; dropping it decrements the count.
#[derive(Debug)]
pub struct PartitionCount {
    /// None if no partition has the name.
    in_use: Option<Arc<AtomicU32>>,
}

impl Drop for PartitionCount {
    fn drop(&mut self) {
        if let Some(in_use) = &self.in_use {
            in_use.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl<C: Clock> Partitions<C> {
    /// Partitions by name, each with a percentage of the limit, and at least 1 permit.
    ///
    /// # Panics
    /// If the percentages add up to more than 100.
    pub fn new(limiter: Arc<ConcurrencyLimiter<C>>, shares: &[(&str, u8)]) -> Self {
        let sum: u32 = shares.iter().map(|(_, percent)| u32::from(*percent)).sum();
        assert!(
            sum <= 100,
            "partitions of {sum} % together: 100 % is all there is"
        );
        let part = |(name, percent): &(&str, u8)| PartitionState {
            name: (*name).to_owned(),
            percent: *percent,
            in_use: Arc::default(),
        };
        Self {
            limiter,
            partitions: shares.iter().map(part).collect(),
        }
    }

    /// Acquires a permit of this partition without waiting. An unknown name has no guaranteed share,
    /// and may use what is unused.
    ///
    /// # Errors
    /// [`PermitDenied`]: its share is used up, and so is the limit.
    pub fn try_acquire(
        &self,
        name: &str,
    ) -> Result<Permit<PartitionPermitSource<&ConcurrencyLimiter<C>>>, PermitDenied> {
        self.take(&*self.limiter, name)
    }

    /// As [`try_acquire`](Self::try_acquire), with a permit that shares the limiter, so that it can
    /// move into a task.
    ///
    /// # Errors
    /// [`PermitDenied`]: its share is used up, and so is the limit.
    pub fn try_acquire_owned(
        &self,
        name: &str,
    ) -> Result<Permit<PartitionPermitSource<Arc<ConcurrencyLimiter<C>>>>, PermitDenied> {
        self.take(Arc::clone(&self.limiter), name)
    }

    fn take<H: PermitSource>(
        &self,
        home: H,
        name: &str,
    ) -> Result<Permit<PartitionPermitSource<H>>, PermitDenied> {
        let part = self.partitions.iter().find(|part| part.name == name);
        let before = part.map_or(0, |part| part.in_use.fetch_add(1, Ordering::Relaxed));
        // Made after the increment, so that its drop decrements the count if no permit is granted.
        let in_use = part.map(|part| Arc::clone(&part.in_use));
        let share = PermitSourceWith {
            home,
            value: PartitionCount { in_use },
        };
        Permit::try_new_promised(share, |limit| {
            let promised =
                |part: &PartitionState| (u64::from(limit) * u64::from(part.percent) / 100).max(1);
            u64::from(before) < part.map_or(0, promised)
        })
    }

    /// The permits that a partition uses now.
    pub fn in_use(&self, name: &str) -> u32 {
        let part = self.partitions.iter().find(|part| part.name == name);
        part.map_or(0, |part| part.in_use.load(Ordering::Relaxed))
    }
}
