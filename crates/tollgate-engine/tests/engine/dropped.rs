//! A request whose future is dropped while only rules in shadow are still asked has never run: nothing stays charged, and
//! nothing held.

use std::future::{Future, pending, ready};
use std::task::{Context, Poll, Waker};

use tollgate::Timestamp;
use tollgate::clock::Manual;
use tollgate_engine::backend::{Answer, Backend, Check, CheckResult, Gift, Memory, Refund};
use tollgate_engine::document::Format;
use tollgate_engine::facts::Descriptor;
use tollgate_engine::{Engine, Facts, Policy};

/// A memory that never answers about counters whose name has this in it.
struct Stuck {
    memory: Memory<Manual, Manual>,
    on: &'static str,
}

impl Stuck {
    fn new(on: &'static str) -> Self {
        let memory = Memory::builder().capacity(100).clock(Manual::new());
        Self {
            memory: memory.wall(Manual::new()).build(),
            on,
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
            return pending().await;
        }
        Ok(self.memory.answer(checks))
    }

    fn refund<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        _: Refund,
    ) -> impl Future<Output = Result<Gift, &'static str>> + Send + 'a {
        self.memory.give_back(checks);
        ready(Ok(Gift::Given))
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
    let facts = Facts::new().with("user", "ada").costing(10);
    for _ in 0..20 {
        drop_while_it_is_asked(engine.decide_async(&facts));
    }
    assert_eq!(engine.backend().memory.in_flight(), 0);
    let left = at_once(engine.left_async(&facts)).expect("looked at");
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
