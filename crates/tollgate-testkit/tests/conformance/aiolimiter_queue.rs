//! aiolimiter's waiters against our pacer: real waits on a clock that is moved by hand, in the order of arrival.
//!
//! A full bucket of theirs is slack of ours. Times are doubles there and whole nanoseconds here, so admissions agree
//! to a microsecond, as they were recorded.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the peer's times and amounts are doubles"
)]

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use serde::Deserialize;
use tollgate::clock::{Clock, Manual};
use tollgate::{Rate, Timestamp};
use tollgate_shape::{PaceFuture, WorkPacer};

use crate::tally::Side::Ours;
use crate::tally::Verdict::Compared;
use crate::tally::{Tally, sequences};

const TOLERANCE: u64 = 1_000;

#[derive(Deserialize)]
struct Sequence {
    id: u64,
    mode: String,
    max_rate: f64,
    time_period_s: f64,
    ops: serde_json::Value,
}

#[derive(Debug, Deserialize)]
struct Arrival {
    k: usize,
    t: f64,
    admitted: f64,
    order: usize,
}

fn time(t: f64) -> Timestamp {
    Timestamp::from_nanos((t * 1e9).round() as u64)
}

/// Those who wait, and when each passed.
struct Line {
    clock: Manual,
    waiting: Vec<(usize, Pin<Box<PaceFuture<Manual>>>)>,
    passed: Vec<(usize, Timestamp)>,
}

impl Line {
    fn look(&mut self) {
        let now = self.clock.now();
        let (clock, passed) = (&self.clock, &mut self.passed);
        self.waiting.retain_mut(|(k, turn)| {
            let poll = turn.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            if let Poll::Ready(turn) = poll {
                turn.unwrap();
                passed.push((*k, clock.now().min(now)));
                return false;
            }
            true
        });
    }
}

fn replay(tally: &mut Tally, sequence: &Sequence) {
    let arrivals: Vec<Arrival> = serde_json::from_value(sequence.ops.clone()).unwrap();
    let period = Duration::from_secs_f64(sequence.time_period_s);
    let count = sequence.max_rate as u64;
    let clock = Manual::new();
    let pacer = WorkPacer::builder(Rate::new(count, period), 1 << 20)
        .slack(count - 1)
        .clock(clock.clone())
        .build()
        .unwrap();
    let mut line = Line {
        clock: clock.clone(),
        waiting: Vec::new(),
        passed: Vec::new(),
    };
    // Every time at which somebody comes or goes at the peer: ours is looked at then, and just after.
    let mut events: Vec<(Timestamp, Option<usize>)> = Vec::new();
    for arrival in &arrivals {
        events.push((time(arrival.t), Some(arrival.k)));
        events.push((time(arrival.admitted).plus_nanos(TOLERANCE), None));
    }
    events.sort_by_key(|(at, who)| (*at, who.is_none(), *who));
    for (at, who) in events {
        clock.set(at);
        line.look();
        if let Some(k) = who {
            line.waiting.push((k, Box::pin(pacer.pace().into_future())));
            line.look();
        }
    }
    tally.replay(sequence.id, &arrivals, |arrival| {
        let Some((order, (_, at))) = line
            .passed
            .iter()
            .enumerate()
            .find(|(_, (k, _))| *k == arrival.k)
        else {
            return Err(Ours.differs("it still waits".to_owned()));
        };
        Ours.says("order", order, arrival.order)?;
        let recorded = time(arrival.admitted).as_nanos();
        Ours.says_nearly("admitted", at.as_nanos(), recorded, 2 * TOLERANCE)?;
        Ok(Compared)
    });
}

#[test]
fn aiolimiter_queue() {
    let mut tally = Tally::new("aiolimiter");
    for sequence in sequences::<Sequence>("aiolimiter") {
        if sequence.mode == "queue" {
            replay(&mut tally, &sequence);
        }
    }
    tally.finish();
}
