//! A queue of several clients or lanes: the waiters, their order and their deadlines. It reads no clock
//! and wakes no waiter.

use std::fmt;

use tollgate_core::{Decision, Outcome, Timestamp};

use super::waiter_places::{Fifo, WaiterId, WaiterPlace, WaiterPlaces};
use super::{WaitOutcome, Waiters};
use crate::RateDenied;

/// The order of service and the charge: the difference between weighted fair queueing and priority
/// lanes.
///
/// A discipline has owners, numbered from 0, each with a first-in-first-out queue; the discipline
/// decides which owner is served next. Every call but [`advance_clock`](Self::advance_clock) is made
/// after that call for the same time.
pub trait QueueDiscipline: fmt::Debug {
    /// The client of a request: a fingerprint with a weight, or a lane.
    type Client;
    /// What the refund of a charge needs.
    type Receipt: fmt::Debug;

    /// Moves the discipline to `now`, after every waiter that was due before was served. Returns the
    /// earlier time if the clock was set back.
    fn advance_clock(&mut self, now: Timestamp) -> Option<Timestamp>;

    /// Whether this request passes right now, ahead of all waiters; it is charged if so.
    fn pass_without_waiting(&mut self, now: Timestamp, ask: &Self::Client, cost: u64) -> Outcome;

    /// The queue that this request joins; or, if that is full, when a place may be free.
    fn choose_queue(&mut self, lines: &ClientQueues, ask: Self::Client) -> Result<u32, Timestamp>;

    /// The latest time at which this request passes if no more come. Any result up to `deadline` is as
    /// good as another.
    fn estimate(
        &self,
        lines: &ClientQueues,
        now: Timestamp,
        ask: &Self::Client,
        cost: u64,
        deadline: Timestamp,
    ) -> Timestamp;

    /// Another waiter is now the head of this owner's queue, with this cost; or the queue is empty.
    fn first_changed(&mut self, owner: u32, first: Option<u64>, why: FirstChange);

    /// The owner that is served next, and when.
    fn next(&self) -> Option<(u32, Timestamp)>;

    /// Whether the head of this queue is dropped instead, now that it is due.
    fn should_shed(&mut self, owner: u32, line: &Fifo, due: Timestamp, arrived: Timestamp) -> bool;

    /// Charges the head of this queue.
    fn pass(&mut self, owner: u32, due: Timestamp, cost: u64) -> Self::Receipt;

    /// Refunds a waiter that was charged and left before it noticed.
    fn refund(&mut self, now: Timestamp, owner: u32, receipt: Self::Receipt);

    /// The decision for a request that has to wait until `at`.
    fn decision(&self, now: Timestamp, outcome: Outcome, at: Timestamp) -> Decision;

    /// The latest time at which all waiters have passed, if no more come.
    fn time_when_drained(&self, lines: &ClientQueues) -> Timestamp;
}

/// Why another waiter is the head now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstChange {
    /// The queue was empty.
    Joined,
    /// The previous head was served.
    Served,
    /// The previous head left without being served.
    Left,
}

/// The queues of all owners.
#[derive(Debug, Default)]
pub struct ClientQueues {
    by_client: Vec<Fifo>,
    cost: u128,
}

impl ClientQueues {
    /// One owner's queue.
    pub(crate) fn of(&self, owner: u32) -> Fifo {
        let index = usize::try_from(owner).unwrap_or(usize::MAX);
        self.by_client.get(index).copied().unwrap_or_default()
    }

    /// The sum of all costs in the queues.
    pub(crate) const fn cost(&self) -> u128 {
        self.cost
    }

    /// Changes one owner's queue, and the sum with it.
    fn change(&mut self, owner: u32, change: impl FnOnce(&mut Fifo)) {
        let index = usize::try_from(owner).unwrap_or(usize::MAX);
        if index >= self.by_client.len() {
            self.by_client.resize(index + 1, Fifo::default());
        }
        let fifo = &mut self.by_client[index];
        self.cost -= fifo.cost();
        change(fifo);
        self.cost += fifo.cost();
    }
}

/// All waiters for one limit.
#[derive(Debug)]
pub(crate) struct SharedQueue<D: QueueDiscipline> {
    discipline: D,
    places: WaiterPlaces<WaitResult<D>, ClientIndex>,
    lines: ClientQueues,
    waiter_count: usize,
    max_waiters: usize,
}

/// The owner of a queue: a client, or a lane.
type ClientIndex = u32;

/// A waiter's receipt for a refund and its due time; or its denial, which is boxed because it is rare
/// and large.
type WaitResult<D> = Result<(<D as QueueDiscipline>::Receipt, Timestamp), Box<RateDenied>>;

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JoinOutcome {
    /// It passed immediately.
    Passed,
    /// It joined the queue.
    Waiting(WaiterId),
}

impl<D: QueueDiscipline> SharedQueue<D> {
    /// An empty queue for at most this many waiters.
    pub(crate) const fn new(discipline: D, most: usize) -> Self {
        Self {
            discipline,
            places: WaiterPlaces::new(),
            lines: ClientQueues {
                by_client: Vec::new(),
                cost: 0,
            },
            waiter_count: 0,
            max_waiters: most,
        }
    }

    pub(crate) const fn discipline(&self) -> &D {
        &self.discipline
    }

    /// The number of waiters.
    pub(crate) const fn waiting(&self) -> usize {
        self.waiter_count
    }

    /// The number of waiters of this owner.
    pub(crate) fn waiting_of(&self, owner: Option<u32>) -> usize {
        owner.map_or(0, |owner| self.lines.of(owner).len())
    }

    /// Decides without waiting.
    pub(crate) fn check(&mut self, now: Timestamp, ask: &D::Client, cost: u64) -> Decision {
        self.advance(now);
        let outcome = self.discipline.pass_without_waiting(now, ask, cost);
        let at = match outcome {
            Outcome::Denied => {
                // No estimate is before this deadline, so the tightest one is computed.
                let never = Timestamp::ZERO;
                self.discipline.estimate(&self.lines, now, ask, cost, never)
            }
            Outcome::Allowed | Outcome::Never => now,
        };
        self.discipline.decision(now, outcome, at)
    }

    /// Whether this request passes right now; it is charged if so.
    pub(crate) fn allow(&mut self, now: Timestamp, ask: &D::Client, cost: u64) -> bool {
        self.advance(now);
        self.discipline.pass_without_waiting(now, ask, cost) == Outcome::Allowed
    }

    /// Passes immediately, joins the queue, or returns why it can do neither.
    pub(crate) fn join(
        &mut self,
        now: Timestamp,
        ask: D::Client,
        cost: u64,
        deadline: Option<Timestamp>,
    ) -> Result<JoinOutcome, RateDenied> {
        self.advance(now);
        let discipline = &mut self.discipline;
        if deadline.is_some_and(|deadline| deadline < now) {
            let decision = discipline.decision(now, Outcome::Denied, now);
            return Err(RateDenied::DeadlineExceeded(decision));
        }
        match discipline.pass_without_waiting(now, &ask, cost) {
            Outcome::Allowed => return Ok(JoinOutcome::Passed),
            Outcome::Never => {
                let decision = discipline.decision(now, Outcome::Never, now);
                return Err(RateDenied::ExceedsBurst(decision));
            }
            Outcome::Denied => {}
        }
        if let Some(deadline) = deadline {
            let at = discipline.estimate(&self.lines, now, &ask, cost, deadline);
            if at > deadline {
                let decision = discipline.decision(now, Outcome::Denied, at);
                return Err(RateDenied::DeadlineExceeded(decision));
            }
        }
        let full = |discipline: &D, at| {
            RateDenied::QueueFull(discipline.decision(now, Outcome::Denied, at))
        };
        // Counts also served waiters that haven't collected their result: their places are in use.
        if self.places.used() >= self.max_waiters {
            let place_free = discipline.next().map_or(now, |(_, at)| at);
            return Err(full(discipline, place_free));
        }
        let owner = match discipline.choose_queue(&self.lines, ask) {
            Ok(owner) => owner,
            Err(place_free) => return Err(full(discipline, place_free)),
        };
        Ok(JoinOutcome::Waiting(
            self.append_waiter(now, owner, cost, deadline),
        ))
    }

    fn append_waiter(
        &mut self,
        now: Timestamp,
        owner: u32,
        cost: u64,
        deadline: Option<Timestamp>,
    ) -> WaiterId {
        let place = WaiterPlace::new(now, cost, deadline, owner);
        let id = self.places.insert(place);
        self.lines.change(owner, |line| self.places.push(line, id));
        self.waiter_count += 1;
        if self.lines.of(owner).len() == 1 {
            self.discipline
                .first_changed(owner, Some(cost), FirstChange::Joined);
        }
        id
    }

    /// Serves every waiter that is due by `now`, in order and each as of its own due time, and drops
    /// those whose deadline came first.
    pub(crate) fn advance(&mut self, now: Timestamp) {
        if self.waiter_count > 0 {
            while self.serve_next(now) {}
        }
        if let Some(from) = self.discipline.advance_clock(now) {
            self.places.shift_deadlines(from, now);
        }
    }

    /// Serves or drops one waiter, if one is due by `now`.
    fn serve_next(&mut self, now: Timestamp) -> bool {
        let turn = self.discipline.next().filter(|(_, due)| *due <= now);
        let over = self.places.first_deadline();
        // A waiter that is due before that deadline is served first, as of its due time.
        if let Some((deadline, id)) = over.filter(|(deadline, _)| *deadline < now)
            && turn.is_none_or(|(_, due)| deadline < due)
        {
            self.deny_waiter(now, id, RateDenied::DeadlineExceeded);
            return true;
        }
        let Some((owner, due)) = turn else {
            return false;
        };
        let line = self.lines.of(owner);
        let Some((id, place)) = line.first().and_then(|id| Some((id, self.places.get(id)?))) else {
            return false;
        };
        let (cost, arrived) = (place.cost, place.arrived);
        if self.discipline.should_shed(owner, &line, due, arrived) {
            self.deny_waiter(now, id, RateDenied::Dropped);
        } else {
            let receipt = self.discipline.pass(owner, due, cost);
            self.finish(id, Ok((receipt, due)), FirstChange::Served);
        }
        true
    }

    /// Denies a waiter.
    fn deny_waiter(
        &mut self,
        now: Timestamp,
        id: WaiterId,
        why: impl FnOnce(Decision) -> RateDenied,
    ) {
        // The remaining queue gives a bound on how long it would still have taken.
        let at = self.discipline.time_when_drained(&self.lines);
        let decision = self.discipline.decision(now, Outcome::Denied, at);
        self.finish(id, Err(Box::new(why(decision))), FirstChange::Left);
    }

    /// Removes a waiter from its queue and stores its result.
    fn finish(&mut self, id: WaiterId, result: WaitResult<D>, why: FirstChange) {
        self.unlink_waiter(id, why, |places, line| places.finish(line, id, result));
    }

    fn unlink_waiter(
        &mut self,
        id: WaiterId,
        why: FirstChange,
        unlink: impl FnOnce(&mut WaiterPlaces<WaitResult<D>, ClientIndex>, &mut Fifo),
    ) {
        let Some(place) = self.places.get(id) else {
            return;
        };
        let owner = place.data;
        self.waiter_count -= 1;
        let was_first = self.lines.of(owner).first() == Some(id);
        let places = &mut self.places;
        self.lines.change(owner, |line| unlink(places, line));
        if was_first {
            let first = self.lines.of(owner).first();
            let first = first.and_then(|id| self.places.get(id));
            let first = first.map(|place| place.cost);
            self.discipline.first_changed(owner, first, why);
        }
    }

    /// Removes this waiter. It is charged nothing, even if it was served and hadn't noticed.
    pub(crate) fn leave(&mut self, now: Timestamp, id: WaiterId) {
        self.advance(now);
        self.remove_waiter(now, id);
        // Its charge may serve another waiter right now.
        self.advance(now);
    }

    fn remove_waiter(&mut self, now: Timestamp, id: WaiterId) {
        let Some(place) = self.places.get(id) else {
            return;
        };
        let owner = place.data;
        if place.is_queued() {
            self.unlink_waiter(id, FirstChange::Left, |places, line| {
                places.unlink(line, id)
            });
            self.places.remove(id);
        } else if let Some(Ok((receipt, _))) = self.places.collect(id) {
            self.discipline.refund(now, owner, receipt);
        }
    }
}

impl<D: QueueDiscipline> Waiters for SharedQueue<D> {
    fn first(&self) -> Option<(WaiterId, Timestamp)> {
        let (owner, due) = self.discipline.next()?;
        Some((self.lines.of(owner).first()?, due))
    }

    /// When it is served if it is next, and when its deadline passes.
    fn next_poll_at(&mut self, _now: Timestamp, id: WaiterId) -> Option<Timestamp> {
        let turn = self.first().filter(|(first, _)| *first == id);
        let turn = turn.map(|(_, due)| due);
        let over = self.places.get(id).and_then(WaiterPlace::deadline);
        // A waiter may still pass at its deadline, so it is dropped a nanosecond later.
        let over = over.map(|deadline| deadline.plus_nanos(1));
        turn.into_iter().chain(over).min()
    }

    fn take_finished(&mut self) -> Vec<WaiterId> {
        self.places.take_done()
    }

    fn collect(&mut self, id: WaiterId, now: Timestamp) -> Option<Result<WaitOutcome, RateDenied>> {
        let waited = now - self.places.get(id)?.arrived;
        let result = self.places.collect(id)?;
        let passed = result.map(|(_, at)| WaitOutcome {
            at,
            waited,
            ticket: None,
        });
        Some(passed.map_err(|refused| *refused))
    }
}

#[cfg(test)]
impl<D: QueueDiscipline> SharedQueue<D> {
    /// The result of this waiter, if its wait has ended.
    pub(crate) fn outcome_of(&mut self, id: WaiterId) -> Option<Result<(), RateDenied>> {
        self.collect(id, Timestamp::ZERO)
            .map(|result| result.map(drop))
    }

    /// When something happens next if no waiter comes or leaves.
    pub(crate) fn next_at(&self) -> Option<Timestamp> {
        let turn = self.first().map(|(_, due)| due);
        let over = self.places.first_deadline();
        let over = over.map(|(deadline, _)| deadline.plus_nanos(1));
        turn.into_iter().chain(over).min()
    }

    /// Whether the queue is empty and nothing of earlier waiters is stored.
    pub(crate) fn is_clean(&self) -> bool {
        let lines = self.lines.by_client.iter().all(|line| line.len() == 0);
        let empty = self.places.used() == 0
            && self.waiter_count == 0
            && self.places.first_deadline().is_none();
        lines && empty && self.lines.cost == 0
    }
}
