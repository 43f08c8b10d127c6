//! Requests of descriptors, Envoy's form, decided by a tree of limits.

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

/// The decision about a request of descriptors: allowed, with the permits that it holds, or denied.
///
/// Match on it, and keep an allowed request for as long as it runs: dropping it releases the permits of its
/// concurrency limits. Either variant gives the [findings](DescriptorFindings).
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
/// let denied = second.denied().expect("the second");
/// assert_eq!((denied.retry_after.as_secs(), denied.decider), (3_600, Some(0)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "what passed gives back its slots when it is dropped: match on it, and keep it while the request runs"]
pub enum DescriptorDecision {
    /// The request is allowed: `StatusCode::Ok`.
    Allowed(AllowedDescriptors),
    /// The request is denied: `StatusCode::OverLimit`.
    Denied(DescriptorFindings),
}

/// An allowed request of descriptors, with what it holds while it runs.
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

/// The details of a decision about descriptors, allowed or denied.
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
/// let log = |findings: &DescriptorFindings| format!("{:?} decided, {:?}", findings.decider, findings.retry_after);
/// let ada = [Descriptor::new(&[("user", "ada")])];
/// assert_eq!(log(&engine.decide_descriptors("edge", &ada, 1)), "Some(0) decided, 0ns");
/// assert_eq!(log(&engine.decide_descriptors("edge", &ada, 1)), "Some(0) decided, 3600s");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct DescriptorFindings {
    /// The status of each descriptor, in the order of the request.
    pub statuses: Vec<DescriptorStatus>,
    /// The descriptor that decided: for a denied request the one with the longest wait, otherwise the one with the
    /// fewest such requests remaining. `None` if no descriptor has a limit.
    pub decider: Option<usize>,
    /// How long until the request would be allowed. Zero if it is.
    pub retry_after: Duration,
    /// Why the request was denied. `None` if it was allowed.
    pub reason: Option<DenyReason>,
    /// The limit that denied the request, among those of its descriptor. `None` if it was allowed, or no limit denied
    /// it.
    pub limit: Option<LimitKind>,
    /// What decided if a store was unavailable. `None` if the store answered, or there is none.
    pub fallback: Option<OnStoreFailure>,
    /// Why the store was unavailable, for the descriptor that decided.
    pub unavailable: Option<StoreUnavailable>,
    /// The [bound](crate::Bounds) that the request exceeds. In that case no limit was checked, and no descriptor has
    /// a status.
    pub too_much: Option<BoundExceeded<'static>>,
}

impl DescriptorDecision {
    /// The allowed request. `None` if it was denied.
    pub fn allowed(self) -> Option<AllowedDescriptors> {
        match self {
            Self::Allowed(passed) => Some(passed),
            Self::Denied(_) => None,
        }
    }

    /// The findings of a denied request. `None` if it was allowed.
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
    /// The permits that the request holds while it runs. They borrow nothing, so they can move into a task.
    pub fn into_permits(self) -> Permits {
        self.permits
    }

    /// The findings of the request, and its permits.
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

/// The status of one descriptor.
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
    /// Whether the descriptor alone is allowed.
    pub code: StatusCode,
    /// The limit that matches, as `domain/key=value/key`. `None` if none does.
    pub limit: Option<String>,
    /// The decision of that limit, unless it is unlimited.
    pub decision: Option<Decision>,
    /// That limit in the proxy's form, unless it is unlimited.
    pub current_limit: Option<CurrentLimit>,
    /// How much would be allowed now: 2³²−1 without a limit, 0 if that isn't known.
    pub remaining: u32,
    /// Whether a limit in shadow mode would have denied it.
    pub would_deny: bool,
    /// The charge: 0 for a denied request, unless the domain has [`charging: each`](crate::policy::Charging).
    pub charged: u64,
}

/// A request as a proxy describes it: a domain, and descriptors in it.
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
    /// The domain, which selects the part of the policy that applies.
    pub domain: &'a str,
    /// The descriptors of the request, each matched by itself.
    pub descriptors: &'a [Descriptor<'a>],
    /// The cost of each descriptor that has none of its own. Zero means one.
    pub hits_addend: u32,
}

/// A limit in the proxy's form: a count per unit.
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
    /// The count.
    pub requests_per_unit: u32,
    /// The unit, if the period is one of Envoy's units.
    pub unit: Option<Unit>,
    /// The name of the limit.
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
