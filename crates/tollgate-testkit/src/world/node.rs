//! A node of the fleet: the real engine and client, in a process that can be suspended, starved and killed.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::clock::{Clock, Wakeup};
use tollgate_core::Timestamp;
use tollgate_engine::backend::{LimitKind, Memory};
use tollgate_engine::counters::LimiterCounts;
use tollgate_engine::document::Format;
use tollgate_engine::policy::Rule;
use tollgate_engine::{Engine, Policy};
use tollgate_redis::simulation::{CancelWakeup, Connecting, World};
use tollgate_redis::{Redis, RedisLimiter};

use super::http_guard::{Guard, LastDecision};
use super::network::{EPOCH, SimulatedNetwork};
use super::scenario::ScenarioSettings;
use super::simulation::RecordedTally;
use crate::traffic::Random;

/// The origin of its clock: a time that can't be mistaken for another clock's.
const ORIGIN: Timestamp = Timestamp::from_secs(1_000_000);

/// More limiters than a policy has.
const TALLIES: usize = 20;

/// A process, from its start to its death.
pub(super) struct NodeProcess {
    universe: Arc<SimulatedNetwork>,
    node: usize,
    random: Mutex<Random>,
    /// The tasks that wait while it is frozen; `None` while it runs.
    frozen: Mutex<Option<Vec<Waker>>>,
    is_dead: AtomicBool,
    /// How far its wall clock is ahead, in microseconds.
    ahead: AtomicI64,
}

impl NodeProcess {
    pub(super) fn new(universe: &Arc<SimulatedNetwork>, node: usize, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            universe: Arc::clone(universe),
            node,
            random: Mutex::new(Random::new(seed)),
            frozen: Mutex::default(),
            is_dead: AtomicBool::new(false),
            ahead: AtomicI64::new(0),
        })
    }

    /// Freezes the process.
    pub(super) fn freeze(&self) {
        self.frozen().get_or_insert_default();
    }

    /// Resumes the process, with everything that became due in the meantime.
    pub(super) fn unfreeze(&self) {
        let waiting = self.frozen().take();
        waiting.into_iter().flatten().for_each(Waker::wake);
    }

    /// Freezes the process for ever.
    pub(super) fn kill(&self) {
        self.is_dead.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Relaxed)
    }

    pub(super) fn step(&self, by: i64) {
        self.ahead.fetch_add(by, Ordering::Relaxed);
    }

    fn frozen(&self) -> MutexGuard<'_, Option<Vec<Waker>>> {
        self.frozen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl World for NodeProcess {
    fn now(&self) -> Timestamp {
        ORIGIN + Duration::from_micros(self.universe.now())
    }

    fn wake_at(&self, at: Timestamp, waker: &Waker) -> CancelWakeup {
        let micros = (at - ORIGIN).as_nanos().div_ceil(1_000);
        let at = self.universe.at(u64::try_from(micros).unwrap_or(u64::MAX));
        let waker = waker.clone();
        // A timer runs on while the process is suspended.
        let waking = tokio::spawn(async move {
            tokio::time::sleep_until(at).await;
            waker.wake();
        });
        Box::new(move || waking.abort())
    }

    fn wall_now(&self) -> Timestamp {
        let micros =
            (EPOCH + self.universe.now()).saturating_add_signed(self.ahead.load(Ordering::Relaxed));
        Timestamp::from_nanos(micros.saturating_mul(1_000))
    }

    fn random(&self) -> u64 {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        random.next()
    }

    fn poll_is_running(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_dead() {
            return Poll::Pending;
        }
        match &mut *self.frozen() {
            Some(waiting) => {
                waiting.push(context.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }

    fn is_cluster(&self) -> bool {
        self.universe.is_cluster()
    }

    fn connect(&self) -> Connecting {
        let (universe, node) = (Arc::clone(&self.universe), self.node);
        Box::pin(async move { universe.connect(node).await })
    }
}

impl fmt::Debug for NodeProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Life")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

/// A process's clock: its monotonic one, or its wall clock.
#[derive(Clone, Debug)]
pub(super) struct NodeClock {
    life: Arc<NodeProcess>,
    is_wall: bool,
}

impl Clock for NodeClock {
    fn now(&self) -> Timestamp {
        if self.is_wall {
            self.life.wall_now()
        } else {
            World::now(&*self.life)
        }
    }

    fn schedule_wakeup(&self, at: Timestamp, waker: &Waker) -> Option<Wakeup> {
        Some(Wakeup::new(World::wake_at(&*self.life, at, waker)))
    }
}

/// A node's engine: with the fleet's store, or alone with counts in memory.
#[derive(Clone)]
pub(super) enum Fleet {
    Store(Arc<Engine<Redis>>),
    Memory(Arc<Engine<Memory<NodeClock, NodeClock>>>),
}

/// Does the same with an engine of any backend.
macro_rules! with_engine {
    ($fleet:expr, $engine:ident => $does:expr) => {
        match $fleet {
            Fleet::Store($engine) => $does,
            Fleet::Memory($engine) => $does,
        }
    };
}

impl Fleet {
    /// How many requests wait.
    pub(super) fn waiting(&self) -> usize {
        with_engine!(self, engine => engine.waiter_count())
    }

    /// The process's counters.
    pub(super) fn tallied(&self, node: usize, life: usize) -> RecordedTally {
        let (requests, tallies) =
            with_engine!(self, engine => (engine.requests(), engine.counters()));
        let of_rule = |tally: &LimiterCounts| {
            let name = tally
                .limiter
                .strip_prefix("edge/")
                .unwrap_or(&tally.limiter);
            let number = name.strip_prefix('r')?.parse().ok()?;
            Some((number, tally.allowed, tally.denied_total()))
        };
        RecordedTally {
            node,
            life,
            passed: requests.passed,
            denied: requests.denied,
            rules: tallies.iter().filter_map(of_rule).collect(),
        }
    }
}

/// A node that runs.
pub(super) struct Node {
    pub(super) life: Arc<NodeProcess>,
    pub(super) setting: Arc<ScenarioSettings>,
    pub(super) engine: Fleet,
    /// The middleware in front of it, if requests come through that.
    pub(super) guard: Option<Arc<Guard>>,
    /// The version of the policy in force.
    pub(super) version: Arc<AtomicUsize>,
}

impl Node {
    /// Starts a process.
    ///
    /// # Panics
    /// If the setting's policy is invalid.
    pub(super) fn start(
        life: Arc<NodeProcess>,
        setting: &Arc<ScenarioSettings>,
        (node, version): (usize, usize),
    ) -> Self {
        let seed = life.random();
        let policy = policy(setting, version);
        let (engine, guard) = if setting.is_in_memory {
            let clock = |is_wall| NodeClock {
                life: Arc::clone(&life),
                is_wall,
            };
            let memory = Memory::builder().clock(clock(false)).wall(clock(true));
            let engine = Engine::new(policy, memory.capacity(1_000).build());
            let engine = engine.expect("a policy").with_seed(seed);
            (Fleet::Memory(Arc::new(engine.with_counters(TALLIES))), None)
        } else {
            let engine = Engine::new(policy, redis(&life, setting, node)).expect("a policy");
            let engine = engine.with_seed(seed).with_counters(TALLIES);
            let (engine, guard) = if setting.is_guarded {
                let seen = LastDecision::default();
                let engine = Arc::new(engine.with_observer(seen.clone()));
                let guard = Guard::new(&engine, seen);
                (engine, Some(Arc::new(guard)))
            } else {
                (Arc::new(engine), None)
            };
            (Fleet::Store(engine), guard)
        };
        Self {
            engine,
            guard,
            life,
            setting: Arc::clone(setting),
            version: Arc::new(AtomicUsize::new(version)),
        }
    }

    pub(super) fn version(&self) -> usize {
        self.version.load(Ordering::Relaxed)
    }

    /// Puts another version of the policy in force.
    ///
    /// # Panics
    /// If the policy is invalid.
    pub(super) fn reload(&mut self, version: usize) {
        let policy = policy(&self.setting, version);
        let reloaded = with_engine!(&self.engine, engine => engine.reload(policy));
        reloaded.expect("a policy");
        self.version.store(version, Ordering::Relaxed);
    }

    /// The limits of a rule, for an operator to act on; empty if the version in force doesn't have the rule.
    ///
    /// # Panics
    /// If the setting's policy is invalid.
    pub(super) fn limiters(&self, rule: usize) -> Vec<RedisLimiter> {
        let Fleet::Store(engine) = &self.engine else {
            return Vec::new();
        };
        let policy = policy(&self.setting, self.version());
        let name = format!("r{rule}");
        let Some(Rule {
            limits, algorithm, ..
        }) = policy.rules.iter().find(|rule| rule.name == name)
        else {
            return Vec::new();
        };
        let rates = limits.rates.iter().map(|rate| LimitKind::Rate {
            rate: *rate,
            algorithm: *algorithm,
        });
        let kinds = rates
            .chain(limits.quota.clone().map(LimitKind::Quota))
            .chain(limits.concurrency.map(LimitKind::Concurrency));
        let limiters = kinds.map(|kind| {
            let limiter = engine
                .backend()
                .limiter_with_kind(&format!("rule/r{rule}"), kind);
            // Held costs of an estimated limit are tracked as leases are.
            let limiter = if self.setting.rules[rule].has_leases() {
                limiter.leased()
            } else {
                limiter
            };
            limiter.build().expect("a limit that the engine has taken")
        });
        limiters.collect()
    }
}

/// A node's client of the store.
fn redis(life: &Arc<NodeProcess>, setting: &ScenarioSettings, node: usize) -> Redis {
    let world: Arc<dyn World> = Arc::<NodeProcess>::clone(life);
    let builder = Redis::builder("redis://127.0.0.1").expect("a place, which isn't used");
    let builder = if setting.learns {
        builder
    } else {
        builder.node_count(u64::try_from(setting.nodes).unwrap_or(1))
    };
    let builder = builder
        .deny_cache(if setting.remembers { 10_000 } else { 0 })
        .timeout(Duration::from_millis(setting.timeout))
        .lease_divisor(setting.lease_part)
        .lease_duration(Duration::from_millis(setting.lease_life[node]))
        .permit_ttl(Duration::from_millis(setting.slot_life))
        .simulated(world);
    builder.build().expect("a runtime")
}

/// A version of the policy: rules, and trees beside them if there are any.
fn policy(setting: &ScenarioSettings, version: usize) -> Policy {
    let mut policy = read(&setting.policy(version));
    if setting.has_trees() {
        policy.domains = read(&setting.trees(version)).domains;
    }
    policy
}

fn read(text: &str) -> Policy {
    match Policy::from_text(text, Format::Yaml) {
        Ok(checked) => checked.policy,
        Err(rejected) => panic!("{text}\n{rejected}"),
    }
}
