//! Governor's recorded traces, which are keyed, replayed on a table.

use std::time::Duration;

use serde::Deserialize;
use tollgate::clock::Manual;
use tollgate::{KeyedLimiter, Outcome, Rate, Timestamp, WhenFull};
use tollgate_testkit::test_vectors;

#[derive(Deserialize)]
struct Sequence {
    id: u64,
    replenish_ns: u64,
    burst: u64,
    created_at: u64,
    ops: Vec<Op>,
}

#[derive(Deserialize)]
struct Op {
    t: u64,
    op: String,
    /// None of these for an operation on all keys.
    key: Option<String>,
    n: Option<u64>,
    ok: Option<bool>,
    remaining: Option<u64>,
    wait_ns: Option<u64>,
    insufficient_capacity: Option<u64>,
}

/// The peer's clock starts when the limiter is made; so does this one's.
fn table(sequence: &Sequence) -> KeyedLimiter<Manual> {
    let interval = Duration::from_nanos(sequence.replenish_ns);
    let clock = Manual::starting_at(Timestamp::from_nanos(sequence.created_at));
    KeyedLimiter::builder(Rate::every(interval).burst(sequence.burst), 1_000)
        .at_cap(WhenFull::DenyNew)
        .clock(clock)
        .build()
        .expect("a rate that fits")
}

#[test]
fn every_answer_is_the_one_that_governor_gave() {
    let sequences: Vec<Sequence> =
        test_vectors::load_vectors("governor").expect("the recorded traces");
    let mut compared = 0;
    for sequence in &sequences {
        let limiter = table(sequence);
        for (index, op) in sequence.ops.iter().enumerate() {
            let Some(key) = &op.key else {
                assert_eq!(op.op, "retain_recent");
                continue;
            };
            let at = Timestamp::from_nanos(op.t);
            let decision = limiter.key(key).check_at(at, op.n.unwrap_or(1));
            let place = format!("sequence {} operation {index} {decision:?}", sequence.id);
            let allowed = decision.outcome == Outcome::Allowed;
            assert_eq!(op.ok, Some(allowed), "{place}");
            match decision.outcome {
                Outcome::Allowed => assert_eq!(op.remaining, Some(decision.remaining), "{place}"),
                Outcome::Denied => {
                    let wait = op.wait_ns.map(Duration::from_nanos);
                    assert_eq!(wait, Some(decision.wait_or_max()), "{place}");
                }
                Outcome::Never => {
                    assert_eq!(op.insufficient_capacity, Some(decision.limit), "{place}");
                }
            }
            compared += 1;
        }
    }
    assert!(compared > 1_000, "{compared}");
}
