//! Whoever leaves frees its place, wherever it waits.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::Rate;
use tollgate::clock::{Clock, Manual};
use tollgate_http::outgoing::{CallPermit, HostPacer, HostPacerBuilder};

use crate::kit::by_hand;

type ByHand = HostPacer<Manual, Manual>;

fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn at_once(pacer: &ByHand) -> CallPermit {
    match poll(pin!(pacer.acquire("host"))) {
        Poll::Ready(Ok(call)) => call,
        other => panic!("{other:?}"),
    }
}

fn tell(pacer: &ByHand, call: &CallPermit, status: u16, fields: &[(&str, &str)]) {
    pacer.record_response(call, status, |name| {
        let own = fields.iter().filter(move |(own, _)| *own == name);
        own.map(|(_, value)| value.as_bytes())
    });
}

/// When a call passes that begins now, in steps of 10 ms.
fn time_to_pass(pacer: &ByHand, clock: &Manual) -> Duration {
    let (mut call, begin) = (pin!(pacer.acquire("host")), clock.now());
    for _ in 0..10_000 {
        match poll(call.as_mut()) {
            Poll::Ready(Ok(_)) => return clock.now() - begin,
            Poll::Ready(Err(stalled)) => panic!("{stalled}"),
            Poll::Pending => clock.advance(Duration::from_millis(10)),
        }
    }
    panic!("it never passes");
}

/// `max_waiting` bounds calls that wait: one that needn't is no part of them.
#[test]
fn calls_that_need_not_wait_pass_where_none_may_wait() {
    let (pacer, clock) = by_hand(HostPacer::builder(Rate::per_second(10).burst(3)).max_waiters(0));
    for _ in 0..3 {
        at_once(&pacer);
    }
    let refused = |pacer: &ByHand| match poll(pin!(pacer.acquire("host"))) {
        Poll::Ready(Err(stalled)) => stalled.to_string(),
        other => panic!("{other:?}"),
    };
    let text = "host isn't asked: 0 calls wait already, as many as may (max_waiting)";
    assert_eq!(refused(&pacer), text);
    assert_eq!(pacer.waiting(), 0);
    clock.advance(Duration::from_millis(100));
    let call = at_once(&pacer);
    // A stop and a pace are waits, too, and both are over at some time.
    tell(&pacer, &call, 429, &[("retry-after", "1")]);
    assert_eq!(refused(&pacer), text);
    clock.advance(Duration::from_secs(1));
    at_once(&pacer);
    // Those who wait already don't count against those who needn't.
    let (pacer, _) = by_hand(HostPacer::builder(Rate::per_second(1).burst(1)).max_waiters(1));
    at_once(&pacer);
    let mut waits = pin!(pacer.acquire("host"));
    assert!(poll(waits.as_mut()).is_pending());
    assert_eq!(pacer.waiting(), 1);
    let mut other = pin!(pacer.acquire("other"));
    assert!(matches!(poll(other.as_mut()), Poll::Ready(Ok(_))));
}

type Set = fn(&ByHand);

/// The stages at which a call waits: its own rate, a stop, a pace, and all of them.
const STAGES: [(&str, Set, u64); 4] = [
    ("own rate", |_| {}, 100),
    (
        "stop",
        |pacer| {
            let call = at_once(pacer);
            tell(pacer, &call, 429, &[("retry-after", "1")]);
        },
        1_000,
    ),
    (
        "pace",
        |pacer| {
            let call = at_once(pacer);
            let fields = [
                ("ratelimit", "\"a\";r=2;t=8"),
                ("ratelimit-policy", "\"a\";q=100;w=9"),
            ];
            tell(pacer, &call, 200, &fields);
            // The line lets one go at once.
            at_once(pacer);
        },
        4_000,
    ),
    (
        "stop and pace",
        |pacer| {
            let call = at_once(pacer);
            let fields = [("retry-after", "1"), ("ratelimit", "\"a\";r=0;t=1")];
            tell(pacer, &call, 429, &fields);
        },
        1_000,
    ),
];

fn builder() -> HostPacerBuilder {
    let patience = Duration::from_secs(600);
    HostPacer::builder(Rate::per_second(10).burst(4)).max_wait(patience)
}

#[test]
fn a_call_that_is_dropped_frees_its_place_wherever_it_waits() {
    for (stage, set, expect) in STAGES {
        for dropped_after in [0_u64, 10, 50, 90, 500, 990, 2_000] {
            let (pacer, clock) = by_hand(builder());
            set(&pacer);
            if expect == 100 {
                (0..4).for_each(|_| drop(at_once(&pacer)));
            }
            let expect = Duration::from_millis(expect);
            let dropped_after = Duration::from_millis(dropped_after);
            if dropped_after >= expect {
                continue;
            }
            {
                let mut left: Vec<_> = (0..20).map(|_| Box::pin(pacer.acquire("host"))).collect();
                for call in &mut left {
                    assert!(poll(call.as_mut()).is_pending(), "{stage}");
                }
                assert_eq!(pacer.waiting(), 20);
                clock.advance(dropped_after);
                for call in &mut left {
                    assert!(poll(call.as_mut()).is_pending(), "{stage}");
                }
            }
            assert_eq!(pacer.waiting(), 0, "{stage}");
            let time = time_to_pass(&pacer, &clock) + dropped_after;
            assert_eq!(time, expect, "{stage}, dropped after {dropped_after:?}");
        }
    }
}

/// A future that is dropped after each possible number of polls, while time goes on.
#[test]
fn a_call_that_is_dropped_after_any_poll_leaves_nothing_behind() {
    for polls in 0..60 {
        let (pacer, clock) = by_hand(builder());
        let call = at_once(&pacer);
        tell(&pacer, &call, 429, &[("retry-after", "1")]);
        {
            let mut calls: Vec<_> = (0..3).map(|_| Box::pin(pacer.acquire("host"))).collect();
            let mut passed = [false; 3];
            for _ in 0..polls {
                for (call, passed) in calls.iter_mut().zip(&mut passed) {
                    *passed = *passed || poll(call.as_mut()).is_ready();
                }
                clock.advance(Duration::from_millis(50));
            }
        }
        assert_eq!(pacer.waiting(), 0, "after {polls} polls");
        clock.advance(Duration::from_secs(5));
        assert_eq!(
            time_to_pass(&pacer, &clock),
            Duration::ZERO,
            "after {polls} polls"
        );
    }
}
