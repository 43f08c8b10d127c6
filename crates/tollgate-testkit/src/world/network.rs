//! The network between nodes and the store: it delays and loses commands, and cuts connections before or after
//! execution.
//!
//! A sent command arrives whatever happens to its node: it is a task of its own, which isn't frozen with the
//! node. Commands on one connection arrive in order, and so do their replies.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};
use tollgate_redis::simulation::{Replying, Wire};

use super::Call;
use super::resp::Command;
use super::store::Store;
use crate::traffic::Random;

/// Microseconds from 1970 to the beginning of a scenario.
pub(super) const EPOCH: u64 = 1_900_000_000_000_000;

/// The state that all nodes share: the time, the store, and the network's random numbers.
pub(super) struct SimulatedNetwork {
    began: Instant,
    inner: Mutex<Inner>,
    /// Rings when the store dies, for the tasks that wait for it.
    deaths: WakeSignal,
    /// Rings when the store is suspended or resumed.
    turns: WakeSignal,
}

struct Inner {
    shards: Vec<Shard>,
    state: StoreState,
    /// By their SHA-1.
    scripts: BTreeMap<String, Arc<str>>,
    random: Random,
    weather: Weather,
    /// Nodes that can't reach the store.
    apart: Vec<usize>,
    recorded: Vec<Call>,
    /// Executed calls: the time and the node.
    carried_out: Vec<(u64, usize)>,
    exchanges: Vec<Exchange>,
}

/// A node's call of a script, with or without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The node.
    pub node: usize,
    /// When it was sent.
    pub at: u64,
    /// When its result arrived; `None` if none did.
    pub back: Option<u64>,
}

struct Shard {
    store: Store,
    /// How far its clock is ahead, in microseconds.
    ahead: i64,
}

/// Wakes all listeners in the order in which they came; a channel would wake them in any order.
#[derive(Debug, Default)]
struct WakeSignal {
    rung: AtomicU64,
    listening: Notify,
}

impl WakeSignal {
    fn ring(&self) {
        self.rung.fetch_add(1, Ordering::Relaxed);
        self.listening.notify_waiters();
    }

    fn has_rung(&self) -> bool {
        self.rung.load(Ordering::Relaxed) > 0
    }

    /// Waits until the next ring.
    async fn rings(&self) {
        self.listening.notified().await;
    }
}

/// The state of a store's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreState {
    Up,
    /// It is suspended, and connections stay.
    Stopped,
    /// It is dead.
    Down,
}

/// The behaviour of the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weather {
    /// The longest time of a command or a reply, in microseconds.
    pub delay: u64,
    /// How many of 1,000 commands are lost before their execution.
    pub lost_before: u64,
    /// How many of 1,000 replies are lost.
    pub lost_after: u64,
    /// How many of 1,000 connections are cut while a command is in flight.
    pub cut: u64,
}

impl SimulatedNetwork {
    pub(super) fn new(seed: u64, shards: usize) -> Arc<Self> {
        let shard = |_| Shard {
            store: Store::new(),
            ahead: 0,
        };
        Arc::new(Self {
            began: Instant::now(),
            inner: Mutex::new(Inner {
                shards: (0..shards.max(1)).map(shard).collect(),
                state: StoreState::Up,
                scripts: BTreeMap::new(),
                random: Random::new(seed ^ 0x6E65_7477_6F72_6B00),
                weather: Weather::default(),
                apart: Vec::new(),
                recorded: Vec::new(),
                carried_out: Vec::new(),
                exchanges: Vec::new(),
            }),
            deaths: WakeSignal::default(),
            turns: WakeSignal::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Microseconds since the scenario began.
    pub(super) fn now(&self) -> u64 {
        let elapsed = Instant::now().duration_since(self.began);
        u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX)
    }

    pub(super) fn at(&self, micros: u64) -> Instant {
        self.began + Duration::from_micros(micros)
    }

    pub(super) fn is_cluster(&self) -> bool {
        self.lock().shards.len() > 1
    }

    pub(super) fn set_weather(&self, weather: Weather) {
        self.lock().weather = weather;
    }

    pub(super) fn set_apart(&self, nodes: Vec<usize>) {
        self.lock().apart = nodes;
    }

    pub(super) fn set_state(&self, state: StoreState) {
        self.lock().state = state;
        if state == StoreState::Down {
            self.deaths.ring();
        }
        self.turns.ring();
    }

    /// Acts on each store.
    pub(super) fn each_store(&self, mut act: impl FnMut(&mut Store, u64)) {
        let now = self.now();
        for shard in &mut self.lock().shards {
            let time = store_time(now, shard.ahead);
            act(&mut shard.store, time);
        }
    }

    /// Steps the store's clock.
    pub(super) fn step(&self, by: i64) {
        for shard in &mut self.lock().shards {
            shard.ahead = shard.ahead.saturating_add(by);
        }
    }

    pub(super) fn recorded(&self) -> Vec<Call> {
        std::mem::take(&mut self.lock().recorded)
    }

    /// The times of executed calls, with their nodes.
    pub(super) fn carried_out(&self) -> Vec<(u64, usize)> {
        self.lock().carried_out.clone()
    }

    /// All calls of scripts by nodes.
    pub(super) fn exchanges(&self) -> Vec<Exchange> {
        self.lock().exchanges.clone()
    }

    /// Records that a node sends a script. Returns the number of the exchange.
    fn sends(&self, node: usize) -> usize {
        let (at, back) = (self.now(), None);
        let exchanges = &mut self.lock().exchanges;
        exchanges.push(Exchange { node, at, back });
        exchanges.len() - 1
    }

    /// Records that its result arrived.
    fn mark_answered(&self, exchange: usize) {
        let now = self.now();
        self.lock().exchanges[exchange].back = Some(now);
    }

    /// Whether a node can reach the store's machine.
    fn reaches(&self, node: usize) -> bool {
        !self.lock().apart.contains(&node)
    }

    /// Connects a node.
    pub(super) async fn connect(self: &Arc<Self>, node: usize) -> Result<Arc<dyn Wire>, String> {
        let delay = self.draw_delay();
        sleep_until(self.at(self.now() + delay)).await;
        if !self.reaches(node) {
            // Nothing ever comes back.
            std::future::pending::<()>().await;
        }
        let state = self.lock().state;
        match state {
            StoreState::Down => Err("Connection refused (os error 111)".to_owned()),
            StoreState::Stopped | StoreState::Up => {
                Ok(Arc::new(SimulatedWire(Arc::new(NodeConnection {
                    universe: Arc::clone(self),
                    node,
                    order: Mutex::default(),
                    cuts: WakeSignal::default(),
                }))))
            }
        }
    }

    fn draw_delay(&self) -> u64 {
        let mut inner = self.lock();
        let most = inner.weather.delay;
        inner.random.below(most + 1)
    }

    /// Waits while the store is suspended. Returns whether it runs then.
    async fn runs(&self) -> bool {
        loop {
            match self.lock().state {
                StoreState::Up => return true,
                StoreState::Down => return false,
                StoreState::Stopped => {}
            }
            self.turns.rings().await;
        }
    }

    /// Executes a command.
    fn carry_out(&self, node: usize, command: &Command) -> Vec<u8> {
        let now = self.now();
        let mut inner = self.lock();
        let Inner {
            shards,
            scripts,
            recorded,
            carried_out,
            ..
        } = &mut *inner;
        let place = command.shard(shards.len());
        let Shard { store, ahead } = &mut shards[place];
        let time = store_time(now, *ahead);
        let reply = command.run(store, time);
        recorded.extend(command.recorded(scripts, time));
        carried_out.push((now, node));
        reply
    }
}

/// The time of a store's clock.
fn store_time(now: u64, ahead: i64) -> u64 {
    (EPOCH + now).saturating_add_signed(ahead)
}

/// One connection of a node.
struct SimulatedWire(Arc<NodeConnection>);

struct NodeConnection {
    universe: Arc<SimulatedNetwork>,
    node: usize,
    /// When the latest command arrives, and its reply.
    order: Mutex<(u64, u64)>,
    /// Rings when the connection is cut.
    cuts: WakeSignal,
}

/// What the network does to one command.
struct CommandFate {
    there: u64,
    back: u64,
    is_lost_before: bool,
    is_lost_after: bool,
    is_cut: bool,
}

impl NodeConnection {
    fn draw_fate(&self) -> CommandFate {
        let mut inner = self.universe.lock();
        let weather = inner.weather;
        let random = &mut inner.random;
        let mut one_of = |parts: u64| random.below(1000) < parts;
        let is_lost_before = one_of(weather.lost_before);
        let is_lost_after = one_of(weather.lost_after);
        let is_cut = one_of(weather.cut);
        CommandFate {
            there: random.below(weather.delay + 1),
            back: random.below(weather.delay + 1),
            is_lost_before,
            is_lost_after,
            is_cut,
        }
    }

    /// The time after a delay, no sooner than the command or reply before.
    fn in_order(&self, delay: u64, place: impl Fn(&mut (u64, u64)) -> &mut u64) -> Instant {
        let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        let latest = place(&mut order);
        *latest = (*latest).max(self.universe.now() + delay);
        self.universe.at(*latest)
    }

    /// Sends a command, and returns its reply.
    async fn round_trip(&self, command: &Command, luck: &CommandFate) -> io::Result<Vec<u8>> {
        let universe = &self.universe;
        sleep_until(self.in_order(luck.there, |order| &mut order.0)).await;
        if luck.is_lost_before || !universe.reaches(self.node) {
            // Nothing ever comes back.
            std::future::pending::<()>().await;
        }
        if !universe.runs().await {
            return Err(reset());
        }
        let reply = universe.carry_out(self.node, command);
        sleep_until(self.in_order(luck.back, |order| &mut order.1)).await;
        if luck.is_cut {
            self.cuts.ring();
        }
        if luck.is_lost_after || !universe.reaches(self.node) {
            std::future::pending::<()>().await;
        }
        Ok(reply)
    }

    /// Waits until the connection is cut, or the store dies.
    async fn ends(&self) {
        // A cluster's client has many connections and repairs them itself; any other connection is over.
        if self.cuts.has_rung() && !self.universe.is_cluster() {
            return;
        }
        tokio::select! {
            biased;
            () = self.cuts.rings() => {}
            // A dead store takes its connections along.
            () = self.universe.deaths.rings() => self.cuts.ring(),
        }
    }
}

fn reset() -> io::Error {
    io::Error::from(io::ErrorKind::ConnectionReset)
}

impl Wire for SimulatedWire {
    fn send(&self, command: Vec<u8>) -> Replying {
        let (tell, told) = oneshot::channel();
        let cable = Arc::clone(&self.0);
        let (luck, command) = (cable.draw_fate(), Command::read(&command));
        let sent = command
            .is_script()
            .then(|| cable.universe.sends(cable.node));
        // The command proceeds even if its caller is dropped or its node frozen.
        tokio::spawn(async move {
            let reply = tokio::select! {
                biased;
                () = cable.ends() => Err(reset()),
                reply = cable.round_trip(&command, &luck) => reply,
            };
            let is_error = |reply: &Vec<u8>| reply.first() == Some(&b'-');
            if let (Some(sent), Ok(reply)) = (sent, &reply)
                && !is_error(reply)
            {
                cable.universe.mark_answered(sent);
            }
            let _ = tell.send(reply);
        });
        Box::pin(async move { told.await.unwrap_or_else(|_| Err(reset())) })
    }
}
