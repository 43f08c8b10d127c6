//! A limit: the kind that decides a check, and the counter that keeps its state.

use tollgate::{Algorithm, LimitError, Rate};

use super::compiled::CompiledLimit;
use super::kind::LimitKind;
use super::prepared_state::PreparedList;
use crate::policy::{Counting, OnStoreFailure, Settlement};

/// A limit, by which checks are decided.
///
/// ```
/// use tollgate_engine::backend::{LimitKind, StandaloneLimit};
/// use tollgate_engine::policy::{Counting, OnStoreFailure};
///
/// let sole = StandaloneLimit::new("jobs", LimitKind::Concurrency(8))?.on_store_failure(OnStoreFailure::Closed);
/// let limit = sole.limit();
/// assert_eq!(limit.kind().to_string(), "8 concurrent");
/// assert_eq!((limit.on_store_failure(), limit.counting()), (OnStoreFailure::Closed, Counting::Exact));
/// # Ok::<(), tollgate::LimitError>(())
/// ```
// The fields that every decision reads come first and are small: of ten thousand limits, few are in the CPU's cache.
#[derive(Clone, Debug)]
pub struct Limit {
    pub(crate) compiled: CompiledLimit,
    /// The number of the counter.
    pub(crate) id: u64,
    /// Whether a denial holds for as long as reported, whatever other requests do.
    pub(crate) is_lasting: bool,
    /// Whether the costs of this limit are estimates, to be settled.
    pub(crate) is_estimated: bool,
    pub(crate) on_store_failure: OnStoreFailure,
    pub(crate) counting: Counting,
    details: Box<Details>,
}

/// The fields that most decisions don't read.
#[derive(Clone, Debug)]
struct Details {
    kind: LimitKind,
    /// The limit that this one replaces while an override is in force.
    stands_for: Option<LimitKind>,
    counter: Counter,
    /// The fact that decides the hash slot in a cluster.
    slot: Option<Box<str>>,
    estimates: Estimates,
    carry_over: CarryOver,
    prepared: PreparedList,
}

/// What a key in a store keeps when it is checked with another rate than before.
///
/// ```
/// use tollgate::{Algorithm, Rate};
/// use tollgate_engine::backend::{CarryOver, LimitKind, StandaloneLimit};
///
/// let kind = LimitKind::Rate { rate: Rate::per_minute(5), algorithm: Algorithm::Gcra };
/// let calls = StandaloneLimit::new("calls", kind)?.carry_over(CarryOver::Time);
/// assert_eq!(calls.limit().carry_over(), CarryOver::Time);
/// # Ok::<(), tollgate::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CarryOver {
    /// The tokens that were spent, among limits of one algorithm and period.
    #[default]
    Tokens,
    /// The theoretical arrival time: the time until the bucket is full again, whatever the rate. This is what
    /// redis-cell keeps.
    Time,
}

/// Whether a limit's counter keeps estimates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Estimates {
    /// It keeps none: costs are final.
    #[default]
    None,
    /// It keeps estimates of other limits that share the counter.
    OfOthers,
    /// It keeps estimates of this limit.
    Own(Settlement),
}

/// The counter that keeps a limit's state, together with the key. Limits with the same counter count together.
///
/// ```
/// use tollgate_engine::backend::{Counter, LimitKind, StandaloneLimit};
///
/// let jobs = StandaloneLimit::new("jobs", LimitKind::Concurrency(8))?;
/// let Counter { name, ordinal, .. } = jobs.limit().counter();
/// assert_eq!((name.as_str(), *ordinal), ("jobs", 0));
/// # Ok::<(), tollgate::LimitError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// The rule's name, or the name under which rules share the counter.
    pub name: String,
    /// The number of this limit among those of the rule with the same algorithm and period. The counter's identity
    /// thus follows from the rule alone, whatever policy was in force before, and is the same in every process.
    pub ordinal: usize,
    /// The counter's number, unique in its engine.
    pub id: u64,
}

impl Limit {
    /// A limit with this counter, which a fleet counts exactly. While the store is unavailable, quotas are closed,
    /// and other limits are decided locally.
    pub(crate) fn new(kind: LimitKind, counter: Counter) -> Result<Self, LimitError> {
        Ok(Self {
            compiled: CompiledLimit::new(&kind)?,
            id: counter.id,
            is_lasting: false,
            is_estimated: false,
            on_store_failure: match kind {
                LimitKind::Quota(_) => OnStoreFailure::Closed,
                _ => OnStoreFailure::Local,
            },
            counting: Counting::Exact,
            details: Box::new(Details {
                kind,
                stands_for: None,
                counter,
                slot: None,
                estimates: Estimates::None,
                carry_over: CarryOver::Tokens,
                prepared: PreparedList::default(),
            }),
        })
    }

    /// Marks the counter as this limit's alone. Then time alone ends a denial of most rates.
    pub(crate) fn with_own_counter(mut self) -> Self {
        self.is_lasting = matches!(self.kind(), LimitKind::Rate { algorithm, .. }
            if *algorithm != Algorithm::SlidingCounter);
        self
    }

    /// Sets how the limit is kept in a store.
    pub(crate) fn with_storage(
        mut self,
        on_store_failure: OnStoreFailure,
        counting: Counting,
        slot: Option<&str>,
    ) -> Self {
        self.on_store_failure = on_store_failure;
        self.counting = counting;
        self.details.slot = slot.map(Into::into);
        self.details.prepared = PreparedList::default();
        self
    }

    /// Sets what a key keeps in a store when the rate changes.
    pub(crate) fn with_carry_over(mut self, carry_over: CarryOver) -> Self {
        self.details.carry_over = carry_over;
        self.details.prepared = PreparedList::default();
        // A cached denial assumes that every caller uses the same limit. With `Time`, each caller brings its own, and
        // may clear a key by another process.
        self.is_lasting &= carry_over == CarryOver::Tokens;
        self
    }

    /// Sets whether the counter keeps estimates.
    pub(crate) fn with_estimates(mut self, estimates: Estimates) -> Result<Self, LimitError> {
        // Permits are held in any case.
        if matches!(self.kind(), LimitKind::Concurrency(_)) {
            return Ok(self);
        }
        self.details.estimates = estimates;
        self.is_estimated = matches!(estimates, Estimates::Own(_));
        // A refund of an estimate may let other requests pass sooner than they were told.
        self.is_lasting &= estimates == Estimates::None;
        self.compiled = CompiledLimit::new(&self.stored_kind(self.kind()))?;
        Ok(self)
    }

    /// The kind as it is kept. The one word of GCRA's state has no room for estimates, and a token bucket decides the
    /// same.
    fn stored_kind(&self, kind: &LimitKind) -> LimitKind {
        match kind {
            LimitKind::Rate {
                rate,
                algorithm: Algorithm::Gcra,
            } if self.keeps_estimates() => LimitKind::Rate {
                rate: *rate,
                algorithm: Algorithm::TokenBucket,
            },
            kind => kind.clone(),
        }
    }

    /// Moves this limit to the counter of another limit, and to the place where that is kept.
    pub(crate) fn with_counter_of(mut self, other: &Self) -> Self {
        self.id = other.id;
        self.on_store_failure = other.on_store_failure;
        self.details.counter = other.details.counter.clone();
        self.counting = other.counting;
        self.details.prepared = PreparedList::default();
        self
    }

    /// The values that backends have prepared for this limit.
    #[inline]
    pub(super) fn prepared(&self) -> &PreparedList {
        &self.details.prepared
    }

    /// The kind of the limit, and its size.
    pub fn kind(&self) -> &LimitKind {
        &self.details.kind
    }

    /// The kind of its counter: its own, unless the limit replaces one of a rule, as an operator's override does. A
    /// store names counters by this kind, so that both limits use one counter.
    ///
    /// ```
    /// use tollgate_engine::backend::{LimitKind, StandaloneLimit};
    ///
    /// let jobs = StandaloneLimit::new("jobs", LimitKind::Concurrency(8))?;
    /// assert_eq!(jobs.limit().counter_kind(), jobs.limit().kind());
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub fn counter_kind(&self) -> &LimitKind {
        self.details.stands_for.as_ref().unwrap_or(self.kind())
    }

    /// The counter that keeps its state.
    pub fn counter(&self) -> &Counter {
        &self.details.counter
    }

    /// What a request gets while the store is unavailable.
    pub fn on_store_failure(&self) -> OnStoreFailure {
        self.on_store_failure
    }

    /// How a fleet counts together, or that each node counts by itself.
    pub fn counting(&self) -> Counting {
        self.counting
    }

    /// What a key keeps in a store when it is checked with another rate.
    pub fn carry_over(&self) -> CarryOver {
        self.details.carry_over
    }

    /// How a cost is settled, if it is an estimate. The estimate is then held until
    /// [`Answer::pass`](super::Answer::pass) gets the actual cost.
    ///
    /// ```
    /// use tollgate_engine::backend::{LimitKind, StandaloneLimit};
    ///
    /// let limit = StandaloneLimit::new("jobs", LimitKind::Concurrency(8))?;
    /// assert!(limit.limit().settle().is_none());
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub fn settle(&self) -> Option<Settlement> {
        match self.details.estimates {
            Estimates::Own(settle) => Some(settle),
            _ => None,
        }
    }

    /// Whether the cost is an estimate.
    #[inline]
    pub fn is_estimated(&self) -> bool {
        self.is_estimated
    }

    /// Whether the counter keeps estimates, of this limit or of others that share the counter.
    pub fn keeps_estimates(&self) -> bool {
        self.details.estimates != Estimates::None
    }

    /// The fact that decides the hash slot in a cluster, if the rule names one.
    pub fn hash_tag(&self) -> Option<&str> {
        self.details.slot.as_deref()
    }

    /// Scales this limit down to `parts` of `all`: to at least one, and never above its size.
    ///
    /// # Errors
    /// If the algorithm doesn't support the rate.
    ///
    /// ```
    /// use tollgate_engine::backend::{LimitKind, StandaloneLimit};
    ///
    /// let jobs = StandaloneLimit::new("jobs", LimitKind::Concurrency(8))?;
    /// assert_eq!(jobs.limit().scale_down(2, 5)?.kind(), &LimitKind::Concurrency(4));
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub fn scale_down(&self, parts: u64, all: u64) -> Result<Self, LimitError> {
        let cut = |count: u64| {
            let (parts, all) = (u128::from(parts), u128::from(all.max(1)));
            let count = u128::from(count);
            // At least one, unless the limit itself is zero.
            let cut = (count * parts).div_ceil(all).clamp(count.min(1), count);
            u64::try_from(cut).unwrap_or(u64::MAX)
        };
        let kind = match self.kind() {
            LimitKind::Rate { rate, algorithm } => LimitKind::Rate {
                rate: match rate.period() {
                    Some(period) if !rate.is_zero() => {
                        Rate::new(cut(rate.count()), period).burst(cut(rate.burst_size()))
                    }
                    _ => *rate,
                },
                algorithm: *algorithm,
            },
            LimitKind::Quota(quota) => LimitKind::Quota(quota.with_count(cut(quota.count()))),
            LimitKind::Concurrency(most) => {
                let most = u32::try_from(cut(u64::from(*most))).unwrap_or(*most);
                LimitKind::Concurrency(most)
            }
            // Each process has its own limit already, so there is nothing to divide.
            LimitKind::Adaptive(own) => LimitKind::Adaptive(*own),
        };
        self.with_kind(kind)
    }

    /// A limit that replaces this one for a while, and shares its counter.
    pub(crate) fn overridden_by(&self, kind: LimitKind) -> Result<Self, LimitError> {
        let mut limit = self.with_kind(kind)?;
        limit.details.stands_for = Some(self.counter_kind().clone());
        // When the override expires, a denied request may be allowed sooner than reported.
        limit.is_lasting = false;
        Ok(limit)
    }

    /// Another limit with the same counter.
    pub(crate) fn with_kind(&self, kind: LimitKind) -> Result<Self, LimitError> {
        let mut limit = self.clone();
        limit.compiled = CompiledLimit::new(&self.stored_kind(&kind))?;
        limit.details.kind = kind;
        Ok(limit)
    }
}
