//! An engine on virtual time that decides requests one after the other, with a store that is up or down.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use clap::ValueEnum;
use tollgate::clock::Manual;
use tollgate::{Clock, Timestamp};
use tollgate_engine::backend::{Answer, Backend, Check, CheckResult, Clocks, Memory};
use tollgate_engine::engine::{DescriptorDecision, LimitRemaining};
use tollgate_engine::facts::Descriptor;
use tollgate_engine::policy::OverLimitAction;
use tollgate_engine::{Engine, Facts, Policy, RequestDecision};
use tollgate_redis::{Fallback, LocalLimits, RemoteBackend};

use crate::outcome::CliError;

/// Whether the store is reachable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum StoreState {
    /// The store answers.
    #[default]
    Up,
    /// The store is unreachable: each rule's on_store_failure decides.
    Down,
}

/// An engine and its clock.
#[derive(Debug)]
pub(crate) struct SimulatedEngine {
    engine: EngineKind,
    clock: Manual,
    wall: Manual,
    /// The wall-clock time at the start.
    start: Timestamp,
}

#[derive(Debug)]
enum EngineKind {
    Up(Box<Engine<Memory<Manual, Manual>>>),
    Down(Box<Engine<Fallback<UnreachableStore, Manual, Manual>>>),
}

/// A store that is always unreachable.
#[derive(Debug)]
struct UnreachableStore(Manual);

impl Backend for UnreachableStore {
    type Error = &'static str;

    fn ask<'a>(
        &'a self,
        _: &'a [Check<'a>],
        _: Option<&'a mut Vec<CheckResult>>,
    ) -> impl Future<Output = Result<Answer, &'static str>> + Send + 'a {
        ready(Err("the store is down"))
    }

    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn clocks(&self) -> Clocks {
        Clocks {
            clock: Arc::new(self.0.clone()),
            ..Clocks::default()
        }
    }
}

impl RemoteBackend for UnreachableStore {}

impl SimulatedEngine {
    /// An engine with this policy, which starts at this date.
    pub(crate) fn new(
        policy: Policy,
        began: Timestamp,
        store: StoreState,
    ) -> Result<Self, CliError> {
        let (clock, wall) = (Manual::new(), Manual::new());
        wall.set(began);
        let memory = Memory::builder();
        let memory = memory.clock(clock.clone()).wall(wall.clone()).build();
        let engine = match store {
            StoreState::Up => EngineKind::Up(Box::new(Engine::new(policy, memory)?)),
            StoreState::Down => {
                let local = Arc::new(LocalLimits::new(memory));
                let fallback = Fallback::with_local(UnreachableStore(clock.clone()), local);
                EngineKind::Down(Box::new(Engine::new(without_waits(policy), fallback)?))
            }
        };
        Ok(Self {
            engine,
            clock,
            wall,
            start: began,
        })
    }

    /// Advances the clock to a time since the start.
    pub(crate) fn advance_to(&self, at: Duration) {
        self.clock.set(Timestamp::ZERO + at);
        self.wall.set(self.start + at);
    }

    pub(super) fn decide<'f>(&self, facts: &'f Facts<'f>) -> RequestDecision<'f> {
        match &self.engine {
            EngineKind::Up(engine) => engine.decide(facts),
            EngineKind::Down(engine) => poll_ready(engine.decide_async(facts)),
        }
    }

    /// The remaining tokens of each limit that is known without a store.
    pub(super) fn left(&self, facts: &Facts<'_>) -> Vec<LimitRemaining> {
        match &self.engine {
            EngineKind::Up(engine) => engine.remaining(facts),
            EngineKind::Down(_) => Vec::new(),
        }
    }

    pub(super) fn decide_descriptors(
        &self,
        domain: &str,
        descriptors: &[Descriptor<'_>],
        hits: u32,
    ) -> DescriptorDecision {
        match &self.engine {
            EngineKind::Up(engine) => engine.decide_descriptors(domain, descriptors, hits),
            EngineKind::Down(engine) => {
                poll_ready(engine.decide_descriptors_async(domain, descriptors, hits))
            }
        }
    }
}

/// The same policy, but requests don't wait: on a manual clock, nothing would wake them.
fn without_waits(mut policy: Policy) -> Policy {
    for rule in &mut policy.rules {
        rule.over = OverLimitAction::Deny;
    }
    for tier in policy.tiers.values_mut() {
        tier.over = OverLimitAction::Deny;
    }
    policy
}

/// The result of a future that completes without waiting, as all futures without a store do.
fn poll_ready<T>(asking: impl Future<Output = Result<T, Infallible>>) -> T {
    match pin!(asking).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(verdict)) => verdict,
        Poll::Ready(Err(never)) => match never {},
        Poll::Pending => unreachable!("a store that is down answers at once"),
    }
}
