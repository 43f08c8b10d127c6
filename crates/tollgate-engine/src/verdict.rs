//! What came of a request: whether it passes, which rule said so, and what it holds meanwhile.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::Guard;
use tollgate::{Decision, Outcome, Timestamp, concurrency::Ending, stack::Pass};

pub use crate::engine::TooMuch;
use crate::engine::rules::Rules;
use crate::facts::Facts;
use crate::limits::Limit;
use crate::limits::RequestKey;
use crate::matcher::few::Few;
use crate::policy::{Mode, OnStoreFailure};

mod cause;

pub use cause::Cause;

pub(crate) use cause::By;

/// What came of a request: it passes and holds what it takes, or it is refused.
///
/// Match on it, and keep what passed for as long as the request runs: slots of concurrency limits are given
/// back when it is dropped. Either way it tells [why](Findings).
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::verdict::Cause;
/// # use tollgate_engine::{Engine, Facts, Policy};
/// use tollgate_engine::Verdict;
///
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// # let text = "limits: [{name: per-user, key: [user], rate: 1/min, concurrency: 5}]";
/// # let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
/// let facts = Facts::new().with("user", "42");
/// match engine.decide(&facts) {
///     Verdict::Passed(passed) => {
///         // The request runs here, or in a task that `passed.into_permits()` is moved into.
///         drop(passed);
///     }
///     Verdict::Refused(refused) => println!("429: {}", refused.cause()),
/// }
/// let Verdict::Refused(refused) = engine.decide(&facts) else { panic!("the second in a minute") };
/// assert_eq!(refused.cause(), Cause::Rule("per-user"));
/// assert_eq!(refused.key().expect("by user").to_string(), "user=42");
/// assert_eq!(refused.decision().retry_after.as_secs(), 60);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "what passed gives back its slots when it is dropped: match on it, and keep it while the request runs"]
pub enum Verdict<'f> {
    /// The request may pass.
    Passed(Passed<'f>),
    /// It may not, and was charged nothing.
    Refused(Refused<'f>),
}

/// A request that may pass, with what it holds while it runs.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Facts, Policy, Verdict};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// # let text = "limits: [{name: searches, rate: 10/h}]";
/// # let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
/// let facts = Facts::new();
/// let Verdict::Passed(passed) = engine.decide(&facts) else { panic!("the first") };
/// assert_eq!(passed.decision().remaining, 9);
/// assert!(!passed.is_near_limit());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "what passed gives back its slots when it is dropped"]
pub struct Passed<'f>(Findings<'f>);

/// A request that may not pass.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Facts, Policy, Verdict};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// # let text = "block: [{ip: 203.0.113.0/24}]";
/// # let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
/// let facts = Facts::new().with("ip", "203.0.113.7");
/// let Verdict::Refused(refused) = engine.decide(&facts) else { panic!("it is blocked") };
/// assert_eq!(refused.cause().to_string(), "block[0]");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Refused<'f>(Findings<'f>);

/// What is told of a request, whether it passed or was refused: what decided, by which key, and what is left.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Facts, Policy};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// # let text = "limits: [{name: searches, rate: 10/h}]";
/// # let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
/// use tollgate_engine::verdict::{Cause, Findings};
///
/// let log = |told: &Findings<'_>| format!("{}, {} left", told.cause(), told.decision().remaining);
/// assert_eq!(log(&engine.decide(&Facts::new())), "rule \"searches\", 9 left");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Findings<'f> {
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
    /// Of the limit that decided; none has zero.
    pub(crate) limit: u64,
    pub(crate) decision: Decision,
    pub(crate) permits: Permits,
    pub(crate) shadows: Few<Shadowed, 2>,
    pub(crate) fallback: Option<OnStoreFailure>,
    /// When, if a rule that warms up may have decided.
    pub(crate) at: Option<Timestamp>,
}

impl Default for Said {
    #[inline]
    fn default() -> Self {
        Self {
            allowed: true,
            by: By::Nothing,
            fingerprint: [0; 2],
            limit: 0,
            decision: Decision::UNLIMITED,
            permits: Permits::default(),
            shadows: Few::new(),
            fallback: None,
            at: None,
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
/// # use tollgate_engine::{Engine, Facts, Policy, Verdict};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// # use tollgate_engine::verdict::Cause;
/// let text = "limits: [{name: trial, rate: 1/h, mode: shadow}]";
/// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
/// let facts = Facts::new();
/// let _ = engine.decide(&facts);
/// let Verdict::Passed(passed) = engine.decide(&facts) else { panic!("it is on trial") };
/// let refusal = passed.shadow_refusals().next().expect("the second in an hour");
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
    /// For how many keys in a hundred the rule is enforced: 0 unless it is being rolled out.
    pub enforced_percent: u8,
}

impl Findings<'_> {
    /// What decided: of a request that passed, the rule with the fewest such requests left.
    pub fn cause(&self) -> Cause<'_> {
        self.said.by.cause(&self.rules)
    }

    /// Whether what decided is enforced for this key, or only counts. All that is in shadow is told by
    /// [`shadow_refusals`](Self::shadow_refusals).
    pub fn mode(&self) -> Mode {
        match (self.said.by, self.key()) {
            (By::Applied(number) | By::StoreFailure(number), Some(key)) => {
                self.rules.applied[number as usize].mode_for(&key)
            }
            _ => self.rules.mode,
        }
    }

    /// For how many keys in a hundred what decided is enforced: 100, or 0 of what is in shadow, unless it is
    /// being rolled out (`mode: {enforce: 10%}`).
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
        match self.said.by {
            By::Applied(number) | By::StoreFailure(number) => {
                self.rules.applied[number as usize].enforced_percent()
            }
            _ => percent_of(self.rules.mode),
        }
    }

    /// One decision for all: what is left of the tightest limit, or of those that refused the one
    /// with the largest `retry_after`. A request that meets no limit has no limit, and one that is
    /// blocked never passes.
    pub fn decision(&self) -> &Decision {
        &self.said.decision
    }

    /// The key by which it was decided; none if no rule decided.
    pub fn key(&self) -> Option<RequestKey<'_>> {
        let (By::Applied(number) | By::StoreFailure(number)) = self.said.by else {
            return None;
        };
        let plan = &self.rules.applied[number as usize].key;
        Some(RequestKey::new(plan, self.facts, self.said.fingerprint))
    }

    /// Whether it passed, and the limit that decided is as far used as the policy calls near: 80 % unless it
    /// says otherwise.
    pub fn is_near_limit(&self) -> bool {
        self.said.allowed && is_near(&self.said.decision, self.rules.near_limit_percent)
    }

    /// The limit that decided, for headers that tell it; none if none did.
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
        let (By::Applied(number) | By::StoreFailure(number)) = self.said.by else {
            return None;
        };
        let applied = &self.rules.applied[number as usize];
        let gates = applied.gates(self.said.at);
        let mut limits = applied.limits.as_slice().iter().chain(gates);
        limits.find(|limit| limit.id == self.said.limit)
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
                enforced_percent: match shadowed.by {
                    By::Applied(number) => self.rules.applied[number as usize].enforced_percent(),
                    _ => 0,
                },
            })
    }

    /// What decided if a store couldn't be asked; none if it was, or there is none.
    ///
    /// A request that is refused because the store can't be asked
    /// ([`Cause::StoreFailure`]) wants another answer than one that has reached a limit: 503, not 429.
    pub fn fallback(&self) -> Option<OnStoreFailure> {
        self.said.fallback
    }
}

impl<'f> Verdict<'f> {
    /// What passed; none if it was refused.
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// # let text = "limits: [{name: exports, concurrency: 1}]";
    /// # let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
    /// let facts = Facts::new();
    /// if let Some(passed) = engine.decide(&facts).passed() {
    ///     // It holds the only slot until the end of the block.
    ///     assert!(engine.decide(&facts).refused().is_some());
    ///     # drop(passed);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn passed(self) -> Option<Passed<'f>> {
        match self {
            Self::Passed(passed) => Some(passed),
            Self::Refused(_) => None,
        }
    }

    /// What was refused; none if it passed.
    pub fn refused(&self) -> Option<&Refused<'f>> {
        match self {
            Self::Passed(_) => None,
            Self::Refused(refused) => Some(refused),
        }
    }

    /// Of a request that nothing was said of so far: it passes.
    #[inline]
    pub(crate) fn new(findings: Findings<'f>) -> Self {
        Self::Passed(Passed(findings))
    }

    /// What is told of it, to be filled in; then [settled](Self::settled).
    #[inline]
    pub(crate) fn findings_mut(&mut self) -> &mut Findings<'f> {
        match self {
            Self::Passed(Passed(findings)) | Self::Refused(Refused(findings)) => findings,
        }
    }

    /// As what was filled in says.
    #[inline]
    pub(crate) fn settled(self) -> Self {
        match self {
            Self::Passed(Passed(findings)) if !findings.said.allowed => {
                Self::Refused(Refused(findings))
            }
            settled => settled,
        }
    }
}

impl Passed<'_> {
    /// What holds the slots and estimates of the request while it runs. It borrows nothing, so it may be moved into a task.
    pub fn into_permits(self) -> Permits {
        self.0.said.permits
    }
}

impl<'f> Deref for Verdict<'f> {
    type Target = Findings<'f>;

    fn deref(&self) -> &Findings<'f> {
        match self {
            Self::Passed(Passed(findings)) | Self::Refused(Refused(findings)) => findings,
        }
    }
}

impl<'f> Deref for Passed<'f> {
    type Target = Findings<'f>;

    fn deref(&self) -> &Findings<'f> {
        &self.0
    }
}

impl<'f> Deref for Refused<'f> {
    type Target = Findings<'f>;

    fn deref(&self) -> &Findings<'f> {
        &self.0
    }
}

impl fmt::Debug for Passed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Refused<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Findings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Findings")
            .field("cause", &self.cause())
            .field("decision", &self.said.decision)
            .finish_non_exhaustive()
    }
}

/// What a request holds while it runs: slots of concurrency limits, given back when this is dropped, and costs
/// that are estimates, until [`settle`](Self::settle) tells what the request did cost. Estimates of which nothing
/// is said are charged, or given back, as the rule has chosen ([`Unsettled`](crate::policy::Unsettled)).
///
/// It outlives a change of the policy, and what it holds counts in the next one.
///
/// ```
/// # use tollgate::concurrency::Ending;
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Facts, Policy, Verdict};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// let text = "limits: [{name: exports, concurrency: 1}]";
/// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
/// let facts = Facts::new();
/// let Verdict::Passed(passed) = engine.decide(&facts) else { panic!("the first") };
/// let permits = passed.into_permits();
/// assert!(engine.decide(&facts).refused().is_some());
/// permits.end(Ending::Success);
/// assert!(engine.decide(&facts).passed().is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
#[must_use = "permits that are dropped give back their slots, and settle nothing"]
pub struct Permits {
    pub(crate) own: Pass,
    /// Of rules in shadow that have some.
    pub(crate) shadows: Vec<Pass>,
}

impl Permits {
    /// The request cost so much, by rules whose cost is an estimate: the rest of that comes back, or what was
    /// underestimated is owed. Said once; slots are held on until this is dropped or [ends](Self::end).
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy, Verdict};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// let text = "limits: [{name: tokens, rate: 10000/h, cost: {fact: max_tokens, settle_within: 60s}}]";
    /// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
    /// let facts = Facts::new().with("max_tokens", "4000");
    /// let Verdict::Passed(passed) = engine.decide(&facts) else { panic!("the first") };
    /// let mut permits = passed.into_permits(); // Moved into the task that streams the answer.
    /// assert_eq!(engine.peek(&facts).decision().remaining, 6_000);
    /// permits.settle(1_500);
    /// assert_eq!(engine.peek(&facts).decision().remaining, 8_500);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn settle(&mut self, spent: u64) {
        self.own.settle(spent);
        for pass in &mut self.shadows {
            pass.settle(spent);
        }
    }

    /// Whether nothing is held: then it makes no difference when this is dropped.
    pub fn is_empty(&self) -> bool {
        self.own.is_empty() && self.shadows.iter().all(Pass::is_empty)
    }

    /// The request never ran: estimates come back, whatever the rule has chosen, and slots are free.
    pub fn cancel(self) {
        self.own.cancel();
        for pass in self.shadows {
            pass.cancel();
        }
    }

    /// The request ended like this: served, dropped for overload, or neither.
    pub fn end(self, ending: Ending) {
        self.own.end(ending);
        for pass in self.shadows {
            pass.end(ending);
        }
    }
}

/// For how many keys in a hundred what is in this mode is enforced.
pub(crate) const fn percent_of(mode: Mode) -> u8 {
    match mode {
        Mode::Enforce => 100,
        Mode::Shadow | Mode::Off => 0,
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
