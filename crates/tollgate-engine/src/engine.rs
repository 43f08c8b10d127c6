//! The engine: facts in, a decision out, by a policy that can be reloaded at any time.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::Guard;
use tollgate::Clock;

use crate::backend::{Backend, Memory};
use crate::facts::{Descriptor, Facts};
use crate::limits::{DenyCache, KeyHashers, LimitKind};
use crate::observer::Observer;
use crate::policy::Policy;
use crate::verdict::{DecisionBasis, DecisionDetails, RequestDecision};

mod admin;
mod conditions;
pub(crate) mod counters;
mod descriptors;
mod key_state;
mod limiters;
pub(crate) mod overload_control;
pub(crate) mod overrides;
mod pipeline;
pub(crate) mod presence;
mod query;
mod recorder;
mod refund_guard;
mod refunds;
mod request_decision;
mod request_match;
mod retired_policies;
pub(crate) mod rollout;
pub(crate) mod rules;
mod snapshot;
mod tally_counting;
mod tree_decisions;
pub mod verdict;
mod wait_queue;
mod waiting;
pub(crate) mod warm_up;
mod warnings;

pub use crate::bounds::{BoundExceeded, Bounds};
pub use conditions::{DecideOptions, RequiredFacts};
pub use descriptors::{
    AllowedDescriptors, CurrentLimit, DescriptorDecision, DescriptorFindings, DescriptorRequest,
    DescriptorStatus,
};
pub use key_state::{KeyLimitState, KeyState, ResetReport, ResetRule, ResetScope};
pub use limiters::{LimiterKind, LimiterState, ThrottleDecision};
pub use overload_control::AdaptiveState;
pub use pipeline::{LimitRemaining, MixedDecision};
pub use rules::PolicyError;
pub use snapshot::{RestoreError, RestoreOptions, RestoreReport};

use descriptors::TreeLookups;
use overrides::ActiveOverrides;
use pipeline::{Pipeline, poll_ready};
use request_match::CheckGroup;
use retired_policies::RetiredPolicies;
use rules::{CompiledPolicy, PreviousState};

/// Decides requests by a policy.
///
/// 1. A request that matches a `block` entry is denied. Any other that matches an `exempt` entry is allowed.
/// 2. Each rule that matches applies, except when another rule that applies replaces it, or when the request lacks a
///    fact of the rule's key and the rule lets such requests pass. The tenant's tier applies like a rule.
/// 3. The [`Backend`] charges the limits of all enforced rules, or none of them.
/// 4. If the request is allowed, each rule in shadow mode is checked by itself, and charged if it would allow the
///    request. What it would have denied is reported to the observer and changes nothing. A policy in shadow mode
///    puts all its rules there, and only reports what it would block.
///
/// A cost comes from the fact that the rule names. If that fact is missing or isn't a whole number, the rule's
/// default applies. A permit costs one, whatever the cost.
///
/// ```
/// use tollgate::{Rate, clock::Manual};
/// use tollgate_engine::backend::Memory;
/// use tollgate_engine::policy::{KeyPart, Limits, MatchConditions, Pattern, Policy, Rule};
/// use tollgate_engine::{Engine, Facts};
///
/// let limits = Limits { rates: vec![Rate::per_second(2)], ..Limits::default() };
/// let rule = Rule {
///     matches: MatchConditions {
///         conditions: vec![("path".to_owned(), Pattern::Glob("/api/**".to_owned()))],
///         ..MatchConditions::default()
///     },
///     key: vec![KeyPart::Fact("user".to_owned())],
///     ..Rule::new("per-user", limits)
/// };
/// let policy = Policy { rules: vec![rule], ..Policy::default() };
/// let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// let engine = Engine::new(policy, memory)?;
///
/// let facts = Facts::new().with("path", "/api/x").with("user", "42");
/// assert_eq!(engine.decide(&facts).decision().remaining, 1);
/// assert!(engine.decide(&facts).allowed().is_some());
/// assert!(engine.decide(&facts).denied().is_some());
/// assert!(engine.decide(&Facts::new().with("path", "/healthz")).allowed().is_some());
/// # Ok::<(), tollgate_engine::PolicyError>(())
/// ```
#[derive(derive_more::Debug)]
#[debug(
    "Engine {{ rules: {}, backend: {:?}, .. }}",
    pipeline.rules.load().rules.len(),
    pipeline.backend
)]
#[debug(bound(B: std::fmt::Debug))]
pub struct Engine<B: Backend = Memory> {
    pipeline: Pipeline<B>,
    /// Serializes reloads, so that each new policy is compiled against its predecessor.
    reload_lock: Mutex<RetiredPolicies<CompiledPolicy>>,
}

impl<B: Backend> Engine<B> {
    /// Creates an engine that decides by this policy.
    ///
    /// # Errors
    /// If the policy states something that can't be enforced.
    pub fn new(policy: Policy, backend: B) -> Result<Self, PolicyError> {
        let rules = CompiledPolicy::new(policy, PreviousState::Nothing, backend.now())?;
        let pipeline = Pipeline::new(rules, backend, KeyHashers::random())?;
        Ok(Self::from_pipeline(pipeline))
    }

    fn from_pipeline(pipeline: Pipeline<B>) -> Self {
        Self {
            pipeline,
            reload_lock: Mutex::new(RetiredPolicies::new()),
        }
    }

    /// Reports every decision to this observer.
    ///
    /// ```
    /// # use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// use tollgate_engine::observer::{Event, Observer};
    ///
    /// #[derive(Clone, Default)]
    /// struct DeniedRequest(Arc<AtomicU64>);
    ///
    /// impl Observer for DeniedRequest {
    ///     fn on_decision(&self, event: &Event<'_>) {
    ///         self.0.fetch_add(u64::from(!event.decision.is_allowed()), Ordering::Relaxed);
    ///     }
    /// }
    ///
    /// let denied = DeniedRequest::default();
    /// # let policy = Policy::from_text("limits: [{name: all, rate: 1/s}]", Format::Yaml)?.policy;
    /// let engine = Engine::new(policy, memory)?.with_observer(denied.clone());
    /// let _ = (engine.decide(&Facts::new()), engine.decide(&Facts::new()));
    /// assert_eq!(denied.0.load(Ordering::Relaxed), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_observer(mut self, observer: impl Observer + 'static) -> Self {
        self.pipeline.recorder.wants = observer.wants();
        self.pipeline.recorder.observer = Some(Box::new(observer));
        self
    }

    /// Caches up to `entries` denials and repeats each without a backend request while it is known to hold.
    ///
    /// A denial is repeated for one second at most. Then one request asks the backend again, because another process
    /// may have reset the key; if the backend is unreachable, the denial stays in force. Use this for a remote
    /// backend: one in memory answers as fast as the cache. A backend that [caches denials
    /// itself](Backend::deny_epoch), as a store's client does, ignores this setting. A repeated denial reports the
    /// wait of its own limit and may leave out limits with a longer wait. Its `remaining` is as of the first denial.
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// # let policy = Policy::from_text("limits: [{name: all, rate: 1/h}]", Format::Yaml)?.policy;
    /// let engine = Engine::new(policy, memory)?.with_deny_cache(10_000);
    /// assert!(engine.decide(&Facts::new()).allowed().is_some());
    /// assert!(engine.decide(&Facts::new()).denied().is_some()); // From the backend.
    /// assert!(engine.decide(&Facts::new()).denied().is_some()); // From the cache.
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_deny_cache(mut self, entries: usize) -> Self {
        let is_wanted = self.pipeline.backend.deny_epoch().is_some();
        self.pipeline.deny_cache = is_wanted.then(|| DenyCache::new(entries));
        self
    }

    /// Bounds what one request may bring, in place of the [default](Bounds).
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::{Bounds, Engine, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// let bounds = Bounds { descriptors: 8, ..Bounds::default() };
    /// let engine = Engine::new(Policy::default(), memory)?.with_bounds(bounds);
    /// # Ok::<(), tollgate_engine::PolicyError>(())
    /// ```
    #[must_use]
    pub fn with_bounds(mut self, bounds: Bounds) -> Self {
        self.pipeline.bounds = bounds;
        self
    }

    /// Derives key fingerprints from this seed instead of a random one, so that a test runs the same each time.
    /// Anyone who knows the seed can construct keys that collide.
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// let fingerprint = || {
    ///     let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    ///     let policy = Policy::from_text("limits: [{name: a, key: user, rate: 1/h}]", Format::Yaml)?.policy;
    ///     let engine = Engine::new(policy, memory)?.with_seed(7);
    ///     let facts = Facts::new().with("user", "42");
    ///     let verdict = engine.decide(&facts);
    ///     Ok::<_, Box<dyn std::error::Error>>(verdict.key().map(|key| key.fingerprint()))
    /// };
    /// assert_eq!(fingerprint()?, fingerprint()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.pipeline.hashers = KeyHashers::seeded(seed);
        self
    }

    /// Replaces the policy in force.
    ///
    /// Decisions continue by the old policy until the new one is compiled. A limit that has the same name and
    /// algorithm keeps what its keys have spent. A changed rate applies from the next request on. Permits stay valid
    /// and keep counting. The counters of a limit that is removed or off remain until their keys are idle: if the
    /// limit returns, it continues with them and with the permits in flight (for the last 65,536 removed limits). The
    /// old policy is dropped here, or by the next reload if a decision still references it.
    ///
    /// However often a rule changes, a window admits no more than the largest burst and the fastest rate among the
    /// versions that were in force in it. Two cases allow one more burst per change: a token bucket, which keeps its
    /// tokens, and a change that makes a tier or a shared counter stricter. If more than five versions get stricter
    /// within seconds, the fastest of them sets the bound. A key that has spent a slower rate waits until the largest
    /// burst of all versions is refilled at the new rate, and one second more at most.
    ///
    /// # Errors
    /// If the new policy states something that can't be enforced. The old one stays in force.
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// let read = |text: &str| Policy::from_text(text, Format::Yaml).map(|checked| checked.policy);
    /// let engine = Engine::new(read("limits: [{name: all, rate: 2/h}]")?, memory)?;
    /// let facts = Facts::new();
    /// assert!(engine.decide(&facts).allowed().is_some());
    /// engine.reload(read("limits: [{name: all, rate: 2/h}, {name: other, key: user, rate: 5/s}]")?)?;
    /// assert_eq!(engine.decide(&facts).decision().remaining, 0); // What was spent before counts.
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reload(&self, policy: Policy) -> Result<(), PolicyError> {
        let reloading = self.reload_lock.lock();
        let mut retired = reloading.unwrap_or_else(PoisonError::into_inner);
        retired.retire(self.pipeline.activate_policy(policy)?);
        // Waiters check again, because the new policy may allow them sooner.
        self.pipeline.wait_queues.release_all();
        Ok(())
    }

    /// The policy in force.
    pub fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.pipeline.rules.load().policy)
    }

    /// The backend that keeps the counters.
    pub fn backend(&self) -> &B {
        &self.pipeline.backend
    }

    /// How many requests wait in queues, because a rule has `over: wait`.
    pub fn waiter_count(&self) -> usize {
        self.pipeline.wait_queues.waiter_count()
    }

    /// Whether a rule of the policy in force lets requests wait. If none does, [`decide`](Self::decide) and
    /// [`decide_async`](Self::decide_async) return the same decision.
    pub fn has_waiting_rules(&self) -> bool {
        self.pipeline.rules.load().has_waiting_rules
    }
}

impl<C: Clock + 'static, W: Clock + 'static> Engine<Memory<C, W>> {
    /// Decides a request without waiting. If a rule has `over: wait`, a request over the limit is denied here, as is
    /// one that would overtake the waiters of [`decide_async`](Self::decide_async). It allocates only if the request
    /// takes a permit, matches very many rules, or has very long keys.
    #[inline]
    pub fn decide<'f>(&self, facts: &'f Facts<'f>) -> RequestDecision<'f> {
        self.pipeline.decide_in_memory(facts, false)
    }

    /// Decides a request as [`decide`](Self::decide), and reports each limit that applied
    /// ([`DecisionDetails::limits`]), for responses that list them. With several limits, each is peeked once more,
    /// which allocates.
    #[inline]
    pub fn decide_listing_limits<'f>(&self, facts: &'f Facts<'f>) -> RequestDecision<'f> {
        self.pipeline.decide_in_memory(facts, true)
    }

    /// Decides a request that a proxy describes by descriptors, in one of the policy's domains.
    ///
    /// Hits on one counter add up: descriptors with the same counter are checked with the sum of their costs. A limit
    /// that the proxy sends in place of the policy's uses the same counter if it has the same unit.
    ///
    /// Limits are charged all or none, unless the domain has [`charging: each`](crate::policy::Charging). A limit in
    /// quota mode that denies while another in quota mode allows is left out of that charge. Limits in shadow mode
    /// are charged by themselves, if the request is allowed. A descriptor that refunds is refunded first, and is
    /// allowed.
    ///
    /// ```
    /// use tollgate::clock::Manual;
    /// use tollgate_engine::backend::Memory;
    /// use tollgate_engine::document::Format;
    /// use tollgate_engine::facts::Descriptor;
    /// use tollgate_engine::{Engine, Policy};
    ///
    /// let file = "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 2}}]";
    /// let policy = Policy::from_text(file, Format::Yaml).expect("their form").policy;
    /// let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// let engine = Engine::new(policy, memory).expect("a policy");
    /// let ada = [Descriptor::new(&[("user", "ada")])];
    /// let passed = (0..5).filter_map(|_| engine.decide_descriptors("edge", &ada, 1).allowed());
    /// assert_eq!(passed.count(), 2);
    /// assert!(engine.decide_descriptors("mesh", &ada, 1).allowed().is_some());
    /// ```
    pub fn decide_descriptors(
        &self,
        domain: &str,
        descriptors: &[Descriptor<'_>],
        hits_addend: u32,
    ) -> DescriptorDecision {
        poll_ready(self.decide_descriptors_async(domain, descriptors, hits_addend))
    }

    /// Returns what [`decide`](Self::decide) would decide now. Charges nothing, holds nothing and reports nothing to
    /// the observer.
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// # let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 1/h}]", Format::Yaml)?.policy;
    /// let engine = Engine::new(policy, memory)?;
    /// let facts = Facts::new().with("user", "42");
    /// assert_eq!(engine.peek(&facts).decision().remaining, 1);
    /// assert!(engine.decide(&facts).allowed().is_some());
    /// let findings = engine.peek(&facts);
    /// assert!(!findings.decision().is_allowed());
    /// assert_eq!(findings.decision().retry_after_secs(), Some(3_600));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn peek<'f>(&self, facts: &'f Facts<'f>) -> DecisionDetails<'f> {
        poll_ready(self.peek_async(facts))
    }

    /// What remains of each limit that applies to a request, for a page that shows it. Charges nothing.
    pub fn remaining(&self, facts: &Facts<'_>) -> Vec<LimitRemaining> {
        poll_ready(self.remaining_async(facts))
    }

    /// Clears what the key of this request has spent, for every rule that applies to it. Permits that are held stay
    /// held.
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// # let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 1/h}]", Format::Yaml)?.policy;
    /// let engine = Engine::new(policy, memory)?;
    /// let facts = Facts::new().with("user", "42");
    /// assert!(engine.decide(&facts).allowed().is_some());
    /// engine.reset_request(&facts);
    /// assert!(engine.decide(&facts).allowed().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reset_request(&self, facts: &Facts<'_>) {
        poll_ready(self.reset_request_async(facts));
    }
}

impl<B: Backend> Engine<B> {
    /// Whether the policy in force has rules, lists or tiers. These decide by facts.
    pub fn decides_by_facts(&self) -> bool {
        let rules = self.pipeline.rules.load();
        rules.block_count + rules.exempt_count + rules.rules.len() > 0
    }

    /// Whether the policy in force has descriptor trees. These decide by descriptors.
    pub fn decides_by_descriptors(&self) -> bool {
        !self.pipeline.rules.load().policy.domains.is_empty()
    }

    /// Whether the policy in force has any limit for descriptors of this domain. Requests of other domains are
    /// allowed.
    ///
    /// ```
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Policy};
    /// let file = "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1}}]";
    /// let engine = Engine::new(Policy::from_text(file, Format::Yaml)?.policy, Memory::new())?;
    /// assert!(engine.knows_domain("edge") && !engine.knows_domain("egde"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn knows_domain(&self, domain: &str) -> bool {
        let rules = self.pipeline.rules.load();
        rules.domains.has(domain) || rules.policy.domains.contains_key(domain)
    }

    /// The facts that the rules, tiers and lists of the policy in force read. No other fact affects a decision by
    /// facts.
    ///
    /// ```
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Policy};
    /// let text = "limits: [{name: logins, match: {path: /login}, key: [ip, header.x-app], rate: 5/m}]";
    /// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, Memory::new())?;
    /// let mut required: Vec<_> = engine.required_facts().iter().map(|name| name.to_string()).collect();
    /// required.sort();
    /// assert_eq!(required, ["header.x-app", "ip", "path"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn required_facts(&self) -> RequiredFacts {
        RequiredFacts(self.pipeline.rules.load())
    }

    /// Decides a request by a backend that may take time to answer.
    ///
    /// Where a rule has `over: wait 200ms`, a request over the limit waits in a queue: first come, first served among
    /// the waiters of this process, with nothing held meanwhile. At the head of the queue, all limits of the request
    /// are checked again. A request that can't get there in time is denied immediately. Dropping this future frees
    /// its queue position. Each node of a fleet has its own queue, so when the limit has room again, the first
    /// request to reach the store is allowed. If several rules deny, the one with the longest wait determines whether
    /// to wait.
    ///
    /// # Errors
    /// If the backend is unavailable for the rules in force. Rules in shadow mode are left out then.
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// # let policy = Policy::from_text("limits: [{name: all, rate: 1/s}]", Format::Yaml)?.policy;
    /// let engine = Engine::new(policy, memory)?;
    /// let decide = async || {
    ///     let facts = Facts::new();
    ///     let passed = engine.decide_async(&facts).await?.allowed();
    ///     Ok::<bool, std::convert::Infallible>(passed.is_some())
    /// };
    /// # use std::{pin::pin, task::{Context, Poll, Waker}};
    /// # let done = pin!(decide()).poll(&mut Context::from_waker(Waker::noop()));
    /// # assert_eq!(done, Poll::Ready(Ok(true)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn decide_async<'f>(
        &self,
        facts: &'f Facts<'f>,
    ) -> Result<RequestDecision<'f>, B::Error> {
        let request = self.pipeline.start_request(facts);
        let attempt = self
            .pipeline
            .decide_with_waiting(&request, DecideOptions::new())
            .await?;
        Ok(self
            .pipeline
            .finish_verdict(facts, attempt, request.started_at))
    }

    /// Decides a request as [`decide_async`](Self::decide_async), with these options. Returns `None` if the policy in
    /// force reads [facts that the caller didn't look for](DecideOptions::with_known_facts): then nothing was charged
    /// and nothing is held. Look for the facts that are required now, and decide again.
    ///
    /// # Errors
    /// The same as of `decide_async`.
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{DecideOptions, Engine, Facts, Policy};
    /// # fn read(text: &str) -> Result<Policy, Box<dyn std::error::Error>> {
    /// #     Ok(Policy::from_text(text, Format::Yaml)?.policy)
    /// # }
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// let engine = Engine::new(read("limits: [{name: all, rate: 1/s, over: wait 9s}]")?, memory)?;
    /// let decide = async || {
    ///     let (required, facts) = (engine.required_facts().into_owned(), Facts::new());
    ///     let on = DecideOptions::new().with_known_facts(&required).without_waiting();
    ///     assert!(engine.decide_with_conditions(on, &facts).await?.is_some_and(|verdict| verdict.allowed().is_some()));
    ///     // It doesn't wait in a queue.
    ///     assert!(engine.decide_with_conditions(on, &facts).await?.is_some_and(|verdict| verdict.denied().is_some()));
    ///
    ///     engine.reload(read("limits: [{name: per-user, key: user, rate: 1/s}]")?)?;
    ///     assert!(engine.decide_with_conditions(on, &facts).await?.is_none(), "nobody has looked for a user");
    ///     Ok::<(), Box<dyn std::error::Error>>(())
    /// };
    /// # use std::{pin::pin, task::{Context, Poll, Waker}};
    /// # let done = pin!(decide()).poll(&mut Context::from_waker(Waker::noop()));
    /// # assert!(matches!(done, Poll::Ready(Ok(()))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn decide_with_conditions<'f>(
        &self,
        on: DecideOptions<'_>,
        facts: &'f Facts<'f>,
    ) -> Result<Option<RequestDecision<'f>>, B::Error> {
        let request = self.pipeline.start_request(facts);
        let attempt = self.pipeline.decide_with_waiting(&request, on).await?;
        let is_current = !attempt.is_outdated;
        Ok(is_current.then(|| {
            self.pipeline
                .finish_verdict(facts, attempt, request.started_at)
        }))
    }

    /// Decides a request by its facts and by its descriptors. The rules decide by the facts, the trees by the
    /// descriptors, and one backend query covers all of their limits. So all limits are charged, or none, in memory
    /// and on a store alike. If several limits deny, the one with the longest wait is reported. Returns `None` under
    /// the same condition as [`decide_with_conditions`](Self::decide_with_conditions).
    ///
    /// Where a rule has `over: wait`, the request waits for that rule and is charged nothing meanwhile. A tree never
    /// lets requests wait. A domain with [`charging: each`](crate::policy::Charging) is charged before the rules are
    /// checked, and stays charged if a rule denies.
    ///
    /// # Errors
    /// If the backend is unavailable.
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use std::{pin::pin, task::{Context, Poll, Waker}};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// use tollgate_engine::engine::{MixedDecision, DescriptorRequest};
    /// use tollgate_engine::facts::Descriptor;
    /// use tollgate_engine::{DecideOptions, Engine, Facts, Policy};
    ///
    /// let mut policy = Policy::from_text("limits: [{name: calls, key: user, rate: 2/h}]", Format::Yaml)?.policy;
    /// let tree = "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 9}}]";
    /// policy.domains = Policy::from_text(tree, Format::Yaml)?.policy.domains;
    /// let engine = Engine::new(policy, memory)?;
    /// let decide = async || {
    ///     let facts = Facts::new().with("user", "ada");
    ///     let descriptors = [Descriptor::new(&[("user", "ada")])];
    ///     let request = DescriptorRequest { domain: "edge", descriptors: &descriptors, hits_addend: 1 };
    ///     let verdict = engine.decide_with_descriptors(DecideOptions::new(), &facts, request).await?;
    ///     Ok::<_, std::convert::Infallible>(matches!(verdict, Some(MixedDecision::Passed(..))))
    /// };
    /// # let decide = || match pin!(decide()).poll(&mut Context::from_waker(Waker::noop())) {
    /// #     Poll::Ready(Ok(passed)) => passed,
    /// #     _ => unreachable!("memory answers at once"),
    /// # };
    /// assert!(decide() && decide());
    /// assert!(!decide()); // The rule denies it, and the tree isn't charged.
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn decide_with_descriptors<'f>(
        &self,
        on: DecideOptions<'_>,
        facts: &'f Facts<'f>,
        descriptors: DescriptorRequest<'_>,
    ) -> Result<Option<MixedDecision<'f>>, B::Error> {
        self.pipeline.decide_combined(on, facts, descriptors).await
    }

    /// Decides a request of descriptors, as [`decide_descriptors`](Self::decide_descriptors) does, by a backend that
    /// may take time to answer.
    ///
    /// # Errors
    /// If the backend is unavailable.
    pub async fn decide_descriptors_async(
        &self,
        domain: &str,
        descriptors: &[Descriptor<'_>],
        hits_addend: u32,
    ) -> Result<DescriptorDecision, B::Error> {
        let request = DescriptorRequest {
            domain,
            descriptors,
            hits_addend,
        };
        self.pipeline.decide_descriptors(request).await
    }

    /// Whether a request with these facts would hold something if it were allowed: a permit of a concurrency limit,
    /// or an estimated cost. Decides nothing and queries no backend. A caller with little room for such reservations
    /// learns before the decision which requests need one.
    ///
    /// ```
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// let text = "limits: [{name: all, rate: 5/h}, {name: jobs, match: {path: /job}, concurrency: 2}]";
    /// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, Memory::new())?;
    /// assert!(engine.would_hold(&Facts::new().with("path", "/job")));
    /// assert!(!engine.would_hold(&Facts::new().with("path", "/other")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn would_hold(&self, facts: &Facts<'_>) -> bool {
        let now = self.pipeline.active_policy();
        let gathered = self.pipeline.match_request(&now, facts);
        if DecisionBasis::default().is_decided_early(&gathered) {
            return false;
        }
        let mut rules = [&gathered.enforced, &gathered.shadow]
            .into_iter()
            .flat_map(CheckGroup::checks_with_rules);
        gathered.gates.is_some()
            || rules.any(|(_, rule)| now.rules.rules[rule as usize].holds_permits)
    }

    /// Whether a request would hold a permit of a tree if it were allowed.
    ///
    /// ```
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Policy};
    /// use tollgate_engine::engine::DescriptorRequest;
    /// use tollgate_engine::facts::Descriptor;
    ///
    /// let file = "domain: edge\ndescriptors: [{key: job, rate_limit: {concurrency: 2}}]";
    /// let engine = Engine::new(Policy::from_text(file, Format::Yaml)?.policy, Memory::new())?;
    /// let holds = |key: &'static str| {
    ///     let entries = [(key, "a")];
    ///     let descriptors = [Descriptor::new(&entries)];
    ///     engine.would_hold_descriptors(&DescriptorRequest { domain: "edge", descriptors: &descriptors, hits_addend: 1 })
    /// };
    /// assert!(holds("job") && !holds("user"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn would_hold_descriptors(&self, request: &DescriptorRequest<'_>) -> bool {
        let now = self.pipeline.active_policy();
        let orders = now.orders.map(ActiveOverrides::without_counting);
        let input = (self.pipeline).tree_input(&now.rules, orders.as_ref(), *request);
        let lookups = TreeLookups::new(&input);
        let keys = lookups.key_facts(&input);
        let met = lookups.match_limits(&input, &keys);
        let mut checks = met.iter().flatten().flat_map(|met| met.checks(met.cost()));
        checks.any(|check| matches!(check.limit.kind(), LimitKind::Concurrency(_)))
    }

    /// Returns what [`decide_async`](Self::decide_async) would decide now without waiting. Charges nothing, holds
    /// nothing and reports nothing to the observer. If a limit has waiters, `retry_after` is the wait of one more.
    ///
    /// # Errors
    /// If the backend is unavailable for the rules in force. Rules in shadow mode are left out then.
    ///
    /// ```
    /// # use std::{pin::pin, task::{Context, Poll, Waker}};
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// # let policy = Policy::from_text("limits: [{name: all, rate: 5/h}]", Format::Yaml)?.policy;
    /// let engine = Engine::new(policy, memory)?;
    /// let left = async || {
    ///     let facts = Facts::new();
    ///     let findings = engine.peek_async(&facts).await?;
    ///     Ok::<u64, std::convert::Infallible>(findings.decision().remaining)
    /// };
    /// # let done = pin!(left()).poll(&mut Context::from_waker(Waker::noop()));
    /// # assert_eq!(done, Poll::Ready(Ok(5)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn peek_async<'f>(
        &self,
        facts: &'f Facts<'f>,
    ) -> Result<DecisionDetails<'f>, B::Error> {
        let now = self.pipeline.active_policy();
        let mut said = DecisionBasis::default();
        {
            let gathered = self.pipeline.match_request(&now, facts);
            if !said.is_decided_early(&gathered) {
                let asking = self.pipeline.backend_query(&now.rules, &gathered);
                asking.peek(&mut said).await?;
            }
        }
        let rules = Guard::from_inner(now.rules);
        Ok(DecisionDetails {
            decision_data: said,
            rules,
            facts,
        })
    }

    /// What remains of each limit that applies to a request, by a backend that may take time to answer. Charges
    /// nothing.
    ///
    /// # Errors
    /// If the backend is unavailable.
    pub async fn remaining_async(
        &self,
        facts: &Facts<'_>,
    ) -> Result<Vec<LimitRemaining>, B::Error> {
        self.pipeline.remaining_by_limit(facts).await
    }
}
