//! The faults of a scenario, mostly close to requests.

use super::traffic::TrafficPattern;
use super::{Event, KeptData, LimitSort, RefundEvent, Request, Rule, ScenarioSettings};
use crate::traffic::Random;
use crate::world::{StoreCondition, Weather};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultType {
    /// The network delays, loses and cuts.
    Network,
    /// The store is suspended, or dies and keeps its data.
    Away,
    /// The store restarts with less data.
    Forgets,
    /// The store rejects commands.
    Ails,
    /// Its clock steps.
    Clock,
    /// Nodes are frozen.
    Starved,
    /// Nodes die.
    Deaths,
    /// An operator refunds what was spent.
    Operator,
}

/// A reload comes this long after a rush began, and before it ends.
const RELOAD_MARGIN: u64 = 300_000;

/// Adds the setting's faults.
pub(super) fn add_fault(
    setting: &ScenarioSettings,
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
    let asked: Vec<(u64, Request)> = events.iter().filter_map(as_request).collect();
    for _ in 0..times {
        let sort = random.pick(&setting.troubles);
        let (mut at, ask) = random.pick(&asked);
        let mut node = ask.node;
        match random.below(4) {
            0 => (at, node) = (random.below(demand.length), setting.some_node(random)),
            // While a request is in flight.
            _ => at += random.below(4 * setting.delay + 2),
        }
        let scene = FaultScheduler::new(setting, (at, node, ask.who), random);
        sort.add_fault(setting, &scene, random, events);
        if sort == FaultType::Operator {
            // At the same moment.
            demand.rush((setting, node, ask.who), (at, 1_000), random, events);
        }
        if random.below(4) > 0 {
            let (of, micros) = ((setting, node, ask.who), scene.micros);
            // Before it, during it and afterwards.
            let from = at.saturating_sub(micros);
            demand.rush(of, (from, 3 * micros), random, events);
        }
    }
}

/// Some nodes get another version of the policy, sometimes while they are busy.
fn reload(
    setting: &ScenarioSettings,
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
            let from = at.saturating_sub(RELOAD_MARGIN);
            demand.rush(
                (setting, node, who),
                (from, 2 * RELOAD_MARGIN),
                random,
                events,
            );
        }
    }
}

fn as_request((at, event): &(u64, Event)) -> Option<(u64, Request)> {
    match event {
        Event::Ask(ask) => Some((*at, *ask)),
        _ => None,
    }
}

/// When a fault occurs, for how long, and which node it affects.
#[derive(Clone, Copy, Debug)]
struct FaultScheduler {
    at: u64,
    micros: u64,
    node: usize,
    who: usize,
}

impl FaultScheduler {
    fn new(
        setting: &ScenarioSettings,
        (at, node, who): (u64, usize, usize),
        random: &mut Random,
    ) -> Self {
        // A moment, a timeout, several timeouts, or long.
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

impl FaultType {
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

    fn add_fault(
        self,
        setting: &ScenarioSettings,
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
                keeps: KeptData::All,
            },
            Self::Forgets => match random.below(5) {
                0 => Event::Replicates,
                1 => Event::Evicts,
                2 => Event::ScriptsFlushed,
                3 => Event::StoreDies {
                    micros,
                    keeps: KeptData::Replicated,
                },
                _ => Event::StoreDies {
                    micros,
                    keeps: KeptData::Nothing,
                },
            },
            Self::Ails => {
                let all = [
                    StoreCondition::ReadOnly,
                    StoreCondition::OutOfMemory,
                    StoreCondition::Loading,
                    StoreCondition::Busy,
                ];
                let condition = random.pick(&all);
                Event::StoreAils { condition, micros }
            }
            Self::Clock => step(node, random),
            Self::Starved => Event::Freeze { node, micros },
            Self::Deaths => Event::Restart { node, micros },
            Self::Operator => Event::Gives(refund_event(setting, (node, who), random)),
        };
        events.push((at, event));
    }
}

fn bad_weather(setting: &ScenarioSettings, random: &mut Random) -> Weather {
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

/// The clock of the store or of a node steps, or expired keys are deleted.
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

fn refund_event(
    setting: &ScenarioSettings,
    (node, who): (usize, usize),
    random: &mut Random,
) -> RefundEvent {
    let index = |random: &mut Random, end: u64| usize::try_from(random.below(end)).unwrap_or(0);
    let rule = index(random, setting.rules.len() as u64);
    let Rule { sort, .. } = &setting.rules[rule];
    let is_whole = *sort == LimitSort::Slots || random.below(2) == 0;
    let units = 1 + random.below(setting.most_cost());
    RefundEvent {
        node,
        rule,
        who,
        units: (!is_whole).then_some(units),
    }
}
