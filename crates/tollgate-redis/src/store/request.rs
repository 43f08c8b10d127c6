//! A queued request, and the destination of its reply.

use tokio::sync::oneshot;

use crate::error::StoreError;
use crate::query::{RawReply, StoreOp, StoreQuery};

/// Numbers in the reply of the lease script.
const LEASE_WIDTH: usize = 5;

/// A queued request, and the destination of its reply.
#[derive(Debug)]
pub(crate) struct QueuedCall {
    pub(crate) job: StoreCall,
    /// The time of the decision, if it isn't the store's.
    pub(crate) at: Option<u64>,
    /// Requests of one lane can share a call: in a cluster, those of one hash slot.
    pub(crate) lane: u16,
    /// It was sent before, and the connection broke.
    pub(crate) is_retry: bool,
    pub(crate) reply: oneshot::Sender<Result<CallReply, StoreError>>,
}

#[derive(Debug)]
pub(crate) enum StoreCall {
    /// Queries, all or none.
    Queries(Vec<StoreQuery>),
    /// The lease script, which has its own call.
    Lease { key: Box<str>, numbers: Vec<u8> },
}

/// The numbers of one request, out of a call's reply.
#[derive(Debug)]
pub(crate) struct CallReply {
    /// The time of the decisions, in microseconds.
    pub(crate) now: u64,
    pub(crate) numbers: Vec<i64>,
}

impl StoreCall {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Queries(questions) => questions.len(),
            Self::Lease { .. } => 1,
        }
    }

    /// How many numbers the reply has.
    pub(super) fn reply_width(&self) -> usize {
        match self {
            Self::Queries(questions) => RawReply::WIDTH * questions.len(),
            Self::Lease { .. } => LEASE_WIDTH,
        }
    }

    /// Whether repeating the call is safe: a repeated charge grants nothing. A repeated refund would refund
    /// another request's charge, and a lease's report would be outdated. A permit that the first execution took
    /// would stay taken if another limit denies in the second.
    pub(super) fn is_repeatable(&self) -> bool {
        let Self::Queries(questions) = self else {
            return false;
        };
        let gives = |question: &StoreQuery| {
            matches!(
                question.op,
                StoreOp::RefundCharge(_)
                    | StoreOp::RefundHeldCharge { .. }
                    | StoreOp::Refund
                    | StoreOp::Reset
            )
        };
        let takes_slot = |question: &StoreQuery| question.holder.is_some();
        let is_one = questions.len() == 1;
        !questions.iter().any(gives) && (is_one || !questions.iter().any(takes_slot))
    }

    /// The key of this request whose value no limiter wrote; a lease's if there was any.
    pub(super) fn find_foreign_key(&self, numbers: &[i64], strange: u64) -> Option<String> {
        let key = match self {
            Self::Queries(questions) => {
                let mut asked = questions.iter().zip(RawReply::parse_all(numbers));
                &asked.find(|(_, raw)| raw.is_foreign_key())?.0.key
            }
            Self::Lease { key, .. } => Some(key).filter(|_| strange > 0)?,
        };
        Some(key.to_string())
    }
}

impl QueuedCall {
    /// Whether one call can carry both.
    pub(super) fn can_merge_with(&self, other: &Self) -> bool {
        matches!(
            (&self.job, &other.job),
            (StoreCall::Queries(_), StoreCall::Queries(_))
        ) && self.at == other.at
    }
}
