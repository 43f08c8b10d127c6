//! `over: wait`: first come first served, within the limit, and no longer than the rule's maximum.

use std::cell::Cell;
use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use tollgate::Clock;
use tollgate::clock::Manual;
use tollgate_engine::verdict::Permits;
use tollgate_engine::{Bounds, Facts, RequestDecision};

use super::tasks::Tasks;
use super::{TestEngine, engine, policy};

const MS: Duration = Duration::from_millis(1);

/// What a request came to: what it holds, or how long it is to wait.
pub(crate) type Outcome = Result<Permits, Duration>;

async fn ask(engine: &TestEngine, facts: Vec<(&'static str, String)>) -> Outcome {
    let mut own = Facts::new();
    for (fact, value) in &facts {
        own = own.with(fact, value);
    }
    let Ok(verdict) = engine.decide_async(&own).await;
    match verdict {
        RequestDecision::Allowed(passed) => Ok(passed.into_permits()),
        RequestDecision::Denied(refused) => Err(refused.decision().wait_or_max()),
    }
}

pub(crate) fn start<'a>(tasks: &mut Tasks<'a, Outcome>, name: usize, engine: &'a TestEngine) {
    tasks.start(name, async move { ask(engine, Vec::new()).await });
}

pub(crate) fn names(done: &[(usize, Outcome)]) -> Vec<usize> {
    done.iter().map(|(name, _)| *name).collect()
}

#[test]
fn those_who_wait_pass_in_the_order_in_which_they_came() {
    let clock = Manual::new();
    let engine = engine(
        "limits: [{name: a, rate: 10/s burst 1, over: wait 1s}]",
        &clock,
    )
    .with_counters(10);
    let mut tasks = Tasks::new();
    for name in 0..6 {
        start(&mut tasks, name, &engine);
    }
    assert_eq!(names(&tasks.take_done()), [0]);
    assert_eq!(engine.waiter_count(), 5);
    for name in 1..6 {
        clock.advance(99 * MS);
        tasks.run();
        assert!(tasks.take_done().is_empty(), "{name} is early");
        clock.advance(MS);
        tasks.run();
        let done = tasks.take_done();
        assert_eq!(names(&done), [name]);
        assert!(done[0].1.is_ok());
    }
    assert_eq!(engine.waiter_count(), 0);
    // How long they waited is counted, and each of them once.
    let waits = engine.wait_times().expect("it counts");
    assert_eq!(waits.counts(), [0, 0, 0, 0, 0, 1, 1, 3, 0, 0, 0, 0, 0]);
    assert_eq!(waits.sum(), 1_500 * MS);
    let tallies = engine.counters();
    let own = tallies.iter().find(|tally| &*tally.limiter == "a");
    assert_eq!(
        own.map(|own| (own.allowed, own.denied_total())),
        Some((6, 0))
    );
}

#[test]
fn who_can_not_have_its_turn_in_time_is_refused_at_once_and_told_when_it_could() {
    let clock = Manual::new();
    let engine = engine(
        "limits: [{name: a, rate: 10/s burst 1, over: wait 200ms}]",
        &clock,
    );
    let mut tasks = Tasks::new();
    for name in 0..5 {
        start(&mut tasks, name, &engine);
    }
    let done = tasks.take_done();
    assert_eq!(names(&done), [0, 3, 4]);
    assert_eq!(done[1].1.as_ref().err(), Some(&(300 * MS)));
    assert_eq!(done[2].1.as_ref().err(), Some(&(300 * MS)));
    clock.advance(200 * MS);
    tasks.run();
    clock.advance(MS);
    tasks.run();
    let done = tasks.take_done();
    assert_eq!(names(&done), [1, 2], "both were due at 200 ms");
}

#[test]
fn a_wait_that_is_dropped_frees_its_place_in_any_order() {
    for oldest_first in [true, false] {
        let clock = Manual::new();
        let engine = engine(
            "limits: [{name: a, rate: 10/s burst 1, over: wait 9s}]",
            &clock,
        );
        let mut tasks = Tasks::new();
        for name in 0..21 {
            start(&mut tasks, name, &engine);
        }
        let mut gone: Vec<_> = (1..21).collect();
        if !oldest_first {
            gone.reverse();
        }
        for name in gone {
            tasks.drop_task(name);
        }
        assert_eq!(engine.waiter_count(), 0);
        start(&mut tasks, 99, &engine);
        tasks.take_done();
        clock.advance(100 * MS);
        tasks.run();
        assert_eq!(names(&tasks.take_done()), [99]);
    }
}

#[test]
fn thirty_tasks_with_timeouts_get_what_may_pass() {
    let clock = Manual::new();
    let engine = engine(
        "limits: [{name: a, rate: 50/s burst 5, over: wait 9s}]",
        &clock,
    );
    let (mut tasks, mut passed) = (Tasks::new(), 0);
    let mut since = HashMap::new();
    for name in 0..30 {
        start(&mut tasks, name, &engine);
        since.insert(name, 0);
    }
    let mut next = 30;
    for now in 1..=5_000_u64 {
        clock.advance(MS);
        tasks.run();
        let late: Vec<_> = since
            .iter()
            .filter(|(_, at)| now - **at >= 100)
            .map(|(name, _)| *name)
            .collect();
        for name in late {
            tasks.drop_task(name);
            since.remove(&name);
        }
        for (name, outcome) in tasks.take_done() {
            passed += u64::from(outcome.is_ok());
            since.remove(&name);
        }
        while since.len() < 30 {
            start(&mut tasks, next, &engine);
            since.insert(next, now);
            next += 1;
        }
    }
    assert!((253..=255).contains(&passed), "{passed} of 255");
}

#[test]
fn nobody_passes_a_line() {
    let clock = Manual::new();
    let engine = engine(
        "limits: [{name: a, rate: 10/s burst 1, over: wait 1s}]",
        &clock,
    );
    let mut tasks = Tasks::new();
    for name in 0..3 {
        start(&mut tasks, name, &engine);
    }
    clock.advance(100 * MS);
    // Not even before the first was polled.
    let facts = Facts::new();
    let verdict = engine.decide(&facts);
    assert!(verdict.denied().is_some());
    assert_eq!(verdict.decision().wait_or_max(), 200 * MS);
    tasks.run();
    assert_eq!(names(&tasks.take_done()), [0, 1]);
}

#[test]
fn a_slot_that_is_given_back_is_had_at_once_by_who_waits_longest() {
    let clock = Manual::new();
    let engine = engine(
        "limits: [{name: jobs, concurrency: 1, over: wait 1s}]",
        &clock,
    );
    let mut tasks = Tasks::new();
    for name in 0..3 {
        start(&mut tasks, name, &engine);
    }
    for name in 0..3 {
        let done = tasks.take_done();
        assert_eq!(names(&done), [name]);
        drop(done);
        tasks.run();
    }
    assert_eq!(engine.waiter_count(), 0);
}

#[test]
fn who_waits_for_a_slot_is_refused_when_its_time_is_over() {
    let clock = Manual::new();
    let engine = engine(
        "limits: [{name: jobs, concurrency: 1, over: wait 25ms}]",
        &clock,
    );
    let mut tasks = Tasks::new();
    start(&mut tasks, 0, &engine);
    let held = tasks.take_done();
    start(&mut tasks, 1, &engine);
    for _ in 0..2 {
        clock.advance(10 * MS);
        tasks.run();
        assert!(tasks.take_done().is_empty());
    }
    clock.advance(5 * MS);
    tasks.run();
    let done = tasks.take_done();
    assert_eq!(names(&done), [1]);
    assert!(done[0].1.is_err());
    assert_eq!(engine.waiter_count(), 0);
    drop(held);
}

#[test]
fn who_waited_in_vain_is_told_when_it_would_have_had_its_turn() {
    let clock = Manual::new();
    let engine = engine(
        "limits: [{name: a, rate: 1/s, algorithm: fixed-window, over: wait 1200ms}]",
        &clock,
    );
    let mut tasks = Tasks::new();
    for name in 0..4 {
        start(&mut tasks, name, &engine);
    }
    assert_eq!(names(&tasks.take_done()), [0]);
    clock.advance(1_000 * MS);
    tasks.run();
    let done = tasks.take_done();
    assert_eq!(names(&done), [1, 2]);
    assert_eq!(done[1].1.as_ref().err(), Some(&(1_000 * MS)));
    clock.advance(200 * MS);
    tasks.run();
    let done = tasks.take_done();
    assert_eq!(names(&done), [3]);
    assert_eq!(done[0].1.as_ref().err(), Some(&(800 * MS)));
}

#[test]
fn a_rule_that_refuses_refuses_and_what_is_blocked_or_too_large_does_not_wait() {
    let clock = Manual::new();
    let engine = engine(
        "limits: [{name: a, rate: 10/s, cost: {fact: cost}, over: wait 1s}, {name: b, rate: 1/h}]\n\
         block: [{user: eve}]",
        &clock,
    );
    let mut tasks = Tasks::new();
    tasks.start(0, ask(&engine, vec![("cost", "11".to_owned())]));
    tasks.start(1, ask(&engine, vec![("user", "eve".to_owned())]));
    tasks.start(2, ask(&engine, Vec::new()));
    tasks.start(3, ask(&engine, Vec::new()));
    assert_eq!(names(&tasks.take_done()), [0, 1, 2, 3]);
}

#[test]
fn no_more_wait_than_are_let_to() {
    let clock = Manual::new();
    let bounds = Bounds {
        max_waiters: 2,
        ..Bounds::default()
    };
    let engine = engine(
        "limits: [{name: a, rate: 10/s burst 1, over: wait 9s}]",
        &clock,
    )
    .with_bounds(bounds);
    let mut tasks = Tasks::new();
    for name in 0..9 {
        start(&mut tasks, name, &engine);
    }
    assert_eq!(tasks.running(), [1, 2]);
    assert!(
        tasks
            .take_done()
            .iter()
            .skip(1)
            .all(|(_, outcome)| outcome.is_err())
    );
}

#[test]
fn a_reload_is_heard_by_those_who_wait() {
    let clock = Manual::new();
    let engine = engine(
        "limits: [{name: a, rate: 1/s burst 1, over: wait 9s}]",
        &clock,
    );
    let mut tasks = Tasks::new();
    for name in 0..3 {
        start(&mut tasks, name, &engine);
    }
    engine
        .reload(policy(
            "limits: [{name: a, rate: 10/s burst 1, over: wait 9s}]",
        ))
        .unwrap();
    tasks.run();
    clock.advance(100 * MS);
    tasks.run();
    assert_eq!(
        names(&tasks.take_done()),
        [0, 1],
        "sooner than it was told at first"
    );
    clock.advance(100 * MS);
    tasks.run();
    assert_eq!(names(&tasks.take_done()), [2]);
    // What doesn't wait any more is refused.
    start(&mut tasks, 3, &engine);
    start(&mut tasks, 4, &engine);
    engine
        .reload(policy("limits: [{name: a, rate: 1/h burst 1}]"))
        .unwrap();
    tasks.run();
    let done = tasks.take_done();
    assert_eq!(names(&done), [3, 4]);
    assert!(done.iter().all(|(_, outcome)| outcome.is_err()));
}

#[test]
fn two_lines_do_not_wait_for_each_other() {
    let clock = Manual::new();
    let engine = engine(
        "limits: [{name: a, key: a, rate: 10/s burst 1, over: wait 9s}, {name: b, key: b, rate: 10/s burst 1, over: wait 9s}]",
        &clock,
    );
    let mut tasks = Tasks::new();
    let both: Vec<_> = ["a", "b"].map(|fact| (fact, "x".to_owned())).into();
    let one: Vec<_> = both[..1].to_vec();
    let other: Vec<_> = both[1..].to_vec();
    for name in 0..30 {
        let facts = [&both, &one, &other][name % 3];
        tasks.start(name, ask(&engine, facts.clone()));
    }
    for _ in 0..25 {
        clock.advance(100 * MS);
        tasks.run();
    }
    assert_eq!(tasks.running(), [] as [usize; 0]);
    assert!(tasks.take_done().iter().all(|(_, outcome)| outcome.is_ok()));
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Ask { user: usize, cost: u64 },
    Drop(usize),
    Check { user: usize },
    Pass(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..3usize, 1..4u64).prop_map(|(user, cost)| Act::Ask { user, cost }),
        1 => (0..20usize).prop_map(Act::Drop),
        1 => (0..3usize).prop_map(|user| Act::Check { user }),
        4 => (1..120u64).prop_map(Act::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    /// Whoever comes and goes: the bound is kept, nobody waits longer than it may, and those of one key pass in
    /// their order.
    #[test]
    fn waits_and_drops_keep_the_bound_the_order_and_the_time(acts in prop::collection::vec(act(), 1..200)) {
        const PATIENCE: u64 = 500;
        let clock = Manual::new();
        let engine = engine(
            "limits: [{name: a, key: user, rate: 20/s burst 4, cost: {fact: cost}, over: wait 500ms}]",
            &clock,
        );
        let users = ["ada", "bob", "cyd"];
        let (mut tasks, mut asked, mut admitted) = (Tasks::new(), Vec::new(), vec![Vec::new(); 3]);
        let now = || clock.now().as_nanos() / 1_000_000;
        let (last, mut done) = (Cell::new([0_usize; 3]), Vec::new());
        for act in acts {
            match act {
                Act::Ask { user, cost } => {
                    let name = asked.len();
                    asked.push((user, cost, now()));
                    let facts = vec![("user", users[user].to_owned()), ("cost", cost.to_string())];
                    tasks.start(name, ask(&engine, facts));
                }
                Act::Drop(number) => {
                    let running = tasks.running();
                    if let Some(name) = running.get(number % running.len().max(1)) {
                        tasks.drop_task(*name);
                    }
                }
                Act::Check { user } => {
                    let own = Facts::new().with("user", users[user]).with("cost", "1");
                    if engine.decide(&own).allowed().is_some() {
                        admitted[user].push((now(), 1));
                        prop_assert!(tasks.running().iter().all(|name| asked[*name].0 != user), "passed a line");
                    }
                }
                Act::Pass(millis) => {
                    for _ in 0..millis {
                        clock.advance(MS);
                        tasks.run();
                        done.extend(tasks.take_done().into_iter().map(|one| (now(), one)));
                    }
                }
            }
            done.extend(tasks.take_done().into_iter().map(|one| (now(), one)));
            for (at, (name, outcome)) in done.drain(..) {
                let (user, cost, since) = asked[name];
                prop_assert!(at - since <= PATIENCE);
                if outcome.is_ok() {
                    admitted[user].push((at, cost));
                    let mut latest = last.get();
                    prop_assert!(latest[user] <= name, "{} overtook {name}", latest[user]);
                    latest[user] = name;
                    last.set(latest);
                }
            }
            for name in tasks.running() {
                prop_assert!(now() - asked[name].2 <= PATIENCE, "{name} still waits");
            }
        }
        for user in admitted {
            for (number, (from, _)) in user.iter().enumerate() {
                let mut sum = 0;
                for (at, cost) in &user[number..] {
                    sum += cost;
                    prop_assert!(sum * 50 <= 4 * 50 + (at - from), "{sum} in {} ms", at - from);
                }
            }
        }
    }
}

#[test]
fn who_waits_for_a_rule_that_warms_up_has_its_turn_as_soon_as_it_is_warm_enough() {
    let clock = Manual::new();
    // A tenth of one a minute is one in ten minutes, but only for the first ninth of ten seconds.
    let text = "limits: [{name: a, rate: 1/m burst 1, warm_up: 10s, over: wait 1h}]";
    let engine = engine(text, &clock);
    let mut tasks = Tasks::new();
    for name in 0..3 {
        start(&mut tasks, name, &engine);
    }
    assert_eq!(names(&tasks.take_done()), [0]);
    let mut order = Vec::new();
    for second in 1..=185 {
        clock.advance(1_000 * MS);
        if second == 59 {
            // One that comes once it is warm stands behind those who came before.
            start(&mut tasks, 3, &engine);
        }
        tasks.run();
        order.extend(
            names(&tasks.take_done())
                .into_iter()
                .map(|name| (name, second / 60)),
        );
    }
    assert_eq!(order, [(1, 1), (2, 2), (3, 3)]);
}
