//! What came of a request: whether it passes, which rule said so, and what it holds meanwhile.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::Guard;
use tollgate::{Decision, Ending, Outcome, Pass};

pub use crate::engine::TooMuch;
use crate::engine::bounds::Excess;
use crate::engine::key::Key;
use crate::engine::rules::Rules;
use crate::facts::Facts;
use crate::matcher::few::Few;
use crate::policy::{Mode, OnStoreFailure};

/// What decided about a request.
///
/// ```
/// use tollgate_engine::verdict::Cause;
///
/// assert_eq!(Cause::Rule("per-user").to_string(), "rule \"per-user\"");
/// assert_eq!(Cause::Block(0).to_string(), "block[0]");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause<'a> {
    /// No rule is for it.
    Nothing,
    /// It is exempt, by this entry of the list.
    Exempt(usize),
    /// It is blocked, by this entry of the list.
    Block(usize),
    /// A rule, by name.
    Rule(&'a str),
    /// What a tier allows, by name.
    Tier(&'a str),
    /// A limit of a tree of descriptors, as `domain/key=value/key`.
    Descriptor(&'a str),
    /// A limit that a descriptor brought along.
    Asked,
    /// The store couldn't be asked about a rule or tier that nothing passes without, by name. The limit
    /// itself has refused nothing.
    StoreFailure(&'a str),
    /// It has more of something than [is taken](crate::Bounds). No limit was asked.
    TooMuch(TooMuch<'a>),
}

impl fmt::Display for Cause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("no rule"),
            Self::Exempt(entry) => write!(f, "exempt[{entry}]"),
            Self::Block(entry) => write!(f, "block[{entry}]"),
            Self::Rule(name) => write!(f, "rule {name:?}"),
            Self::Tier(name) => write!(f, "tier {name:?}"),
            Self::Descriptor(path) => write!(f, "descriptor {path:?}"),
            Self::Asked => f.write_str("a limit that was asked for"),
            Self::StoreFailure(name) => write!(f, "no store to ask about {name:?}"),
            Self::TooMuch(what) => what.fmt(f),
        }
    }
}

/// The same by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Nothing,
    Exempt(usize),
    Block(usize),
    /// A rule or a tier.
    Applied(u32),
    /// A rule or a tier that is closed while there is no store.
    StoreFailure(u32),
    Excess(Excess),
}

impl By {
    pub(crate) fn cause(self, rules: &Rules) -> Cause<'_> {
        match self {
            Self::Nothing => Cause::Nothing,
            Self::Exempt(entry) => Cause::Exempt(entry),
            Self::Block(entry) => Cause::Block(entry),
            Self::StoreFailure(number) => Cause::StoreFailure(&rules.applied[number as usize].name),
            Self::Excess(Excess::Checks { found, most }) => {
                Cause::TooMuch(TooMuch::Checks { found, most })
            }
            Self::Excess(Excess::Fact { slot, bytes, most }) => Cause::TooMuch(TooMuch::Fact {
                name: rules.matcher.slots().name(slot),
                bytes,
                most,
            }),
            Self::Applied(number) => {
                let applied = &rules.applied[number as usize];
                if applied.is_tier {
                    Cause::Tier(&applied.name)
                } else {
                    Cause::Rule(&applied.name)
                }
            }
        }
    }
}

/// What came of a request.
///
/// ```
/// # use tollgate::{Rate, clock::Manual};
/// # use tollgate_engine::{Engine, Facts, backend::Memory, policy::{Cost, KeyPart, Limits, Match, Mode, OnStoreFailure, Policy, Rule}, verdict::Cause};
/// # let rule = Rule { name: "per-user".to_owned(), matches: Match::default(), key: vec![KeyPart::Fact("user".to_owned())],
/// #     limits: Limits { rates: vec![Rate::per_minute(1)], ..Limits::default() }, algorithm: Default::default(), cost: Cost::default(),
/// #     mode: Mode::Enforce, on_store_failure: OnStoreFailure::Local, counting: Default::default(), slot: None, replaces: Vec::new(), shared: None, span: Default::default() };
/// # let policy = Policy { rules: vec![rule], ..Policy::default() };
/// # let engine = Engine::new(policy, Memory::builder().clock(Manual::new()).wall(Manual::new()).build())?;
/// let facts = Facts::new().with("user", "42");
/// assert!(engine.decide(&facts).is_allowed());
/// let verdict = engine.decide(&facts);
/// assert!(!verdict.is_allowed());
/// assert_eq!(verdict.cause(), Cause::Rule("per-user"));
/// assert_eq!(verdict.key().expect("by user").to_string(), "user=42");
/// assert_eq!(verdict.decision().retry_after.as_secs(), 60);
/// # Ok::<(), tollgate_engine::PolicyError>(())
/// ```
#[must_use = "a verdict that is dropped gives back the slots that it holds"]
pub struct Verdict<'f> {
    pub(crate) said: Said,
    /// The policy that it was decided by.
    pub(crate) rules: Guard<Arc<Rules>>,
    pub(crate) facts: &'f Facts<'f>,
}

/// What was said about a request, or what is said so far.
pub(crate) struct Said {
    pub(crate) allowed: bool,
    pub(crate) by: By,
    /// Of the key by which it was decided.
    pub(crate) fingerprint: [u64; 2],
    pub(crate) decision: Decision,
    pub(crate) permits: Permits,
    pub(crate) shadows: Few<Shadowed, 2>,
    pub(crate) fallback: Option<OnStoreFailure>,
}

impl Default for Said {
    #[inline]
    fn default() -> Self {
        Self {
            allowed: true,
            by: By::Nothing,
            fingerprint: [0; 2],
            decision: Decision::UNLIMITED,
            permits: Permits::default(),
            shadows: Few::new(),
            fallback: None,
        }
    }
}

/// A refusal by a rule in shadow, by number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shadowed {
    pub(crate) by: By,
    pub(crate) decision: Decision,
}

/// What a rule in shadow would have refused.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Facts, Policy};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// # use tollgate_engine::verdict::Cause;
/// let text = "limits: [{name: trial, rate: 1/h, mode: shadow}]";
/// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
/// let facts = Facts::new();
/// let _ = engine.decide(&facts);
/// let verdict = engine.decide(&facts);
/// assert!(verdict.is_allowed());
/// let refusal = verdict.shadow_refusals().next().expect("the second in an hour");
/// assert_eq!((refusal.cause, refusal.decision.retry_after.as_secs()), (Cause::Rule("trial"), 3_600));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShadowRefusal<'a> {
    /// The rule.
    pub cause: Cause<'a>,
    /// What it said.
    pub decision: Decision,
}

impl Verdict<'_> {
    /// Whether the request may pass.
    pub fn is_allowed(&self) -> bool {
        self.said.allowed
    }

    /// What decided: of a request that passed, the rule with the fewest such requests left.
    pub fn cause(&self) -> Cause<'_> {
        self.said.by.cause(&self.rules)
    }

    /// Whether what decided bites. All that is in shadow is told by
    /// [`shadow_refusals`](Self::shadow_refusals).
    pub fn mode(&self) -> Mode {
        match self.said.by {
            By::Applied(number) | By::StoreFailure(number) => {
                self.rules.applied[number as usize].mode
            }
            _ => self.rules.mode,
        }
    }

    /// One decision for all: what is left of the tightest limit, or of those that refused the one
    /// with the largest `retry_after`. A request that meets no limit has no limit, and one that is
    /// blocked never passes.
    pub fn decision(&self) -> &Decision {
        &self.said.decision
    }

    /// The key by which it was decided; none if no rule decided.
    pub fn key(&self) -> Option<Key<'_>> {
        let (By::Applied(number) | By::StoreFailure(number)) = self.said.by else {
            return None;
        };
        let plan = &self.rules.applied[number as usize].key;
        Some(Key::new(plan, self.facts, self.said.fingerprint))
    }

    /// Whether it passed, and the limit that decided is as far used as the policy calls near: 80 %
    /// unless it says otherwise.
    pub fn is_near_limit(&self) -> bool {
        self.said.allowed && is_near(&self.said.decision, self.rules.near_limit_percent)
    }

    /// What rules in shadow would have refused, in the order of the file. A request that is refused
    /// isn't shown to them: it would have charged them nothing.
    pub fn shadow_refusals(&self) -> impl Iterator<Item = ShadowRefusal<'_>> {
        self.said
            .shadows
            .as_slice()
            .iter()
            .map(|shadowed| ShadowRefusal {
                cause: shadowed.by.cause(&self.rules),
                decision: shadowed.decision,
            })
    }

    /// What decided if a store couldn't be asked; none if it was, or there is none.
    ///
    /// A request that is refused because the store can't be asked
    /// ([`Cause::StoreFailure`]) wants another answer than one that has reached a limit: 503, not 429.
    pub fn fallback(&self) -> Option<OnStoreFailure> {
        self.said.fallback
    }

    /// What holds the slots of the request while it runs; nothing if it was refused.
    pub fn into_permits(self) -> Permits {
        self.said.permits
    }
}

impl fmt::Debug for Verdict<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verdict")
            .field("allowed", &self.said.allowed)
            .field("cause", &self.cause())
            .field("decision", &self.said.decision)
            .finish_non_exhaustive()
    }
}

/// The slots of all concurrency limits that a request holds, given back when this is dropped.
///
/// It outlives a change of the policy, and what it holds counts in the next one.
///
/// ```
/// # use tollgate::Ending;
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Facts, Policy};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// let text = "limits: [{name: exports, concurrency: 1}]";
/// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
/// let facts = Facts::new();
/// let permits = engine.decide(&facts).into_permits();
/// assert!(!engine.decide(&facts).is_allowed());
/// permits.end(Ending::Success);
/// assert!(engine.decide(&facts).is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
#[must_use = "permits that are dropped give back their slots"]
pub struct Permits {
    pub(crate) own: Pass,
    /// Of rules in shadow that have slots.
    pub(crate) shadows: Vec<Pass>,
}

impl Permits {
    /// The request ended like this: served, dropped for overload, or neither.
    pub fn end(self, ending: Ending) {
        self.own.end(ending);
        for pass in self.shadows {
            pass.end(ending);
        }
    }
}

/// Whether something passed, and of its limit as much is used as these percents.
pub(crate) fn is_near(decision: &Decision, percent: u8) -> bool {
    let Decision {
        limit, remaining, ..
    } = *decision;
    let used = u128::from(limit.saturating_sub(remaining));
    let near = used * 100 >= u128::from(limit) * u128::from(percent);
    decision.is_allowed() && limit < u64::MAX && near
}

/// What a blocked request is told.
pub(crate) const BLOCKED: Decision =
    Decision::new(Outcome::Never, 0, 0, Duration::MAX, Duration::ZERO);
