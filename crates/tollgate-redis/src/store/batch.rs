//! Requests that go together: the call that they make, and who is told what came of it.

use ::redis::Cmd;

use crate::error::StoreError;
use crate::question::{Answers, Kind, read};
use crate::script::{self, Needs, Script};

use super::request::{Job, Reply, Request};

/// Requests that go together.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) lane: u16,
    /// How often it has followed its keys to another node.
    pub(super) hops: u8,
    pub(super) requests: Vec<Request>,
}

/// How a script is called: by its name, which the store may have to be told first, or with its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Name,
    Text,
}

/// A call as it is sent.
struct Call<'a> {
    script: &'static Script,
    keys: Vec<&'a str>,
    /// Those that tell when a counter was reset, in the order of the questions that are about that.
    generations: Vec<String>,
    questions: Vec<u8>,
    at: String,
    holders: Vec<&'a [u8]>,
}

impl Batch {
    /// The command that asks it.
    pub(super) fn command(&self, by: By) -> Cmd {
        let call = self.call();
        let mut command = match by {
            By::Name => ::redis::cmd("EVALSHA"),
            By::Text => ::redis::cmd("EVAL"),
        };
        command.arg(match by {
            By::Name => &call.script.sha,
            By::Text => &call.script.text,
        });
        command.arg(call.keys.len() + call.generations.len());
        for key in &call.keys {
            command.arg(*key);
        }
        for key in &call.generations {
            command.arg(key);
        }
        command.arg(&call.questions[..]).arg(&call.at);
        for holder in &call.holders {
            command.arg(*holder);
        }
        command
    }

    /// Leaves out requests that were given up.
    pub(super) fn leave_out_unwaited(&mut self) {
        self.requests.retain(|request| !request.reply.is_closed());
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Whether there is nothing to take apart.
    pub(super) const fn is_one(&self) -> bool {
        self.requests.len() <= 1
    }

    fn call(&self) -> Call<'_> {
        let at = |at: &Option<u64>| at.map(|at| at.to_string()).unwrap_or_default();
        if let [
            Request {
                job:
                    Job::Lease {
                        key,
                        numbers,
                        at: time,
                    },
                ..
            },
        ] = &self.requests[..]
        {
            return Call {
                script: script::lease(),
                keys: vec![key],
                generations: Vec::new(),
                questions: numbers.clone(),
                at: at(time),
                holders: Vec::new(),
            };
        }
        let mut needs = Needs::default();
        let mut time = String::new();
        let asked = || {
            self.requests
                .iter()
                .filter_map(|request| match &request.job {
                    Job::Ask { questions, at } => Some((questions, at)),
                    Job::Lease { .. } => None,
                })
        };
        for (questions, own) in asked() {
            questions.iter().for_each(|question| needs.add(question));
            time = at(own);
        }
        let (mut keys, mut holders, mut program) = (Vec::new(), Vec::new(), Vec::new());
        let mut generations = Vec::new();
        for (questions, _) in asked() {
            for (number, question) in questions.iter().enumerate() {
                let is_last = number + 1 == questions.len();
                question.write(&mut program, is_last, needs.is_plain());
                keys.push(&*question.key);
                generations.extend(question.generation_key());
                if question.numbers.kind == Kind::Slots {
                    // Whatever is asked of slots: the script reads one holder for each such question.
                    let holder = question.holder.as_deref().unwrap_or_default();
                    holders.push(holder.as_bytes());
                }
            }
        }
        Call {
            script: needs.script(),
            keys,
            generations,
            questions: program,
            at: time,
            holders,
        }
    }

    /// How many questions it asks.
    pub(crate) fn len(&self) -> usize {
        self.requests.iter().map(|request| request.job.len()).sum()
    }

    /// Tells all what came. Returns how many keys hold what no limiter wrote: requests about one are told so.
    pub(crate) fn deliver(self, numbers: Vec<i64>) -> Result<u64, StoreError> {
        if let [
            Request {
                job: Job::Lease { key, .. },
                ..
            },
        ] = &self.requests[..]
        {
            let strange = numbers.get(1).copied().unwrap_or(0);
            let answer = match strange {
                0 => Ok(Reply::Numbers(numbers)),
                _ => Err(StoreError::Foreign {
                    key: key.to_string(),
                }),
            };
            if let Some(request) = self.requests.into_iter().next() {
                let _ = request.reply.send(answer);
            }
            return Ok(u64::try_from(strange).unwrap_or(0));
        }
        let (answers, strange) = match read(&numbers, self.len()) {
            Ok(read) => read,
            Err(error) => {
                self.fail(&error);
                return Err(error);
            }
        };
        let Answers { now, each } = answers;
        let mut each = each.into_iter();
        for request in self.requests {
            let own: Vec<_> = each.by_ref().take(request.job.len()).collect();
            let answer = match request.job.foreign_of(&own) {
                Some(key) => Err(StoreError::Foreign { key }),
                None => Ok(Reply::Answers(Answers { now, each: own })),
            };
            let _ = request.reply.send(answer);
        }
        Ok(strange)
    }

    /// Tells all that it failed.
    pub(crate) fn fail(self, error: &StoreError) {
        for request in self.requests {
            let _ = request.reply.send(Err(error.clone()));
        }
    }

    /// Those that may be sent once more, after the others were told that it failed.
    ///
    /// A call that was carried out before the connection broke is charged twice then, which grants
    /// nothing.
    pub(crate) fn again(self, error: &StoreError) -> Vec<Request> {
        let (mut again, mut over) = (Vec::new(), Vec::new());
        for request in self.requests {
            if request.is_again || !request.job.may_repeat() || request.reply.is_closed() {
                over.push(request)
            } else {
                again.push(Request {
                    is_again: true,
                    ..request
                })
            }
        }
        for request in over {
            let _ = request.reply.send(Err(error.clone()));
        }
        again
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;
    use tollgate_engine::backend::LimitKind;

    use super::*;
    use crate::question::{Op, Question, StoreForm};

    #[test]
    fn what_gives_is_not_sent_again() {
        let form = StoreForm::new(&LimitKind::Concurrency(1), Duration::ZERO).unwrap();
        let numbers = form.numbers_at(0).unwrap();
        let ask = |op| Question {
            key: "k".into(),
            op,
            numbers,
            cost: 1,
            holder: None,
        };
        let held = Op::GiveBackHeld {
            since: 7,
            generation: 3,
        };
        let gives = [Op::GiveBack(7), held, Op::Gift, Op::Reset];
        let takes = [
            Op::Decide,
            Op::Hold,
            Op::AtMost,
            Op::Reserve(7),
            Op::Renew,
            Op::Release,
            Op::Raise(7),
        ];
        for (op, expect) in gives
            .map(|op| (op, 0))
            .into_iter()
            .chain(takes.map(|op| (op, 1)))
        {
            let (reply, mut answer) = oneshot::channel();
            let request = Request {
                job: Job::Ask {
                    questions: vec![ask(Op::Decide), ask(op)],
                    at: None,
                },
                lane: 0,
                is_again: false,
                reply,
            };
            let batch = Batch {
                lane: 0,
                hops: 0,
                requests: vec![request],
            };
            let again = batch.again(&StoreError::Stopped);
            assert_eq!(again.len(), expect, "{op:?}");
            assert_eq!(answer.try_recv().is_ok(), expect == 0, "{op:?}");
        }
    }
}
