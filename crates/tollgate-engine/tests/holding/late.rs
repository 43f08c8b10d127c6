//! Waits that end late: a task that doesn't run in time isn't granted as if it had.

use std::time::Duration;

use tollgate::clock::Manual;

use super::engine;
use super::tasks::Tasks;
use super::waits::{names, start};

const MS: Duration = Duration::from_millis(1);

#[test]
fn who_is_run_long_after_its_time_is_over_is_denied() {
    // What a timer and a busy machine take is let pass.
    for (late, passes) in [
        (0, true),
        (1, true),
        (100, true),
        (101, false),
        (290, false),
    ] {
        let clock = Manual::new();
        let text = "limits: [{name: a, rate: 1/s burst 1, over: wait 1s}]";
        let engine = engine(text, &clock);
        let mut tasks = Tasks::new();
        start(&mut tasks, 0, &engine);
        start(&mut tasks, 1, &engine);
        assert_eq!(names(&tasks.take_done()), [0]);
        clock.advance(Duration::from_secs(1) + late * MS);
        tasks.run();
        let done = tasks.take_done();
        assert_eq!(names(&done), [1]);
        assert_eq!(done[0].1.is_ok(), passes, "{late} ms late");
        // It is charged only if it passes.
        start(&mut tasks, 2, &engine);
        let next = tasks.take_done();
        assert_eq!(next.is_empty(), passes, "{late} ms late");
        assert!(next.iter().all(|(_, outcome)| outcome.is_ok()));
    }
}
