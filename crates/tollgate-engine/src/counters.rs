//! How often each limiter allowed and denied requests, and why: for metrics and for operators.
//!
//! Counts are kept in stripes, one per thread, so that counting adds to a cache line that no other thread writes. The
//! engine keeps them by name, apart from the rules, so that a reload changes none.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::FixedState;
use tollgate::DenyReason;
use tollgate::striped_counters::StripedCounters;

mod histogram;
mod limiter_name;

pub use histogram::Histogram;
pub use limiter_name::limiter_name;
pub(crate) use limiter_name::truncate_at_char;

/// The columns of a row: allowed, near the limit, denied in shadow mode, without a key, and denied for each reason.
const COLUMNS: usize = DENIED + DenyReason::ALL.len();
pub(crate) const ALLOWED: usize = 0;
pub(crate) const NEAR_LIMIT: usize = 1;
pub(crate) const SHADOW_DENIED: usize = 2;
pub(crate) const MISSING_KEY: usize = 3;
/// The column of the first reason.
pub(crate) const DENIED: usize = 4;
/// In the row of all requests: tenants without a tier of the policy.
const UNKNOWN_TIER: usize = NEAR_LIMIT;

/// The row of a rule that isn't counted.
pub(crate) const UNCOUNTED: u32 = 0;
/// All requests, whatever decided them. No limiter has this row.
const REQUESTS: u32 = UNCOUNTED;
/// All limiters beyond those that are counted by name.
const OTHER: u32 = 1;
pub(crate) const NO_RULE: u32 = 2;
pub(crate) const EXEMPT: u32 = 3;
pub(crate) const BLOCK: u32 = 4;
pub(crate) const BOUNDS: u32 = 5;
pub(crate) const REQUESTED: u32 = 6;
/// Requests without a tenant, if there are tiers.
pub(crate) const NO_TENANT: u32 = 7;
/// Requests that overrides let bypass all rules.
pub(crate) const BYPASS: u32 = 8;
/// Limits that come with `CL.THROTTLE`.
pub(crate) const THROTTLE: u32 = 9;
/// The first row of a limiter that is counted by name.
const FIRST_LIMITER_ROW: usize = 10;

/// The names of the rows that belong to no rule.
const NAMES: [&str; FIRST_LIMITER_ROW] = [
    "",
    "(other)",
    "(none)",
    "(exempt)",
    "(block)",
    "(bounds)",
    "(requested)",
    "(tier)",
    "(bypass)",
    "(throttle)",
];

/// Upper bounds of waiting times, in nanoseconds: 1 ms to 10 s.
static WAIT_BUCKETS: [u64; 12] = [
    1_000_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
];

/// The decisions of one limiter since the engine was created.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Facts, Policy};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// use tollgate_engine::verdict::DenyReason;
///
/// let policy = Policy::from_text("limits: [{name: all, rate: 2/h}]", Format::Yaml)?.policy;
/// let engine = Engine::new(policy, memory)?.with_counters(1_000);
/// for _ in 0..5 {
///     let _ = engine.decide(&Facts::new());
/// }
/// let all = engine.counters().into_iter().find(|tally| &*tally.limiter == "all").expect("a rule");
/// assert_eq!((all.allowed, all.denied(DenyReason::Rate), all.denied(DenyReason::Quota)), (2, 3, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimiterCounts {
    /// The [name](limiter_name) of a rule, a tier, or a limit of a descriptor tree. Decisions that no rule made have
    /// a name that no rule can have: `(none)`, `(exempt)`, `(block)`, `(bounds)`, `(requested)`, `(tier)`, `(bypass)`,
    /// `(throttle)`. All limiters beyond the number that is counted by name are `(other)`.
    pub limiter: Arc<str>,
    /// Allowed requests that it applied to.
    pub allowed: u64,
    /// Allowed requests that it decided while its use was near the limit, as the policy defines that. A rule in
    /// shadow mode counts by itself.
    pub near_limit: u64,
    /// Requests that it would have denied if it were enforced.
    pub shadow_denied: u64,
    /// Requests that it matched and that lacked its key, whatever `on_missing_key` did with them. For `(tier)`,
    /// requests without a tenant under a policy with tiers.
    pub missing_key: u64,
    denied: [u64; DenyReason::ALL.len()],
}

impl LimiterCounts {
    /// Requests that it denied for this reason. One limiter denies a request: the one with the longest wait.
    pub const fn denied(&self, reason: DenyReason) -> u64 {
        self.denied[reason as usize]
    }

    /// Requests that it denied, for any reason.
    pub fn denied_total(&self) -> u64 {
        self.denied.iter().sum()
    }
}

/// The decisions about requests since the engine was created, whichever limiters applied: see
/// [`Engine::requests`](crate::Engine::requests).
///
/// ```
/// use tollgate_engine::counters::RequestCounts;
///
/// let none = RequestCounts::default();
/// assert_eq!((none.passed, none.denied), (0, 0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestCounts {
    /// Allowed requests.
    pub passed: u64,
    /// Denied requests.
    pub denied: u64,
    /// Requests of a tenant without a tier of the policy. They are in the default tier, if there is one.
    pub unknown_tier: u64,
}

type Row = [AtomicU64; COLUMNS];
type Counts = [u64; COLUMNS];

/// The counts of all limiters of an engine.
pub(crate) struct Tallies {
    rows: StripedCounters<Box<[Row]>>,
    names: Mutex<RowNames>,
    pub(crate) waits: Histogram,
}

/// The limiter of each row.
struct RowNames {
    rows: HashMap<Arc<str>, u32, FixedState>,
    /// The name of each row.
    names: Vec<Arc<str>>,
    /// The counts of each row when its limiter took it over from another.
    previous_counts: Vec<Counts>,
    /// The counts of limiters that lost their rows to others.
    retired_counts: Counts,
    most: usize,
}

impl Tallies {
    /// Counts up to `most` limiters by name.
    pub(crate) fn new(most: usize) -> Self {
        let names: Vec<Arc<str>> = NAMES.into_iter().map(Arc::from).collect();
        let row = |_| [const { AtomicU64::new(0) }; COLUMNS];
        Self {
            rows: StripedCounters::with_few_stripes(|| {
                (0..FIRST_LIMITER_ROW + most).map(row).collect()
            }),
            names: Mutex::new(RowNames {
                rows: HashMap::default(),
                previous_counts: vec![[0; COLUMNS]; names.len()],
                names,
                retired_counts: [0; COLUMNS],
                most,
            }),
            waits: Histogram::new(&WAIT_BUCKETS),
        }
    }

    /// The row of each of these limiters, which are all limiters of a policy.
    pub(crate) fn rows(&self, limiters: &[String]) -> Vec<u32> {
        let names: Vec<_> = limiters.iter().map(|name| limiter_name(name)).collect();
        let in_force: HashSet<&str> = names.iter().map(|name| &**name).collect();
        let mut own = self.names();
        // A cursor over the rows: each row is examined once, which keeps a reload of many limiters linear.
        let mut next = FIRST_LIMITER_ROW;
        let rows = names.iter().map(|name| {
            if let Some(row) = own.rows.get(&**name) {
                return *row;
            }
            let row = if own.names.len() < FIRST_LIMITER_ROW + own.most {
                own.names.push(Arc::from(""));
                own.previous_counts.push([0; COLUMNS]);
                own.names.len() - 1
            } else {
                let is_gone = |row: &usize| !in_force.contains(&*own.names[*row]);
                let Some(row) = (next..own.names.len()).find(is_gone) else {
                    next = own.names.len();
                    return OTHER;
                };
                next = row + 1;
                self.retire(&mut own, row);
                row
            };
            let name: Arc<str> = Arc::from(&**name);
            own.names[row] = Arc::clone(&name);
            let row = u32::try_from(row).unwrap_or(OTHER);
            own.rows.insert(name, row);
            row
        });
        rows.collect()
    }

    /// Adds the counts of a removed limiter to the retired ones, because its row goes to another.
    fn retire(&self, own: &mut RowNames, row: usize) {
        let counted = self.sums(row);
        for (column, sum) in counted.iter().enumerate() {
            own.retired_counts[column] += sum - own.previous_counts[row][column];
        }
        own.previous_counts[row] = counted;
        let name = Arc::clone(&own.names[row]);
        own.rows.remove(&name);
    }

    /// The counts of each limiter.
    pub(crate) fn all(&self) -> Vec<LimiterCounts> {
        let own = self.names();
        let rows = own.names.iter().enumerate().skip(1);
        let tally = |(row, limiter): (usize, &Arc<str>)| {
            let (sums, before) = (self.sums(row), &own.previous_counts[row]);
            let gone = |column: usize| match row {
                row if row == OTHER as usize => own.retired_counts[column],
                _ => 0,
            };
            let count = |column: usize| sums[column] - before[column] + gone(column);
            LimiterCounts {
                limiter: Arc::clone(limiter),
                allowed: count(ALLOWED),
                near_limit: count(NEAR_LIMIT),
                shadow_denied: count(SHADOW_DENIED),
                missing_key: count(MISSING_KEY),
                denied: DenyReason::ALL.map(|reason| count(DENIED + reason as usize)),
            }
        };
        rows.map(tally).collect()
    }

    /// Counts an allowed request.
    #[inline(always)]
    pub(crate) fn add_passed(&self) {
        self.add(REQUESTS, ALLOWED);
    }

    /// Counts a denied request.
    pub(crate) fn add_refused(&self) {
        self.add(REQUESTS, DENIED);
    }

    /// Counts a request that `CL.THROTTLE` decided: for its own limiter, and among all requests.
    pub(crate) fn throttled(&self, denied: Option<DenyReason>) {
        match denied {
            None => {
                self.add_passed();
                self.add(THROTTLE, ALLOWED);
            }
            Some(reason) => {
                self.add_refused();
                self.add(THROTTLE, DENIED + reason as usize);
            }
        }
    }

    /// The name of the limiter for `CL.THROTTLE`.
    pub(crate) const fn throttle_name() -> &'static str {
        NAMES[THROTTLE as usize]
    }

    /// Counts a tenant without a tier.
    pub(crate) fn add_unknown_tier(&self) {
        self.add(REQUESTS, UNKNOWN_TIER);
    }

    /// All requests so far.
    pub(crate) fn requests(&self) -> RequestCounts {
        let sums = self.sums(REQUESTS as usize);
        RequestCounts {
            passed: sums[ALLOWED],
            denied: sums[DENIED],
            unknown_tier: sums[UNKNOWN_TIER],
        }
    }

    /// Adds one to a counter.
    #[inline(always)]
    pub(crate) fn add(&self, row: u32, column: usize) {
        self.rows.add(|rows| &rows[row as usize][column], 1);
    }

    fn sums(&self, row: usize) -> Counts {
        std::array::from_fn(|column| self.rows.sum(|rows| &rows[row][column]))
    }

    fn names(&self) -> MutexGuard<'_, RowNames> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn allowed(tallies: &Tallies, limiter: &str) -> Option<u64> {
        let mut all = tallies.all().into_iter();
        let found = all.find(|tally| &*tally.limiter == limiter);
        found.map(|tally| tally.allowed)
    }

    #[test]
    fn limiters_beyond_the_bound_are_counted_together() {
        let tallies = Tallies::new(2);
        let rows = tallies.rows(&names(&["a", "b", "c", "d"]));
        for row in &rows {
            tallies.add(*row, ALLOWED);
        }
        assert_eq!(tallies.all().len(), FIRST_LIMITER_ROW - 1 + 2);
        assert_eq!(allowed(&tallies, "a"), Some(1));
        assert_eq!(allowed(&tallies, "(other)"), Some(2));
        assert_eq!(allowed(&tallies, "c"), None);
    }

    #[test]
    fn a_row_is_kept_by_name_and_given_on_when_its_limiter_is_gone() {
        let tallies = Tallies::new(2);
        let first = tallies.rows(&names(&["a", "b"]));
        first.iter().for_each(|row| tallies.add(*row, ALLOWED));
        let second = tallies.rows(&names(&["b", "c"]));
        assert_eq!(second[0], first[1]);
        tallies.add(second[1], ALLOWED);
        tallies.add(second[1], ALLOWED);
        assert_eq!(allowed(&tallies, "a"), None);
        assert_eq!(allowed(&tallies, "b"), Some(1));
        assert_eq!(allowed(&tallies, "c"), Some(2));
        // The counts of a removed limiter stay in the sum.
        assert_eq!(allowed(&tallies, "(other)"), Some(1));
    }

    #[test]
    fn names_that_are_gone_are_kept_while_there_is_room() {
        let tallies = Tallies::new(3);
        let first = tallies.rows(&names(&["a", "b"]));
        tallies.add(first[0], ALLOWED);
        tallies.rows(&names(&["b"]));
        assert_eq!(allowed(&tallies, "a"), Some(1));
        assert_eq!(tallies.rows(&names(&["a", "b"])), first);
    }
}
