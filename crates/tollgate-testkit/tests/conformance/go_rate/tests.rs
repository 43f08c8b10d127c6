//! Short sequences of known answers, one of them recorded wrongly.

use serde_json::{Value, from_value, json};

use super::recorded::Sequence;
use super::replay;
use crate::tally::Tally;

fn replayed(sequences: Value) -> Tally {
    replay(&from_value::<Vec<Sequence>>(sequences).unwrap())
}

/// One a second, two at once: two pass and a third does not. `left` is what was recorded as left
/// after the second.
fn third_refused(id: u64, left: f64) -> Value {
    json!({"id": id, "limit": 1, "burst": 2, "ops": [
        {"op": "allow", "t": 0, "n": 1, "ok": true, "tokens_after": 1},
        {"op": "allow", "t": 0, "n": 1, "ok": true, "tokens_after": left},
        {"op": "allow", "t": 0, "n": 1, "ok": false, "tokens_after": 0},
    ]})
}

#[test]
fn a_line_recorded_wrongly_is_told_and_the_others_are_compared() {
    let tally = replayed(json!([
        third_refused(0, 0.0),
        third_refused(1, 0.25),
        third_refused(2, 0.0),
    ]));
    assert_eq!(
        tally.to_string(),
        "go_rate: 3 sequences, 7 operations, 7 compared, 0 excused"
    );
    assert_eq!(
        tally.judged().unwrap_err(),
        "go_rate: the model of the peer is wrong in 1 of 3 sequences, 2 operations left out\n  \
         sequence 1, operation 1: Op { t: 0, tokens_after: 0.25, call: Allow { n: 1, ok: true } }: \
         tokens after: said 0.0, recorded 0.25\n"
    );
}
