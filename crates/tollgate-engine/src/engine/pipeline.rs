//! The one way of a request: it is matched, its checks are collected, the backend is asked, and the outcome is recorded.
//! [`Pipeline::decide_in_memory`] goes it with a backend in memory, [`Pipeline::attempt`] with any.

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

/// What all requests of an engine share.
pub(super) struct Pipeline<B> {
    pub(super) rules: ArcSwap<CompiledPolicy>,
    pub(super) backend: B,
    pub(super) clocks: Clocks,
    pub(super) hashers: KeyHashers,
    pub(super) bounds: Bounds,
    pub(super) wait_queues: Arc<WaitQueues>,
    pub(super) deny_cache: Option<DenyCache>,
    pub(super) recorder: Recorder,
    /// Overrides of operators. Locked while they are put over a policy, and until that is in force.
    pub(super) override_book: Mutex<OverrideBook>,
}

/// A request: its facts, and the descriptors by which trees decide it together with the rules.
#[derive(Clone, Copy)]
pub(super) struct Request<'r> {
    pub(super) facts: &'r Facts<'r>,
    /// Those that trees decide together with the rules.
    pub(super) descriptors: Option<DescriptorRequest<'r>>,
    /// Whether trees have decided it before.
    pub(super) trees: TreeMatch,
    /// When its decision began, if somebody is to know how long it took.
    pub(super) started_at: Option<Timestamp>,
}

/// A future whose type nobody has to know.
type BoxedFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One attempt to decide a request: the policy and the overrides that are in force, and where the request waits.
pub(super) struct AttemptInput<'t> {
    rules: &'t CompiledPolicy,
    orders: Option<&'t ActiveOverrides>,
    request: &'t Request<'t>,
    conditions: DecideOptions<'t>,
    pub(super) position: Option<&'t QueuePosition<'t>>,
}

/// What a trial came to.
#[derive(Default)]
pub(super) struct AttemptResult {
    pub(super) said: DecisionBasis,
    /// What denied it, if its rule lets requests wait for that, and for how long.
    pub(super) wait: Option<(QueueDemand, Duration)>,
}

/// What came of asking once.
pub(super) struct Attempt {
    rules: Arc<CompiledPolicy>,
    pub(super) result: AttemptResult,
    /// How often something had come back before it was asked.
    pub(super) releases: u64,
    /// It wasn't asked: the rules in force want to know more.
    pub(super) is_outdated: bool,
    /// The statuses of the descriptors of a request that passes, or that the trees deny.
    pub(super) trees: Option<Box<TreeOutcome>>,
    /// Whether trees limit it, and have reported it.
    pub(super) is_by_trees: bool,
}

/// What trees decided of a request.
pub(super) struct TreeOutcome {
    pub(super) code: StatusCode,
    pub(super) findings: DescriptorFindings,
    pub(super) permits: Permits,
    pub(super) tree_match: TreeMatch,
}

/// The answer to a request that rules decide by its facts and trees by its descriptors: see
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
    /// All limits have room, and were charged. The first part holds the permits of rules and trees.
    Passed(AllowedRequest<'f>, DescriptorFindings),
    /// A rule denies the request. No limit was charged, but for those of a domain that [charges
    /// each](crate::policy::Charging).
    DeniedByRule(DeniedRequest<'f>),
    /// A tree denies the request, and no rule was charged.
    DeniedByDescriptor(DescriptorFindings),
}

/// What is left of one limit that a request meets.
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
    /// The rule or tier.
    pub rule: String,
    /// Whether it only counts.
    pub mode: Mode,
    /// Which of its limits.
    pub kind: LimitKind,
    /// Whether it stands beside a rate only until the rule is warm.
    pub is_warm_up: bool,
    /// Whether somebody could be asked: else a limit that is closed then refuses everything.
    pub is_available: bool,
    /// What the request would be told by it alone.
    pub decision: Decision,
}

/// Rules in force, and the overrides that are put over them.
pub(super) struct ActivePolicy {
    pub(super) rules: Arc<CompiledPolicy>,
    pub(super) orders: Option<ActiveOverrides>,
}

/// The answer of a backend that never waits.
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

    /// Puts another policy in force, and returns the rules before.
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
        let mut book = self.lock_overrides();
        book.apply_to_policy(&self.override_context(&rules));
        self.rules.store(Arc::new(rules));
        self.recorder.warnings.all().clear();
        Ok(before)
    }

    /// What overrides are put over.
    pub(super) fn override_context<'a>(
        &'a self,
        rules: &'a CompiledPolicy,
    ) -> OverrideContext<'a, B> {
        let (keys, backend) = (self.key_context(rules), &self.backend);
        OverrideContext { keys, backend }
    }

    /// What the keys of operators' targets are made by.
    pub(super) fn key_context<'a>(&'a self, rules: &'a CompiledPolicy) -> KeyContext<'a> {
        let hashers = &self.hashers;
        KeyContext { rules, hashers }
    }

    /// Changes the overrides, and has those who wait look again.
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

    /// The orders over this policy, and the time by which they end; none if there are none.
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
        if held.is_outdated()
            && let Ok(mut book) = self.override_book.try_lock()
        {
            book.remove_expired(held.now);
            book.apply_to_policy(&self.override_context(&self.rules.load()));
        }
        Some(held)
    }

    /// Rules, with the overrides over them.
    pub(super) fn active_policy(&self) -> ActivePolicy {
        let rules = self.rules.load_full();
        let orders = self.active_overrides(&rules);
        ActivePolicy { rules, orders }
    }

    /// A request of facts, and what it is matched with.
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

    /// Matches a request that isn't decided.
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

    /// Matches a request that is to be decided, and notes what it lacks; whether nothing is to be asked about it.
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

    /// Whom a request is asked of that was matched.
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

    /// A request of facts that begins now.
    pub(super) fn start_request<'r>(&self, facts: &'r Facts<'r>) -> Request<'r> {
        Request {
            facts,
            descriptors: None,
            trees: TreeMatch::None,
            started_at: self.recorder.start_time(&self.backend),
        }
    }

    /// What came of it, told to those who want to know.
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
        // Where only trees limit it, they have reported it.
        if !attempt.is_by_trees || !verdict.is_unmatched() {
            (self.recorder).report_verdict(&verdict, started, &self.backend);
        }
        verdict.into_settled()
    }

    /// Asks once, by the policy that is in force now.
    pub(super) async fn decide_attempt(
        &self,
        request: &Request<'_>,
        on: DecideOptions<'_>,
        standing: Option<&QueuePosition<'_>>,
    ) -> Result<Attempt, B::Error> {
        // Before the policy is read, and any limit asked.
        let pokes = self.wait_queues.release_count();
        let rules = self.rules.load_full();
        let mut attempt = Attempt {
            is_outdated: on.lacks_facts_for(&rules),
            rules,
            result: AttemptResult::default(),
            releases: pokes,
            trees: None,
            is_by_trees: false,
        };
        if attempt.is_outdated {
            return Ok(attempt);
        }
        let mut orders = self.active_overrides(&attempt.rules);
        if standing.is_some() {
            orders = orders.map(ActiveOverrides::without_counting);
        }
        let trial = AttemptInput {
            rules: &attempt.rules,
            orders: orders.as_ref(),
            request,
            conditions: on,
            position: standing,
        };
        let tried = &mut attempt.result;
        if let Some(request_of_trees) = request.descriptors {
            let input = self.tree_input(&attempt.rules, orders.as_ref(), request_of_trees);
            let telling = ReportOptions {
                started_at: request.started_at,
                counts_request: false,
            };
            // In a box: few requests have both, and every connection has room for the largest step.
            let deciding: BoxedFuture<'_, _> =
                Box::pin(self.decide_trees(input, telling, Some((&trial, tried))));
            attempt.trees = deciding.await?.map(Box::new);
        } else {
            self.decide_once(&trial, tried, None).await?;
        }
        Ok(attempt)
    }

    /// Asks the limits of all rules that match, and those of the trees with them.
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
            // One that waits and asks again is the same request, and what it lacks is noted.
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
                // A policy that isn't enforced lets it pass.
                None if rules.mode != Mode::Enforce => Answer::new(None, Decision::UNLIMITED),
                // The trees deny it, and no rule was charged.
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
        // One that is denied may still wait, and pass.
        if tried.said.is_allowed {
            self.recorder.count_passed(rules, &gathered, &tried.said);
        }
        Ok(())
    }

    /// Charges the limits of trees that are in shadow, of a request that passes; all checks that its trees were charged.
    fn charge_shadow_trees<'r, 'a>(
        &'r self,
        said: &'r mut DecisionBasis,
        gathered: &'r RequestMatch<'_>,
        trees: &'r mut TreeCharge<'_, 'a>,
    ) -> BoxedFuture<'r, Vec<Check<'a>>> {
        Box::pin(async move {
            said.permits.hold(trees.take_permits().0);
            // What decided instead of a store has charged nothing there.
            let checks = match said.unavailable {
                None => gathered.enforced.checks.as_slice(),
                Some(_) => &[],
            };
            (trees.charge_or_peek_shadows(&self.backend, &mut said.permits, checks)).await;
            trees.charged_checks()
        })
    }

    /// What is left of each limit that a request meets.
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

    /// Gives back what a request was charged by the limits that are meant. A reset is of what the policy says, whatever was ordered.
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
        let mut gift = RefundResult::Refunded;
        for group in [&gathered.enforced, &gathered.shadow] {
            let checks = group.checks.as_slice().iter().copied();
            let checks: Vec<_> = checks.filter(|check| is_meant(check.limit)).collect();
            gift = gift.max(self.backend.refund(&checks, refund).await?);
        }
        for check in gathered.enforced.checks.as_slice() {
            self.wait_queues.poke(QueueKey::of(check));
        }
        Ok(gift)
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
        // Made where the caller gets it: it is large, and moving it takes longer than filling it.
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

    /// Asks a backend that answers immediately, and tells what it says.
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
        // Only trees deny without an answer.
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

    /// Looks at each limit in force, after the request was charged or denied.
    #[cold]
    #[inline(never)]
    fn list_limits(&self, said: &mut DecisionBasis, gathered: &RequestMatch<'_>) {
        let checks = gathered.enforced.checks.as_slice();
        let each = self.backend.decisions_after(checks, said.is_allowed);
        said.list_limits(gathered, &each);
    }
}
