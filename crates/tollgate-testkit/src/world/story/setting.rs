//! Who there is in a story, and by which rules.

use std::fmt;
use std::fmt::Write as _;

use super::Trouble;
use crate::traffic::Random;

/// Who there is, and by which rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Nodes of the fleet.
    pub nodes: usize,
    /// Parts of the store: a cluster if there are several.
    pub shards: usize,
    /// How many who ask.
    pub keys: u64,
    /// The rules, all of which apply to all requests.
    pub rules: Vec<Rule>,
    /// Versions of the policy.
    pub versions: usize,
    /// How long a decision waits for the store, in milliseconds.
    pub timeout: u64,
    /// By node, in milliseconds.
    pub lease_life: Vec<u64>,
    /// In milliseconds.
    pub slot_life: u64,
    /// Whether nodes remember refusals.
    pub remembers: bool,
    /// Whether they learn how many they are, instead of being told.
    pub learns: bool,
    /// What goes wrong.
    pub troubles: Vec<Trouble>,
}

/// A rule, in all its versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What is limited.
    pub sort: Sort,
    /// How it is counted.
    pub counted: Counted,
    /// What happens without a store.
    pub failure: Failure,
    /// By version.
    pub amounts: Vec<Amount>,
    /// Whose: the one who asks, or all together.
    pub is_shared: bool,
}

/// What a rule limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// A bucket that drains: GCRA, a token bucket or a leaky bucket.
    Level(&'static str),
    /// A count in a window.
    Window(&'static str),
    /// A total in a calendar hour, or in any ten minutes.
    Quota(&'static str),
    /// How many at once.
    Slots,
}

/// How a rule is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// By the store, one by one.
    Exact,
    /// By leases.
    Leased,
    /// By each node.
    Local,
}

/// What happens while the store can't be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It passes.
    Open,
    /// It is refused.
    Closed,
    /// Each node decides.
    Local,
    /// Likewise, and the store isn't asked for a while.
    Breaks,
}

/// How much a rule allows: so many in a time, or so many at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    /// So many.
    pub count: u64,
    /// In so many microseconds.
    pub period: u64,
    /// And so many at once.
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

impl Setting {
    pub(super) fn new(random: &mut Random) -> Self {
        let nodes = 1 + usize::try_from(random.below(4)).unwrap_or(0);
        let versions = match random.below(3) {
            0 => 2 + usize::try_from(random.below(2)).unwrap_or(0),
            _ => 1,
        };
        let rules = 1 + random.below(5) / 4;
        let lives = [500, 1_000, 2_000];
        let life = random.pick(&lives);
        let differ = random.below(4) == 0;
        let lease_life = (0..nodes).map(|_| match differ {
            true => random.pick(&lives),
            false => life,
        });
        let lease_life = lease_life.collect();
        let troubles = match random.below(10) {
            // A calm day.
            0..=2 => Vec::new(),
            // One thing alone.
            3..=6 => vec![random.pick(&Trouble::ALL)],
            // All of it.
            _ => Trouble::ALL
                .into_iter()
                .filter(|_| random.below(2) == 0)
                .collect(),
        };
        Self {
            nodes,
            shards: if random.below(5) == 0 { 3 } else { 1 },
            keys: 1 + random.below(2),
            rules: (0..rules).map(|_| Rule::new(versions, random)).collect(),
            versions,
            timeout: random.pick(&[5, 25, 100]),
            lease_life,
            slot_life: 1_000 + random.below(3_000),
            remembers: random.below(2) == 0,
            learns: random.below(3) == 0,
            troubles,
        }
    }

    pub(super) fn versions_u64(&self) -> u64 {
        u64::try_from(self.versions).unwrap_or(1)
    }

    pub(super) fn some_node(&self, random: &mut Random) -> usize {
        usize::try_from(random.below(self.nodes as u64)).unwrap_or(0)
    }

    /// How long a story is, in microseconds: some times what the slowest rule takes to forget.
    pub(super) fn length(&self, random: &mut Random) -> u64 {
        let longest = self.rules.iter().map(Rule::drains).max().unwrap_or(1);
        let longest = longest.min(20_000_000);
        longest / 2 + random.below(3 * longest) + 1_000
    }

    /// A cost that every version of every rule admits.
    pub fn most_cost(&self) -> u64 {
        let amounts = self.rules.iter().flat_map(|rule| &rule.amounts);
        amounts.map(|amount| amount.burst).min().unwrap_or(1).max(1)
    }

    /// A version of the policy, as a file says it.
    pub fn policy(&self, version: usize) -> String {
        let mut text = String::from("limits:\n");
        for (number, rule) in self.rules.iter().enumerate() {
            let key = if rule.is_shared { "all" } else { "who" };
            // A String takes whatever is written.
            let _ = write!(
                text,
                "- {{name: r{number}, key: {key}, cost: {{fact: cost}}, "
            );
            let _ = writeln!(text, "{}}}", rule.limit(version));
        }
        text
    }
}

impl Rule {
    fn new(versions: usize, random: &mut Random) -> Self {
        let sort = match random.below(10) {
            0..=5 => Sort::Level(random.pick(&LEVELS)),
            6 => Sort::Window(random.pick(&WINDOWS)),
            7 => Sort::Quota(random.pick(&["hour", "10min"])),
            _ => Sort::Slots,
        };
        let counted = match sort {
            Sort::Level(_) => match random.below(8) {
                0 => Counted::Local,
                1..=4 => Counted::Leased,
                _ => Counted::Exact,
            },
            _ => Counted::Exact,
        };
        let failure = match (sort, random.below(8)) {
            (Sort::Slots, _) => Failure::Closed,
            (_, 0) => Failure::Open,
            (_, 1) => Failure::Closed,
            (_, 2) => Failure::Breaks,
            _ => Failure::Local,
        };
        let (period, _) = match sort {
            Sort::Quota("hour") => PERIODS[3],
            Sort::Quota(_) => (600_000_000, ""),
            _ => random.pick(&PERIODS[..3]),
        };
        let amounts = (0..versions).map(|_| {
            let count = match random.below(3) {
                0 => 1 + random.below(10),
                1 => 1 + random.below(100),
                _ => 1 + random.below(1_000),
            };
            let burst = match sort {
                Sort::Level(_) => 1 + random.below(60),
                _ => count.min(60),
            };
            let count = if matches!(sort, Sort::Level(_)) {
                count
            } else {
                burst
            };
            Amount {
                count,
                period,
                burst,
            }
        });
        Self {
            sort,
            counted,
            failure,
            amounts: amounts.collect(),
            is_shared: random.below(4) == 0,
        }
    }

    /// After so long, in microseconds, nothing that was spent counts, whatever the version.
    pub fn drains(&self) -> u64 {
        let of = |amount: &Amount| match self.sort {
            Sort::Level(_) => amount.period * amount.burst / amount.count + 1,
            Sort::Window(_) => 2 * amount.period,
            Sort::Quota(_) => 2 * amount.period,
            Sort::Slots => 1_000_000,
        };
        self.amounts.iter().map(of).max().unwrap_or(0)
    }

    /// What a version allows, as a file says it.
    fn limit(&self, version: usize) -> String {
        let Amount {
            count,
            period,
            burst,
        } = self.amounts[version];
        let failure = match self.failure {
            Failure::Open => "open",
            Failure::Closed => "closed",
            Failure::Local => "local",
            Failure::Breaks => "circuit-break",
        };
        let counted = match self.counted {
            Counted::Exact => "exact",
            Counted::Leased => "leased",
            Counted::Local => "local",
        };
        let unit = PERIODS.iter().find(|(micros, _)| *micros == period);
        let unit = unit.map_or("10m", |(_, name)| name);
        let what = match self.sort {
            Sort::Level(name) => {
                format!("rate: {count}/{unit} burst {burst}, algorithm: {name}")
            }
            Sort::Window(name) => format!("rate: {count}/{unit}, algorithm: {name}"),
            Sort::Quota("hour") => format!("quota: {count}/hour"),
            Sort::Quota(_) => format!("quota: {count} in any 10m"),
            Sort::Slots => format!("concurrency: {count}"),
        };
        match self.counted {
            Counted::Local => format!("{what}, counting: local"),
            _ => format!("{what}, counting: {counted}, on_store_failure: {failure}"),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            nodes,
            shards,
            timeout,
            lease_life,
            slot_life,
            remembers,
            learns,
            troubles,
            ..
        } = self;
        write!(
            f,
            "{nodes} nodes, {shards} shards, timeout {timeout} ms, leases {lease_life:?} ms, "
        )?;
        writeln!(
            f,
            "slots {slot_life} ms, remembers {remembers}, learns {learns}, {troubles:?}"
        )?;
        for version in 0..self.versions {
            write!(f, "version {version}, {}", self.policy(version))?;
        }
        Ok(())
    }
}
