//! One debounce for each key: the same rules, bounded keys, and memory.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tollgate::clock::Manual;
use tollgate_shape::{Debounce, Debouncer, Edge, KeyedDebouncer, WhenFull};

use crate::{Record, go_to, ms};

type Keyed = KeyedDebouncer<u8, u32, Manual>;

fn builder(leading: Edge, trailing: Edge, max_wait: Option<u64>) -> Debounce {
    let builder = Debounce::new(ms(10)).leading(leading).trailing(trailing);
    match max_wait {
        Some(most) => builder.max_wait(ms(most)),
        None => builder,
    }
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Call(u8),
    Flush(u8),
    Cancel(u8),
    Wait(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0u8..4).prop_map(Act::Call),
        1 => (0u8..4).prop_map(Act::Flush),
        1 => (0u8..4).prop_map(Act::Cancel),
        4 => (1u64..15).prop_map(Act::Wait),
    ]
}

fn edge() -> impl Strategy<Value = Edge> {
    prop_oneof![Just(Edge::On), Just(Edge::Off)]
}

proptest! {
    #[test]
    fn each_key_fires_as_a_debouncer_of_its_own(
        acts in vec(act(), 1..80),
        (leading, trailing) in (edge(), edge()),
        max_wait in prop_oneof![Just(None), (10u64..30).prop_map(Some)],
    ) {
        let clock = Manual::new();
        let (ours, theirs) = (Record::new(&clock), Record::new(&clock));
        let noted = ours.clone();
        let keyed: Keyed = builder(leading, trailing, max_wait)
            .clock(clock.clone())
            .keyed(4)
            .build(move |key, value| noted.note((key, value)));
        let alone: BTreeMap<u8, Debouncer<u32, Manual>> = (0..4)
            .map(|key| {
                let noted = theirs.clone();
                let builder = builder(leading, trailing, max_wait).clock(clock.clone());
                (key, builder.build(move |value| noted.note((key, value))))
            })
            .collect();
        for (value, act) in (0..).zip(acts) {
            match act {
                Act::Call(key) => {
                    keyed.call(key, value).unwrap();
                    alone[&key].call(value);
                }
                Act::Flush(key) => prop_assert_eq!(keyed.flush(&key), alone[&key].flush()),
                Act::Cancel(key) => prop_assert_eq!(keyed.cancel(&key), alone[&key].cancel()),
                Act::Wait(millis) => (0..millis).for_each(|_| clock.advance(ms(1))),
            }
            for (key, alone) in &alone {
                prop_assert_eq!(keyed.pending(key), alone.pending());
            }
        }
        (0..100).for_each(|_| clock.advance(ms(1)));
        let sorted = |record: Record<(u8, u32)>| {
            let mut events = record.take();
            events.sort_unstable();
            events
        };
        prop_assert_eq!(sorted(ours), sorted(theirs));
        prop_assert!(keyed.is_empty(), "quiet keys are forgotten");
        prop_assert_eq!(clock.parked(), 0);
    }
}

#[test]
fn at_the_cap_new_keys_are_refused_or_the_earliest_fires() {
    let clock = Manual::new();
    let record = Record::new(&clock);
    let make = |when_full| {
        let noted = record.clone();
        Debounce::new(ms(100))
            .clock(clock.clone())
            .keyed(2)
            .when_full(when_full)
            .build(move |key: u8, value: u32| noted.note((key, value)))
    };
    let refuses: Keyed = make(WhenFull::Deny);
    for key in 0..2 {
        refuses.call(key, 0).unwrap();
    }
    assert!(refuses.call(2, 0).is_err());
    assert_eq!(refuses.call(1, 1), Ok(()), "a key that is there");
    refuses.stop();

    let fires: Keyed = make(WhenFull::FireEarliest);
    for key in 0..4 {
        go_to(&clock, u64::from(key) * 10);
        fires.call(key, 7).unwrap();
    }
    assert_eq!(record.take(), [(20, (0, 7)), (30, (1, 7))]);
    assert_eq!(fires.len(), 2);
    assert_eq!(fires.flush_all(), 2);
    assert_eq!(record.take(), [(30, (2, 7)), (30, (3, 7))]);
}

#[test]
fn a_hundred_thousand_keys_fire_in_order_on_one_timer() {
    let clock = Manual::new();
    let record = Record::new(&clock);
    let noted = record.clone();
    let keyed: KeyedDebouncer<u32, u32, _> = Debounce::new(ms(100))
        .clock(clock.clone())
        .keyed(100_000)
        .build(move |key, value| noted.note((key, value)));
    for round in 0..2 {
        for key in 0..100_000 {
            keyed.call(key, round).unwrap();
        }
        clock.advance(ms(1));
    }
    assert_eq!((keyed.len(), clock.parked()), (100_000, 1));
    clock.advance(Duration::from_secs(1));
    let fired = record.take();
    assert_eq!(fired.len(), 100_000);
    assert!(fired.iter().all(|(_, (_, round))| *round == 1));
    assert!(keyed.is_empty());
}
