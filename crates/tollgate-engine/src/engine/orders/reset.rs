//! Forgetting what one key of a rule has spent, as operators do.

use tollgate::Clock;

use super::place::as_descriptor;
use super::target_keys::{Named, addresses, entries};
use crate::backend::{Backend, Gift, Memory, Refund};
use crate::engine::turns::Spot;
use crate::engine::warm::is_gate;
use crate::engine::{Engine, ready};
use crate::limits::{Check, LimitKind};
use crate::orders::{OrderError, Target};

/// What was forgotten.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::{Gift, Memory};
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Facts, Policy};
/// # use tollgate_engine::orders::Target;
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// use tollgate_engine::engine::ResetScope;
///
/// let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 1/h}]", Format::Yaml)?.policy;
/// let engine = Engine::new(policy, memory)?;
/// let ada = Facts::new().with("user", "ada");
/// assert!(engine.decide(&ada).passed().is_some());
/// let reset = engine.reset(&Target::facts([("user", "ada")]), ResetScope::Rates)?;
/// assert_eq!((reset.rules[0].rule.as_str(), reset.gift), ("per-user", Gift::Given));
/// assert_eq!(reset.rules[0].reset[0].to_string(), "1/h");
/// assert!(engine.decide(&ada).passed().is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Reset {
    /// The rules whose key it was.
    pub rules: Vec<ResetRule>,
    /// Whether a store could be told.
    pub gift: Gift,
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

impl<B: Backend> Engine<B> {
    /// Forgets what the keys that [`find_async`](Self::find_async) finds have spent of these limits. Slots that are held stay held. Of a store
    /// that others ask too, they may repeat what they were refused before, as long as that was said to hold.
    ///
    /// # Errors
    /// If the backend couldn't be asked; inside, if there is no such key by the policy in force.
    pub async fn reset_async(
        &self,
        target: &Target,
        scope: ResetScope,
    ) -> Result<Result<Reset, OrderError>, B::Error> {
        let rules = self.rules.load_full();
        let target = match as_descriptor(&rules, target) {
            Ok(target) => target,
            Err(why) => return Ok(Err(why)),
        };
        let target = &*target;
        let entries = entries(target);
        let addresses = addresses(target);
        let named = Named::of(&rules, target, &entries, &addresses);
        let times = (&self.hashers, self.backend.now());
        let keys = match named.keys(&rules, target, times) {
            Ok(keys) => keys,
            Err(why) => return Ok(Err(why)),
        };
        let mut reset = Reset {
            rules: Vec::with_capacity(keys.len()),
            gift: Gift::Given,
        };
        for key in keys {
            let (checks, kept): (Vec<_>, Vec<_>) = key
                .checks()
                .into_iter()
                .partition(|check| scope.covers(check.limit.kind()));
            if !checks.is_empty() {
                reset.gift = reset
                    .gift
                    .max(self.backend.refund(&checks, Refund::Everything).await?);
            }
            for check in &checks {
                self.turns.poke(Spot::of(check));
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
}

impl<C: Clock + 'static, W: Clock + 'static> Engine<Memory<C, W>> {
    /// Forgets what the keys that [`find`](Self::find) finds have spent of these limits. Slots that are held stay held.
    ///
    /// # Errors
    /// If there is no such key by the policy in force.
    pub fn reset(&self, target: &Target, scope: ResetScope) -> Result<Reset, OrderError> {
        ready(self.reset_async(target, scope))
    }
}
