//! A request without an answer has never run: nothing stays charged or held. Its future is dropped while a store
//! request is pending, or that request fails.

use std::future::{Future, pending, ready};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::Timestamp;
use tollgate::clock::Manual;
use tollgate_engine::backend::{
    Answer, Backend, Check, CheckResult, Clocks, Memory, Refund, RefundResult,
};
use tollgate_engine::document::Format;
use tollgate_engine::engine::{DescriptorRequest, MixedDecision};
use tollgate_engine::facts::Descriptor;
use tollgate_engine::{DecideOptions, Engine, Facts, Policy};

/// A memory that never answers about counters whose name has this in it, or fails.
struct Stuck {
    memory: Memory<Manual, Manual>,
    clock: Manual,
    on: &'static str,
    fails: bool,
}

impl Stuck {
    fn new(on: &'static str) -> Self {
        let clock = Manual::new();
        let memory = Memory::builder().capacity(100).clock(clock.clone());
        Self {
            memory: memory.wall(Manual::new()).build(),
            clock,
            on,
            fails: false,
        }
    }

    /// The same, which fails.
    fn failing(on: &'static str) -> Self {
        Self {
            fails: true,
            ..Self::new(on)
        }
    }

    fn is_stuck(&self, checks: &[Check<'_>]) -> bool {
        let name = |check: &Check<'_>| check.limit.counter().name.contains(self.on);
        checks.iter().any(name)
    }
}

impl Backend for Stuck {
    type Error = &'static str;

    async fn ask<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        _: Option<&'a mut Vec<CheckResult>>,
    ) -> Result<Answer, &'static str> {
        if self.is_stuck(checks) {
            return if self.fails {
                Err("it fails")
            } else {
                pending().await
            };
        }
        Ok(self.memory.answer(checks))
    }

    fn refund<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        _: Refund,
    ) -> impl Future<Output = Result<RefundResult, &'static str>> + Send + 'a {
        self.memory.refund_checks(checks);
        ready(Ok(RefundResult::Refunded))
    }

    fn peek<'a>(
        &'a self,
        checks: &'a [Check<'a>],
    ) -> impl Future<Output = Result<Vec<CheckResult>, &'static str>> + Send + 'a {
        let looked = Backend::peek(&self.memory, checks);
        async move { looked.await.map_err(|never| match never {}) }
    }

    fn now(&self) -> Timestamp {
        self.memory.now()
    }

    fn clocks(&self) -> Clocks {
        self.memory.clocks()
    }
}

fn drop_while_it_is_asked<T>(asking: impl Future<Output = T>) {
    let mut asking = Box::pin(asking);
    let mut context = Context::from_waker(Waker::noop());
    assert!(asking.as_mut().poll(&mut context).is_pending());
}

fn at_once<T>(asking: impl Future<Output = T>) -> T {
    match Box::pin(asking)
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("it isn't done at once"),
    }
}

const RULES: &str = "\
limits:
- {name: rate, key: user, rate: 100/h}
- {name: window, key: user, rate: 100/h, algorithm: fixed-window}
- {name: quota, key: user, quota: 100/day}
- {name: slots, key: user, concurrency: 5}
- {name: tokens, key: user, rate: 100/h, cost: {default: 10, settle_within: 60s}}
- {name: first, key: user, rate: 100/h, mode: shadow}
- {name: stuck, key: user, rate: 100/h, mode: shadow}
";

#[test]
fn a_request_that_is_dropped_while_a_shadow_is_asked_costs_nothing() {
    let policy = Policy::from_text(RULES, Format::Yaml)
        .expect("a policy")
        .policy;
    let engine = Engine::new(policy, Stuck::new("stuck")).expect("a policy");
    let facts = Facts::new().with("user", "ada").with_cost(10);
    for _ in 0..20 {
        drop_while_it_is_asked(engine.decide_async(&facts));
    }
    assert_eq!(engine.backend().memory.in_flight(), 0);
    let left = at_once(engine.remaining_async(&facts)).expect("looked at");
    let left: Vec<_> = left
        .iter()
        .map(|left| (&*left.rule, left.decision.remaining))
        .collect();
    let all = [
        "rate", "window", "quota", "slots", "tokens", "first", "stuck",
    ];
    let all = all.map(|rule| (rule, if rule == "slots" { 5 } else { 100 }));
    assert_eq!(left, all);
}

const TREE: &str = "\
domain: shop
descriptors:
- {key: user, rate_limit: {unit: hour, requests_per_unit: 100}}
- {key: stuck, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 100}}
";

#[test]
fn descriptors_that_are_dropped_while_a_shadow_is_asked_cost_nothing() {
    let policy = Policy::from_text(TREE, Format::Yaml)
        .expect("a policy")
        .policy;
    let engine = Engine::new(policy, Stuck::new("stuck")).expect("a policy");
    let user = Descriptor::new(&[("user", "ada")]);
    let both = [user, Descriptor::new(&[("stuck", "x")])];
    for _ in 0..20 {
        drop_while_it_is_asked(engine.decide_descriptors_async("shop", &both, 0));
    }
    let verdict = at_once(engine.decide_descriptors_async("shop", &[user], 0));
    let verdict = verdict.expect("decided");
    assert_eq!(
        verdict.statuses[0].decision.map(|it| it.remaining),
        Some(99)
    );
}

/// A policy of rules, if there are any, and of trees.
fn policy(rules: &str, tree: &str) -> Policy {
    let read = |text| Policy::from_text(text, Format::Yaml).expect("a policy");
    let trees = read(tree).policy;
    if rules.is_empty() {
        return trees;
    }
    let mut policy = read(rules).policy;
    policy.domains = trees.domains;
    policy
}

fn engine(rules: &str, tree: &str, backend: Stuck) -> Engine<Stuck> {
    Engine::new(policy(rules, tree), backend).expect("a policy")
}

/// What is left of the limit that these entries meet.
fn left(engine: &Engine<Stuck>, entries: &[(&str, &str)]) -> u64 {
    let look = Descriptor {
        cost: Some(0),
        ..Descriptor::new(entries)
    };
    let verdict = at_once(engine.decide_descriptors_async("shop", &[look], 0));
    let status = &verdict.expect("looked at").statuses[0];
    status.decision.expect("a limit").remaining
}

async fn decide_both<'f>(
    engine: &Engine<Stuck>,
    facts: &'f Facts<'f>,
    descriptors: &[Descriptor<'_>],
) -> Option<MixedDecision<'f>> {
    let request = DescriptorRequest {
        domain: "shop",
        descriptors,
        hits_addend: 1,
    };
    let known = engine.required_facts().into_owned();
    let on = DecideOptions::new().with_known_facts(&known);
    let verdict = engine.decide_with_descriptors(on, facts, request).await;
    verdict.expect("an answer")
}

const NO_RULES: &str = "";

const EACH: &str = "\
domain: shop
charging: each
descriptors:
- {key: user, rate_limit: {unit: hour, requests_per_unit: 100}}
- {key: site, rate_limit: {rate: 100/h}}
- {key: slots, rate_limit: {concurrency: 5}}
- {key: stuck, rate_limit: {unit: hour, requests_per_unit: 100}}
- {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 100}}
- {key: stuck-shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 100}}
";

const USER: &[(&str, &str)] = &[("user", "ada")];
const SITE: &[(&str, &str)] = &[("site", "x")];
const SLOTS: &[(&str, &str)] = &[("slots", "x")];
const STUCK: &[(&str, &str)] = &[("stuck", "x")];
const SHADOW: &[(&str, &str)] = &[("shadow", "x")];
const STUCK_SHADOW: &[(&str, &str)] = &[("stuck-shadow", "x")];

fn nothing_is_charged(engine: &Engine<Stuck>) {
    assert_eq!(engine.backend().memory.in_flight(), 0);
    for entries in [USER, SITE, SHADOW] {
        assert_eq!(left(engine, entries), 100, "{entries:?}");
    }
}

#[test]
fn descriptors_that_are_charged_one_by_one_cost_nothing_without_an_answer() {
    for stuck in [STUCK, STUCK_SHADOW] {
        let mut all = [USER, SITE, SLOTS, SHADOW, stuck].map(Descriptor::new);
        let dropped = engine(NO_RULES, EACH, Stuck::new("stuck"));
        for _ in 0..all.len() {
            drop_while_it_is_asked(dropped.decide_descriptors_async("shop", &all, 1));
            nothing_is_charged(&dropped);
            all.rotate_left(1);
        }
    }
    let mut all = [USER, SITE, SLOTS, SHADOW, STUCK].map(Descriptor::new);
    let failing = engine(NO_RULES, EACH, Stuck::failing("stuck"));
    for _ in 0..all.len() {
        let verdict = at_once(failing.decide_descriptors_async("shop", &all, 1));
        assert_eq!(verdict.expect_err("it fails"), "it fails");
        nothing_is_charged(&failing);
        all.rotate_left(1);
    }
}

#[test]
fn shadows_that_have_answered_cost_nothing_if_others_never_do() {
    let tree = EACH.replace("charging: each\n", "");
    let mut all = [USER, SLOTS, SHADOW, STUCK_SHADOW].map(Descriptor::new);
    let engine = engine(NO_RULES, &tree, Stuck::new("stuck"));
    for _ in 0..all.len() {
        drop_while_it_is_asked(engine.decide_descriptors_async("shop", &all, 1));
        nothing_is_charged(&engine);
        all.rotate_left(1);
    }
}

#[test]
fn a_denial_keeps_what_others_were_charged_one_by_one() {
    let engine = engine(NO_RULES, EACH, Stuck::new("stuck"));
    let all = [USER, SLOTS].map(Descriptor::new);
    let dear = Descriptor {
        cost: Some(101),
        ..Descriptor::new(SITE)
    };
    let verdict = at_once(engine.decide_descriptors_async("shop", &[all[0], all[1], dear], 1));
    assert!(verdict.expect("decided").denied().is_some());
    assert_eq!((left(&engine, USER), left(&engine, SITE)), (99, 100));
    assert_eq!(engine.backend().memory.in_flight(), 0);
}

#[test]
fn trees_that_were_charged_first_cost_nothing_if_the_rules_never_answer() {
    let facts = Facts::new().with("user", "ada");
    let descriptors = [USER, SITE, SLOTS, SHADOW].map(Descriptor::new);
    // The backend never answers, or the request waits for its turn.
    let waits = "limits: [{name: slow, rate: 1/h, over: wait 2h}]";
    for rules in ["limits: [{name: stuck, rate: 100/h}]", waits] {
        let engine = engine(rules, EACH, Stuck::new("stuck"));
        if rules == waits {
            assert!(at_once(engine.decide_async(&facts)).is_ok());
        }
        for _ in 0..5 {
            drop_while_it_is_asked(decide_both(&engine, &facts, &descriptors));
            nothing_is_charged(&engine);
        }
    }
    let fails = "limits: [{name: stuck, rate: 100/h}]";
    let engine = engine(fails, EACH, Stuck::failing("stuck"));
    let request = DescriptorRequest {
        domain: "shop",
        descriptors: &descriptors,
        hits_addend: 1,
    };
    let verdict = engine.decide_with_descriptors(DecideOptions::new(), &facts, request);
    assert_eq!(at_once(verdict).expect_err("it fails"), "it fails");
    nothing_is_charged(&engine);
}

#[test]
fn trees_that_were_charged_first_cost_nothing_if_the_policy_wants_to_know_more() {
    let waits = "limits: [{name: slow, rate: 1/h, over: wait 2h}]";
    let engine = engine(waits, EACH, Stuck::new("stuck"));
    let facts = Facts::new().with("user", "ada");
    assert!(at_once(engine.decide_async(&facts)).is_ok());
    let descriptors = [USER, SITE, SLOTS, SHADOW].map(Descriptor::new);
    let mut waiting = Box::pin(decide_both(&engine, &facts, &descriptors));
    let mut context = Context::from_waker(Waker::noop());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    assert_eq!(left(&engine, USER), 99);
    let more = policy("limits: [{name: more, key: tenant, rate: 1/h}]", EACH);
    engine.reload(more).expect("a policy");
    engine.backend().clock.advance(Duration::from_secs(3_600));
    assert!(at_once(waiting).is_none());
    nothing_is_charged(&engine);
}

#[test]
fn a_denial_by_a_rule_keeps_what_trees_were_charged_one_by_one() {
    let engine = engine(
        "limits: [{name: dear, rate: 1/h}]",
        EACH,
        Stuck::new("stuck"),
    );
    let facts = Facts::new().with_cost(2);
    let descriptors = [USER, SLOTS].map(Descriptor::new);
    let verdict = at_once(decide_both(&engine, &facts, &descriptors));
    assert!(matches!(verdict, Some(MixedDecision::DeniedByRule(_))));
    assert_eq!(left(&engine, USER), 99);
    assert_eq!(engine.backend().memory.in_flight(), 0);
}
