//! The queue of requests, which are merged into calls as they gather.
//!
//! A request whose lane is free is sent immediately. While a call is in flight, others gather and share the
//! next one, so calls grow only under load.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;

use foldhash::fast::FixedState;
use tokio::sync::Notify;

use crate::error::StoreError;
use crate::lock::lock;

use super::batch::Batch;
use super::request::QueuedCall;

/// The most queries in one call: a script takes well below a millisecond for them.
const MAX_MERGED_QUERIES: usize = 128;
/// Calls in flight of one lane: one that the store executes, and one on its way.
const MAX_CALLS_PER_LANE: u16 = 2;
/// Calls in flight while each request goes alone, and how many requests do so after a call that couldn't be
/// merged.
const MAX_UNMERGED_CALLS: u16 = 32;
const UNMERGED_RUN: u16 = 256;
/// The most requests in one lane. A full lane doesn't affect the others.
const MAX_WAITING: usize = 65_536;
/// From this many on, cancelled requests are dropped.
const SWEEP_THRESHOLD: usize = 256;

/// The requests of each lane.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    inner: Mutex<QueueState>,
    /// Notified when a request can be sent, or the queue is closed.
    pub(crate) changed: Notify,
}

#[derive(Debug, Default)]
struct QueueState {
    /// Clients can't choose lane numbers, so a fixed hash is safe.
    lanes: HashMap<u16, Lane, FixedState>,
    /// Lanes with requests that can be sent.
    ready: Vec<u16>,
    is_closed: bool,
}

#[derive(Debug, Default)]
struct Lane {
    pending: VecDeque<QueuedCall>,
    calls_in_flight: u16,
    is_ready: bool,
    /// How many of the next requests go alone.
    unmerged_left: u16,
    /// The length at which cancelled requests are next dropped.
    sweep_at: usize,
}

impl Queue {
    /// Adds a request.
    pub(crate) fn push(&self, request: QueuedCall) -> Result<(), StoreError> {
        let mut inner = lock(&self.inner);
        if inner.is_closed {
            return Err(StoreError::Stopped);
        }
        let lane = request.lane;
        inner.lane(lane).push(request)?;
        let woke = inner.make_ready(lane);
        drop(inner);
        // Notified without the lock, so that the driver doesn't wake up only to wait for it.
        if woke {
            self.changed.notify_one();
        }
        Ok(())
    }

    /// Takes the next batch that can be sent.
    pub(crate) fn take(&self) -> Option<Batch> {
        let mut inner = lock(&self.inner);
        loop {
            // The order of lanes doesn't matter, because the driver takes all that are ready.
            let number = inner.ready.pop()?;
            let lane = inner.lane(number);
            lane.is_ready = false;
            let requests = lane.next_batch();
            if !requests.is_empty() {
                lane.calls_in_flight += 1;
            }
            // There may be more than one call's worth.
            inner.make_ready(number);
            inner.remove_if_idle(number);
            if !requests.is_empty() {
                return Some(Batch {
                    lane: number,
                    hops: 0,
                    requests,
                });
            }
        }
    }

    /// Ends a call. The requests in `again` are sent again, before all others.
    pub(crate) fn finish_call(&self, number: u16, again: Vec<QueuedCall>) {
        let mut inner = lock(&self.inner);
        let lane = inner.lane(number);
        lane.calls_in_flight = lane.calls_in_flight.saturating_sub(1);
        for request in again.into_iter().rev() {
            lane.pending.push_front(request);
        }
        inner.make_ready(number);
        inner.remove_if_idle(number);
    }

    /// A call that can't be executed as one: its requests are sent again, each alone, and so are the next ones.
    pub(super) fn requeue_unmerged(&self, batch: Batch) {
        let lane = batch.lane;
        lock(&self.inner).lane(lane).unmerged_left = UNMERGED_RUN;
        self.finish_call(lane, batch.requests);
    }

    /// Takes no more requests, and fails all that wait.
    pub(crate) fn close(&self) {
        let mut inner = lock(&self.inner);
        inner.is_closed = true;
        // Dropping the requests drops their reply channels, which ends their waits.
        inner.lanes.clear();
        inner.ready.clear();
        drop(inner);
        self.changed.notify_one();
    }

    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.inner).is_closed
    }
}

impl QueueState {
    fn lane(&mut self, number: u16) -> &mut Lane {
        self.lanes.entry(number).or_default()
    }

    /// Marks a lane as ready if it is. Returns whether that is new.
    fn make_ready(&mut self, number: u16) -> bool {
        let Some(lane) = self.lanes.get_mut(&number) else {
            return false;
        };
        if lane.is_ready || lane.pending.is_empty() || lane.calls_in_flight >= lane.most_calls() {
            return false;
        }
        lane.is_ready = true;
        self.ready.push(number);
        true
    }

    /// Forgets a lane without requests or calls.
    fn remove_if_idle(&mut self, number: u16) {
        let is_empty = |lane: &Lane| lane.pending.is_empty() && lane.calls_in_flight == 0;
        if number != 0 && self.lanes.get(&number).is_some_and(is_empty) {
            self.lanes.remove(&number);
        }
    }
}

impl Lane {
    fn push(&mut self, request: QueuedCall) -> Result<(), StoreError> {
        if self.pending.len() >= self.sweep_at.max(SWEEP_THRESHOLD) {
            self.pending.retain(|request| !request.reply.is_closed());
            // Doubling the threshold makes the cost of sweeps constant for each request.
            self.sweep_at = 2 * self.pending.len();
        }
        let waiting = self.pending.len();
        if waiting >= MAX_WAITING {
            return Err(StoreError::QueueFull { waiting });
        }
        self.pending.push_back(request);
        Ok(())
    }

    const fn most_calls(&self) -> u16 {
        match self.unmerged_left {
            0 => MAX_CALLS_PER_LANE,
            _ => MAX_UNMERGED_CALLS,
        }
    }

    /// The requests of the next call, without cancelled ones.
    fn next_batch(&mut self) -> Vec<QueuedCall> {
        let mut requests: Vec<QueuedCall> = Vec::new();
        let mut questions = 0;
        while let Some(request) = self.pending.front() {
            let fits = requests
                .first()
                .is_none_or(|first| first.can_merge_with(request));
            if !fits || (questions > 0 && questions + request.job.len() > MAX_MERGED_QUERIES) {
                break;
            }
            let Some(request) = self.pending.pop_front() else {
                break;
            };
            if !request.reply.is_closed() {
                questions += request.job.len();
                requests.push(request);
                if self.unmerged_left > 0 {
                    self.unmerged_left -= 1;
                    break;
                }
            }
        }
        requests
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::store::request::{CallReply, StoreCall};

    fn request(lane: u16) -> (QueuedCall, oneshot::Receiver<Result<CallReply, StoreError>>) {
        let (reply, answer) = oneshot::channel();
        let (key, numbers) = ("k".into(), Vec::new());
        let request = QueuedCall {
            job: StoreCall::Lease { key, numbers },
            at: None,
            lane,
            is_retry: false,
            reply,
        };
        (request, answer)
    }

    #[test]
    fn a_lane_that_nothing_is_sent_of_takes_no_room_from_others() {
        let queue = Queue::default();
        // As many calls are in flight as are allowed, and none returns.
        let (first, _one) = request(1);
        let (second, _other) = request(1);
        for request in [first, second] {
            queue.push(request).unwrap();
            assert!(queue.take().is_some());
        }
        for _ in 0..3 * MAX_WAITING {
            let (request, answer) = request(1);
            drop(answer);
            queue.push(request).unwrap();
        }
        let waiting = lock(&queue.inner).lane(1).pending.len();
        assert!(
            waiting <= 2 * SWEEP_THRESHOLD,
            "{waiting} that nobody waits for"
        );
        let mut answers = Vec::new();
        let full = loop {
            let (request, answer) = request(1);
            match queue.push(request) {
                Ok(()) => answers.push(answer),
                Err(error) => break error,
            }
        };
        let waiting = MAX_WAITING;
        assert_eq!(full, StoreError::QueueFull { waiting });
        assert!(answers.len() > MAX_WAITING / 2);
        let (request, _answer) = request(2);
        queue.push(request).unwrap();
        assert_eq!(queue.take().unwrap().lane, 2);
    }
}
