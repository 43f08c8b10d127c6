//! Overload control of rules: gates with an adaptive limit, in this process, and shares of permits by class.
//!
//! A gate isn't one of the backend's checks. A request enters it before the backend is queried, so that a request
//! without a permit is charged nothing, and leaves it if the backend denies.

use std::collections::HashMap;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use foldhash::fast::FixedState;
use tollgate::concurrency::OwnedPermit;
use tollgate::{Clock, ConcurrencyLimiter, Decision, LimitError, Outcome};
use tollgate_adaptive::shed::{Criticality, CriticalityShares, LoadShedder};
use tollgate_adaptive::{AdaptiveController, AlgorithmError, Bounds, LimitAlgorithm};

use super::counters::{Counters, Sharing};
use crate::limits::{Check, Limit, LimitKind};
use crate::policy::{Adaptive, Rule};

/// A backend's clock, of any type.
pub(crate) type BackendClock = Arc<dyn Clock>;

/// The overload control of a rule.
#[derive(Debug)]
pub(crate) struct OverloadControl {
    /// The number of the fact that states how critical a request is.
    class_fact: Option<u32>,
    shares: CriticalityShares,
    /// The policy's concurrency limit for sheddable and for default requests: the same counter with lower limits.
    class_limits: Option<[Limit; 2]>,
    pub(crate) adaptive: Option<AdaptiveLimiter>,
}

/// An adaptive concurrency limit.
#[derive(Debug)]
pub(crate) struct AdaptiveLimiter {
    pub(crate) own: Adaptive,
    /// The limit that decisions report. No backend is queried for it.
    pub(crate) limit: Limit,
    /// Set before the policy comes into force.
    pub(crate) gate: Option<AdaptiveGate>,
}

/// The gate of an adaptive limit, which admits requests up to the share of their class.
#[derive(derive_more::Debug)]
pub(crate) struct AdaptiveGate {
    kept: Arc<GateState>,
    #[debug(skip)]
    shedder: LoadShedder<BackendClock>,
    shares: CriticalityShares,
}

/// The part of a gate that outlives a policy: the permits in flight, and what the algorithm has learned.
#[derive(derive_more::Debug)]
pub(crate) struct GateState {
    /// The settings in use. Only a reload changes them.
    own: Mutex<Adaptive>,
    #[debug(skip)]
    controller: AdaptiveController<Box<dyn LimitAlgorithm>>,
    limiter: Arc<ConcurrencyLimiter<BackendClock>>,
}

/// The state of an adaptive limit.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Facts, Policy};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// let text = "limits: [{name: api, concurrency: {adaptive: gradient2, max: 200}}]";
/// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
/// let facts = Facts::new();
/// let passed = engine.decide(&facts).allowed();
/// let states = engine.limiter_states();
/// let now = states[0].adaptive.expect("it adapts");
/// assert_eq!((now.limit, now.in_flight, now.adaptive.max), (20, 1, 200));
/// # drop(passed);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdaptiveState {
    /// The algorithm and its bounds.
    pub adaptive: Adaptive,
    /// The limit at present.
    pub limit: u32,
    /// The permits in use.
    pub in_flight: u32,
}

impl OverloadControl {
    /// The overload control of a rule, if it has any. `by` is the number of the fact for its classes.
    pub(in crate::engine) fn from_rule(
        rule: &Rule,
        by: Option<u32>,
        limits: &[Limit],
        counters: &mut Counters,
    ) -> Result<Option<Box<Self>>, LimitError> {
        if rule.adaptive.is_none() && rule.shed.is_none() {
            return Ok(None);
        }
        let whole = CriticalityShares::new(100, 100);
        let shares = rule.shed.as_ref().map_or(whole, |shed| shed.shares);
        let part = |limit: &Limit, class| match limit.kind() {
            LimitKind::Concurrency(most) => {
                let part = LimitKind::Concurrency(shares.of(class, *most));
                Some(limit.with_kind(part))
            }
            _ => None,
        };
        let of = |class| limits.iter().find_map(|limit| part(limit, class));
        let of = |class| rule.shed.as_ref().and_then(|_| of(class)).transpose();
        let slots = of(Criticality::Sheddable)?.zip(of(Criticality::Default)?);
        let adaptive = match rule.adaptive {
            Some(own) => {
                let kind = LimitKind::Adaptive(own);
                let limit = counters
                    .assign_counters(&gate_counter_name(rule), Sharing::Alone, &[kind])?
                    .pop();
                limit.map(|limit| AdaptiveLimiter {
                    own,
                    limit,
                    gate: None,
                })
            }
            None => None,
        };
        Ok(Some(Box::new(Self {
            class_fact: by,
            shares,
            class_limits: slots.map(|(sheddable, default)| [sheddable, default]),
            adaptive,
        })))
    }

    /// The class of a request, by the value of its fact.
    pub(in crate::engine) fn class<'f>(
        &self,
        text: impl FnOnce(u32) -> Option<&'f str>,
    ) -> Criticality {
        let said = self.class_fact.and_then(text);
        said.and_then(|text| text.parse().ok()).unwrap_or_default()
    }

    /// The policy's concurrency limit for this class. `None` if the class may use all permits.
    pub(in crate::engine) fn class_limit(&self, class: Criticality) -> Option<&Limit> {
        let [sheddable, default] = self.class_limits.as_ref()?;
        match class {
            Criticality::Sheddable => Some(sheddable),
            Criticality::Default => Some(default),
            Criticality::Critical => None,
        }
    }

    /// The class that uses this limit: the limit is a class's share, or the whole.
    pub(in crate::engine) fn class_of(&self, limit: &Limit) -> Criticality {
        match &self.class_limits {
            Some([sheddable, _]) if ptr::eq(sheddable, limit) => Criticality::Sheddable,
            Some([_, default]) if ptr::eq(default, limit) => Criticality::Default,
            _ => Criticality::Critical,
        }
    }

    /// Whether a denial by this limit is load shedding, and not the client's fault.
    pub(crate) fn sheds(&self, limit: u64) -> bool {
        let slots = self.class_limits.iter().flatten();
        let adaptive = self.adaptive.iter().map(|own| &own.limit);
        slots.chain(adaptive).any(|own| own.id == limit)
    }

    /// Opens the gate: the rule's previous one, with its permits in flight, or a new one.
    pub(in crate::engine) fn open_gate(
        &mut self,
        before: Option<Arc<GateState>>,
        clock: impl FnOnce() -> BackendClock,
    ) {
        let Some(adapting) = &mut self.adaptive else {
            return;
        };
        let kept = match before {
            Some(before) => {
                before.set_law(adapting.own, adapting.limit.id);
                Ok(before)
            }
            None => GateState::new(adapting.own, adapting.limit.id, clock()).map(Arc::new),
        };
        // A rule with an invalid algorithm was rejected before.
        adapting.gate = kept.ok().map(|kept| AdaptiveGate {
            shedder: LoadShedder::new(Arc::clone(&kept.limiter)).shares(self.shares),
            shares: self.shares,
            kept,
        });
    }
}

/// The name of the counter of a rule's gate.
pub(crate) fn gate_counter_name(rule: &Rule) -> String {
    format!("adaptive/{}", rule.name)
}

/// The algorithm of a rule, if its settings are valid.
pub(crate) fn make_law(
    own: Adaptive,
    seed: u64,
) -> Result<Box<dyn LimitAlgorithm>, AlgorithmError> {
    let bounds = Bounds::new(f64::from(own.min), f64::from(own.max))?;
    own.algorithm.make(bounds, seed)
}

impl GateState {
    fn new(own: Adaptive, seed: u64, clock: BackendClock) -> Result<Self, AlgorithmError> {
        let controller = AdaptiveController::new(make_law(own, seed)?);
        let limiter = controller.concurrency().max_waiters(0).clock(clock).build();
        Ok(Self {
            own: Mutex::new(own),
            limiter: Arc::new(limiter),
            controller,
        })
    }

    /// Switches to another algorithm or other bounds, and starts from the present limit.
    fn set_law(&self, new: Adaptive, seed: u64) {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        if *own == new {
            return;
        }
        if let Ok(law) = make_law(new, seed) {
            self.controller.set_law(law);
            self.controller.apply_to(&self.limiter);
            *own = new;
        }
    }
}

impl AdaptiveGate {
    /// Takes a permit, if the class may, and returns what remains.
    pub(super) fn try_acquire(
        &self,
        class: Criticality,
    ) -> Result<(OwnedPermit<BackendClock>, Decision), Decision> {
        match self.shedder.try_acquire_owned(class) {
            Ok(permit) => {
                let limit = self.shares.of(class, self.kept.limiter.peek().limit);
                let left = limit.saturating_sub(permit.in_flight());
                Ok((permit, gate_decision(Outcome::Allowed, limit, left)))
            }
            Err(denied) => {
                let limit = self.shares.of(class, denied.occupancy().limit);
                Err(gate_decision(Outcome::Denied, limit, 0))
            }
        }
    }

    /// The decision about a request of this class.
    pub(super) fn peek(&self, class: Criticality) -> Decision {
        let now = self.kept.limiter.peek();
        let limit = self.shares.of(class, now.limit);
        match limit.saturating_sub(now.in_use) {
            0 => gate_decision(Outcome::Denied, limit, 0),
            left => gate_decision(Outcome::Allowed, limit, left),
        }
    }
}

impl AdaptiveLimiter {
    /// The part of the gate that outlives the policy.
    pub(in crate::engine) fn gate_state(&self) -> Option<Arc<GateState>> {
        self.gate.as_ref().map(|gate| Arc::clone(&gate.kept))
    }

    /// The present state.
    pub(crate) fn state(&self) -> Option<AdaptiveState> {
        let now = self.gate.as_ref()?.kept.limiter.peek();
        Some(AdaptiveState {
            adaptive: self.own,
            limit: now.limit,
            in_flight: now.in_use,
        })
    }

    /// A check of the gate, to join its queue. All keys share one queue.
    pub(super) fn check(&self) -> Check<'_> {
        Check::by_fingerprint(&self.limit, [0; 2], 1)
    }
}

/// The decision of a gate. It has no wait, since the time of the next release is unknown.
fn gate_decision(outcome: Outcome, limit: u32, left: u32) -> Decision {
    let none = std::time::Duration::ZERO;
    Decision::new(outcome, u64::from(limit), u64::from(left), none, none)
}

/// How many retired gates are kept. Those without permits in flight go first, the longest retired before others.
const MAX_RETIRED_GATES: usize = 1_024;

/// Retired gates by the names of their rules, the longest retired first.
#[derive(Debug, Default)]
pub(crate) struct RetiredGates(Vec<(Box<str>, Arc<GateState>)>);

/// The gates that rules of a new policy may continue with.
#[derive(Debug)]
pub(crate) struct PreviousGates(HashMap<Box<str>, (usize, Arc<GateState>), FixedState>);

impl PreviousGates {
    /// The retired gates, and those of the previous policy.
    pub(in crate::engine) fn new(
        retired: &RetiredGates,
        open: impl Iterator<Item = (Box<str>, Arc<GateState>)>,
    ) -> Self {
        let all = retired.0.iter().cloned().chain(open).enumerate();
        Self(all.map(|(age, (name, kept))| (name, (age, kept))).collect())
    }

    /// The gate of the rule with this name.
    pub(in crate::engine) fn take(&mut self, rule: &str) -> Option<Arc<GateState>> {
        self.0.remove(rule).map(|(_, kept)| kept)
    }

    /// Retires the gates that no rule took.
    pub(in crate::engine) fn retire(self) -> RetiredGates {
        let mut rest: Vec<_> = self.0.into_iter().collect();
        rest.sort_unstable_by_key(|(_, (age, _))| *age);
        let mut rest: Vec<_> = rest
            .into_iter()
            .map(|(name, (_, kept))| (name, kept))
            .collect();
        while rest.len() > MAX_RETIRED_GATES {
            let is_idle = |(_, kept): &(_, Arc<GateState>)| kept.limiter.peek().in_use == 0;
            rest.remove(rest.iter().position(is_idle).unwrap_or(0));
        }
        RetiredGates(rest)
    }
}

#[cfg(test)]
mod tests {
    use tollgate::clock::Manual;

    use super::*;
    use crate::policy::Adaptive;

    #[test]
    fn no_more_are_kept_than_said_and_those_that_are_used_stay() {
        let kept = || {
            let own = Adaptive {
                algorithm: "aimd".parse().unwrap(),
                min: 1,
                max: 10,
            };
            Arc::new(GateState::new(own, 0, Arc::new(Manual::new())).unwrap())
        };
        let gates: Vec<_> = (0..MAX_RETIRED_GATES + 2)
            .map(|number| (number.to_string().into_boxed_str(), kept()))
            .collect();
        let _inside = gates[0].1.limiter.try_acquire_owned().unwrap();
        let before = PreviousGates::new(&RetiredGates::default(), gates.into_iter());
        let retired = before.retire();
        assert_eq!(retired.0.len(), MAX_RETIRED_GATES);
        let mut again = PreviousGates::new(&retired, std::iter::empty());
        assert!(again.take("0").is_some());
        assert!(again.take("1").is_none() && again.take("2").is_none());
        assert!(again.take("3").is_some());
        assert_eq!(again.retire().0.len(), MAX_RETIRED_GATES - 2);
    }
}
