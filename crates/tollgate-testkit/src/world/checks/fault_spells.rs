//! The faults of a scenario with their durations, and the nodes that they kept from the store.

use super::CheckContext;
use crate::world::scenario::{Event, Scenario};

/// A time in which a fault or its consequences lasted.
#[derive(Clone, Debug)]
pub(super) struct FaultSpell {
    pub(super) ill: FaultKind,
    pub(super) from: u64,
    pub(super) to: u64,
    /// The nodes that it affected.
    nodes: AffectedNodes,
}

#[derive(Clone, Debug)]
enum AffectedNodes {
    All,
    These(Vec<usize>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    /// The store was suspended.
    Stopped,
    /// The store was unreachable, or rejected commands.
    Away,
    /// The network lost commands.
    Network,
    /// A node was suspended.
    Frozen,
}

/// A lost connection is replaced by then.
const RECONNECT_TIME: u64 = 1_200_000;
/// A connection that doesn't answer, or never comes up, is closed by then.
pub(super) const GIVE_UP_TIME: u64 = 5_500_000;

impl FaultSpell {
    pub(super) fn hits(&self, node: usize) -> bool {
        match &self.nodes {
            AffectedNodes::All => true,
            AffectedNodes::These(nodes) => nodes.contains(&node),
        }
    }

    /// Whether it suspended a node.
    pub(super) fn freezes(&self, node: usize) -> bool {
        self.ill == FaultKind::Frozen && self.hits(node)
    }

    /// Until when a node may notice it.
    pub(super) fn felt_until(&self, case: CheckContext<'_>) -> u64 {
        let after = match self.ill {
            FaultKind::Stopped | FaultKind::Frozen => 10 * case.setting().delay + 1_000,
            FaultKind::Away => RECONNECT_TIME,
            FaultKind::Network => GIVE_UP_TIME,
        };
        self.to.saturating_add(after)
    }
}

/// All faults of a scenario, in order of their beginnings.
pub(super) fn spells_of_scenario(story: &Scenario) -> Vec<FaultSpell> {
    let mut spells = Vec::new();
    let mut weather: Option<u64> = None;
    let ends = |(at, event): &(u64, Event)| at + lasts(event);
    let over = story.events.iter().map(ends).max().unwrap_or(0);
    let mut add = |ill, from: u64, to, nodes| {
        spells.push(FaultSpell {
            ill,
            from,
            to,
            nodes,
        });
    };
    for (at, event) in &story.events {
        let to = at + lasts(event);
        match event {
            Event::StoreStops { .. } => add(FaultKind::Stopped, *at, to, AffectedNodes::All),
            Event::StoreDies { .. } | Event::StoreAils { .. } => {
                add(FaultKind::Away, *at, to, AffectedNodes::All);
            }
            Event::Apart { nodes, .. } => {
                add(
                    FaultKind::Network,
                    *at,
                    to,
                    AffectedNodes::These(nodes.clone()),
                );
            }
            Event::Freeze { node, .. } => add(
                FaultKind::Frozen,
                *at,
                to,
                AffectedNodes::These(vec![*node]),
            ),
            Event::Weather(now) => {
                if let Some(from) = weather.take() {
                    add(FaultKind::Network, from, *at, AffectedNodes::All);
                }
                weather = (*now != story.setting.weather()).then_some(*at);
            }
            _ => {}
        }
    }
    if let Some(from) = weather {
        add(FaultKind::Network, from, over, AffectedNodes::All);
    }
    spells.sort_by_key(|spell| spell.from);
    spells
}

fn lasts(event: &Event) -> u64 {
    match event {
        Event::StoreStops { micros }
        | Event::StoreDies { micros, .. }
        | Event::StoreAils { micros, .. }
        | Event::Apart { micros, .. }
        | Event::Freeze { micros, .. } => *micros,
        _ => 0,
    }
}
