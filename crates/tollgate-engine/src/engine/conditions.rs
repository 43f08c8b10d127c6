//! The options of a decision.

use std::ops::Deref;
use std::sync::Arc;

use arc_swap::Guard;

use super::rules::CompiledPolicy;

/// The options of [`Engine::decide_with_conditions`](super::Engine::decide_with_conditions). By default it decides as
/// [`Engine::decide_async`](super::Engine::decide_async) does.
///
/// ```
/// use tollgate_engine::backend::Memory;
/// use tollgate_engine::document::Format;
/// use tollgate_engine::{DecideOptions, Engine, Facts, Policy};
///
/// let text = "limits: [{name: all, rate: 1/h, over: wait 2h}]";
/// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, Memory::new())?;
/// let decide = async || {
///     let (facts, at_once) = (Facts::new(), DecideOptions::new().without_waiting());
///     let first = engine.decide_with_conditions(at_once, &facts).await?.is_some_and(|verdict| verdict.allowed().is_some());
///     let second = engine.decide_with_conditions(at_once, &facts).await?.is_some_and(|verdict| verdict.allowed().is_some());
///     // The second request would wait for an hour.
///     assert_eq!((first, second), (true, false));
///     Ok::<(), std::convert::Infallible>(())
/// };
/// # use std::{pin::pin, task::{Context, Poll, Waker}};
/// # let done = pin!(decide()).poll(&mut Context::from_waker(Waker::noop()));
/// # assert!(matches!(done, Poll::Ready(Ok(()))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "conditions do nothing until something is decided on them"]
pub struct DecideOptions<'a> {
    known_facts: Option<&'a RequiredFacts>,
    pub(super) is_immediate: bool,
    pub(super) lists_limits: bool,
}

impl<'a> DecideOptions<'a> {
    /// The options of [`Engine::decide_async`](super::Engine::decide_async).
    pub const fn new() -> Self {
        Self {
            known_facts: None,
            is_immediate: false,
            lists_limits: false,
        }
    }

    /// Lists each limit that applied, not only the one that decided:
    /// [`DecisionDetails::limits`](crate::verdict::DecisionDetails::limits). This needs no further store request, and
    /// allocates if there are several limits.
    pub const fn listing_limits(mut self) -> Self {
        self.lists_limits = true;
        self
    }

    /// Denies a request where a rule has `over: wait`, instead of letting it wait.
    pub const fn without_waiting(mut self) -> Self {
        self.is_immediate = true;
        self
    }

    /// States that the caller looked for these facts and no others. If a policy comes into force before the decision,
    /// or while the request waits, and reads another fact, the request isn't decided by it: the engine would take a
    /// fact that nobody looked for as missing.
    pub const fn with_known_facts(mut self, asked: &'a RequiredFacts) -> Self {
        self.known_facts = Some(asked);
        self
    }

    /// Whether these rules read a fact that the caller didn't look for.
    pub(super) fn lacks_facts_for(self, rules: &Arc<CompiledPolicy>) -> bool {
        self.known_facts.is_some_and(|asked| !asked.covers(rules))
    }
}

/// The names of the facts that the policy in force reads, each once: see
/// [`Engine::required_facts`](super::Engine::required_facts).
///
/// ```
/// use tollgate_engine::RequiredFacts;
///
/// fn reads_addresses(required: &RequiredFacts) -> bool {
///     required.iter().any(|name| &**name == "ip")
/// }
/// ```
#[derive(derive_more::Debug)]
#[debug("{:?}", &**self)]
pub struct RequiredFacts(pub(super) Guard<Arc<CompiledPolicy>>);

impl RequiredFacts {
    /// Makes it fit to be kept while a request waits. The borrowed form occupies one of its thread's few fast slots
    /// of `arc_swap`.
    #[must_use]
    pub fn into_owned(self) -> Self {
        Self(Guard::from_inner(Guard::into_inner(self.0)))
    }

    /// Whether the fact with this number is only compared, by `match`, `block` and `exempt`. The value of any other
    /// fact is used, in a key, a cost, a tier or a class. So a request with several values of such a fact has to be
    /// denied, or decided with each value ([`Facts::with_other_sets`](crate::Facts::with_other_sets)).
    ///
    /// ```
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Policy};
    /// let text = "limits: [{name: a, match: {header.x-app: web}, key: header.x-api-key, rate: 5/m}]";
    /// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, Memory::new())?;
    /// let required = engine.required_facts();
    /// let compared: Vec<_> = (0..required.len()).filter(|number| required.is_only_compared(*number)).collect();
    /// assert_eq!((compared.len(), &*required[compared[0]]), (1, "header.x-app"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_only_compared(&self, number: usize) -> bool {
        number >= self.0.value_facts
    }

    /// Whether these rules read no other fact.
    fn covers(&self, rules: &Arc<CompiledPolicy>) -> bool {
        let names = rules.matcher.slots.names();
        Arc::ptr_eq(&self.0, rules) || names.iter().all(|name| self.contains(name))
    }
}

impl Deref for RequiredFacts {
    type Target = [Box<str>];

    #[inline]
    fn deref(&self) -> &[Box<str>] {
        self.0.matcher.slots.names()
    }
}
