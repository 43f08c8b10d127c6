//! The events of a world: requests and faults. All of them follow from a seed.

use std::fmt::Write as _;

use super::network::Weather;
use super::store::StoreCondition;
use crate::traffic::Random;

mod describe;
mod faults;
mod rule;
mod setting;
mod traffic;

pub use faults::FaultType;
pub use rule::{Amount, CountingChoice, EstimateSetting, Failure, LimitSort, Rule, TreeLeaf};
pub use setting::ScenarioSettings;

/// A history to run: a setting, and events in order.
///
/// ```
/// use tollgate_testkit::world::Scenario;
///
/// let scenario = Scenario::new(7);
/// assert_eq!(scenario.to_string(), Scenario::new(7).to_string());
/// assert!(scenario.events.is_sorted_by_key(|(at, _)| *at));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// The seed.
    pub seed: u64,
    /// The nodes, the clients and the rules.
    pub setting: ScenarioSettings,
    /// The events, with their times in microseconds since the beginning.
    pub events: Vec<(u64, Event)>,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client sends a request to a node.
    Ask(Request),
    /// A node puts another version of the policy in force.
    Reload {
        /// The node.
        node: usize,
        /// The version.
        version: usize,
    },
    /// A node doesn't run for this many microseconds: suspended, or starved.
    Freeze {
        /// The node.
        node: usize,
        /// How long.
        micros: u64,
    },
    /// A node dies, and restarts after this many microseconds with the version it had.
    Restart {
        /// The node.
        node: usize,
        /// How long it is dead.
        micros: u64,
    },
    /// A node's wall clock steps.
    WallSteps {
        /// The node.
        node: usize,
        /// By this many microseconds.
        by: i64,
    },
    /// The network changes.
    Weather(Weather),
    /// These nodes can't reach the store for this many microseconds.
    Apart {
        /// The nodes.
        nodes: Vec<usize>,
        /// How long.
        micros: u64,
    },
    /// The store is suspended for this many microseconds.
    StoreStops {
        /// How long.
        micros: u64,
    },
    /// The store dies, and restarts after this many microseconds.
    StoreDies {
        /// How long it is dead.
        micros: u64,
        /// The data that it has after the restart.
        keeps: KeptData,
    },
    /// The store is in some condition for this many microseconds.
    StoreAils {
        /// The condition.
        condition: StoreCondition,
        /// How long.
        micros: u64,
    },
    /// The store's clock steps.
    StoreSteps {
        /// By this many microseconds.
        by: i64,
    },
    /// The replica catches up.
    Replicates,
    /// The store forgets its scripts.
    ScriptsFlushed,
    /// The store deletes some of its expired keys.
    Expires,
    /// The store evicts a key.
    Evicts,
    /// An operator refunds some of what a client has spent, or all of it.
    Gives(RefundEvent),
}

/// A refund by an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefundEvent {
    /// The node that the operator uses.
    pub node: usize,
    /// The rule.
    pub rule: usize,
    /// The client.
    pub who: usize,
    /// The units; `None` for all.
    pub units: Option<u64>,
}

/// The data of a store after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptData {
    /// Everything.
    All,
    /// What the replica had.
    Replicated,
    /// Nothing.
    Nothing,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The node.
    pub node: usize,
    /// The client.
    pub who: usize,
    /// The cost.
    pub cost: u64,
    /// The client's timeout in microseconds: without an answer by then, the request is dropped.
    pub patience: Option<u64>,
    /// How long it runs, in microseconds, before it releases what it holds.
    pub runs: u64,
    /// The cost that it reports then.
    pub ends: FinalCost,
    /// If it is denied, it comes back exactly at the reported time.
    pub returns: bool,
    /// The limits of trees that its descriptors name, as bits by their numbers.
    pub descriptors: u8,
    /// Whether rules see facts of it: a request with descriptors alone is decided by trees.
    pub has_facts: bool,
    /// A limit that it brings along for windows of a tree, if that is stricter than theirs.
    pub brings: Option<u64>,
}

/// The cost that a request reports at its end, to rules whose costs are estimates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinalCost {
    /// Its actual cost.
    Cost(u64),
    /// It reports nothing.
    Unsaid,
    /// It never ran.
    Cancelled,
}

impl Scenario {
    /// The scenario of a seed.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut setting = ScenarioSettings::new(&mut random);
        // A generator of its own, so that all else of a scenario is the same with and without the middleware.
        setting.is_guarded = Random::new(seed ^ 0x0067_7561_7264).below(3) == 0;
        // A generator of its own, too.
        setting.add_denied(&mut Random::new(seed ^ 0x6465_6e69_6564));
        // A generator of its own, too.
        setting.add_trees(&mut Random::new(seed ^ 0x0074_7265_6573));
        // A generator of its own, too.
        setting.take_away_a_rule(&mut Random::new(seed ^ 0x6162_7365_6e74));
        let mut events = Vec::new();
        let length = setting.length(&mut random);
        let demand = traffic::TrafficPattern::new(&setting, length, &mut random);
        demand.add_requests(&setting, &mut random, &mut events);
        let mut rules = setting.rules.iter();
        if rules.any(|rule| rule.counted == CountingChoice::Leased) && random.below(3) == 0 {
            demand.relay(&setting, &mut random, &mut events);
        }
        faults::add_fault(&setting, &demand, &mut random, &mut events);
        // A stable sort: events at the same time stay in the order in which they were made.
        events.sort_by_key(|(at, _)| *at);
        Self {
            seed,
            setting,
            events,
        }
    }

    /// The same scenario with these events alone.
    #[must_use]
    pub fn with(&self, events: Vec<(u64, Event)>) -> Self {
        Self {
            events,
            ..self.clone()
        }
    }
}

impl std::fmt::Display for Scenario {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.setting)?;
        let mut text = String::new();
        for (at, event) in &self.events {
            // Writing to a `String` can't fail.
            let _ = writeln!(text, "{:>12.6} s  {event}", describe::seconds(*at));
        }
        f.write_str(&text)
    }
}
