//! The wire format: queries as bytes, and replies as decisions.

use std::time::Duration;

use tollgate::{Decision, Outcome};

use super::limit_params::FIRST_HIT_PHASE;
use super::{LimitParams, StoreKind, StoreOp, StoreQuery};
use crate::error::StoreError;

/// A cost that no limit admits.
const UNREACHABLE_COST: u64 = 1 << 53;
/// The generation of a charge isn't known: −1 on the wire.
const UNKNOWN_GENERATION: u64 = FIRST_HIT_PHASE;
/// The reply shall have the generation.
const WANT_GENERATION: u64 = 1;

impl StoreOp {
    /// The operation's number, the argument that it defines itself, and the generation that it is about.
    fn code(self) -> (u8, u64, u64) {
        let (code, extra) = match self {
            Self::RefundHeldCharge { since, generation } => return (3, since, generation),
            Self::RefundCharge(since) => return (3, since, UNKNOWN_GENERATION),
            Self::Hold => return (0, 0, WANT_GENERATION),
            Self::Decide => (0, 0),
            Self::AtMost => (1, 0),
            Self::Reserve(longest) => (2, longest),
            Self::Refund => (4, 0),
            Self::Reset => (5, 0),
            Self::Renew => (6, 0),
            Self::Release => (7, 0),
            Self::RaiseUsage(units) => (8, units),
            Self::Peek => (9, 0),
        };
        (code, extra, 0)
    }
}

impl StoreQuery {
    /// Appends the query's record: in the short form if all records of the call have it.
    pub(crate) fn write_record(&self, to: &mut Vec<u8>, is_last: bool, is_plain: bool) {
        let (op, extra, generation) = self.op.code();
        let LimitParams {
            kind, values: five, ..
        } = self.params;
        let last = u8::from(is_last);
        // A larger cost is beyond every limit too. Cut to this, it can't be mistaken for a special number.
        let cost = self.cost.min(UNREACHABLE_COST);
        if is_plain {
            to.push(last);
            write_doubles(to, &[cost]);
            write_doubles(to, &five[..3]);
            return;
        }
        to.extend_from_slice(&[op, kind as u8, last]);
        write_doubles(to, &[cost, extra, generation]);
        let five = match kind {
            StoreKind::Arrival => self.arrival_values(),
            _ => five,
        };
        write_doubles(to, &five);
    }

    /// The numbers of an arrival: the tolerance, and the time that the cost takes.
    fn arrival_values(&self) -> [u64; 5] {
        let [most, most_rest, ..] = self.params.values;
        let (_, each) = self.params.arrival_nanos();
        let time = each.saturating_mul(u128::from(self.cost));
        let micros = u64::try_from(time / 1_000)
            .map_or(UNREACHABLE_COST, |micros| micros.min(UNREACHABLE_COST));
        let rest = u64::try_from(time % 1_000).unwrap_or(0);
        [most, most_rest, micros, rest, 0]
    }
}

#[expect(clippy::cast_precision_loss, reason = "all are at most 2^53")]
pub(crate) fn write_doubles(to: &mut Vec<u8>, numbers: &[u64]) {
    for number in numbers {
        let number = match *number {
            FIRST_HIT_PHASE => -1.0,
            number => number as f64,
        };
        to.extend_from_slice(&number.to_le_bytes());
    }
}

/// The replies of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueryReplies {
    /// The time of the decisions, in microseconds.
    pub(crate) now: u64,
    pub(crate) replies: Vec<RawReply>,
}

/// One reply as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawReply {
    pub(crate) outcome: i64,
    /// The remaining tokens; of an arrival time, the nanoseconds of `reset` below a microsecond.
    pub(crate) remaining: i64,
    /// How long until it would pass; of `AtMost`, how much was taken; of `Hold` that passed, the counter's
    /// generation.
    pub(crate) wait: i64,
    pub(crate) reset: i64,
}

impl RawReply {
    /// The numbers in each reply.
    pub(crate) const WIDTH: usize = 4;

    /// Splits numbers into replies.
    pub(crate) fn parse_all(numbers: &[i64]) -> impl Iterator<Item = Self> {
        numbers.chunks_exact(Self::WIDTH).map(|four| Self {
            outcome: four[0],
            remaining: four[1],
            wait: four[2],
            reset: four[3],
        })
    }

    /// The calendar in the query doesn't contain the store's time.
    pub(crate) fn is_wrong_period(&self) -> bool {
        self.outcome == 3
    }

    /// The key has a value that no limiter wrote.
    pub(crate) fn is_foreign_key(&self) -> bool {
        self.outcome == 4
    }

    /// The generation of a held charge, and the reply without it.
    pub(crate) fn split_generation(self) -> (u64, Self) {
        if self.outcome != 1 {
            return (0, self);
        }
        let generation = u64::try_from(self.wait).unwrap_or(0);
        (generation, Self { wait: 0, ..self })
    }

    pub(crate) fn decision(&self, numbers: &LimitParams) -> Decision {
        let limit = numbers.max_burst;
        let outcome = match self.outcome {
            1 => Outcome::Allowed,
            2 => Outcome::Never,
            _ => Outcome::Denied,
        };
        let remaining = u64::try_from(self.remaining).unwrap_or(0);
        if numbers.kind == StoreKind::Arrival {
            // An arrival time has its nanoseconds where other replies have the remaining tokens.
            let owed = wait_from_micros(self.reset).saturating_add(Duration::from_nanos(remaining));
            let (most, each) = numbers.arrival_nanos();
            let left = most.saturating_sub(owed.as_nanos()) / each.max(1);
            let left = u64::try_from(left).unwrap_or(u64::MAX);
            return Decision::new(outcome, limit, left, wait_from_micros(self.wait), owed);
        }
        Decision::new(
            outcome,
            limit,
            remaining,
            wait_from_micros(self.wait),
            wait_from_micros(self.reset),
        )
    }
}

/// A duration from the scripts: −1 is never.
pub(crate) fn wait_from_micros(micros: i64) -> Duration {
    u64::try_from(micros).map_or(Duration::MAX, Duration::from_micros)
}

/// The header of a reply.
pub(crate) struct Header<'a> {
    /// The time of the decisions, in microseconds.
    pub(crate) now: u64,
    /// How many keys have a value that no limiter wrote.
    pub(crate) foreign_keys: u64,
    /// The numbers of the replies.
    pub(crate) payload: &'a [i64],
}

impl<'a> Header<'a> {
    /// Reads the reply to a call, which has to have this many numbers.
    pub(crate) fn read(numbers: &'a [i64], expected: usize) -> Result<Self, StoreError> {
        let (expected, came) = (expected + 2, numbers.len());
        let (true, [now, strange, rest @ ..]) = (came == expected, numbers) else {
            let what = format!("{expected} numbers expected, {came} came");
            return Err(StoreError::garbled(what));
        };
        let now = u64::try_from(*now).map_err(|_| StoreError::garbled("a time before 1970"))?;
        let strange = u64::try_from(*strange).unwrap_or(0);
        Ok(Self {
            now,
            foreign_keys: strange,
            payload: rest,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_of_another_length_is_no_answer() {
        assert!(Header::read(&[1, 0, 1, 2, 3, 4], RawReply::WIDTH).is_ok());
        for garbled in [&[1, 0, 1, 2, 3][..], &[], &[-1, 0, 1, 2, 3, 4]] {
            let read = Header::read(garbled, RawReply::WIDTH);
            assert!(matches!(read, Err(StoreError::InvalidReply { .. })));
        }
    }
}
