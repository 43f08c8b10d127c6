//! Short sequences of known answers, one of them recorded wrongly.

use serde_json::{Value, from_value, json};

use super::{Sequence, replay};
use crate::tally::Tally;

fn replayed(sequences: Value) -> Tally {
    replay(&from_value::<Vec<Sequence>>(sequences).unwrap())
}

/// One each two seconds, one at once: one passes and a second does not. `allowed` is what was
/// recorded for the first.
fn second_refused(id: u64, allowed: u64) -> Value {
    json!({"id": id, "rate": 1, "burst": 1, "period_s": 2, "exact_allowed_agrees": true, "ops": [
        {"op": "allow_n", "t_us": 0, "n": 1, "allowed": allowed, "remaining": 0,
         "retry_after_ns": -1, "reset_after_ns": 2_000_000_000, "pttl_ms": 2_000},
        {"op": "allow_n", "t_us": 0, "n": 1, "allowed": 0, "remaining": 0,
         "retry_after_ns": 2_000_000_000, "reset_after_ns": 2_000_000_000, "pttl_ms": 2_000},
    ]})
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
