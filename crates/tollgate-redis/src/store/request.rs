//! What is sent to the store, and where its answer goes.

use tokio::sync::oneshot;

use crate::error::StoreError;
use crate::query::{RawReply, StoreOp, StoreQuery};

/// Numbers that the script of leases answers with.
const LEASE_WIDTH: usize = 5;

/// What is to be sent, and where its answer goes.
#[derive(Debug)]
pub(crate) struct QueuedCall {
    pub(crate) job: StoreCall,
    /// The time that it is judged by, if it isn't the store's.
    pub(crate) at: Option<u64>,
    /// Requests of one lane may share a call: in a cluster, those of one slot.
    pub(crate) lane: u16,
    /// It was sent before, and the connection broke.
    pub(crate) is_retry: bool,
    pub(crate) reply: oneshot::Sender<Result<CallReply, StoreError>>,
}

#[derive(Debug)]
pub(crate) enum StoreCall {
    /// Questions, answered all or none.
    Queries(Vec<StoreQuery>),
    /// The script of leases, which goes alone.
    Lease { key: Box<str>, numbers: Vec<u8> },
}

/// The numbers of one request, of those that a call came back with.
#[derive(Debug)]
pub(crate) struct CallReply {
    /// The time by which it was judged, in microseconds.
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

    /// How many numbers it is answered with.
    pub(super) fn reply_width(&self) -> usize {
        match self {
            Self::Queries(questions) => RawReply::WIDTH * questions.len(),
            Self::Lease { .. } => LEASE_WIDTH,
        }
    }

    /// Whether it may be carried out twice: that grants nothing. What is given back twice was someone
    /// else's the second time, a lease says what is held now, and a slot that was taken the first time
    /// would stay so if another limit refuses the second.
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

    /// The key of it that was found to hold what no limiter wrote; a lease's if there was any.
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
