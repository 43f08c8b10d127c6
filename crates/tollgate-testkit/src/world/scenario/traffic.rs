//! The requests of a scenario: bursts, steady streams and pauses.

use super::{Event, FinalCost, Request, ScenarioSettings};
use crate::traffic::Random;

/// Requests in a scenario, in addition to those that accompany faults.
const REQUESTS_PER_SCENARIO: u64 = 70;

/// Requests in a rush, at most.
const MAX_RUSH_REQUESTS: u64 = 30;

/// The traffic of a scenario.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrafficPattern {
    /// The duration of the scenario, in microseconds.
    pub(super) length: u64,
    /// Whether many requests cost more than 1.
    is_heavy: bool,
    /// Whether some clients time out.
    is_hurried: bool,
}

impl TrafficPattern {
    pub(super) fn new(setting: &ScenarioSettings, length: u64, random: &mut Random) -> Self {
        Self {
            length,
            is_heavy: random.below(2) == 0 && setting.most_cost() > 1,
            is_hurried: random.below(3) == 0,
        }
    }

    /// Adds requests in clusters, each at a rate of its own.
    pub(super) fn add_requests(
        &self,
        setting: &ScenarioSettings,
        random: &mut Random,
        events: &mut Vec<(u64, Event)>,
    ) {
        let asks = REQUESTS_PER_SCENARIO / 2 + random.below(REQUESTS_PER_SCENARIO);
        let (mut at, mut left, mut pause, mut one) = (0, 0, 0, None);
        for _ in 0..asks {
            if left == 0 {
                left = 1 + random.below(30);
                pause = match random.below(3) {
                    0 => 0,
                    1 => random.below(self.length / 20 + 1),
                    _ => random.below(self.length / asks * 2 + 1),
                };
                at += random.below(self.length / 8 + 1);
                one = (random.below(2) == 0).then(|| setting.some_node(random));
            }
            left -= 1;
            at += random.below(2 * pause + 1);
            let node = one.unwrap_or_else(|| setting.some_node(random));
            let ask = self.make_request(setting, node, random);
            events.push((at % self.length.max(1), Event::Ask(ask)));
        }
    }

    /// Many requests of one client to a node, for the whole limit and more.
    pub(super) fn rush(
        &self,
        (setting, node, who): (&ScenarioSettings, usize, usize),
        (from, micros): (u64, u64),
        random: &mut Random,
        events: &mut Vec<(u64, Event)>,
    ) {
        let most = setting.most_cost().div_ceil(4);
        for _ in 0..random.below(MAX_RUSH_REQUESTS) {
            let at = from + random.below(micros + 1);
            let cost = 1 + random.below(most);
            let ask = Request {
                who,
                cost,
                ends: ends(cost, random),
                ..self.make_request(setting, node, random)
            };
            events.push((at, Event::Ask(ask)));
        }
    }

    /// One node leases tokens for a while; another requests some, and later all there is: it must not get what
    /// the first one spends right after.
    pub(super) fn relay(
        &self,
        setting: &ScenarioSettings,
        random: &mut Random,
        events: &mut Vec<(u64, Event)>,
    ) {
        let (one, other) = (setting.some_node(random), setting.some_node(random));
        let who = usize::try_from(random.below(setting.keys)).unwrap_or(0);
        let mut at = random.below(self.length);
        self.rush((setting, one, who), (at, 5_000), random, events);
        at += random.below(200_000);
        let (cost, meanwhile) = (1, self.make_request(setting, other, random));
        let meanwhile = Request {
            who,
            cost,
            ..meanwhile
        };
        events.push((at, Event::Ask(meanwhile)));
        at += random.below(2_000_000);
        self.rush((setting, other, who), (at, 20_000), random, events);
        self.rush((setting, one, who), (at + 20_000, 20_000), random, events);
    }

    fn make_request(
        &self,
        setting: &ScenarioSettings,
        node: usize,
        random: &mut Random,
    ) -> Request {
        let most = setting.most_cost();
        let cost = if self.is_heavy && random.below(2) == 0 {
            1 + random.below(most)
        } else {
            1
        };
        // A client times out during the decision, or while its request waits.
        let patience = 2 * setting.timeout * 1000 + setting.longest_wait();
        let ask = Request {
            node,
            who: usize::try_from(random.below(setting.keys)).unwrap_or(0),
            cost,
            patience: (self.is_hurried && random.below(8) == 0).then(|| random.below(patience)),
            runs: random.below(self.length / 4 + 1),
            ends: ends(cost, random),
            returns: random.below(4) == 0,
            descriptors: 0,
            has_facts: true,
            brings: None,
        };
        if setting.has_trees() {
            described(ask, setting, random)
        } else {
            ask
        }
    }
}

/// The same request with descriptors, most often with all that the trees know.
fn described(ask: Request, setting: &ScenarioSettings, random: &mut Random) -> Request {
    let leaves = setting.leaves();
    let descriptors = match random.below(6) {
        0 => 0,
        1 => leaves & u8::try_from(random.below(256)).unwrap_or(0),
        _ => leaves,
    };
    let brings = setting.most_cost() + random.below(20);
    Request {
        descriptors,
        has_facts: descriptors == 0 || random.below(5) > 0,
        // A waiting request may be decided when another version is in force.
        brings: (setting.longest_wait() == 0 && random.below(4) == 0).then_some(brings),
        ..ask
    }
}

/// Less than the estimate, as much, or more.
fn ends(cost: u64, random: &mut Random) -> FinalCost {
    match random.below(8) {
        0 => FinalCost::Unsaid,
        1 => FinalCost::Cancelled,
        2..=3 => FinalCost::Cost(cost),
        4 => FinalCost::Cost(cost + 1 + random.below(cost)),
        _ => FinalCost::Cost(random.below(cost + 1)),
    }
}
