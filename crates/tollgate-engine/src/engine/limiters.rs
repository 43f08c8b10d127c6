//! What operators are shown of each limiter of the policy in force, and of those that are refused most.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use foldhash::fast::FixedState;
use tollgate::{DenyReason, OnMissingKey, Timestamp};

use super::Engine;
use super::orders::Limiter;
use super::overload::{Adapting, AdaptiveState};
use super::recorder::Recorder;
use super::rules::{Applied, Before, Rules};
use crate::backend::Backend;
use crate::limits::{Limit, LimitKind};
use crate::policy::{Mode, Policy};
use crate::tally::{Histogram, Requests, Tallies, Tally};
use crate::top::{Refusal, Top, TopKeys};
use crate::verdict::percent_of;
use crate::warning::Warning;

/// A rule, a tier or a limit of a tree, as it is in force.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::{LimitKind, Memory};
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Policy};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// use tollgate_engine::engine::LimiterSort;
///
/// let policy = Policy::from_text("limits: [{name: a, key: user, rate: 5/s burst 9}]", Format::Yaml)?.policy;
/// let limiters = Engine::new(policy, memory)?.limiter_states();
/// assert_eq!((limiters[0].name.as_str(), limiters[0].sort), ("a", LimiterSort::Rule));
/// assert_eq!((limiters[0].key.as_slice(), limiters[0].waiting), (["user".to_owned()].as_slice(), 0));
/// let LimitKind::Rate { rate, .. } = &limiters[0].limits[0] else { panic!("a rate") };
/// assert_eq!((rate.count(), rate.burst_size()), (5, 9));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LimiterState {
    /// Its name.
    pub name: String,
    /// What it is.
    pub sort: LimiterSort,
    /// The facts that make its keys, or the keys of the entries on the way to it.
    pub key: Vec<String>,
    /// The facts of each key to fall back to where a request lacks those, in their order.
    pub fallback_keys: Vec<Vec<String>>,
    /// What happens to a request without a key: none if it has one counter for all, or is no rule.
    pub on_missing_key: Option<OnMissingKey>,
    /// Whether it matched a hundred requests under this policy and found its key in none, though the policy doesn't say
    /// `on_missing_key: pass`: it limits nobody, and nobody said that it shouldn't.
    pub never_finds_its_key: bool,
    /// Whether it is enforced, or only counts.
    pub mode: Mode,
    /// For how many keys in a hundred it is enforced.
    pub enforced_percent: u8,
    /// Its limits by the policy.
    pub limits: Vec<LimitKind>,
    /// How the limit is that it adapts, if it has such.
    pub adaptive: Option<AdaptiveState>,
    /// Whether its rates are still growing, after a start.
    pub is_warming_up: bool,
    /// How many requests wait for it, of all keys.
    pub waiting: usize,
    /// How many orders are for it, or a key of it.
    pub orders: usize,
    /// When the policy came into force, by the wall clock.
    pub since: Timestamp,
}

/// What a limiter is.
///
/// ```
/// use tollgate_engine::engine::LimiterSort;
///
/// assert_eq!(LimiterSort::Descriptor.name(), "descriptor");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LimiterSort {
    /// A rule.
    Rule,
    /// What a tier allows.
    Tier,
    /// A limit of a tree of descriptors.
    Descriptor,
}

impl LimiterSort {
    /// In one word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rule => "rule",
            Self::Tier => "tier",
            Self::Descriptor => "descriptor",
        }
    }
}

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
            recorder: Recorder {
                tallies: Some(tallies),
                ..self.recorder
            },
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
        self.recorder
            .tallies
            .as_ref()
            .map_or_else(Vec::new, Tallies::all)
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
        let tallies = self.recorder.tallies.as_ref();
        tallies.map_or_else(Requests::default, Tallies::requests)
    }

    /// How long requests waited for their turn, because a rule says `over: wait`, whether they passed in the end or
    /// not: none unless it [counts](Self::with_tallies).
    pub fn waits(&self) -> Option<&Histogram> {
        self.recorder.tallies.as_ref().map(|tallies| &tallies.waits)
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
        if let Some(tallies) = &self.recorder.tallies {
            tallies.throttled(denied);
        }
        if let (Some(top), Some(_)) = (&self.recorder.top, denied) {
            let denial = Refusal {
                limiter: Tallies::throttle_name(),
                fingerprint: self.hashers.feed(|put| put(key)),
                mode: Mode::Enforce,
            };
            top.add(denial, String::from_utf8_lossy(key));
        }
    }

    /// What operators should know of the policy in force: rules that found their key, or the fact that says a cost, in
    /// none of their first hundred requests, tiers that nobody is in, and requests that no rule is for. Each is listed once, in the order in which it was
    /// noticed; [`reload`](Self::reload) begins anew. See [`Observer::warned`](crate::observer::Observer::warned) to be told
    /// at once.
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 1/h}]", Format::Yaml)?.policy;
    /// let engine = Engine::new(policy, memory)?;
    /// for _ in 0..100 {
    ///     let _ = engine.decide(&Facts::new());
    /// }
    /// assert_eq!(engine.warnings()[0].rule(), Some("per-user"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn warnings(&self) -> Vec<Warning> {
        self.recorder.warnings.all()
    }

    /// Has each warning logged by this function from now on, unless one was given before: for those who are handed an engine that is
    /// shared already, and so can't give it an observer. Middleware does this by itself.
    ///
    /// ```
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Policy};
    /// let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 1/h}]", Format::Yaml)?.policy;
    /// let engine = Engine::new(policy, Memory::new())?;
    /// engine.log_warnings(|warning| eprintln!("{warning}"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn log_warnings(&self, log: fn(&Warning)) {
        self.recorder.warnings.log_by(log);
    }

    /// Each limiter of the policy in force, in the order of the file: rules that aren't off, tiers, and limits of trees.
    ///
    /// How many keys are active isn't known of each: all rules share their tables, which tell it of all.
    pub fn limiter_states(&self) -> Vec<LimiterState> {
        let rules = self.rules.load_full();
        let now = self.backend.now();
        let waiting = self.turns.waiting_by_limit();
        let orders = self.ordered(&rules);
        let orders = |limiter| orders.as_ref().map_or(0, |held| held.count(limiter));
        let owned = |facts: Vec<&str>| facts.into_iter().map(str::to_owned).collect();
        let applied = (0..).zip(rules.applied.iter()).map(|(number, rule)| {
            let limits = rule.limits.as_slice();
            LimiterState {
                name: rule.name.to_string(),
                sort: if rule.is_tier {
                    LimiterSort::Tier
                } else {
                    LimiterSort::Rule
                },
                key: rule.key.facts().map(str::to_owned).collect(),
                fallback_keys: rule.key.fact_lists().skip(1).map(owned).collect(),
                on_missing_key: (!rule.is_tier && !rule.key.is_empty())
                    .then_some(rule.on_missing_key),
                never_finds_its_key: if rule.is_tier {
                    rules.tiers.tenants_seen.is_never_found()
                } else {
                    rule.seen.is_never_found() && !rule.is_missing_expected
                },
                mode: rule.mode,
                enforced_percent: rule.enforced_percent(),
                limits: kinds_of(rule),
                adaptive: rule.adapting().and_then(Adapting::state),
                is_warming_up: !rule.gates(Some(now)).is_empty(),
                waiting: waiting_for(&waiting, limits)
                    + rule.adapting().map_or(0, |own| {
                        waiting_for(&waiting, std::slice::from_ref(&own.limit))
                    }),
                orders: orders(Limiter::Applied(number)),
                since: rules.since,
            }
        });
        let leaves = rules.trees.named().map(|(leaf, limits)| {
            let mode = rules.mode.max(leaf.mode());
            LimiterState {
                name: leaf.to_string(),
                sort: LimiterSort::Descriptor,
                key: leaf.steps.iter().map(|step| step.key.to_string()).collect(),
                fallback_keys: Vec::new(),
                on_missing_key: None,
                never_finds_its_key: false,
                mode,
                enforced_percent: percent_of(mode),
                limits: kinds(limits),
                adaptive: None,
                is_warming_up: false,
                waiting: waiting_for(&waiting, limits),
                orders: orders(Limiter::Leaf(leaf.id)),
                since: rules.since,
            }
        });
        applied.chain(leaves).collect()
    }

    /// Counts the keys that are refused most, so many of them, to be [told](Self::top). An engine without counts none.
    ///
    /// It takes memory for eight times as many keys, however many are refused.
    #[must_use]
    pub fn with_top(mut self, keys: usize) -> Self {
        self.recorder.top = Some(Top::new(keys, self.clocks.wall.now()));
        self
    }

    /// The keys that were refused most since the engine was made, or since [`reset_top`](Self::reset_top); none unless it
    /// [counts](Self::with_top). What rules in shadow would have refused is marked; what no rule refuses isn't counted.
    pub fn top(&self) -> Option<TopKeys> {
        self.recorder.top.as_ref().map(Top::keys)
    }

    /// Counts anew from now on.
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// let policy = Policy::from_text("limits: [{name: all, rate: 1/h}]", Format::Yaml)?.policy;
    /// let engine = Engine::new(policy, memory)?.with_top(10);
    /// let _ = (engine.decide(&Facts::new()), engine.decide(&Facts::new()));
    /// assert_eq!(engine.top().expect("it is counted").keys.len(), 1);
    /// engine.reset_top();
    /// assert_eq!(engine.top().expect("it is counted").keys.len(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reset_top(&self) {
        if let Some(top) = &self.recorder.top {
            top.reset(self.clocks.wall.now());
        }
    }
}

fn kinds(limits: &[Limit]) -> Vec<LimitKind> {
    limits.iter().map(|limit| limit.kind().clone()).collect()
}

/// All limits of a rule or a tier, also one that adapts.
fn kinds_of(rule: &Applied) -> Vec<LimitKind> {
    let adaptive = rule.adapting().map(|own| own.limit.kind().clone());
    let mut kinds = kinds(rule.limits.as_slice());
    kinds.extend(adaptive);
    kinds
}

fn waiting_for(waiting: &HashMap<u64, usize, FixedState>, limits: &[Limit]) -> usize {
    let each = limits.iter().filter_map(|limit| waiting.get(&limit.id));
    each.sum()
}
