//! The rules of a scenario, in all their versions.

use tollgate_engine::facts::Unit;

use super::{FaultType, Request};
use crate::traffic::Random;

/// A rule, in all its versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The kind of limit.
    pub sort: LimitSort,
    /// How it is counted.
    pub counted: CountingChoice,
    /// Its choice for store failures.
    pub failure: Failure,
    /// For each version, the limits in the order of the file: no two have the same period. A version without
    /// any doesn't have the rule.
    pub versions: Vec<Vec<Amount>>,
    /// Whether all clients share its counter.
    pub is_shared: bool,
    /// The only client that it applies to; `None` for all.
    pub only: Option<usize>,
    /// The terms of its estimates, if its costs are estimates.
    pub estimated: Option<EstimateSetting>,
    /// How long a request over the limit waits, in milliseconds.
    pub waits: Option<u64>,
    /// The limit of a tree, which requests meet by a descriptor; `None` for a rule, which they meet by their
    /// facts.
    pub leaf: Option<TreeLeaf>,
}

/// A limit of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeLeaf {
    /// Whether it is charged and denies nothing.
    pub is_shadow: bool,
}

/// The terms of estimated costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EstimateSetting {
    /// An estimate expires after this many milliseconds.
    pub within: u64,
    /// Whether an expired estimate is refunded.
    pub refunds: bool,
}

/// The kind of limit of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitSort {
    /// A bucket that drains: GCRA, a token bucket or a leaky bucket.
    Level(&'static str),
    /// A count in a window.
    Window(&'static str),
    /// A total in a calendar hour, or in any ten minutes.
    Quota(&'static str),
    /// Concurrent requests.
    Slots,
}

/// How a rule is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountingChoice {
    /// By the store, exactly.
    Exact,
    /// By leases.
    Leased,
    /// By each node.
    Local,
}

/// A rule's choice for store failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Requests pass.
    Open,
    /// Requests are denied.
    Closed,
    /// Each node decides locally.
    Local,
    /// Each node decides locally, and the circuit breaker pauses queries.
    Breaks,
}

/// How much a rule allows: a count in a period, or concurrent requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    /// The count.
    pub count: u64,
    /// The period in microseconds.
    pub period: u64,
    /// The burst.
    pub burst: u64,
}

const LEVELS: [&str; 3] = ["gcra", "token-bucket", "leaky"];
const WINDOWS: [&str; 3] = ["fixed-window", "sliding-window", "sliding-log"];
const PERIODS: [(u64, &str); 4] = [
    (1_000_000, "s"),
    (10_000_000, "10s"),
    (60_000_000, "m"),
    (3_600_000_000, "h"),
];

/// How the versions of a rule differ, apart from their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Nothing,
    /// In their period.
    Period,
    /// In their period alone.
    PeriodAlone,
    /// In the choice and the order of two limits.
    Order,
}

impl Rule {
    /// A rule for scenarios with these faults.
    pub(super) fn new(versions: usize, troubles: &[FaultType], random: &mut Random) -> Self {
        let sort = LimitSort::new(troubles, random);
        let counted = match sort {
            LimitSort::Level(_) => match random.below(8) {
                // The node knows more about a lease than the store.
                0..=5 if troubles == [FaultType::Operator] => CountingChoice::Leased,
                0 => CountingChoice::Local,
                1..=4 => CountingChoice::Leased,
                _ => CountingChoice::Exact,
            },
            _ => CountingChoice::Exact,
        };
        let failure = match (sort, random.below(8)) {
            (LimitSort::Slots, _) => Failure::Closed,
            (_, 0) => Failure::Open,
            (_, 1) => Failure::Closed,
            (_, 2..=3) => Failure::Breaks,
            _ => Failure::Local,
        };
        let change = match (sort, random.below(5)) {
            (LimitSort::Level(_), 0) => Change::Order,
            (LimitSort::Level(_), 1) => Change::Period,
            (LimitSort::Level(_), 2) => Change::PeriodAlone,
            _ => Change::Nothing,
        };
        let first = random.pick(&[0, 1, 2]);
        let one = amount(sort, first, random);
        let versions = (0..versions).map(|_| version(sort, change, (first, one), random));
        let versions = versions.collect();
        let is_shared = random.below(4) == 0;
        let is_estimated = sort != LimitSort::Slots && random.below(4) == 0;
        Self {
            sort,
            counted,
            failure,
            versions,
            is_shared,
            only: None,
            estimated: is_estimated.then(|| EstimateSetting {
                within: random.pick(&[200, 2_000, 60_000, 60_000]),
                refunds: random.below(2) == 0,
            }),
            waits: (random.below(5) == 0).then(|| random.pick(&[20, 200, 1_000, 3_000])),
            leaf: None,
        }
    }

    /// A limit of a tree. Costs aren't settled there, and requests don't wait.
    pub(super) fn of_tree(versions: usize, troubles: &[FaultType], random: &mut Random) -> Self {
        let is_shadow = random.below(4) == 0;
        let mut leaf = Self {
            estimated: None,
            waits: None,
            leaf: Some(TreeLeaf { is_shadow }),
            ..Self::new(versions, troubles, random)
        };
        if random.below(4) == 0 {
            // As in proxies: a count in a unit.
            leaf.sort = LimitSort::Window("fixed-window");
            leaf.counted = CountingChoice::Exact;
            leaf.failure = Failure::Local;
            let amount = amount(leaf.sort, random.pick(&[0, 2]), random);
            leaf.versions = vec![vec![amount]; versions];
        }
        leaf
    }

    /// A leased rule for all clients together, which admits more than most.
    pub(super) fn leased_for_all(versions: usize, random: &mut Random) -> Self {
        let burst = random.pick(&[60, 100, 200]);
        let (count, period) = random.pick(&[(burst, 1_000_000), (burst, 10_000_000)]);
        let amount = Amount {
            count,
            period,
            burst,
        };
        Self {
            sort: LimitSort::Level(random.pick(&LEVELS)),
            counted: CountingChoice::Leased,
            failure: Failure::Local,
            versions: vec![vec![amount]; versions],
            is_shared: true,
            only: None,
            estimated: None,
            waits: None,
            leaf: None,
        }
    }

    /// Whether a request meets it, as the rule of this number.
    pub fn meets(&self, number: usize, ask: &Request) -> bool {
        let is_named = match self.leaf {
            Some(_) => (ask.descriptors >> number) & 1 == 1,
            None => ask.has_facts,
        };
        is_named && self.matches_request(ask.who)
    }

    /// Whether it denies nothing.
    pub fn is_shadow(&self) -> bool {
        self.leaf.is_some_and(|leaf| leaf.is_shadow)
    }

    /// The limit of a request that brings its own: no more than the rule's limit.
    pub fn adjusted_cost(&self, version: usize, brings: Option<u64>) -> Option<(u64, Unit)> {
        let [amount] = self.versions[version][..] else {
            return None;
        };
        let unit = self.unit(amount)?;
        brings.map(|brings| (brings.min(amount.count), unit))
    }

    /// The unit of a window as proxies name it.
    fn unit(&self, amount: Amount) -> Option<Unit> {
        let is_window = self.leaf.is_some() && self.sort == LimitSort::Window("fixed-window");
        match amount.period {
            1_000_000 if is_window => Some(Unit::Second),
            60_000_000 if is_window => Some(Unit::Minute),
            _ => None,
        }
    }

    /// Whether requests of this client meet it.
    pub fn matches_request(&self, who: usize) -> bool {
        self.only.is_none_or(|only| only == who)
    }

    /// Whether these two clients share a counter; the second one meets the rule.
    pub fn counts_both(&self, one: usize, other: usize) -> bool {
        self.matches_request(one) && (self.is_shared || one == other)
    }

    /// The condition of the rule in the policy's syntax.
    pub(super) fn matches(&self) -> String {
        let only = self
            .only
            .map(|only| format!("match: {{key: \"{only}\"}}, "));
        only.unwrap_or_default()
    }

    /// Whether the store tracks held costs by leases.
    pub fn has_leases(&self) -> bool {
        let is_level = matches!(self.sort, LimitSort::Level(_));
        self.counted == CountingChoice::Leased
            || (self.counted == CountingChoice::Exact && self.estimated.is_some() && is_level)
    }

    /// The cost of a request in the policy's syntax. A request takes one permit, whatever it costs.
    pub(super) fn cost(&self) -> String {
        match (self.sort, self.estimated) {
            (LimitSort::Slots, _) => String::new(),
            (_, None) => "cost: {fact: cost}, ".to_owned(),
            (_, Some(EstimateSetting { within, refunds })) => {
                let unsettled = if refunds { "refund" } else { "charge" };
                format!("cost: {{fact: cost, settle_within: {within}ms, unsettled: {unsettled}}}, ")
            }
        }
    }

    /// The limits of all versions.
    pub fn amounts(&self) -> impl Iterator<Item = &Amount> {
        self.versions.iter().flatten()
    }

    /// The periods of its limits in all versions: each is kept by itself.
    pub fn periods(&self) -> Vec<u64> {
        let mut periods: Vec<_> = self.amounts().map(|amount| amount.period).collect();
        periods.sort_unstable();
        periods.dedup();
        periods
    }

    /// A version's limit with this period.
    pub fn of_period(&self, version: usize, period: u64) -> Option<Amount> {
        let mut limits = self.versions[version].iter();
        limits.find(|amount| amount.period == period).copied()
    }

    /// Whether versions have limits of different periods.
    pub fn is_moved(&self) -> bool {
        let periods = self.periods().len();
        self.versions.iter().any(|limits| limits.len() != periods)
    }

    /// The largest burst that a version admits; `None` if it doesn't have the rule.
    pub fn burst(&self, version: usize) -> Option<u64> {
        let bursts = self.versions[version].iter().map(|amount| amount.burst);
        bursts.min()
    }

    /// Whether a version has the rule.
    pub fn is_in(&self, version: usize) -> bool {
        !self.versions[version].is_empty()
    }

    /// After this many microseconds, nothing that was spent counts, whatever the version.
    pub fn drains(&self) -> u64 {
        let of = |amount: &Amount| match self.sort {
            LimitSort::Level(_) => amount.period * amount.burst / amount.count + 1,
            LimitSort::Window(_) => 2 * amount.period,
            LimitSort::Quota(_) => 2 * amount.period,
            LimitSort::Slots => 1_000_000,
        };
        self.amounts().map(of).max().unwrap_or(0)
    }

    /// A limit as people write it.
    pub(in crate::world) fn rate(&self, amount: Amount) -> String {
        let Amount {
            count,
            period,
            burst,
        } = amount;
        let unit = PERIODS.iter().find(|(micros, _)| *micros == period);
        let unit = unit.map_or("10m", |(_, name)| name);
        match self.sort {
            LimitSort::Level(_) => format!("{count}/{unit} burst {burst}"),
            LimitSort::Window(_) => format!("{count}/{unit}"),
            LimitSort::Quota("hour") => format!("{count}/hour"),
            LimitSort::Quota(_) => format!("{count} in any 10m"),
            LimitSort::Slots => count.to_string(),
        }
    }

    /// A version's limit in the syntax of a tree.
    pub(super) fn limit_of_leaf(&self, version: usize, is_in_memory: bool) -> String {
        let limits = &self.versions[version];
        if let [amount] = limits[..]
            && let Some(unit) = self.unit(amount)
        {
            let (unit, count) = (unit.name(), amount.count);
            return format!("unit: {unit}, requests_per_unit: {count}");
        }
        let limits: Vec<_> = limits.iter().map(|amount| self.rate(*amount)).collect();
        let limits = limits.join(", ");
        let what = match self.sort {
            LimitSort::Level(name) | LimitSort::Window(name) => {
                format!("rate: [{limits}], algorithm: {name}")
            }
            LimitSort::Quota(_) => format!("quota: {limits}"),
            LimitSort::Slots => format!("concurrency: {limits}"),
        };
        match self.counted {
            CountingChoice::Exact => format!("{what}, on_store_failure: {}", self.failure.name()),
            CountingChoice::Leased => format!(
                "{what}, counting: leased, on_store_failure: {}",
                self.failure.name()
            ),
            CountingChoice::Local if is_in_memory => what,
            CountingChoice::Local => format!("{what}, counting: local"),
        }
    }

    /// A version's limit in the policy's syntax.
    pub(super) fn limit(&self, version: usize, is_in_memory: bool) -> String {
        let failure = self.failure.name();
        let counted = match self.counted {
            CountingChoice::Exact => "exact",
            CountingChoice::Leased => "leased",
            CountingChoice::Local => "local",
        };
        let limits: Vec<_> = self.versions[version]
            .iter()
            .map(|amount| self.rate(*amount))
            .collect();
        let limits = limits.join(", ");
        let what = match self.sort {
            LimitSort::Level(name) | LimitSort::Window(name) => {
                format!("rate: [{limits}], algorithm: {name}")
            }
            LimitSort::Quota(_) => format!("quota: {limits}"),
            LimitSort::Slots => format!("concurrency: {limits}"),
        };
        let what = match self.waits {
            Some(longest) => format!("{what}, over: wait {longest}ms"),
            None => what,
        };
        match self.counted {
            CountingChoice::Local if is_in_memory => what,
            CountingChoice::Local => format!("{what}, counting: local"),
            _ => {
                // Both forms of the setting: one word for all limits, and one for each kind.
                let failure = match self.sort {
                    LimitSort::Level(_) => failure.to_owned(),
                    LimitSort::Window(_) => format!("{{rate: {failure}}}"),
                    LimitSort::Quota(_) => format!("{{quota: {failure}}}"),
                    LimitSort::Slots => format!("{{concurrency: {failure}}}"),
                };
                format!("{what}, counting: {counted}, on_store_failure: {failure}")
            }
        }
    }
}

impl Failure {
    /// The name in the policy's syntax.
    const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Local => "local",
            Self::Breaks => "circuit-break",
        }
    }
}

impl LimitSort {
    /// Most often a level; with few faults, a kind that they can affect.
    fn new(troubles: &[FaultType], random: &mut Random) -> Self {
        let few = |these: &[FaultType]| {
            !troubles.is_empty() && troubles.iter().all(|trouble| these.contains(trouble))
        };
        let number = match random.below(2) {
            0 if few(&[FaultType::Clock, FaultType::Deaths]) => random.pick(&[6, 7, 7, 8, 8]),
            0 if few(&[FaultType::Operator]) => random.pick(&[0, 8, 9]),
            _ => random.below(9),
        };
        match number {
            0..=5 => Self::Level(random.pick(&LEVELS)),
            6 => Self::Window(random.pick(&WINDOWS)),
            7 => Self::Quota(random.pick(&["hour", "10min"])),
            8 => Self::Slots,
            _ => Self::Window("sliding-log"),
        }
    }
}

/// The limits of a version of a rule whose first limit has this period, and may be this one.
fn version(
    sort: LimitSort,
    change: Change,
    (first, own): (usize, Amount),
    random: &mut Random,
) -> Vec<Amount> {
    let place = match change {
        Change::Period | Change::PeriodAlone => random.pick(&[0, 1, 2]),
        _ => first,
    };
    let one = amount(sort, place, random);
    match change {
        Change::Order => {}
        Change::PeriodAlone => {
            return vec![Amount {
                period: one.period,
                ..own
            }];
        }
        _ => return vec![one],
    }
    let other = amount(sort, (first + 1) % 3, random);
    match random.below(4) {
        0 => vec![one],
        1 => vec![other, one],
        _ => vec![one, other],
    }
}

fn amount(sort: LimitSort, place: usize, random: &mut Random) -> Amount {
    let period = match sort {
        LimitSort::Quota("hour") => PERIODS[3].0,
        LimitSort::Quota(_) => 600_000_000,
        _ => PERIODS[place].0,
    };
    let most = random.pick(&[5, 20, 60]);
    let burst = 1 + random.below(most);
    let count = match sort {
        LimitSort::Level(_) => {
            // It fills in a fraction of a second, in several seconds, or in a minute.
            let fills = 50_000 << random.below(11);
            (burst * period / fills).max(1)
        }
        _ => burst,
    };
    Amount {
        count,
        period,
        burst,
    }
}
