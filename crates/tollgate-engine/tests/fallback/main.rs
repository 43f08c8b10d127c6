//! What is answered while a store can't be asked: as each rule has chosen, and never as a denial.

use std::convert::Infallible;
mod here_first;
mod parts;

use std::future::{Future, Ready, ready};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{Decision, Timestamp};
use tollgate_engine::backend::{
    Answer, Backend, Breaker, Check, Fallback, LimitKind, Local, Memory, StoreEvent,
};
use tollgate_engine::document::Format;
use tollgate_engine::facts::{Descriptor, Unit};
use tollgate_engine::policy::OnStoreFailure;
use tollgate_engine::verdict::{Cause, Verdict};
use tollgate_engine::{Engine, Facts, Policy};

/// A store in memory that can be switched off.
struct Switched {
    memory: Memory<Manual, Manual>,
    local: Arc<Local<Manual, Manual>>,
    is_down: AtomicBool,
    asked: AtomicU64,
}

impl Backend for Switched {
    type Error = &'static str;
    type Asking<'a> = Ready<Result<Answer, &'static str>>;

    fn check<'a>(&'a self, checks: &'a [Check<'a>]) -> Self::Asking<'a> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        ready(match self.is_down.load(Ordering::Relaxed) {
            true => Err("switched off"),
            false => {
                let answer = self.memory.answer(checks);
                if let [check] = checks {
                    self.local.note(check, &answer.decision);
                }
                Ok(answer)
            }
        })
    }

    fn now(&self) -> Timestamp {
        Backend::now(&self.memory)
    }
}

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
            let memory = Memory::builder().keys(1_000).clock(clock.clone());
            memory.wall(clock.clone()).build()
        };
        let local = Arc::new(Local::new(memory()));
        let switched = Switched {
            memory: memory(),
            local: Arc::clone(&local),
            is_down: AtomicBool::new(false),
            asked: AtomicU64::new(0),
        };
        let events = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&events);
        let store = Fallback::with_local(switched, local)
            .nodes(nodes)
            .breaker(Breaker {
                of_calls: 5,
                ..Breaker::default()
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

    fn decide<'f>(&self, facts: &'f Facts<'f>) -> Verdict<'f> {
        match at_once(self.engine.decide_async(facts)) {
            Ok(verdict) => verdict,
            Err(never) => match never {},
        }
    }

    fn passed(&self, facts: &Facts<'_>, requests: usize) -> usize {
        let allowed = |_: &usize| self.decide(facts).passed().is_some();
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
    assert!(verdict.refused().is_some());
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
        .filter_map(|_| fleet.decide(&facts).passed())
        .collect();
    assert!(fleet.decide(&facts).refused().is_some());
    drop(held);
    assert!(fleet.decide(&facts).passed().is_some());
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
        "FallbackBegan",
        "Failed",
        "CircuitOpened",
        "Failed",
        "Failed",
        "CircuitClosed",
        "FallbackEnded",
    ];
    assert_eq!(names, expected, "{events:?}");
    assert!(events[3].contains("untold: 4"), "{events:?}");
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
        verdict.refused().is_none() && decision.is_allowed(),
        "{decision:?}"
    );
    assert_eq!(
        (verdict.cause(), decision.remaining),
        (Cause::Rule("here"), 0)
    );
    let second = fleet.decide(&facts);
    assert!(second.refused().is_some() && !second.decision().is_allowed());
}

#[test]
fn of_several_rules_closed_wins_and_all_that_are_local_must_pass() {
    let policy = "
limits:
- {name: wide, key: tenant, rate: 10/s}
- {name: narrow, key: user, rate: 2/s}
- {name: quota, match: {paid: yes}, key: tenant, quota: 5/day}
";
    let fleet = Fleet::new(policy, 2);
    fleet.switch(true);
    let free = Facts::new().with("tenant", "acme").with("user", "ada");
    assert_eq!(fleet.passed(&free, 10), 2);
    assert_eq!(fleet.decide(&free).cause(), Cause::Rule("narrow"));
    let other = Facts::new().with("tenant", "acme").with("user", "grace");
    assert_eq!(
        fleet.passed(&other, 10),
        2,
        "what was refused charged nothing"
    );
    let paid = free.with("paid", "yes");
    assert_eq!(fleet.decide(&paid).cause(), Cause::StoreFailure("quota"));
}

/// A request of a tenant of each tier, while the store is away.
fn tiers_without_store(head: &str, own: &str) -> (usize, usize, Option<OnStoreFailure>) {
    let policy = format!(
        "{head}
tiers:
  paid: {{quota: 9/day{own}}}
  free: {{rate: 4/h}}
tenants: {{acme: paid, new: free}}
"
    );
    let fleet = Fleet::new(&policy, 1);
    fleet.switch(true);
    let tenant = |name| Facts::new().with("tenant", name);
    let (paid, free) = (tenant("acme"), tenant("new"));
    let passed = (fleet.passed(&paid, 20), fleet.passed(&free, 20));
    (passed.0, passed.1, fleet.decide(&paid).fallback())
}

#[test]
fn what_the_file_says_of_failures_holds_for_tiers_unless_they_say_their_own() {
    let closed = Some(OnStoreFailure::Closed);
    let local = Some(OnStoreFailure::Local);
    let open = Some(OnStoreFailure::Open);
    assert_eq!(tiers_without_store("", ""), (0, 4, closed));
    assert_eq!(
        tiers_without_store("on_store_failure: local", ""),
        (9, 4, local)
    );
    assert_eq!(
        tiers_without_store("on_store_failure: open", ""),
        (20, 20, open)
    );
    let own = ", on_store_failure: local";
    assert_eq!(
        tiers_without_store("on_store_failure: open", own),
        (9, 20, local)
    );
    let own = ", on_store_failure: inherit";
    assert_eq!(
        tiers_without_store("on_store_failure: open", own),
        (20, 20, open)
    );
}

/// Notes how each check is to be counted, and what is done without a store.
#[derive(Default)]
struct Noting(Mutex<Vec<String>>);

impl Backend for Noting {
    type Error = Infallible;
    type Asking<'a> = Ready<Result<Answer, Infallible>>;

    fn check<'a>(&'a self, checks: &'a [Check<'a>]) -> Self::Asking<'a> {
        let noted = checks.iter().map(|check| {
            let kind = match check.limit.kind() {
                LimitKind::Rate { rate, .. } => rate.to_string(),
                LimitKind::Quota(quota) => quota.to_string(),
                _ => "slots".to_owned(),
            };
            let failure = check.limit.on_store_failure().name();
            format!(
                "{} of {kind}: {}, {failure}",
                check.cost,
                check.limit.counting().name()
            )
        });
        self.0.lock().expect("not poisoned").extend(noted);
        ready(Ok(Answer::new(None, Decision::UNLIMITED)))
    }

    fn now(&self) -> Timestamp {
        Timestamp::ZERO
    }
}

#[test]
fn each_check_says_how_it_is_counted_and_what_is_done_without_a_store() {
    let limits = "rate: 5/s, quota: 9/day, concurrency: 2";
    let noted = |text: &str, ask: &dyn Fn(&Engine<Noting>)| {
        let policy = Policy::from_text(text, Format::Yaml).unwrap().policy;
        let engine = Engine::new(policy, Noting::default()).unwrap();
        ask(&engine);
        engine.backend().0.lock().unwrap().join("; ")
    };
    let facts = Facts::new().with("tenant", "acme").with("tokens", "3");
    let by_facts = |engine: &Engine<Noting>| {
        let _ = at_once(engine.decide_async(&facts));
    };
    for (words, expect) in [
        ("", ["exact, closed", "exact, closed", "exact, closed"]),
        (
            ", counting: leased",
            ["leased, closed", "exact, closed", "exact, closed"],
        ),
        (
            ", counting: local",
            ["local, closed", "local, closed", "local, closed"],
        ),
        (
            ", on_store_failure: open",
            ["exact, open", "exact, open", "exact, open"],
        ),
    ] {
        let [rate, quota, slots] = expect;
        let rule = format!("limits: [{{name: a, {limits}, cost: 3{words}}}]");
        let expect = format!("3 of 5/s: {rate}; 3 of 9/day: {quota}; 3 of slots: {slots}");
        assert_eq!(noted(&rule, &by_facts), expect);
        let cost = "cost: {fact: tokens}";
        let tier = format!("tiers: {{a: {{{limits}, {cost}{words}}}}}\ndefault_tier: a");
        assert_eq!(noted(&tier, &by_facts), expect);
        let descriptor =
            format!("domain: edge\ndescriptors: [{{key: a, rate_limit: {{{limits}{words}}}}}]");
        let by_descriptor = |engine: &Engine<Noting>| {
            let entries = [Descriptor::new(&[("a", "b")])];
            let _ = at_once(engine.decide_descriptors_async("edge", &entries, 3));
        };
        // A request runs once, and what is left is asked for afterwards.
        let expect = expect.replace("3 of slots", "1 of slots");
        let noted = noted(&descriptor, &by_descriptor);
        assert!(noted.starts_with(&expect), "{noted} for {expect}");
    }
    // A limit that is brought along is kept where the configured one is.
    let text = "domain: edge\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 5, \
                quota: 9/day, counting: local}}]";
    let asked = |engine: &Engine<Noting>| {
        let own = Descriptor {
            limit: Some((7, Unit::Day)),
            ..Descriptor::new(&[("a", "b")])
        };
        let _ = at_once(engine.decide_descriptors_async("edge", &[own], 1));
    };
    let noted = noted(text, &asked);
    assert!(noted.starts_with("1 of 7/d: local, closed"), "{noted}");
}

#[test]
fn descriptors_get_what_they_have_chosen() {
    let fleet = Fleet::new(
        "domain: edge
on_store_failure: open
descriptors:
- {key: open, rate_limit: {quota: 2/day}}
- {key: closed, rate_limit: {rate: 2/h, on_store_failure: closed}}
- {key: local, rate_limit: {quota: 2/day, on_store_failure: local}}
- {key: shut, quota_mode: true, rate_limit: {rate: 2/h, on_store_failure: closed}}
- {key: near, quota_mode: true, rate_limit: {rate: 2/h, on_store_failure: local}}
",
        1,
    );
    let ask = |keys: &[&str], cost| {
        let entries: Vec<_> = keys.iter().map(|key| [(*key, "")]).collect();
        let descriptors = entries.iter().map(|entry| Descriptor {
            cost: Some(cost),
            ..Descriptor::new(entry)
        });
        let descriptors: Vec<_> = descriptors.collect();
        let deciding = fleet
            .engine
            .decide_descriptors_async("edge", &descriptors, 1);
        let Ok(verdict) = at_once(deciding);
        let refused = verdict.decider.filter(|_| verdict.refused().is_some());
        (
            verdict.fallback,
            refused.map(|number| keys[number].to_owned()),
        )
    };
    let refused = |key: &str| Some(key.to_owned());
    let (open, closed) = (Some(OnStoreFailure::Open), Some(OnStoreFailure::Closed));
    let local = Some(OnStoreFailure::Local);
    assert_eq!(ask(&["closed", "local"], 1), (None, None));
    fleet.switch(true);
    assert_eq!(ask(&["open"], 9), (open, None));
    assert_eq!(ask(&["open", "closed"], 1), (closed, refused("closed")));
    // Who only looks has nobody to ask either.
    assert_eq!(ask(&["closed", "closed"], 0), (closed, refused("closed")));
    // Of two a day the store has let one pass.
    assert_eq!(ask(&["local", "open"], 2), (local, refused("local")));
    assert_eq!(ask(&["local", "open"], 1), (local, None));
    assert_eq!(ask(&["local", "open"], 1), (local, refused("local")));
    // One that is shut is as one that is over: another of its kind is enough.
    assert_eq!(ask(&["shut", "near"], 2), (local, None));
    // Over here for half an hour; there the store may be back in a second.
    assert_eq!(ask(&["shut", "near"], 1), (closed, refused("shut")));
    assert_eq!(ask(&["near"], 1), (local, refused("near")));
    assert_eq!(ask(&["shut"], 1), (closed, refused("shut")));
}
