//! Charging a request of several descriptors, with the checks of rules beside it, and the decision of the trees.

use std::mem;
use std::time::Duration;

use futures_util::future::join_all;
use tollgate::{Decision, Outcome};

use super::counter_pool::{CounterPool, PooledAnswer};
use super::reporting::TreeRequest;
use super::trees::{DenialEffect, Met};
use crate::backend::Backend;
use crate::engine::refund_guard::RefundGuard;
use crate::engine::request_match::TreeMatch;
use crate::limits::{Check, Unavailable};
use crate::policy::Charging;
use crate::verdict::Permits;

/// What came of one descriptor.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DescriptorResult {
    /// What its limit says; none if it meets none.
    pub(super) decision: Option<Decision>,
    pub(super) charged: u64,
    /// Why the store couldn't be asked about it, if it couldn't.
    pub(super) unavailable: Option<Unavailable>,
}

/// What was decided about a request.
pub(in crate::engine) struct TreeDecision<'m, 'a> {
    pub(super) request: TreeRequest<'m, 'a>,
    pub(super) allowed: bool,
    /// What the limits of each descriptor say; none of one that meets none.
    pub(super) each: Vec<DescriptorResult>,
    /// The descriptor that decided.
    pub(super) decider: Option<usize>,
    pub(super) retry_after: Duration,
    pub(super) unavailable: Option<Unavailable>,
}

/// A request while it is charged: its descriptors, and the decision on each so far.
pub(in crate::engine) struct TreeCharge<'m, 'a> {
    request: TreeRequest<'m, 'a>,
    pub(in crate::engine) charging: Charging,
    /// Whether the trees let the request pass.
    pub(in crate::engine) allowed: bool,
    each: Vec<DescriptorResult>,
    /// Permits of counters that were charged one by one.
    permits: Permits,
}

impl<'a> TreeDecision<'_, 'a> {
    /// The checks of all counters that the store has charged.
    pub(in crate::engine) fn charged_checks(&self) -> Vec<Check<'a>> {
        charged_checks(self.request, &self.each)
    }
}

impl<'m, 'a> TreeCharge<'m, 'a> {
    /// A request of this domain. A blocked limit isn't asked.
    pub(in crate::engine) fn new(request: TreeRequest<'m, 'a>, domain: &str) -> Self {
        let blocked = |met: &Option<Met<'_>>| DescriptorResult {
            decision: met.as_ref().and_then(|met| met.blocked),
            ..DescriptorResult::default()
        };
        Self {
            request,
            charging: request.rules.trees.compiled.charging(domain),
            allowed: false,
            each: request.met.iter().map(blocked).collect(),
            permits: Permits::default(),
        }
    }

    /// Whether the trees limit the request.
    pub(in crate::engine) fn tree_match(&self) -> TreeMatch {
        let TreeRequest { rules, found, met } = self.request;
        if met.iter().any(Option::is_some) {
            TreeMatch::Some
        } else if rules.trees.has_limits(found) {
            TreeMatch::Bypassed
        } else {
            TreeMatch::None
        }
    }

    /// Charges the limits of all descriptors and these checks of rules: all or none, unless the domain charges each. None if
    /// the trees deny the request, and nothing of the rules was charged then. The answer is that to the rules.
    pub(in crate::engine) async fn charge<B: Backend>(
        &mut self,
        backend: &B,
        rules: &[Check<'_>],
    ) -> Result<Option<PooledAnswer>, B::Error> {
        let answer = match self.charging {
            Charging::AllOrNone => self.all_or_none(backend, rules).await?,
            Charging::Each => self.charge_each(backend, rules).await?,
        };
        self.allowed = answer.is_some();
        Ok(answer)
    }

    /// Permits of counters that were charged one by one: those of a request that passes.
    pub(in crate::engine) fn take_permits(&mut self) -> Permits {
        mem::take(&mut self.permits)
    }

    /// Charges the limits in shadow of a request that passes, and looks at those of one that is denied. If nobody waits
    /// for the answer any more, `held` and these checks of rules are given back with the charges of the trees.
    pub(in crate::engine) async fn charge_or_peek_shadows<B: Backend>(
        &mut self,
        backend: &B,
        held: &mut Permits,
        rules: &[Check<'_>],
    ) {
        if self.allowed || self.charging == Charging::Each {
            self.charge_shadows(backend, held, rules).await;
        } else {
            self.look_at(&self.in_shadow(), backend).await;
        }
    }

    /// The checks of all counters that the store has charged.
    pub(in crate::engine) fn charged_checks(&self) -> Vec<Check<'a>> {
        charged_checks(self.request, &self.each)
    }

    /// The numbers of descriptors that meet a limit of this force.
    fn of(&self, force: DenialEffect) -> impl Iterator<Item = usize> {
        let met = self.request.met.iter().enumerate();
        met.filter(move |(_, met)| met.as_ref().is_some_and(|met| met.force() == force))
            .map(|(number, _)| number)
    }

    /// The numbers of all whose refusal may count.
    fn in_force(&self) -> Vec<usize> {
        let mut numbers: Vec<_> = self
            .of(DenialEffect::Alone)
            .chain(self.of(DenialEffect::Quota))
            .collect();
        numbers.sort_unstable();
        numbers
    }

    /// Those of them that are to be asked.
    fn asked(&self, mut numbers: Vec<usize>) -> Vec<usize> {
        let is_blocked = |met: &Met<'_>| met.blocked.is_some();
        numbers.retain(|number| !self.request.met[*number].as_ref().is_some_and(is_blocked));
        numbers
    }

    /// Those in shadow, in groups of the same counter.
    fn in_shadow(&self) -> Vec<Vec<usize>> {
        self.groups(self.asked(self.of(DenialEffect::Shadow).collect()))
    }

    fn pool(&self, numbers: &[usize]) -> CounterPool<'m, 'a> {
        let met = self.request.met;
        CounterPool::of(numbers.iter().filter_map(|number| met[*number].as_ref()))
    }

    fn refuses(&self, number: &usize) -> bool {
        (self.each[*number].decision).is_some_and(|decision| !decision.is_allowed())
    }

    /// Whether those that refuse only together all do. One in shadow never does.
    fn is_denied_by_quotas(&self) -> bool {
        let in_shadow =
            |number: usize| self.request.met[number].as_ref().is_some_and(Met::is_quota);
        self.of(DenialEffect::Quota).next().is_some()
            && self
                .of(DenialEffect::Quota)
                .all(|number| self.refuses(&number))
            && !self.of(DenialEffect::Shadow).any(in_shadow)
    }

    fn is_refused(&self) -> bool {
        self.of(DenialEffect::Alone)
            .any(|number| self.refuses(&number))
            || self.is_denied_by_quotas()
    }

    /// Charges all, or none: but for those in quota mode that refuse while others of their kind don't.
    async fn all_or_none<B: Backend>(
        &mut self,
        backend: &B,
        rules: &[Check<'_>],
    ) -> Result<Option<PooledAnswer>, B::Error> {
        let mut numbers = self.asked(self.in_force());
        if self.is_refused() {
            self.look_at(&[numbers], backend).await;
            return Ok(None);
        }
        loop {
            let mut asked = self.pool(&numbers).ask(backend, rules).await?;
            self.note(&numbers, &mut asked);
            if asked.answer.allowed || asked.is_denied_by_rule {
                return Ok(Some(asked));
            }
            let before = numbers.len();
            numbers.retain(|number| !self.refuses(number));
            // If none of them refused it, asking again would change nothing.
            if self.is_refused() || numbers.len() == before {
                return Ok(None);
            }
        }
    }

    /// Charges each counter that has room, and the rules if no counter denies. A denial of the rules leaves the counters
    /// charged, as a denial of another counter does in such a domain.
    async fn charge_each<B: Backend>(
        &mut self,
        backend: &B,
        rules: &[Check<'_>],
    ) -> Result<Option<PooledAnswer>, B::Error> {
        let groups = self.groups(self.asked(self.in_force()));
        let pools: Vec<_> = groups.iter().map(|numbers| self.pool(numbers)).collect();
        let answers = join_all(pools.iter().map(|pool| pool.ask_guarded(backend))).await;
        let mut unanswered = Vec::with_capacity(groups.len());
        for (numbers, asked) in groups.iter().zip(answers) {
            let (mut asked, guard) = asked?;
            self.note(numbers, &mut asked);
            unanswered.push(guard);
        }
        let asked = if self.is_refused() {
            None
        } else {
            Some(self.pool(&[]).ask(backend, rules).await?)
        };
        let mut permits = Permits::default();
        for guard in unanswered {
            permits.hold(guard.answered().0);
        }
        // One that is denied doesn't run, so it holds no permits.
        if asked.as_ref().is_some_and(|asked| asked.answer.allowed) {
            self.permits = permits;
        }
        Ok(asked)
    }

    /// What each would say to a request that is refused. One that can't be asked about is left out.
    async fn look_at<B: Backend>(&mut self, groups: &[Vec<usize>], backend: &B) {
        let pools: Vec<_> = groups.iter().map(|numbers| self.pool(numbers)).collect();
        let looks = join_all(pools.iter().map(|pool| pool.look(backend))).await;
        for (numbers, each) in groups.iter().zip(looks) {
            for (number, decision) in numbers.iter().zip(each.into_iter().flatten()) {
                self.each[*number].decision = Some(decision);
            }
        }
    }

    /// Charges those in shadow, each counter by itself. One that can't be asked about is left out.
    async fn charge_shadows<B: Backend>(
        &mut self,
        backend: &B,
        held: &mut Permits,
        rules: &[Check<'_>],
    ) {
        let groups = self.in_shadow();
        if groups.is_empty() {
            return;
        }
        let pools: Vec<_> = groups.iter().map(|numbers| self.pool(numbers)).collect();
        let charged = self.charged_checks();
        let mut unanswered = RefundGuard::new(backend, mem::take(held));
        unanswered.is_charged(rules);
        unanswered.is_charged(&charged);
        let answers = join_all(pools.iter().map(|pool| pool.ask_guarded(backend))).await;
        *held = unanswered.answered();
        for (numbers, asked) in groups.iter().zip(answers) {
            if let Ok((mut asked, guard)) = asked {
                self.note(numbers, &mut asked);
                held.hold(guard.answered().0);
            }
        }
    }

    fn note(&mut self, numbers: &[usize], asked: &mut PooledAnswer) {
        let answer = &asked.answer;
        for (number, decision) in numbers.iter().zip(asked.each.drain(..)) {
            let cost = self.request.met[*number].as_ref().map_or(0, Met::cost);
            self.each[*number] = DescriptorResult {
                decision: Some(decision),
                charged: if answer.allowed { cost } else { 0 },
                unavailable: answer.unavailable,
            };
        }
    }

    /// Those that count in one counter, together.
    fn groups(&self, numbers: Vec<usize>) -> Vec<Vec<usize>> {
        let counter = |number: usize| self.request.met[number].as_ref().map(Met::counter);
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for number in numbers {
            let is_own = |group: &&mut Vec<usize>| counter(group[0]) == counter(number);
            match groups.iter_mut().find(is_own) {
                Some(group) => group.push(number),
                None => groups.push(vec![number]),
            }
        }
        groups
    }

    /// The decision of the trees on the request.
    pub(in crate::engine) fn decided(self) -> TreeDecision<'m, 'a> {
        let allowed = self.allowed;
        let (decider, retry_after) = if allowed {
            (self.tightest(), Duration::ZERO)
        } else {
            self.gravest()
        };
        TreeDecision {
            request: self.request,
            allowed,
            decider,
            retry_after,
            // Of no other: a failure must not look like a denial.
            unavailable: decider.and_then(|decider| self.each[decider].unavailable),
            each: self.each,
        }
    }

    /// What is to be waited for: the longest of those that refuse alone, and the first of those that refuse
    /// only together, if they do.
    fn gravest(&self) -> (Option<usize>, Duration) {
        let wait = |number: usize| {
            let decision = self.each[number]
                .decision
                .filter(|decision| !decision.is_allowed())?;
            Some(match decision.outcome {
                Outcome::Never => (number, Duration::MAX),
                _ => (number, decision.wait()),
            })
        };
        let by_wait = |(_, wait): &(usize, Duration)| *wait;
        // Of equals the first: `max_by_key` takes the last.
        let alone: Vec<_> = self.of(DenialEffect::Alone).filter_map(wait).collect();
        let alone = alone.into_iter().rev().max_by_key(by_wait);
        let quota = if self.is_denied_by_quotas() {
            self.of(DenialEffect::Quota)
                .filter_map(wait)
                .min_by_key(by_wait)
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
            let (met, decision) = (
                self.request.met[*number].as_ref()?,
                self.each[*number].decision?,
            );
            Some(decision.remaining / met.cost().max(1))
        };
        let passes =
            |number: &usize| self.each[*number].decision.is_some() && !self.refuses(number);
        let in_force = self.in_force().into_iter().filter(passes);
        let in_shadow = || self.of(DenialEffect::Shadow).min_by_key(left);
        in_force.min_by_key(left).or_else(in_shadow)
    }
}

/// The checks of all counters that the store has charged to a request, by what came of its descriptors.
fn charged_checks<'a>(request: TreeRequest<'_, 'a>, each: &[DescriptorResult]) -> Vec<Check<'a>> {
    let met = request.met.iter().zip(each);
    let charged = met.filter(|(_, result)| result.charged > 0 && result.unavailable.is_none());
    CounterPool::of(charged.filter_map(|(met, _)| met.as_ref())).into_checks()
}
