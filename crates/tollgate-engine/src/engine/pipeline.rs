//! The path of a request: match the rules, collect the checks, query the backend, record the outcome.
//! [`Pipeline::decide_in_memory`] runs it with a backend in memory, [`Pipeline::decide_attempt`] with any.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use tollgate::{Clock, Decision, Timestamp};

use super::conditions::DecideOptions;
use super::descriptors::{DescriptorFindings, DescriptorRequest, ReportOptions, TreeCharge};
use super::overrides::{ActiveOverrides, KeyContext, OverrideBook, OverrideContext};
use super::query::BackendQuery;
use super::recorder::Recorder;
use super::request_match::{MatchInput, RequestMatch, TreeMatch};
use super::rules::{CompiledPolicy, PolicyError, PreviousState};
use super::wait_queue::{QueueDemand, QueueKey, QueuePosition, WaitQueues};
use super::warm_up::is_gate;
use crate::backend::{Backend, Clocks, Memory, Refund, RefundResult};
use crate::bounds::Bounds;
use crate::envoy::StatusCode;
use crate::facts::Facts;
use crate::limits::{Answer, Check, DenyCache, KeyHashers, Limit, LimitKind};
use crate::policy::{Mode, Policy};
use crate::verdict::{
    AllowedRequest, DecisionBasis, DecisionDetails, DeniedRequest, Permits, RequestDecision,
};

/// The state that all requests of an engine share.
pub(super) struct Pipeline<B> {
    pub(super) rules: ArcSwap<CompiledPolicy>,
    pub(super) backend: B,
    pub(super) clocks: Clocks,
    pub(super) hashers: KeyHashers,
    pub(super) bounds: Bounds,
    pub(super) wait_queues: Arc<WaitQueues>,
    pub(super) deny_cache: Option<DenyCache>,
    pub(super) recorder: Recorder,
    /// Overrides of operators. The lock is held while they are applied to a policy, until that policy is in force, so
    /// that no change is lost in between.
    pub(super) override_book: Mutex<OverrideBook>,
}

/// A request: its facts, and the descriptors that trees decide together with the rules.
#[derive(Clone, Copy)]
pub(super) struct Request<'r> {
    pub(super) facts: &'r Facts<'r>,
    /// The descriptors that trees decide together with the rules.
    pub(super) descriptors: Option<DescriptorRequest<'r>>,
    /// The result of the trees, if they have decided the request before.
    pub(super) trees: TreeMatch,
    /// When the decision began, if its duration is reported.
    pub(super) started_at: Option<Timestamp>,
}

/// A boxed future, to keep the futures around it small.
type BoxedFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The input of one attempt to decide a request: the policy and overrides in force, and the request's queue position.
pub(super) struct AttemptInput<'t> {
    rules: &'t CompiledPolicy,
    orders: Option<&'t ActiveOverrides>,
    request: &'t Request<'t>,
    conditions: DecideOptions<'t>,
    pub(super) position: Option<&'t QueuePosition<'t>>,
}

/// The result of one attempt.
#[derive(Default)]
pub(super) struct AttemptResult {
    pub(super) said: DecisionBasis,
    /// The limit that denied the request and the longest wait, if its rule lets requests wait.
    pub(super) wait: Option<(QueueDemand, Duration)>,
}

/// One attempt to decide a request, with the policy that it used.
pub(super) struct Attempt {
    rules: Arc<CompiledPolicy>,
    pub(super) result: AttemptResult,
    /// The [release count](WaitQueues::release_count) before the attempt.
    pub(super) releases: u64,
    /// Whether nothing was decided, because the rules in force read facts that the caller didn't look for.
    pub(super) is_outdated: bool,
    /// The statuses of the descriptors, if the request is allowed or the trees deny it.
    pub(super) trees: Option<Box<TreeOutcome>>,
    /// Whether trees limit the request, and have reported it.
    pub(super) is_by_trees: bool,
}

/// The decision of the trees about a request.
pub(super) struct TreeOutcome {
    pub(super) code: StatusCode,
    pub(super) findings: DescriptorFindings,
    pub(super) permits: Permits,
    pub(super) tree_match: TreeMatch,
}

/// The decision about a request that rules decide by its facts and trees by its descriptors: see
/// [`Engine::decide_with_descriptors`](super::Engine::decide_with_descriptors).
///
/// ```
/// use tollgate_engine::engine::MixedDecision;
///
/// fn status(verdict: &MixedDecision<'_>) -> u16 {
///     match verdict {
///         MixedDecision::Passed(..) => 200,
///         MixedDecision::DeniedByRule(_) | MixedDecision::DeniedByDescriptor(_) => 429,
///     }
/// }
/// ```
#[derive(Debug)]
#[must_use = "a request that passed releases its permits when this is dropped: match on it, and keep it while the request runs"]
pub enum MixedDecision<'f> {
    /// All limits allow the request, and were charged. The first field holds the permits of rules and trees.
    Passed(AllowedRequest<'f>, DescriptorFindings),
    /// A rule denies the request. No limit was charged, except those of a domain with [`charging:
    /// each`](crate::policy::Charging).
    DeniedByRule(DeniedRequest<'f>),
    /// A tree denies the request, and no rule was charged.
    DeniedByDescriptor(DescriptorFindings),
}

/// What remains of one limit that applies to a request.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Facts, Policy};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// let text = "limits: [{name: search, rate: [5/s, 100/min]}]";
/// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
/// let facts = Facts::new();
/// assert!(engine.decide(&facts).allowed().is_some());
/// let left = engine.remaining(&facts);
/// assert_eq!((left[0].rule.as_str(), left[0].decision.remaining), ("search", 4));
/// assert_eq!((left[1].kind.to_string().as_str(), left[1].decision.remaining), ("100/m", 99));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LimitRemaining {
    /// The name of the rule or tier.
    pub rule: String,
    /// The mode of the rule.
    pub mode: Mode,
    /// The limit.
    pub kind: LimitKind,
    /// Whether this is a temporary limit beside a rate, until the rule is warm.
    pub is_warm_up: bool,
    /// Whether the store or a fallback answered. If not, the limit is closed and denies everything.
    pub is_available: bool,
    /// The decision that this limit alone would make.
    pub decision: Decision,
}

/// The rules in force, and the overrides that apply to them.
pub(super) struct ActivePolicy {
    pub(super) rules: Arc<CompiledPolicy>,
    pub(super) orders: Option<ActiveOverrides>,
}

/// The output of a future that never waits, because its backend is in memory.
pub(super) fn poll_ready<T>(asking: impl Future<Output = Result<T, Infallible>>) -> T {
    match pin!(asking).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(output)) => output,
        Poll::Pending => unreachable!("memory never waits"),
    }
}

impl<B: Backend> Pipeline<B> {
    pub(super) fn new(
        mut rules: CompiledPolicy,
        backend: B,
        hashers: KeyHashers,
    ) -> Result<Self, PolicyError> {
        let clocks = backend.clocks();
        rules.activate(None, &backend, &clocks)?;
        Ok(Self {
            rules: ArcSwap::from_pointee(rules),
            backend,
            clocks,
            hashers,
            bounds: Bounds::default(),
            wait_queues: Arc::new(WaitQueues::new()),
            deny_cache: None,
            recorder: Recorder::default(),
            override_book: Mutex::default(),
        })
    }

    /// Puts another policy in force, and returns the previous rules.
    pub(super) fn activate_policy(
        &self,
        policy: Policy,
    ) -> Result<Arc<CompiledPolicy>, PolicyError> {
        let before = self.rules.load_full();
        let mut rules =
            CompiledPolicy::new(policy, PreviousState::Rules(&before), self.backend.now())?;
        rules.activate(Some(&before), &self.backend, &self.clocks)?;
        if let Some(tallies) = &self.recorder.tallies {
            rules.assign_tallies(tallies);
        }
        // Locked until the policy is stored: an override that is added in between would apply to the old policy only.
        let mut book = self.lock_overrides();
        book.apply_to_policy(&self.override_context(&rules));
        self.rules.store(Arc::new(rules));
        self.recorder.warnings.all().clear();
        Ok(before)
    }

    /// The context in which overrides are applied.
    pub(super) fn override_context<'a>(
        &'a self,
        rules: &'a CompiledPolicy,
    ) -> OverrideContext<'a, B> {
        let (keys, backend) = (self.key_context(rules), &self.backend);
        OverrideContext { keys, backend }
    }

    /// The context in which the keys of operators' targets are made.
    pub(super) fn key_context<'a>(&'a self, rules: &'a CompiledPolicy) -> KeyContext<'a> {
        let hashers = &self.hashers;
        KeyContext { rules, hashers }
    }

    /// Changes the overrides, and wakes the waiters to check again.
    pub(super) fn change_overrides<T, E>(
        &self,
        change: impl FnOnce(&mut OverrideBook, &OverrideContext<'_, B>, Timestamp) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut book = self.lock_overrides();
        let now = self.clocks.wall.now();
        let has_ended = book.remove_expired(now);
        let rules = self.rules.load_full();
        let context = self.override_context(&rules);
        let changed = change(&mut book, &context, now);
        if has_ended || changed.is_ok() {
            book.apply_to_policy(&context);
        }
        drop(book);
        if changed.is_ok() {
            self.wait_queues.release_all();
        }
        changed
    }

    pub(super) fn lock_overrides(&self) -> MutexGuard<'_, OverrideBook> {
        self.override_book
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The overrides of this policy, with the time by which they expire. `None` if there are none.
    #[inline]
    pub(super) fn active_overrides(&self, rules: &CompiledPolicy) -> Option<ActiveOverrides> {
        if rules.overrides.is_any() {
            self.load_overrides(rules)
        } else {
            None
        }
    }

    #[cold]
    fn load_overrides(&self, rules: &CompiledPolicy) -> Option<ActiveOverrides> {
        let held = rules.overrides.active_at(self.clocks.wall.now())?;
        // `try_lock`: a request never waits for an operator. If the lock is taken, the next request cleans up.
        if held.is_outdated()
            && let Ok(mut book) = self.override_book.try_lock()
        {
            book.remove_expired(held.now);
            book.apply_to_policy(&self.override_context(&self.rules.load()));
        }
        Some(held)
    }

    /// The rules in force, with their overrides.
    pub(super) fn active_policy(&self) -> ActivePolicy {
        let rules = self.rules.load_full();
        let orders = self.active_overrides(&rules);
        ActivePolicy { rules, orders }
    }

    /// The facts of a request, with what they are matched against.
    #[inline(always)]
    fn match_input<'a>(
        &'a self,
        rules: &'a CompiledPolicy,
        orders: Option<&'a ActiveOverrides>,
        facts: &'a Facts<'a>,
    ) -> MatchInput<'a, 'a> {
        MatchInput {
            rules,
            orders,
            facts,
            hashers: &self.hashers,
            bounds: &self.bounds,
        }
    }

    /// Matches a request that won't be decided, as for a peek.
    pub(super) fn match_request<'a>(
        &'a self,
        now: &'a ActivePolicy,
        facts: &'a Facts<'a>,
    ) -> RequestMatch<'a> {
        let mut gathered = RequestMatch::new();
        let input = self.match_input(&now.rules, now.orders.as_ref(), facts);
        gathered.match_rules(input, &self.backend);
        gathered
    }

    /// Matches a request to decide, and records the facts that it lacks. Returns whether the decision needs no check.
    #[inline(always)]
    fn prepare<'a>(
        &self,
        input: MatchInput<'a, '_>,
        gathered: &mut RequestMatch<'a>,
        said: &mut DecisionBasis,
    ) -> bool {
        gathered.match_rules(input, &self.backend);
        if let Some(ordered) = &gathered.overrides {
            ordered.count_applied();
        }
        (self.recorder).record_missing_facts(input.rules, gathered, input.facts);
        said.is_decided_early(gathered)
    }

    /// The query for a request that was matched.
    #[inline(always)]
    pub(super) fn backend_query<'r, 'a>(
        &'r self,
        rules: &'r CompiledPolicy,
        gathered: &'r RequestMatch<'a>,
    ) -> BackendQuery<'r, 'a, B> {
        BackendQuery {
            backend: &self.backend,
            deny_cache: self.deny_cache.as_ref(),
            wait_queues: &self.wait_queues,
            recorder: &self.recorder,
            rules,
            request_match: gathered,
            is_cancellable: true,
        }
    }

    /// Starts a request of facts.
    pub(super) fn start_request<'r>(&self, facts: &'r Facts<'r>) -> Request<'r> {
        Request {
            facts,
            descriptors: None,
            trees: TreeMatch::None,
            started_at: self.recorder.start_time(&self.backend),
        }
    }

    /// Completes the decision of an attempt, and reports it.
    pub(super) fn finish_verdict<'f>(
        &self,
        facts: &'f Facts<'f>,
        attempt: Attempt,
        started: Option<Timestamp>,
    ) -> RequestDecision<'f> {
        let rules = Guard::from_inner(attempt.rules);
        let said = attempt.result.said;
        let verdict = RequestDecision::new(DecisionDetails {
            decision_data: said,
            rules,
            facts,
        });
        // If only trees limit the request, they have reported it.
        if !attempt.is_by_trees || !verdict.is_unmatched() {
            (self.recorder).report_verdict(&verdict, started, &self.backend);
        }
        verdict.into_settled()
    }

    /// Makes one attempt, by the policy in force now.
    pub(super) async fn decide_attempt(
        &self,
        request: &Request<'_>,
        on: DecideOptions<'_>,
        position: Option<&QueuePosition<'_>>,
    ) -> Result<Attempt, B::Error> {
        // Read before the policy and any limit: a release after this point makes a waiter check again.
        let releases = self.wait_queues.release_count();
        let rules = self.rules.load_full();
        let mut attempt = Attempt {
            is_outdated: on.lacks_facts_for(&rules),
            rules,
            result: AttemptResult::default(),
            releases,
            trees: None,
            is_by_trees: false,
        };
        if attempt.is_outdated {
            return Ok(attempt);
        }
        let mut orders = self.active_overrides(&attempt.rules);
        // An attempt from a queue is the same request, so its overrides aren't counted again.
        if position.is_some() {
            orders = orders.map(ActiveOverrides::without_counting);
        }
        let trial = AttemptInput {
            rules: &attempt.rules,
            orders: orders.as_ref(),
            request,
            conditions: on,
            position,
        };
        let tried = &mut attempt.result;
        if let Some(request_of_trees) = request.descriptors {
            let input = self.tree_input(&attempt.rules, orders.as_ref(), request_of_trees);
            let telling = ReportOptions {
                started_at: request.started_at,
                counts_request: false,
            };
            // Boxed, because few requests have both, and every connection's future has room for the largest step.
            let deciding: BoxedFuture<'_, _> =
                Box::pin(self.decide_trees(input, telling, Some((&trial, tried))));
            attempt.trees = deciding.await?.map(Box::new);
        } else {
            self.decide_once(&trial, tried, None).await?;
        }
        Ok(attempt)
    }

    /// Checks the limits of all rules that match, and those of the trees with them.
    pub(super) async fn decide_once(
        &self,
        trial: &AttemptInput<'_>,
        tried: &mut AttemptResult,
        mut trees: Option<&mut TreeCharge<'_, '_>>,
    ) -> Result<(), B::Error> {
        let rules = trial.rules;
        let mut gathered = RequestMatch::new();
        let input = self.match_input(rules, trial.orders, trial.request.facts);
        let is_new = trial.position.is_none();
        let is_settled = if is_new {
            self.prepare(input, &mut gathered, &mut tried.said)
        } else {
            // An attempt from a queue is the same request: what it lacks was recorded before.
            gathered.match_rules(input, &self.backend);
            tried.said.is_decided_early(&gathered)
        };
        gathered.trees = match &trees {
            Some(trees) => trees.tree_match(),
            None => trial.request.trees,
        };
        if !is_settled || (tried.said.is_allowed && trees.is_some()) {
            let (mut each, asking) = (Vec::new(), self.backend_query(rules, &gathered));
            let answer = match is_new.then(|| asking.queue_ahead()).flatten() {
                Some(answer) => Some(answer),
                None => {
                    let each = trial.conditions.lists_limits.then_some(&mut each);
                    asking.check_enforced(each, trees.as_deref_mut()).await?
                }
            };
            let answer = match answer {
                Some(answer) => answer,
                // A policy that isn't enforced allows the request.
                None if rules.mode != Mode::Enforce => Answer::new(None, Decision::UNLIMITED),
                // The trees deny the request, and no rule was charged.
                None => return Ok(()),
            };
            if rules.has_waiting_rules {
                tried.wait = asking.wait_demand(&answer);
            }
            let said = &mut tried.said;
            said.apply_answer(&gathered, answer);
            said.list_limits(&gathered, &each);
            if said.is_allowed {
                let charged = match trees {
                    Some(trees) => self.charge_shadow_trees(said, &gathered, trees).await,
                    None => Vec::new(),
                };
                if gathered.has_shadows() {
                    asking.check_shadow(said, &charged).await;
                }
            }
        }
        // A denied request may still wait, and be allowed later.
        if tried.said.is_allowed {
            self.recorder.count_passed(rules, &gathered, &tried.said);
        }
        Ok(())
    }

    /// Charges the trees' limits in shadow mode for an allowed request. Returns all checks that the trees charged.
    fn charge_shadow_trees<'r, 'a>(
        &'r self,
        said: &'r mut DecisionBasis,
        gathered: &'r RequestMatch<'_>,
        trees: &'r mut TreeCharge<'_, 'a>,
    ) -> BoxedFuture<'r, Vec<Check<'a>>> {
        Box::pin(async move {
            said.permits.hold(trees.take_permits().0);
            // If a fallback decided, the store was charged nothing.
            let checks = match said.unavailable {
                None => gathered.enforced.checks.as_slice(),
                Some(_) => &[],
            };
            (trees.charge_or_peek_shadows(&self.backend, &mut said.permits, checks)).await;
            trees.charged_checks()
        })
    }

    /// What remains of each limit that applies to a request.
    pub(super) async fn remaining_by_limit(
        &self,
        facts: &Facts<'_>,
    ) -> Result<Vec<LimitRemaining>, B::Error> {
        let now = self.active_policy();
        let gathered = self.match_request(&now, facts);
        let rule_name = |rule: u32| now.rules.rules[rule as usize].name.to_string();
        let mut left = Vec::new();
        let groups = [
            (&gathered.enforced, Mode::Enforce),
            (&gathered.shadow, Mode::Shadow),
        ];
        for (group, mode) in groups {
            let each = self.backend.peek(group.checks.as_slice()).await?;
            let each = group.checks_with_rules().zip(each);
            left.extend(each.map(|((check, rule), said)| LimitRemaining {
                rule: rule_name(rule),
                mode,
                kind: check.limit.kind().clone(),
                is_warm_up: is_gate(check.limit),
                is_available: said.is_ok(),
                decision: said.unwrap_or_else(|store| store.decision()),
            }));
        }
        let gates = gathered.gates.iter().flat_map(|gates| gates.iter());
        left.extend(gates.map(|gate| LimitRemaining {
            rule: rule_name(gate.rule_match.number),
            mode: gate.rule_match.mode,
            kind: gate.limiter.limit.kind().clone(),
            is_warm_up: false,
            is_available: true,
            decision: gate.peek(),
        }));
        Ok(left)
    }

    /// Refunds what the selected limits charged a request. A reset ignores overrides, and clears the policy's own
    /// limits.
    pub(super) async fn refund(
        &self,
        facts: &Facts<'_>,
        refund: Refund,
        is_meant: impl Fn(&Limit) -> bool + Send + Sync,
    ) -> Result<RefundResult, B::Error> {
        let mut now = self.active_policy();
        if refund == Refund::Reset {
            now.orders = None;
        }
        let gathered = self.match_request(&now, facts);
        let mut result = RefundResult::Refunded;
        for group in [&gathered.enforced, &gathered.shadow] {
            let checks = group.checks.as_slice().iter().copied();
            let checks: Vec<_> = checks.filter(|check| is_meant(check.limit)).collect();
            result = result.max(self.backend.refund(&checks, refund).await?);
        }
        for check in gathered.enforced.checks.as_slice() {
            self.wait_queues.poke(QueueKey::of(check));
        }
        Ok(result)
    }
}

impl<C: Clock + 'static, W: Clock + 'static> Pipeline<Memory<C, W>> {
    #[inline(always)]
    pub(super) fn decide_in_memory<'f>(
        &self,
        facts: &'f Facts<'f>,
        lists_limits: bool,
    ) -> RequestDecision<'f> {
        let started = self.recorder.start_time(&self.backend);
        // Created in the caller's place: the value is large, and moving it takes longer than filling it.
        let mut verdict = RequestDecision::new(DecisionDetails {
            decision_data: DecisionBasis::default(),
            rules: self.rules.load(),
            facts,
        });
        let findings = verdict.findings_mut();
        let (said, rules) = (&mut findings.decision_data, &**findings.rules);
        let orders = self.active_overrides(rules);
        let mut gathered = RequestMatch::new();
        let input = self.match_input(rules, orders.as_ref(), facts);
        if !self.prepare(input, &mut gathered, said) {
            self.check_in_memory(said, rules, &gathered, lists_limits);
        }
        if said.is_allowed {
            self.recorder.count_passed(rules, &gathered, said);
        }
        (self.recorder).report_verdict(&verdict, started, &self.backend);
        verdict.into_settled()
    }

    /// Queries a backend that answers immediately, and records its answer.
    #[inline(always)]
    fn check_in_memory(
        &self,
        said: &mut DecisionBasis,
        rules: &CompiledPolicy,
        gathered: &RequestMatch<'_>,
        lists_limits: bool,
    ) {
        let asking = BackendQuery {
            is_cancellable: false,
            ..self.backend_query(rules, gathered)
        };
        let checks = gathered.enforced.checks.as_slice();
        let answer = match asking.queue_ahead() {
            Some(answer) => Some(answer),
            None if self.deny_cache.is_none() && !rules.needs_engine_checks => {
                Some(self.backend.answer(checks))
            }
            None => poll_ready(asking.check_enforced(None, None)),
        };
        // Without an answer the trees deny, and there are none here.
        let answer = answer.unwrap_or_else(|| Answer::new(None, Decision::UNLIMITED));
        said.apply_answer(gathered, answer);
        if lists_limits && checks.len() > 1 {
            self.list_limits(said, gathered);
        }
        if said.is_allowed && gathered.has_shadows() {
            poll_ready(async {
                asking.check_shadow(said, &[]).await;
                Ok(())
            });
        }
    }

    /// Peeks each limit in force, after the request was charged or denied.
    #[cold]
    #[inline(never)]
    fn list_limits(&self, said: &mut DecisionBasis, gathered: &RequestMatch<'_>) {
        let checks = gathered.enforced.checks.as_slice();
        let each = self.backend.decisions_after(checks, said.is_allowed);
        said.list_limits(gathered, &each);
    }
}
