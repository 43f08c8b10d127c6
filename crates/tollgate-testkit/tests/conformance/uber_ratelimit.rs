//! uber-go/ratelimit against our pacer: the same departure times, with and without slack.
//!
//! The peer returns the intended departure time, ours the duration of the wait: the sleeps are compared.

use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use serde::Deserialize;
use tollgate::clock::Manual;
use tollgate::{Rate, Timestamp};
use tollgate_shape::WorkPacer;

use crate::tally::Side::Ours;
use crate::tally::Verdict::Compared;
use crate::tally::{Tally, sequences};

/// Nobody in these traces waits behind another.
const CAPACITY: usize = 1 << 20;

#[derive(Deserialize)]
struct Sequence {
    id: u64,
    rate: u64,
    per_ns: u64,
    slack: u64,
    ops: Vec<Take>,
}

/// Somebody takes its turn at `t`, and sleeps.
#[derive(Debug, Deserialize)]
struct Take {
    t: u64,
    sleep: u64,
    ret: u64,
}

fn replay(tally: &mut Tally, sequence: &Sequence) {
    // The peer's interval is a whole number of nanoseconds.
    let interval = Duration::from_nanos(sequence.per_ns / sequence.rate);
    let first = sequence.ops.first().map_or(0, |take| take.t);
    // The peer has no credit at its first call, ours none when it is built.
    let clock = Manual::starting_at(Timestamp::from_nanos(first));
    let pacer = WorkPacer::builder(Rate::every(interval), CAPACITY)
        .slack(sequence.slack)
        .clock(clock.clone())
        .build()
        .unwrap();
    tally.replay(sequence.id, &sequence.ops, |take| {
        clock.set(Timestamp::from_nanos(take.t));
        let mut turn = pin!(pacer.pace().into_future());
        let mut context = Context::from_waker(Waker::noop());
        let mut slept = 0;
        if turn.as_mut().poll(&mut context).is_pending() {
            // One nanosecond before its time it still waits.
            slept = take.sleep;
            clock.set(Timestamp::from_nanos((take.t + slept).saturating_sub(1)));
            let early = turn.as_mut().poll(&mut context).is_ready();
            Ours.says("too early", early, false)?;
            clock.set(Timestamp::from_nanos(take.t + slept));
            let waited = turn.as_mut().poll(&mut context);
            let expected = Poll::Ready(Ok(Duration::from_nanos(slept)));
            Ours.says("waited", waited, expected)?;
        }
        Ours.says("sleep", slept, take.sleep)?;
        Ours.says("ret", take.t + slept, take.ret)?;
        Ok(Compared)
    });
}

#[test]
fn uber_ratelimit() {
    let mut tally = Tally::new("uber_ratelimit");
    for sequence in sequences::<Sequence>("uber_ratelimit") {
        replay(&mut tally, &sequence);
    }
    tally.finish();
}
