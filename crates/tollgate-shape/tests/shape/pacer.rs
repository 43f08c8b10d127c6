//! The departure times of a pacer.

use std::future::{Future, IntoFuture};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::clock::{Clock, Manual};
use tollgate::{Rate, Timestamp};
use tollgate_shape::{PaceDenied, PaceFuture, WorkPacer};

use crate::{Record, go_to, ms};

fn pacer(rate: Rate, capacity: usize, clock: &Manual) -> WorkPacer<Manual> {
    WorkPacer::builder(rate, capacity)
        .clock(clock.clone())
        .build()
        .unwrap()
}

/// Submits this many, and returns how many were rejected.
fn submit(pacer: &WorkPacer<Manual>, record: &Record<()>, many: usize) -> usize {
    let results = (0..many).map(|_| {
        let record = record.clone();
        pacer.submit(move || record.note(()))
    });
    results.filter(Result::is_err).count()
}

fn times(record: &Record<()>) -> Vec<u64> {
    record.take().into_iter().map(|(at, ())| at).collect()
}

#[test]
fn the_first_leaves_at_once_and_what_does_not_fit_is_refused() {
    let clock = Manual::new();
    let (pacer, record) = (pacer(Rate::per_second(10), 20, &clock), Record::new(&clock));
    assert_eq!(submit(&pacer, &record, 10), 0);
    go_to(&clock, 1000);
    assert_eq!(submit(&pacer, &record, 30), 10);
    go_to(&clock, 4000);
    let expect: Vec<u64> = (0..=9).chain(10..=29).map(|tenth| tenth * 100).collect();
    assert_eq!(times(&record), expect);
    assert_eq!(clock.parked(), 0, "nothing ticks when nothing waits");
}

#[test]
fn a_hundred_at_ten_a_second_end_by_9_9_seconds() {
    let clock = Manual::new();
    let (pacer, record) = (
        pacer(Rate::per_second(10), 100, &clock),
        Record::new(&clock),
    );
    assert_eq!(submit(&pacer, &record, 100), 0);
    go_to(&clock, 20_000);
    assert_eq!(times(&record).last(), Some(&9_900));
}

#[test]
fn late_timers_are_made_up_for() {
    // 1,000 at 3,000/s by a timer that looks once a millisecond: 333 ms, not a second.
    let clock = Manual::new();
    let (pacer, record) = (
        pacer(Rate::per_second(3_000), 1_000, &clock),
        Record::new(&clock),
    );
    assert_eq!(submit(&pacer, &record, 1_000), 0);
    go_to(&clock, 2_000);
    let times = times(&record);
    assert_eq!((times.len(), times.last()), (1_000, Some(&333)));
}

#[test]
fn nobody_waits_longer_than_capacity_by_rate() {
    let clock = Manual::new();
    let pacer = pacer(Rate::per_second(7), 3, &clock);
    let mut context = Context::from_waker(Waker::noop());
    let mut waiting: Vec<(Timestamp, Pin<Box<PaceFuture<Manual>>>)> = Vec::new();
    let (mut passed, mut refused) = (0, 0);
    for millis in 0..5_000 {
        go_to(&clock, millis);
        waiting.push((clock.now(), Box::pin(pacer.pace().into_future())));
        waiting.retain_mut(|(since, turn)| match turn.as_mut().poll(&mut context) {
            Poll::Ready(Ok(_)) => {
                assert!(clock.now() - *since <= pacer.longest_wait());
                passed += 1;
                false
            }
            Poll::Ready(Err(PaceDenied::QueueFull {
                waiting, capacity, ..
            })) => {
                assert!(waiting < capacity);
                refused += 1;
                false
            }
            Poll::Ready(Err(other)) => panic!("{other}"),
            Poll::Pending => true,
        });
        assert!(waiting.len() <= 3);
    }
    assert_eq!((passed, refused + waiting.len()), (35, 4_965));
}

#[test]
fn a_place_that_is_left_is_used_by_those_behind_it() {
    let clock = Manual::new();
    let (pacer, record) = (pacer(Rate::per_second(10), 4, &clock), Record::new(&clock));
    let mut works: Vec<_> = (0..4)
        .map(|_| {
            let record = record.clone();
            pacer.submit(move || record.note(())).unwrap()
        })
        .collect();
    assert_eq!(submit(&pacer, &record, 1), 1);
    assert!(works.remove(1).cancel());
    assert_eq!(submit(&pacer, &record, 1), 0, "its place is free");
    assert!(!works.remove(0).cancel(), "it has left");
    go_to(&clock, 1_000);
    assert_eq!(times(&record), [0, 100, 200, 300]);
}

#[test]
fn a_deadline_that_cannot_be_met_fails_at_once() {
    let clock = Manual::new();
    let (pacer, record) = (
        pacer(Rate::per_second(10), 100, &clock),
        Record::new(&clock),
    );
    submit(&pacer, &record, 5);
    let mut hasty = pin!(pacer.pace().timeout(ms(400)).into_future());
    let poll = hasty.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    let expect = PaceDenied::DeadlineExceeded {
        waiting: 4,
        turn_in: ms(500),
    };
    assert_eq!(poll, Poll::Ready(Err(expect)));
    assert_eq!(
        expect.to_string(),
        "the deadline is too soon: 4 waiting, and the wait would be 500ms"
    );
    go_to(&clock, 400);
    let deadline = Timestamp::from_millis(500);
    assert_eq!(pacer.waiters(), 0);
    let mut in_time = pin!(pacer.pace().deadline(deadline).into_future());
    let mut context = Context::from_waker(Waker::noop());
    assert!(in_time.as_mut().poll(&mut context).is_pending());
    clock.advance(ms(100));
    assert_eq!(
        in_time.as_mut().poll(&mut context),
        Poll::Ready(Ok(ms(100)))
    );
}

#[test]
fn slack_is_credit_for_idle_time_and_there_is_none_at_first() {
    let clock = Manual::new();
    let record = Record::new(&clock);
    let pacer = WorkPacer::builder(Rate::per_second(10), 100)
        .slack(3)
        .clock(clock.clone())
        .build()
        .unwrap();
    submit(&pacer, &record, 2);
    go_to(&clock, 1_000);
    submit(&pacer, &record, 6);
    go_to(&clock, 2_000);
    assert_eq!(times(&record), [0, 100, 1000, 1000, 1000, 1000, 1100, 1200]);
}

#[tokio::test(start_paused = true)]
async fn work_that_panics_is_gone_and_results_can_be_awaited() {
    let clock = tollgate::clock::Tokio::new();
    let pacer = WorkPacer::builder(Rate::per_second(10), 10)
        .clock(clock)
        .build()
        .unwrap();
    let began = clock.now();
    let good = pacer.submit_async(|| async { 7 }).unwrap();
    let bad = pacer.submit(|| panic!("on purpose")).unwrap();
    let last = pacer.submit(|| 8).unwrap();
    assert_eq!(good.await, Ok(7));
    assert!(bad.await.is_err());
    assert_eq!(last.await, Ok(8));
    assert_eq!(clock.now() - began, Duration::from_millis(200));
}
