//! How often each limiter let requests pass and refused them, and why: for metrics and for operators.
//!
//! Counts lie on stripes, a thread's own: to count is to add to a line that no other thread writes. They are kept by
//! name in the engine, beside the rules, so that a reload changes none of them.

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

/// What is counted of each limiter: allowed, near the limit, refused in shadow, without its key, and refused by each reason.
const COLUMNS: usize = DENIED + DenyReason::ALL.len();
pub(crate) const ALLOWED: usize = 0;
pub(crate) const NEAR_LIMIT: usize = 1;
pub(crate) const SHADOW_DENIED: usize = 2;
pub(crate) const MISSING_KEY: usize = 3;
/// The first of the reasons.
pub(crate) const DENIED: usize = 4;
/// Of requests as a whole: tenants in no tier that there is.
const UNKNOWN_TIER: usize = NEAR_LIMIT;

/// Of a rule that isn't counted.
pub(crate) const UNCOUNTED: u32 = 0;
/// Requests as a whole, whatever decided them: no limiter has this row.
const REQUESTS: u32 = UNCOUNTED;
/// All limiters beyond those that are counted by name.
const OTHER: u32 = 1;
pub(crate) const NO_RULE: u32 = 2;
pub(crate) const EXEMPT: u32 = 3;
pub(crate) const BLOCK: u32 = 4;
pub(crate) const BOUNDS: u32 = 5;
pub(crate) const REQUESTED: u32 = 6;
/// Requests without a tenant, where there are tiers.
pub(crate) const NO_TENANT: u32 = 7;
/// Requests that operators let pass all rules.
pub(crate) const BYPASS: u32 = 8;
/// Where limiters by name begin.
/// Limits that come along with `CL.THROTTLE`.
pub(crate) const THROTTLE: u32 = 9;
const FIRST_LIMITER_ROW: usize = 10;

/// What the rows are called that no rule has.
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

/// Times that requests waited for their turn, in nanoseconds: 1 ms to 10 s.
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

/// What one limiter has decided since the engine was made.
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
    /// The [name](limiter_name) of a rule, a tier, or a limit of a tree of descriptors. What no rule decided has a name
    /// that no rule can have: `(none)`, `(exempt)`, `(block)`, `(bounds)`, `(requested)`, `(tier)`, `(bypass)`, `(throttle)`; and `(other)` are all beyond the
    /// number of limiters that are counted by name.
    pub limiter: Arc<str>,
    /// Requests that it applied to, and that passed.
    pub allowed: u64,
    /// Of those, how many it decided when it was as far used as the policy calls near. A rule in shadow counts by itself.
    pub near_limit: u64,
    /// Requests that it would have refused, were it enforced.
    pub shadow_denied: u64,
    /// Requests that it was for, but that lacked its key, whatever `on_missing_key` made of them. Of `(tier)`, requests without
    /// a tenant by a policy that has tiers.
    pub missing_key: u64,
    denied: [u64; DenyReason::ALL.len()],
}

impl LimiterCounts {
    /// Requests that it refused for this reason. One request is refused by one limiter: the one that takes longest.
    pub const fn denied(&self, reason: DenyReason) -> u64 {
        self.denied[reason as usize]
    }

    /// Requests that it refused, for any reason.
    pub fn denied_total(&self) -> u64 {
        self.denied.iter().sum()
    }
}

/// Requests that were decided since the engine was made, whichever limiters they met: see
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
    /// Those that passed.
    pub passed: u64,
    /// Those that were refused.
    pub denied: u64,
    /// Those of a tenant that no tier of the policy was found for: they are in the default tier, if there is one.
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

/// Which limiter each row counts.
struct RowNames {
    rows: HashMap<Arc<str>, u32, FixedState>,
    /// By row.
    names: Vec<Arc<str>>,
    /// By row, what was counted there for others before.
    previous_counts: Vec<Counts>,
    /// What limiters had counted whose rows others have now.
    retired_counts: Counts,
    most: usize,
}

impl Tallies {
    /// Counts so many limiters by name.
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

    /// The row of each of these limiters, which are all of a policy.
    pub(crate) fn rows(&self, limiters: &[String]) -> Vec<u32> {
        let names: Vec<_> = limiters.iter().map(|name| limiter_name(name)).collect();
        let in_force: HashSet<&str> = names.iter().map(|name| &**name).collect();
        let mut own = self.names();
        // Found once: rows are taken from the front, and none is looked at twice.
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

    /// Adds what a limiter that is gone has counted to the others, for its row is another's from now on.
    fn retire(&self, own: &mut RowNames, row: usize) {
        let counted = self.sums(row);
        for (column, sum) in counted.iter().enumerate() {
            own.retired_counts[column] += sum - own.previous_counts[row][column];
        }
        own.previous_counts[row] = counted;
        let name = Arc::clone(&own.names[row]);
        own.rows.remove(&name);
    }

    /// What each limiter has counted.
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

    /// Counts a request that passed.
    #[inline(always)]
    pub(crate) fn add_passed(&self) {
        self.add(REQUESTS, ALLOWED);
    }

    /// Counts a request that was refused.
    pub(crate) fn add_refused(&self) {
        self.add(REQUESTS, DENIED);
    }

    /// Counts a request that `CL.THROTTLE` decided: by its own limiter, and among all.
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

    /// The name of the limiter that counts them.
    pub(crate) const fn throttle_name() -> &'static str {
        NAMES[THROTTLE as usize]
    }

    /// Counts a tenant that no tier was found for.
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

    /// Counts one more there.
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
        // What is gone is not lost from the sum.
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
