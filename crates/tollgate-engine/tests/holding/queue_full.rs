//! `over: wait` with a full queue.

use std::time::Duration;

use tollgate::clock::Manual;
use tollgate_engine::verdict::DenyReason;
use tollgate_engine::{Bounds, Facts};

use super::engine;
use super::tasks::Tasks;
use super::waits::{names, start};

const MS: Duration = Duration::from_millis(1);

#[test]
fn a_request_that_finds_the_queue_full_is_told_so() {
    let clock = Manual::new();
    let text = "limits: [{name: a, rate: 10/s burst 1, over: wait 1s}]";
    let bounds = Bounds {
        max_waiters: 1,
        ..Bounds::default()
    };
    let engine = engine(text, &clock).with_bounds(bounds).with_counters(10);
    let mut tasks = Tasks::new();
    for name in 0..2 {
        start(&mut tasks, name, &engine);
    }
    assert_eq!(
        (names(&tasks.take_done()), engine.waiter_count()),
        (vec![0], 1)
    );
    let mut reasons = Tasks::new();
    reasons.start(2, async {
        let facts = Facts::new();
        let Ok(verdict) = engine.decide_async(&facts).await;
        (
            verdict.reason(),
            verdict.decision().wait_or_max() > Duration::ZERO,
        )
    });
    assert_eq!(
        reasons.take_done(),
        [(2, (Some(DenyReason::QueueFull), true))]
    );
    let tallies = engine.counters();
    let own = tallies.iter().find(|tally| &*tally.limiter == "a");
    assert_eq!(own.expect("a rule").denied(DenyReason::QueueFull), 1);
    // One that comes too late for its turn is denied for the rate.
    clock.advance(100 * MS);
    tasks.run();
    assert_eq!(names(&tasks.take_done()), [1]);
    let facts = Facts::new();
    assert_eq!(engine.decide(&facts).reason(), Some(DenyReason::Rate));
}
