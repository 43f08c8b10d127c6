//! Observed answers of the peer's scripts around the expiry of a key (redis-server 7.0.15 with a virtual clock); and a
//! line recorded wrongly.

use serde_json::{Value, from_value, json};

use super::{Sequence, other, replay};
use crate::tally::Tally;

fn replayed(sequences: Value) -> Tally {
    replay(&from_value::<Vec<Sequence>>(sequences).unwrap())
}

/// One call that asks for `n`, and its answer: allowed, remaining, retry and reset after in
/// nanoseconds, and what is left of the key's life in milliseconds.
fn allow(t_us: u64, n: u64, [allowed, remaining, retry, reset, pttl]: [i64; 5]) -> Value {
    json!({"op": "allow_n", "t_us": t_us, "n": n, "allowed": allowed, "remaining": remaining,
        "retry_after_ns": retry, "reset_after_ns": reset, "pttl_ms": pttl})
}

/// A sequence at so many in a period of so many seconds.
fn at(id: u64, rate: u64, period_s: u64, burst: u64, ops: &[Value]) -> Value {
    json!({"id": id, "rate": rate, "burst": burst, "period_s": period_s,
        "exact_allowed_agrees": true, "ops": ops})
}

/// One each two seconds, one at once: one passes and a second does not. `allowed` is what was
/// recorded for the first.
fn second_refused(id: u64, allowed: i64) -> Value {
    let two = 2_000_000_000;
    let ops = [
        allow(0, 1, [allowed, 0, -1, two, 2_000]),
        allow(0, 1, [0, 0, two, two, 2_000]),
    ];
    at(id, 1, 2, 1, &ops)
}

#[test]
fn a_line_recorded_wrongly_is_told_and_the_others_are_compared() {
    let tally = replayed(json!([
        second_refused(0, 1),
        second_refused(1, 2),
        second_refused(2, 1),
    ]));
    assert_eq!(
        tally.to_string(),
        "redis_rate: 3 sequences, 4 operations, 4 compared, 0 excused"
    );
    let wrong = tally.judged().unwrap_err();
    let told = "redis_rate: the model of the peer is wrong in 1 of 3 sequences, \
                2 operations left out\n  sequence 1, operation 0: ";
    assert!(wrong.starts_with(told), "{wrong}");
    assert_eq!(wrong.lines().count(), 2, "{wrong}");
}

#[test]
fn a_key_lives_through_its_last_millisecond_and_after_a_step_back() {
    let (two, half) = (2_000_000_000, 500_046_014);
    let ops = [
        allow(10_000_046, 1, [1, 0, -1, two, 2_000]),
        allow(12_000_791, 0, [0, 1, -1, 0, 0]),
        allow(11_500_000, 1, [0, 0, half, half, 500]),
        allow(12_000_999, 0, [0, 1, -1, 0, 0]),
        // One more microsecond, and it is deleted: a step back doesn't bring it back.
        allow(12_001_000, 0, [0, 1, -1, 0, -2]),
        allow(11_500_000, 1, [1, 0, -1, two, 2_000]),
    ];
    let tally = replayed(json!([at(0, 1, 2, 1, &ops)]));
    assert_eq!(tally.disagreements(), "");
}

#[test]
fn the_noise_of_doubles_may_lengthen_a_life_by_a_second() {
    let mut ops = [
        allow(10_000_046, 1, [1, 3, -1, 333_333_343, 1_000]),
        allow(10_000_046, 1, [1, 1, -1, 666_666_686, 1_000]),
        // A second by exact arithmetic, which rounds up to one and not two.
        allow(10_000_046, 1, [1, 0, -1, 1_000_000_029, 2_000]),
        allow(11_500_000, 0, [0, 4, -1, 0, 500]),
        allow(10_900_000, 4, [0, 0, 100_046_038, 100_046_038, 1_100]),
    ];
    ops[1]["exact_remaining"] = json!(2);
    ops[2]["exact_remaining"] = json!(1);
    let tally = replayed(json!([at(0, 3, 1, 4, &ops)]));
    assert_eq!(tally.disagreements(), "");
}

#[test]
fn other_sequences_of_the_same_kinds_agree() {
    let sequences: Vec<_> = (0..3_000).map(other::sequence).collect();
    replay(&sequences).finish();
}
