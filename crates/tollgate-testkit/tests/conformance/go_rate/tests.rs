//! Observed answers of the peer on amd64 (Go 1.19.8) where waits never end and integers overflow; and a line recorded
//! wrongly.

use serde_json::{Value, from_value, json};

use super::model::{duration_from, since, tokens_from};
use super::recorded::Sequence;
use super::{other, replay};
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

/// Replays one sequence that starts at a limit and a burst: the model must say what the peer said,
/// and ours must agree or be excused.
fn check(limit: f64, burst: i64, ops: Value) {
    let tally = replayed(json!([{"id": 0, "limit": limit, "burst": burst, "ops": ops}]));
    assert_eq!(tally.disagreements(), "");
}

#[test]
fn a_wait_that_never_ends_is_refunded_by_each_cancel() {
    let ops = json!([
        {"op": "allow", "t": 0, "n": 4, "ok": true, "tokens_after": 1},
        {"op": "reserve", "t": 0, "n": 2, "ok": true, "delay": i64::MAX, "tokens_after": -1},
        {"op": "cancel", "t": 0, "rid": 0, "tokens_after": 1},
        {"op": "cancel", "t": 0, "rid": 0, "tokens_after": 3},
        {"op": "delay", "t": 1, "rid": 0, "delay": i64::MAX - 1, "tokens_after": 3},
    ]);
    check(1e-12, 5, ops);
}

#[test]
fn cancelling_at_limit_zero_puts_the_latest_act_beyond_all_others() {
    let ops = json!([
        {"op": "reserve", "t": 0, "n": 5, "ok": true, "delay": 0, "tokens_after": 0},
        {"op": "reserve", "t": 0, "n": 1, "ok": true, "delay": i64::MAX, "tokens_after": -1},
        {"op": "set_limit", "t": 0, "limit": 0, "tokens_after": -1},
        {"op": "reserve", "t": 0, "n": 1, "ok": true, "delay": i64::MAX, "tokens_after": -2},
        {"op": "cancel", "t": 0, "rid": 2, "tokens_after": -1},
        {"op": "cancel", "t": 0, "rid": 1, "tokens_after": -0.009_223_372_036_854_749},
        {"op": "cancel", "t": 0, "rid": 0, "tokens_after": 4.981_553_255_926_29},
    ]);
    check(1e-12, 5, ops);
}

#[test]
fn cancelling_what_was_made_without_a_limit_does_so_too() {
    let ops = json!([
        {"op": "reserve", "t": 0, "n": 3, "ok": true, "delay": 0, "tokens_after": 2},
        {"op": "set_limit", "t": 0, "limit": "inf", "tokens_after": 2},
        {"op": "reserve", "t": 0, "n": 1, "ok": true, "delay": 0, "tokens_after": 2},
        {"op": "set_limit", "t": 0, "limit": 1, "tokens_after": 2},
        {"op": "cancel", "t": 0, "rid": 1, "tokens_after": 3},
        {"op": "cancel", "t": 0, "rid": 0, "tokens_after": 3},
        {"op": "cancel", "t": 0, "rid": 1, "tokens_after": 4},
    ]);
    check(1.0, 5, ops);
}

#[test]
fn a_wait_that_overflows_by_one_is_none() {
    let left = -9.223_372_036_854_776;
    let ops = json!([
        {"op": "reserve", "t": 0, "n": 10, "ok": true, "delay": 0, "tokens_after": 90},
        {"op": "reserve", "t": 0, "n": 100, "ok": true, "delay": i64::MAX, "tokens_after": -10},
        {"op": "cancel", "t": 0, "rid": 0, "tokens_after": left},
        {"op": "allow", "t": 0, "n": 0, "ok": true, "tokens_after": left},
        {"op": "reserve", "t": 0, "n": 0, "ok": true, "delay": 0, "tokens_after": left},
        {"op": "delay", "t": 0, "rid": 2, "delay": 0, "tokens_after": left},
        {"op": "allow", "t": 0, "n": 1, "ok": false, "tokens_after": left},
    ]);
    check(1e-9, 100, ops);
}

#[test]
fn tokens_become_durations_as_on_amd64() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    for (tokens, limit, nanos) in [
        (1.0, 1.0, 1_000_000_000),
        (-1.0, 3.0, -333_333_333),
        (2.5, 0.3, 8_333_333_333),
        (-7.0, 7.3, -958_904_109),
        (1.9e-9, 1.0, 1),
        (-1.9e-9, 1.0, -1),
        (-0.9e-9, 1.0, 0),
        (100.0, 0.1, 1_000_000_000_000),
        // Without a limit that refills, the wait is endless whatever its sign.
        (1.0, 0.0, i64::MAX),
        (-1.0, 0.0, i64::MAX),
        (0.0, 0.0, i64::MAX),
        (-1.0, -1.0, i64::MAX),
        // Too long is endless, and too far back the smallest integer.
        (1.0, 1e-9, 999_999_999_999_999_872),
        (9.0, 1e-9, 9_000_000_000_000_000_000),
        (10.0, 1e-9, i64::MAX),
        (-9.0, 1e-9, -9_000_000_000_000_000_000),
        (-10.0, 1e-9, i64::MIN),
        (-1.0, 1e-12, i64::MIN),
        (0.0, 1e-15, 0),
        (1.0, 5e-324, i64::MAX),
        (-1.0, 5e-324, i64::MIN),
        (1e300, 1e-300, i64::MAX),
        (-1e300, 1e-300, i64::MIN),
        // Exactly 2^63 is not too long, but no integer either.
        (9.223_372_036_854_776, 1e-9, i64::MIN),
        (-9.223_372_036_854_776, 1e-9, i64::MIN),
        (9.223_372_036_854_774, 1e-9, 9_223_372_036_854_774_784),
        (-9.223_372_036_854_774, 1e-9, -9_223_372_036_854_774_784),
        (inf, 1.0, i64::MAX),
        (-inf, 1.0, i64::MIN),
        (nan, 1.0, i64::MIN),
        (1.0, nan, i64::MIN),
        (inf, inf, i64::MIN),
        (1.0, inf, 0),
        (-1.0, f64::MAX, 0),
    ] {
        let said = duration_from(tokens, limit);
        assert_eq!(said, nanos, "{tokens} tokens at {limit}");
    }
}

#[test]
fn durations_become_tokens_as_at_the_peer() {
    for (nanos, limit, tokens) in [
        (1, 1.0, 1e-9),
        (1_500_000_000, 3.0, 4.5),
        (-1_500_000_000, 3.0, -4.5),
        (333_333_333, 3.0, 0.999_999_999),
        (i64::MAX, 1.0, 9_223_372_036.854_776),
        (i64::MIN, 1.0, -9_223_372_036.854_776),
        (i64::MAX, 1e-12, 0.009_223_372_036_854_777),
        (i64::MIN, 1e-9, -9.223_372_036_854_776),
        (i64::MAX, 0.0, 0.0),
        (i64::MIN, -1.0, 0.0),
        (0, f64::MAX, 0.0),
        (1, f64::MAX, 1.797_693_134_862_315_6e299),
        (1_000_000_001, f64::MAX, f64::INFINITY),
        (-2_000_000_000, f64::MAX, f64::NEG_INFINITY),
    ] {
        assert_eq!(tokens_from(nanos, limit), tokens, "{nanos} ns at {limit}");
    }
    assert!(tokens_from(0, f64::INFINITY).is_nan());
}

#[test]
fn times_too_far_apart_are_the_longest_duration_apart() {
    let (longest, shortest) = (i128::from(i64::MAX), i128::from(i64::MIN));
    for (t, earlier, nanos) in [
        (longest, 0, i64::MAX),
        (longest + 1, 0, i64::MAX),
        (2 * longest, 0, i64::MAX),
        (shortest, 0, i64::MIN),
        (shortest - 1, 0, i64::MIN),
        (longest + shortest, 0, -1),
        (longest, shortest, i64::MAX),
    ] {
        assert_eq!(since(t, earlier), nanos, "from {earlier} to {t}");
    }
}

#[test]
fn other_sequences_of_the_same_kinds_agree() {
    // The last one cancels what a nanosecond of 30 tokens cuts short.
    let seeds = (0..3_000).chain([165_080]);
    let sequences: Vec<_> = seeds.map(other::sequence).collect();
    replay(&sequences).finish();
}
