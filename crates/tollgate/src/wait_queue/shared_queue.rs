//! Who waits, in what order, and until when: the line itself, which reads no clock and wakes nobody.

use std::fmt;

use tollgate_core::{Decision, Outcome, Timestamp};

use super::waiter_places::{Fifo, WaiterId, WaiterPlace, WaiterPlaces};
use super::{WaitOutcome, Waiters};
use crate::RateDenied;

/// Who is next, and what that costs: what weighted fair queueing and priority lanes differ in.
///
/// A discipline has owners, numbered from 0, each with a line of its own in which first come is first
/// served; it says whose turn it is. Every call but [`visited`](Self::advance_clock) is made after a visit
/// at the same time.
pub trait QueueDiscipline: fmt::Debug {
    /// Who asks: a client with its weight, or a lane.
    type Client;
    /// What a charge is given back by.
    type Receipt: fmt::Debug;

    /// It is `now`, and every turn before that has been taken. Returns what the clock showed before, if it was set
    /// back.
    fn advance_clock(&mut self, now: Timestamp) -> Option<Timestamp>;

    /// Whether this request passes right now, ahead of all waiters; it is charged if so.
    fn pass_without_waiting(&mut self, now: Timestamp, ask: &Self::Client, cost: u64) -> Outcome;

    /// The line in which this request has to stand; or, if that is full, when a place may be free.
    fn choose_queue(&mut self, lines: &ClientQueues, ask: Self::Client) -> Result<u32, Timestamp>;

    /// When this request passes at the latest if no more come. Any answer up to `deadline` is as good as
    /// another.
    fn estimate(
        &self,
        lines: &ClientQueues,
        now: Timestamp,
        ask: &Self::Client,
        cost: u64,
        deadline: Timestamp,
    ) -> Timestamp;

    /// Another waiter is first in this owner's line now, for this cost; or the line is empty.
    fn first_changed(&mut self, owner: u32, first: Option<u64>, why: FirstChange);

    /// Whose turn comes next, and when.
    fn next(&self) -> Option<(u32, Timestamp)>;

    /// Whether the first of this line is dropped instead, now that its turn has come.
    fn should_shed(&mut self, owner: u32, line: &Fifo, due: Timestamp, arrived: Timestamp) -> bool;

    /// Charges the first of this line.
    fn pass(&mut self, owner: u32, due: Timestamp, cost: u64) -> Self::Receipt;

    /// A waiter that was charged left before it noticed.
    fn refund(&mut self, now: Timestamp, owner: u32, receipt: Self::Receipt);

    /// The decision for a request that has to wait until `at`.
    fn decision(&self, now: Timestamp, outcome: Outcome, at: Timestamp) -> Decision;

    /// When all waiters will have passed at the latest, if no more come.
    fn time_when_drained(&self, lines: &ClientQueues) -> Timestamp;
}

/// Why another waiter is first now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstChange {
    /// The line was empty.
    Joined,
    /// The one before passed.
    Served,
    /// The one before left without having passed.
    Left,
}

/// The lines of all owners.
#[derive(Debug, Default)]
pub struct ClientQueues {
    by_client: Vec<Fifo>,
    cost: u128,
}

impl ClientQueues {
    /// One owner's line.
    pub(crate) fn of(&self, owner: u32) -> Fifo {
        let index = usize::try_from(owner).unwrap_or(usize::MAX);
        self.by_client.get(index).copied().unwrap_or_default()
    }

    /// The sum of all costs in line.
    pub(crate) const fn cost(&self) -> u128 {
        self.cost
    }

    /// Changes one owner's line, and with it the sum.
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

/// Whose line a waiter stands in: a client, or a lane.
type ClientIndex = u32;

/// A waiter's receipt, by which its charge is given back, and when its turn came; or why it was refused, which is rare and large.
type WaitResult<D> = Result<(<D as QueueDiscipline>::Receipt, Timestamp), Box<RateDenied>>;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JoinOutcome {
    /// It passed at once.
    Passed,
    /// It stands in line.
    Waiting(WaiterId),
}

impl<D: QueueDiscipline> SharedQueue<D> {
    /// An empty line that holds at most so many.
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

    /// How many wait.
    pub(crate) const fn waiting(&self) -> usize {
        self.waiter_count
    }

    /// How many wait in this owner's line.
    pub(crate) fn waiting_of(&self, owner: Option<u32>) -> usize {
        owner.map_or(0, |owner| self.lines.of(owner).len())
    }

    /// Decides without waiting.
    pub(crate) fn check(&mut self, now: Timestamp, ask: &D::Client, cost: u64) -> Decision {
        self.advance(now);
        let outcome = self.discipline.pass_without_waiting(now, ask, cost);
        let at = match outcome {
            Outcome::Denied => {
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

    /// Passes at once, takes a place in line, or says why it can do neither.
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

    /// Lets every waiter pass whose turn has come by `now`, in order, each as of its own time, and drops those
    /// whose deadline came first.
    pub(crate) fn advance(&mut self, now: Timestamp) {
        if self.waiter_count > 0 {
            while self.serve_next(now) {}
        }
        if let Some(from) = self.discipline.advance_clock(now) {
            self.places.shift_deadlines(from, now);
        }
    }

    /// Lets one waiter pass, or drops it, if one is due by `now`.
    fn serve_next(&mut self, now: Timestamp) -> bool {
        let turn = self.discipline.next().filter(|(_, due)| *due <= now);
        let over = self.places.first_deadline();
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

    /// Denies a waiter what it waits for.
    fn deny_waiter(
        &mut self,
        now: Timestamp,
        id: WaiterId,
        why: impl FnOnce(Decision) -> RateDenied,
    ) {
        // What is left in line says how long it would have taken, or more.
        let at = self.discipline.time_when_drained(&self.lines);
        let decision = self.discipline.decision(now, Outcome::Denied, at);
        self.finish(id, Err(Box::new(why(decision))), FirstChange::Left);
    }

    /// Takes a waiter out of its line and notes its result.
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

    /// This waiter leaves. It is charged nothing, even if its turn had come and it hadn't noticed.
    pub(crate) fn leave(&mut self, now: Timestamp, id: WaiterId) {
        self.advance(now);
        self.remove_waiter(now, id);
        // What it leaves behind may be another's turn right now.
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

    /// When its turn comes if it is next, and when its deadline has passed.
    fn next_poll_at(&mut self, _now: Timestamp, id: WaiterId) -> Option<Timestamp> {
        let turn = self.first().filter(|(first, _)| *first == id);
        let turn = turn.map(|(_, due)| due);
        let over = self.places.get(id).and_then(WaiterPlace::deadline);
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
    /// The result for this waiter, if it needn't wait any more.
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

    /// The line is empty, and nothing is kept of earlier waiters.
    pub(crate) fn is_clean(&self) -> bool {
        let lines = self.lines.by_client.iter().all(|line| line.len() == 0);
        let empty = self.places.used() == 0
            && self.waiter_count == 0
            && self.places.first_deadline().is_none();
        lines && empty && self.lines.cost == 0
    }
}
