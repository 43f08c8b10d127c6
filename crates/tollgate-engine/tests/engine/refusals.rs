//! Cached denials, repeated without a store request for as long as they hold.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::common::{engine, policy, rates, rule};
use crate::{awaited, user};
use tollgate::clock::Manual;
use tollgate::{Decision, Outcome, Timestamp};
use tollgate_engine::backend::{Answer, Backend, Check, CheckResult, Memory};
use tollgate_engine::document::Format;
use tollgate_engine::facts::Descriptor;
use tollgate_engine::policy::Limits;
use tollgate_engine::verdict::Cause;
use tollgate_engine::{Engine, Policy};

/// Counts its requests.
struct Asked {
    memory: Memory<Manual, Manual>,
    times: AtomicU64,
}

impl Backend for Asked {
    type Error = Infallible;

    fn ask<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        _: Option<&'a mut Vec<CheckResult>>,
    ) -> impl Future<Output = Result<Answer, Infallible>> + Send + 'a {
        self.times.fetch_add(1, Ordering::Relaxed);
        self.memory.ask(checks, None)
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
    assert!(decide().allowed().is_some());
    for _ in 0..3 {
        let verdict = decide();
        assert_eq!(
            (verdict.denied().is_none(), verdict.cause()),
            (false, Cause::Rule("one"))
        );
        clock.advance(Duration::from_millis(300));
    }
    let left = Duration::from_secs(3_600) - Duration::from_millis(900);
    assert_eq!(decide().decision().wait_or_max(), left);
    assert_eq!(
        asked(),
        2,
        "one passed, one was refused, the others were known"
    );
    // A second after it was told, and each second from then on, it is asked about again.
    for number in 3..6 {
        clock.advance(Duration::from_secs(1));
        for _ in 0..3 {
            assert!(decide().denied().is_some());
        }
        assert_eq!(asked(), number);
    }
    assert!(
        awaited(engine.decide_async(&user("2")))
            .unwrap()
            .allowed()
            .is_some()
    );
    assert_eq!(asked(), 6);

    engine
        .reload(policy(vec![rule("one", rates(&["100/h"]))]))
        .unwrap();
    // What is left of the one, and this one, of a hundred.
    assert_eq!(decide().decision().remaining, 98);
    assert_eq!(asked(), 7, "another policy, another question");
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
        assert!(engine.decide(facts).allowed().is_some());
        assert!(engine.decide(facts).denied().is_some());
    }
    engine.reset_request(&facts);
    assert!(engine.decide(&facts).allowed().is_some());
    assert!(engine.decide(&other).denied().is_some());
}

/// A far backend that another process counts in, too, and that fails on command.
struct Shared {
    memory: Memory<Manual, Manual>,
    fails: AtomicBool,
    times: AtomicU64,
    /// Answers come only once this is up.
    answers: AtomicBool,
}

impl Backend for Shared {
    type Error = &'static str;

    fn ask<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        _: Option<&'a mut Vec<CheckResult>>,
    ) -> impl Future<Output = Result<Answer, &'static str>> + Send + 'a {
        self.times.fetch_add(1, Ordering::Relaxed);
        let answer = if self.fails.load(Ordering::Relaxed) {
            Err("away")
        } else {
            Ok(self.memory.answer(checks))
        };
        let mut answer = Some(answer);
        Box::pin(std::future::poll_fn(move |_| {
            if self.answers.load(Ordering::Relaxed) {
                Poll::Ready(answer.take().expect("one answer"))
            } else {
                Poll::Pending
            }
        }))
    }

    fn now(&self) -> Timestamp {
        self.memory.now()
    }
}

/// An engine whose backend has denied a key for an hour, and the clock.
fn denied() -> (Engine<Shared>, Manual) {
    let clock = Manual::starting_at(Timestamp::from_secs(1));
    let memory = Memory::builder().clock(clock.clone()).wall(clock.clone());
    let backend = Shared {
        memory: memory.capacity(100).build(),
        fails: AtomicBool::new(false),
        times: AtomicU64::new(0),
        answers: AtomicBool::new(true),
    };
    let hourly = policy(vec![rule("one", rates(&["1/h"]))]);
    let engine = Engine::new(hourly, backend)
        .expect("it works")
        .with_deny_cache(16);
    let facts = user("1");
    assert!(
        awaited(engine.decide_async(&facts))
            .expect("it works")
            .allowed()
            .is_some()
    );
    assert!(
        awaited(engine.decide_async(&facts))
            .expect("it works")
            .denied()
            .is_some()
    );
    (engine, clock)
}

#[test]
fn one_request_asks_again_while_the_others_repeat_the_denial() {
    let (engine, clock) = denied();
    let facts = user("1");
    let asked = || engine.backend().times.load(Ordering::Relaxed);
    let is_denied = || {
        awaited(engine.decide_async(&facts))
            .unwrap()
            .denied()
            .is_some()
    };
    clock.advance(Duration::from_secs(1));
    engine.backend().answers.store(false, Ordering::Relaxed);
    let poll = |asking: Pin<&mut dyn Future<Output = bool>>| {
        asking.poll(&mut Context::from_waker(Waker::noop()))
    };
    let deciding = || async {
        engine
            .decide_async(&facts)
            .await
            .unwrap()
            .allowed()
            .is_some()
    };
    let mut first = Box::pin(deciding());
    assert!(poll(first.as_mut()).is_pending());
    assert_eq!(asked(), 3);
    for _ in 0..5 {
        assert!(is_denied());
    }
    assert_eq!(asked(), 3, "one asks");
    // It is given up, so the next one asks.
    drop(first);
    let mut second = Box::pin(deciding());
    assert!(poll(second.as_mut()).is_pending());
    assert_eq!(asked(), 4);
    assert!(is_denied());
    engine.backend().answers.store(true, Ordering::Relaxed);
    assert_eq!(poll(second.as_mut()), Poll::Ready(false));
    clock.advance(Duration::from_millis(999));
    assert!(is_denied());
    assert_eq!(asked(), 4, "it was noted as of when it was asked");
}

#[test]
fn a_denial_decides_while_the_backend_fails_until_its_time_is_over() {
    let (engine, clock) = denied();
    let facts = user("1");
    let asked = || engine.backend().times.load(Ordering::Relaxed);
    let fails = &engine.backend().fails;
    fails.store(true, Ordering::Relaxed);
    assert!(awaited(engine.decide_async(&user("2"))).is_err());
    for number in 4..7 {
        clock.advance(Duration::from_secs(1));
        for _ in 0..3 {
            let verdict = awaited(engine.decide_async(&facts)).expect("a denial that holds");
            assert!(verdict.denied().is_some());
        }
        assert_eq!(asked(), number, "once a second");
    }
    fails.store(false, Ordering::Relaxed);
    clock.advance(Duration::from_secs(3_600));
    assert!(
        awaited(engine.decide_async(&facts))
            .unwrap()
            .allowed()
            .is_some()
    );
}

/// A backend whose answers take a second to come back.
struct Far(Memory<Manual, Manual>, Manual);

impl Backend for Far {
    type Error = Infallible;

    fn ask<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        _: Option<&'a mut Vec<CheckResult>>,
    ) -> impl Future<Output = Result<Answer, Infallible>> + Send + 'a {
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
    assert!(decide().allowed().is_some());
    assert_eq!(decide().decision().wait_or_max(), Duration::from_secs(9));
    // It was said a second ago.
    assert_eq!(decide().decision().wait_or_max(), Duration::from_secs(8));
    clock.advance(Duration::from_secs(8));
    assert!(decide().allowed().is_some());
}

/// A store that is unavailable, and of which a denial is known; peeks are counted.
struct Away(AtomicU64);

impl Backend for Away {
    type Error = Infallible;

    async fn ask<'a>(
        &'a self,
        _: &'a [Check<'a>],
        _: Option<&'a mut Vec<CheckResult>>,
    ) -> Result<Answer, Infallible> {
        let wait = Duration::from_secs(9);
        let denied = Decision::new(Outcome::Denied, 5, 0, wait, wait);
        Ok(Answer::known(Some(0), denied))
    }

    async fn peek<'a>(&'a self, checks: &'a [Check<'a>]) -> Result<Vec<CheckResult>, Infallible> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(vec![Ok(Decision::UNLIMITED); checks.len()])
    }

    fn now(&self) -> Timestamp {
        Timestamp::ZERO
    }
}

#[test]
fn a_known_denial_of_one_limit_of_a_tree_is_repeated_without_a_peek() {
    let text =
        "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 5}}]";
    let policy = Policy::from_text(text, Format::Yaml).unwrap().policy;
    let engine = Engine::new(policy, Away(AtomicU64::new(0))).unwrap();
    let entries = [("user", "1")];
    let descriptors = [Descriptor::new(&entries)];
    let deciding = engine.decide_descriptors_async("edge", &descriptors, 1);
    assert!(awaited(deciding).unwrap().denied().is_some());
    assert_eq!(engine.backend().0.load(Ordering::Relaxed), 0);
}
