//! The setting of a scenario: nodes, clients and rules.

use std::fmt;
use std::fmt::Write as _;

use super::{CountingChoice, FaultType, Rule};
use crate::traffic::Random;
use crate::world::Weather;

/// The setting of a scenario: nodes, clients and rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioSettings {
    /// The number of nodes.
    pub nodes: usize,
    /// The shards of the store: a cluster if there are several.
    pub shards: usize,
    /// The number of clients.
    pub keys: u64,
    /// The rules, which apply to all clients or to one.
    pub rules: Vec<Rule>,
    /// The number of versions of the policy.
    pub versions: usize,
    /// How long a decision waits for the store, in milliseconds.
    pub timeout: u64,
    /// The longest time of a command or a reply without faults, in microseconds: far less than the timeout.
    pub delay: u64,
    /// The lease duration of each node, in milliseconds.
    pub lease_life: Vec<u64>,
    /// A node leases at most the burst divided by this.
    pub lease_part: u64,
    /// How long a permit lasts without a renewal, in milliseconds.
    pub slot_life: u64,
    /// Whether nodes remember denials.
    pub remembers: bool,
    /// Whether nodes learn their number, instead of having it configured.
    pub learns: bool,
    /// Whether requests come through the middleware, and not to the engine itself.
    pub is_guarded: bool,
    /// Whether the trees charge each limit by itself.
    pub charges_each: bool,
    /// The client that is blocked, if any.
    pub blocked: Option<usize>,
    /// Whether the nodes have no store, and count in memory by local rules.
    pub is_in_memory: bool,
    /// The kinds of faults.
    pub troubles: Vec<FaultType>,
}

impl ScenarioSettings {
    pub(super) fn new(random: &mut Random) -> Self {
        // One node allows the strictest checks.
        let nodes = random.pick(&[1, 1, 1, 2, 2, 3, 3, 4]);
        let versions = match random.below(3) {
            0 => 2 + usize::try_from(random.below(2)).unwrap_or(0),
            _ => 1,
        };
        let rules = 1 + random.below(4) / 3;
        let lives = [500, 1_000, 4_000];
        let life = random.pick(&lives);
        let differ = random.below(2) == 0;
        let lease_life = (0..nodes).map(|_| if differ { random.pick(&lives) } else { life });
        let lease_life = lease_life.collect();
        let troubles = match random.below(12) {
            // No faults.
            0..=2 => Vec::new(),
            // The most common of all.
            3..=4 => vec![FaultType::Away],
            // One kind alone.
            5..=7 => vec![random.pick(&FaultType::ALL)],
            // A dead node can't release what it held when the clock has stepped.
            8 => vec![FaultType::Clock, FaultType::Deaths],
            // All kinds.
            _ => FaultType::ALL
                .into_iter()
                .filter(|_| random.below(2) == 0)
                .collect(),
        };
        let timeout = random.pick(&[5, 25, 100]);
        // Time advances by whole milliseconds here.
        let delay = 1_000 * random.below(1 + timeout / 20);
        let delay = match troubles[..] {
            // A starved node has something in flight.
            [FaultType::Starved] => delay.max(1_000 * (timeout / 20).min(1)),
            // Without delays, decisions can be checked to the microsecond.
            [] if random.below(2) == 0 => 0,
            _ => delay,
        };
        Self {
            nodes,
            shards: if random.below(5) == 0 { 3 } else { 1 },
            keys: 1 + random.below(2),
            rules: (0..rules)
                .map(|_| Rule::new(versions, &troubles, random))
                .collect(),
            versions,
            timeout,
            delay,
            lease_life,
            lease_part: random.pick(&[2, 4, 10]),
            slot_life: 1_000 + random.below(3_000),
            remembers: random.below(2) == 0,
            learns: random.below(3) == 0,
            is_guarded: false,
            charges_each: false,
            blocked: None,
            is_in_memory: false,
            troubles,
        }
    }

    pub(super) fn versions_u64(&self) -> u64 {
        u64::try_from(self.versions).unwrap_or(1)
    }

    pub(super) fn some_node(&self, random: &mut Random) -> usize {
        usize::try_from(random.below(self.nodes as u64)).unwrap_or(0)
    }

    /// The network without faults.
    pub fn weather(&self) -> Weather {
        Weather {
            delay: self.delay,
            ..Weather::default()
        }
    }

    /// The duration of a scenario in microseconds: several times what the slowest rule takes to drain.
    pub(super) fn length(&self, random: &mut Random) -> u64 {
        let longest = self.rules.iter().map(Rule::drains).max().unwrap_or(1);
        let longest = longest.min(20_000_000);
        longest / 2 + random.below(3 * longest) + 1_000
    }

    /// Sometimes one of several clients is denied more than others: by a rule of its own, beside a leased one
    /// for all.
    pub(super) fn add_denied(&mut self, random: &mut Random) {
        if random.below(4) > 0 {
            return;
        }
        self.keys = self.keys.max(2);
        self.rules.truncate(1);
        let all = Rule::leased_for_all(self.versions, random);
        self.rules[0].only = Some(0);
        self.rules[0].is_shared = false;
        let place = usize::try_from(random.below(2)).unwrap_or(0);
        self.rules.insert(place, all);
    }

    /// In many scenarios trees exist beside the rules: exact and leased, in a store or in one node's memory.
    pub(super) fn add_trees(&mut self, random: &mut Random) {
        if self.is_guarded || random.below(2) == 0 {
            return;
        }
        if self.troubles.len() <= 1 && random.below(3) == 0 {
            self.count_in_memory();
        }
        for _ in 0..1 + random.below(2) {
            let leaf = Rule::of_tree(self.versions, &self.troubles, random);
            self.rules.push(leaf);
        }
        if self.is_in_memory {
            self.rules
                .iter_mut()
                .for_each(|rule| rule.counted = CountingChoice::Local);
        }
        // A decision without the store doesn't report each limit, and waiting requests were charged long
        // before.
        let is_simple = self.troubles.is_empty() || self.troubles == [FaultType::Operator];
        self.charges_each = is_simple && self.longest_wait() == 0 && random.below(3) == 0;
        let last = usize::try_from(self.keys - 1).unwrap_or(0);
        self.blocked = (last > 0 && random.below(6) == 0).then_some(last);
    }

    /// One node counts for itself; only its own death or suspension is a fault for it.
    fn count_in_memory(&mut self) {
        (self.nodes, self.shards, self.is_in_memory) = (1, 1, true);
        self.troubles
            .retain(|trouble| matches!(trouble, FaultType::Starved | FaultType::Deaths));
    }

    /// Whether there are trees beside the rules.
    pub fn has_trees(&self) -> bool {
        self.leaves() != 0
    }

    /// The limits of trees, as bits by their numbers.
    pub fn leaves(&self) -> u8 {
        self.flag_bits(|rule| rule.leaf.is_some())
    }

    /// A version's limits of trees that may deny.
    pub fn leaves_in_force(&self, version: usize) -> u8 {
        self.flag_bits(|rule| rule.leaf.is_some() && !rule.is_shadow() && rule.is_in(version))
    }

    fn flag_bits(&self, is_one: impl Fn(&Rule) -> bool) -> u8 {
        let rules = self.rules.iter().enumerate();
        let bits = rules
            .filter(|(_, rule)| is_one(rule))
            .map(|(number, _)| 1 << number);
        bits.fold(0, |all, bit: u8| all | bit)
    }

    /// Sometimes a version of the policy lacks one of its rules, which returns with the next.
    pub(super) fn take_away_a_rule(&mut self, random: &mut Random) {
        if self.versions < 2 || random.below(3) > 0 {
            return;
        }
        let index = |random: &mut Random, end: usize| {
            usize::try_from(random.below(end as u64)).unwrap_or(0)
        };
        let (rule, version) = (
            index(random, self.rules.len()),
            index(random, self.versions),
        );
        self.rules[rule].versions[version].clear();
    }

    /// The longest time that a request waits, in microseconds.
    pub fn longest_wait(&self) -> u64 {
        let waits = self.rules.iter().filter_map(|rule| rule.waits);
        1_000 * waits.max().unwrap_or(0)
    }

    /// A cost that every version of every rule admits.
    pub fn most_cost(&self) -> u64 {
        let amounts = self.rules.iter().flat_map(Rule::amounts);
        amounts.map(|amount| amount.burst).min().unwrap_or(1).max(1)
    }

    /// A version of the policy, in its syntax.
    pub fn policy(&self, version: usize) -> String {
        let mut text = String::new();
        if let Some(blocked) = self.blocked {
            let _ = writeln!(text, "block: [{{key: \"{blocked}\"}}]");
        }
        text.push_str("limits:\n");
        let rules = self.rules.iter().enumerate();
        let is_there = |rule: &Rule| rule.leaf.is_none() && rule.is_in(version);
        let mut rules = rules.filter(|(_, rule)| is_there(rule)).peekable();
        if rules.peek().is_none() {
            // A policy needs a rule, and this one matches no client.
            text.push_str("- {name: nobody, match: {key: nobody}, rate: 1/h}\n");
        }
        for (number, rule) in rules {
            let key = if rule.is_shared { "all" } else { "key" };
            let (matches, cost) = (rule.matches(), rule.cost());
            // Writing to a `String` can't fail.
            let _ = write!(text, "- {{name: r{number}, key: {key}, {matches}{cost}");
            let _ = writeln!(text, "{}}}", rule.limit(version, self.is_in_memory));
        }
        text
    }

    /// The trees of a version of the policy, in their syntax.
    pub fn trees(&self, version: usize) -> String {
        let charging = if self.charges_each {
            "each"
        } else {
            "all-or-none"
        };
        let mut text = format!("domain: edge\ncharging: {charging}\ndescriptors:\n");
        for (number, rule) in self.rules.iter().enumerate() {
            let Some(leaf) = rule.leaf.filter(|_| rule.is_in(version)) else {
                continue;
            };
            let shadow = if leaf.is_shadow {
                "shadow_mode: true, "
            } else {
                ""
            };
            let limit = rule.limit_of_leaf(version, self.is_in_memory);
            // Writing to a `String` can't fail.
            let _ = writeln!(
                text,
                "- {{key: r{number}, {shadow}rate_limit: {{{limit}}}}}"
            );
        }
        text
    }
}

impl fmt::Display for ScenarioSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            nodes,
            shards,
            timeout,
            delay,
            lease_life,
            lease_part,
            slot_life,
            remembers,
            learns,
            is_guarded,
            is_in_memory,
            troubles,
            ..
        } = self;
        write!(
            f,
            "{nodes} nodes, {shards} shards, timeout {timeout} ms, delay {delay} µs, "
        )?;
        write!(
            f,
            "leases {lease_life:?} ms of 1/{lease_part}, slots {slot_life} ms, "
        )?;
        writeln!(
            f,
            "remembers {remembers}, learns {learns}, guarded {is_guarded}, in memory {is_in_memory}, {troubles:?}"
        )?;
        for version in 0..self.versions {
            write!(f, "version {version}, {}", self.policy(version))?;
            if self.has_trees() {
                f.write_str(&self.trees(version))?;
            }
        }
        Ok(())
    }
}
