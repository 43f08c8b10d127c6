//! Requests that come as lists of descriptors, Envoy's form, decided by a tree of them.

use std::ops::Deref;
use std::time::Duration;

use tollgate::{Clock, Decision, Timestamp};

use super::gather::TreeMatch;
use super::orders::{Held, InForce};
use super::rules::Rules;
use super::{Engine, ready};
use crate::backend::{Backend, Memory, Refund};
use crate::bounds::{Bounds, TooMuch};
use crate::envoy::{self, Charge, StatusCode};
use crate::facts::{Descriptor, Facts, Unit};
use crate::limits::LimitKind;
use crate::policy::{Mode, OnStoreFailure};
use crate::verdict::{DenyReason, Permits};

mod charge;
mod lookups;
mod ordered;
mod pool;
mod told;
mod trees;

pub(crate) use trees::{LeafKey, Trees};

pub(super) use charge::TreeCharge;
pub(super) use lookups::Lookups;
pub(super) use told::{Telling, TreeRequest};

use charge::Decided;
use trees::Met;

/// The answer to a request of several descriptors: it passes and holds what it takes, or it is refused.
///
/// Match on it, and keep what passed for as long as the request runs: slots of concurrency limits are given
/// back when it is dropped. Either way it tells [what was found](DescriptorFindings).
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Facts, Policy};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// # use tollgate_engine::facts::Descriptor;
/// use tollgate_engine::engine::DescriptorVerdict;
///
/// let file = "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1}}]";
/// let engine = Engine::new(Policy::from_text(file, Format::Yaml)?.policy, memory)?;
/// let ada = [Descriptor::new(&[("user", "ada")])];
/// match engine.decide_descriptors("edge", &ada, 1) {
///     DescriptorVerdict::Passed(passed) => {
///         // The request runs here, or in a task that `passed.into_permits()` is moved into.
///         assert_eq!(passed.statuses[0].charged, 1);
///     }
///     DescriptorVerdict::Refused(_) => panic!("the first in an hour"),
/// }
/// let second = engine.decide_descriptors("edge", &ada, 1);
/// let refused = second.refused().expect("the second");
/// assert_eq!((refused.retry_after.as_secs(), refused.decider), (3_600, Some(0)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "what passed gives back its slots when it is dropped: match on it, and keep it while the request runs"]
pub enum DescriptorVerdict {
    /// The request may pass: `StatusCode::Ok`.
    Passed(DescriptorsPassed),
    /// It may not: `StatusCode::OverLimit`.
    Refused(DescriptorFindings),
}

/// A request of descriptors that may pass, with what it holds while it runs.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::facts::Descriptor;
/// # use tollgate_engine::{Engine, Policy};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// let file = "domain: edge\ndescriptors: [{key: user, rate_limit: {concurrency: 1}}]";
/// let engine = Engine::new(Policy::from_text(file, Format::Yaml)?.policy, memory)?;
/// let ada = [Descriptor::new(&[("user", "ada")])];
/// let permits = engine.decide_descriptors("edge", &ada, 1).passed().expect("the first").into_permits();
/// assert!(engine.decide_descriptors("edge", &ada, 1).refused().is_some());
/// drop(permits);
/// assert!(engine.decide_descriptors("edge", &ada, 1).refused().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "what passed gives back its slots when it is dropped"]
pub struct DescriptorsPassed {
    findings: DescriptorFindings,
    permits: Permits,
}

/// What is told of a request of descriptors, whether it passed or was refused.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::facts::Descriptor;
/// # use tollgate_engine::{Engine, Policy};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// # let file = "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1}}]";
/// # let engine = Engine::new(Policy::from_text(file, Format::Yaml)?.policy, memory)?;
/// use tollgate_engine::engine::DescriptorFindings;
///
/// let log = |told: &DescriptorFindings| format!("{:?} decided, {:?}", told.decider, told.retry_after);
/// let ada = [Descriptor::new(&[("user", "ada")])];
/// assert_eq!(log(&engine.decide_descriptors("edge", &ada, 1)), "Some(0) decided, 0ns");
/// assert_eq!(log(&engine.decide_descriptors("edge", &ada, 1)), "Some(0) decided, 3600s");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct DescriptorFindings {
    /// The answer for each descriptor, in their order.
    pub statuses: Vec<DescriptorStatus>,
    /// Which of them decided: of a request that is refused the one that has to be waited for, or else the one
    /// with the fewest such requests left. None if none meets a limit.
    pub decider: Option<usize>,
    /// How long until what refused would pass; zero if it passes.
    pub retry_after: Duration,
    /// Why it was refused; none if it passed.
    pub reason: Option<DenyReason>,
    /// The limit that refused it, of those that its descriptor has; none if it passed, or no limit did.
    pub limit: Option<LimitKind>,
    /// What decided if a store couldn't be asked; none if it was, or there is none.
    pub fallback: Option<OnStoreFailure>,
    /// What the request has more of than [is taken](crate::Bounds), in which case no limit was asked, and no
    /// descriptor has a status.
    pub too_much: Option<TooMuch<'static>>,
}

impl DescriptorVerdict {
    /// What passed; none if it was refused.
    pub fn passed(self) -> Option<DescriptorsPassed> {
        match self {
            Self::Passed(passed) => Some(passed),
            Self::Refused(_) => None,
        }
    }

    /// What was refused; none if it passed.
    pub fn refused(&self) -> Option<&DescriptorFindings> {
        match self {
            Self::Passed(_) => None,
            Self::Refused(findings) => Some(findings),
        }
    }

    fn new(code: StatusCode, findings: DescriptorFindings, permits: Permits) -> Self {
        match code {
            StatusCode::Ok => Self::Passed(DescriptorsPassed { findings, permits }),
            StatusCode::OverLimit => Self::Refused(findings),
        }
    }
}

impl DescriptorsPassed {
    /// What holds the slots of the request while it runs. It borrows nothing, so it may be moved into a task.
    pub fn into_permits(self) -> Permits {
        self.permits
    }

    /// What is told of the request, and its permits.
    pub fn into_parts(self) -> (DescriptorFindings, Permits) {
        (self.findings, self.permits)
    }
}

impl Deref for DescriptorVerdict {
    type Target = DescriptorFindings;

    fn deref(&self) -> &DescriptorFindings {
        match self {
            Self::Passed(passed) => passed,
            Self::Refused(findings) => findings,
        }
    }
}

impl Deref for DescriptorsPassed {
    type Target = DescriptorFindings;

    fn deref(&self) -> &DescriptorFindings {
        &self.findings
    }
}

/// The answer for one descriptor.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Facts, Policy};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// # use tollgate_engine::{envoy::StatusCode, facts::Descriptor};
/// let file = "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1}}]";
/// let engine = Engine::new(Policy::from_text(file, Format::Yaml)?.policy, memory)?;
/// let descriptors = [Descriptor::new(&[("user", "ada")]), Descriptor::new(&[("path", "/")])];
/// let verdict = engine.decide_descriptors("edge", &descriptors, 1);
/// let statuses = &verdict.statuses;
/// assert_eq!(statuses[0].limit.as_deref(), Some("edge/user"));
/// assert_eq!((statuses[1].code, &statuses[1].limit), (StatusCode::Ok, &None));
/// assert_eq!((statuses[0].charged, statuses[1].charged), (1, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DescriptorStatus {
    /// Whether it passes by itself.
    pub code: StatusCode,
    /// The limit that was found, as `domain/key=value/key`; none if there is none.
    pub limit: Option<String>,
    /// What that says, if it limits.
    pub decision: Option<Decision>,
    /// That limit in the proxy's words, if it limits.
    pub current_limit: Option<CurrentLimit>,
    /// How much would pass now: 2³²−1 where nothing limits, 0 where nothing is said.
    pub remaining: u32,
    /// A limit in shadow mode would have refused it.
    pub would_refuse: bool,
    /// What it was charged: 0 of a request that is refused, unless the domain [charges
    /// each](crate::policy::Charging).
    pub charged: u64,
}

/// A request as a proxy describes it: a domain, and lists of entries in it.
///
/// ```
/// use tollgate_engine::engine::DescriptorRequest;
/// use tollgate_engine::facts::Descriptor;
///
/// let descriptors = [Descriptor::new(&[("user", "ada")])];
/// let request = DescriptorRequest { domain: "edge", descriptors: &descriptors, hits_addend: 1 };
/// assert_eq!(request.descriptors.len(), 1);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct DescriptorRequest<'a> {
    /// The part of the policy that applies.
    pub domain: &'a str,
    /// What is known of the request, each by itself.
    pub descriptors: &'a [Descriptor<'a>],
    /// The cost of each descriptor that has none of its own; zero means one.
    pub hits_addend: u32,
}

/// By what a request of descriptors is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decider {
    /// The trees alone: they count the request.
    Trees,
    /// The trees, and then the rules, which count a request that the trees let pass.
    TreesThenRules,
}

/// A limit in the proxy's words: so many in a unit.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Policy};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// use tollgate_engine::facts::{Descriptor, Unit};
///
/// let file = "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 5, name: users}}]";
/// let engine = Engine::new(Policy::from_text(file, Format::Yaml)?.policy, memory)?;
/// let verdict = engine.decide_descriptors("edge", &[Descriptor::new(&[("user", "ada")])], 1);
/// let limit = verdict.statuses[0].current_limit.as_ref().expect("a limit");
/// assert_eq!((limit.requests_per_unit, limit.unit, limit.name.as_deref()), (5, Some(Unit::Hour), Some("users")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CurrentLimit {
    /// How many.
    pub requests_per_unit: u32,
    /// In how long, if that is one of their units.
    pub unit: Option<Unit>,
    /// What people call it.
    pub name: Option<String>,
}

impl CurrentLimit {
    fn of(told: &envoy::CurrentLimit<'_>) -> Self {
        Self {
            requests_per_unit: told.requests_per_unit,
            unit: told.unit,
            name: told.name.map(str::to_owned),
        }
    }
}

impl<C: Clock + 'static, W: Clock + 'static> Engine<Memory<C, W>> {
    /// Decides a request that a proxy describes by lists of entries, in one of the policy's domains.
    ///
    /// Hits on one counter add up: descriptors that meet the same are judged by the sum of their costs. A
    /// limit that the proxy asks for in place of the policy's counts in the same counter if it is by the same
    /// unit.
    ///
    /// Limits are charged all or none, unless the domain says [`charging: each`](crate::policy::Charging).
    /// Those in quota mode that refuse while others of their kind don't are left out of it, and those in shadow
    /// are charged by themselves, if the request passes. What a descriptor gives back is given back first, and
    /// it passes.
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
    /// let passed = (0..5).filter_map(|_| engine.decide_descriptors("edge", &ada, 1).passed());
    /// assert_eq!(passed.count(), 2);
    /// assert!(engine.decide_descriptors("mesh", &ada, 1).passed().is_some());
    /// ```
    pub fn decide_descriptors(
        &self,
        domain: &str,
        descriptors: &[Descriptor<'_>],
        hits_addend: u32,
    ) -> DescriptorVerdict {
        ready(self.decide_descriptors_async(domain, descriptors, hits_addend))
    }
}

impl<B: Backend> Engine<B> {
    /// Decides a request of descriptors, as [`decide_descriptors`](Self::decide_descriptors) does, by a backend
    /// that may take its time.
    ///
    /// # Errors
    /// If the backend couldn't be asked.
    pub async fn decide_descriptors_async(
        &self,
        domain: &str,
        descriptors: &[Descriptor<'_>],
        hits_addend: u32,
    ) -> Result<DescriptorVerdict, B::Error> {
        let request = DescriptorRequest {
            domain,
            descriptors,
            hits_addend,
        };
        let started = self.recorder.started(&self.backend);
        let rules = self.rules.load_full();
        if let Some(what) = self.too_much(descriptors) {
            return Ok(self.exceeded(rules.mode, what, (started, Decider::Trees)));
        }
        let deciding = self.decide_trees(&rules, &request, (started, Decider::Trees));
        Ok(deciding.await?.0)
    }

    /// Decides a request by its descriptors alone, or before the rules decide it.
    pub(super) async fn decide_trees(
        &self,
        rules: &Rules,
        request: &DescriptorRequest<'_>,
        (started, decider): (Option<Timestamp>, Decider),
    ) -> Result<(DescriptorVerdict, TreeMatch), B::Error> {
        let orders = self.ordered(rules);
        let lookups = Lookups::new(&rules.trees, request);
        let keys = lookups.keys(&rules.trees, request);
        let orders = orders.as_ref().map(Held::in_force);
        let met = self.match_trees(rules, request, (&lookups, &keys), orders);
        self.note_tree_match(rules, request, &met);
        self.give_back_first(&met).await?;
        let told = TreeRequest {
            rules,
            found: &lookups.found,
            met: &met,
        };
        let mut charge = TreeCharge::new(&told, request.domain);
        let mut permits = Permits::default();
        if let Some(asked) = charge.charge(&self.backend, &[]).await? {
            permits.own = asked.answer.pass;
            permits.shadows = charge.take_permits();
        }
        (charge.settle_shadows(&self.backend, &mut permits, &[])).await;
        let telling = Telling {
            started,
            counts_request: decider == Decider::Trees
                || (!charge.allowed && rules.mode == Mode::Enforce),
        };
        let tree_match = charge.tree_match(rules);
        let (code, findings) = self.descriptor_findings(&told, charge.decided(), telling);
        Ok((DescriptorVerdict::new(code, findings, permits), tree_match))
    }

    /// Whether a request would hold a permit of a tree if it passed.
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
        let rules = self.rules.load_full();
        let orders = self.ordered(&rules);
        let lookups = Lookups::new(&rules.trees, request);
        let keys = lookups.keys(&rules.trees, request);
        let orders = orders.as_ref().map(|held| held.in_force().uncounted());
        let met = self.match_trees(&rules, request, (&lookups, &keys), orders);
        let mut checks = met.iter().flatten().flat_map(|met| met.checks(met.cost()));
        checks.any(|check| matches!(check.limit.kind(), LimitKind::Concurrency(_)))
    }

    /// The limits that the descriptors of a request match, as operators have changed them.
    pub(super) fn match_trees<'a>(
        &self,
        rules: &'a Rules,
        request: &DescriptorRequest<'a>,
        (lookups, keys): (&'a Lookups<'a>, &'a [Facts<'a>]),
        orders: Option<InForce<'a>>,
    ) -> Vec<Option<Met<'a>>> {
        let each = request.descriptors.iter().zip(lookups.each()).zip(keys);
        let met = each.map(|((descriptor, asked), facts)| {
            let place = (request.domain, descriptor);
            let mut met = rules.trees.meet(&self.hashers, place, asked, facts)?;
            met.charge = envoy::charge(descriptor, request.hits_addend);
            Some(met)
        });
        let mut met: Vec<_> = met.collect();
        if let Some(orders) = orders {
            ordered::heed(&lookups.found, &mut met, orders);
        }
        met
    }

    /// Notes whether the trees match anything, to warn of those that never do.
    pub(super) fn note_tree_match(
        &self,
        rules: &Rules,
        request: &DescriptorRequest<'_>,
        met: &[Option<Met<'_>>],
    ) {
        if met.iter().any(Option::is_some) {
            rules.trees.seen.note_found();
        } else {
            let recorder = &self.recorder;
            recorder.note_unmet_descriptors(rules, request.domain, request.descriptors);
        }
    }

    /// Gives back the cost of descriptors that ask for a refund.
    pub(super) async fn give_back_first(&self, met: &[Option<Met<'_>>]) -> Result<(), B::Error> {
        for met in met.iter().flatten() {
            if let Charge::GiveBack(units) = met.charge {
                let checks: Vec<_> = met.checks(units).collect();
                self.backend.refund(&checks, Refund::Cost).await?;
            }
        }
        Ok(())
    }

    /// The status of each descriptor of a request that was decided so, and that of the request.
    pub(super) fn descriptor_findings(
        &self,
        request: &TreeRequest<'_, '_>,
        decided: Decided,
        telling: Telling,
    ) -> (StatusCode, DescriptorFindings) {
        let TreeRequest { rules, found, met } = *request;
        let statuses: Vec<_> = (found.iter().zip(&decided.each).zip(met))
            .map(|((lookup, decision), met)| {
                let status = envoy::status(*lookup, decision.as_slice());
                ordered::told(status, met.as_ref())
            })
            .collect();
        let told: Vec<_> = (found.iter().zip(&statuses))
            .zip(
                decided
                    .each
                    .iter()
                    .copied()
                    .zip(decided.charged.iter().copied()),
            )
            .map(|((lookup, status), (decision, charged))| DescriptorStatus {
                code: status.code,
                current_limit: status.current_limit.as_ref().map(CurrentLimit::of),
                remaining: status.remaining,
                limit: lookup.leaf().map(ToString::to_string),
                decision,
                would_refuse: status.would_refuse,
                charged,
            })
            .collect();
        if self.recorder.is_told() {
            let recorder = &self.recorder;
            recorder.tell_descriptors(request, &decided, &told, telling, &self.backend);
        }
        let code = match rules.mode {
            Mode::Enforce if !decided.allowed => StatusCode::OverLimit,
            _ => StatusCode::Ok,
        };
        debug_assert_eq!(code, envoy::overall(&statuses, rules.mode), "{statuses:?}");
        let (reason, limit) = match code {
            StatusCode::Ok => (None, None),
            StatusCode::OverLimit => request.why(&decided),
        };
        let findings = DescriptorFindings {
            statuses: told,
            decider: decided.decider,
            reason,
            limit,
            retry_after: match code {
                StatusCode::Ok => Duration::ZERO,
                StatusCode::OverLimit => decided.retry_after,
            },
            fallback: decided.fallback,
            too_much: None,
        };
        (code, findings)
    }

    pub(super) fn too_much(&self, descriptors: &[Descriptor<'_>]) -> Option<TooMuch<'static>> {
        let Bounds {
            descriptors: most,
            fact_bytes,
            ..
        } = self.bounds;
        if descriptors.len() > most {
            let found = descriptors.len();
            return Some(TooMuch::Descriptors { found, most });
        }
        let entries = descriptors.iter().flat_map(|one| one.entries);
        let lengths = entries.flat_map(|(key, value)| [key.len(), value.len()]);
        let bytes = lengths.max().filter(|bytes| *bytes > fact_bytes)?;
        let most = fact_bytes;
        Some(TooMuch::Entry { bytes, most })
    }

    /// The answer to a request that has too much of something.
    #[cold]
    pub(super) fn exceeded(
        &self,
        mode: Mode,
        what: TooMuch<'static>,
        (started, decider): (Option<Timestamp>, Decider),
    ) -> DescriptorVerdict {
        let telling = Telling {
            started,
            counts_request: decider == Decider::Trees || mode == Mode::Enforce,
        };
        (self.recorder).tell_exceeded(mode, what, telling, &self.backend);
        let (code, retry_after) = match mode {
            Mode::Enforce => (StatusCode::OverLimit, Duration::MAX),
            _ => (StatusCode::Ok, Duration::ZERO),
        };
        let findings = DescriptorFindings {
            statuses: Vec::new(),
            decider: None,
            reason: (code == StatusCode::OverLimit).then_some(DenyReason::TooLarge),
            limit: None,
            retry_after,
            fallback: None,
            too_much: Some(what),
        };
        DescriptorVerdict::new(code, findings, Permits::default())
    }
}
