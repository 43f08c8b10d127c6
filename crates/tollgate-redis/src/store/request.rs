//! What is sent to the store, and where its answer goes.

use tokio::sync::oneshot;

use crate::error::StoreError;
use crate::question::{Answers, Op, Question, Raw};

/// What is to be sent, and where its answer goes.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) job: Job,
    /// Requests of one lane may share a call: in a cluster, those of one slot.
    pub(crate) lane: u16,
    /// It was sent before, and the connection broke.
    pub(crate) is_again: bool,
    pub(crate) reply: oneshot::Sender<Result<Reply, StoreError>>,
}

#[derive(Debug)]
pub(crate) enum Job {
    /// Questions, answered all or none, at a time of the caller's or the store's.
    Ask {
        questions: Vec<Question>,
        at: Option<u64>,
    },
    /// The script of leases, which goes alone.
    Lease {
        key: Box<str>,
        numbers: Vec<u8>,
        at: Option<u64>,
    },
}

#[derive(Debug)]
pub(crate) enum Reply {
    Answers(Answers),
    Numbers(Vec<i64>),
}

impl Job {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Ask { questions, .. } => questions.len(),
            Self::Lease { .. } => 1,
        }
    }

    /// Whether it may be carried out twice: that grants nothing. What is given back twice was someone
    /// else's the second time, a lease says what is held now, and a slot that was taken the first time
    /// would stay so if another limit refuses the second.
    pub(super) fn may_repeat(&self) -> bool {
        let gives = |question: &Question| {
            matches!(
                question.op,
                Op::GiveBack(_) | Op::GiveBackHeld { .. } | Op::Gift | Op::Reset
            )
        };
        let slot = |question: &Question| question.holder.is_some();
        match self {
            Self::Ask { questions, .. } => {
                let is_one = questions.len() == 1;
                !questions.iter().any(gives) && (is_one || !questions.iter().any(slot))
            }
            Self::Lease { .. } => false,
        }
    }

    /// The key of it that was found to hold what no limiter wrote.
    pub(super) fn foreign_of(&self, answers: &[Raw]) -> Option<String> {
        let Self::Ask { questions, .. } = self else {
            return None;
        };
        let mut asked = questions.iter().zip(answers);
        let (question, _) = asked.find(|(_, raw)| raw.is_of_a_foreign_key())?;
        Some(question.key.to_string())
    }

    /// Whether one call can carry both.
    pub(super) fn goes_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Ask { at, .. }, Self::Ask { at: other, .. }) => at == other,
            _ => false,
        }
    }
}
