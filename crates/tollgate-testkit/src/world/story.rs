//! What happens in a world: who asks what when, and what goes wrong. All of it follows from a seed.

use std::fmt::Write as _;

use super::network::Weather;
use super::store::Condition;
use crate::traffic::Random;

mod setting;
mod tell;

pub use setting::{Amount, Counted, Failure, Rule, Setting, Sort};

/// A history to be played: a setting, and events in order.
///
/// ```
/// use tollgate_testkit::world::Story;
///
/// let story = Story::new(7);
/// assert_eq!(story.to_string(), Story::new(7).to_string());
/// assert!(story.events.is_sorted_by_key(|(at, _)| *at));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Story {
    /// What it follows from.
    pub seed: u64,
    /// Who there is, and by which rules.
    pub setting: Setting,
    /// What happens when, in microseconds since it began.
    pub events: Vec<(u64, Event)>,
}

/// Something that happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Someone asks a node.
    Ask(Ask),
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
        keeps: Keeps,
    },
    /// The store is in some condition for so many microseconds.
    StoreAils {
        /// The condition.
        condition: Condition,
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
}

/// What a store has when it comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// Everything.
    All,
    /// What the replica had.
    Replicated,
    /// Nothing.
    Nothing,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
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
    /// If it is refused it comes back just when it was told.
    pub returns: bool,
}

/// Requests in a story.
const ASKS: u64 = 120;

impl Story {
    /// The story of a seed.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let setting = Setting::new(&mut random);
        let mut events = Vec::new();
        let length = setting.length(&mut random);
        traffic(&setting, length, &mut random, &mut events);
        trouble(&setting, length, &mut random, &mut events);
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

/// Requests: bursts, steady streams and pauses.
fn traffic(setting: &Setting, length: u64, random: &mut Random, events: &mut Vec<(u64, Event)>) {
    let asks = ASKS / 2 + random.below(ASKS);
    let (mut at, mut left, mut pause) = (0, 0, 0);
    let most = setting.most_cost();
    let heavy = random.below(3) == 0;
    for _ in 0..asks {
        if left == 0 {
            left = 1 + random.below(30);
            pause = match random.below(3) {
                0 => 0,
                1 => random.below(length / 20 + 1),
                _ => random.below(length / asks * 2 + 1),
            };
            at += random.below(length / 8 + 1);
        }
        left -= 1;
        at += random.below(2 * pause + 1);
        let cost = match heavy && random.below(2) == 0 {
            true => 1 + random.below(most),
            false => 1,
        };
        let ask = Ask {
            node: setting.some_node(random),
            who: usize::try_from(random.below(setting.keys)).unwrap_or(0),
            cost,
            patience: (random.below(12) == 0).then(|| random.below(2 * setting.timeout * 1000)),
            runs: random.below(length / 4 + 1),
            returns: random.below(4) == 0,
        };
        events.push((at % length.max(1), Event::Ask(ask)));
    }
}

/// What goes wrong: as much as the setting says.
fn trouble(setting: &Setting, length: u64, random: &mut Random, events: &mut Vec<(u64, Event)>) {
    if setting.versions > 1 {
        for _ in 0..1 + random.below(8) {
            let version = usize::try_from(random.below(setting.versions_u64())).unwrap_or(0);
            let node = setting.some_node(random);
            events.push((random.below(length), Event::Reload { node, version }));
        }
    }
    let times = match setting.troubles.is_empty() {
        true => 0,
        false => 1 + random.below(6),
    };
    for _ in 0..times {
        let sort = random.pick(&setting.troubles);
        let at = random.below(length);
        sort.happen(setting, at, random, events);
    }
}

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The network delays, loses and cuts.
    Network,
    /// The store stops, or dies and keeps what it has.
    Away,
    /// The store comes back with less.
    Forgets,
    /// The store refuses.
    Ails,
    /// Its clock steps.
    Clock,
    /// Nodes are frozen.
    Starved,
    /// Nodes die.
    Deaths,
}

impl Trouble {
    pub(super) const ALL: [Self; 7] = [
        Self::Network,
        Self::Away,
        Self::Forgets,
        Self::Ails,
        Self::Clock,
        Self::Starved,
        Self::Deaths,
    ];

    fn happen(
        self,
        setting: &Setting,
        at: u64,
        random: &mut Random,
        events: &mut Vec<(u64, Event)>,
    ) {
        // A moment, about a timeout, or long.
        let timeout = setting.timeout * 1000;
        let micros = match random.below(3) {
            0 => random.below(timeout),
            1 => timeout + random.below(10 * timeout),
            _ => random.below(5_000_000),
        };
        let node = setting.some_node(random);
        let event = match self {
            Self::Network if random.below(2) == 0 => {
                let nodes = (0..setting.nodes)
                    .filter(|_| random.below(2) == 0)
                    .collect();
                Event::Apart { nodes, micros }
            }
            Self::Network => {
                let part = |random: &mut Random| match random.below(2) {
                    0 => 0,
                    _ => random.below(300),
                };
                let weather = Weather {
                    delay: random.below(2 * timeout),
                    lost_before: part(random),
                    lost_after: part(random),
                    cut: part(random),
                };
                events.push((at + micros, Event::Weather(Weather::default())));
                Event::Weather(weather)
            }
            Self::Away if random.below(2) == 0 => Event::StoreStops { micros },
            Self::Away => Event::StoreDies {
                micros,
                keeps: Keeps::All,
            },
            Self::Forgets => match random.below(5) {
                0 => Event::Replicates,
                1 => Event::Evicts,
                2 => Event::ScriptsFlushed,
                3 => Event::StoreDies {
                    micros,
                    keeps: Keeps::Replicated,
                },
                _ => Event::StoreDies {
                    micros,
                    keeps: Keeps::Nothing,
                },
            },
            Self::Ails => {
                let all = [
                    Condition::ReadOnly,
                    Condition::OutOfMemory,
                    Condition::Loading,
                    Condition::Busy,
                ];
                let condition = random.pick(&all);
                Event::StoreAils { condition, micros }
            }
            Self::Clock => {
                let far = match random.below(3) {
                    0 => 1_000,
                    1 => 2_000_000,
                    _ => 36_000_000_000,
                };
                let by = i64::try_from(random.below(far)).unwrap_or(0);
                let by = if random.below(2) == 0 { by } else { -by };
                match random.below(4) {
                    0 => Event::WallSteps { node, by },
                    1 => Event::Expires,
                    _ => Event::StoreSteps { by },
                }
            }
            Self::Starved => Event::Freeze { node, micros },
            Self::Deaths => Event::Restart { node, micros },
        };
        events.push((at, event));
    }
}

impl std::fmt::Display for Story {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.setting)?;
        let mut text = String::new();
        for (at, event) in &self.events {
            // A String takes whatever is written.
            let _ = writeln!(text, "{:>12.6} s  {event}", tell::seconds(*at));
        }
        f.write_str(&text)
    }
}
