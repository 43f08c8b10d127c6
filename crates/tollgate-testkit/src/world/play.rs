//! Plays a story, on one thread and on a clock of its own, and keeps what came of it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::sleep_until;
use tollgate_core::{Decision, Outcome};
use tollgate_engine::Facts;
use tollgate_engine::policy::OnStoreFailure;
use tollgate_engine::verdict::Cause;
use tollgate_redis::simulation::{Paced, World};

use super::network::{StoreState, Universe, Weather};
use super::node::{Life, Node};
use super::store::Condition;
use super::story::{Ask, Event, Keeps, Setting, Story};
use super::{Call, Counts};
use crate::traffic::Random;

/// What came of a story.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Requests that got an answer, in the order in which they did.
    pub answers: Vec<Told>,
    /// Which version of the policy a node had from when on.
    pub versions: Vec<(u64, usize, usize)>,
    /// What went wrong and when, as the checker has to know it.
    pub faults: Vec<(u64, Fault)>,
    /// When calls were carried out by the store, and for which node.
    pub carried_out: Vec<(u64, usize)>,
    /// When the story was over and all was quiet, and the last requests were made.
    pub quiet_at: u64,
    /// Keys that the store keeps in the end, and whether they end by themselves.
    pub keys: Vec<(String, bool)>,
    /// All calls of scripts, with the time told.
    pub calls: Vec<Call>,
    /// What the store did.
    pub counts: Counts,
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// The request.
    pub ask: Ask,
    /// Which life of its node.
    pub life: usize,
    /// When it asked.
    pub asked_at: u64,
    /// When it was told.
    pub at: u64,
    /// The version that it was judged by.
    pub version: usize,
    /// Whether it passed.
    pub allowed: bool,
    /// Who decided, if no store did.
    pub fallback: Option<OnStoreFailure>,
    /// What the rule that decided said.
    pub decision: Decision,
    /// Which rule that was, if one did.
    pub rule: Option<usize>,
    /// When it gave back what it held.
    pub ended_at: u64,
    /// It came back at the time that it had been told: of the answer with this number.
    pub returned: Option<usize>,
}

/// Something that a limit may suffer from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The store has forgotten something.
    Forgot,
    /// The store has forgotten what was written since this time.
    ForgotSince(u64),
    /// Its clock has stepped.
    Stepped(i64),
    /// A node was killed or frozen, or its clock stepped; or the store or the network was in trouble.
    Other,
    /// A node was started anew.
    Started,
}

/// A fleet in which nothing happens gives back what it holds in this time.
const SETTLES: u64 = 5_000_000;
/// After so long no circuit is open and no slot is held, beside what the rules take.
const QUIET: u64 = 90_000_000;

/// What a story is played on.
struct Stage {
    setting: Setting,
    universe: Arc<Universe>,
    nodes: Vec<Node>,
    lives: Vec<usize>,
    random: Random,
    record: Arc<Mutex<Record>>,
    replicated_at: u64,
}

/// Plays a story.
///
/// # Panics
/// If it isn't one that can be played.
pub fn play(story: &Story) -> Record {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let record = runtime.block_on(async {
        let mut stage = Stage::new(story);
        stage.perform(&story.events).await;
        stage.end().await
    });
    // What nodes left behind ends with it, and none of it counts.
    runtime.shutdown_background();
    record
}

impl Stage {
    fn new(story: &Story) -> Self {
        let universe = Universe::new(story.seed, story.setting.shards);
        let mut stage = Self {
            setting: story.setting.clone(),
            universe,
            nodes: Vec::new(),
            lives: vec![0; story.setting.nodes],
            random: Random::new(story.seed ^ 0x7374_6167_6500),
            record: Arc::new(Mutex::new(Record::new())),
            replicated_at: 0,
        };
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
        let life = Life::new(&self.universe, node, self.random.next());
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

    /// Lets everything happen when it does.
    async fn perform(&mut self, events: &[(u64, Event)]) {
        let mut due = Due::default();
        for (at, event) in events {
            while let Some((ends, relief)) = due.next(*at) {
                sleep_until(self.universe.at(ends)).await;
                self.relieve(relief);
            }
            sleep_until(self.universe.at(*at)).await;
            self.happen(event, &mut due);
        }
        while let Some((ends, relief)) = due.next(u64::MAX) {
            sleep_until(self.universe.at(ends)).await;
            self.relieve(relief);
        }
    }

    fn happen(&mut self, event: &Event, due: &mut Due) {
        let now = self.universe.now();
        if !matches!(event, Event::Ask(_) | Event::Reload { .. }) {
            self.fault(Fault::Other);
        }
        match event {
            Event::Ask(ask) => self.ask(*ask, None),
            Event::Reload { node, version } => {
                let own = &mut self.nodes[*node];
                if !own.life.is_dead() {
                    own.reload(&self.setting, *version);
                    let entry = (now, *node, *version);
                    self.note(|record| record.versions.push(entry));
                }
            }
            Event::Freeze { node, micros } => {
                self.nodes[*node].life.freeze();
                due.add(now + micros, Relief::Thaw(*node));
            }
            Event::Restart { node, micros } => {
                self.nodes[*node].life.die();
                due.add(now + micros, Relief::Start(*node));
            }
            Event::WallSteps { node, by } => self.nodes[*node].life.step(*by),
            Event::Weather(weather) => self.universe.set_weather(*weather),
            Event::Apart { nodes, micros } => {
                self.universe.set_apart(nodes.clone());
                due.add(now + micros, Relief::Together);
            }
            Event::StoreStops { micros } => {
                self.universe.set_state(StoreState::Stopped);
                due.add(now + micros, Relief::Up);
            }
            Event::StoreDies { micros, keeps } => {
                self.universe.set_state(StoreState::Down);
                self.lose(*keeps);
                due.add(now + micros, Relief::Up);
            }
            Event::StoreAils { condition, micros } => {
                self.universe
                    .each_store(|store, _| store.set_condition(*condition));
                due.add(now + micros, Relief::Well);
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
        }
    }

    fn lose(&mut self, keeps: Keeps) {
        match keeps {
            Keeps::All => self.universe.each_store(|store, _| store.flush_scripts()),
            Keeps::Nothing => {
                self.universe.each_store(|store, _| store.restart_empty());
                self.fault(Fault::Forgot);
            }
            Keeps::Replicated => {
                self.universe.each_store(|store, _| store.fail_over());
                self.fault(Fault::ForgotSince(self.replicated_at));
            }
        }
    }

    fn relieve(&mut self, relief: Relief) {
        self.fault(Fault::Other);
        match relief {
            Relief::Thaw(node) => self.nodes[node].life.thaw(),
            Relief::Start(node) => {
                if self.nodes[node].life.is_dead() {
                    let version = self.nodes[node].version;
                    self.lives[node] += 1;
                    self.fault(Fault::Started);
                    self.nodes[node] = self.start(node, version);
                }
            }
            Relief::Together => self.universe.set_apart(Vec::new()),
            Relief::Up => self.universe.set_state(StoreState::Up),
            Relief::Well => {
                self.universe
                    .each_store(|store, _| store.set_condition(Condition::Well));
            }
        }
    }

    /// Someone asks a node, if it lives.
    fn ask(&self, ask: Ask, returned: Option<usize>) {
        let node = &self.nodes[ask.node];
        if node.life.is_dead() {
            return;
        }
        let world: Arc<dyn World> = Arc::<Life>::clone(&node.life);
        let asking = Asking {
            ask,
            life: self.lives[ask.node],
            version: node.version,
            asked_at: self.universe.now(),
            universe: Arc::clone(&self.universe),
            record: Arc::clone(&self.record),
            engine: Arc::clone(&node.engine),
            returned,
        };
        tokio::spawn(Paced::new(world, asking.run()));
    }

    async fn settle(&self) {
        sleep_until(self.universe.at(self.universe.now() + SETTLES)).await;
    }

    /// Everyone asks, one after the other, for what this makes of the bursts in force.
    async fn ask_by_each(&self, cost: impl Fn(Vec<u64>) -> u64) {
        // What all share is for the first alone.
        let is_shared = self.setting.rules.iter().any(|rule| rule.is_shared);
        let keys = if is_shared { 1 } else { self.setting.keys };
        for who in 0..usize::try_from(keys).unwrap_or(1) {
            let node = who % self.nodes.len();
            let version = self.nodes[node].version;
            let bursts = self
                .setting
                .rules
                .iter()
                .map(|rule| rule.amounts[version].burst);
            let ask = Ask {
                node,
                who,
                cost: cost(bursts.collect()),
                patience: None,
                runs: 0,
                returns: false,
            };
            self.ask(ask, None);
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    /// All is well, and after a while all is quiet: then everyone may have all there is.
    async fn end(mut self) -> Record {
        self.universe.set_weather(Weather::default());
        self.universe.set_apart(Vec::new());
        self.universe.set_state(StoreState::Up);
        self.universe
            .each_store(|store, _| store.set_condition(Condition::Well));
        for node in 0..self.nodes.len() {
            self.nodes[node].life.thaw();
            if self.nodes[node].life.is_dead() {
                self.relieve(Relief::Start(node));
            }
        }
        let drains = self.setting.rules.iter().map(super::story::Rule::drains);
        let quiet_at = self.universe.now() + drains.max().unwrap_or(0) + QUIET;
        self.note(|record| record.quiet_at = quiet_at);
        self.settle().await;
        // What a clock was ahead of is seen once somebody asks, and is over in a bucket's time from then on.
        self.ask_by_each(|_| 1).await;
        self.settle().await;
        // They would only look at their clocks.
        self.nodes.iter().for_each(|node| node.life.freeze());
        sleep_until(self.universe.at(quiet_at - SETTLES)).await;
        self.nodes.iter().for_each(|node| node.life.thaw());
        sleep_until(self.universe.at(quiet_at)).await;
        self.ask_by_each(|amounts| amounts.into_iter().min().unwrap_or(1))
            .await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let carried_out = self.universe.carried_out();
        let mut keys = Vec::new();
        let mut counts = Counts::default();
        self.universe.each_store(|store, _| {
            let own = store.counts();
            counts.calls += own.calls;
            counts.scripts += own.scripts;
            counts.commands += own.commands;
            for key in store.keys() {
                let ends = store.expires_at(&key).is_some();
                keys.push((String::from_utf8_lossy(&key).into_owned(), ends));
            }
        });
        let calls = self.universe.recorded();
        self.note(|record| Record {
            carried_out,
            keys,
            calls,
            counts,
            ..std::mem::replace(record, Record::new())
        })
    }
}

impl Record {
    fn new() -> Self {
        Self {
            answers: Vec::new(),
            versions: Vec::new(),
            faults: Vec::new(),
            carried_out: Vec::new(),
            quiet_at: 0,
            keys: Vec::new(),
            calls: Vec::new(),
            counts: Counts::default(),
        }
    }
}

/// A request on its way.
struct Asking {
    ask: Ask,
    life: usize,
    version: usize,
    asked_at: u64,
    universe: Arc<Universe>,
    record: Arc<Mutex<Record>>,
    engine: Arc<tollgate_engine::Engine<tollgate_redis::Redis>>,
    returned: Option<usize>,
}

impl Asking {
    async fn run(mut self) {
        let mut wait = self.once().await;
        // Who was told when to come back does so, once.
        if let Some((number, after)) = wait.take() {
            tokio::time::sleep(after).await;
            if self.note(|record| record.quiet_at > 0) {
                return;
            }
            self.asked_at = self.universe.now();
            self.returned = Some(number);
            self.ask.returns = false;
            self.once().await;
        }
    }

    /// Asks once. Returns what it was told, if it is to come back: by which answer, and after how long.
    async fn once(&self) -> Option<(usize, Duration)> {
        let (who, cost) = (self.ask.who.to_string(), self.ask.cost.to_string());
        let facts = Facts::new()
            .with("who", &who)
            .with("cost", &cost)
            .with("all", "all");
        let deciding = self.engine.decide_by(&facts);
        let verdict = match self.ask.patience {
            None => deciding.await,
            Some(micros) => {
                let patience = Duration::from_micros(micros);
                tokio::time::timeout(patience, deciding).await.ok()?
            }
        };
        let verdict = match verdict {
            Ok(verdict) => verdict,
            Err(never) => match never {},
        };
        let at = self.universe.now();
        let rule = match verdict.cause() {
            Cause::Rule(name) | Cause::StoreFailure(name) => name[1..].parse().ok(),
            _ => None,
        };
        let told = Told {
            ask: self.ask,
            life: self.life,
            asked_at: self.asked_at,
            at,
            version: self.version,
            allowed: verdict.is_allowed(),
            fallback: verdict.fallback(),
            decision: *verdict.decision(),
            rule,
            ended_at: at,
            returned: self.returned,
        };
        let number = self.note(|record| {
            record.answers.push(told);
            record.answers.len() - 1
        });
        if told.allowed {
            let permits = verdict.into_permits();
            tokio::time::sleep(Duration::from_micros(self.ask.runs)).await;
            drop(permits);
            let ended_at = self.universe.now();
            self.note(|record| record.answers[number].ended_at = ended_at);
            return None;
        }
        let wait = told.decision.retry_after;
        let comes = self.ask.returns && told.decision.outcome == Outcome::Denied;
        (comes && wait < Duration::from_secs(120)).then_some((number, wait))
    }

    fn note<R>(&self, note: impl FnOnce(&mut Record) -> R) -> R {
        note(&mut self.record.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What ends by itself.
#[derive(Clone, Copy, Debug)]
enum Relief {
    Thaw(usize),
    Start(usize),
    Together,
    Up,
    Well,
}

/// What ends when, in order.
#[derive(Debug, Default)]
struct Due(Vec<(u64, Relief)>);

impl Due {
    fn add(&mut self, at: u64, relief: Relief) {
        let place = self.0.partition_point(|(other, _)| *other <= at);
        self.0.insert(place, (at, relief));
    }

    /// The next that is due until a time.
    fn next(&mut self, until: u64) -> Option<(u64, Relief)> {
        match self.0.first() {
            Some((at, _)) if *at <= until => Some(self.0.remove(0)),
            _ => None,
        }
    }
}
