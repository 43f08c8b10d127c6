//! Requests that wait to be sent, merged into calls as they gather.
//!
//! A request that finds its lane free is sent at once. While a call is under way others gather, and go
//! together in the next one, so calls get larger just when there is more to do.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;

use foldhash::fast::FixedState;
use tokio::sync::Notify;

use crate::error::StoreError;
use crate::lock::lock;

use super::batch::Batch;
use super::request::QueuedCall;

/// Questions of one call: so many that a script takes well below a millisecond.
const MAX_MERGED_QUERIES: usize = 128;
/// Calls under way of one lane: one that the store works on, and one on its way.
const MAX_CALLS_PER_LANE: u16 = 2;
/// The same where each request goes alone, and so many requests do after a call that couldn't be merged.
const MAX_UNMERGED_CALLS: u16 = 32;
const UNMERGED_RUN: u16 = 256;
/// Requests that may wait in one lane. A full lane keeps no request out of another.
const MAX_WAITING: usize = 65_536;
/// From so many on, requests that were given up are dropped.
const SWEEP_THRESHOLD: usize = 256;

/// What waits, lane by lane.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    inner: Mutex<QueueState>,
    /// Something may be sent, or all is over.
    pub(crate) changed: Notify,
}

#[derive(Debug, Default)]
struct QueueState {
    /// By numbers that no client can choose, so a fixed hash will do.
    lanes: HashMap<u16, Lane, FixedState>,
    /// Lanes that have something to send and are free to.
    ready: Vec<u16>,
    is_closed: bool,
}

#[derive(Debug, Default)]
struct Lane {
    pending: VecDeque<QueuedCall>,
    calls_in_flight: u16,
    is_ready: bool,
    /// So many of the next requests go alone.
    unmerged_left: u16,
    /// When so many wait, those that were given up are dropped.
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
        if woke {
            self.changed.notify_one();
        }
        Ok(())
    }

    /// Takes what may be sent now.
    pub(crate) fn take(&self) -> Option<Batch> {
        let mut inner = lock(&self.inner);
        loop {
            let number = inner.ready.pop()?;
            let lane = inner.lane(number);
            lane.is_ready = false;
            let requests = lane.next_batch();
            if !requests.is_empty() {
                lane.calls_in_flight += 1;
            }
            // There may be more than goes into one call.
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

    /// A call is over. What it couldn't deliver may go again, first of all.
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

    /// A call can't be carried out as one: its requests go again, each alone, and so do those that come next.
    pub(super) fn requeue_unmerged(&self, batch: Batch) {
        let lane = batch.lane;
        lock(&self.inner).lane(lane).unmerged_left = UNMERGED_RUN;
        self.finish_call(lane, batch.requests);
    }

    /// Takes no more requests, and tells all that wait.
    pub(crate) fn close(&self) {
        let mut inner = lock(&self.inner);
        inner.is_closed = true;
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

    /// Whether it became ready by this.
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

    /// Forgets a lane that nothing is in.
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

    /// The requests of the next call, without those that were given up.
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
        // As many calls are under way as may be, and none comes back.
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
