//! The details of a decision, allowed or denied: its cause, key and limit, and what rules in shadow mode would have
//! denied.

use std::sync::Arc;

use arc_swap::Guard;
use tollgate::Decision;

use super::{Cause, DecidedBy, DecisionBasis, DenyReason, is_near_limit};
use crate::engine::rules::CompiledPolicy;
use crate::facts::Facts;
use crate::limits::{Limit, LimitKind, RequestKey};
use crate::policy::{Mode, OnStoreFailure};

/// The details of a decision, allowed or denied: its cause, its key, and what remains.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Facts, Policy};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// # let text = "limits: [{name: searches, rate: 10/h}]";
/// # let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
/// use tollgate_engine::verdict::{Cause, DecisionDetails};
///
/// let log = |details: &DecisionDetails<'_>| format!("{}, {} left", details.cause(), details.decision().remaining);
/// assert_eq!(log(&engine.decide(&Facts::new())), "rule \"searches\", 9 left");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(derive_more::Debug)]
#[debug(
    "Findings {{ cause: {:?}, decision: {:?}, .. }}",
    self.cause(),
    decision_data.rule_decision.decision
)]
pub struct DecisionDetails<'f> {
    pub(crate) decision_data: DecisionBasis,
    /// The policy that made the decision.
    pub(crate) rules: Guard<Arc<CompiledPolicy>>,
    pub(crate) facts: &'f Facts<'f>,
}

/// What a rule in shadow mode would have denied.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Facts, Policy, RequestDecision};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// # use tollgate_engine::verdict::Cause;
/// let text = "limits: [{name: trial, rate: 1/h, mode: shadow}]";
/// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
/// let facts = Facts::new();
/// let _ = engine.decide(&facts);
/// let RequestDecision::Allowed(passed) = engine.decide(&facts) else { panic!("it is on trial") };
/// let refusal = passed.shadow_denials().next().expect("the second in an hour");
/// assert_eq!((refusal.cause, refusal.decision.wait_or_max().as_secs()), (Cause::Rule("trial"), 3_600));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShadowDenial<'a> {
    /// The rule.
    pub cause: Cause<'a>,
    /// The decision that it would have made.
    pub decision: Decision,
    /// The percentage of keys for which the rule is enforced: 0 unless it is being rolled out.
    pub enforced_percent: u8,
}

/// What remains of one limit that applied to a request.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Facts, Policy};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// let text = "limits: [{name: api, rate: 10/s, quota: 1000/month, concurrency: 3}]";
/// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
/// let facts = Facts::new();
/// let verdict = engine.decide_listing_limits(&facts);
/// let limits = verdict.limits().map(|limit| format!("{}: {}", limit.kind, limit.decision.remaining));
/// assert_eq!(limits.collect::<Vec<_>>(), ["10/s: 9", "1000/month: 999", "3 concurrent: 2"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct LimitState<'a> {
    /// The rule or tier.
    pub cause: Cause<'a>,
    /// The limit.
    pub kind: &'a LimitKind,
    /// What remains, or how long the request would have to wait for this limit alone.
    pub decision: Decision,
}

impl DecisionDetails<'_> {
    /// The limits that applied, the most urgent first: those that deny, then those with the fewest such requests
    /// remaining, and concurrency limits that allow last. It is only the limit that decided, unless the call asked to
    /// [list](crate::DecideOptions::listing_limits) them. A cached denial also has only that limit.
    pub fn limits(&self) -> impl Iterator<Item = LimitState<'_>> {
        let listed = self.decision_data.limits.as_deref();
        let decider = if listed.is_some() { None } else { self.limit() };
        let decider = decider.map(|limit| LimitState {
            cause: self.cause(),
            kind: limit.kind(),
            decision: self.decision_data.rule_decision.decision,
        });
        let each = listed.unwrap_or_default().iter().map(|met| LimitState {
            cause: met.by.cause(&self.rules),
            kind: &met.kind,
            decision: met.decision,
        });
        each.chain(decider)
    }

    /// What made the decision: for an allowed request, the rule with the fewest such requests remaining.
    pub fn cause(&self) -> Cause<'_> {
        self.decision_data.rule_decision.by.cause(&self.rules)
    }

    /// Whether the cause is enforced for this key, or only counts. [`shadow_denials`](Self::shadow_denials) lists all
    /// denials in shadow mode.
    pub fn mode(&self) -> Mode {
        match (self.decision_data.rule_decision.by.rule(), self.key()) {
            (Some(number), Some(key)) => self.rules.rules[number as usize].mode_for(&key),
            _ => self.rules.mode,
        }
    }

    /// The percentage of keys for which the cause is enforced: 100, or 0 in shadow mode, unless it is being rolled
    /// out (`mode: {enforce: 10%}`).
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # use tollgate_engine::policy::Mode;
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// let text = "limits: [{name: new, key: user, rate: 1/h, mode: {enforce: 99%}}]";
    /// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
    /// let facts = Facts::new().with("user", "42");
    /// let verdict = engine.decide(&facts);
    /// assert_eq!((verdict.mode(), verdict.enforced_percent()), (Mode::Enforce, 99));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn enforced_percent(&self) -> u8 {
        self.decision_data
            .rule_decision
            .by
            .enforced_percent(&self.rules)
    }

    /// One decision for all limits: what remains of the tightest, or of those that denied, the one with the largest
    /// `retry_after`. A request that no limit applies to has no limit, and a blocked request can never be allowed.
    pub fn decision(&self) -> &Decision {
        &self.decision_data.rule_decision.decision
    }

    /// The key that was charged. `None` if no rule decided.
    pub fn key(&self) -> Option<RequestKey<'_>> {
        self.decision_data
            .rule_decision
            .key(&self.rules, self.facts)
    }

    /// Why the request was denied, in one word. `None` if it was allowed.
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// use tollgate_engine::verdict::DenyReason;
    ///
    /// let text = "limits: [{name: searches, rate: 1/h}]";
    /// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
    /// assert_eq!(engine.decide(&Facts::new()).reason(), None);
    /// assert_eq!(engine.decide(&Facts::new()).reason(), Some(DenyReason::Rate));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reason(&self) -> Option<DenyReason> {
        (!self.decision_data.is_allowed).then(|| self.decision_data.reason(&self.rules))
    }

    /// Whether the request was allowed, and the use of the limit that decided is what the policy calls near: 80 % by
    /// default.
    pub fn is_near_limit(&self) -> bool {
        self.decision_data.is_allowed
            && is_near_limit(
                &self.decision_data.rule_decision.decision,
                self.rules.near_limit_percent,
            )
    }

    /// The limit that decided, for headers that state it. `None` if none did.
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
    /// let verdict = engine.decide(&facts);
    /// let kind = verdict.limit().expect("the tightest").kind();
    /// let (quota, window) = (kind.quota().expect("a rate"), kind.window().expect("a rate"));
    /// let left = verdict.decision().remaining;
    /// assert_eq!(format!("q={quota};w={};r={left}", window.as_secs()), "q=5;w=1;r=4");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn limit(&self) -> Option<&Limit> {
        let DecisionBasis {
            rule_decision: decided,
            decided_at: at,
            ..
        } = &self.decision_data;
        let mut changed = self
            .decision_data
            .limit_override
            .iter()
            .flat_map(|own| &own.limits);
        let found = changed.find(|limit| limit.id == decided.limit);
        // The adaptive limit is always the rule's own, even if an override replaces its other limits.
        found.or_else(|| decided.limit(&self.rules, *at))
    }

    /// The number of the [override](crate::overrides) that decided: a block, or a limit in place of the policy's.
    /// `None` if there was none.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{Rate, clock::Manual};
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// use tollgate_engine::overrides::{OverrideAction, NewOverride, ReplacementLimits, Target};
    ///
    /// let text = "limits: [{name: searches, rate: 1/h}]";
    /// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
    /// let more = OverrideAction::Limit(ReplacementLimits { rates: vec![Rate::per_hour(9)], ..ReplacementLimits::default() });
    /// let order = engine.add_override(NewOverride::new(more, Target::rule("searches"), Duration::from_secs(60)))?;
    /// let facts = Facts::new();
    /// let verdict = engine.decide(&facts);
    /// assert_eq!((verdict.override_id(), verdict.decision().remaining), (Some(order.id), 8));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn override_id(&self) -> Option<u64> {
        let changed = self
            .decision_data
            .limit_override
            .as_ref()
            .map(|changed| changed.order.id);
        self.decision_data.block_id.or(changed)
    }

    /// What rules in shadow mode would have denied, in the order of the file. For a denied request they aren't
    /// checked, since it would have been charged nothing.
    pub fn shadow_denials(&self) -> impl Iterator<Item = ShadowDenial<'_>> {
        let shadows = self.decision_data.shadows.as_slice().iter();
        shadows.map(|shadowed| ShadowDenial {
            cause: shadowed.by.cause(&self.rules),
            decision: shadowed.decision,
            enforced_percent: shadowed.by.enforced_percent(&self.rules),
        })
    }

    /// What decided if a store was unavailable. `None` if the store answered, or there is none.
    ///
    /// A request that is denied because the store is unavailable ([`Cause::StoreFailure`]) needs another response
    /// than one over a limit: 503, not 429.
    pub fn fallback(&self) -> Option<OnStoreFailure> {
        self.decision_data.unavailable.map(|store| store.fallback)
    }
}

impl DecisionDetails<'_> {
    /// Whether no rule and no list has decided anything, enforced or in shadow mode.
    pub(crate) fn is_unmatched(&self) -> bool {
        self.decision_data.rule_decision.by == DecidedBy::Nothing
            && self.decision_data.shadows.as_slice().is_empty()
    }
}
