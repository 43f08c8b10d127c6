//! governor, keyed: integer nanoseconds, so everything must agree to the last digit.

use std::collections::HashMap;
use std::time::Duration;

use serde::Deserialize;
use tollgate_core::{Arithmetic, Gcra, Outcome, Rate, TatState, Timestamp};

use crate::tally::Side::Ours;
use crate::tally::{Disagreement, Judged, Tally, Verdict, sequences};

#[derive(Deserialize)]
struct Sequence {
    id: u64,
    replenish_ns: u64,
    burst: u64,
    created_at: u64,
    ops: Vec<Op>,
}

#[derive(Debug, Deserialize)]
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
    keys: HashMap<String, TatState>,
}

impl Replay {
    /// The peer counts from when the limiter was made.
    fn since_creation(&self, clock: u64) -> Timestamp {
        Timestamp::from_nanos(clock - self.created_at)
    }

    fn step(&mut self, op: &Op) -> Judged {
        match &op.call {
            Call::Check { key, answer } => self.check(op.t, key, 1, answer)?,
            Call::CheckN { key, n, answer } => self.check(op.t, key, *n, answer)?,
            Call::RetainRecent { len } => {
                // A key is kept while its TAT lies less than one interval back.
                let horizon = self.since_creation(op.t).as_nanos();
                let horizon = horizon.saturating_sub(self.interval);
                self.keys.retain(|_, tat| tat.time().as_nanos() > horizon);
                Ours.says("keys", self.keys.len(), *len)?;
            }
        }
        Ok(Verdict::Compared)
    }

    fn check(&mut self, t: u64, key: &str, n: u64, answer: &Answer) -> Result<(), Disagreement> {
        let now = self.since_creation(t);
        let mut tat = self.keys.get(key).copied().unwrap_or_default();
        let before = tat;
        let decision = self.limit.decide(&mut tat, now, n);
        Ours.says("ok", decision.is_allowed(), answer.ok)?;
        match decision.outcome {
            Outcome::Allowed => {
                Ours.says("remaining", Some(decision.remaining), answer.remaining)?;
                self.keys.insert(key.to_owned(), tat);
                return Ok(());
            }
            Outcome::Denied => {
                let wait = answer.wait_ns.map(Duration::from_nanos);
                Ours.says("wait", Some(decision.wait_or_max()), wait)?;
                let earliest = answer.earliest.map(|clock| self.since_creation(clock));
                Ours.says("earliest", self.limit.earliest(&tat, now, n), earliest)?;
            }
            Outcome::Never => {
                let capacity = answer.insufficient_capacity;
                Ours.says("capacity", Some(decision.limit), capacity)?;
            }
        }
        Ours.says("state after a refusal", tat, before)
    }
}

#[test]
fn governor() {
    let mut tally = Tally::new("governor");
    for sequence in sequences::<Sequence>("governor") {
        let interval = Duration::from_nanos(sequence.replenish_ns);
        let rate = Rate::every(interval).burst(sequence.burst);
        let mut replay = Replay {
            limit: Gcra::new(rate).unwrap(),
            interval: sequence.replenish_ns,
            created_at: sequence.created_at,
            keys: HashMap::new(),
        };
        tally.replay(sequence.id, &sequence.ops, |op| replay.step(op));
    }
    tally.finish();
}
