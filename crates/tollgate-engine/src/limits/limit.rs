//! A limit: what a check is judged by, and which state it is kept in.

use tollgate::{Algorithm, LimitError, Rate};

use super::compiled::CompiledLimit;
use super::kind::LimitKind;
use super::prepared_state::PreparedList;
use crate::policy::{Counting, OnStoreFailure, Settlement};

/// What one check is judged by.
///
/// ```
/// use tollgate_engine::backend::{LimitKind, StandaloneLimit};
/// use tollgate_engine::policy::{Counting, OnStoreFailure};
///
/// let sole = StandaloneLimit::new("jobs", LimitKind::Concurrency(8))?.on_store_failure(OnStoreFailure::Closed);
/// let limit = sole.limit();
/// assert_eq!(limit.kind().to_string(), "8 at once");
/// assert_eq!((limit.on_store_failure(), limit.counting()), (OnStoreFailure::Closed, Counting::Exact));
/// # Ok::<(), tollgate::LimitError>(())
/// ```
// What every decision reads comes first and is small: of ten thousand limits few are in a cache.
#[derive(Clone, Debug)]
pub struct Limit {
    pub(crate) compiled: CompiledLimit,
    /// Of the counter.
    pub(crate) id: u64,
    /// Whether a refusal holds as long as it says, whatever others do.
    pub(crate) is_lasting: bool,
    /// Whether what it is asked for is an estimate, to be settled.
    pub(crate) is_estimated: bool,
    pub(crate) on_store_failure: OnStoreFailure,
    pub(crate) counting: Counting,
    details: Box<Details>,
}

/// What most decisions don't read.
#[derive(Clone, Debug)]
struct Details {
    kind: LimitKind,
    /// The limit that this stands in for, if it does.
    stands_for: Option<LimitKind>,
    counter: Counter,
    /// The fact by which a cluster keeps it with others on one node.
    slot: Option<Box<str>>,
    estimates: Estimates,
    carry_over: CarryOver,
    prepared: PreparedList,
}

/// What a key of a store keeps when it is asked by another rate than the one before.
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
    /// The tokens that were spent, by limits of one algorithm and period.
    #[default]
    Tokens,
    /// The theoretical arrival time: the time until all of the bucket is there again, whatever the rate. This is what
    /// redis-cell keeps.
    Time,
}

/// Whether a limit's counter keeps track of estimates that are held of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Estimates {
    /// There are none: costs are known.
    #[default]
    None,
    /// Those of other limits that count in it.
    OfOthers,
    /// Its own.
    Own(Settlement),
}

/// Which state a limit is kept in, together with the key: limits of the same counter count together.
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
    /// The rule's name, or the one by which rules share it.
    pub name: String,
    /// Which of the limits of that rule with the same algorithm and period. With these it follows from the
    /// rule, whatever was in force before, and is the same in every process.
    pub ordinal: usize,
    /// Tells it from all others of its engine.
    pub id: u64,
}

impl Limit {
    /// A limit of this counter, which a fleet counts exactly: in a store, quotas are closed while that can't be
    /// asked, and others judged locally.
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

    /// This limit, whose counter no other limit counts in: then time alone ends a refusal of most rates.
    pub(crate) fn with_own_counter(mut self) -> Self {
        self.is_lasting = matches!(self.kind(), LimitKind::Rate { algorithm, .. }
            if *algorithm != Algorithm::SlidingCounter);
        self
    }

    /// This limit, kept in a store in this way.
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

    /// This limit, of whose keys a store keeps this.
    pub(crate) fn with_carry_over(mut self, carry_over: CarryOver) -> Self {
        self.details.carry_over = carry_over;
        self.details.prepared = PreparedList::default();
        // A denial is repeated by limits that nobody else asks by. Here each caller brings a limit along, and whoever
        // forgets a key may do so by another process.
        self.is_lasting &= carry_over == CarryOver::Tokens;
        self
    }

    /// This limit, whose counter keeps track of estimates.
    pub(crate) fn with_estimates(mut self, estimates: Estimates) -> Result<Self, LimitError> {
        // Slots are held in any case.
        if matches!(self.kind(), LimitKind::Concurrency(_)) {
            return Ok(self);
        }
        self.details.estimates = estimates;
        self.is_estimated = matches!(estimates, Estimates::Own(_));
        // What comes back may let others pass sooner than they were told.
        self.is_lasting &= estimates == Estimates::None;
        self.compiled = CompiledLimit::new(&self.stored_kind(self.kind()))?;
        Ok(self)
    }

    /// The kind as it is kept: GCRA's one word has no room for estimates, and a token bucket decides the same.
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

    /// This limit, kept in the state of another and where that is.
    pub(crate) fn with_counter_of(mut self, other: &Self) -> Self {
        self.id = other.id;
        self.on_store_failure = other.on_store_failure;
        self.details.counter = other.details.counter.clone();
        self.counting = other.counting;
        self.details.prepared = PreparedList::default();
        self
    }

    /// What backends have prepared of it.
    #[inline]
    pub(super) fn prepared(&self) -> &PreparedList {
        &self.details.prepared
    }

    /// What sort of limit, and how much.
    pub fn kind(&self) -> &LimitKind {
        &self.details.kind
    }

    /// The kind that its counter is of: its own, unless it stands in for the limit of a rule, as an operator's override
    /// does. A store names counters by it, so that both count in one.
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

    /// Which state it is kept in.
    pub fn counter(&self) -> &Counter {
        &self.details.counter
    }

    /// What a request gets while the backend can't be asked.
    pub fn on_store_failure(&self) -> OnStoreFailure {
        self.on_store_failure
    }

    /// How a fleet counts it together, or that each node counts by itself.
    pub fn counting(&self) -> Counting {
        self.counting
    }

    /// What a key of it keeps in a store when it is asked by another rate.
    pub fn carry_over(&self) -> CarryOver {
        self.details.carry_over
    }

    /// How a cost of it is settled, if that is an estimate: what is asked for is then held until
    /// [`OracleAnswer::pass`](super::StoreQuery::pass) is told what the request did cost.
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

    /// Whether a cost of it is an estimate.
    #[inline]
    pub fn is_estimated(&self) -> bool {
        self.is_estimated
    }

    /// Whether its counter keeps track of estimates: its own, or those of others that count in it.
    pub fn keeps_estimates(&self) -> bool {
        self.details.estimates != Estimates::None
    }

    /// The fact by which a cluster keeps it with others on one node, if the rule names one.
    pub fn hash_tag(&self) -> Option<&str> {
        self.details.slot.as_deref()
    }

    /// The same limit cut down to `parts` of `all`: at least one, and never more than it is.
    ///
    /// # Errors
    /// If the algorithm doesn't take the rate.
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
            // It is each process's own.
            LimitKind::Adaptive(own) => LimitKind::Adaptive(*own),
        };
        self.with_kind(kind)
    }

    /// A limit that stands in for this one for a while, and counts where this one does.
    pub(crate) fn overridden_by(&self, kind: LimitKind) -> Result<Self, LimitError> {
        let mut limit = self.with_kind(kind)?;
        limit.details.stands_for = Some(self.counter_kind().clone());
        // What it denies may pass sooner, when it stands in no more.
        limit.is_lasting = false;
        Ok(limit)
    }

    /// The same counter by another limit.
    pub(crate) fn with_kind(&self, kind: LimitKind) -> Result<Self, LimitError> {
        let mut limit = self.clone();
        limit.compiled = CompiledLimit::new(&self.stored_kind(&kind))?;
        limit.details.kind = kind;
        Ok(limit)
    }
}
