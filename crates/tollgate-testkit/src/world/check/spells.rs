//! What was wrong in a story and for how long, and which nodes that kept from asking the store.

use super::Case;
use crate::world::story::{Event, Story};

/// A time in which something was wrong, or its consequences.
#[derive(Clone, Debug)]
pub(super) struct Spell {
    pub(super) ill: Ill,
    pub(super) from: u64,
    pub(super) to: u64,
    /// Which nodes it affected.
    nodes: Nodes,
}

#[derive(Clone, Debug)]
enum Nodes {
    All,
    These(Vec<usize>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ill {
    /// The store didn't run.
    Stopped,
    /// It wasn't there, or refused.
    Away,
    /// The network lost what was sent.
    Network,
    /// A node didn't run.
    Frozen,
}

/// A lost connection is replaced after so long at most.
const RECONNECTS: u64 = 1_200_000;
/// A connection that doesn't answer, or never comes up, is given up before that.
pub(super) const GIVE_UP_TIME: u64 = 5_500_000;

impl Spell {
    pub(super) fn hits(&self, node: usize) -> bool {
        match &self.nodes {
            Nodes::All => true,
            Nodes::These(nodes) => nodes.contains(&node),
        }
    }

    /// Whether it kept a node from running.
    pub(super) fn freezes(&self, node: usize) -> bool {
        self.ill == Ill::Frozen && self.hits(node)
    }

    /// Until when a node may notice it.
    pub(super) fn felt_until(&self, case: Case<'_>) -> u64 {
        let after = match self.ill {
            Ill::Stopped | Ill::Frozen => 10 * case.setting().delay + 1_000,
            Ill::Away => RECONNECTS,
            Ill::Network => GIVE_UP_TIME,
        };
        self.to.saturating_add(after)
    }
}

/// All of a story, in the order in which they began.
pub(super) fn of(story: &Story) -> Vec<Spell> {
    let mut spells = Vec::new();
    let mut weather: Option<u64> = None;
    let ends = |(at, event): &(u64, Event)| at + lasts(event);
    let over = story.events.iter().map(ends).max().unwrap_or(0);
    let mut add = |ill, from: u64, to, nodes| {
        spells.push(Spell {
            ill,
            from,
            to,
            nodes,
        });
    };
    for (at, event) in &story.events {
        let to = at + lasts(event);
        match event {
            Event::StoreStops { .. } => add(Ill::Stopped, *at, to, Nodes::All),
            Event::StoreDies { .. } | Event::StoreAils { .. } => {
                add(Ill::Away, *at, to, Nodes::All);
            }
            Event::Apart { nodes, .. } => {
                add(Ill::Network, *at, to, Nodes::These(nodes.clone()));
            }
            Event::Freeze { node, .. } => add(Ill::Frozen, *at, to, Nodes::These(vec![*node])),
            Event::Weather(now) => {
                if let Some(from) = weather.take() {
                    add(Ill::Network, from, *at, Nodes::All);
                }
                weather = (*now != story.setting.weather()).then_some(*at);
            }
            _ => {}
        }
    }
    if let Some(from) = weather {
        add(Ill::Network, from, over, Nodes::All);
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
