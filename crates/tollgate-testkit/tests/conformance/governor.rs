//! governor, keyed: integer nanoseconds, so everything must agree to the last digit.

use std::collections::HashMap;
use std::time::Duration;

use serde::Deserialize;
use tollgate_core::{Algorithm, Gcra, Outcome, Rate, Tat, Timestamp};

use crate::tally::{Tally, Verdict, sequences};

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
    #[serde(flatten)]
    call: Call,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Call {
    Check {
        key: String,
        #[serde(flatten)]
        answer: Answer,
    },
    CheckN {
        key: String,
        n: u64,
        #[serde(flatten)]
        answer: Answer,
    },
    RetainRecent {
        len: usize,
    },
}

#[derive(Debug, Deserialize)]
struct Answer {
    ok: bool,
    remaining: Option<u64>,
    wait_ns: Option<u64>,
    earliest: Option<u64>,
    insufficient_capacity: Option<u64>,
}

struct Replay {
    limit: Gcra,
    interval: u64,
    created_at: u64,
    keys: HashMap<String, Tat>,
}

impl Replay {
    /// The peer counts from when the limiter was made.
    fn since_creation(&self, clock: u64) -> Timestamp {
        Timestamp::from_nanos(clock - self.created_at)
    }

    fn step(&mut self, op: &Op) {
        match &op.call {
            Call::Check { key, answer } => self.check(op.t, key, 1, answer),
            Call::CheckN { key, n, answer } => self.check(op.t, key, *n, answer),
            Call::RetainRecent { len } => {
                // A key is kept while its TAT lies less than one interval back.
                let horizon = self.since_creation(op.t).as_nanos();
                let horizon = horizon.saturating_sub(self.interval);
                self.keys.retain(|_, tat| tat.time().as_nanos() > horizon);
                assert_eq!(self.keys.len(), *len);
            }
        }
    }

    fn check(&mut self, t: u64, key: &str, n: u64, answer: &Answer) {
        let now = self.since_creation(t);
        let mut tat = self.keys.get(key).copied().unwrap_or_default();
        let before = tat;
        let decision = self.limit.decide(&mut tat, now, n);
        match decision.outcome {
            Outcome::Allowed => {
                assert!(answer.ok);
                assert_eq!(Some(decision.remaining), answer.remaining);
                self.keys.insert(key.to_owned(), tat);
            }
            Outcome::Denied => {
                assert!(!answer.ok);
                let wait = decision.retry_after;
                assert_eq!(answer.wait_ns.map(Duration::from_nanos), Some(wait));
                let earliest = answer.earliest.map(|clock| self.since_creation(clock));
                assert_eq!(earliest, self.limit.earliest(&tat, now, n));
                assert_eq!(before, tat);
            }
            Outcome::Never => {
                assert!(!answer.ok);
                assert_eq!(answer.insufficient_capacity, Some(decision.limit));
                assert_eq!(before, tat);
            }
        }
    }
}

#[test]
fn governor() {
    let mut tally = Tally::new("governor");
    for sequence in sequences::<Sequence>("governor") {
        tally.sequence();
        let interval = Duration::from_nanos(sequence.replenish_ns);
        let rate = Rate::every(interval).burst(sequence.burst);
        let mut replay = Replay {
            limit: Gcra::new(rate).unwrap(),
            interval: sequence.replenish_ns,
            created_at: sequence.created_at,
            keys: HashMap::new(),
        };
        for (index, op) in sequence.ops.iter().enumerate() {
            tally.at(sequence.id, index, &op.call);
            replay.step(op);
            tally.operation(Verdict::Compared);
        }
    }
    tally.finish();
}
