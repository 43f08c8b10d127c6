//! What operators ask about one key: how it stands with each limit, and to forget what it has spent.

use tollgate::Decision;

use super::overrides::{Limiter, TargetFacts, TargetTexts, as_descriptor};
use super::pipeline::Pipeline;
use super::rules::TierMatch;
use super::wait_queue::QueueKey;
use super::warm_up::is_gate;
use crate::backend::{Backend, Refund, RefundResult};
use crate::limits::{Check, LimitKind};
use crate::overrides::{Override, OverrideError, Target};
use crate::policy::Mode;

/// One key of a rule, as it is now.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Facts, Policy};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// use tollgate_engine::overrides::Target;
///
/// let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 5/h}]", Format::Yaml)?.policy;
/// let engine = Engine::new(policy, memory)?;
/// assert!(engine.decide(&Facts::new().with("user", "ada")).allowed().is_some());
/// let found = engine.find(&Target::key("per-user", [("user", "ada")]))?;
/// assert_eq!((found[0].rule.as_str(), found[0].key.as_str()), ("per-user", "user=ada"));
/// assert_eq!(found[0].limits[0].decision.remaining, 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KeyState {
    /// The rule, tier or limit of a tree.
    pub rule: String,
    /// The facts or the entries of a descriptor that make the key: `user=ada plan=free`.
    pub key: String,
    /// Whether it is enforced for this key, or only counts.
    pub mode: Mode,
    /// Of a tier, whether it is the one that a request with these facts has; none of a rule, whose match decides that.
    pub applies: Option<bool>,
    /// What is left of each limit that is in force for it, also while it is blocked or bypassed.
    pub limits: Vec<KeyLimitState>,
    /// What operators have ordered of it, of all of the rule, or of everything.
    pub orders: Vec<Override>,
}

/// What is left of one limit of a key.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Policy};
/// # use tollgate_engine::overrides::Target;
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// let policy = Policy::from_text("limits: [{name: all, rate: [5/h, 9/d]}]", Format::Yaml)?.policy;
/// let found = Engine::new(policy, memory)?.find(&Target::rule("all"))?;
/// let limits: Vec<_> = found[0].limits.iter().map(|limit| limit.kind.to_string()).collect();
/// assert_eq!(limits, ["5/h", "9/d"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KeyLimitState {
    /// Which, as it is in force for this key.
    pub kind: LimitKind,
    /// Whether it stands beside a rate only until the rule is warm.
    pub is_warm_up: bool,
    /// Whether somebody could be asked: else a limit that is closed then refuses everything.
    pub is_known: bool,
    /// What a request of the rule's usual cost would be told by it alone: what is left, after how long it would pass, and
    /// when it is as if never used.
    pub decision: Decision,
    /// How many requests wait for it, because the rule says `over: wait`.
    pub waiting: usize,
}

/// What was forgotten.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::{RefundResult, Memory};
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Facts, Policy};
/// # use tollgate_engine::overrides::Target;
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// use tollgate_engine::engine::ResetScope;
///
/// let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 1/h}]", Format::Yaml)?.policy;
/// let engine = Engine::new(policy, memory)?;
/// let ada = Facts::new().with("user", "ada");
/// assert!(engine.decide(&ada).allowed().is_some());
/// let reset = engine.reset(&Target::facts([("user", "ada")]), ResetScope::Rates)?;
/// assert_eq!((reset.rules[0].rule.as_str(), reset.refund_result), ("per-user", RefundResult::Refunded));
/// assert_eq!(reset.rules[0].reset[0].to_string(), "1/h");
/// assert!(engine.decide(&ada).allowed().is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ResetReport {
    /// The rules whose key it was.
    pub rules: Vec<ResetRule>,
    /// Whether a store could be told.
    pub refund_result: RefundResult,
}

/// What was forgotten of one rule's key.
///
/// ```
/// # use tollgate_engine::engine::ResetRule;
/// /// Whether anything was.
/// fn is_any(of: &ResetRule) -> bool {
///     !of.reset.is_empty()
/// }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ResetRule {
    /// The rule, tier or limit of a tree.
    pub rule: String,
    /// Its limits that are as if never used.
    pub reset: Vec<LimitKind>,
    /// Its quotas that weren't meant, and stay as they are.
    pub kept: Vec<LimitKind>,
}

/// Which limits of a key are forgotten.
///
/// ```
/// use tollgate_engine::engine::ResetScope;
///
/// assert_eq!(ResetScope::default(), ResetScope::Rates);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResetScope {
    /// Rates. What was used of a day's or a month's quota stays used.
    #[default]
    Rates,
    /// Rates and quotas.
    RatesAndQuotas,
}

impl ResetScope {
    fn covers(self, kind: &LimitKind) -> bool {
        match kind {
            LimitKind::Quota(_) => self == Self::RatesAndQuotas,
            _ => true,
        }
    }
}

/// How the keys that a target names stand; an error of the target is a value, not one of the backend.
pub(super) async fn find_keys<B: Backend>(
    pipeline: &Pipeline<B>,
    target: &Target,
) -> Result<Result<Vec<KeyState>, OverrideError>, B::Error> {
    let now = pipeline.active_policy();
    let rules = &*now.rules;
    let target = match as_descriptor(rules, target) {
        Ok(target) => target,
        Err(why) => return Ok(Err(why)),
    };
    let texts = TargetTexts::new(&target);
    let (keys, time) = (pipeline.key_context(rules), pipeline.backend.now());
    let named = TargetFacts::of(&target, &texts, keys, time);
    let keys = match named.keys() {
        Ok(keys) => keys,
        Err(why) => return Ok(Err(why)),
    };
    let known = rules.look_up_facts(&named.literal);
    let tier = match rules.tiers.match_tier(|slot| known.text(slot)) {
        TierMatch::In(number) => Some(number),
        TierMatch::Unknown(default) => default,
        _ => None,
    };
    let mut found = Vec::with_capacity(keys.len());
    for key in keys {
        let applies = match key.limiter {
            Limiter::Applied(number) if rules.rules[number as usize].is_tier => {
                Some(tier == Some(number))
            }
            _ => None,
        };
        let orders = now.orders.as_ref();
        let rulings =
            orders.map(|orders| orders.for_key(key.limiter, key.key.fingerprint(), &named.facts));
        let rulings = rulings.unwrap_or_default();
        let for_request = orders.map(|orders| orders.for_request(&named.facts));
        let for_request = for_request.unwrap_or_default();
        let ids: Vec<_> = rulings.ids().chain(for_request.ids()).collect();
        let key = key.with_overrides(&rulings);
        let checks = key.checks();
        let each = pipeline.backend.peek(&checks).await?;
        let limits = checks.iter().zip(each).map(|(check, said)| KeyLimitState {
            kind: check.limit.kind().clone(),
            is_warm_up: is_gate(check.limit),
            is_known: said.is_ok(),
            decision: said.unwrap_or_else(|store| store.decision()),
            waiting: pipeline.wait_queues.waiters_of_key(QueueKey::of(check)),
        });
        found.push(KeyState {
            limits: limits.collect(),
            orders: pipeline
                .lock_overrides()
                .list(|order| ids.contains(&order.id)),
            key: key.shown,
            applies,
            mode: key.mode,
            rule: key.rule,
        });
    }
    Ok(Ok(found))
}

/// Forgets what the keys that a target names have spent.
pub(super) async fn reset_keys<B: Backend>(
    pipeline: &Pipeline<B>,
    target: &Target,
    scope: ResetScope,
) -> Result<Result<ResetReport, OverrideError>, B::Error> {
    let rules = &*pipeline.rules.load_full();
    let target = match as_descriptor(rules, target) {
        Ok(target) => target,
        Err(why) => return Ok(Err(why)),
    };
    let texts = TargetTexts::new(&target);
    let (keys, time) = (pipeline.key_context(rules), pipeline.backend.now());
    let named = TargetFacts::of(&target, &texts, keys, time);
    let keys = match named.keys() {
        Ok(keys) => keys,
        Err(why) => return Ok(Err(why)),
    };
    let mut reset = ResetReport {
        rules: Vec::with_capacity(keys.len()),
        refund_result: RefundResult::Refunded,
    };
    for key in keys {
        let (checks, kept): (Vec<_>, Vec<_>) = key
            .checks()
            .into_iter()
            .partition(|check| scope.covers(check.limit.kind()));
        if !checks.is_empty() {
            reset.refund_result = reset
                .refund_result
                .max(pipeline.backend.refund(&checks, Refund::Reset).await?);
        }
        for check in &checks {
            pipeline.wait_queues.poke(QueueKey::of(check));
        }
        // What is held isn't given back, and what warms up is of a rate that is named.
        let is_shown = |check: &&Check<'_>| {
            let is_slots = matches!(check.limit.kind(), LimitKind::Concurrency(_));
            !is_slots && !is_gate(check.limit)
        };
        let kinds = |checks: &[Check<'_>]| {
            let shown = checks.iter().filter(is_shown);
            shown.map(|check| check.limit.kind().clone()).collect()
        };
        reset.rules.push(ResetRule {
            rule: key.rule,
            reset: kinds(&checks),
            kept: kinds(&kept),
        });
    }
    Ok(Ok(reset))
}
