//! What is charged for a request of several descriptors, and the one answer that follows from it.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use foldhash::fast::RandomState;
use tollgate::{Decision, Outcome};

use super::pool::Pool;
use super::trees::{CounterId, Force, Met};
use crate::backend::Backend;
use crate::engine::deciding::Unanswered;
use crate::limits::Answer;
use crate::policy::{Charging, OnStoreFailure};
use crate::verdict::Permits;

/// What was decided about a request.
pub(super) struct Decided {
    pub(super) allowed: bool,
    /// What the limits of each descriptor say; none of one that meets none.
    pub(super) each: Vec<Option<Decision>>,
    /// What decided about each instead of a store.
    pub(super) fallbacks: Vec<Option<OnStoreFailure>>,
    /// What the limits of each were charged.
    pub(super) charged: Vec<u64>,
    /// The descriptor that decided.
    pub(super) decider: Option<usize>,
    pub(super) retry_after: Duration,
    pub(super) fallback: Option<OnStoreFailure>,
    pub(super) permits: Permits,
}

/// A request while it is decided: its descriptors, and what was said of each so far.
struct Deciding<'m, 'a> {
    met: &'m [Option<Met<'a>>],
    each: Vec<Option<Decision>>,
    charged: Vec<u64>,
    /// What decided about each instead of a store.
    fallbacks: Vec<Option<OnStoreFailure>>,
    permits: Permits,
}

/// Charges a request to the limits that its descriptors meet.
pub(super) async fn decide<B: Backend>(
    backend: &B,
    met: &[Option<Met<'_>>],
    charging: Charging,
) -> Result<Decided, B::Error> {
    let blocked = |met: &Option<Met<'_>>| met.as_ref().and_then(|met| met.blocked);
    let mut deciding = Deciding {
        met,
        // What is blocked isn't asked.
        each: met.iter().map(blocked).collect(),
        charged: vec![0; met.len()],
        fallbacks: vec![None; met.len()],
        permits: Permits::default(),
    };
    let allowed = match charging {
        Charging::AllOrNone => deciding.all_or_none(backend).await?,
        Charging::Each => deciding.each_by_itself(backend).await?,
    };
    if allowed || charging == Charging::Each {
        deciding.charge_shadows(backend).await
    } else {
        deciding.look_at_shadows(backend).await
    }
    Ok(deciding.decided(allowed))
}

impl<'m, 'a> Deciding<'m, 'a> {
    /// The numbers of descriptors that meet a limit of this force.
    fn of(&self, force: Force) -> impl Iterator<Item = usize> {
        let met = self.met.iter().enumerate();
        met.filter(move |(_, met)| met.as_ref().is_some_and(|met| met.force() == force))
            .map(|(number, _)| number)
    }

    /// The numbers of all whose refusal may count.
    fn in_force(&self) -> Vec<usize> {
        let mut numbers: Vec<_> = self.of(Force::Alone).chain(self.of(Force::Quota)).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Those of them that are to be asked.
    fn asked(&self, mut numbers: Vec<usize>) -> Vec<usize> {
        let is_blocked = |met: &Met<'_>| met.blocked.is_some();
        numbers.retain(|number| !self.met[*number].as_ref().is_some_and(is_blocked));
        numbers
    }

    /// Those in shadow, in groups of the same counter.
    fn in_shadow(&self) -> Vec<Vec<usize>> {
        self.groups(self.asked(self.of(Force::Shadow).collect()))
    }

    fn pool(&self, numbers: &[usize]) -> Pool<'m, 'a> {
        let met = self.met;
        Pool::of(numbers.iter().filter_map(|number| met[*number].as_ref()))
    }

    fn refuses(&self, number: &usize) -> bool {
        self.each[*number].is_some_and(|decision| !decision.is_allowed())
    }

    /// Whether those that refuse only together all do. One in shadow never does.
    fn quotas_refuse(&self) -> bool {
        let in_shadow = |number: usize| self.met[number].as_ref().is_some_and(Met::is_quota);
        self.of(Force::Quota).next().is_some()
            && self.of(Force::Quota).all(|number| self.refuses(&number))
            && !self.of(Force::Shadow).any(in_shadow)
    }

    fn is_refused(&self) -> bool {
        self.of(Force::Alone).any(|number| self.refuses(&number)) || self.quotas_refuse()
    }

    /// Charges all, or none: but for those in quota mode that refuse while others of their kind don't.
    async fn all_or_none<B: Backend>(&mut self, backend: &B) -> Result<bool, B::Error> {
        let mut numbers = self.asked(self.in_force());
        if self.is_refused() {
            self.look_at(&[numbers], backend).await;
            return Ok(false);
        }
        loop {
            let answer = self.pool(&numbers).ask(backend).await?;
            let answer = self.note(&numbers, answer);
            if answer.allowed {
                self.permits.own = answer.pass;
                return Ok(true);
            }
            let asked = numbers.len();
            numbers.retain(|number| !self.refuses(number));
            // If none of them refused it, asking again would change nothing.
            if self.is_refused() || numbers.len() == asked {
                return Ok(false);
            }
        }
    }

    /// Charges each counter that has room.
    async fn each_by_itself<B: Backend>(&mut self, backend: &B) -> Result<bool, B::Error> {
        let groups = self.groups(self.asked(self.in_force()));
        let pools: Vec<_> = groups.iter().map(|numbers| self.pool(numbers)).collect();
        let answers = all(pools.iter().map(|pool| pool.ask(backend))).await;
        for (numbers, answer) in groups.iter().zip(answers) {
            let answer = self.note(numbers, answer?);
            self.permits.shadows.push(answer.pass);
        }
        let allowed = !self.is_refused();
        if !allowed {
            // It doesn't run, so it holds no slots.
            self.permits = Permits::default();
        }
        Ok(allowed)
    }

    /// What those in shadow would have said to a request that is refused.
    async fn look_at_shadows<B: Backend>(&mut self, backend: &B) {
        self.look_at(&self.in_shadow(), backend).await;
    }

    /// What each would say to a request that is refused. One that can't be asked about is left out.
    async fn look_at<B: Backend>(&mut self, groups: &[Vec<usize>], backend: &B) {
        let pools: Vec<_> = groups.iter().map(|numbers| self.pool(numbers)).collect();
        let looks = all(pools.iter().map(|pool| pool.look(backend))).await;
        for (numbers, each) in groups.iter().zip(looks) {
            for (number, decision) in numbers.iter().zip(each.into_iter().flatten()) {
                self.each[*number] = Some(decision);
            }
        }
    }

    /// Charges those in shadow, each counter by itself. One that can't be asked about is left out.
    async fn charge_shadows<B: Backend>(&mut self, backend: &B) {
        let groups = self.in_shadow();
        if groups.is_empty() {
            return;
        }
        let pools: Vec<_> = groups.iter().map(|numbers| self.pool(numbers)).collect();
        let is_charged =
            |number: &usize| self.charged[*number] > 0 && self.fallbacks[*number].is_none();
        let charged: Vec<_> = self.in_force().into_iter().filter(is_charged).collect();
        let charged = self.pool(&charged);
        let mut unanswered = Unanswered::new(backend, &mut self.permits);
        unanswered.is_charged(charged.checks());
        let answers = all(pools.iter().map(|pool| pool.ask(backend))).await;
        unanswered.answered();
        for (numbers, answer) in groups.iter().zip(answers) {
            if let Ok(answer) = answer {
                let answer = self.note(numbers, answer);
                self.permits.shadows.push(answer.pass);
            }
        }
    }

    fn note(&mut self, numbers: &[usize], (answer, each): (Answer, Vec<Decision>)) -> Answer {
        for (number, decision) in numbers.iter().zip(each) {
            self.each[*number] = Some(decision);
            self.fallbacks[*number] = answer.unavailable.map(|store| store.fallback);
            let cost = self.met[*number].as_ref().map_or(0, Met::cost);
            self.charged[*number] = if answer.allowed { cost } else { 0 };
        }
        answer
    }

    /// Descriptors that meet the same counter, together.
    fn groups(&self, numbers: Vec<usize>) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        let mut places: HashMap<CounterId, usize, RandomState> = HashMap::default();
        for number in numbers {
            let Some(met) = &self.met[number] else {
                continue;
            };
            let place = *places.entry(met.counter()).or_insert(groups.len());
            match groups.get_mut(place) {
                Some(group) => group.push(number),
                None => groups.push(vec![number]),
            }
        }
        groups
    }

    fn decided(self, allowed: bool) -> Decided {
        let (decider, retry_after) = if allowed {
            (self.tightest(), Duration::ZERO)
        } else {
            self.gravest()
        };
        Decided {
            allowed,
            each: self.each,
            charged: self.charged,
            decider,
            retry_after,
            // Of no other: a failure must not look like a denial.
            fallback: decider.and_then(|decider| self.fallbacks[decider]),
            fallbacks: self.fallbacks,
            permits: self.permits,
        }
    }

    /// What is to be waited for: the longest of those that refuse alone, and the first of those that refuse
    /// only together, if they do.
    fn gravest(&self) -> (Option<usize>, Duration) {
        let wait = |number: usize| {
            let decision = self.each[number].filter(|decision| !decision.is_allowed())?;
            Some(match decision.outcome {
                Outcome::Never => (number, Duration::MAX),
                _ => (number, decision.wait()),
            })
        };
        let by_wait = |(_, wait): &(usize, Duration)| *wait;
        // Of equals the first: `max_by_key` takes the last.
        let alone: Vec<_> = self.of(Force::Alone).filter_map(wait).collect();
        let alone = alone.into_iter().rev().max_by_key(by_wait);
        let quota = if self.quotas_refuse() {
            self.of(Force::Quota).filter_map(wait).min_by_key(by_wait)
        } else {
            None
        };
        let gravest = quota.into_iter().chain(alone).max_by_key(by_wait);
        gravest.map_or((None, Duration::ZERO), |(number, wait)| {
            (Some(number), wait)
        })
    }

    /// The one with the fewest such requests left, of those in force if there are any.
    fn tightest(&self) -> Option<usize> {
        let left = |number: &usize| {
            let (met, decision) = (self.met[*number].as_ref()?, self.each[*number]?);
            Some(decision.remaining / met.cost().max(1))
        };
        let passes = |number: &usize| self.each[*number].is_some() && !self.refuses(number);
        let in_force = self.in_force().into_iter().filter(passes);
        let in_shadow = || self.of(Force::Shadow).min_by_key(left);
        in_force.min_by_key(left).or_else(in_shadow)
    }
}

/// What all of these come to, which are under way at once: a store may be asked about all of them in one call.
async fn all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    enum Asked<F: Future> {
        UnderWay(Pin<Box<F>>),
        Done(F::Output),
    }
    let mut asked: Vec<_> = futures
        .map(|future| Asked::UnderWay(Box::pin(future)))
        .collect();
    poll_fn(|context| {
        let mut state = Poll::Ready(());
        for one in &mut asked {
            if let Asked::UnderWay(future) = one {
                match future.as_mut().poll(context) {
                    Poll::Ready(output) => *one = Asked::Done(output),
                    Poll::Pending => state = Poll::Pending,
                }
            }
        }
        state
    })
    .await;
    let done = asked.into_iter().filter_map(|one| match one {
        Asked::Done(output) => Some(output),
        Asked::UnderWay(_) => None,
    });
    done.collect()
}
