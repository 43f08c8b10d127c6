//! Queries and resets of one key by operators.

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

/// The state of one key of a rule.
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
    /// The name of the rule, tier or limit of a tree.
    pub rule: String,
    /// The facts, or the entries of a descriptor, that make the key: `user=ada plan=free`.
    pub key: String,
    /// Whether the rule is enforced for this key, or only counts.
    pub mode: Mode,
    /// For a tier, whether a request with these facts has this tier. `None` for a rule, which applies by its
    /// conditions.
    pub applies: Option<bool>,
    /// What remains of each limit in force for the key, even if the key is blocked or bypassed.
    pub limits: Vec<KeyLimitState>,
    /// The overrides of the key, of the whole rule, or of all requests.
    pub orders: Vec<Override>,
}

/// What remains of one limit of a key.
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
    /// The limit, as in force for this key.
    pub kind: LimitKind,
    /// Whether this is a temporary limit beside a rate, until the rule is warm.
    pub is_warm_up: bool,
    /// Whether the store or a fallback answered. If not, the limit is closed and denies everything.
    pub is_known: bool,
    /// The decision that this limit alone would make about a request with the rule's default cost: what remains, the
    /// wait, and the time until the limit is fully refilled.
    pub decision: Decision,
    /// How many requests wait for the limit, because the rule has `over: wait`.
    pub waiting: usize,
}

/// The result of a reset.
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
    /// The rules whose key was reset.
    pub rules: Vec<ResetRule>,
    /// Whether a store was reached.
    pub refund_result: RefundResult,
}

/// The reset of one rule's key.
///
/// ```
/// # use tollgate_engine::engine::ResetRule;
/// /// Whether anything was reset.
/// fn is_any(of: &ResetRule) -> bool {
///     !of.reset.is_empty()
/// }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ResetRule {
    /// The name of the rule, tier or limit of a tree.
    pub rule: String,
    /// The limits that were fully refilled.
    pub reset: Vec<LimitKind>,
    /// The quotas outside the scope, which stay as they are.
    pub kept: Vec<LimitKind>,
}

/// Which limits of a key are reset.
///
/// ```
/// use tollgate_engine::engine::ResetScope;
///
/// assert_eq!(ResetScope::default(), ResetScope::Rates);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResetScope {
    /// Rates. The usage of quotas stays.
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

/// The state of the keys that a target names. An invalid target is the inner error, an unavailable backend the outer
/// one.
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

/// Resets the keys that a target names.
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
        // Permits that are held aren't reset, and a warm-up gate belongs to a rate that is listed itself.
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
