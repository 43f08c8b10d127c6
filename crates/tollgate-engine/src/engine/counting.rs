//! What is counted of a verdict, and by which limiter.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::Engine;
use super::gather::{Gathered, TreeMatch};
use super::limiters::{kinds, kinds_of};
use super::rules::{Before, Rules};
use crate::backend::Backend;
use crate::envoy::Lookup;
use crate::limits::{Answer, LimitKind};
use crate::policy::{Mode, Policy};
use crate::tally::{
    ALLOWED, ASKED, BLOCK, BOUNDS, BYPASS, DENIED, EXEMPT, Histogram, NEAR_LIMIT, NO_RULE,
    Requests, SHADOW_DENIED, Tallies, Tally, UNCOUNTED,
};
use crate::top::Refusal;
use crate::verdict::{By, DenyReason, Said, is_near};

/// A decision of a limit that came along with its request.
///
/// ```
/// use tollgate_engine::engine::ThrottleDecision;
/// use tollgate_engine::verdict::DenyReason;
///
/// let denied = ThrottleDecision { key: b"ada", denied: Some(DenyReason::Rate) };
/// assert!(denied.denied.is_some());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ThrottleDecision<'a> {
    /// The key that was asked about.
    pub key: &'a [u8],
    /// Why it was denied; none if it passed.
    pub denied: Option<DenyReason>,
}

impl<B: Backend> Engine<B> {
    /// Counts what each limiter decides, of so many by name; what others decide is counted together. See
    /// [`tallies`](Self::tallies) for what is counted. An engine without counts nothing.
    ///
    /// Each limiter takes 104 bytes for each core and four more.
    #[must_use]
    pub fn with_tallies(self, limiters: usize) -> Self {
        let tallies = Tallies::new(limiters);
        let mut rules = self.rules.into_inner();
        if Arc::get_mut(&mut rules).is_none() {
            // Somebody holds a verdict by them, so they are compiled once more; that went well before.
            let policy = Policy::clone(&rules.policy);
            if let Ok(mut again) = Rules::new(policy, Before::Rules(&rules), self.backend.now()) {
                again.open_gates(Some(&rules), &self.clocks);
                again.since = rules.since;
                rules = Arc::new(again);
            }
        }
        if let Some(own) = Arc::get_mut(&mut rules) {
            own.count_in(&tallies);
        }
        let engine = Self {
            rules: ArcSwap::new(rules),
            tallies: Some(tallies),
            ..self
        };
        engine.put_over(&engine.rules.load(), &mut engine.book());
        engine
    }

    /// What each limiter has decided since the engine was made: nothing unless it [counts](Self::with_tallies).
    ///
    /// Each rule in force that applies to a request that passes counts it as allowed, and the one that refuses it as
    /// denied. A rule in shadow counts what it would have said. A limit of a tree counts each descriptor that takes
    /// something. Counts never fall while a limiter is listed; one that is gone from the policy is listed on until its
    /// place is another's, and what it had counted is in `(other)` from then on.
    pub fn tallies(&self) -> Vec<Tally> {
        self.tallies.as_ref().map_or_else(Vec::new, Tallies::all)
    }

    /// How many requests passed and were refused, each counted once, however many limiters it met: none unless it
    /// [counts](Self::with_tallies).
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// let policy = Policy::from_text("limits: [{name: a, rate: 2/h}, {name: b, rate: 9/h}]", Format::Yaml)?.policy;
    /// let engine = Engine::new(policy, memory)?.with_tallies(1_000);
    /// for _ in 0..5 {
    ///     let _ = engine.decide(&Facts::new());
    /// }
    /// assert_eq!((engine.requests().passed, engine.requests().refused), (2, 3));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn requests(&self) -> Requests {
        let tallies = self.tallies.as_ref();
        tallies.map_or_else(Requests::default, Tallies::requests)
    }

    /// How long requests waited for their turn, because a rule says `over: wait`, whether they passed in the end or
    /// not: none unless it [counts](Self::with_tallies).
    pub fn waits(&self) -> Option<&Histogram> {
        self.tallies.as_ref().map(|tallies| &tallies.waits)
    }

    /// The limiters of the policy in force and their limits, in the order of the file: rules that aren't off, tiers,
    /// and limits of trees.
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// let policy = Policy::from_text("limits: [{name: all, rate: [2/s, 5/h]}]", Format::Yaml)?.policy;
    /// let limiters = Engine::new(policy, memory)?.limiters();
    /// assert_eq!((limiters[0].0.as_str(), limiters[0].1.len()), ("all", 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn limiters(&self) -> Vec<(String, Vec<LimitKind>)> {
        let rules = self.rules.load();
        let applied = rules.applied.iter();
        let applied = applied.map(|rule| (rule.name.to_string(), kinds_of(rule)));
        let leaves = rules.trees.named();
        let leaves = leaves.map(|(leaf, limits)| (leaf.to_string(), kinds(limits)));
        applied.chain(leaves).collect()
    }

    /// Counts a decision on a key that brought its limit along, as `CL.THROTTLE` does, which no policy has decided: by the
    /// limiter `(throttle)`, and a denial among the [keys that are denied most](Self::top).
    ///
    /// ```
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::engine::ThrottleDecision;
    /// # use tollgate_engine::verdict::DenyReason;
    /// # use tollgate_engine::{Engine, Policy};
    /// let engine = Engine::new(Policy::default(), Memory::new())?.with_tallies(10).with_top(10);
    /// engine.count_throttle(ThrottleDecision { key: b"ada", denied: None });
    /// engine.count_throttle(ThrottleDecision { key: b"ada", denied: Some(DenyReason::Rate) });
    /// assert_eq!((engine.requests().passed, engine.requests().refused), (1, 1));
    /// assert_eq!(engine.top().expect("counted").keys[0].limiter, "(throttle)");
    /// # Ok::<(), tollgate_engine::PolicyError>(())
    /// ```
    pub fn count_throttle(&self, decision: ThrottleDecision<'_>) {
        let ThrottleDecision { key, denied } = decision;
        if let Some(tallies) = &self.tallies {
            tallies.throttled(denied);
        }
        if let (Some(top), Some(_)) = (&self.top, denied) {
            let denial = Refusal {
                limiter: Tallies::throttle_name(),
                fingerprint: self.hashers.feed(|put| put(key)),
                mode: Mode::Enforce,
            };
            top.add(denial, String::from_utf8_lossy(key));
        }
    }

    /// A rule in shadow that would have let a request pass is counted; one that wouldn't is with the verdict.
    #[inline]
    pub(super) fn count_in_shadow(&self, rules: &Rules, number: u32, answer: &Answer) {
        if answer.allowed
            && let Some(tallies) = &self.tallies
        {
            tallies.passed_in_shadow(rules, number, answer);
        }
    }
}

impl Tallies {
    /// A request that passed: each rule in force that applied to it, and the one that decided if it is near its limit.
    #[inline]
    pub(super) fn passed(&self, rules: &Rules, gathered: &Gathered<'_>, said: &Said) {
        self.add_passed();
        let applied = gathered.counted.as_slice();
        for row in applied {
            self.add(*row, ALLOWED);
        }
        if let By::Applied(number) = said.by
            && is_near(&said.decision, rules.near_limit_percent)
        {
            self.add(rules.applied[number as usize].tally, NEAR_LIMIT);
        }
        if applied.is_empty() || !said.shadows.as_slice().is_empty() {
            self.passed_aside(rules, gathered, said);
        }
    }

    /// One that no rule in force was for, or that some in shadow were.
    #[cold]
    fn passed_aside(&self, rules: &Rules, gathered: &Gathered<'_>, said: &Said) {
        let is_counted = !gathered.counted.as_slice().is_empty() || gathered.is_met_in_shadow();
        match said.by {
            By::Exempt(_) => self.add(EXEMPT, ALLOWED),
            _ if is_counted || gathered.trees == TreeMatch::Some => {}
            _ if gathered.is_bypassed() || gathered.trees == TreeMatch::Bypassed => {
                self.add(BYPASS, ALLOWED)
            }
            _ => self.add(NO_RULE, ALLOWED),
        }
        for shadowed in said.shadows.as_slice() {
            self.add(row(rules, shadowed.by), SHADOW_DENIED);
        }
    }

    /// A rule in shadow that would have let the request pass.
    pub(super) fn passed_in_shadow(&self, rules: &Rules, number: u32, answer: &Answer) {
        let row = rules.applied[number as usize].tally;
        self.add(row, ALLOWED);
        if is_near(&answer.decision, rules.near_limit_percent) {
            self.add(row, NEAR_LIMIT);
        }
    }

    /// A request that was refused, by what decided.
    #[cold]
    pub(super) fn refused(&self, rules: &Rules, said: &Said) {
        self.add_refused();
        let reason = said.reason(rules);
        self.add(row(rules, said.by), DENIED + reason as usize);
    }

    /// A request that has more of something than is taken.
    #[cold]
    pub(super) fn exceeded(&self, mode: Mode, counts_request: bool) {
        let column = match mode {
            Mode::Enforce => DENIED + DenyReason::TooLarge as usize,
            Mode::Shadow => SHADOW_DENIED,
            Mode::Off => ALLOWED,
        };
        match mode {
            _ if !counts_request => {}
            Mode::Enforce => self.add_refused(),
            Mode::Shadow | Mode::Off => self.add_passed(),
        }
        self.add(BOUNDS, column);
    }
}

/// What a request of descriptors came to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Told {
    /// It passed, by this and by all others.
    Passed { near_limit: bool },
    /// This refused it.
    Refused(DenyReason),
    /// This would have, but is in shadow, or others of its quota have room.
    InShadow,
}

impl Tallies {
    /// What the limit of one descriptor said.
    pub(super) fn descriptor(&self, rules: &Rules, lookup: &Lookup<'_>, told: Told) {
        let row = match lookup.leaf() {
            Some(leaf) => rules.trees.tally(leaf),
            None => ASKED,
        };
        if row == UNCOUNTED {
            return;
        }
        match told {
            Told::Passed { near_limit } => {
                self.add(row, ALLOWED);
                if near_limit {
                    self.add(row, NEAR_LIMIT);
                }
            }
            Told::Refused(reason) => self.add(row, DENIED + reason as usize),
            Told::InShadow => self.add(row, SHADOW_DENIED),
        }
    }

    /// No descriptor of a request met a limit, or all that did were let through by operators.
    pub(super) fn nothing_met(&self, rules: &Rules, found: &[Lookup<'_>]) {
        let row = if rules.trees.has_limits(found) {
            BYPASS
        } else {
            NO_RULE
        };
        self.add(row, ALLOWED);
    }
}

fn row(rules: &Rules, by: By) -> u32 {
    match by {
        By::Nothing => NO_RULE,
        By::Exempt(_) => EXEMPT,
        By::Block(_) | By::Ordered(_) => BLOCK,
        By::Excess(_) => BOUNDS,
        By::Applied(number)
        | By::Blocked(number)
        | By::MissingKey(number)
        | By::StoreFailure(number) => rules.applied[number as usize].tally,
    }
}
