//! Runs a scenario, on one thread with a simulated clock, and keeps a record.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::sleep_until;
use tollgate_redis::simulation::{SuspendableTask, World};

use super::Counts;
use super::network::{SimulatedNetwork, StoreState};
use super::node::{Fleet, Node, NodeProcess};
use super::scenario::{
    CountingChoice, Event, FinalCost, KeptData, LimitSort, RefundEvent, Request, Rule, Scenario,
    ScenarioSettings,
};
use super::store::StoreCondition;
use crate::traffic::Random;

mod decisions;
mod record;
mod requests;
mod schedule;

pub use record::{
    Fault, Record, RecordedRefund, RecordedTally, ReportedDecision, UnansweredRequest,
};
use requests::RequestTask;
use schedule::{FaultEnd, Schedule};

/// A quiet fleet returns its leases within this time.
const SETTLE_TIME: u64 = 5_000_000;
/// After this long no circuit is open and no permit is held, in addition to the time of the rules.
const QUIET_TIME: u64 = 90_000_000;

/// The state of a running scenario.
struct Simulation {
    setting: Arc<ScenarioSettings>,
    universe: Arc<SimulatedNetwork>,
    nodes: Vec<Node>,
    lives: Vec<usize>,
    random: Random,
    record: Arc<Mutex<Record>>,
    replicated_at: u64,
}

/// Runs a scenario.
///
/// # Panics
/// If it can't be run.
pub fn run_scenario(story: &Scenario) -> Record {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let record = runtime.block_on(async {
        let mut stage = Simulation::new(story);
        stage.perform(&story.events).await;
        stage.finish().await
    });
    // Tasks that nodes left behind end with the runtime, and don't count.
    runtime.shutdown_background();
    record
}

impl Simulation {
    fn new(story: &Scenario) -> Self {
        let universe = SimulatedNetwork::new(story.seed, story.setting.shards);
        let mut stage = Self {
            setting: Arc::new(story.setting.clone()),
            universe,
            nodes: Vec::new(),
            lives: vec![0; story.setting.nodes],
            random: Random::new(story.seed ^ 0x7374_6167_6500),
            record: Arc::new(Mutex::new(Record::new())),
            replicated_at: 0,
        };
        stage.universe.set_weather(story.setting.weather());
        for node in 0..story.setting.nodes {
            // Old and new processes from the beginning.
            let version = stage.random.below(story.setting.versions as u64);
            let version = usize::try_from(version).unwrap_or(0);
            let started = stage.start(node, version);
            stage.nodes.push(started);
        }
        stage
    }

    fn start(&mut self, node: usize, version: usize) -> Node {
        let life = NodeProcess::new(&self.universe, node, self.random.next());
        let now = self.universe.now();
        self.note(|record| record.versions.push((now, node, version)));
        Node::start(life, &self.setting, (node, version))
    }

    fn note<R>(&self, note: impl FnOnce(&mut Record) -> R) -> R {
        note(&mut self.record.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn fault(&self, fault: Fault) {
        let now = self.universe.now();
        self.note(|record| record.faults.push((now, fault)));
    }

    /// Performs each event at its time.
    async fn perform(&mut self, events: &[(u64, Event)]) {
        let mut due = Schedule::default();
        for (at, event) in events {
            while let Some((ends, relief)) = due.next(*at) {
                sleep_until(self.universe.at(ends)).await;
                self.end_fault(relief);
            }
            sleep_until(self.universe.at(*at)).await;
            self.apply_fault(event, &mut due);
        }
        while let Some((ends, relief)) = due.next(u64::MAX) {
            sleep_until(self.universe.at(ends)).await;
            self.end_fault(relief);
        }
    }

    fn apply_fault(&mut self, event: &Event, due: &mut Schedule) {
        let now = self.universe.now();
        match event {
            Event::Ask(_) | Event::Reload { .. } | Event::Gives(_) => {}
            Event::Freeze { node, .. } => self.fault(Fault::Frozen(*node)),
            _ => self.fault(Fault::Other),
        }
        match event {
            Event::Ask(ask) => self.start_request(*ask),
            Event::Reload { node, version } => self.reload(*node, *version),
            Event::Freeze { node, micros } => {
                self.nodes[*node].life.freeze();
                due.add(now + micros, FaultEnd::Thaw(*node));
            }
            Event::Restart { node, micros } => {
                self.nodes[*node].life.kill();
                due.add(now + micros, FaultEnd::Start(*node));
            }
            Event::WallSteps { node, by } => self.nodes[*node].life.step(*by),
            Event::Weather(weather) => self.universe.set_weather(*weather),
            Event::Apart { nodes, micros } => {
                self.universe.set_apart(nodes.clone());
                due.add(now + micros, FaultEnd::Together);
            }
            Event::StoreStops { micros } => {
                self.universe.set_state(StoreState::Stopped);
                due.add(now + micros, FaultEnd::Up);
            }
            Event::StoreDies { micros, keeps } => {
                self.universe.set_state(StoreState::Down);
                self.lose_data(*keeps);
                due.add(now + micros, FaultEnd::Up);
            }
            Event::StoreAils { condition, micros } => {
                self.universe
                    .each_store(|store, _| store.set_condition(*condition));
                due.add(now + micros, FaultEnd::Well);
            }
            Event::StoreSteps { by } => {
                self.universe.step(*by);
                self.fault(Fault::Stepped(*by));
            }
            Event::Replicates => {
                self.replicated_at = now;
                self.universe.each_store(|store, _| store.replicate());
            }
            Event::ScriptsFlushed => self.universe.each_store(|store, _| store.flush_scripts()),
            Event::Expires => {
                let choice = self.random.next();
                self.universe
                    .each_store(|store, now| store.expire_some(now, choice));
            }
            Event::Evicts => {
                let choice = self.random.next();
                self.universe
                    .each_store(|store, _| drop(store.evict(choice)));
                self.fault(Fault::Forgot);
            }
            Event::Gives(gift) => self.refund(*gift),
        }
    }

    /// Gives a live node this version of the policy.
    fn reload(&mut self, node: usize, version: usize) {
        if !self.nodes[node].life.is_dead() {
            self.nodes[node].reload(version);
            let entry = (self.universe.now(), node, version);
            self.note(|record| record.versions.push(entry));
        }
    }

    fn lose_data(&mut self, keeps: KeptData) {
        match keeps {
            KeptData::All => self.universe.each_store(|store, _| store.flush_scripts()),
            KeptData::Nothing => {
                self.universe.each_store(|store, _| store.restart_empty());
                self.fault(Fault::Forgot);
            }
            KeptData::Replicated => {
                self.universe.each_store(|store, _| store.fail_over());
                self.fault(Fault::ForgotSince(self.replicated_at));
            }
        }
    }

    fn end_fault(&mut self, relief: FaultEnd) {
        self.fault(match relief {
            FaultEnd::Thaw(node) => Fault::Frozen(node),
            _ => Fault::Other,
        });
        match relief {
            FaultEnd::Thaw(node) => self.nodes[node].life.unfreeze(),
            FaultEnd::Start(node) => {
                if self.nodes[node].life.is_dead() {
                    let version = self.nodes[node].version();
                    self.note_counts(node);
                    self.lives[node] += 1;
                    self.fault(Fault::Started);
                    self.nodes[node] = self.start(node, version);
                }
            }
            FaultEnd::Together => self.universe.set_apart(Vec::new()),
            FaultEnd::Up => self.universe.set_state(StoreState::Up),
            FaultEnd::Well => {
                self.universe
                    .each_store(|store, _| store.set_condition(StoreCondition::Well));
            }
        }
    }

    /// Records the counters of a node's process.
    fn note_counts(&self, node: usize) {
        let counted = self.nodes[node].engine.tallied(node, self.lives[node]);
        self.note(|record| record.counted.push(counted));
    }

    /// Sends a request to a node, if it is alive.
    fn start_request(&self, ask: Request) {
        let node = &self.nodes[ask.node];
        if node.life.is_dead() {
            return;
        }
        let world: Arc<dyn World> = Arc::<NodeProcess>::clone(&node.life);
        let asking = RequestTask::new(
            ask,
            self.lives[ask.node],
            node,
            &self.universe,
            &self.record,
        );
        tokio::spawn(SuspendableTask::new(world, asking.run()));
    }

    /// Refunds something through a node, if it is alive.
    fn refund(&self, gift: RefundEvent) {
        let (node, from) = (&self.nodes[gift.node], self.universe.now());
        let rule = &self.setting.rules[gift.rule];
        let is_absent = !rule.is_in(node.version());
        if node.life.is_dead()
            || is_absent
            || rule.is_shared
            || rule.counted == CountingChoice::Local
        {
            return;
        }
        let is_of_tree = rule.leaf.is_some();
        if is_of_tree && rule.sort == LimitSort::Slots {
            return;
        }
        let (gift, from, to) = (gift, from, None);
        let number = self.note(|record| {
            record.gifts.push(RecordedRefund { gift, from, to });
            record.gifts.len() - 1
        });
        let limiters = if is_of_tree {
            Vec::new()
        } else {
            node.limiters(gift.rule)
        };
        let (engine, life) = (node.engine.clone(), self.lives[gift.node]);
        let (record, universe) = (Arc::clone(&self.record), Arc::clone(&self.universe));
        let giving = async move {
            let mut is_given = true;
            if let (true, Fleet::Store(engine)) = (is_of_tree, &engine) {
                is_given = decisions::refund(engine, gift).await;
                if gift.units.is_some() {
                    let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
                    record.refunds.push((gift.node, life));
                }
            }
            for limiter in limiters {
                let who = gift.who.to_string();
                is_given &= match gift.units {
                    Some(units) => limiter.refund(&who, units).await.is_ok(),
                    None => limiter.reset(&who).await.is_ok(),
                };
            }
            // Before any other node writes to it.
            look_at_keys(&universe, &record);
            if is_given {
                let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
                record.gifts[number].to = Some(universe.now());
            }
        };
        let world: Arc<dyn World> = Arc::<NodeProcess>::clone(&node.life);
        tokio::spawn(SuspendableTask::new(world, giving));
    }

    async fn settle(&self) {
        sleep_until(self.universe.at(self.universe.now() + SETTLE_TIME)).await;
    }

    /// Advances the time without requests.
    async fn advance_to(&self, at: u64) {
        self.settle().await;
        // The nodes would only poll their clocks.
        self.nodes.iter().for_each(|node| node.life.freeze());
        sleep_until(self.universe.at(at - SETTLE_TIME)).await;
        self.nodes.iter().for_each(|node| node.life.unfreeze());
        sleep_until(self.universe.at(at)).await;
    }

    /// Makes a request for every client, one after the other, for the cost that `cost` makes of the burst in
    /// force.
    async fn request_from_each_node(&self, cost: impl Fn(u64) -> u64) {
        // A limit that all clients share is requested by the first client alone.
        let is_shared = self.setting.rules.iter().any(|rule| rule.is_shared);
        let keys = if is_shared { 1 } else { self.setting.keys };
        for who in 0..usize::try_from(keys).unwrap_or(1) {
            let node = who % self.nodes.len();
            let version = self.nodes[node].version();
            let rules = self.setting.rules.iter();
            let burst = rules.clone().filter_map(|rule| rule.burst(version)).min();
            // Permits one by one, and everything else with one request.
            let times = if rules.clone().all(|rule| rule.sort == LimitSort::Slots) {
                cost(burst.unwrap_or(1))
            } else {
                1
            };
            for _ in 0..times {
                self.start_request(Request {
                    node,
                    who,
                    cost: if times > 1 {
                        1
                    } else {
                        cost(burst.unwrap_or(1))
                    },
                    patience: None,
                    runs: 100_000,
                    ends: FinalCost::Unsaid,
                    returns: false,
                    descriptors: self.setting.leaves(),
                    has_facts: true,
                    brings: None,
                });
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    /// Ends all faults, and waits until all is quiet: then every client must be able to have its whole limit.
    async fn finish(mut self) -> Record {
        self.universe.set_weather(self.setting.weather());
        self.universe.set_apart(Vec::new());
        self.universe.set_state(StoreState::Up);
        self.universe
            .each_store(|store, _| store.set_condition(StoreCondition::Well));
        for node in 0..self.nodes.len() {
            self.nodes[node].life.unfreeze();
            if self.nodes[node].life.is_dead() {
                self.end_fault(FaultEnd::Start(node));
            }
        }
        let drains = self.setting.rules.iter().map(Rule::drains).max();
        let drains = drains.unwrap_or(0) + QUIET_TIME;
        let quiet_at = self.universe.now() + 2 * drains;
        self.note(|record| record.quiet_at = quiet_at);
        self.settle().await;
        look_at_keys(&self.universe, &self.record);
        // The next request notices that a clock was set back, and the effect lasts until a bucket has filled. A
        // node that remembers a denial queries the store only after that.
        self.request_from_each_node(|_| 1).await;
        self.advance_to(quiet_at - drains).await;
        self.request_from_each_node(|_| 1).await;
        self.advance_to(quiet_at).await;
        self.request_from_each_node(|burst| burst).await;
        let longest = Duration::from_micros(self.setting.longest_wait());
        tokio::time::sleep(Duration::from_secs(1) + longest).await;
        let waiting = self.nodes.iter().map(|node| node.engine.waiting()).sum();
        let (carried_out, exchanges) = (self.universe.carried_out(), self.universe.exchanges());
        look_at_keys(&self.universe, &self.record);
        let mut counts = Counts::default();
        self.universe.each_store(|store, _| {
            let own = store.counts();
            counts.calls += own.calls;
            counts.scripts += own.scripts;
            counts.commands += own.commands;
        });
        let calls = self.universe.recorded();
        (0..self.nodes.len()).for_each(|node| self.note_counts(node));
        self.note(|record| Record {
            carried_out,
            exchanges,
            calls,
            counts,
            waiting,
            ..std::mem::replace(record, Record::new())
        })
    }
}

/// Records the keys in the store, and whether they expire.
fn look_at_keys(universe: &SimulatedNetwork, record: &Mutex<Record>) {
    universe.each_store(|store, _| {
        let keys = store.keys().into_iter().map(|key| {
            let ends = store.expires_at(&key).is_some();
            (String::from_utf8_lossy(&key).into_owned(), ends)
        });
        let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
        record.keys.extend(keys);
    });
}
