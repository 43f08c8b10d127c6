//! Charges a request of several descriptors, with the checks of rules beside it, and builds the decision of the
//! trees.

use std::mem;
use std::time::Duration;

use futures_util::future::join_all;
use tollgate::{Decision, Outcome};

use super::counter_pool::{CounterPool, PooledAnswer};
use super::reporting::TreeRequest;
use super::trees::{DenialEffect, DescriptorMatch};
use crate::backend::Backend;
use crate::engine::refund_guard::RefundGuard;
use crate::engine::request_match::TreeMatch;
use crate::limits::{Check, StoreUnavailable};
use crate::policy::Charging;
use crate::verdict::Permits;

/// The result of one descriptor.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DescriptorResult {
    /// The decision of its limits. `None` if it has none.
    pub(super) decision: Option<Decision>,
    pub(super) charged: u64,
    /// Why the store was unavailable for it, if it was.
    pub(super) unavailable: Option<StoreUnavailable>,
}

/// The decision about a request.
pub(in crate::engine) struct TreeDecision<'m, 'a> {
    pub(super) request: TreeRequest<'m, 'a>,
    pub(super) is_allowed: bool,
    /// The result of each descriptor.
    pub(super) results: Vec<DescriptorResult>,
    /// The descriptor that decided.
    pub(super) decider: Option<usize>,
    pub(super) retry_after: Duration,
    pub(super) unavailable: Option<StoreUnavailable>,
}

/// A request while it is charged: its descriptors, and the result of each so far.
pub(in crate::engine) struct TreeCharge<'m, 'a> {
    request: TreeRequest<'m, 'a>,
    pub(in crate::engine) charging: Charging,
    /// Whether the trees allow the request.
    pub(in crate::engine) is_allowed: bool,
    results: Vec<DescriptorResult>,
    /// Permits of counters that were charged one by one.
    separate_permits: Permits,
}

impl<'a> TreeDecision<'_, 'a> {
    /// The checks of all counters that the store has charged.
    pub(in crate::engine) fn charged_checks(&self) -> Vec<Check<'a>> {
        charged_checks(self.request, &self.results)
    }
}

impl<'m, 'a> TreeCharge<'m, 'a> {
    /// A request of this domain. A blocked limit isn't checked.
    pub(in crate::engine) fn new(request: TreeRequest<'m, 'a>, domain: &str) -> Self {
        let blocked = |met: &Option<DescriptorMatch<'_>>| DescriptorResult {
            decision: met.as_ref().and_then(|met| met.blocked),
            ..DescriptorResult::default()
        };
        Self {
            request,
            charging: request.rules.trees.compiled.charging(domain),
            is_allowed: false,
            results: request.met.iter().map(blocked).collect(),
            separate_permits: Permits::default(),
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

    /// Charges the limits of all descriptors and these checks of rules: all or none, unless the domain charges each.
    /// Returns the answer for the rules, or `None` if the trees deny the request. In that case the rules were charged
    /// nothing.
    pub(in crate::engine) async fn charge<B: Backend>(
        &mut self,
        backend: &B,
        rules: &[Check<'_>],
    ) -> Result<Option<PooledAnswer>, B::Error> {
        let answer = match self.charging {
            Charging::AllOrNone => self.charge_all_or_none(backend, rules).await?,
            Charging::Each => self.charge_each(backend, rules).await?,
        };
        self.is_allowed = answer.is_some();
        Ok(answer)
    }

    /// The permits of counters that were charged one by one, if the request is allowed.
    pub(in crate::engine) fn take_permits(&mut self) -> Permits {
        mem::take(&mut self.separate_permits)
    }

    /// Charges the limits in shadow mode for an allowed request, and peeks those of a denied one. If the caller drops
    /// the future, `held` and these checks of rules are refunded with the charges of the trees.
    pub(in crate::engine) async fn charge_or_peek_shadows<B: Backend>(
        &mut self,
        backend: &B,
        held: &mut Permits,
        rules: &[Check<'_>],
    ) {
        if self.is_allowed || self.charging == Charging::Each {
            self.charge_shadows(backend, held, rules).await;
        } else {
            self.peek_groups(&self.shadow_groups(), backend).await;
        }
    }

    /// The checks of all counters that the store has charged.
    pub(in crate::engine) fn charged_checks(&self) -> Vec<Check<'a>> {
        charged_checks(self.request, &self.results)
    }

    /// The numbers of descriptors whose denial has this effect.
    fn numbers_with_force(&self, force: DenialEffect) -> impl Iterator<Item = usize> {
        let met = self.request.met.iter().enumerate();
        met.filter(move |(_, met)| met.as_ref().is_some_and(|met| met.denial_effect() == force))
            .map(|(number, _)| number)
    }

    /// The numbers of descriptors whose denial may deny the request.
    fn enforced_numbers(&self) -> Vec<usize> {
        let mut numbers: Vec<_> = self
            .numbers_with_force(DenialEffect::Denies)
            .chain(self.numbers_with_force(DenialEffect::DeniesTogether))
            .collect();
        numbers.sort_unstable();
        numbers
    }

    /// The numbers without those of blocked descriptors, which need no check.
    fn without_blocked(&self, mut numbers: Vec<usize>) -> Vec<usize> {
        let is_blocked = |met: &DescriptorMatch<'_>| met.blocked.is_some();
        numbers.retain(|number| !self.request.met[*number].as_ref().is_some_and(is_blocked));
        numbers
    }

    /// The descriptors in shadow mode, in groups with the same counter.
    fn shadow_groups(&self) -> Vec<Vec<usize>> {
        self.group_by_counter(
            self.without_blocked(self.numbers_with_force(DenialEffect::Shadow).collect()),
        )
    }

    fn counter_pool(&self, numbers: &[usize]) -> CounterPool<'m, 'a> {
        let met = self.request.met;
        CounterPool::from_matches(numbers.iter().filter_map(|number| met[*number].as_ref()))
    }

    fn is_denied_by(&self, number: &usize) -> bool {
        (self.results[*number].decision).is_some_and(|decision| !decision.is_allowed())
    }

    /// Whether all descriptors in quota mode deny. One in shadow mode never does, so it prevents this.
    fn is_denied_by_quotas(&self) -> bool {
        let in_shadow = |number: usize| {
            self.request.met[number]
                .as_ref()
                .is_some_and(DescriptorMatch::is_quota)
        };
        self.numbers_with_force(DenialEffect::DeniesTogether)
            .next()
            .is_some()
            && self
                .numbers_with_force(DenialEffect::DeniesTogether)
                .all(|number| self.is_denied_by(&number))
            && !self.numbers_with_force(DenialEffect::Shadow).any(in_shadow)
    }

    fn is_denied(&self) -> bool {
        self.numbers_with_force(DenialEffect::Denies)
            .any(|number| self.is_denied_by(&number))
            || self.is_denied_by_quotas()
    }

    /// Charges all, or none, except that a descriptor in quota mode that denies is left out while another in quota
    /// mode allows.
    async fn charge_all_or_none<B: Backend>(
        &mut self,
        backend: &B,
        rules: &[Check<'_>],
    ) -> Result<Option<PooledAnswer>, B::Error> {
        let mut numbers = self.without_blocked(self.enforced_numbers());
        if self.is_denied() {
            self.peek_groups(&[numbers], backend).await;
            return Ok(None);
        }
        // Each round leaves out at least one descriptor, so the loop ends.
        loop {
            let mut asked = self.counter_pool(&numbers).charge(backend, rules).await?;
            self.record_results(&numbers, &mut asked);
            if asked.answer.allowed || asked.is_denied_by_rule {
                return Ok(Some(asked));
            }
            let before = numbers.len();
            numbers.retain(|number| !self.is_denied_by(number));
            // If no descriptor denied, another attempt would have the same result.
            if self.is_denied() || numbers.len() == before {
                return Ok(None);
            }
        }
    }

    /// Charges each counter that has room, and the rules if no counter denies. If a rule denies, the counters stay
    /// charged, as they do if another counter denies in such a domain.
    async fn charge_each<B: Backend>(
        &mut self,
        backend: &B,
        rules: &[Check<'_>],
    ) -> Result<Option<PooledAnswer>, B::Error> {
        let groups = self.group_by_counter(self.without_blocked(self.enforced_numbers()));
        let pools: Vec<_> = groups
            .iter()
            .map(|numbers| self.counter_pool(numbers))
            .collect();
        let answers = join_all(pools.iter().map(|pool| pool.ask_guarded(backend))).await;
        let mut unanswered = Vec::with_capacity(groups.len());
        for (numbers, asked) in groups.iter().zip(answers) {
            let (mut asked, guard) = asked?;
            self.record_results(numbers, &mut asked);
            unanswered.push(guard);
        }
        let asked = if self.is_denied() {
            None
        } else {
            Some(self.counter_pool(&[]).charge(backend, rules).await?)
        };
        let mut permits = Permits::default();
        for guard in unanswered {
            permits.hold(guard.disarm().0);
        }
        // A denied request doesn't run, so it holds no permits.
        if asked.as_ref().is_some_and(|asked| asked.answer.allowed) {
            self.separate_permits = permits;
        }
        Ok(asked)
    }

    /// Peeks the descriptors of a denied request. Those for which the backend is unavailable are left out.
    async fn peek_groups<B: Backend>(&mut self, groups: &[Vec<usize>], backend: &B) {
        let pools: Vec<_> = groups
            .iter()
            .map(|numbers| self.counter_pool(numbers))
            .collect();
        let looks = join_all(pools.iter().map(|pool| pool.peek(backend))).await;
        for (numbers, each) in groups.iter().zip(looks) {
            for (number, decision) in numbers.iter().zip(each.into_iter().flatten()) {
                self.results[*number].decision = Some(decision);
            }
        }
    }

    /// Charges the descriptors in shadow mode, each counter by itself. Those for which the backend is unavailable are
    /// left out.
    async fn charge_shadows<B: Backend>(
        &mut self,
        backend: &B,
        held: &mut Permits,
        rules: &[Check<'_>],
    ) {
        let groups = self.shadow_groups();
        if groups.is_empty() {
            return;
        }
        let pools: Vec<_> = groups
            .iter()
            .map(|numbers| self.counter_pool(numbers))
            .collect();
        let charged = self.charged_checks();
        let mut unanswered = RefundGuard::new(backend, mem::take(held));
        unanswered.record_charge(rules);
        unanswered.record_charge(&charged);
        let answers = join_all(pools.iter().map(|pool| pool.ask_guarded(backend))).await;
        *held = unanswered.disarm();
        for (numbers, asked) in groups.iter().zip(answers) {
            if let Ok((mut asked, guard)) = asked {
                self.record_results(numbers, &mut asked);
                held.hold(guard.disarm().0);
            }
        }
    }

    fn record_results(&mut self, numbers: &[usize], asked: &mut PooledAnswer) {
        let answer = &asked.answer;
        for (number, decision) in numbers.iter().zip(asked.descriptor_decisions.drain(..)) {
            let cost = self.request.met[*number]
                .as_ref()
                .map_or(0, DescriptorMatch::cost);
            self.results[*number] = DescriptorResult {
                decision: Some(decision),
                charged: if answer.allowed { cost } else { 0 },
                unavailable: answer.unavailable,
            };
        }
    }

    /// Groups descriptors by their counter.
    fn group_by_counter(&self, numbers: Vec<usize>) -> Vec<Vec<usize>> {
        let counter = |number: usize| {
            self.request.met[number]
                .as_ref()
                .map(DescriptorMatch::counter)
        };
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

    /// The decision of the trees about the request.
    pub(in crate::engine) fn into_decision(self) -> TreeDecision<'m, 'a> {
        let allowed = self.is_allowed;
        let (decider, retry_after) = if allowed {
            (self.tightest_limit(), Duration::ZERO)
        } else {
            self.longest_denial()
        };
        TreeDecision {
            request: self.request,
            is_allowed: allowed,
            decider,
            retry_after,
            // Only the decider's failure is reported: otherwise a plain denial would look like a failure of the
            // store.
            unavailable: decider.and_then(|decider| self.results[decider].unavailable),
            results: self.results,
        }
    }

    /// The descriptor with the longest wait among those that deny alone, and the shortest wait of those in quota
    /// mode, if all of these deny.
    fn longest_denial(&self) -> (Option<usize>, Duration) {
        let wait = |number: usize| {
            let decision = self.results[number]
                .decision
                .filter(|decision| !decision.is_allowed())?;
            Some(match decision.outcome {
                Outcome::Never => (number, Duration::MAX),
                _ => (number, decision.wait_or_max()),
            })
        };
        let by_wait = |(_, wait): &(usize, Duration)| *wait;
        // Of equals, the first decides. `max_by_key` returns the last, hence `rev`.
        let alone: Vec<_> = self
            .numbers_with_force(DenialEffect::Denies)
            .filter_map(wait)
            .collect();
        let alone = alone.into_iter().rev().max_by_key(by_wait);
        let quota = if self.is_denied_by_quotas() {
            self.numbers_with_force(DenialEffect::DeniesTogether)
                .filter_map(wait)
                .min_by_key(by_wait)
        } else {
            None
        };
        let longest = quota.into_iter().chain(alone).max_by_key(by_wait);
        longest.map_or((None, Duration::ZERO), |(number, wait)| {
            (Some(number), wait)
        })
    }

    /// The descriptor with the fewest such requests remaining, of the enforced ones if there are any.
    fn tightest_limit(&self) -> Option<usize> {
        let left = |number: &usize| {
            let (met, decision) = (
                self.request.met[*number].as_ref()?,
                self.results[*number].decision?,
            );
            Some(decision.remaining / met.cost().max(1))
        };
        let passes =
            |number: &usize| self.results[*number].decision.is_some() && !self.is_denied_by(number);
        let in_force = self.enforced_numbers().into_iter().filter(passes);
        let in_shadow = || {
            self.numbers_with_force(DenialEffect::Shadow)
                .min_by_key(left)
        };
        in_force.min_by_key(left).or_else(in_shadow)
    }
}

/// The checks of all counters that the store has charged for a request, by the results of its descriptors.
fn charged_checks<'a>(request: TreeRequest<'_, 'a>, each: &[DescriptorResult]) -> Vec<Check<'a>> {
    let met = request.met.iter().zip(each);
    let charged = met.filter(|(_, result)| result.charged > 0 && result.unavailable.is_none());
    CounterPool::from_matches(charged.filter_map(|(met, _)| met.as_ref())).into_checks()
}
