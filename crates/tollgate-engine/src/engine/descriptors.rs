//! Requests that come as lists of descriptors, Envoy's form, decided by a tree of them.

use std::ops::Deref;
use std::time::Duration;

use tollgate::Decision;

use crate::bounds::BoundExceeded;
use crate::envoy::{self, StatusCode};
use crate::facts::{Descriptor, Unit};
use crate::limits::{LimitKind, StoreUnavailable};
use crate::policy::OnStoreFailure;
use crate::verdict::{DenyReason, Permits};

mod counter_pool;
mod reporting;
mod tree_charge;
mod tree_lookup;
mod trees;

pub(crate) use trees::{LeafKey, Trees};

pub(super) use reporting::{ReportOptions, TreeRequest};
pub(super) use tree_charge::{TreeCharge, TreeDecision};
pub(super) use tree_lookup::{TreeInput, TreeLookups};

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
/// use tollgate_engine::engine::DescriptorDecision;
///
/// let file = "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1}}]";
/// let engine = Engine::new(Policy::from_text(file, Format::Yaml)?.policy, memory)?;
/// let ada = [Descriptor::new(&[("user", "ada")])];
/// match engine.decide_descriptors("edge", &ada, 1) {
///     DescriptorDecision::Allowed(passed) => {
///         // The request runs here, or in a task that `passed.into_permits()` is moved into.
///         assert_eq!(passed.statuses[0].charged, 1);
///     }
///     DescriptorDecision::Denied(_) => panic!("the first in an hour"),
/// }
/// let second = engine.decide_descriptors("edge", &ada, 1);
/// let refused = second.denied().expect("the second");
/// assert_eq!((refused.retry_after.as_secs(), refused.decider), (3_600, Some(0)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "what passed gives back its slots when it is dropped: match on it, and keep it while the request runs"]
pub enum DescriptorDecision {
    /// The request may pass: `StatusCode::Ok`.
    Allowed(AllowedDescriptors),
    /// It may not: `StatusCode::OverLimit`.
    Denied(DescriptorFindings),
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
/// let permits = engine.decide_descriptors("edge", &ada, 1).allowed().expect("the first").into_permits();
/// assert!(engine.decide_descriptors("edge", &ada, 1).denied().is_some());
/// drop(permits);
/// assert!(engine.decide_descriptors("edge", &ada, 1).denied().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "what passed gives back its slots when it is dropped"]
pub struct AllowedDescriptors {
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
    /// Why a store couldn't be asked, of the descriptor that decided.
    pub unavailable: Option<StoreUnavailable>,
    /// What the request has more of than [is taken](crate::RequestBounds), in which case no limit was asked, and no
    /// descriptor has a status.
    pub too_much: Option<BoundExceeded<'static>>,
}

impl DescriptorDecision {
    /// What passed; none if it was refused.
    pub fn allowed(self) -> Option<AllowedDescriptors> {
        match self {
            Self::Allowed(passed) => Some(passed),
            Self::Denied(_) => None,
        }
    }

    /// What was refused; none if it passed.
    pub fn denied(&self) -> Option<&DescriptorFindings> {
        match self {
            Self::Allowed(_) => None,
            Self::Denied(findings) => Some(findings),
        }
    }

    pub(super) fn new(code: StatusCode, findings: DescriptorFindings, permits: Permits) -> Self {
        match code {
            StatusCode::Ok => Self::Allowed(AllowedDescriptors { findings, permits }),
            StatusCode::OverLimit => Self::Denied(findings),
        }
    }
}

impl AllowedDescriptors {
    /// What holds the slots of the request while it runs. It borrows nothing, so it may be moved into a task.
    pub fn into_permits(self) -> Permits {
        self.permits
    }

    /// What is told of the request, and its permits.
    pub fn into_parts(self) -> (DescriptorFindings, Permits) {
        (self.findings, self.permits)
    }
}

impl Deref for DescriptorDecision {
    type Target = DescriptorFindings;

    fn deref(&self) -> &DescriptorFindings {
        match self {
            Self::Allowed(passed) => passed,
            Self::Denied(findings) => findings,
        }
    }
}

impl Deref for AllowedDescriptors {
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
    pub would_deny: bool,
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
