//! What happens in a world: who asks what when, and what goes wrong. All of it follows from a seed.

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

/// A history to be played: a setting, and events in order.
///
/// ```
/// use tollgate_testkit::world::Scenario;
///
/// let story = Scenario::new(7);
/// assert_eq!(story.to_string(), Scenario::new(7).to_string());
/// assert!(story.events.is_sorted_by_key(|(at, _)| *at));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// What it follows from.
    pub seed: u64,
    /// Who there is, and by which rules.
    pub setting: ScenarioSettings,
    /// What happens when, in microseconds since it began.
    pub events: Vec<(u64, Event)>,
}

/// Something that happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Someone asks a node.
    Ask(Request),
    /// A node puts another version of the policy in force.
    Reload {
        /// The node.
        node: usize,
        /// The version.
        version: usize,
    },
    /// A node gets no turn for so many microseconds: stopped, or starved.
    Freeze {
        /// The node.
        node: usize,
        /// For how long.
        micros: u64,
    },
    /// A node dies, and is started again after so many microseconds with the version it had.
    Restart {
        /// The node.
        node: usize,
        /// For how long it is away.
        micros: u64,
    },
    /// A node's wall clock steps.
    WallSteps {
        /// The node.
        node: usize,
        /// By so many microseconds.
        by: i64,
    },
    /// The network changes.
    Weather(Weather),
    /// These nodes can't reach the store, for so many microseconds.
    Apart {
        /// The nodes.
        nodes: Vec<usize>,
        /// For how long.
        micros: u64,
    },
    /// The store doesn't run for so many microseconds.
    StoreStops {
        /// For how long.
        micros: u64,
    },
    /// The store dies, and comes back after so many microseconds.
    StoreDies {
        /// For how long it is away.
        micros: u64,
        /// What it has then.
        keeps: KeptData,
    },
    /// The store is in some condition for so many microseconds.
    StoreAils {
        /// The condition.
        condition: StoreCondition,
        /// For how long.
        micros: u64,
    },
    /// The store's clock steps by so many microseconds.
    StoreSteps {
        /// By so much.
        by: i64,
    },
    /// The replica catches up.
    Replicates,
    /// The store forgets its scripts.
    ScriptsFlushed,
    /// The store deletes some of what is past its time.
    Expires,
    /// The store evicts a key.
    Evicts,
    /// An operator gives someone back some of what was spent, or all.
    Gives(RefundEvent),
}

/// What an operator gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefundEvent {
    /// By which node.
    pub node: usize,
    /// Of which rule.
    pub rule: usize,
    /// To whom.
    pub who: usize,
    /// So much; all if it isn't said.
    pub units: Option<u64>,
}

/// What a store has when it comes back.
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
    /// Of which node.
    pub node: usize,
    /// By whom.
    pub who: usize,
    /// How much.
    pub cost: u64,
    /// It is dropped after so many microseconds, if it has no answer by then.
    pub patience: Option<u64>,
    /// What it holds is given back after so many.
    pub runs: u64,
    /// What it says then.
    pub ends: FinalCost,
    /// If it is refused it comes back just when it was told.
    pub returns: bool,
    /// The limits of trees that its descriptors name, by the bits of their numbers.
    pub descriptors: u8,
    /// Whether rules see facts of it: a request of descriptors alone is decided by trees.
    pub has_facts: bool,
    /// The limit that it brings along for windows of a tree, if that is stricter than theirs.
    pub brings: Option<u64>,
}

/// What a request says when it is over, to rules whose costs are estimates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinalCost {
    /// It cost so much.
    Cost(u64),
    /// Nothing.
    Unsaid,
    /// It never ran.
    Cancelled,
}

impl Scenario {
    /// The story of a seed.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut setting = ScenarioSettings::new(&mut random);
        // By luck of its own, so that all else of a story is the same with the middleware and without.
        setting.is_guarded = Random::new(seed ^ 0x0067_7561_7264).below(3) == 0;
        // Likewise.
        setting.add_denied(&mut Random::new(seed ^ 0x6465_6e69_6564));
        // Likewise.
        setting.add_trees(&mut Random::new(seed ^ 0x0074_7265_6573));
        // Likewise.
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
        // Of the same time in the order in which they were thought of.
        events.sort_by_key(|(at, _)| *at);
        Self {
            seed,
            setting,
            events,
        }
    }

    /// The same with these events alone.
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
            // A String takes whatever is written.
            let _ = writeln!(text, "{:>12.6} s  {event}", describe::seconds(*at));
        }
        f.write_str(&text)
    }
}
