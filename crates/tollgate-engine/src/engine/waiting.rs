//! Waiting in a queue, where a rule lets requests wait: which queue a request joins, and its denial if it can't be
//! allowed in time.

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

/// How often a waiter checks a limit whose room can't be predicted, as of permits.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A waiter that runs this long after its deadline isn't checked again. A timer on a busy machine is less late than
/// that, and a client with a deadline has gone by then.
const MAX_WAKE_DELAY: Duration = Duration::from_millis(100);

/// The backend's time, as a clock.
struct BackendTime<'a, B: Backend>(&'a Pipeline<B>);

impl<B: Backend> Clock for BackendTime<'_, B> {
    fn now(&self) -> Timestamp {
        self.0.backend.now()
    }

    fn schedule_wakeup(&self, at: Timestamp, waker: &Waker) -> Option<Wakeup> {
        self.0.clocks.clock.schedule_wakeup(at, waker)
    }
}

/// The result of joining a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueResult {
    Queued,
    /// The request would reach the head after its deadline.
    TooLate,
    /// As many requests wait as the bounds allow.
    QueueFull,
}

impl<B: Backend> Pipeline<B> {
    /// Makes attempts until the request is allowed, or denied for good.
    pub(super) async fn decide_with_waiting(
        &self,
        request: &Request<'_>,
        on: DecideOptions<'_>,
    ) -> Result<Attempt, B::Error> {
        let attempt = self.decide_attempt(request, on, None).await?;
        if attempt.result.wait.is_some() && !on.is_immediate {
            // Boxed, because few requests wait, and every caller's future has room for the largest step.
            return Box::pin(self.wait_and_retry(request, on, attempt)).await;
        }
        Ok(attempt)
    }

    /// Waits and makes attempts, until the request is allowed, or can't be in time.
    async fn wait_and_retry(
        &self,
        request: &Request<'_>,
        on: DecideOptions<'_>,
        mut attempt: Attempt,
    ) -> Result<Attempt, B::Error> {
        let since = self.backend.now();
        let (mut denied_at, mut place) = (since, None);
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
            let Some(position) = &place else {
                break;
            };
            let is_its_turn = self.wait_for_turn(position, deadline).await;
            if !is_its_turn || self.backend.now() > deadline + MAX_WAKE_DELAY {
                break;
            }
            attempt = self.decide_attempt(request, on, Some(position)).await?;
            if attempt.is_outdated {
                return Ok(attempt);
            }
            denied_at = self.backend.now();
        }
        let now = self.backend.now();
        if let (Some(_), Some(tallies)) = (&place, &self.recorder.tallies) {
            tallies.waits.add(now - since);
        }
        match place {
            Some(standing) if attempt.result.said.is_allowed => {
                // What another limit has remaining is no information about this one.
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
                self.set_retry_after(&mut attempt, turn, now - denied_at);
            }
        }
        Ok(attempt)
    }

    /// Sets `retry_after` for a request that waited in vain. It is at least the rest of the last denial's wait, `ago`
    /// after it, and the time until the request would have reached the head.
    fn set_retry_after(&self, attempt: &mut Attempt, turn: Duration, ago: Duration) {
        let now = self.backend.now();
        let queue = attempt
            .result
            .wait
            .and_then(|(demand, _)| self.wait_queues.queue_denial(&demand, now));
        let decision = &mut attempt.result.said.rule_decision.decision;
        let rest = decision.wait_or_max().saturating_sub(ago);
        let least = match decision.wait_or_max() {
            Duration::ZERO => Duration::ZERO,
            _ => MIN_RETRY_DELAY,
        };
        *decision = queue.unwrap_or(*decision);
        let behind = queue.map_or(Duration::ZERO, |queue| queue.wait_or_max());
        decision.set_wait(rest.max(turn).max(behind).max(least));
    }

    /// Joins the queue of the limit that denied the request, or stays in it, unless the wait would be too long or too
    /// many requests wait.
    fn join_queue<'a>(
        &'a self,
        place: &mut Option<QueuePosition<'a>>,
        demand: QueueDemand,
        attempt: &Attempt,
        deadline: Timestamp,
    ) -> QueueResult {
        let (said, releases) = (attempt.result.said.rule_decision.decision, attempt.releases);
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
            // The limit that the request waited for has room now, and another limit denies it.
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
                    releases,
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

    /// Waits until the request is first in its queue and there may be room. Returns false if its deadline comes
    /// first.
    async fn wait_for_turn(&self, standing: &QueuePosition<'_>, deadline: Timestamp) -> bool {
        let mut sleep = pin!(sleep_until(BackendTime(self), deadline));
        poll_fn(|context: &mut Context<'_>| {
            loop {
                let (at, is_first) = match standing.poll_status(context.waker(), self.backend.now())
                {
                    QueueStatus::First(asks_at) if asks_at <= deadline => (asks_at, Some(true)),
                    QueueStatus::Behind(until) if until < deadline => (until.plus_nanos(1), None),
                    QueueStatus::First(_) | QueueStatus::Behind(_) => (deadline, Some(false)),
                    QueueStatus::Lost => return Poll::Ready(false),
                };
                sleep.as_mut().reset(at);
                match (sleep.as_mut().poll(context), is_first) {
                    (Poll::Pending, _) => return Poll::Pending,
                    (Poll::Ready(()), Some(is_first)) => return Poll::Ready(is_first),
                    // The waiter before this one is stalled: look up the position again.
                    (Poll::Ready(()), None) => {}
                }
            }
        })
        .await
    }
}
