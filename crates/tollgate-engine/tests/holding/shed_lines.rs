//! `shed` with `over: wait`: waiters that may use more of the permits aren't queued behind those that may use less.

use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::concurrency::PermitOutcome;
use tollgate_engine::Facts;
use tollgate_engine::verdict::Permits;

use super::tasks::Tasks;
use super::{TestEngine, engine};

fn of(class: &'static str) -> Facts<'static> {
    Facts::new().with("priority", class)
}

/// Runs a test on fixed and on adaptive concurrency.
fn on_both(test: impl Fn(&str, &TestEngine, &Manual)) {
    for slots in ["10", "{adaptive: aimd, min: 10, max: 10}"] {
        let clock = Manual::new();
        let text =
            format!("limits: [{{name: api, over: wait 5s, concurrency: {slots}, shed: priority}}]");
        test(slots, &engine(&text, &clock), &clock);
    }
}

/// So many of a class that run.
fn run(engine: &TestEngine, class: &'static str, count: usize) -> Vec<Permits> {
    let facts = of(class);
    let each = (0..count).map_while(|_| engine.decide(&facts).allowed());
    each.map(|passed| passed.into_permits()).collect()
}

async fn ask(engine: &TestEngine, class: &'static str) -> Option<Permits> {
    let facts = of(class);
    let Ok(verdict) = engine.decide_async(&facts).await;
    verdict.allowed().map(|passed| passed.into_permits())
}

#[test]
fn a_critical_request_passes_sheddable_ones_that_wait_for_a_part_that_is_used_up() {
    on_both(|slots, engine, _| {
        let held = run(engine, "sheddable", 10);
        assert_eq!(held.len(), 7, "{slots}");
        let mut tasks = Tasks::new();
        tasks.start(0, ask(engine, "sheddable"));
        assert_eq!(engine.waiter_count(), 1);
        // Three slots are free for it.
        tasks.start(1, ask(engine, "critical"));
        let done = tasks.take_done();
        assert_eq!(done.len(), 1, "{slots}");
        assert!(done[0].1.is_some());
        assert_eq!(run(engine, "default", 10).len(), 1, "{slots}");
        assert_eq!(run(engine, "sheddable", 1).len(), 0, "{slots}");
    });
}

#[test]
fn what_comes_back_is_offered_to_the_most_critical_first() {
    on_both(|slots, engine, _| {
        let mut held = run(engine, "critical", 10);
        assert_eq!(held.len(), 10);
        let mut tasks = Tasks::new();
        for (name, class) in ["sheddable", "default", "critical"].into_iter().enumerate() {
            tasks.start(name, ask(engine, class));
        }
        assert_eq!(engine.waiter_count(), 3);
        let mut order = Vec::new();
        let mut inside = Vec::new();
        for _ in 0..6 {
            held.pop().expect("it runs").end(PermitOutcome::Success);
            tasks.run();
            let done = tasks.take_done();
            order.push(done.iter().map(|(name, _)| *name).collect::<Vec<_>>());
            inside.extend(done);
        }
        assert!(inside.iter().all(|(_, permits)| permits.is_some()));
        // 9 run and the critical one; then 8 and a default one, which may be the ninth; then it falls to six.
        assert_eq!(
            order,
            [vec![2], vec![], vec![1], vec![], vec![], vec![0]],
            "{slots}"
        );
        assert_eq!(engine.waiter_count(), 0);
    });
}

#[test]
fn who_waits_is_not_passed_by_newcomers_that_matter_less() {
    on_both(|slots, engine, _| {
        let held = run(engine, "critical", 10);
        let mut tasks = Tasks::new();
        tasks.start(0, ask(engine, "critical"));
        assert_eq!(engine.waiter_count(), 1);
        drop(held);
        // It is woken, but has not run yet.
        assert!(run(engine, "sheddable", 1).is_empty(), "{slots}");
        assert!(run(engine, "critical", 1).is_empty(), "{slots}");
        tasks.run();
        assert!(tasks.take_done()[0].1.is_some());
        assert_eq!(run(engine, "sheddable", 1).len(), 1, "{slots}");
    });
}

#[test]
fn a_sheddable_one_that_waits_is_refused_in_time_and_told_of_its_own_line() {
    on_both(|slots, engine, clock| {
        let held = run(engine, "sheddable", 10);
        let mut tasks = Tasks::new();
        tasks.start(0, ask(engine, "sheddable"));
        for _ in 0..600 {
            clock.advance(Duration::from_millis(10));
            tasks.run();
        }
        let done = tasks.take_done();
        assert!(matches!(done.as_slice(), [(0, None)]), "{slots}");
        assert_eq!(engine.waiter_count(), 0);
        drop(held);
    });
}
