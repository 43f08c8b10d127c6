//! redis-cell's library: integer nanoseconds, except for `remaining`, which it counts in whole
//! microseconds.

use std::time::Duration;

use serde::Deserialize;
use tollgate_core::{Arithmetic, Decision, Gcra, Outcome, Rate, TatState, Timestamp};

use crate::tally::Side::Ours;
use crate::tally::{Judged, Tally, Verdict, sequences};

/// What the peer writes where no retry helps or none is needed: minus one second.
const NONE: i64 = -1_000_000_000;

#[derive(Deserialize)]
struct Sequence {
    id: u64,
    max_burst: u64,
    count: u64,
    period_s: u64,
    ops: Vec<Op>,
}

#[derive(Debug, Deserialize)]
struct Op {
    t: u64,
    n: u64,
    limited: bool,
    limit: u64,
    remaining: u64,
    retry_after_ns: i64,
    reset_after_ns: i64,
}

/// `remaining` as the peer counts it: whole microseconds of what is free over whole microseconds
/// of the interval.
fn remaining(emission: Duration, decision: &Decision) -> u64 {
    let tolerance = emission.as_nanos() * u128::from(decision.limit);
    // Time stepping back can leave more owed than fits; the peer then says 0, and so does this.
    let free = tolerance.saturating_sub(decision.reset_after.as_nanos());
    u64::try_from((free / 1_000) / emission.as_micros()).unwrap()
}

fn compare(emission: Duration, op: &Op, decision: &Decision) -> Judged {
    Ours.says("limited", !decision.is_allowed(), op.limited)?;
    Ours.says("limit", decision.limit, op.limit)?;
    Ours.says("remaining", remaining(emission, decision), op.remaining)?;
    let nanos = |duration: Duration| i64::try_from(duration.as_nanos()).unwrap();
    let retry = match decision.outcome {
        Outcome::Allowed | Outcome::Never => NONE,
        Outcome::Denied => nanos(decision.wait_or_max()),
    };
    Ours.says("retry after", retry, op.retry_after_ns)?;
    Ours.says(
        "reset after",
        nanos(decision.reset_after),
        op.reset_after_ns,
    )?;
    Ok(Verdict::Compared)
}

#[test]
fn redis_cell_core() {
    let mut tally = Tally::new("redis_cell_core");
    for sequence in sequences::<Sequence>("redis_cell_core") {
        let emission = Duration::from_nanos(sequence.period_s * 1_000_000_000 / sequence.count);
        let rate = Rate::every(emission).burst(sequence.max_burst + 1);
        let limit = Gcra::new(rate).unwrap();
        let mut tat = TatState::default();
        tally.replay(sequence.id, &sequence.ops, |op| {
            let decision = limit.decide(&mut tat, Timestamp::from_nanos(op.t), op.n);
            compare(emission, op, &decision)
        });
    }
    tally.finish();
}
