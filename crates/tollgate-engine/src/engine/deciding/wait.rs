//! Waiting for a turn, where a rule says so: which queue a request joins, and what it is told if its turn doesn't come in time.

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::clock::{Clock, Wakeup, sleep_until};
use tollgate::{Decision, Outcome, Timestamp};

use super::{Attempt, CombinedRequest};
use crate::backend::Backend;
use crate::engine::gather::Gathered;
use crate::engine::rules::Rules;
use crate::engine::turns::{Coming, Demand, SOON, Spot, Stand, Standing};
use crate::engine::{Conditions, Engine};
use crate::limits::Answer;
use crate::policy::Mode;
use crate::verdict::Said;

/// If it isn't known when there is room, as of slots, it is looked for so often.
const POLL: Duration = Duration::from_millis(10);

/// A request that is run later than this after its time is over isn't asked about any more: a timer and a busy machine take
/// less, and a client that was promised a time has gone.
const LATE: Duration = Duration::from_millis(100);

/// The time of a backend, as a clock.
struct TimeOf<'a, B: Backend>(&'a Engine<B>);

impl<B: Backend> Clock for TimeOf<'_, B> {
    fn now(&self) -> Timestamp {
        self.0.backend.now()
    }

    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Option<Wakeup> {
        self.0.clocks.timer.wake_at(at, waker)
    }
}

/// What came of standing in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stood {
    InLine,
    /// Its turn would come too late.
    TooLate,
    /// As many wait as may.
    QueueFull,
}

/// What the request that asks has waited so far.
struct Waited<'a> {
    since: Timestamp,
    /// Where it stands.
    standing: Option<Standing<'a>>,
}

/// What a request has waited that is denied in the end.
struct WaitedInVain {
    /// How long until its turn had come.
    turn: Duration,
    /// When its limit denied it last.
    told_at: Timestamp,
    now: Timestamp,
}

impl<B: Backend> Engine<B> {
    /// The denial of a new request by a queue that it would pass. A request that had its turn in one queue passes the
    /// other queues: else two would wait for each other.
    #[inline]
    pub(super) fn queue_ahead(
        &self,
        rules: &Rules,
        gathered: &Gathered<'_>,
        standing: Option<&Standing<'_>>,
    ) -> Option<Answer> {
        let is_new = rules.waits && standing.is_none();
        if is_new && self.turns.is_any() {
            self.line_before(rules, gathered)
        } else {
            None
        }
    }

    /// The refusal by a line of others that the request would pass.
    fn line_before(&self, rules: &Rules, gathered: &Gathered<'_>) -> Option<Answer> {
        let now = self.backend.now();
        let group = &gathered.enforced;
        let checks = group.checks.as_slice().iter().zip(group.askers.as_slice());
        let lines = checks.enumerate().filter_map(|(number, (check, asker))| {
            let demand = rules.applied[*asker as usize].demand(check, gathered.now);
            let behind = self.turns.behind_any(&demand, now)?;
            Some((number, behind))
        });
        let gates = gathered
            .gates_in(Mode::Enforce)
            .filter_map(|(number, gate)| {
                let behind = self.turns.behind_any(&gate.demand(), now)?;
                Some((number, behind))
            });
        let lines = lines.chain(gates);
        let longest = lines.max_by_key(|(_, behind)| behind.wait());
        longest.map(|(number, behind)| Answer::new(Some(number), behind))
    }

    /// The limit that refused, if its rule lets requests wait for it.
    pub(super) fn over(
        rules: &Rules,
        gathered: &Gathered<'_>,
        answer: &Answer,
    ) -> Option<(Demand, Duration)> {
        if answer.allowed {
            return None;
        }
        let group = &gathered.enforced;
        let asked = || group.checks.as_slice().iter().zip(group.askers.as_slice());
        let can_wait = !answer.is_unavailable() && answer.decision.outcome == Outcome::Denied;
        let decider = answer.decider.filter(|_| can_wait)?;
        if let Some(gate) = gathered.gate(decider) {
            let rule = &rules.applied[gate.met.number as usize];
            return Some((gate.demand(), rule.waits?));
        }
        let (check, asker) = asked().nth(decider)?;
        let rule = &rules.applied[*asker as usize];
        Some((rule.demand(check, gathered.now), rule.waits?))
    }

    /// Waits and asks, until the request passes, or can't in time.
    pub(super) async fn wait_and_ask(
        &self,
        request: CombinedRequest<'_>,
        on: Conditions<'_>,
        mut attempt: Attempt,
    ) -> Result<Attempt, B::Error> {
        let mut told_at = self.backend.now();
        let mut waited = Waited {
            since: told_at,
            standing: None,
        };
        while let Some((demand, longest)) = attempt.tried.over {
            let deadline = waited.since + longest;
            let told = (attempt.tried.said.decision, attempt.pokes);
            match self.stand(&mut waited, demand, told, deadline) {
                Stood::InLine => {}
                Stood::TooLate => break,
                Stood::QueueFull => {
                    attempt.tried.said.is_queue_full = true;
                    break;
                }
            }
            let Some(standing) = &waited.standing else {
                break;
            };
            let is_its_turn = self.is_its_turn(standing, deadline).await;
            if !is_its_turn || self.backend.now() > deadline + LATE {
                break;
            }
            attempt = self.attempt(request, on, Some(standing)).await?;
            if attempt.is_outdated {
                return Ok(attempt);
            }
            told_at = self.backend.now();
        }
        let (standing, now) = (waited.standing, self.backend.now());
        if let (Some(_), Some(tallies)) = (&standing, &self.recorder.tallies) {
            tallies.waits.add(now - waited.since);
        }
        match standing {
            Some(standing) if attempt.tried.said.allowed => {
                // What another limit has left says nothing of this one.
                let said = &attempt.tried.said;
                let left = if Spot::new(said.limit, said.fingerprint) == standing.spot() {
                    said.decision.remaining
                } else {
                    u64::MAX
                };
                standing.passed(left, now);
            }
            standing => {
                let turn = standing.map_or(Duration::ZERO, |standing| standing.turn_in(now));
                self.set_wait_of_denied(&mut attempt, WaitedInVain { turn, told_at, now });
            }
        }
        Ok(attempt)
    }

    /// Sets how long a request that waited in vain had to wait if it came again.
    fn set_wait_of_denied(&self, attempt: &mut Attempt, waited: WaitedInVain) {
        let WaitedInVain { turn, told_at, now } = waited;
        let line = attempt
            .tried
            .over
            .and_then(|(demand, _)| self.turns.behind(&demand, now));
        let decision = &mut attempt.tried.said.decision;
        let rest = decision.wait().saturating_sub(now - told_at);
        let least = match decision.wait() {
            Duration::ZERO => Duration::ZERO,
            _ => SOON,
        };
        *decision = line.unwrap_or(*decision);
        let behind = line.map_or(Duration::ZERO, |line| line.wait());
        decision.set_wait(rest.max(turn).max(behind).max(least));
    }

    /// Stands in the line for what refused, or stays there, unless that can't end in time or too many wait already.
    fn stand<'a>(
        &'a self,
        waited: &mut Waited<'a>,
        demand: Demand,
        (said, pokes): (Decision, u64),
        deadline: Timestamp,
    ) -> Stood {
        let now = self.backend.now();
        if now >= deadline {
            return Stood::TooLate;
        }
        let asks_at = match said.wait() {
            Duration::ZERO => (now + POLL).min(deadline),
            wait => now + wait,
        };
        let asks_at = demand.until.map_or(asks_at, |until| asks_at.min(until));
        let is_own = |standing: &&mut Standing<'_>| standing.spot() == demand.spot;
        match waited.standing.as_mut().filter(is_own) {
            Some(standing) => standing.asks_again(demand, said, asks_at),
            // What it stood in line for has room, and something else hasn't.
            None => {
                let most = self.bounds.waiting;
                waited.standing = None;
                let behind = self.turns.behind(&demand, now);
                let turn = behind.map_or(asks_at, |behind| now + behind.wait());
                if turn > deadline {
                    return Stood::TooLate;
                }
                let coming = Coming {
                    said,
                    asks_at,
                    deadline,
                    pokes,
                };
                waited.standing = self.turns.join(demand, coming, most);
                return match waited.standing {
                    Some(_) => Stood::InLine,
                    None => Stood::QueueFull,
                };
            }
        }
        if asks_at <= deadline {
            Stood::InLine
        } else {
            Stood::TooLate
        }
    }

    /// Whether it is the first in line and there may be room, before its time is over.
    async fn is_its_turn(&self, standing: &Standing<'_>, deadline: Timestamp) -> bool {
        let mut sleep = pin!(sleep_until(TimeOf(self), deadline));
        poll_fn(|context: &mut Context<'_>| {
            loop {
                let (at, is_turn) = match standing.look(context.waker(), self.backend.now()) {
                    Stand::First(asks_at) if asks_at <= deadline => (asks_at, Some(true)),
                    Stand::Behind(until) if until < deadline => (until.plus_nanos(1), None),
                    Stand::First(_) | Stand::Behind(_) => (deadline, Some(false)),
                    Stand::Lost => return Poll::Ready(false),
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

    /// Whether a request that can't wait would pass others who do: it is refused then, and told how long it had
    /// to.
    #[cold]
    pub(in crate::engine) fn stands_behind(
        &self,
        said: &mut Said,
        rules: &Rules,
        gathered: &Gathered<'_>,
    ) -> bool {
        let answer = self.line_before(rules, gathered);
        let is_behind = answer.is_some();
        if let Some(answer) = answer {
            said.hear(gathered, answer);
        }
        is_behind
    }
}
