//! Batches: requests that share a call, and the delivery of its replies.

use ::redis::Cmd;

use crate::error::StoreError;
use crate::query::{Header, StoreKind};
use crate::script::{self, ScriptParts};

use super::request::{CallReply, QueuedCall, StoreCall};

/// Requests that share a call.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) lane: u16,
    /// How often the batch was redirected to another node.
    pub(super) hops: u8,
    pub(super) requests: Vec<QueuedCall>,
}

/// How a script is called: by its SHA-1, which the store may not know yet, or with its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScriptReference {
    Name,
    Text,
}

impl Batch {
    /// The command of the call.
    pub(super) fn command(&self, by: ScriptReference) -> Cmd {
        let (mut needs, mut script) = (ScriptParts::default(), None);
        for request in &self.requests {
            match &request.job {
                StoreCall::Queries(questions) => {
                    questions.iter().for_each(|asked| needs.add(asked))
                }
                StoreCall::Lease { .. } => script = Some(script::lease_script()),
            }
        }
        let (mut keys, mut holders, mut program) = (Vec::new(), Vec::new(), Vec::new());
        // The keys with times of resets, in the order of the queries that need them.
        let mut generations = Vec::new();
        for request in &self.requests {
            let questions = match &request.job {
                StoreCall::Lease { key, numbers } => {
                    keys.push(&**key);
                    program.extend_from_slice(numbers);
                    continue;
                }
                StoreCall::Queries(questions) => questions,
            };
            for (number, question) in questions.iter().enumerate() {
                let is_last = number + 1 == questions.len();
                question.write_record(&mut program, is_last, needs.is_plain());
                keys.push(&*question.key);
                generations.extend(question.generation_key());
                if question.params.kind == StoreKind::Concurrency {
                    // The script reads one holder for each query about permits, whatever the operation.
                    holders.push(question.holder.as_deref().unwrap_or_default());
                }
            }
        }
        // All requests of a call have the same time.
        let time = self.requests.first().and_then(|request| request.at);
        let script = script.unwrap_or_else(|| needs.script());
        let (name, body) = match by {
            ScriptReference::Name => ("EVALSHA", &script.sha),
            ScriptReference::Text => ("EVAL", &script.text),
        };
        let mut command = ::redis::cmd(name);
        command.arg(body).arg(keys.len() + generations.len());
        command.arg(keys).arg(generations).arg(program);
        command.arg(time.map(|at| at.to_string()).unwrap_or_default());
        command.arg(holders).take()
    }

    /// Drops requests that were cancelled.
    pub(super) fn drop_abandoned(&mut self) {
        self.requests.retain(|request| !request.reply.is_closed());
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The number of queries.
    pub(crate) fn len(&self) -> usize {
        self.requests.iter().map(|request| request.job.len()).sum()
    }

    /// Delivers the replies. Returns how many keys have a value that no limiter wrote: requests about such a
    /// key get an error.
    pub(crate) fn deliver(self, numbers: Vec<i64>) -> Result<u64, StoreError> {
        let expected = self
            .requests
            .iter()
            .map(|request| request.job.reply_width());
        let read = Header::read(&numbers, expected.sum());
        let Header {
            now,
            foreign_keys: strange,
            payload: mut rest,
        } = match read {
            Ok(header) => header,
            Err(error) => {
                self.fail_all(&error);
                return Err(error);
            }
        };
        for request in self.requests {
            let (own, others) = rest.split_at(request.job.reply_width());
            rest = others;
            let answer = match request.job.find_foreign_key(own, strange) {
                Some(key) => Err(StoreError::ForeignKey { key }),
                None => Ok(CallReply {
                    now,
                    numbers: own.to_vec(),
                }),
            };
            let _ = request.reply.send(answer);
        }
        Ok(strange)
    }

    /// Delivers an error to all requests.
    pub(crate) fn fail_all(self, error: &StoreError) {
        for request in self.requests {
            let _ = request.reply.send(Err(error.clone()));
        }
    }

    /// Takes the requests that can be sent once more, and delivers the error to the others.
    ///
    /// A call that was executed before the connection broke is charged twice then. That grants nothing.
    pub(crate) fn take_retryable(self, error: &StoreError) -> Vec<QueuedCall> {
        let may = |request: &QueuedCall| {
            !request.is_retry && request.job.is_repeatable() && !request.reply.is_closed()
        };
        let (mut again, requests): (Vec<_>, Vec<_>) = self.requests.into_iter().partition(may);
        Self { requests, ..self }.fail_all(error);
        again.iter_mut().for_each(|request| request.is_retry = true);
        again
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;
    use tollgate_engine::backend::LimitKind;

    use super::*;
    use crate::query::{LimitForm, StoreOp, StoreQuery};

    #[test]
    fn what_gives_is_not_sent_again() {
        let form = LimitForm::new(&LimitKind::Concurrency(1), Duration::ZERO).unwrap();
        let numbers = form.params_at(0).unwrap();
        let ask = |op| StoreQuery {
            key: "k".into(),
            op,
            params: numbers,
            cost: 1,
            holder: None,
        };
        let held = StoreOp::RefundHeldCharge {
            since: 7,
            generation: 3,
        };
        let gives = [
            StoreOp::RefundCharge(7),
            held,
            StoreOp::Refund,
            StoreOp::Reset,
        ];
        let takes = [
            StoreOp::Decide,
            StoreOp::Hold,
            StoreOp::AtMost,
            StoreOp::Reserve(7),
            StoreOp::Renew,
            StoreOp::Release,
            StoreOp::RaiseUsage(7),
        ];
        for (op, expect) in gives
            .map(|op| (op, 0))
            .into_iter()
            .chain(takes.map(|op| (op, 1)))
        {
            let (reply, mut answer) = oneshot::channel();
            let request = QueuedCall {
                job: StoreCall::Queries(vec![ask(StoreOp::Decide), ask(op)]),
                at: None,
                lane: 0,
                is_retry: false,
                reply,
            };
            let batch = Batch {
                lane: 0,
                hops: 0,
                requests: vec![request],
            };
            let again = batch.take_retryable(&StoreError::Stopped);
            assert_eq!(again.len(), expect, "{op:?}");
            assert_eq!(answer.try_recv().is_ok(), expect == 0, "{op:?}");
        }
    }
}
