//! An engine on virtual time, by which requests are decided one after the other; its store works, or is down.

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
use tollgate_engine::engine::{DescriptorVerdict, Left};
use tollgate_engine::facts::Descriptor;
use tollgate_engine::policy::Over;
use tollgate_engine::{Engine, Facts, Policy, Verdict};
use tollgate_redis::{Fallback, Local, RemoteBackend};

use crate::outcome::CliError;

/// Whether there is a store to ask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Store {
    /// It answers.
    #[default]
    Up,
    /// It can't be asked: each rule does what its on_store_failure says.
    Down,
}

/// An engine, and the time that it goes by.
#[derive(Debug)]
pub(crate) struct SimulatedEngine {
    engine: EngineKind,
    clock: Manual,
    wall: Manual,
    /// What the calendar shows at the beginning.
    began: Timestamp,
}

#[derive(Debug)]
enum EngineKind {
    Up(Box<Engine<Memory<Manual, Manual>>>),
    Down(Box<Engine<Fallback<Nowhere, Manual, Manual>>>),
}

/// A store that can't be asked.
#[derive(Debug)]
struct Nowhere(Manual);

impl Backend for Nowhere {
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
            timer: Arc::new(self.0.clone()),
            ..Clocks::default()
        }
    }
}

impl RemoteBackend for Nowhere {}

impl SimulatedEngine {
    /// Puts a policy in force, on this date.
    pub(crate) fn new(policy: Policy, began: Timestamp, store: Store) -> Result<Self, CliError> {
        let (clock, wall) = (Manual::new(), Manual::new());
        wall.set(began);
        let memory = Memory::builder();
        let memory = memory.clock(clock.clone()).wall(wall.clone()).build();
        let engine = match store {
            Store::Up => EngineKind::Up(Box::new(Engine::new(policy, memory)?)),
            Store::Down => {
                let local = Arc::new(Local::new(memory));
                let fallback = Fallback::with_local(Nowhere(clock.clone()), local);
                EngineKind::Down(Box::new(Engine::new(impatient(policy), fallback)?))
            }
        };
        Ok(Self {
            engine,
            clock,
            wall,
            began,
        })
    }

    /// Lets time go on until this is over since the beginning.
    pub(crate) fn set(&self, at: Duration) {
        self.clock.set(Timestamp::ZERO + at);
        self.wall.set(self.began + at);
    }

    pub(super) fn decide<'f>(&self, facts: &'f Facts<'f>) -> Verdict<'f> {
        match &self.engine {
            EngineKind::Up(engine) => engine.decide(facts),
            EngineKind::Down(engine) => at_once(engine.decide_async(facts)),
        }
    }

    /// What is left of each limit, as far as that is known here.
    pub(super) fn left(&self, facts: &Facts<'_>) -> Vec<Left> {
        match &self.engine {
            EngineKind::Up(engine) => engine.left(facts),
            EngineKind::Down(_) => Vec::new(),
        }
    }

    pub(super) fn decide_descriptors(
        &self,
        domain: &str,
        descriptors: &[Descriptor<'_>],
        hits: u32,
    ) -> DescriptorVerdict {
        match &self.engine {
            EngineKind::Up(engine) => engine.decide_descriptors(domain, descriptors, hits),
            EngineKind::Down(engine) => {
                at_once(engine.decide_descriptors_async(domain, descriptors, hits))
            }
        }
    }
}

/// The same policy, whose requests don't wait for their turn: nobody is there to wake them.
fn impatient(mut policy: Policy) -> Policy {
    for rule in &mut policy.rules {
        rule.over = Over::Refuse;
    }
    for tier in policy.tiers.values_mut() {
        tier.over = Over::Refuse;
    }
    policy
}

/// What is known without waiting, as all is that no store is asked about.
fn at_once<T>(asking: impl Future<Output = Result<T, Infallible>>) -> T {
    match pin!(asking).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(verdict)) => verdict,
        Poll::Ready(Err(never)) => match never {},
        Poll::Pending => unreachable!("a store that is down answers at once"),
    }
}
