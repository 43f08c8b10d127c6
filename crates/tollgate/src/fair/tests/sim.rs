//! A queue on virtual time: requests come at their times, and each is served when it is due.

use std::collections::HashMap;

use tollgate_core::{Arithmetic, Gcra, Rate, Timestamp};

use crate::RateDenied;
use crate::fair::anchored_bucket::AnchoredBucket;
use crate::fair::codel::Codel;
use crate::fair::fair_queueing::{ClientClaim, FairQueueing};
use crate::wait_queue::Waiters as _;
use crate::wait_queue::shared_queue::{JoinOutcome, SharedQueue};
use crate::wait_queue::waiter_places::WaiterId;

/// One request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Arrival {
    pub(super) nanos: u64,
    pub(super) client: u32,
    pub(super) cost: u64,
    pub(super) weight: u32,
    pub(super) deadline: Option<u64>,
}

impl Arrival {
    pub(super) fn new(nanos: u64, client: u32) -> Self {
        Self {
            nanos,
            client,
            cost: 1,
            weight: 1,
            deadline: None,
        }
    }
}

/// The outcome of a request, and its time.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fate {
    pub(super) arrival: Arrival,
    pub(super) at: Timestamp,
    pub(super) result: Result<(), RateDenied>,
}

pub(super) struct Sim {
    pub(super) queue: SharedQueue<FairQueueing>,
    pub(super) waiting: HashMap<WaiterId, Arrival>,
}

pub(super) fn at_millis(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

impl Sim {
    pub(super) fn new(rate: Rate) -> Self {
        Self::with(rate, 65_536, 64, None)
    }

    pub(super) fn with(rate: Rate, most: usize, per_client: usize, codel: Option<Codel>) -> Self {
        let limit = Gcra::new(rate).unwrap();
        let fair = FairQueueing::new(
            AnchoredBucket::new(limit, Timestamp::ZERO),
            Timestamp::ZERO,
            per_client,
            codel,
        );
        Self {
            queue: SharedQueue::new(fair, most),
            waiting: HashMap::new(),
        }
    }

    pub(super) fn enter(&mut self, arrival: Arrival) -> Result<JoinOutcome, RateDenied> {
        let claim = ClientClaim {
            client: u64::from(arrival.client),
            weight: arrival.weight,
        };
        let now = Timestamp::from_nanos(arrival.nanos);
        let deadline = arrival.deadline.map(Timestamp::from_nanos);
        let entered = self.queue.join(now, claim, arrival.cost, deadline)?;
        if let JoinOutcome::Waiting(id) = entered {
            self.waiting.insert(id, arrival);
        }
        Ok(entered)
    }

    /// The waiters that are served or dropped by `now`.
    pub(super) fn advance(&mut self, now: Timestamp) -> Vec<Fate> {
        self.queue.advance(now);
        let done = self.queue.take_finished();
        let fate = |id| Fate {
            arrival: self.waiting.remove(&id).unwrap(),
            at: now,
            result: self.queue.outcome_of(id).unwrap(),
        };
        done.into_iter().map(fate).collect()
    }

    /// The outcomes of these requests and of the waiters, up to `end`.
    pub(super) fn run(&mut self, mut arrivals: Vec<Arrival>, end: Timestamp) -> Vec<Fate> {
        arrivals.sort_by_key(|arrival| arrival.nanos);
        let mut arrivals = arrivals.into_iter().peekable();
        let mut fates = Vec::new();
        loop {
            let comes = arrivals.peek().map(|a| Timestamp::from_nanos(a.nanos));
            let turn = self.queue.next_at();
            let now = [comes, turn].into_iter().flatten().min();
            let Some(now) = now.filter(|now| *now <= end) else {
                return fates;
            };
            fates.extend(self.advance(now));
            if comes == Some(now)
                && let Some(arrival) = arrivals.next()
            {
                let result = match self.enter(arrival) {
                    Ok(JoinOutcome::Waiting(_)) => continue,
                    Ok(JoinOutcome::Passed) => Ok(()),
                    Err(refused) => Err(refused),
                };
                fates.push(Fate {
                    arrival,
                    at: now,
                    result,
                });
            }
        }
    }
}
