//! On which conditions a request is decided that may take its time.

use std::sync::Arc;

use super::FactsAsked;
use super::rules::Rules;

/// On which conditions [`Engine::decide_on`](super::Engine::decide_on) decides: by default as [`Engine::decide_async`](super::Engine::decide_async) does.
///
/// ```
/// use tollgate_engine::backend::Memory;
/// use tollgate_engine::document::Format;
/// use tollgate_engine::{Conditions, Engine, Facts, Policy};
///
/// let text = "limits: [{name: all, rate: 1/h, over: wait 2h}]";
/// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, Memory::new())?;
/// let decide = async || {
///     let (facts, at_once) = (Facts::new(), Conditions::new().at_once());
///     let first = engine.decide_on(at_once, &facts).await?.is_some_and(|verdict| verdict.passed().is_some());
///     let second = engine.decide_on(at_once, &facts).await?.is_some_and(|verdict| verdict.passed().is_some());
///     // The second would wait for an hour.
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
pub struct Conditions<'a> {
    looked_for: Option<&'a FactsAsked>,
    waiting: Waiting,
    listing: Listing,
}

/// Which limits a verdict tells of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Listing {
    /// The one that decided.
    #[default]
    Decider,
    /// All that the request met.
    All,
}

/// Whether a request may be kept for its turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Waiting {
    #[default]
    AsRulesSay,
    Never,
}

impl<'a> Conditions<'a> {
    /// Those of [`Engine::decide_async`](super::Engine::decide_async).
    pub const fn new() -> Self {
        Self {
            looked_for: None,
            waiting: Waiting::AsRulesSay,
            listing: Listing::Decider,
        }
    }

    /// The verdict tells of each limit that the request met, not only of the one that decided:
    /// [`Findings::limits`](crate::verdict::Findings::limits). A store is asked no more often for that; it takes memory if there
    /// are several limits.
    pub const fn listing_limits(mut self) -> Self {
        self.listing = Listing::All;
        self
    }

    pub(super) fn lists_limits(self) -> bool {
        self.listing == Listing::All
    }

    /// Where a rule says `over: wait`, the request is refused in place of that.
    pub const fn at_once(mut self) -> Self {
        self.waiting = Waiting::Never;
        self
    }

    /// Of these the facts were looked for, and of no others. So a policy that comes into force before the request is decided,
    /// or while it waits, and asks for another, doesn't decide it: what it doesn't know it would take for what isn't there.
    pub const fn knowing(mut self, asked: &'a FactsAsked) -> Self {
        self.looked_for = Some(asked);
        self
    }

    pub(super) fn may_wait(self) -> bool {
        self.waiting == Waiting::AsRulesSay
    }

    /// Whether these rules ask for a fact that nobody looked for.
    pub(super) fn lacks_facts_of(self, rules: &Arc<Rules>) -> bool {
        self.looked_for
            .is_some_and(|asked| !asked.is_all_that(rules))
    }
}
