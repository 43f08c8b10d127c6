//! When debouncers fire, with which value, and what actions may do.

use std::sync::{Arc, Mutex, OnceLock};

use tollgate::clock::Manual;
use tollgate_shape::{Debounce, Debouncer, Edge, Throttle, WeakDebouncer};

use crate::{Record, go_to, ms};

/// What fires of calls with their own times as values.
fn check(builder: Debounce, calls: &[u64], expect: &[(u64, u64)]) {
    let clock = Manual::new();
    let record = Record::new(&clock);
    let noted = record.clone();
    let debouncer = builder
        .clock(clock.clone())
        .build(move |value| noted.note(value));
    for call in calls {
        go_to(&clock, *call);
        debouncer.call(*call);
    }
    go_to(&clock, 2_000);
    assert_eq!(record.take(), expect);
    assert_eq!(clock.parked(), 0, "nothing ticks when nothing is pending");
}

#[test]
fn it_fires_when_it_has_been_quiet_with_the_last_value() {
    check(
        Debounce::new(ms(100)),
        &[0, 50, 120, 500],
        &[(220, 120), (600, 500)],
    );
}

#[test]
fn the_max_wait_counts_from_the_last_firing() {
    let builder = Debounce::new(ms(100)).max_wait(ms(200));
    check(builder, &[0, 80, 160, 240, 320], &[(200, 160), (400, 320)]);
}

#[test]
fn a_throttle_fires_at_once_and_then_once_an_interval() {
    let calls: Vec<u64> = (0..=250).step_by(10).collect();
    let expect = [(0, 0), (100, 90), (200, 190), (300, 250)];
    check(Throttle::every(ms(100)), &calls, &expect);
    let leading = Throttle::every(ms(100)).trailing(Edge::Off);
    check(leading, &[0, 10, 150, 160], &[(0, 0), (150, 150)]);
}

#[test]
fn debounce_then_throttle_keeps_firings_apart_and_the_last_value() {
    let builder = Debounce::new(ms(10)).then_throttle(ms(100));
    // It is quiet four times, and fires twice more after the first.
    check(
        builder,
        &[0, 20, 40, 60, 200],
        &[(10, 0), (110, 60), (210, 200)],
    );
}

#[test]
fn async_firings_are_kept_apart_too_and_a_flush_does_not_wait() {
    let clock = Manual::new();
    let record = Record::new(&clock);
    let noted = record.clone();
    let debouncer = Debounce::new(ms(10))
        .leading(Edge::On)
        .then_throttle(ms(100))
        .clock(clock.clone())
        .build_async(move |value: u64| {
            noted.note(value);
            async {}
        });
    for call in [0, 5, 150, 155] {
        go_to(&clock, call);
        debouncer.call(call);
    }
    debouncer.flush();
    go_to(&clock, 500);
    assert_eq!(record.take(), [(0, 0), (100, 5), (155, 155)]);
}

#[test]
fn flush_and_cancel_end_a_wait() {
    let clock = Manual::new();
    let record = Record::new(&clock);
    let noted = record.clone();
    let debouncer = Debounce::new(ms(100))
        .clock(clock.clone())
        .build(move |value: &str| noted.note(value));
    assert!(!debouncer.flush() && !debouncer.cancel() && !debouncer.pending());
    debouncer.call("cancelled");
    assert!(debouncer.pending() && debouncer.cancel() && !debouncer.pending());
    go_to(&clock, 300);
    debouncer.call("flushed");
    assert!(debouncer.flush());
    go_to(&clock, 600);
    assert_eq!(record.take(), [(300, "flushed")]);
}

#[test]
fn an_action_may_call_flush_cancel_and_stop_its_debouncer() {
    let clock = Manual::new();
    let record = Record::new(&clock);
    let own: Arc<OnceLock<WeakDebouncer<u32, Manual>>> = Arc::default();
    let (noted, inside) = (record.clone(), Arc::clone(&own));
    let debouncer = Debounce::new(ms(10))
        .leading(Edge::On)
        .clock(clock.clone())
        .build(move |value: u32| {
            noted.note(value);
            let own = inside.get().and_then(WeakDebouncer::upgrade).unwrap();
            match value {
                1 => {
                    own.call(2);
                    assert!(own.flush(), "2 fires inside of 1");
                    own.call(3);
                    own.cancel();
                    own.call(4);
                }
                4 => {
                    own.stop();
                    own.stop_and_wait_blocking(ms(1)).unwrap();
                    own.call(5);
                }
                _ => {}
            }
        });
    own.get_or_init(|| debouncer.downgrade());
    debouncer.call(1);
    go_to(&clock, 100);
    // After a cancel the next call begins anew, so 4 fires at once.
    assert_eq!(record.take(), [(0, 1), (0, 2), (0, 4)]);
    assert!(debouncer.is_stopped());
    assert_eq!(debouncer.stats().panicked, 0);
}

#[test]
fn a_panic_is_counted_and_the_next_call_fires() {
    let clock = Manual::new();
    for is_async in [false, true] {
        let builder = Debounce::new(ms(10)).clock(clock.clone());
        let act = |value: u32| assert_ne!(value, 1, "this panics on purpose");
        let debouncer: Debouncer<u32, _> = if is_async {
            builder.build_async(move |value| async move { act(value) })
        } else {
            builder.build(act)
        };
        for value in [1, 2] {
            debouncer.call(value);
            clock.advance(ms(10));
        }
        let stats = debouncer.stats();
        assert_eq!((stats.fired, stats.panicked), (2, 1));
    }
}

#[test]
fn an_action_is_told_when_it_was_called_last() {
    let clock = Manual::new();
    let told = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&told);
    let debouncer = Debounce::new(ms(100))
        .clock(clock.clone())
        .build_async_timed(move |(), called| {
            notes.lock().unwrap().push(called.as_nanos() / 1_000_000);
            async {}
        });
    debouncer.call(());
    go_to(&clock, 70);
    debouncer.call(());
    go_to(&clock, 500);
    assert_eq!(*told.lock().unwrap(), [70]);
}

#[test]
fn what_is_due_while_an_async_action_runs_starts_after_it_with_the_last_value() {
    let clock = Manual::new();
    let record = Record::new(&clock);
    let (noted, slow) = (record.clone(), clock.clone());
    let debouncer = Throttle::every(ms(10))
        .clock(clock.clone())
        .build_async(move |value: u64| {
            noted.note(value);
            let until = tollgate::clock::Clock::now(&slow) + ms(35);
            tollgate::clock::sleep_until(slow.clone(), until)
        });
    for value in 0..5 {
        go_to(&clock, value * 10);
        debouncer.call(value);
    }
    go_to(&clock, 500);
    assert_eq!(record.take(), [(0, 0), (35, 3), (70, 4)]);
}

#[tokio::test(start_paused = true)]
async fn it_runs_as_a_task_on_tokios_paused_time() {
    let clock = tollgate::clock::Tokio::new();
    let (sender, mut fired) = tokio::sync::mpsc::unbounded_channel();
    let debouncer = Debounce::new(ms(100))
        .clock(clock)
        .build_async(move |value: u32| {
            let sender = sender.clone();
            async move {
                tokio::time::sleep(ms(10)).await;
                let _ = sender.send((value, tokio::time::Instant::now()));
            }
        });
    let began = tokio::time::Instant::now();
    debouncer.call(1);
    debouncer.call(2);
    let (value, at) = fired.recv().await.unwrap();
    assert_eq!((value, at - began), (2, ms(110)));
}

#[test]
fn without_a_runtime_it_runs_on_a_thread_of_this_crate() {
    let (sender, fired) = std::sync::mpsc::channel();
    let debouncer = Debounce::new(ms(1)).build(move |value: u32| {
        let name = std::thread::current().name().map(str::to_owned);
        drop(sender.send((value, name)));
    });
    debouncer.call(7);
    let fired = fired.recv_timeout(std::time::Duration::from_secs(60));
    assert_eq!(fired, Ok((7, Some("tollgate-shape".to_owned()))));
}
