//! Adaptive limits in front of a store: counted in this process, whether the store is reachable or not.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::concurrency::PermitOutcome;
use tollgate::{Clock, Timestamp};
use tollgate_engine::backend::{Answer, Backend, Check, CheckResult, Clocks, Memory};
use tollgate_engine::document::Format;
use tollgate_engine::engine::AdaptiveState;
use tollgate_engine::verdict::Cause;
use tollgate_engine::{Engine, Facts, Policy};

use super::{Fleet, at_once};

fn state<B: Backend>(engine: &Engine<B>) -> AdaptiveState {
    let states = engine.limiter_states();
    let mut adaptive = states.iter().filter_map(|state| state.adaptive);
    adaptive.next().expect("a rule that adapts")
}

#[test]
fn a_store_is_not_asked_about_it_and_need_not_be_there() {
    let fleet = Fleet::new(
        "limits: [{name: api, concurrency: {adaptive: aimd, min: 2, max: 4}}]",
        4,
    );
    for is_down in [false, true] {
        fleet.switch(is_down);
        let facts = Facts::new();
        let held: Vec<_> = (0..6).map(|_| fleet.decide(&facts)).collect();
        let passed = held.iter().filter(|one| one.denied().is_none()).count();
        assert_eq!(
            passed, 4,
            "all of it here, not a part for each of four nodes"
        );
        fleet.clock.advance(Duration::from_millis(5));
        for verdict in held {
            if let Some(passed) = verdict.allowed() {
                passed.into_permits().end(PermitOutcome::Success);
            }
        }
        assert_eq!(state(&fleet.engine).in_flight, 0);
    }
    assert_eq!(fleet.asked(), 0);
    let facts = Facts::new();
    let held = fleet.decide(&facts).allowed().expect("there is room");
    fleet.clock.advance(Duration::from_millis(5));
    held.into_permits().end(PermitOutcome::Dropped);
    assert_eq!(state(&fleet.engine).limit, 3, "it learns without a store");
}

#[test]
fn what_is_closed_or_fails_gives_its_place_back() {
    let fleet = Fleet::new(
        "
limits:
- {name: closed, match: {path: /closed}, rate: 10/s, on_store_failure: closed}
- {name: local, match: {path: /local}, rate: 10/s}
- {name: api, concurrency: {adaptive: aimd, max: 9}}
",
        2,
    );
    fleet.switch(true);
    let (closed, local) = (
        Facts::new().with("path", "/closed"),
        Facts::new().with("path", "/local"),
    );
    assert_eq!(fleet.decide(&closed).cause(), Cause::StoreFailure("closed"));
    assert_eq!(state(&fleet.engine).in_flight, 0);
    let held = fleet.decide(&local).allowed().expect("judged here");
    assert_eq!(state(&fleet.engine).in_flight, 1);
    drop(held);
    assert_eq!(state(&fleet.engine).in_flight, 0);
    // An error of a backend that nothing stands behind.
    let policy = Policy::from_text(
        "limits: [{name: api, rate: 9/s, concurrency: {adaptive: aimd, max: 9}}]",
        Format::Yaml,
    );
    let engine = Engine::new(policy.expect("a policy").policy, Broken).expect("a policy");
    let facts = Facts::new();
    assert!(at_once(engine.decide_async(&facts)).is_err());
    assert_eq!(state(&engine).in_flight, 0);
}

/// An unreachable store.
struct Broken;

impl Backend for Broken {
    type Error = &'static str;

    fn ask<'a>(
        &'a self,
        _: &'a [Check<'a>],
        _: Option<&'a mut Vec<CheckResult>>,
    ) -> impl Future<Output = Result<Answer, &'static str>> + Send + 'a {
        ready(Err("broken"))
    }

    fn now(&self) -> Timestamp {
        Timestamp::ZERO
    }
}

/// A store that takes a second for each answer.
struct Far(Memory<Manual, Manual>, Manual);

impl Backend for Far {
    type Error = Infallible;

    fn ask<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        _: Option<&'a mut Vec<CheckResult>>,
    ) -> impl Future<Output = Result<Answer, Infallible>> + Send + 'a {
        self.1.advance(Duration::from_secs(1));
        ready(Ok(self.0.answer(checks)))
    }

    fn now(&self) -> Timestamp {
        self.1.now()
    }

    fn clocks(&self) -> Clocks {
        Clocks {
            clock: Arc::new(self.1.clone()),
            ..Clocks::default()
        }
    }
}

#[test]
fn the_time_that_a_store_takes_is_not_the_requests() {
    let clock = Manual::new();
    let memory = Memory::builder().clock(clock.clone()).wall(clock.clone());

    let text = "
limits:
- {name: calls, match: {path: /far}, rate: 1000000/s}
- {name: api, concurrency: {adaptive: vegas, min: 1, max: 100}}
";
    let policy = Policy::from_text(text, Format::Yaml)
        .expect("a policy")
        .policy;
    let far = Far(memory.build(), clock.clone());
    let engine = Engine::new(policy, far).expect("a policy");
    let round = |facts: &Facts<'_>| {
        let held: Vec<_> = (0..40)
            .filter_map(|_| at_once(engine.decide_async(facts)).ok()?.allowed())
            .map(|passed| {
                clock.advance(Duration::from_millis(1));
                passed.into_permits().end(PermitOutcome::Success);
            })
            .collect();
        assert_eq!(held.len(), 40);
    };
    let (near, far) = (Facts::new(), Facts::new().with("path", "/far"));
    round(&near);
    let before = state(&engine).limit;
    round(&far);
    assert_eq!(
        state(&engine).limit,
        before,
        "a millisecond each, as before"
    );
}
