//! Requests that may not wait, and requests for which a new policy needs more facts.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate_engine::{DecideOptions, Facts};

use super::tasks::Tasks;
use super::{TestEngine, engine, policy};

const COMMON: &str = "{name: common, rate: 10/h}";

/// What a request came to; none if there were facts that nobody had looked for.
type Outcome = Option<bool>;

/// Extracts the facts that are needed now, and decides by them.
async fn ask(engine: &TestEngine, facts: &[(&str, &str)]) -> Outcome {
    let asked = engine.required_facts().into_owned();
    let found = facts
        .iter()
        .filter(|(name, _)| asked.contains(&(*name).into()));
    let found: Facts<'_> = found.copied().collect();
    let on = DecideOptions::new().with_known_facts(&asked);
    let Ok(verdict) = engine.decide_with_conditions(on, &found).await;
    verdict.map(|verdict| verdict.allowed().is_some())
}

fn left(engine: &TestEngine) -> u64 {
    engine.peek(&Facts::new()).decision().remaining
}

#[test]
fn who_waits_is_not_decided_by_rules_that_want_to_know_more_and_costs_nothing() {
    let clock = Manual::new();
    let text = format!("limits: [{COMMON}, {{name: slow, rate: 1/s, over: wait 9s}}]");
    let engine = engine(&text, &clock);
    let mut tasks = Tasks::new();
    for name in 0..4 {
        let engine = &engine;
        tasks.start(name, async move { ask(engine, &[("user", "ada")]).await });
    }
    assert_eq!(tasks.take_done(), [(0, Some(true))]);
    assert_eq!(engine.waiter_count(), 3);
    // It asks for nothing that wasn't looked for, so it decides.
    let text = format!("limits: [{COMMON}, {{name: slow, rate: 1/s, over: wait 8s}}]");
    engine.reload(policy(&text)).expect("a policy");
    clock.advance(Duration::from_secs(1));
    tasks.run();
    assert_eq!(tasks.take_done(), [(1, Some(true))]);
    // It does, and doesn't.
    let text = format!("limits: [{COMMON}, {{name: users, key: user, rate: 1/h}}]");
    engine.reload(policy(&text)).expect("a policy");
    for _ in 0..9 {
        clock.advance(Duration::from_secs(1));
        tasks.run();
    }
    assert_eq!(tasks.take_done(), [(2, None), (3, None)]);
    assert_eq!((engine.waiter_count(), left(&engine)), (0, 8));
    // Asked again they are known.
    for name in [4, 5] {
        let engine = &engine;
        tasks.start(name, async move { ask(engine, &[("user", "ada")]).await });
    }
    let done = tasks.take_done();
    assert_eq!(done, [(4, Some(true)), (5, Some(false))]);
    assert_eq!(left(&engine), 7);
}

#[test]
fn who_may_not_wait_stands_in_no_line_and_passes_none() {
    let clock = Manual::new();
    let engine = engine("limits: [{name: slow, rate: 1/s, over: wait 9s}]", &clock);
    let at_once = async || {
        let facts = Facts::new();
        let Ok(verdict) = engine
            .decide_with_conditions(DecideOptions::new().without_waiting(), &facts)
            .await;
        verdict.map(|verdict| verdict.allowed().is_some())
    };
    let mut tasks = Tasks::new();
    tasks.start(0, at_once());
    tasks.start(1, at_once());
    assert_eq!(tasks.take_done(), [(0, Some(true)), (1, Some(false))]);
    tasks.start(2, ask(&engine, &[]));
    assert_eq!(engine.waiter_count(), 1);
    // There is room, and somebody was first.
    clock.advance(Duration::from_secs(1));
    let said = pin!(at_once()).poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(said, Poll::Ready(Some(false)));
    tasks.run();
    assert_eq!(tasks.take_done(), [(2, Some(true))]);
}
