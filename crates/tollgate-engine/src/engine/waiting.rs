//! Waiting for a turn, where a rule says so: which queue a request joins, and what it is told if its turn doesn't come in time.

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::Timestamp;
use tollgate::clock::{Clock, Wakeup, sleep_until};

use super::conditions::DecideOptions;
use super::pipeline::{Attempt, Pipeline, Request};
use super::wait_queue::{
    MIN_RETRY_DELAY, QueueDemand, QueueKey, QueuePosition, QueueRequest, QueueStatus,
};
use crate::backend::Backend;

/// If it isn't known when there is room, as of slots, it is looked for so often.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A request that is run later than this after its time is over isn't asked about any more: a timer and a busy machine take
/// less, and a client that was promised a time has gone.
const MAX_WAKE_DELAY: Duration = Duration::from_millis(100);

/// The time of a backend, as a clock.
struct BackendTime<'a, B: Backend>(&'a Pipeline<B>);

impl<B: Backend> Clock for BackendTime<'_, B> {
    fn now(&self) -> Timestamp {
        self.0.backend.now()
    }

    fn schedule_wakeup(&self, at: Timestamp, waker: &Waker) -> Option<Wakeup> {
        self.0.clocks.clock.schedule_wakeup(at, waker)
    }
}

/// What came of standing in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueResult {
    Queued,
    /// Its turn would come too late.
    TooLate,
    /// As many wait as may.
    QueueFull,
}

impl<B: Backend> Pipeline<B> {
    /// Asks until the request passes, or doesn't.
    pub(super) async fn decide_with_waiting(
        &self,
        request: &Request<'_>,
        on: DecideOptions<'_>,
    ) -> Result<Attempt, B::Error> {
        let attempt = self.decide_attempt(request, on, None).await?;
        if attempt.result.wait.is_some() && !on.is_immediate {
            return Box::pin(self.wait_and_retry(request, on, attempt)).await;
        }
        Ok(attempt)
    }

    /// Waits and asks, until the request passes, or can't in time.
    async fn wait_and_retry(
        &self,
        request: &Request<'_>,
        on: DecideOptions<'_>,
        mut attempt: Attempt,
    ) -> Result<Attempt, B::Error> {
        let since = self.backend.now();
        let (mut told_at, mut place) = (since, None);
        while let Some((demand, longest)) = attempt.result.wait {
            let deadline = since + longest;
            match self.join_queue(&mut place, demand, &attempt, deadline) {
                QueueResult::Queued => {}
                QueueResult::TooLate => break,
                QueueResult::QueueFull => {
                    attempt.result.said.is_queue_full = true;
                    break;
                }
            }
            let Some(standing) = &place else {
                break;
            };
            let is_its_turn = self.wait_for_turn(standing, deadline).await;
            if !is_its_turn || self.backend.now() > deadline + MAX_WAKE_DELAY {
                break;
            }
            attempt = self.decide_attempt(request, on, Some(standing)).await?;
            if attempt.is_outdated {
                return Ok(attempt);
            }
            told_at = self.backend.now();
        }
        let now = self.backend.now();
        if let (Some(_), Some(tallies)) = (&place, &self.recorder.tallies) {
            tallies.waits.add(now - since);
        }
        match place {
            Some(standing) if attempt.result.said.is_allowed => {
                // What another limit has left says nothing of this one.
                let own = &attempt.result.said.rule_decision;
                let left = if QueueKey::new(own.limit, own.fingerprint) == standing.queue_key() {
                    own.decision.remaining
                } else {
                    u64::MAX
                };
                standing.leave_after_pass(left, now);
            }
            standing => {
                let turn = standing.map_or(Duration::ZERO, |standing| standing.time_to_head(now));
                self.set_retry_after(&mut attempt, turn, now - told_at);
            }
        }
        Ok(attempt)
    }

    /// Sets how long a request that waited in vain would have to wait if it came again: so long it stands before its turn,
    /// and so long ago its limit denied it last.
    fn set_retry_after(&self, attempt: &mut Attempt, turn: Duration, ago: Duration) {
        let now = self.backend.now();
        let line = attempt
            .result
            .wait
            .and_then(|(demand, _)| self.wait_queues.queue_denial(&demand, now));
        let decision = &mut attempt.result.said.rule_decision.decision;
        let rest = decision.wait_or_max().saturating_sub(ago);
        let least = match decision.wait_or_max() {
            Duration::ZERO => Duration::ZERO,
            _ => MIN_RETRY_DELAY,
        };
        *decision = line.unwrap_or(*decision);
        let behind = line.map_or(Duration::ZERO, |line| line.wait_or_max());
        decision.set_wait(rest.max(turn).max(behind).max(least));
    }

    /// Stands in the line for what refused, or stays there, unless that can't end in time or too many wait already.
    fn join_queue<'a>(
        &'a self,
        place: &mut Option<QueuePosition<'a>>,
        demand: QueueDemand,
        attempt: &Attempt,
        deadline: Timestamp,
    ) -> QueueResult {
        let (said, pokes) = (attempt.result.said.rule_decision.decision, attempt.releases);
        let now = self.backend.now();
        if now >= deadline {
            return QueueResult::TooLate;
        }
        let asks_at = match said.wait_or_max() {
            Duration::ZERO => (now + POLL_INTERVAL).min(deadline),
            wait => now + wait,
        };
        let asks_at = demand.until.map_or(asks_at, |until| asks_at.min(until));
        let is_own = |standing: &&mut QueuePosition<'_>| standing.queue_key() == demand.spot;
        match place.as_mut().filter(is_own) {
            Some(standing) => standing.record_denial(demand, said, asks_at),
            // What it stood in line for has room, and something else hasn't.
            None => {
                let most = self.bounds.max_waiters;
                *place = None;
                let behind = self.wait_queues.queue_denial(&demand, now);
                let turn = behind.map_or(asks_at, |behind| now + behind.wait_or_max());
                if turn > deadline {
                    return QueueResult::TooLate;
                }
                let coming = QueueRequest {
                    said,
                    asks_at,
                    deadline,
                    releases: pokes,
                };
                *place = self.wait_queues.join(demand, coming, most);
                return match place {
                    Some(_) => QueueResult::Queued,
                    None => QueueResult::QueueFull,
                };
            }
        }
        if asks_at <= deadline {
            QueueResult::Queued
        } else {
            QueueResult::TooLate
        }
    }

    /// Whether it is the first in line and there may be room, before its time is over.
    async fn wait_for_turn(&self, standing: &QueuePosition<'_>, deadline: Timestamp) -> bool {
        let mut sleep = pin!(sleep_until(BackendTime(self), deadline));
        poll_fn(|context: &mut Context<'_>| {
            loop {
                let (at, is_turn) = match standing.poll_status(context.waker(), self.backend.now())
                {
                    QueueStatus::First(asks_at) if asks_at <= deadline => (asks_at, Some(true)),
                    QueueStatus::Behind(until) if until < deadline => (until.plus_nanos(1), None),
                    QueueStatus::First(_) | QueueStatus::Behind(_) => (deadline, Some(false)),
                    QueueStatus::Lost => return Poll::Ready(false),
                };
                sleep.as_mut().reset(at);
                match (sleep.as_mut().poll(context), is_turn) {
                    (Poll::Pending, _) => return Poll::Pending,
                    (Poll::Ready(()), Some(is_turn)) => return Poll::Ready(is_turn),
                    // The one before it is lost: it looks where it stands now.
                    (Poll::Ready(()), None) => {}
                }
            }
        })
        .await
    }
}
