//! Permits: how they are acquired and released, the order of waiters, and live changes.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{
    Clock, ConcurrencyLimiter, Timestamp,
    concurrency::{CompletedCall, Permit, PermitDenied, PermitObserver, PermitOutcome},
};

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

/// Until so many wait in the queue.
fn queued<C: Clock>(limiter: &ConcurrencyLimiter<C>, count: usize) {
    while limiter.peek().waiting != count {
        thread::yield_now();
    }
}

#[test]
fn as_many_pass_as_the_limit_says_and_dropping_gives_back() {
    let limiter = ConcurrencyLimiter::new(3);
    let permits: Vec<_> = (1..=3)
        .map(|count| {
            let permit = limiter.try_acquire().unwrap();
            assert_eq!((permit.weight(), permit.in_flight()), (1, count));
            permit
        })
        .collect();
    let refused = limiter.try_acquire().unwrap_err();
    assert!(matches!(refused, PermitDenied::Full(_)));
    assert_eq!(refused.occupancy(), &limiter.peek());
    drop(permits);
    assert_eq!((limiter.peek().in_use, limiter.available()), (0, 3));
}

#[test]
fn a_weight_takes_as_much_and_one_above_the_limit_never_passes() {
    let limiter = ConcurrencyLimiter::new(10);
    let seven = limiter.try_acquire_n(7).unwrap();
    assert!(matches!(
        limiter.try_acquire_n(4),
        Err(PermitDenied::Full(_))
    ));
    let three = limiter.try_acquire_n(3).unwrap();
    assert_eq!((seven.in_flight(), three.in_flight()), (7, 10));
    assert_eq!(limiter.try_acquire_n(0).unwrap().in_flight(), 10);
    for never in [
        limiter.try_acquire_n(11).map(drop),
        limiter.try_acquire_n(u32::MAX).map(drop),
        limiter.acquire_n(11).wait_blocking().map(drop),
        limiter
            .acquire_n(11)
            .timeout(Duration::ZERO)
            .wait_blocking()
            .map(drop),
    ] {
        assert!(matches!(never, Err(PermitDenied::ExceedsLimit(_))));
    }
    drop((seven, three));
    assert_eq!(limiter.peek().in_use, 0);
}

#[test]
fn the_edges_of_the_word_hold() {
    let max = ConcurrencyLimiter::MAX_LIMIT;
    let limiter = ConcurrencyLimiter::new(u32::MAX);
    assert_eq!(limiter.peek().limit, max);
    let all = limiter.try_acquire_n(max).unwrap();
    assert_eq!(all.in_flight(), max);
    assert!(limiter.try_acquire().is_err());
    assert!(limiter.try_acquire_n(u32::MAX).is_err());
    limiter.set_limit(0);
    assert_eq!((limiter.peek().limit, limiter.peek().in_use), (0, max));
    assert!(limiter.try_acquire_n(0).is_err(), "it is exceeded");
    drop(all);
    assert!(limiter.try_acquire_n(0).is_ok());
    assert!(matches!(
        limiter.try_acquire(),
        Err(PermitDenied::ExceedsLimit(_))
    ));
    limiter.set_limit(u32::MAX);
    assert_eq!(limiter.available(), max);
}

#[test]
fn refusals_say_what_they_are() {
    let clock = Manual::starting_at(at(10));
    let limiter = ConcurrencyLimiter::builder(2)
        .max_waiters(0)
        .clock(clock)
        .build();
    let permit = limiter.try_acquire_n(2).unwrap();
    let check = |refused: PermitDenied, text: &str| {
        assert_eq!(refused.to_string(), text);
        assert_eq!(refused.occupancy(), &limiter.peek());
    };
    check(
        limiter.try_acquire().unwrap_err(),
        "concurrency limit: 2 of 2 in use, 0 waiting",
    );
    check(
        limiter.try_acquire_n(3).unwrap_err(),
        "concurrency limit: the weight is above the limit of 2, so it never passes",
    );
    check(
        limiter.acquire().wait_blocking().unwrap_err(),
        "concurrency limit: too many are waiting already; 2 of 2 in use, 0 waiting",
    );
    check(
        limiter
            .acquire()
            .deadline(at(9))
            .wait_blocking()
            .unwrap_err(),
        "concurrency limit: no permit by the deadline; 2 of 2 in use, 0 waiting",
    );
    drop(permit);
}

#[test]
fn a_deadline_that_is_over_fails_at_once_even_when_there_is_room() {
    let limiter = ConcurrencyLimiter::builder(1)
        .clock(Manual::starting_at(at(10)))
        .build();
    let late = limiter.acquire().deadline(at(9)).wait_blocking();
    assert!(matches!(late, Err(PermitDenied::DeadlineExceeded(_))));
    // A deadline of right now is not over yet, but leaves no time to wait.
    let permit = limiter.acquire().deadline(at(10)).wait_blocking().unwrap();
    for late in [
        limiter.acquire().deadline(at(10)).wait_blocking(),
        limiter.acquire().timeout(Duration::ZERO).wait_blocking(),
    ] {
        assert!(matches!(late, Err(PermitDenied::DeadlineExceeded(_))));
    }
    drop(permit);
}

#[test]
fn a_blocked_wait_ends_when_its_deadline_passes_and_leaves_the_queue() {
    let clock = Manual::new();
    let limiter = ConcurrencyLimiter::builder(1)
        .timeout(millis(100))
        .clock(clock.clone())
        .build();
    let permit = limiter.try_acquire().unwrap();
    thread::scope(|scope| {
        let patient = scope.spawn(|| limiter.acquire().timeout(millis(500)).wait_blocking());
        queued(&limiter, 1);
        let usual = scope.spawn(|| limiter.acquire().wait_blocking());
        queued(&limiter, 2);
        clock.advance(millis(99));
        assert_eq!(limiter.peek().waiting, 2);
        clock.advance(millis(1));
        let late = usual.join().unwrap();
        assert!(matches!(late, Err(PermitDenied::DeadlineExceeded(_))));
        assert_eq!(limiter.peek().waiting, 1);
        permit.success();
        assert_eq!(patient.join().unwrap().unwrap().in_flight(), 1);
    });
    assert_eq!(clock.parked(), 0);
    assert_eq!(limiter.stats().denied, 1);
}

#[test]
fn a_blocked_wait_on_the_default_clock_ends_too() {
    let limiter = ConcurrencyLimiter::new(1);
    let permit = limiter.try_acquire().unwrap();
    let patience = Duration::from_micros(1);
    let late = limiter.acquire().timeout(patience).wait_blocking();
    assert!(matches!(late, Err(PermitDenied::DeadlineExceeded(_))));
    assert_eq!(limiter.peek().waiting, 0);
    permit.success();
    assert!(
        limiter
            .acquire()
            .timeout(Duration::MAX)
            .wait_blocking()
            .is_ok()
    );
}

#[test]
fn blocked_waits_pass_in_order_and_the_large_one_is_not_overtaken() {
    let limiter = ConcurrencyLimiter::new(4);
    let order = Mutex::new(Vec::new());
    let mut held = vec![
        limiter.try_acquire_n(3).unwrap(),
        limiter.try_acquire().unwrap(),
    ];
    thread::scope(|scope| {
        for (place, weight) in [4, 1, 2, 1].into_iter().enumerate() {
            let (limiter, order) = (&limiter, &order);
            scope.spawn(move || {
                let permit = limiter.acquire_n(weight).wait_blocking().unwrap();
                order.lock().unwrap().push(weight);
                drop(permit);
            });
            queued(limiter, place + 1);
        }
        // There is room for each of the small ones, but the large one was first.
        held.truncate(1);
        assert_eq!((limiter.peek().in_use, limiter.peek().waiting), (3, 4));
        assert!(
            limiter.try_acquire().is_err(),
            "a newcomer doesn't barge in"
        );
        assert_eq!(limiter.available(), 0);
        held.clear();
    });
    // The three behind fit together, so their threads may note it in any order.
    assert_eq!(order.lock().unwrap()[0], 4);
    assert_eq!(limiter.peek().in_use, 0);
}

#[test]
fn a_queue_that_is_full_refuses_at_once() {
    let limiter = ConcurrencyLimiter::builder(1).max_waiters(2).build();
    let permit = limiter.try_acquire().unwrap();
    thread::scope(|scope| {
        for count in 1..=2 {
            scope.spawn(|| limiter.acquire().wait_blocking().unwrap().success());
            queued(&limiter, count);
        }
        let refused = limiter.acquire().wait_blocking().unwrap_err();
        assert!(matches!(refused, PermitDenied::QueueFull(_)));
        assert_eq!(refused.occupancy().waiting, 2);
        permit.success();
    });
    assert_eq!(limiter.stats().succeeded, 3);
}

#[test]
fn a_higher_limit_admits_waiters_and_a_lower_one_drains() {
    let limiter = ConcurrencyLimiter::new(1);
    let first = limiter.try_acquire().unwrap();
    thread::scope(|scope| {
        let second = scope.spawn(|| limiter.acquire().wait_blocking().unwrap());
        queued(&limiter, 1);
        limiter.set_limit(3);
        let second = second.join().unwrap();
        let third = limiter.try_acquire().unwrap();
        limiter.set_limit(1);
        assert_eq!((limiter.peek().in_use, limiter.available()), (3, 0));
        drop(first);
        drop(second);
        assert!(limiter.try_acquire().is_err());
        third.success();
        assert!(limiter.try_acquire().is_ok());
    });
}

#[test]
fn a_limit_that_falls_below_what_a_waiter_asks_for_refuses_it_and_frees_those_behind() {
    let limiter = ConcurrencyLimiter::new(4);
    let held = limiter.try_acquire().unwrap();
    thread::scope(|scope| {
        let large = scope.spawn(|| limiter.acquire_n(4).wait_blocking());
        queued(&limiter, 1);
        let small = scope.spawn(|| limiter.acquire_n(2).wait_blocking());
        queued(&limiter, 2);
        limiter.set_limit(3);
        let refused = large.join().unwrap().unwrap_err();
        assert!(matches!(refused, PermitDenied::ExceedsLimit(_)));
        assert_eq!(small.join().unwrap().unwrap().in_flight(), 3);
    });
    drop(held);
}

/// Keeps all its input.
#[derive(Default)]
struct Notes(Mutex<Vec<CompletedCall>>);

impl PermitObserver for Notes {
    fn on_completed(&self, ended: &CompletedCall) -> Option<u32> {
        let mut notes = self.0.lock().expect("no panic while it is locked");
        notes.push(*ended);
        None
    }
}

#[test]
fn an_observer_is_told_of_each_end_but_not_of_a_cancel() {
    let clock = Manual::starting_at(at(5));
    let notes = Arc::new(Notes::default());
    let limiter = ConcurrencyLimiter::builder(10)
        .observer(Arc::clone(&notes))
        .clock(clock.clone())
        .build();
    let success = limiter.try_acquire_n(2).unwrap();
    assert_eq!(success.started(), Some(at(5)));
    clock.advance(millis(1));
    let dropped = limiter.try_acquire().unwrap();
    let ignored = limiter.try_acquire().unwrap();
    let forgotten = limiter.try_acquire().unwrap();
    limiter.try_acquire().unwrap().cancel();
    clock.advance(millis(9));
    success.success();
    dropped.dropped();
    ignored.ignored();
    drop(forgotten);
    let notes = notes.0.lock().unwrap();
    let seen: Vec<_> = notes
        .iter()
        .map(|note| {
            (
                note.ending,
                note.weight,
                note.in_flight,
                note.started,
                note.latency,
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            (PermitOutcome::Success, 2, 2, at(5), millis(10)),
            (PermitOutcome::Dropped, 1, 3, at(6), millis(9)),
            (PermitOutcome::Ignored, 1, 4, at(6), millis(9)),
            (PermitOutcome::Ignored, 1, 5, at(6), millis(9)),
        ]
    );
    assert!(notes.iter().all(|note| note.limit == 10));
    let stats = limiter.stats();
    assert_eq!((stats.acquired, stats.denied, stats.abandoned), (5, 0, 0));
    assert_eq!((stats.succeeded, stats.dropped), (1, 1));
    assert_eq!((stats.ignored, stats.cancelled), (2, 1));
}

/// Answers each end with another limit.
struct Raise;

impl PermitObserver for Raise {
    fn on_completed(&self, ended: &CompletedCall) -> Option<u32> {
        (ended.ending == PermitOutcome::Success).then_some(ended.limit + 1)
    }
}

#[test]
fn an_observer_s_answer_is_the_new_limit_and_admits_waiters() {
    let limiter = ConcurrencyLimiter::builder(1).observer(Raise).build();
    let first = limiter.try_acquire().unwrap();
    thread::scope(|scope| {
        let waiters = [1, 2].map(|count| {
            let waiter = scope.spawn(|| limiter.acquire().wait_blocking().unwrap());
            queued(&limiter, count);
            waiter
        });
        first.success();
        // Both have theirs, though neither has ended.
        let permits = waiters.map(|waiter| waiter.join().unwrap());
        assert_eq!((limiter.peek().limit, limiter.peek().in_use), (2, 2));
        drop(permits);
    });
}

#[test]
fn an_observer_that_panics_keeps_nothing() {
    struct Bad;
    impl PermitObserver for Bad {
        fn on_completed(&self, _: &CompletedCall) -> Option<u32> {
            panic!("on purpose");
        }
    }
    let limiter = Arc::new(ConcurrencyLimiter::builder(1).observer(Bad).build());
    let permit = limiter.try_acquire_owned().unwrap();
    assert!(thread::spawn(move || permit.success()).join().is_err());
    assert_eq!(limiter.peek().in_use, 0);
    limiter.try_acquire().unwrap().cancel();
}

#[test]
fn a_panic_under_a_permit_gives_it_back() {
    let limiter = Arc::new(ConcurrencyLimiter::new(1));
    let permit = limiter.try_acquire_owned().unwrap();
    let crashed = thread::spawn(move || {
        let _permit = permit;
        panic!("on purpose");
    });
    assert!(crashed.join().is_err());
    assert_eq!((limiter.peek().in_use, limiter.stats().ignored), (0, 1));
}

#[test]
fn an_end_that_is_told_early_is_told_once_and_keeps_the_share() {
    type Seen = Arc<Mutex<Vec<(PermitOutcome, Duration)>>>;
    type Says = fn(Permit<&ConcurrencyLimiter<Arc<Manual>>>);
    struct Noted(Seen);
    impl PermitObserver for Noted {
        fn on_completed(&self, ended: &CompletedCall) -> Option<u32> {
            self.0.lock().unwrap().push((ended.ending, ended.latency));
            None
        }
    }
    let (clock, seen) = (Arc::new(Manual::new()), Seen::default());
    let limiter = ConcurrencyLimiter::builder(1)
        .observer(Noted(Arc::clone(&seen)))
        .clock(Arc::clone(&clock))
        .build();
    let says: [Says; 5] = [
        |permit| drop(permit),
        |permit| permit.success(),
        |permit| permit.dropped(),
        |permit| permit.ignored(),
        |permit| permit.cancel(),
    ];
    for later in says {
        let mut permit = limiter.try_acquire().unwrap();
        clock.advance(millis(20));
        permit.report(PermitOutcome::Dropped);
        clock.advance(millis(500));
        permit.report(PermitOutcome::Success);
        assert!(limiter.try_acquire().is_err(), "its share is kept");
        later(permit);
        assert_eq!(limiter.peek().in_use, 0);
    }
    assert_eq!(
        *seen.lock().unwrap(),
        [(PermitOutcome::Dropped, millis(20)); 5]
    );
    let stats = limiter.stats();
    assert_eq!(
        (
            stats.dropped,
            stats.succeeded,
            stats.ignored,
            stats.cancelled
        ),
        (5, 0, 0, 0)
    );
}

#[test]
fn an_observer_that_panics_early_keeps_nothing_either() {
    struct Bad;
    impl PermitObserver for Bad {
        fn on_completed(&self, _: &CompletedCall) -> Option<u32> {
            panic!("on purpose");
        }
    }
    let limiter = Arc::new(ConcurrencyLimiter::builder(1).observer(Bad).build());
    let mut permit = limiter.try_acquire_owned().unwrap();
    let told = thread::spawn(move || permit.report(PermitOutcome::Success)).join();
    assert!(told.is_err());
    assert_eq!(limiter.peek().in_use, 0);
}
