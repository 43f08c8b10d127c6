//! Refusals that are remembered and repeated without a question, for as long as they hold.

use std::convert::Infallible;
use std::future::Ready;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{engine, policy, rates, rule};
use crate::{awaited, user};
use tollgate::Timestamp;
use tollgate::clock::Manual;
use tollgate_engine::Engine;
use tollgate_engine::backend::{Answer, Backend, Check, Memory};
use tollgate_engine::policy::Limits;
use tollgate_engine::verdict::Cause;

/// Counts how often it is asked.
struct Asked {
    memory: Memory<Manual, Manual>,
    times: AtomicU64,
}

impl Backend for Asked {
    type Error = Infallible;
    type Asking<'a> = Ready<Result<Answer, Infallible>>;

    fn check<'a>(&'a self, checks: &'a [Check<'a>]) -> Self::Asking<'a> {
        self.times.fetch_add(1, Ordering::Relaxed);
        self.memory.check(checks)
    }

    fn now(&self) -> Timestamp {
        self.memory.now()
    }
}

#[test]
fn a_remembered_refusal_holds_until_time_or_a_new_policy_ends_it() {
    let clock = Manual::starting_at(Timestamp::from_secs(1));
    let memory = Memory::builder().clock(clock.clone()).wall(clock.clone());
    let backend = Asked {
        memory: memory.capacity(100).build(),
        times: AtomicU64::new(0),
    };
    let hourly = policy(vec![rule("one", rates(&["1/h"]))]);
    let engine = Engine::new(hourly, backend).unwrap().with_deny_cache(16);
    let facts = user("1");
    let decide = || awaited(engine.decide_async(&facts)).unwrap();
    let asked = || engine.backend().times.load(Ordering::Relaxed);
    assert!(decide().passed().is_some());
    for _ in 0..3 {
        let verdict = decide();
        assert_eq!(
            (verdict.refused().is_none(), verdict.cause()),
            (false, Cause::Rule("one"))
        );
        clock.advance(Duration::from_secs(60));
    }
    let left = Duration::from_secs(3_600 - 180);
    assert_eq!(decide().decision().retry_after, left);
    assert_eq!(
        asked(),
        2,
        "one passed, one was refused, the others were known"
    );
    assert!(
        awaited(engine.decide_async(&user("2")))
            .unwrap()
            .passed()
            .is_some()
    );
    assert_eq!(asked(), 3);

    engine
        .reload(policy(vec![rule("one", rates(&["100/h"]))]))
        .unwrap();
    // What is left of the one, and this one, of a hundred.
    assert_eq!(decide().decision().remaining, 98);
    assert_eq!(asked(), 4, "another policy, another question");
}

#[test]
fn what_is_forgotten_counts_no_more_and_refusals_neither() {
    let mut window = rule("window", rates(&["1/h"]));
    window.algorithm = tollgate::Algorithm::SlidingLog;
    let total = Limits {
        quota: Some(tollgate::Quota::per_day(1)),
        ..Limits::default()
    };
    let rules = vec![rule("one", rates(&["1/h"])), window, rule("total", total)];
    let engine = engine(policy(rules), &Manual::new()).with_deny_cache(16);
    let (facts, other) = (user("1"), user("2"));
    for facts in [&facts, &other] {
        assert!(engine.decide(facts).passed().is_some());
        assert!(engine.decide(facts).refused().is_some());
    }
    engine.forget(&facts);
    assert!(engine.decide(&facts).passed().is_some());
    assert!(engine.decide(&other).refused().is_some());
}

/// A backend whose answers take a second to come back.
struct Far(Memory<Manual, Manual>, Manual);

impl Backend for Far {
    type Error = Infallible;
    type Asking<'a> = Ready<Result<Answer, Infallible>>;

    fn check<'a>(&'a self, checks: &'a [Check<'a>]) -> Self::Asking<'a> {
        let answer = self.0.answer(checks);
        self.1.advance(Duration::from_secs(1));
        std::future::ready(Ok(answer))
    }

    fn now(&self) -> Timestamp {
        Backend::now(&self.0)
    }
}

#[test]
fn a_remembered_refusal_ends_when_it_was_to_however_long_the_answer_took() {
    let clock = Manual::starting_at(Timestamp::from_secs(1));
    let memory = Memory::builder().clock(clock.clone()).wall(clock.clone());
    let far = Far(memory.capacity(100).build(), clock.clone());
    let slow = policy(vec![rule("one", rates(&["1/10s"]))]);
    let engine = Engine::new(slow, far).unwrap().with_deny_cache(16);
    let facts = user("1");
    let decide = || awaited(engine.decide_async(&facts)).unwrap();
    assert!(decide().passed().is_some());
    assert_eq!(decide().decision().retry_after, Duration::from_secs(9));
    // It was said a second ago.
    assert_eq!(decide().decision().retry_after, Duration::from_secs(8));
    clock.advance(Duration::from_secs(8));
    assert!(decide().passed().is_some());
}
