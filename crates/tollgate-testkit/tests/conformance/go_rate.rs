//! golang.org/x/time/rate against our token bucket. The peer counts in doubles, so waits agree to
//! a microsecond and balances to a millionth of a token.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "the peer's state is doubles, and our state is set from it"
)]

mod model;
mod other;
mod recorded;
mod tests;

use model::{ENDLESS, Limiter, Reservation};
use recorded::{Call, Op, Sequence, limit_of};
use tollgate_core::{
    Arithmetic, Bucket, BucketLevel, Charge, LaterCharges, Timestamp, TokenBucket,
};

use crate::tally::Side::{Model, Ours};
use crate::tally::Verdict::{self, Compared, ComparedThenSet, Excused};
use crate::tally::{Disagreement, Judged, Tally, sequences};

const WENT_BACK: &str = "a granted call at an earlier time moves the peer's time back, \
                         so that it credits the interval twice; ours never moves back";
const WAITS_FROM_EARLIER: &str = "a reservation at an earlier time waits from that time on at the \
                                  peer; ours from the latest time, which is not credited twice";
const REFUNDED_TWICE: &str = "a reservation cancelled again refunds again at the peer; ours once";
const TOOK_NOTHING: &str =
    "a reservation made without a limit took nothing, but the peer refunds it under a later limit";
const MORE_THAN_TAKEN: &str = "the peer refunds more than was taken when the latest act lies \
                               before the act of the one cancelled; ours what was taken";
const NOISE_REFUNDED: &str = "what is left to refund is zero within the noise of doubles: \
                              either side may see a refund and note its time";
const ACTS_EARLIER: &str = "a reservation that acts before the latest act moves that back at the \
                            peer, which forgets what was promised; ours keeps the latest";
const ACT_COUNTED_BACK: &str = "cancelling what acts last, the peer counts back to the act before \
                                it, unless that is past; ours undoes its own note of it";
const CUT_SHORT: &str = "counted back in doubles, the latest act is a nanosecond after the act \
                         that it stands for, and the peer refunds that much less";
const ZERO_UNDONE: &str = "cancelling a reservation of 0 does nothing at the peer; ours undoes \
                           that it was the latest to act";
const ENDLESS_DEBT: &str =
    "the peer grants a reservation whose wait never ends and takes the debt; ours says never";
const WAIT_TURNED: &str = "a wait of exactly 2^63 ns becomes the peer's smallest integer, which is \
                           no wait at all; ours waits";
const BEYOND_TIME: &str = "cancelling a wait that never ends puts the peer's latest act a lifetime \
                           of times after it, further than ours can count";
const WAIT_CUT_TO_ZERO: &str =
    "less than a nanosecond short: the peer cuts the wait to 0 ns and lets it pass";
const WITHIN_NOISE: &str = "the balance is zero within the noise of doubles";

/// The peer's times lie around their base; ours count from an origin far before it, and what is
/// left above holds the longest wait that the peer knows.
const BASE: i128 = 1 << 62;
/// What doubles may add or lose in a balance of some hundred tokens.
const NOISE: f64 = 1e-9;
/// The last digits of a double, as a part of a token.
const LAST_DIGITS: f64 = 1e-12;
/// What our bucket may lose at a live change of the rate, the one place where it rounds.
const LOST_AT_CHANGE: f64 = 1.0 / (1u64 << 32) as f64;
const TOKEN_TOLERANCE: f64 = 1e-6;
const WAIT_TOLERANCE: u64 = 1_000;

/// The whole nanoseconds in which so small a part of a token refills: none at a usual pace.
fn refill_nanos(part: f64, limit: f64) -> u64 {
    if limit > 0.0 {
        (part / limit * 1e9) as u64
    } else {
        0
    }
}

/// What lies beyond our time is at its end.
fn time(t: i128) -> Timestamp {
    let nanos = (BASE + t).clamp(0, i128::from(u64::MAX));
    Timestamp::from_nanos(u64::try_from(nanos).unwrap())
}

fn is_beyond_time(t: i128) -> bool {
    BASE + t > i128::from(u64::MAX)
}

/// One reservation at both sides.
struct Pair {
    theirs: Reservation,
    /// Our receipt; `None` if we denied.
    ours: Option<Charge>,
    refunded: bool,
}

struct Replay {
    peer: Limiter,
    limit: TokenBucket,
    bucket: Bucket,
    pairs: Vec<Pair>,
    /// The reservations since anything else changed our state, by their index.
    latest: Vec<usize>,
    /// The part of a token in which the two may differ so far, and how many nanoseconds that is
    /// at the slowest limit so far.
    part: f64,
    noise: u64,
}

impl Replay {
    fn new(limit: f64, burst: i64) -> Self {
        Self {
            peer: Limiter::new(limit, burst),
            limit: limit_of(limit, burst),
            bucket: Bucket::default(),
            pairs: Vec::new(),
            latest: Vec::new(),
            part: LAST_DIGITS,
            noise: refill_nanos(LAST_DIGITS, limit),
        }
    }

    fn step(&mut self, op: &Op) -> Judged {
        let t = i128::from(op.t);
        let judged = self.call(t, &op.call);
        // If the model is wrong, that is why: what ours came to is not looked at.
        Model.says("tokens after", self.peer.tokens_at(t), op.tokens_after)?;
        let verdict = judged?;
        if let Excused(_) = verdict {
            self.take_over();
        }
        let tokens = self.limit.tokens(&self.bucket, time(t));
        Ours.says_nearly("tokens after", tokens, op.tokens_after, TOKEN_TOLERANCE)?;
        match verdict {
            ComparedThenSet(_) | Excused(_) => self.take_over(),
            _ => self.take_over_act_time()?,
        }
        Ok(verdict)
    }

    fn call(&mut self, t: i128, call: &Call) -> Judged {
        match call {
            Call::Allow { n, ok } => self.allow(t, *n, *ok),
            Call::Reserve { n, ok, delay } => self.reserve(t, *n, *ok, *delay),
            Call::Delay { rid, delay } => self.delay(t, *rid, *delay),
            Call::Cancel { rid } => self.cancel(t, *rid),
            Call::SetLimit { limit } => Ok(self.set(t, limit.value(), self.peer.burst)),
            Call::SetBurst { burst } => Ok(self.set(t, self.peer.limit, *burst)),
            Call::Tokens { tokens } => {
                Model.says("tokens", self.peer.tokens_at(t), *tokens)?;
                Ok(Compared)
            }
        }
    }

    fn allow(&mut self, t: i128, n: i64, ok: bool) -> Judged {
        let before = self.peer.clone();
        let theirs = self.peer.reserve(t, n, 0);
        Model.says("ok", theirs.ok, ok)?;
        let (now, cost) = (time(t), u64::try_from(n).unwrap());
        let ours = self.limit.decide(&mut self.bucket, now, cost);
        if ok && !theirs.without_limit {
            self.latest.clear();
        }
        if ours.is_allowed() == ok {
            if ok && cost == 0 {
                // Ours peeks with 0; the peer takes it for the latest act.
                self.limit.charge(&mut self.bucket, now, now, 0);
            }
            return Ok(self.granted(&before, t, &theirs));
        }
        if ok && theirs.wait < 0 {
            return Ok(Excused(WAIT_TURNED));
        }
        if ok && theirs.left < -NOISE && theirs.wait == 0 {
            return Ok(Excused(WAIT_CUT_TO_ZERO));
        }
        if theirs.left.abs() > NOISE {
            return Err(Ours.differs(format!("{ours:?}")));
        }
        Ok(Excused(WITHIN_NOISE))
    }

    fn reserve(&mut self, t: i128, n: i64, ok: bool, delay: i64) -> Judged {
        let before = self.peer.clone();
        let theirs = self.peer.reserve(t, n, ENDLESS);
        Model.says("ok", theirs.ok, ok)?;
        Model.says("delay", theirs.delay_from(t), delay)?;
        let (now, cost) = (time(t), u64::try_from(n).unwrap());
        // Ours rounds a wait up to whole nanoseconds and the peer cuts it; acts are the peer's
        // here, so that everything built on them can be compared.
        let act = time(theirs.act);
        let at = self.limit.earliest(&self.bucket, now, cost);
        let ours = ok.then(|| self.limit.charge(&mut self.bucket, now, act, cost));
        if ok && !theirs.without_limit {
            self.latest.push(self.pairs.len());
        }
        self.pairs.push(Pair {
            theirs,
            ours,
            refunded: false,
        });
        if ok && theirs.wait == ENDLESS {
            return Ok(Excused(ENDLESS_DEBT));
        }
        if ok && theirs.wait < 0 {
            return Ok(Excused(WAIT_TURNED));
        }
        let waits = theirs.left < 0.0 || (theirs.left <= NOISE && at != Some(act));
        if ok && waits && t < before.last {
            return Ok(Excused(WAITS_FROM_EARLIER));
        }
        Ours.says("ok", at.is_some(), ok)?;
        let Some(at) = at else {
            return Ok(Compared);
        };
        let tolerance = WAIT_TOLERANCE + self.noise;
        Ours.says_nearly("acts at", at.as_nanos(), act.as_nanos(), tolerance)?;
        Ok(self.granted(&before, t, &theirs))
    }

    fn delay(&self, t: i128, rid: usize, delay: i64) -> Judged {
        let pair = &self.pairs[rid];
        Model.says("delay", pair.theirs.delay_from(t), delay)?;
        let ours = pair.ours.map_or(ENDLESS, |charge| {
            i64::try_from(charge.at().nanos_since(time(t))).unwrap_or(ENDLESS)
        });
        Ours.says("delay", ours, delay)?;
        Ok(Compared)
    }

    fn cancel(&mut self, t: i128, rid: usize) -> Judged {
        let earlier = t < self.peer.last;
        let before = self.bucket;
        let Pair { theirs, .. } = self.pairs[rid];
        let latest_act = self.peer.last_event;
        let acts_last = self.is_near(time(theirs.act), time(latest_act));
        let cut_short = acts_last && theirs.act < latest_act;
        let refund = self.peer.cancel(t, &theirs);
        let again = self.pairs[rid].refunded;
        self.give_back(t, rid);
        let Some(refund) = refund else {
            if self.bucket == before {
                return Ok(Compared);
            }
            Ours.says("undone", theirs.n, 0)?;
            return Ok(ComparedThenSet(ZERO_UNDONE));
        };
        self.pairs[rid].refunded |= refund > 0.0;
        Ok(if is_beyond_time(latest_act) {
            self.excuse_unless_equal(t, BEYOND_TIME)
        } else if refund <= NOISE && cut_short {
            self.excuse_unless_equal(t, CUT_SHORT)
        } else if refund < -NOISE {
            Compared
        } else if refund <= NOISE {
            ComparedThenSet(NOISE_REFUNDED)
        } else if again {
            self.excuse_unless_equal(t, REFUNDED_TWICE)
        } else if theirs.without_limit {
            self.excuse_unless_equal(t, TOOK_NOTHING)
        } else if refund > theirs.n as f64 {
            self.excuse_unless_equal(t, MORE_THAN_TAKEN)
        } else if cut_short {
            self.excuse_unless_equal(t, CUT_SHORT)
        } else if earlier {
            ComparedThenSet(WENT_BACK)
        } else if acts_last && self.act_time_differs() {
            ComparedThenSet(ACT_COUNTED_BACK)
        } else {
            Compared
        })
    }

    /// Ours refunds once: a receipt with a refund is used up.
    fn give_back(&mut self, t: i128, rid: usize) {
        let Pair { ours, refunded, .. } = &self.pairs[rid];
        let Some(charge) = ours.filter(|_| !refunded) else {
            return;
        };
        let since = if self.latest.last() == Some(&rid) {
            LaterCharges::Nothing
        } else {
            LaterCharges::Others
        };
        let before = self.bucket;
        let now = time(t);
        self.limit.cancel(&mut self.bucket, now, &charge, since);
        if since == LaterCharges::Nothing && self.bucket != before {
            self.latest.pop();
        }
    }

    /// A refund that differs on purpose may still end at the same balance, a full bucket.
    fn excuse_unless_equal(&self, t: i128, reason: &'static str) -> Verdict {
        let tokens = self.limit.tokens(&self.bucket, time(t));
        if (tokens - self.peer.tokens_at(t)).abs() <= TOKEN_TOLERANCE {
            ComparedThenSet(reason)
        } else {
            Excused(reason)
        }
    }

    fn set(&mut self, t: i128, limit: f64, burst: i64) -> Verdict {
        let earlier = t < self.peer.last;
        if limit == self.peer.limit {
            self.peer.set_burst(t, burst);
        } else {
            self.peer.set_limit(t, limit);
            self.part += LOST_AT_CHANGE;
            self.noise = self.noise.max(refill_nanos(self.part, limit));
        }
        let old = std::mem::replace(&mut self.limit, limit_of(limit, burst));
        self.limit.migrate_state(&mut self.bucket, &old, time(t));
        if earlier {
            return ComparedThenSet(WENT_BACK);
        }
        Compared
    }

    /// The verdict on a call on which every answer agrees.
    fn granted(&self, before: &Limiter, t: i128, theirs: &Reservation) -> Verdict {
        if !theirs.ok || theirs.without_limit {
            Compared
        } else if t < before.last {
            ComparedThenSet(WENT_BACK)
        } else if theirs.act < before.last_event {
            ComparedThenSet(ACTS_EARLIER)
        } else {
            Compared
        }
    }

    /// Whether our latest act lies further from the peer's than a cut double explains.
    fn act_time_differs(&self) -> bool {
        !self.is_near(self.bucket.latest_reservation, time(self.peer.last_event))
    }

    /// Whether two acts are one within the nanosecond that a double may cut.
    fn is_near(&self, one: Timestamp, other: Timestamp) -> bool {
        one.as_nanos().abs_diff(other.as_nanos()) <= 1 + self.noise
    }

    /// The latest act, which a double may have cut by one more nanosecond, becomes the peer's.
    fn take_over_act_time(&mut self) -> Result<(), Disagreement> {
        let ours = self.bucket.latest_reservation;
        let theirs = time(self.peer.last_event);
        if self.act_time_differs() {
            return Err(Ours.differs(format!("latest act {ours}, the peer's {theirs}")));
        }
        self.bucket.latest_reservation = theirs;
        Ok(())
    }

    /// Our state becomes the peer's. Receipts from before it can't undo it exactly.
    fn take_over(&mut self) {
        self.latest.clear();
        let price = self.limit.units_per_token();
        let missing = (self.peer.burst as f64 - self.peer.tokens).max(0.0);
        let whole = missing.trunc() as u128 * price;
        let part = (missing.fract() * price as f64).round() as u128;
        let level = BucketLevel {
            debt: whole + part,
            as_of: time(self.peer.last),
        };
        self.bucket = Bucket {
            level,
            latest_reservation: time(self.peer.last_event),
        };
    }
}

fn replay(sequences: &[Sequence]) -> Tally {
    let mut tally = Tally::new("go_rate");
    for sequence in sequences {
        let mut replay = Replay::new(sequence.limit.value(), sequence.burst);
        tally.replay(sequence.id, &sequence.ops, |op| replay.step(op));
    }
    tally
}

#[test]
fn go_rate() {
    replay(&sequences("go_rate")).finish();
}
