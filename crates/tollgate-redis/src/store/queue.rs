//! Requests that wait to be sent, merged into calls as they gather.
//!
//! A request that finds its lane free is sent at once. While a call is under way others gather, and go
//! together in the next one, so calls get larger just when there is more to do.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};

use crate::error::StoreError;
use crate::question::{Answers, Kind, Op, Question, read};
use crate::script::{self, Needs, Script};

/// Questions of one call: so many that a script takes well below a millisecond.
const MOST_MERGED: usize = 128;
/// Calls under way of one lane: one that the store works on, and one on its way.
const MOST_CALLS: u8 = 2;
/// Requests that wait.
const MOST_WAITING: usize = 65_536;

/// What is to be sent, and who wants to know.
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

/// Requests that go together.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) lane: u16,
    requests: Vec<Request>,
}

/// What waits, lane by lane.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    inner: Mutex<Inner>,
    /// Something may be sent, or all is over.
    pub(crate) changed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    lanes: HashMap<u16, Lane>,
    /// Lanes that have something to send and are free to.
    ready: Vec<u16>,
    waiting: usize,
    is_closed: bool,
}

#[derive(Debug, Default)]
struct Lane {
    pending: VecDeque<Request>,
    under_way: u8,
    is_ready: bool,
}

impl Queue {
    /// Adds a request.
    pub(crate) fn push(&self, request: Request) -> Result<(), StoreError> {
        let mut inner = self.lock();
        if inner.is_closed {
            return Err(StoreError::Stopped);
        }
        if inner.waiting >= MOST_WAITING {
            return Err(StoreError::Full {
                waiting: inner.waiting,
            });
        }
        let lane = request.lane;
        inner.waiting += 1;
        inner.lane(lane).pending.push_back(request);
        let woke = inner.make_ready(lane);
        drop(inner);
        if woke {
            self.changed.notify_one();
        }
        Ok(())
    }

    /// Takes what may be sent now.
    pub(crate) fn take(&self) -> Option<Batch> {
        let mut inner = self.lock();
        loop {
            let number = inner.ready.pop()?;
            let lane = inner.lane(number);
            lane.is_ready = false;
            let before = lane.pending.len();
            let requests = lane.next();
            let taken = before - lane.pending.len();
            if !requests.is_empty() {
                lane.under_way += 1;
            }
            inner.waiting -= taken;
            // There may be more than goes into one call.
            inner.make_ready(number);
            inner.tidy(number);
            if !requests.is_empty() {
                return Some(Batch {
                    lane: number,
                    requests,
                });
            }
        }
    }

    /// A call is over. What it couldn't deliver may go again, first of all.
    pub(crate) fn done(&self, number: u16, again: Vec<Request>) {
        let mut inner = self.lock();
        inner.waiting += again.len();
        let lane = inner.lane(number);
        lane.under_way = lane.under_way.saturating_sub(1);
        for request in again.into_iter().rev() {
            lane.pending.push_front(request);
        }
        inner.make_ready(number);
        inner.tidy(number);
    }

    /// Takes no more, and lets all who wait know.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        inner.is_closed = true;
        inner.lanes.clear();
        inner.ready.clear();
        inner.waiting = 0;
        drop(inner);
        self.changed.notify_one();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn lane(&mut self, number: u16) -> &mut Lane {
        self.lanes.entry(number).or_default()
    }

    /// Whether it became ready by this.
    fn make_ready(&mut self, number: u16) -> bool {
        let Some(lane) = self.lanes.get_mut(&number) else {
            return false;
        };
        if lane.is_ready || lane.pending.is_empty() || lane.under_way >= MOST_CALLS {
            return false;
        }
        lane.is_ready = true;
        self.ready.push(number);
        true
    }

    /// Forgets a lane that nothing is in.
    fn tidy(&mut self, number: u16) {
        let is_empty = |lane: &Lane| lane.pending.is_empty() && lane.under_way == 0;
        if number != 0 && self.lanes.get(&number).is_some_and(is_empty) {
            self.lanes.remove(&number);
        }
    }
}

impl Lane {
    /// The requests of the next call, without those that nobody waits for any more.
    fn next(&mut self) -> Vec<Request> {
        let mut requests: Vec<Request> = Vec::new();
        let mut questions = 0;
        while let Some(request) = self.pending.front() {
            let fits = requests
                .first()
                .is_none_or(|first| first.job.goes_with(&request.job));
            if !fits || (questions > 0 && questions + request.job.len() > MOST_MERGED) {
                break;
            }
            let Some(request) = self.pending.pop_front() else {
                break;
            };
            if !request.reply.is_closed() {
                questions += request.job.len();
                requests.push(request);
            }
        }
        requests
    }
}

impl Job {
    fn len(&self) -> usize {
        match self {
            Self::Ask { questions, .. } => questions.len(),
            Self::Lease { .. } => 1,
        }
    }

    /// Whether it may be carried out twice: that grants nothing. What is given back twice was someone
    /// else's the second time, a lease says what is held now, and a slot that was taken the first time
    /// would stay so if another limit refuses the second.
    fn may_repeat(&self) -> bool {
        let gives =
            |question: &Question| matches!(question.op, Op::GiveBack(_) | Op::Gift | Op::Reset);
        let slot = |question: &Question| question.holder.is_some();
        match self {
            Self::Ask { questions, .. } => {
                let is_one = questions.len() == 1;
                !questions.iter().any(gives) && (is_one || !questions.iter().any(slot))
            }
            Self::Lease { .. } => false,
        }
    }

    fn goes_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Ask { at, .. }, Self::Ask { at: other, .. }) => at == other,
            _ => false,
        }
    }
}

/// A call as it is sent.
pub(crate) struct Call<'a> {
    pub(crate) script: &'static Script,
    pub(crate) keys: Vec<&'a str>,
    pub(crate) questions: Vec<u8>,
    pub(crate) at: String,
    pub(crate) holders: Vec<&'a [u8]>,
}

impl Batch {
    pub(crate) fn call(&self) -> Call<'_> {
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
            questions
                .iter()
                .for_each(|question| question.need(&mut needs));
            time = at(own);
        }
        let (mut keys, mut holders, mut program) = (Vec::new(), Vec::new(), Vec::new());
        for (questions, _) in asked() {
            for (number, question) in questions.iter().enumerate() {
                let is_last = number + 1 == questions.len();
                question.write(&mut program, is_last, needs.is_plain());
                keys.push(&*question.key);
                if question.numbers.kind == Kind::Slots {
                    // Whatever is asked of slots: the script takes one for each such question.
                    let holder = question.holder.as_deref().unwrap_or_default();
                    holders.push(holder.as_bytes());
                }
            }
        }
        Call {
            script: needs.script(),
            keys,
            questions: program,
            at: time,
            holders,
        }
    }

    /// How many questions it asks.
    pub(crate) fn len(&self) -> usize {
        self.requests.iter().map(|request| request.job.len()).sum()
    }

    /// Tells all what came. Returns how many keys held something strange.
    pub(crate) fn deliver(self, numbers: Vec<i64>) -> Result<u64, StoreError> {
        if let [
            Request {
                job: Job::Lease { .. },
                ..
            },
        ] = &self.requests[..]
        {
            let strange = numbers.get(1).copied().unwrap_or(0);
            for request in self.requests {
                let _ = request.reply.send(Ok(Reply::Numbers(numbers.clone())));
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
            let own = each.by_ref().take(request.job.len()).collect();
            let answers = Answers { now, each: own };
            let _ = request.reply.send(Ok(Reply::Answers(answers)));
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
            match request.is_again || !request.job.may_repeat() || request.reply.is_closed() {
                true => over.push(request),
                false => again.push(Request {
                    is_again: true,
                    ..request
                }),
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

    use tollgate_engine::backend::LimitKind;

    use super::*;
    use crate::question::Form;

    #[test]
    fn what_gives_is_not_sent_again() {
        let form = Form::new(&LimitKind::Concurrency(1), Duration::ZERO).unwrap();
        let numbers = form.numbers_at(0).unwrap();
        let ask = |op| Question {
            key: "k".into(),
            op,
            numbers,
            cost: 1,
            holder: None,
        };
        let gives = [Op::GiveBack(7), Op::Gift, Op::Reset];
        let takes = [
            Op::Decide,
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
                requests: vec![request],
            };
            let again = batch.again(&StoreError::Stopped);
            assert_eq!(again.len(), expect, "{op:?}");
            assert_eq!(answer.try_recv().is_ok(), expect == 0, "{op:?}");
        }
    }
}
