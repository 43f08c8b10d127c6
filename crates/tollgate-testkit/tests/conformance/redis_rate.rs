//! redis_rate's scripts against our leaky bucket, on the sequences whose doubles decide as exact
//! arithmetic does. The script's clock is a double, so durations agree to a microsecond.

mod kept;
mod model;
mod other;
mod tests;

use std::time::Duration;

use model::{Answer, Key};
use serde::Deserialize;
use tollgate_core::{Arithmetic, BucketLevel, Decision, LeakyBucket, Outcome, Rate, Timestamp};

use crate::tally::Side::{Model, Ours};
use crate::tally::Verdict::{self, Compared, ComparedBut, ComparedThenSet, Excused};
use crate::tally::{Disagreement, Judged, Tally, sequences};

const FRACTION_TAKEN: &str =
    "allow-at-most takes the fraction of a token that is left as well, and does not report it";
const WENT_BACK: &str = "at an earlier time the peer counts what drains until the latest time as \
                         not drained; ours answers as of the latest time";
const RETRY_IN_VAIN: &str = "a cost above the burst can never pass and both refuse it, \
                             but the peer names a time to retry";
const FORGOTTEN: &str =
    "the peer dropped an expired key before time went back; ours keeps what was true";

const TOLERANCE: i128 = 1_000;

#[derive(Deserialize)]
struct Sequence {
    id: u64,
    rate: u64,
    burst: u64,
    period_s: f64,
    exact_allowed_agrees: bool,
    ops: Vec<Op>,
}

#[derive(Debug, Deserialize)]
struct Op {
    t_us: u64,
    #[serde(flatten)]
    call: Call,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Call {
    AllowN(Recorded),
    AllowAtMost(Recorded),
    Reset,
}

#[derive(Debug, Deserialize)]
struct Recorded {
    n: u64,
    allowed: u64,
    remaining: u64,
    exact_remaining: Option<u64>,
    retry_after_ns: i64,
    reset_after_ns: i64,
    pttl_ms: i64,
}

impl Recorded {
    /// What is left by exact arithmetic.
    fn remaining(&self) -> u64 {
        self.exact_remaining.unwrap_or(self.remaining)
    }

    /// Whether the request passed: 0 allowed may be a success or not, as the retry shows.
    fn passed(&self) -> bool {
        self.retry_after_ns == -1
    }

    fn reproduced_by(&self, answer: Answer) -> Result<(), Disagreement> {
        let recorded = Answer {
            allowed: self.allowed,
            remaining: self.remaining,
            retry_after: self.retry_after_ns,
            reset_after: self.reset_after_ns,
            pttl: self.pttl_ms,
        };
        Model.says("answer", answer, recorded)
    }
}

fn nanos(duration: Duration) -> i128 {
    i128::try_from(duration.as_nanos()).unwrap()
}

struct Replay {
    peer: Key,
    limit: LeakyBucket,
    level: BucketLevel,
}

impl Replay {
    fn new(sequence: &Sequence) -> Self {
        let period = Duration::from_secs_f64(sequence.period_s);
        let rate = Rate::new(sequence.rate, period).burst(sequence.burst);
        Self {
            peer: Key::new(sequence.rate, sequence.burst, sequence.period_s),
            limit: LeakyBucket::new(rate).unwrap(),
            level: BucketLevel::default(),
        }
    }

    fn step(&mut self, op: &Op) -> Judged {
        let now = Timestamp::from_micros(op.t_us);
        let forgotten = self.peer.has_forgotten(op.t_us);
        let verdict = match &op.call {
            Call::AllowN(recorded) => {
                recorded.reproduced_by(self.peer.allow(op.t_us, recorded.n))?;
                if forgotten {
                    Excused(FORGOTTEN)
                } else {
                    self.allow(now, recorded)?
                }
            }
            Call::AllowAtMost(recorded) => {
                recorded.reproduced_by(self.peer.allow_at_most(op.t_us, recorded.n))?;
                if forgotten {
                    Excused(FORGOTTEN)
                } else {
                    self.allow_at_most(now, recorded)?
                }
            }
            Call::Reset => {
                self.peer.reset();
                self.level = BucketLevel::default();
                Compared
            }
        };
        if let ComparedThenSet(_) | Excused(_) = verdict {
            self.take_over(op.t_us);
        }
        Ok(verdict)
    }

    fn allow(&mut self, now: Timestamp, recorded: &Recorded) -> Judged {
        let excuse = self.excuse(now);
        let ours = self.limit.decide(&mut self.level, now, recorded.n);
        let same = ours.is_allowed() == recorded.passed()
            && (!ours.is_allowed() || recorded.allowed == recorded.n)
            && (!ours.is_allowed() || ours.remaining == recorded.remaining());
        if same {
            return compare_durations(&ours, recorded);
        }
        excuse.ok_or_else(|| Ours.differs(format!("{ours:?}")))
    }

    /// Why what ours decides now may differ, if it may.
    fn excuse(&self, now: Timestamp) -> Option<Verdict> {
        (now < self.level.as_of).then_some(Excused(WENT_BACK))
    }

    /// Ours takes as many whole tokens as there are, up to n; the peer denies below one.
    fn allow_at_most(&mut self, now: Timestamp, recorded: &Recorded) -> Judged {
        let excuse = self.excuse(now);
        let whole = self.limit.remaining(&self.level, now);
        if whole == 0 {
            let at = self.limit.earliest(&self.level, now, 1);
            let ours = self.limit.decision_at(&self.level, now, at);
            return compare_durations(&ours, recorded);
        }
        let take = whole.min(recorded.n);
        let ours = self.limit.decide(&mut self.level, now, take);
        let left = whole.saturating_sub(recorded.n);
        let same = recorded.passed() && recorded.allowed == take && recorded.remaining() == left;
        if !same {
            return excuse.ok_or_else(|| Ours.differs(format!("{ours:?}")));
        }
        if whole < recorded.n {
            // The state with nothing left, to which the peer's reset belongs.
            let empty = self.limit.empty(now);
            let owed = self.limit.decision_at(&empty, now, Some(now));
            compare_durations(&owed, recorded)?;
            if self.limit.idle_at(&self.level) != self.limit.idle_at(&empty) {
                return Ok(ComparedThenSet(FRACTION_TAKEN));
            }
            return Ok(Compared);
        }
        compare_durations(&ours, recorded)
    }

    /// Our state becomes the peer's.
    fn take_over(&mut self, now_us: u64) {
        let price = self.limit.units_per_token();
        self.level = match self.peer.held(now_us) {
            Some((as_of, (owed, token))) => {
                let as_of = Timestamp::from_micros(as_of);
                let debt = owed * price / token;
                BucketLevel { debt, as_of }
            }
            None => BucketLevel::default(),
        };
    }
}

fn compare_durations(ours: &Decision, recorded: &Recorded) -> Judged {
    Ours.says("passed", ours.is_allowed(), recorded.passed())?;
    let reset = i128::from(recorded.reset_after_ns);
    Ours.says_nearly("reset after", nanos(ours.reset_after), reset, TOLERANCE)?;
    match ours.outcome {
        Outcome::Allowed => Ok(Compared),
        Outcome::Denied => {
            let retry = i128::from(recorded.retry_after_ns);
            Ours.says_nearly("retry after", nanos(ours.wait_or_max()), retry, TOLERANCE)?;
            Ok(Compared)
        }
        Outcome::Never => Ok(ComparedBut(RETRY_IN_VAIN)),
    }
}

fn replay(sequences: &[Sequence]) -> Tally {
    let mut tally = Tally::new("redis_rate");
    for sequence in sequences {
        // Elsewhere doubles let pass or refuse what exact arithmetic does not.
        if sequence.exact_allowed_agrees {
            let mut replay = Replay::new(sequence);
            tally.replay(sequence.id, &sequence.ops, |op| replay.step(op));
        }
    }
    tally
}

#[test]
fn redis_rate() {
    replay(&sequences("redis_rate")).finish();
}
