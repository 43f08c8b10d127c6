//! Failures in queues of waiters: the head of a queue disappears, or a refund arrives at the worst moment.

use std::convert::Infallible;
use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{Clock, Timestamp};
use tollgate_engine::backend::{Answer, Backend, Check, CheckResult, Clocks, Memory};
use tollgate_engine::verdict::Permits;
use tollgate_engine::{Engine, Facts, RequestDecision};

use super::tasks::Tasks;
use super::{engine, policy};

const MS: Duration = Duration::from_millis(1);

/// What a request came to: what it holds, or how long it is to wait.
type Outcome = Result<Permits, Duration>;

async fn ask<B: Backend>(engine: &Engine<B>, facts: &[(&'static str, &'static str)]) -> Outcome {
    let mut own = Facts::new();
    for (fact, value) in facts {
        own = own.with(fact, value);
    }
    match engine.decide_async(&own).await {
        Ok(RequestDecision::Allowed(passed)) => Ok(passed.into_permits()),
        Ok(RequestDecision::Denied(refused)) => Err(refused.decision().wait_or_max()),
        Err(_) => panic!("memory never fails"),
    }
}

fn names(done: &[(usize, Outcome)]) -> Vec<(usize, bool)> {
    let name = |(name, outcome): &(usize, Outcome)| (*name, outcome.is_ok());
    done.iter().map(name).collect()
}

/// Polls a future once, and never again; its position in the queue stays.
fn leak<'a>(future: impl Future<Output = Outcome> + 'a) {
    let mut future: Pin<Box<dyn Future<Output = Outcome> + 'a>> = Box::pin(future);
    let polled = future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending(), "it waits");
    mem::forget(future);
}

#[test]
fn who_is_never_polled_again_stops_a_line_no_longer_than_it_may_wait() {
    let clock = Manual::new();
    let engine = engine(
        "limits: [{name: a, rate: 10/s burst 1, over: wait 1s}]",
        &clock,
    );
    let mut tasks = Tasks::new();
    tasks.start(0, ask(&engine, &[]));
    leak(ask(&engine, &[]));
    leak(ask(&engine, &[]));
    clock.advance(700 * MS);
    tasks.start(1, ask(&engine, &[]));
    tasks.start(2, ask(&engine, &[]));
    assert_eq!(names(&tasks.take_done()), [(0, true)]);
    for _ in 0..700 {
        clock.advance(MS);
        tasks.run();
    }
    assert_eq!(names(&tasks.take_done()), [(1, true), (2, true)]);
    assert_eq!(engine.waiter_count(), 0);
}

#[test]
fn who_is_never_polled_again_keeps_nobody_out_who_does_not_wait() {
    let clock = Manual::new();
    let engine = engine(
        "limits: [{name: a, rate: 10/s burst 1, over: wait 1s}]",
        &clock,
    );
    let facts = Facts::new();
    assert!(engine.decide(&facts).allowed().is_some());
    leak(ask(&engine, &[]));
    clock.advance(500 * MS);
    assert!(engine.decide(&facts).denied().is_some(), "there is a line");
    clock.advance(1_000 * MS);
    assert!(engine.decide(&facts).allowed().is_some());
    assert_eq!(engine.waiter_count(), 0);
}

/// Memory whose answers take a while to arrive, while they are held up.
struct Far {
    memory: Memory<Manual, Manual>,
    is_held_up: AtomicBool,
    clock: Manual,
}

impl Backend for Far {
    type Error = Infallible;

    fn ask<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        _: Option<&'a mut Vec<CheckResult>>,
    ) -> impl Future<Output = Result<Answer, Infallible>> + Send + 'a {
        let answer = self.memory.answer(checks);
        Box::pin(async move {
            poll_fn(|context| {
                if !self.is_held_up.load(Ordering::Relaxed) {
                    return Poll::Ready(());
                }
                context.waker().wake_by_ref();
                Poll::Pending
            })
            .await;
            Ok(answer)
        })
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn clocks(&self) -> Clocks {
        Clocks {
            clock: Arc::new(self.clock.clone()),
            ..Clocks::default()
        }
    }
}

fn far(text: &str, clock: &Manual) -> Engine<Far> {
    let memory = Memory::builder().capacity(100);
    let memory = memory.clock(clock.clone()).wall(clock.clone()).build();
    let far = Far {
        memory,
        is_held_up: AtomicBool::new(false),
        clock: clock.clone(),
    };
    Engine::new(policy(text), far).expect("a policy")
}

fn hold_up(engine: &Engine<Far>, is_held_up: bool) {
    let held_up = &engine.backend().is_held_up;
    held_up.store(is_held_up, Ordering::Relaxed);
}

const ESTIMATED: &str = "limits: [{name: a, rate: 1/m burst 10, cost: {fact: max, default: 10, settle_within: 1h}, over: wait 20m}]";

/// Polls it once, by nobody who could be woken.
fn poll<'a>(future: &mut Pin<Box<dyn Future<Output = Outcome> + 'a>>) -> Poll<Outcome> {
    let mut context = Context::from_waker(Waker::noop());
    future.as_mut().poll(&mut context)
}

#[test]
fn what_comes_back_while_the_first_hears_that_there_is_none_is_not_missed() {
    // At the first question, and at one that was asked in line.
    for is_in_line in [false, true] {
        let clock = Manual::new();
        let engine = far(ESTIMATED, &clock);
        let mut all: Pin<Box<dyn Future<Output = Outcome>>> = Box::pin(ask(&engine, &[]));
        let Poll::Ready(Ok(mut permits)) = poll(&mut all) else {
            panic!("a full bucket");
        };
        hold_up(&engine, !is_in_line);
        let mut waits: Pin<Box<dyn Future<Output = Outcome>>> = Box::pin(ask(&engine, &[]));
        assert!(poll(&mut waits).is_pending());
        if is_in_line {
            hold_up(&engine, true);
            clock.advance(Duration::from_secs(600));
            assert!(poll(&mut waits).is_pending());
        }
        permits.settle(0);
        hold_up(&engine, false);
        assert!(
            matches!(poll(&mut waits), Poll::Ready(Ok(_))),
            "in line: {is_in_line}"
        );
        assert_eq!(engine.waiter_count(), 0);
    }
}

#[test]
fn a_reload_while_the_first_hears_that_there_is_none_is_not_missed() {
    let clock = Manual::new();
    let text = "limits: [{name: a, rate: 1/m burst 1, over: wait 20m}]";
    let engine = far(text, &clock);
    let mut first: Pin<Box<dyn Future<Output = Outcome>>> = Box::pin(ask(&engine, &[]));
    assert!(poll(&mut first).is_ready());
    let mut waits: Pin<Box<dyn Future<Output = Outcome>>> = Box::pin(ask(&engine, &[]));
    hold_up(&engine, true);
    assert!(poll(&mut waits).is_pending());
    let other = policy("limits: [{name: b, rate: 9/s}]");
    engine.reload(other).expect("a policy");
    hold_up(&engine, false);
    assert!(matches!(poll(&mut waits), Poll::Ready(Ok(_))));
}

#[test]
fn who_is_next_does_not_wait_for_what_another_limit_has_left() {
    let clock = Manual::new();
    let engine = engine(
        "limits:\n\
         - {name: a, rate: 1/m burst 10, cost: {fact: max, settle_within: 1h}, over: wait 20m}\n\
         - {name: b, key: user, concurrency: 1}",
        &clock,
    );
    let mut tasks = Tasks::new();
    tasks.start(0, ask(&engine, &[("max", "10")]));
    let (_, all) = tasks.take_done().remove(0);
    let mut all = all.expect("a full bucket");
    tasks.start(1, ask(&engine, &[("max", "5"), ("user", "ada")]));
    tasks.start(2, ask(&engine, &[("max", "5"), ("user", "bob")]));
    all.settle(0);
    tasks.run();
    assert_eq!(names(&tasks.take_done()), [(1, true), (2, true)]);
}

#[test]
fn what_an_operator_gives_and_what_others_settle_is_had_at_once() {
    let clock = Manual::new();
    let engine = engine(ESTIMATED, &clock);
    let facts = Facts::new();
    let mut tasks = Tasks::new();
    // Held by a call that doesn't wait.
    let passed = engine.decide(&facts).allowed();
    let mut permits = passed.expect("a full bucket").into_permits();
    tasks.start(0, ask(&engine, &[]));
    permits.settle(0);
    tasks.run();
    assert_eq!(names(&tasks.take_done()), [(0, true)]);
    tasks.start(1, ask(&engine, &[]));
    engine.reset_request(&facts);
    tasks.run();
    assert_eq!(names(&tasks.take_done()), [(1, true)]);
}

#[test]
fn what_can_never_pass_does_not_stand_in_line() {
    let clock = Manual::new();
    let engine = engine(
        "limits: [{name: a, rate: 10/s burst 1, cost: {fact: cost}, over: wait 9s}]",
        &clock,
    );
    let mut tasks = Tasks::new();
    for name in 0..2 {
        tasks.start(name, ask(&engine, &[]));
    }
    tasks.start(2, ask(&engine, &[("cost", "2")]));
    assert_eq!(names(&tasks.take_done()), [(0, true), (2, false)]);
    let facts = Facts::new().with("cost", "2");
    let told = engine.decide(&facts).decision().retry_after_secs();
    assert_eq!(told, None, "never");
}

#[test]
fn a_look_tells_of_the_line() {
    let clock = Manual::new();
    let engine = engine(
        "limits: [{name: a, rate: 10/s burst 1, over: wait 9s}]",
        &clock,
    );
    let mut tasks = Tasks::new();
    for name in 0..3 {
        tasks.start(name, ask(&engine, &[]));
    }
    let facts = Facts::new();
    let told = *engine.decide(&facts).decision();
    assert_eq!(told.wait_or_max(), 300 * MS);
    assert_eq!(engine.peek(&facts).decision(), &told);
    clock.advance(150 * MS);
    let told = *engine.decide(&facts).decision();
    assert!(!told.is_allowed());
    assert_eq!(engine.peek(&facts).decision(), &told);
}
