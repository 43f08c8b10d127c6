//! aiolimiter against our leaky bucket: as a meter, and as a queue made of reservations.
//! The peer counts in doubles, so levels agree to a millionth and admissions to a microsecond.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "the peer's times and amounts are doubles"
)]

use std::time::Duration;

use serde::Deserialize;
use tollgate_core::{Arithmetic, BucketLevel, LeakyBucket, Rate, Timestamp};

use crate::tally::Side::{Model, Ours};
use crate::tally::Verdict::{Compared, Excused};
use crate::tally::{Tally, sequences};

const WITHIN_NOISE: &str = "the level plus the amount is the capacity within the noise of doubles";

const TOLERANCE: f64 = 1e-6;
/// What doubles may add or lose in a level of some hundred.
const NOISE: f64 = 1e-9;
/// Our arithmetic counts ticks, whatever their length. With ticks of 2^-43 s the recorded doubles
/// are whole numbers from 512 s on, and periods stay exact too.
const TICKS_PER_SECOND: f64 = (1u64 << 43) as f64;

#[derive(Deserialize)]
struct Sequence {
    id: u64,
    max_rate: f64,
    time_period_s: f64,
    #[serde(flatten)]
    ops: Ops,
}

#[derive(Deserialize)]
#[serde(tag = "mode", content = "ops", rename_all = "snake_case")]
enum Ops {
    Meter(Vec<Measure>),
    Queue(Vec<Arrival>),
}

#[derive(Debug, Deserialize)]
struct Measure {
    t: f64,
    n: f64,
    op: Act,
    ok: bool,
    level: f64,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Act {
    HasCapacity,
    TryAcquire,
}

#[derive(Debug, Deserialize)]
struct Arrival {
    k: usize,
    t: f64,
    n: f64,
    admitted: f64,
    order: usize,
}

fn time(t: f64) -> Timestamp {
    Timestamp::from_nanos((t * TICKS_PER_SECOND).round() as u64)
}

fn seconds(at: Timestamp) -> f64 {
    at.as_nanos() as f64 / TICKS_PER_SECOND
}

/// The limit in parts of which all the amounts are whole numbers, and how many make one.
fn limit_for(sequence: &Sequence, amounts: impl Iterator<Item = f64>) -> (LeakyBucket, f64) {
    let mut parts = 1.0;
    for amount in amounts.chain([sequence.max_rate]) {
        while (amount * parts).fract() != 0.0 {
            parts *= 2.0;
        }
    }
    let period = Duration::from_nanos((sequence.time_period_s * TICKS_PER_SECOND) as u64);
    let rate = Rate::new((sequence.max_rate * parts) as u64, period);
    (LeakyBucket::new(rate).unwrap(), parts)
}

/// The peer's bucket, in the same doubles.
struct Peer {
    max_rate: f64,
    per_second: f64,
    level: f64,
    last: f64,
}

impl Peer {
    fn has_capacity(&mut self, t: f64, n: f64) -> bool {
        if self.level > 0.0 {
            self.level = (self.level - (t - self.last) * self.per_second).max(0.0);
        }
        self.last = t;
        self.level + n <= self.max_rate
    }
}

fn meter(tally: &mut Tally, sequence: &Sequence, ops: &[Measure]) {
    let (limit, parts) = limit_for(sequence, ops.iter().map(|op| op.n));
    let mut level = BucketLevel::default();
    let mut peer = Peer {
        max_rate: sequence.max_rate,
        per_second: sequence.max_rate / sequence.time_period_s,
        level: 0.0,
        last: 0.0,
    };
    tally.replay(sequence.id, ops, |op| {
        let fits = peer.has_capacity(op.t, op.n);
        let over = peer.level + op.n - peer.max_rate;
        if fits && op.op == Act::TryAcquire {
            peer.level += op.n;
        }
        Model.says("ok", fits, op.ok)?;
        Model.says_nearly("level", peer.level, op.level, NOISE)?;

        let (now, cost) = (time(op.t), (op.n * parts) as u64);
        let ours = match op.op {
            Act::HasCapacity => limit.earliest(&level, now, cost) == Some(now),
            Act::TryAcquire => limit.decide(&mut level, now, cost).is_allowed(),
        };
        let within_noise = over.abs() <= NOISE;
        let verdict = if ours != op.ok && within_noise {
            let price = limit.units_per_token() as f64 * parts;
            level = BucketLevel {
                debt: (peer.level * price) as u128,
                as_of: now,
            };
            Excused(WITHIN_NOISE)
        } else {
            Ours.says("ok", ours, op.ok)?;
            Compared
        };
        let stands_at = limit.level(&level, now) / parts;
        Ours.says_nearly("level", stands_at, op.level, TOLERANCE)?;
        Ok(verdict)
    });
}

/// Who waits at the peer is one who reserves with us: admitted in the order of arrival, when the
/// reservation acts.
fn queue(tally: &mut Tally, sequence: &Sequence, arrivals: &[Arrival]) {
    let (limit, parts) = limit_for(sequence, arrivals.iter().map(|arrival| arrival.n));
    let mut level = BucketLevel::default();
    let mut previous = Timestamp::ZERO;
    let mut index = 0;
    tally.replay(sequence.id, arrivals, |arrival| {
        let (now, cost) = (time(arrival.t), (arrival.n * parts) as u64);
        let at = limit.earliest(&level, now, cost).unwrap();
        limit.charge(&mut level, now, at, cost);
        Ours.says_nearly("admitted", seconds(at), arrival.admitted, TOLERANCE)?;
        assert!(previous <= at, "ours admits in the order of arrival");
        previous = at;
        Ours.says("order", (index, index), (arrival.k, arrival.order))?;
        index += 1;
        Ok(Compared)
    });
}

#[test]
fn aiolimiter() {
    let mut tally = Tally::new("aiolimiter");
    for sequence in sequences::<Sequence>("aiolimiter") {
        match &sequence.ops {
            Ops::Meter(ops) => meter(&mut tally, &sequence, ops),
            Ops::Queue(arrivals) => queue(&mut tally, &sequence, arrivals),
        }
    }
    tally.finish();
}
