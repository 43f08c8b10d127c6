//! When batches are flushed, and their items.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tollgate::clock::Manual;
use tollgate_shape::{AddDenied, Coalesce, Coalescer, FlushOutcome};

use crate::{Record, go_to, ms};

type Made = Coalescer<&'static str, u64, Manual>;
type Batches = Record<Vec<(&'static str, u64)>>;

fn build(builder: Coalesce<&'static str, u64>, clock: &Manual) -> (Made, Batches) {
    let record = Record::new(clock);
    let noted = record.clone();
    let coalescer = builder.clock(clock.clone()).build(move |batch| {
        noted.note(batch.items().to_vec());
        FlushOutcome::Done
    });
    (coalescer, record)
}

#[test]
fn a_window_counts_from_the_first_item() {
    let clock = Manual::new();
    let (coalescer, record) = build(Coalesce::window(ms(50)), &clock);
    for (at, key) in [(0, "a"), (30, "b"), (60, "c")] {
        go_to(&clock, at);
        coalescer.try_add(key, at).unwrap();
    }
    go_to(&clock, 500);
    let expect = [(50, vec![("a", 0), ("b", 30)]), (110, vec![("c", 60)])];
    assert_eq!(record.take(), expect);
    assert_eq!(clock.parked(), 0);
}

#[test]
fn a_quiet_period_counts_from_the_latest_up_to_the_max_wait() {
    let clock = Manual::new();
    let (coalescer, record) = build(Coalesce::quiet(ms(50)).max_wait(ms(100)), &clock);
    for at in [0, 40, 80, 200] {
        go_to(&clock, at);
        coalescer.try_add("x", at).unwrap();
    }
    go_to(&clock, 500);
    let expect = [
        (100, vec![("x", 0), ("x", 40), ("x", 80)]),
        (250, vec![("x", 200)]),
    ];
    assert_eq!(record.take(), expect);
}

#[test]
fn full_batches_are_flushed_at_once_by_items_or_weight() {
    let clock = Manual::new();
    let (by_items, record) = build(Coalesce::window(ms(50)).max_items(2), &clock);
    for value in 0..3 {
        by_items.try_add("x", value).unwrap();
    }
    assert_eq!(record.take(), [(0, vec![("x", 0), ("x", 1)])]);
    assert_eq!(by_items.flush(), 1);
    assert_eq!(record.take(), [(0, vec![("x", 2)])]);

    let weighed = Coalesce::window(ms(50)).max_weight(10, |_: &_, weight: &u64| *weight);
    let (by_weight, record) = build(weighed, &clock);
    for value in [4, 5, 6, 4] {
        by_weight.try_add("x", value).unwrap();
    }
    let expect = [(0, vec![("x", 4), ("x", 5)]), (0, vec![("x", 6), ("x", 4)])];
    assert_eq!(record.take(), expect);
    let large = by_weight.try_add("whale", 11).unwrap_err();
    assert_eq!(large.item, Some(("whale", 11)));
    assert_eq!(
        large.to_string(),
        "the item \"whale\" weighs 11, above the 10 that a batch may weigh: split it, or raise max_weight"
    );
}

#[test]
fn items_of_one_key_are_merged_at_the_place_of_the_first() {
    let clock = Manual::new();
    let builder = Coalesce::window(ms(50))
        .merge(|_, sum: &mut u64, more| *sum += more)
        .max_weight(10, |_: &_, weight: &u64| *weight);
    let (coalescer, record) = build(builder, &clock);
    for (key, value) in [("a", 1), ("b", 2), ("a", 3), ("b", 5)] {
        coalescer.try_add(key, value).unwrap();
    }
    // 5 more would be 11 in all, so it begins the next batch.
    assert_eq!(record.take(), [(0, vec![("a", 4), ("b", 2)])]);
    coalescer.flush();
    assert_eq!(record.take(), [(0, vec![("b", 5)])]);
}

#[test]
fn a_failed_flush_is_tried_again_before_all_later_ones() {
    let clock = Manual::new();
    let record = Record::new(&clock);
    let noted = record.clone();
    let coalescer = Coalesce::window(ms(10))
        .clock(clock.clone())
        .build(move |batch| {
            noted.note((batch.items()[0].0, batch.attempt()));
            match (batch.items()[0].0, batch.attempt()) {
                ("a", 0) => FlushOutcome::RetryIn(ms(30)),
                ("a", 1) => panic!("on purpose: tried again after a window"),
                _ => FlushOutcome::Done,
            }
        });
    coalescer.try_add("a", ()).unwrap();
    go_to(&clock, 20);
    coalescer.try_add("b", ()).unwrap();
    assert_eq!(coalescer.pending(), 2);
    go_to(&clock, 500);
    let expect = [
        (10, ("a", 0)),
        (40, ("a", 1)),
        (50, ("a", 2)),
        (50, ("b", 0)),
    ];
    assert_eq!(record.take(), expect);
    assert_eq!((coalescer.pending(), coalescer.stats().panicked), (0, 1));
}

#[test]
fn without_room_an_add_waits_in_order_or_is_refused() {
    let clock = Manual::new();
    let record = Record::new(&clock);
    let (noted, slow) = (record.clone(), clock.clone());
    let coalescer = Coalesce::window(ms(10))
        .max_pending(2)
        .clock(clock.clone())
        .build_async(move |batch| {
            let keys: Vec<&str> = batch.items().iter().map(|(key, ())| *key).collect();
            noted.note(keys);
            let until = tollgate::Clock::now(&slow) + ms(20);
            let sleep = tollgate::clock::sleep_until(slow.clone(), until);
            async {
                sleep.await;
                FlushOutcome::Done
            }
        });
    coalescer.try_add("a", ()).unwrap();
    coalescer.try_add("b", ()).unwrap();
    assert_eq!(record.take(), [(0, vec!["a", "b"])], "no more fit");
    let refused = coalescer.try_add("x", ()).unwrap_err();
    assert_eq!(refused.why, AddDenied::Full { most: 2 });
    let mut context = Context::from_waker(Waker::noop());
    let mut gives_up = Box::pin(coalescer.add("y", ()));
    let mut first = pin!(coalescer.add("c", ()));
    let mut second = pin!(coalescer.add("d", ()));
    assert!(gives_up.as_mut().poll(&mut context).is_pending());
    assert!(first.as_mut().poll(&mut context).is_pending());
    assert!(second.as_mut().poll(&mut context).is_pending());
    drop(gives_up);
    go_to(&clock, 20);
    assert!(coalescer.try_add("z", ()).is_err(), "others were first");
    assert_eq!(second.as_mut().poll(&mut context), Poll::Ready(Ok(())));
    assert_eq!(first.as_mut().poll(&mut context), Poll::Ready(Ok(())));
    go_to(&clock, 100);
    assert_eq!(record.take(), [(20, vec!["d", "c"])]);
}
