//! What goes wrong in a story, mostly just when somebody asks.

use super::traffic::TrafficPattern;
use super::{Event, Gift, Keeps, Request, Rule, Setting, Sort};
use crate::traffic::Random;
use crate::world::{Condition, Weather};

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
    /// Somebody gives back what was spent.
    Operator,
}

/// A policy is reloaded so long after a rush began, and before it ends.
const BUSY: u64 = 300_000;

/// As much as the setting says.
pub(super) fn happen(
    setting: &Setting,
    demand: &TrafficPattern,
    random: &mut Random,
    events: &mut Vec<(u64, Event)>,
) {
    if setting.versions > 1 {
        reload(setting, demand, random, events);
    }
    let times = if setting.troubles.is_empty() {
        0
    } else {
        1 + random.below(6)
    };
    let asked: Vec<(u64, Request)> = events.iter().filter_map(asked).collect();
    for _ in 0..times {
        let sort = random.pick(&setting.troubles);
        let (mut at, ask) = random.pick(&asked);
        let mut node = ask.node;
        match random.below(4) {
            0 => (at, node) = (random.below(demand.length), setting.some_node(random)),
            // While something is under way.
            _ => at += random.below(4 * setting.delay + 2),
        }
        let scene = FaultScheduler::new(setting, (at, node, ask.who), random);
        sort.happen(setting, &scene, random, events);
        if sort == Trouble::Operator {
            // In the same breath.
            demand.rush((setting, node, ask.who), (at, 1_000), random, events);
        }
        if random.below(4) > 0 {
            let (of, micros) = ((setting, node, ask.who), scene.micros);
            // Before it, meanwhile and afterwards.
            let from = at.saturating_sub(micros);
            demand.rush(of, (from, 3 * micros), random, events);
        }
    }
}

/// Some nodes get another version of the policy, now and then while they are busy.
fn reload(
    setting: &Setting,
    demand: &TrafficPattern,
    random: &mut Random,
    events: &mut Vec<(u64, Event)>,
) {
    for _ in 0..1 + random.below(8) {
        let version = usize::try_from(random.below(setting.versions_u64())).unwrap_or(0);
        let node = setting.some_node(random);
        let at = random.below(demand.length);
        events.push((at, Event::Reload { node, version }));
        if random.below(4) == 0 {
            let who = usize::try_from(random.below(setting.keys)).unwrap_or(0);
            let from = at.saturating_sub(BUSY);
            demand.rush((setting, node, who), (from, 2 * BUSY), random, events);
        }
    }
}

fn asked((at, event): &(u64, Event)) -> Option<(u64, Request)> {
    match event {
        Event::Ask(ask) => Some((*at, *ask)),
        _ => None,
    }
}

/// When something goes wrong, for how long, and whom it hits if it hits one.
#[derive(Clone, Copy, Debug)]
struct FaultScheduler {
    at: u64,
    micros: u64,
    node: usize,
    who: usize,
}

impl FaultScheduler {
    fn new(setting: &Setting, (at, node, who): (u64, usize, usize), random: &mut Random) -> Self {
        // A moment, a timeout, some of them, or long.
        let timeout = setting.timeout * 1000;
        let micros = match random.below(4) {
            0 => random.below(timeout),
            1 => timeout,
            2 => timeout + random.below(10 * timeout),
            _ => random.below(5_000_000),
        };
        Self {
            at,
            micros,
            node,
            who,
        }
    }
}

impl Trouble {
    pub(super) const ALL: [Self; 8] = [
        Self::Network,
        Self::Away,
        Self::Forgets,
        Self::Ails,
        Self::Clock,
        Self::Starved,
        Self::Deaths,
        Self::Operator,
    ];

    fn happen(
        self,
        setting: &Setting,
        scene: &FaultScheduler,
        random: &mut Random,
        events: &mut Vec<(u64, Event)>,
    ) {
        let FaultScheduler {
            at,
            micros,
            node,
            who,
        } = *scene;
        let event = match self {
            Self::Network if random.below(2) == 0 => {
                let nodes = (0..setting.nodes)
                    .filter(|_| random.below(2) == 0)
                    .collect();
                Event::Apart { nodes, micros }
            }
            Self::Network => {
                events.push((at + micros, Event::Weather(setting.weather())));
                Event::Weather(bad_weather(setting, random))
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
            Self::Clock => step(node, random),
            Self::Starved => Event::Freeze { node, micros },
            Self::Deaths => Event::Restart { node, micros },
            Self::Operator => Event::Gives(gift(setting, (node, who), random)),
        };
        events.push((at, event));
    }
}

fn bad_weather(setting: &Setting, random: &mut Random) -> Weather {
    let part = |random: &mut Random| match random.below(2) {
        0 => 0,
        _ => random.below(300),
    };
    Weather {
        delay: random.below(2 * setting.timeout * 1000),
        lost_before: part(random),
        lost_after: part(random),
        cut: part(random),
    }
}

/// The clock of the store or of a node steps, or what is over is dropped.
fn step(node: usize, random: &mut Random) -> Event {
    let far = match random.below(4) {
        0 => 1_000,
        1 => 2_000_000,
        _ => 36_000_000_000,
    };
    let by = i64::try_from(random.below(far)).unwrap_or(0);
    let by = if random.below(3) == 0 { by } else { -by };
    match random.below(6) {
        0 => Event::WallSteps { node, by },
        1 => Event::Expires,
        _ => Event::StoreSteps { by },
    }
}

fn gift(setting: &Setting, (node, who): (usize, usize), random: &mut Random) -> Gift {
    let index = |random: &mut Random, end: u64| usize::try_from(random.below(end)).unwrap_or(0);
    let rule = index(random, setting.rules.len() as u64);
    let Rule { sort, .. } = &setting.rules[rule];
    let is_whole = *sort == Sort::Slots || random.below(2) == 0;
    let units = 1 + random.below(setting.most_cost());
    Gift {
        node,
        rule,
        who,
        units: (!is_whole).then_some(units),
    }
}
