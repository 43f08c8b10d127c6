//! Answers while a store is unreachable: as each rule has chosen, and never as a denial by the limit.

mod adaptive;
mod chosen;
mod here_first;
mod known;
mod parts;
mod warm_up;

use std::future::{Future, ready};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::Timestamp;
use tollgate::clock::Manual;
use tollgate_engine::backend::{Answer, Backend, Check, CheckResult, LimitKind, Memory};
use tollgate_engine::document::Format;
use tollgate_engine::policy::OnStoreFailure;
use tollgate_engine::verdict::{Cause, RequestDecision};
use tollgate_engine::{Engine, Facts, Policy};
use tollgate_redis::{BreakerThresholds, Fallback, LocalLimits, RemoteBackend, StoreEvent};

/// A store in memory that can be switched off.
struct Switched {
    memory: Memory<Manual, Manual>,
    local: Arc<LocalLimits<Manual, Manual>>,
    is_down: AtomicBool,
    asked: AtomicU64,
}

impl Backend for Switched {
    type Error = &'static str;

    fn ask<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        _: Option<&'a mut Vec<CheckResult>>,
    ) -> impl Future<Output = Result<Answer, &'static str>> + Send + 'a {
        self.asked.fetch_add(1, Ordering::Relaxed);
        ready(if self.is_down.load(Ordering::Relaxed) {
            Err("switched off")
        } else {
            let answer = self.memory.answer(checks);
            if let [check] = checks {
                self.local.record_decision(check, &answer.decision);
            }
            Ok(answer)
        })
    }

    fn now(&self) -> Timestamp {
        Backend::now(&self.memory)
    }
}

impl RemoteBackend for Switched {}

fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("a store in memory answers at once"),
    }
}

type Store = Fallback<Switched, Manual, Manual>;

struct Fleet {
    engine: Engine<Store>,
    clock: Manual,
    events: Arc<Mutex<Vec<String>>>,
}

impl Fleet {
    fn new(policy: &str, nodes: u64) -> Self {
        let clock = Manual::starting_at(Timestamp::from_secs(1_000));
        let memory = || {
            let memory = Memory::builder().capacity(1_000).clock(clock.clone());
            memory.wall(clock.clone()).build()
        };
        let local = Arc::new(LocalLimits::new(memory()));
        let switched = Switched {
            memory: memory(),
            local: Arc::clone(&local),
            is_down: AtomicBool::new(false),
            asked: AtomicU64::new(0),
        };
        let events = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&events);
        let store = Fallback::with_local(switched, local)
            .node_count(nodes)
            .breaker(BreakerThresholds {
                min_calls: 5,
                ..BreakerThresholds::default()
            })
            .on_event(move |event: &StoreEvent<'_>| {
                told.lock()
                    .expect("not poisoned")
                    .push(format!("{event:?}"));
            });
        let policy = Policy::from_text(policy, Format::Yaml).expect("a policy");
        Self {
            engine: Engine::new(policy.policy, store).expect("a policy"),
            clock,
            events,
        }
    }

    fn switch(&self, is_down: bool) {
        let store = self.engine.backend().store();
        store.is_down.store(is_down, Ordering::Relaxed);
    }

    fn asked(&self) -> u64 {
        self.engine.backend().store().asked.load(Ordering::Relaxed)
    }

    fn decide<'f>(&self, facts: &'f Facts<'f>) -> RequestDecision<'f> {
        match at_once(self.engine.decide_async(facts)) {
            Ok(verdict) => verdict,
            Err(never) => match never {},
        }
    }

    fn passed(&self, facts: &Facts<'_>, requests: usize) -> usize {
        let allowed = |_: &usize| self.decide(facts).allowed().is_some();
        (0..requests).filter(allowed).count()
    }
}

const POLICY: &str = "
limits:
- {name: open, match: {path: /open}, rate: 10/s, on_store_failure: open}
- {name: closed, match: {path: /closed}, rate: 10/s, on_store_failure: closed}
- {name: local, match: {path: /local}, rate: 10/s, on_store_failure: local}
- {name: breaks, match: {path: /breaks}, rate: 10/s, on_store_failure: circuit-break}
- {name: slots, match: {path: /slots}, concurrency: 8}
";

#[test]
fn each_rule_gets_what_it_has_chosen() {
    let fleet = Fleet::new(POLICY, 4);
    let at = |path: &'static str| Facts::new().with("path", path);
    let paths = ["/open", "/closed", "/local", "/breaks"];
    for path in paths {
        assert_eq!(fleet.passed(&at(path), 20), 10, "{path} by the store");
    }
    assert!(!fleet.engine.backend().is_active());
    fleet.switch(true);
    assert_eq!(fleet.passed(&at("/open"), 20), 20);
    assert_eq!(fleet.passed(&at("/closed"), 20), 0);
    // The store has let all pass that may: nothing is left here.
    assert_eq!(fleet.passed(&at("/local"), 20), 0);
    assert_eq!(fleet.passed(&at("/breaks"), 20), 0);
    fleet.clock.advance(Duration::from_secs(1));
    // A quarter of 10, times two.
    assert_eq!(fleet.passed(&at("/local"), 20), 5);
    assert_eq!(fleet.passed(&at("/breaks"), 20), 5);
    assert!(fleet.engine.backend().is_active());
    let stats = fleet.engine.backend().stats();
    assert_eq!((stats.open, stats.closed, stats.local), (20, 20, 80));
    fleet.switch(false);
    fleet.clock.advance(Duration::from_secs(1));
    assert_eq!(fleet.passed(&at("/local"), 20), 10, "by the store again");
    assert!(!fleet.engine.backend().is_active());
}

#[test]
fn a_failure_never_looks_like_a_denial() {
    let fleet = Fleet::new(POLICY, 1);
    fleet.switch(true);
    let facts = Facts::new().with("path", "/closed");
    let verdict = fleet.decide(&facts);
    assert!(verdict.denied().is_some());
    assert_eq!(verdict.cause(), Cause::StoreFailure("closed"));
    assert_eq!(verdict.fallback(), Some(OnStoreFailure::Closed));
    // A local limit that refuses is a limit: the cause is the rule.
    let facts = Facts::new().with("path", "/local");
    assert_eq!(fleet.passed(&facts, 20), 10, "never more than the limit");
    let verdict = fleet.decide(&facts);
    assert_eq!(verdict.cause(), Cause::Rule("local"));
    assert_eq!(verdict.fallback(), Some(OnStoreFailure::Local));
    fleet.switch(false);
    assert_eq!(fleet.decide(&facts).fallback(), None);
}

#[test]
fn slots_that_are_held_locally_are_given_back() {
    let fleet = Fleet::new(POLICY, 4);
    fleet.switch(true);
    let facts = Facts::new().with("path", "/slots");
    let held: Vec<_> = (0..4)
        .filter_map(|_| fleet.decide(&facts).allowed())
        .collect();
    assert!(fleet.decide(&facts).denied().is_some());
    drop(held);
    assert!(fleet.decide(&facts).allowed().is_some());
}

#[test]
fn a_broken_circuit_asks_by_one_probe_ever_more_rarely() {
    let fleet = Fleet::new(POLICY, 1);
    fleet.switch(true);
    let facts = Facts::new().with("path", "/breaks");
    fleet.passed(&facts, 100);
    assert_eq!(fleet.asked(), 5, "after five errors it isn't asked");
    assert_eq!(fleet.engine.backend().stats().trips, 1);
    fleet.clock.advance(Duration::from_millis(999));
    fleet.passed(&facts, 100);
    assert_eq!(fleet.asked(), 5);
    fleet.clock.advance(Duration::from_millis(1));
    fleet.passed(&facts, 100);
    assert_eq!(fleet.asked(), 6, "one probe, in vain");
    fleet.clock.advance(Duration::from_millis(1_999));
    fleet.passed(&facts, 100);
    assert_eq!(fleet.asked(), 6, "twice as long");
    // Rules that chose otherwise are asked about all the while.
    fleet.passed(&Facts::new().with("path", "/closed"), 3);
    assert_eq!(fleet.asked(), 9);
    fleet.clock.advance(Duration::from_secs(60));
    fleet.switch(false);
    assert_eq!(fleet.passed(&facts, 20), 10);
    assert_eq!(fleet.asked(), 29);
    let events = fleet.events.lock().unwrap();
    let names: Vec<_> = events
        .iter()
        .map(|event| event.split([' ', '{']).next().unwrap_or_default())
        .collect();
    let expected = [
        "FallbackStarted",
        "Failed",
        "CircuitOpened",
        "Failed",
        "Failed",
        "CircuitClosed",
        "FallbackEnded",
    ];
    assert_eq!(names, expected, "{events:?}");
    assert!(events[3].contains("suppressed: 4"), "{events:?}");
}

#[test]
fn two_seconds_without_an_answer_break_the_circuit_too() {
    let fleet = Fleet::new(POLICY, 1);
    fleet.switch(true);
    let facts = Facts::new().with("path", "/breaks");
    fleet.passed(&facts, 1);
    fleet.clock.advance(Duration::from_millis(1_999));
    fleet.passed(&facts, 1);
    assert_eq!(fleet.engine.backend().stats().trips, 0);
    fleet.clock.advance(Duration::from_millis(1));
    fleet.passed(&facts, 1);
    assert_eq!(fleet.engine.backend().stats().trips, 1);
    assert_eq!(fleet.asked(), 3);
}

#[test]
fn where_no_rule_breaks_circuits_there_is_none_to_break() {
    let fleet = Fleet::new(POLICY, 1);
    fleet.switch(true);
    for _ in 0..100 {
        fleet.passed(&Facts::new().with("path", "/local"), 1);
        fleet.passed(&Facts::new().with("path", "/closed"), 1);
        fleet.clock.advance(Duration::from_millis(100));
    }
    assert_eq!(fleet.asked(), 200);
    assert_eq!(fleet.engine.backend().stats().trips, 0);
    let events = fleet.events.lock().unwrap().concat();
    assert!(!events.contains("Circuit"), "{events}");
}

#[test]
fn an_outage_begins_where_the_store_left_off() {
    let fleet = Fleet::new(POLICY, 1);
    let facts = Facts::new().with("path", "/local");
    assert_eq!(fleet.passed(&facts, 7), 7);
    fleet.switch(true);
    assert_eq!(fleet.passed(&facts, 20), 3);
    fleet.clock.advance(Duration::from_millis(500));
    assert_eq!(fleet.passed(&facts, 20), 5);
    // Whatever the store lets pass to this node, no more is owed here than its part.
    let many = Fleet::new(POLICY, 8);
    for _ in 0..60 {
        assert_eq!(many.passed(&facts, 20), 10);
        many.clock.advance(Duration::from_secs(1));
    }
    many.switch(true);
    many.clock.advance(Duration::from_secs(1));
    assert_eq!(
        many.passed(&facts, 20),
        3,
        "an eighth of 10, times two, rounded up"
    );
}

#[test]
fn a_slot_that_is_counted_here_is_told_as_it_was_decided() {
    let limits =
        "limits: [{name: there, rate: 100/s}, {name: here, concurrency: 1, counting: local}]";
    let (fleet, facts) = (Fleet::new(limits, 1), Facts::new());
    let verdict = fleet.decide(&facts);
    let decision = verdict.decision();
    assert!(
        verdict.denied().is_none() && decision.is_allowed(),
        "{decision:?}"
    );
    assert_eq!(
        (verdict.cause(), decision.remaining),
        (Cause::Rule("here"), 0)
    );
    let second = fleet.decide(&facts);
    assert!(second.denied().is_some() && !second.decision().is_allowed());
}
