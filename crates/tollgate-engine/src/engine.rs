//! The engine: facts in, a verdict out, by a policy that can be changed at any time.

use std::convert::Infallible;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use arc_swap::ArcSwap;
use tollgate::Clock;

use crate::backend::{Backend, Clocks, Memory};
use crate::facts::Facts;
use crate::limits::{Answer, Check, DenyCache, KeyHashers};
use crate::observer::Observer;
use crate::policy::Policy;
use crate::verdict::{Findings, Said, Verdict};

mod asked;
mod conditions;
pub(crate) mod counters;
mod counting;
mod deciding;
mod descriptors;
mod gather;
mod gifts;
mod limiters;
pub(crate) mod orders;
pub(crate) mod overload;
mod peek;
mod recorder;
mod remembered;
mod retired;
pub(crate) mod rollout;
pub(crate) mod rules;
mod said;
mod saved;
pub(crate) mod seen;
mod turns;
mod unanswered;
pub mod verdict;
pub(crate) mod warm;
mod warned;

pub use crate::bounds::{Bounds, TooMuch};
pub use asked::FactsAsked;
pub use conditions::Conditions;
pub use deciding::CombinedVerdict;
pub use descriptors::{
    CurrentLimit, DescriptorFindings, DescriptorRequest, DescriptorStatus, DescriptorVerdict,
    DescriptorsPassed,
};
pub use limiters::{LimiterSort, LimiterState, ThrottleDecision};
pub use orders::{Found, FoundLimit, Reset, ResetRule, ResetScope};
pub use overload::AdaptiveState;
pub use peek::Left;
pub use rules::PolicyError;
pub use saved::{RestoreError, Restored, Resume};

use conditions::Listing;
use gather::{Gathered, Group, MatchInput};
use orders::{Book, Held};
use overload::{Beside, Entered};
use recorder::Recorder;
use remembered::Remembered;
use retired::Retired;
use rules::{Before, Rules};
use turns::Turns;

/// Decides requests by a policy.
///
/// 1. A request that a `block` entry is for is refused; any other that an `exempt` entry is for passes.
/// 2. Rules that are for it apply, unless it lacks a fact of their key and they let such requests pass, or another rule that
///    applies replaces them. The tenant's tier applies like a rule.
/// 3. What the rules in force ask is answered all or none by the [`Backend`].
/// 4. If it passes, each rule in shadow is asked by itself, and charged if it would pass; what it
///    would have refused is told, and changes nothing. A policy in shadow has all its rules so, and
///    tells of blocks.
///
/// A cost comes from the fact that the rule names, or is its default if that is unknown or no whole
/// number. Slots cost one, whatever the cost.
///
/// ```
/// use tollgate::{Rate, clock::Manual};
/// use tollgate_engine::backend::Memory;
/// use tollgate_engine::policy::{KeyPart, Limits, Match, Pattern, Policy, Rule};
/// use tollgate_engine::{Engine, Facts};
///
/// let limits = Limits { rates: vec![Rate::per_second(2)], ..Limits::default() };
/// let rule = Rule {
///     matches: Match {
///         conditions: vec![("path".to_owned(), Pattern::Glob("/api/**".to_owned()))],
///         ..Match::default()
///     },
///     key: vec![KeyPart::Fact("user".to_owned())],
///     ..Rule::new("per-user", limits)
/// };
/// let policy = Policy { rules: vec![rule], ..Policy::default() };
/// let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// let engine = Engine::new(policy, memory)?;
///
/// let facts = Facts::new().with("path", "/api/x").with("user", "42");
/// assert_eq!(engine.decide(&facts).decision().remaining, 1);
/// assert!(engine.decide(&facts).passed().is_some());
/// assert!(engine.decide(&facts).refused().is_some());
/// assert!(engine.decide(&Facts::new().with("path", "/healthz")).passed().is_some());
/// # Ok::<(), tollgate_engine::PolicyError>(())
/// ```
pub struct Engine<B: Backend = Memory> {
    rules: ArcSwap<Rules>,
    backend: B,
    clocks: Clocks,
    hashers: KeyHashers,
    bounds: Bounds,
    turns: Arc<Turns>,
    deny: Option<DenyCache>,
    recorder: Recorder,
    /// Held while a policy is compiled, so that each follows the one before.
    reloading: Mutex<Retired<Rules>>,
    /// Locked while they are put over a policy, and until that is in force.
    orders: Mutex<Book>,
}

impl<B: Backend> Engine<B> {
    /// Puts a policy in force.
    ///
    /// # Errors
    /// What the policy says can't be done.
    pub fn new(policy: Policy, backend: B) -> Result<Self, PolicyError> {
        let rules = Rules::new(policy, Before::Nothing, backend.now())?;
        Self::by(rules, backend, KeyHashers::random())
    }

    fn by(mut rules: Rules, backend: B, hashers: KeyHashers) -> Result<Self, PolicyError> {
        let clocks = backend.clocks();
        rules.suit(&backend)?;
        rules.open_gates(None, &clocks);
        rules.since = clocks.wall.now();
        Ok(Self {
            rules: ArcSwap::from_pointee(rules),
            backend,
            clocks,
            hashers,
            bounds: Bounds::default(),
            turns: Arc::new(Turns::new()),
            deny: None,
            recorder: Recorder::default(),
            reloading: Mutex::new(Retired::new()),
            orders: Mutex::default(),
        })
    }

    /// Tells this of every verdict.
    ///
    /// ```
    /// # use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// use tollgate_engine::observer::{Event, Observer};
    ///
    /// #[derive(Clone, Default)]
    /// struct Refused(Arc<AtomicU64>);
    ///
    /// impl Observer for Refused {
    ///     fn decided(&self, event: &Event<'_>) {
    ///         self.0.fetch_add(u64::from(!event.decision.is_allowed()), Ordering::Relaxed);
    ///     }
    /// }
    ///
    /// let refused = Refused::default();
    /// # let policy = Policy::from_text("limits: [{name: all, rate: 1/s}]", Format::Yaml)?.policy;
    /// let engine = Engine::new(policy, memory)?.with_observer(refused.clone());
    /// let _ = (engine.decide(&Facts::new()), engine.decide(&Facts::new()));
    /// assert_eq!(refused.0.load(Ordering::Relaxed), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_observer(mut self, observer: impl Observer + 'static) -> Self {
        self.recorder.wants = observer.wants();
        self.recorder.observer = Some(Box::new(observer));
        self
    }

    /// Remembers so many denials, and repeats them without asking the backend for as long as they are known to hold, and
    /// for a second at most: then one request asks again, as another process may have reset the key, and if the backend
    /// can't be asked the denial holds on. For a backend that is far: one in memory answers as fast, and one that
    /// [repeats refusals by itself](Backend::deny_epoch), as the client of a store does, does so alone. A refusal
    /// that is repeated tells how long that limit takes, and may leave out others that take longer; what is
    /// left is as of the first refusal.
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// # let policy = Policy::from_text("limits: [{name: all, rate: 1/h}]", Format::Yaml)?.policy;
    /// let engine = Engine::new(policy, memory)?.with_deny_cache(10_000);
    /// assert!(engine.decide(&Facts::new()).passed().is_some());
    /// assert!(engine.decide(&Facts::new()).refused().is_some()); // Asked.
    /// assert!(engine.decide(&Facts::new()).refused().is_some()); // Remembered.
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_deny_cache(mut self, entries: usize) -> Self {
        let is_wanted = self.backend.deny_epoch().is_some();
        self.deny = is_wanted.then(|| DenyCache::new(entries));
        self
    }

    /// How much one request may bring, in place of the [default](Bounds).
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::{Bounds, Engine, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// let bounds = Bounds { descriptors: 8, ..Bounds::default() };
    /// let engine = Engine::new(Policy::default(), memory)?.with_bounds(bounds);
    /// # Ok::<(), tollgate_engine::PolicyError>(())
    /// ```
    #[must_use]
    pub fn with_bounds(mut self, bounds: Bounds) -> Self {
        self.bounds = bounds;
        self
    }

    /// Tells keys apart by fingerprints that follow from this number instead of a random one, so that a test runs the
    /// same each time. Someone who knows the number can make keys that collide.
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// let fingerprint = || {
    ///     let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    ///     let policy = Policy::from_text("limits: [{name: a, key: user, rate: 1/h}]", Format::Yaml)?.policy;
    ///     let engine = Engine::new(policy, memory)?.with_seed(7);
    ///     let facts = Facts::new().with("user", "42");
    ///     let verdict = engine.decide(&facts);
    ///     Ok::<_, Box<dyn std::error::Error>>(verdict.key().map(|key| key.fingerprint()))
    /// };
    /// assert_eq!(fingerprint()?, fingerprint()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.hashers = KeyHashers::seeded(seed);
        self
    }

    /// Puts another policy in force.
    ///
    /// Decisions go on meanwhile, by the old policy until the new one is compiled. A limit that has
    /// the same name and algorithm keeps what its keys have spent, a changed rate applies from the
    /// next request on, and permits stay valid and count on. What a limit that is gone, or off, has counted stays until
    /// its keys are idle: one that returns goes on with it, and with permits that are held (of the last 65,536 limits that
    /// went). The old policy is dropped here, or by the next reload if a verdict by it is still held.
    ///
    /// However often a rule changes, no window sees more than the largest burst and the fastest rate of
    /// the versions in it allow. A token bucket keeps its tokens, so each change may add a burst there, and
    /// so may one that makes a tier or a shared counter stricter; if more than five versions get stricter
    /// within seconds, the bound is by the fastest of them. A key that has spent a slower rate waits until the
    /// largest burst of all versions is paid back at the new one, and at most a second more.
    ///
    /// # Errors
    /// What the policy says can't be done; the old one stays in force.
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// let read = |text: &str| Policy::from_text(text, Format::Yaml).map(|checked| checked.policy);
    /// let engine = Engine::new(read("limits: [{name: all, rate: 2/h}]")?, memory)?;
    /// let facts = Facts::new();
    /// assert!(engine.decide(&facts).passed().is_some());
    /// engine.reload(read("limits: [{name: all, rate: 2/h}, {name: other, key: user, rate: 5/s}]")?)?;
    /// assert_eq!(engine.decide(&facts).decision().remaining, 0); // What was spent before counts.
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reload(&self, policy: Policy) -> Result<(), PolicyError> {
        let reloading = self.reloading.lock();
        let mut retired = reloading.unwrap_or_else(PoisonError::into_inner);
        let before = self.rules.load_full();
        let mut rules = Rules::new(policy, Before::Rules(&before), self.backend.now())?;
        rules.suit(&self.backend)?;
        if let Some(tallies) = &self.recorder.tallies {
            rules.count_in(tallies);
        }
        rules.open_gates(Some(&before), &self.clocks);
        rules.since = self.clocks.wall.now();
        let mut book = self.book();
        self.put_over(&rules, &mut book);
        self.rules.store(Arc::new(rules));
        self.recorder.warnings.clear();
        drop(book);
        retired.retire(before);
        self.turns.poke_all();
        Ok(())
    }

    /// The policy in force.
    pub fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.rules.load().policy)
    }

    /// The backend that answers its checks.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// How many requests wait for their turn, because a rule says `over: wait`.
    pub fn waiting(&self) -> usize {
        self.turns.waiting()
    }

    /// Whether a rule of the policy in force lets requests wait. If none does, [`decide`](Self::decide) says what
    /// [`decide_async`](Self::decide_async) would.
    pub fn lets_wait(&self) -> bool {
        self.rules.load().waits
    }
}

/// The steps that every request of facts takes, whether its backend answers at once or not.
impl<B: Backend> Engine<B> {
    /// A request of facts, and what it is matched with.
    #[inline(always)]
    fn match_input<'a>(
        &'a self,
        rules: &'a Rules,
        orders: Option<&'a Held>,
        facts: &'a Facts<'a>,
    ) -> MatchInput<'a, 'a> {
        MatchInput {
            rules,
            orders: orders.map(Held::in_force),
            facts,
            hashers: &self.hashers,
            bounds: &self.bounds,
        }
    }

    /// What is to be asked about a request, for those who only look at it.
    fn gather<'a>(&self, input: MatchInput<'a, '_>) -> Gathered<'a> {
        let mut gathered = Gathered::new();
        gathered.fill(input, &self.backend);
        gathered
    }

    /// Matches a request that is to be decided, and notes what it lacks; whether nothing is to be asked about it.
    #[inline(always)]
    fn prepare<'a>(
        &self,
        input: MatchInput<'a, '_>,
        gathered: &mut Gathered<'a>,
        said: &mut Said,
    ) -> bool {
        gathered.fill(input, &self.backend);
        if let Some(ordered) = &gathered.ordered {
            ordered.count();
        }
        (self.recorder).note_lacks(input.rules, gathered, input.facts);
        said.settle(gathered)
    }
}

impl<C: Clock + 'static, W: Clock + 'static> Engine<Memory<C, W>> {
    /// Decides a request. It never waits: if a rule says `over: wait`, a request that is over it is refused here, and so is
    /// one that would pass others that wait in [`decide_async`](Self::decide_async). It allocates nothing unless the
    /// request takes a slot, meets very many rules, or has very long keys.
    #[inline]
    pub fn decide<'f>(&self, facts: &'f Facts<'f>) -> Verdict<'f> {
        self.decide_and_list(facts, Listing::Decider)
    }

    /// The same, and the verdict tells of each limit that the request met ([`Findings::limits`]): for answers that list them. If
    /// there are several, each is looked at once more, and that allocates.
    #[inline]
    pub fn decide_listing_limits<'f>(&self, facts: &'f Facts<'f>) -> Verdict<'f> {
        self.decide_and_list(facts, Listing::All)
    }

    #[inline(always)]
    fn decide_and_list<'f>(&self, facts: &'f Facts<'f>, listing: Listing) -> Verdict<'f> {
        let started = self.recorder.started(&self.backend);
        // Made where the caller gets it: it is large, and moving it takes longer than filling it.
        let mut verdict = Verdict::new(Findings {
            said: Said::default(),
            rules: self.rules.load(),
            facts,
        });
        let findings = verdict.findings_mut();
        let (said, rules) = (&mut findings.said, &**findings.rules);
        let orders = self.ordered(rules);
        let mut gathered = Gathered::new();
        let input = self.match_input(rules, orders.as_ref(), facts);
        if !self.prepare(input, &mut gathered, said) {
            self.ask_now(said, rules, &gathered, listing);
        }
        if said.allowed {
            self.recorder.passed(rules, &gathered, said);
        }
        (self.recorder).report(&verdict, started, &self.backend);
        verdict.settled()
    }

    /// Asks what is answered without waiting: the rules in force, and those in shadow if the request passes.
    #[inline(always)]
    fn ask_now(&self, said: &mut Said, rules: &Rules, gathered: &Gathered<'_>, listing: Listing) {
        let in_line = rules.waits && self.turns.is_any();
        match &self.deny {
            _ if in_line && self.stands_behind(said, rules, gathered) => {}
            None if !rules.is_more => {
                let checks = gathered.enforced.checks.as_slice();
                said.hear(gathered, self.backend.answer(checks));
            }
            _ => self.hear_aside(said, rules, gathered),
        }
        if listing == Listing::All && gathered.enforced.checks.as_slice().len() > 1 {
            self.list_limits(said, gathered);
        }
        if said.allowed {
            for (number, checks) in runs(&gathered.shadow) {
                if let Some(entered) = said.enter_in_shadow(gathered, number) {
                    let mut answer = self.backend.answer(checks);
                    entered.hold(Beside::Nothing, &mut answer);
                    said.hear_shadow((rules, gathered), (number, checks), answer, &self.recorder);
                }
            }
            if gathered.gates.is_some() {
                said.enter_alone(rules, gathered, &self.recorder);
            }
        }
    }

    /// Looks at each limit in force, after the request was charged or denied.
    #[cold]
    #[inline(never)]
    fn list_limits(&self, said: &mut Said, gathered: &Gathered<'_>) {
        let checks = gathered.enforced.checks.as_slice();
        let each = self.backend.look_after(checks, said.allowed);
        said.list_limits(gathered, &each);
    }

    /// What the rules in force say, or what is remembered of it, if other requests may wait for what this one holds, or
    /// there are gates to enter.
    #[inline(never)]
    fn hear_aside(&self, said: &mut Said, rules: &Rules, gathered: &Gathered<'_>) {
        let entered = match gathered.gates.is_some().then(|| Entered::all(gathered)) {
            Some(Err((gate, decision))) => {
                return said.hear(gathered, Answer::new(Some(gate), decision));
            }
            entered => entered.and_then(Result::ok),
        };
        let mut answer =
            match Remembered::look_up(self.deny.as_ref(), &self.backend, rules, &gathered.enforced)
            {
                Remembered::Denied(answer) => answer,
                Remembered::Asking(asking) => {
                    let answer = self.backend.answer(gathered.enforced.checks.as_slice());
                    asking.answered(&gathered.enforced, answer)
                }
            };
        if let Some(entered) = entered {
            entered.join(&gathered.enforced, Beside::Nothing, &mut answer);
        }
        if rules.waits {
            self.tell_of_what_comes_back(rules, gathered, &mut answer);
        }
        said.hear(gathered, answer);
    }
}

/// The output of a future that asks a backend in memory, which never waits.
fn ready<T>(asking: impl Future<Output = Result<T, Infallible>>) -> T {
    match pin!(asking).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(output)) => output,
        Poll::Pending => unreachable!("memory never waits"),
    }
}

/// The checks of each rule by itself.
fn runs<'g, 'a>(group: &'g Group<'a>) -> impl Iterator<Item = (u32, &'g [Check<'a>])> {
    let (checks, askers) = (group.checks.as_slice(), group.askers.as_slice());
    let mut start = 0;
    askers.chunk_by(|one, other| one == other).map(move |run| {
        let own = &checks[start..start + run.len()];
        start += run.len();
        (run[0], own)
    })
}

impl<B: Backend + fmt::Debug> fmt::Debug for Engine<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("rules", &self.rules.load().applied.len())
            .field("backend", &self.backend)
            .finish_non_exhaustive()
    }
}
