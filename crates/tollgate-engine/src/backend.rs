//! Who answers checks: the one seam between the engine and where state is kept.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use tollgate::clock::{Monotonic, Wakeup, Wall};
use tollgate::{Clock, Decision, Timestamp};

mod each;
pub(crate) mod fallback;
mod local;
mod memory;

pub use crate::limits::{
    Answer, CarryOver, Check, Counter, DenyCache, DenyRecheck, DenyVersion, KnownDenial, Limit,
    LimitKind, Prepared, RequestKey, SoleLimit, Source,
};
pub use fallback::{AskingOrFallback, Breaker, BreakerState, Fallback, FallbackStats, StoreEvent};
pub use local::{Local, Owed};
pub use memory::{Memory, MemoryBuilder, TableStats};

/// What became of something that was to be given back, or forgotten.
///
/// ```
/// use tollgate_engine::backend::Gift;
///
/// // Of several, one that is lost decides.
/// assert_eq!(Gift::Given.max(Gift::Lost), Gift::Lost);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gift {
    /// It was given.
    Given,
    /// The store couldn't be told, and there is nothing to remember it by.
    Lost,
}

/// Answers checks, all or none: in memory, in a store, or leased from one.
///
/// A backend keeps state by [`Limit::counter`] and key; the limit itself comes with each check, so a
/// policy can change at any time. It never refuses because something broke: that is an error.
///
/// One that keeps its state elsewhere implements two methods:
///
/// ```
/// use std::convert::Infallible;
/// use std::future::{Ready, ready};
/// use std::time::Duration;
/// use tollgate::{Clock, Decision, Outcome, Timestamp, clock::Manual};
/// use tollgate_engine::backend::{Answer, Backend, Check};
///
/// /// Nothing passes.
/// struct Closed(Manual);
///
/// impl Backend for Closed {
///     type Error = Infallible;
///     type Asking<'a> = Ready<Result<Answer, Infallible>>;
///
///     fn check<'a>(&'a self, checks: &'a [Check<'a>]) -> Self::Asking<'a> {
///         let never = Decision::new(Outcome::Never, 0, 0, Duration::MAX, Duration::ZERO);
///         ready(Ok(Answer::new(checks.len().checked_sub(1), never)))
///     }
///
///     fn now(&self) -> Timestamp {
///         self.0.now()
///     }
/// }
/// assert_eq!(Closed(Manual::new()).now(), Timestamp::ZERO);
/// ```
pub trait Backend: Send + Sync {
    /// What can break.
    type Error: fmt::Display + Send;

    /// An answer on its way; one that is already there for a backend in memory.
    type Asking<'a>: Future<Output = Result<Answer, Self::Error>> + Send
    where
        Self: 'a;

    /// Charges all checks, or none.
    fn check<'a>(&'a self, checks: &'a [Check<'a>]) -> Self::Asking<'a>;

    /// The same, and what each check said by itself: what is left after the charge, or whether it would have
    /// passed alone, and if not after how long. The list is empty if a denial was known without a question about the other
    /// checks: [`peek`](Self::peek) looks at them. A backend that learns this with the answer tells it; unless said otherwise
    /// each is asked again what is left, and those that refuse are told to wait as long as the one that takes
    /// longest. No two of the checks are of one counter and key, unless one of them costs nothing.
    fn check_each<'a>(
        &'a self,
        checks: &'a [Check<'a>],
    ) -> impl Future<Output = Result<(Answer, Vec<Decision>), Self::Error>> + Send + 'a {
        each::again(self, checks)
    }

    /// Gives back what these checks cost, whatever it was charged for: at most what was spent. Unless said
    /// otherwise nothing is.
    fn give_back<'a>(
        &'a self,
        checks: &'a [Check<'a>],
    ) -> impl Future<Output = Result<Gift, Self::Error>> + Send + 'a {
        let _ = checks;
        std::future::ready(Ok(Gift::Given))
    }

    /// The same, and nobody waits until it is done: these checks were charged for a request whose future was dropped before
    /// it had its answer, so that it never ran. Unless said otherwise [`give_back`](Self::give_back) is polled once, which is
    /// enough for a backend in memory.
    fn refund_detached(&self, checks: &[Check<'_>]) {
        let refund = pin!(self.give_back(checks));
        let _ = refund.poll(&mut Context::from_waker(Waker::noop()));
    }

    /// Forgets what the keys of these checks have spent. Slots that are held stay held. Unless said otherwise nothing
    /// is forgotten.
    fn forget<'a>(
        &'a self,
        checks: &'a [Check<'a>],
    ) -> impl Future<Output = Result<Gift, Self::Error>> + Send + 'a {
        let _ = checks;
        std::future::ready(Ok(Gift::Given))
    }

    /// What each check would say by itself, charging nothing: whether its cost would pass, if not after how long,
    /// and what is left. Unless said otherwise each is asked at no cost what is left, and if that isn't enough the
    /// wait is until the limit is as if never used.
    fn peek<'a>(
        &'a self,
        checks: &'a [Check<'a>],
    ) -> impl Future<Output = Result<Vec<Decision>, Self::Error>> + Send + 'a {
        each::peek(self, checks)
    }

    /// How many tokens of a check's key a store has given ahead that [`Local`] wasn't told of: those that were spent, and
    /// those that are left, which count as spent from now on. Asked before something is decided without the store.
    fn spent_ahead(&self, check: &Check<'_>) -> u64 {
        let _ = check;
        0
    }

    /// The time by which it judges, to tell how long something takes and how long a refusal holds.
    fn now(&self) -> Timestamp;

    /// The time of day, by which operators' [orders](crate::orders) end: the system's, unless said otherwise.
    fn wall(&self) -> Timestamp {
        Wall.now()
    }

    /// Wakes a task once [`now`](Self::now) shows `at`, as [`Clock::wake_at`] does: for
    /// requests that wait for their turn. None, unless said otherwise: its time goes on with the system's.
    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Option<Wakeup> {
        let _ = (at, waker);
        None
    }

    /// A clock that shows [`now`](Self::now), to be kept while requests run: what a limit that adapts learns from is how
    /// long they do. The system's, unless said otherwise.
    fn timer(&self) -> Arc<dyn Clock> {
        Arc::new(Monotonic::new())
    }

    /// A check of this limit, and of a key with this [fingerprint](RequestKey::fingerprint), is likely to
    /// come: a backend in memory starts to fetch what it needs for that, and doesn't wait for it.
    #[inline]
    fn prefetch(&self, limit: &Limit, fingerprint: [u64; 2]) {
        let _ = (limit, fingerprint);
    }

    /// Whether it can keep such a limit: asked before a policy is put in force. Anything, unless said otherwise.
    ///
    /// # Errors
    /// Why not, and what to do instead.
    fn supports(&self, limit: &Limit) -> Result<(), String> {
        let _ = limit;
        Ok(())
    }

    /// A number that changes whenever something that was refused may pass sooner than it was told: a charge was
    /// given back, or a key was reset. A refusal that was remembered in an earlier epoch is not repeated.
    fn epoch(&self) -> u64 {
        0
    }

    /// Whether it remembers refusals and repeats them by itself, as a far one may with a [`DenyCache`]. Then the
    /// engine doesn't do so too ([`with_deny_cache`](crate::Engine::with_deny_cache)): one cache on a path is enough, and
    /// what is refused is counted in one place. No, unless said otherwise.
    fn repeats_refusals(&self) -> bool {
        false
    }

    /// A denial of one of these checks that was told before and still holds as far as is known: it decides while the
    /// backend can't be asked. None, unless said otherwise.
    fn known_denial(&self, checks: &[Check<'_>]) -> Option<(usize, Decision)> {
        let _ = checks;
        None
    }

    /// Whether an error is about a part of the store, one node or one key of many, and the rest of it answers:
    /// then no [circuit](Breaker) breaks, which would keep others from what they can have.
    fn is_in_part(&self, error: &Self::Error) -> bool {
        let _ = error;
        false
    }

    /// Whether an error is about one key alone, which holds what no limiter wrote: the store itself works, and nothing but
    /// that key is decided without it. No, unless said otherwise.
    fn is_of_key(&self, error: &Self::Error) -> bool {
        let _ = error;
        false
    }
}
