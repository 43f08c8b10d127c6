//! Python's `limits` against our three windows. Its times are doubles, which we take exactly;
//! what it computes from them agrees to a microsecond.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "the peer's times are doubles"
)]

mod fixed;
mod moving;
mod sliding;

use std::collections::HashMap;
use std::time::Duration;

use serde::Deserialize;
use tollgate_core::{Rate, Timestamp};

use crate::tally::{Judged, Tally, sequences};

/// Our arithmetic counts ticks, whatever their length. The doubles of today's Unix time are whole
/// numbers of 2^-22 s, so with such ticks nothing is rounded.
const TICKS_PER_SECOND: u64 = 1 << 22;
const TOLERANCE: f64 = 1e-6;

#[derive(Deserialize)]
struct Sequence {
    id: u64,
    strategy: Strategy,
    amount: u64,
    window_s: u64,
    ops: Vec<Op>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Strategy {
    Fixed,
    Moving,
    Sliding,
}

#[derive(Debug, Deserialize)]
struct Op {
    t: f64,
    key: String,
    #[serde(flatten)]
    call: Call,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Call {
    Hit { cost: u64, ok: bool },
    Test { cost: u64, ok: bool },
    Stats(Stats),
    Clear,
}

#[derive(Debug, Deserialize)]
struct Stats {
    reset: f64,
    remaining: u64,
    #[serde(default)]
    stale: bool,
}

/// A limit of the peer: so many in a window of so many seconds.
#[derive(Clone, Copy)]
struct Item {
    amount: u64,
    window: u64,
}

impl Item {
    /// The window in seconds, as the peer reckons with it.
    fn seconds(&self) -> f64 {
        self.window as f64
    }

    fn ticks(&self) -> u64 {
        self.window * TICKS_PER_SECOND
    }

    fn rate(&self) -> Rate {
        Rate::new(self.amount, Duration::from_nanos(self.ticks()))
    }
}

fn time(t: f64) -> Timestamp {
    Timestamp::from_nanos((t * TICKS_PER_SECOND as f64).round() as u64)
}

fn seconds(at: Timestamp) -> f64 {
    at.as_nanos() as f64 / TICKS_PER_SECOND as f64
}

/// Both sides of one key under one strategy.
trait Key {
    fn new(item: Item) -> Self;
    fn step(&mut self, t: f64, call: &Call) -> Judged;
}

fn replay<K: Key>(tally: &mut Tally, sequence: &Sequence) {
    let item = Item {
        amount: sequence.amount,
        window: sequence.window_s,
    };
    let mut keys = HashMap::new();
    tally.replay(sequence.id, &sequence.ops, |op| {
        let key = keys.entry(op.key.clone()).or_insert_with(|| K::new(item));
        key.step(op.t, &op.call)
    });
}

#[test]
fn py_limits() {
    let mut tally = Tally::new("py_limits");
    for sequence in sequences::<Sequence>("py_limits") {
        match sequence.strategy {
            Strategy::Fixed => replay::<fixed::Key>(&mut tally, &sequence),
            Strategy::Moving => replay::<moving::Key>(&mut tally, &sequence),
            Strategy::Sliding => replay::<sliding::Key>(&mut tally, &sequence),
        }
    }
    tally.finish();
}
