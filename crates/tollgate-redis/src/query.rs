//! Queries to the store: an operation on a key, in the numbers that the scripts read.

mod limit_params;
mod wire;

use std::time::Duration;

use tollgate_engine::backend::Limit;
use tollgate_engine::policy::Counting;

use crate::error::StoreLimitError;

pub(crate) use limit_params::{LimitForm, LimitParams};
pub(crate) use wire::{Header, QueryReplies, RawReply, wait_from_micros, write_doubles};

/// The kind of a limit, by the number that the scripts use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreKind {
    Level = 1,
    Window = 2,
    Counter = 3,
    Log = 4,
    Calendar = 5,
    Rolling = 6,
    Concurrency = 7,
    /// One arrival time for each key, whatever the limit.
    Arrival = 8,
}

/// The operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum StoreOp {
    Decide,
    /// Like `Decide`, for a charge that is held until it is settled. The reply also has the counter's
    /// generation, which a reset ends.
    Hold,
    /// Takes as much of the cost as there is.
    AtMost,
    /// Charges now for a later time, at most this many microseconds away.
    Reserve(u64),
    /// Refunds a charge of this time, unless the counter was reset then or later.
    RefundCharge(u64),
    /// Refunds a charge of this time, unless the counter has another generation by now.
    RefundHeldCharge {
        since: u64,
        generation: u64,
    },
    Refund,
    Reset,
    Renew,
    Release,
    /// Raises the usage to at least this: in units of a level as of now, or for other kinds to the cost. It is
    /// written whatever the rest of the request gets, and may be repeated.
    RaiseUsage(u64),
    /// Decides without a charge.
    Peek,
}

/// One operation on one key.
#[derive(Clone, Debug)]
pub(crate) struct StoreQuery {
    pub(crate) key: Box<str>,
    pub(crate) op: StoreOp,
    pub(crate) params: LimitParams,
    pub(crate) cost: u64,
    /// The holder of the permits.
    pub(crate) holder: Option<Box<str>>,
}

impl StoreQuery {
    /// The key with the time of the counter's latest reset, if the operation needs it. In a cluster it is on
    /// the same node.
    pub(crate) fn generation_key(&self) -> Option<String> {
        let is_asked = matches!(
            self.op,
            StoreOp::Hold
                | StoreOp::Reset
                | StoreOp::RefundCharge(_)
                | StoreOp::RefundHeldCharge { .. }
        );
        // No part of a key's name contains this character.
        (is_asked && self.params.kind != StoreKind::Concurrency)
            .then(|| format!("{}#reset", self.key))
    }
}

/// Whole microseconds, rounded up.
pub(crate) fn to_micros_ceil(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX)
}

/// Whether limits of this kind have the operation.
pub(crate) fn check_supported(
    op: StoreOp,
    numbers: &LimitParams,
    limit: &Limit,
) -> Result<(), StoreLimitError> {
    let what = match op {
        StoreOp::Decide | StoreOp::Hold => "deciding at a time of one's own",
        StoreOp::AtMost => "taking as much as there is",
        StoreOp::Reserve(_) => "a reservation",
        StoreOp::Refund if numbers.kind == StoreKind::Concurrency => "a refund",
        _ => return Ok(()),
    };
    if limit.counting() == Counting::Leased {
        return Err(StoreLimitError::Leased { what });
    }
    let limit = format!("{:?}", limit.kind());
    let kind = numbers.kind;
    let is_possible = match op {
        StoreOp::Reserve(_) => kind == StoreKind::Level,
        StoreOp::AtMost => !matches!(kind, StoreKind::Concurrency | StoreKind::Arrival),
        StoreOp::Refund => false,
        _ => true,
    };
    if !is_possible {
        return Err(StoreLimitError::UnsupportedAlgorithm { what, limit });
    }
    let [_, drain, capacity, ..] = numbers.values;
    if let StoreOp::Reserve(longest) = op {
        let owed = u128::from(longest) * u128::from(drain) + 2 * u128::from(capacity);
        if owed >= 1 << 53 {
            let what = "what may be owed after the longest wait";
            return Err(limit_params::too_large(
                &limit,
                what,
                "wait for a shorter time at most",
            ));
        }
    }
    Ok(())
}
