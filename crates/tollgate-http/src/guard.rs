//! The server side of rate limiting for any framework: it extracts keys, checks limits, and builds responses. The
//! adapters (`tollgate-tower`, `tollgate-actix`) only pass requests in and responses out.
//!
//! ```text
//! request ─► exempt, denied, blocked? ─► cost, key ─► limits ─┬─► permit ─► service ─► fields, body ─► settled
//!                                                            └─► denial ─► shadow, block, tarpit ─► response
//! ```
//!
//! An adapter calls [`RequestLimiter::ask`], and [`RequestLimiter::answer`] if the decision takes time. If the limits
//! have changed meanwhile, it asks once more.
//!
//! An allowed request has a [`RequestPermit`]. The head of its response turns the permit into [`HeaderFields`] and a
//! [`BodyPermit`], which lives until the body has ended. For a denied request, [`RequestLimiter::admit`] builds the
//! response.

use derive_more::{Display, Error};

mod admission;
mod blocking;
mod builder;
mod by_policy;
mod concurrency_limit;
mod denial;
mod events;
mod facts;
mod field_cache;
mod fields;
pub mod keys;
mod missing_key;
mod per_key;
mod request;
mod response;
mod retry_jitter;
mod ticket;

pub use admission::{AskedAdmission, PendingAdmission, ServiceWaitPermit};
pub use blocking::{BlockAfter, Tarpit};
pub use builder::RequestLimiter;
pub use by_policy::{PolicyLimits, PolicyQuery};
pub use concurrency_limit::{ConcurrencyLimit, ConcurrencyPermit, PermitWait};
pub use denial::Denial;
pub use fields::HeaderFields;
pub use keys::KeyExtractor;
pub use missing_key::{Fingerprint, KeySource, KeyedLimits, MissingKey};
pub use per_key::{RatePerKey, RateWait, SettlingRatePerKey, SettlingRateWait};
pub use request::{Cost, ExtraFacts, Request, Tenant, Tier, User};
pub use response::{DenialBodyFormat, DeniedResponse, ResponseFormat};
pub use ticket::{
    ActualCost, BodyPermit, CountPredicate, CountedResponses, EstimateHold, HoldRequest,
    RequestPermit, ResponseHead, Settle, UsageReporter, ending_of,
};

/// Limits that decide about requests.
pub trait RequestLimits<R: Request + ?Sized>: Send + Sync + 'static {
    /// What an allowed request holds until it has ended; by default nothing.
    type Held: HoldRequest + Default;

    /// A request for a decision that takes time, such as one of a store. It has copies of all that it needs of the
    /// request.
    type Question: Send + 'static;

    /// The fast path: decides without waiting, for terms without a cost. By default it never decides.
    fn check_fast(&self, request: &R, terms: &Terms<'_>) -> FastCheck<Self::Held, Self::Question> {
        let _ = (request, terms);
        FastCheck::Unclear
    }

    /// Decides, or returns the question for [`answer`](Self::answer) if the decision takes time.
    fn ask(
        &self,
        request: &R,
        terms: &Terms<'_>,
    ) -> AskOutcome<LimitOutcome<Self::Held>, Self::Question>;

    /// Decides about a question, waiting if it has to.
    fn answer(
        &self,
        question: Self::Question,
        terms: &Terms<'_>,
    ) -> impl Future<Output = LimitOutcome<Self::Held>> + Send;

    /// Whether a decision may take time, by waiting in a queue or for a store. The result may change over time.
    fn takes_time(&self) -> bool {
        true
    }

    /// Whether all requests share one counter.
    fn is_global(&self) -> bool {
        false
    }
}

/// Limits that can refund the difference between an estimate and the actual cost: [`SettlingRatePerKey`], and
/// [`PolicyLimits`] for rules whose cost is an estimate. A [`RatePerKey`] keeps no reservation to settle.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't settle the actual cost of a request",
    label = "these limits don't settle costs",
    note = "use `SettlingRatePerKey::new(rate, key)` instead of `RatePerKey`, or a policy whose rules have `settle_within`"
)]
pub trait SettleCosts {}

/// The terms on which limits decide about a request.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Terms<'a> {
    /// The cost of the request, if one is set.
    pub cost: Option<u64>,
    /// The format of responses.
    pub answers: &'a ResponseFormat,
    /// Whether the request may wait in a queue. In [shadow mode](RequestLimiter::shadow) none waits: a request that
    /// would have to is over the limit.
    pub may_wait: bool,
}

impl Terms<'_> {
    /// The cost of the request; 1 by default.
    #[inline]
    pub fn cost(&self) -> u64 {
        self.cost.unwrap_or(1)
    }
}

/// Whether denials are enforced, or only logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Enforce,
    Shadow,
}

/// A result, or the question that has to be answered first.
#[derive(Debug)]
pub enum AskOutcome<A, Q> {
    /// The result.
    Now(A),
    /// The result takes time: answer this question.
    Later(Q),
}

/// The result of the fast path.
#[derive(Debug)]
pub enum FastCheck<H, Q> {
    /// The request passes and holds nothing. Its response has these fields.
    Passed(HeaderFields),
    /// The request is over the limit, or has to wait. This is what [`ask`](RequestLimits::ask) would return.
    Over(AskOutcome<LimitOutcome<H>, Q>),
    /// No decision, and nothing was charged: call [`ask`](RequestLimits::ask).
    Unclear,
}

/// What limits decide about a request.
#[derive(Debug)]
pub enum LimitOutcome<H> {
    /// No limit applies to the request.
    Exempt,
    /// The request passes.
    Passed {
        /// What the request holds until it has ended.
        held: H,
        /// The header fields of its response.
        fields: HeaderFields,
    },
    /// The request is denied.
    Denied(Box<Denial>),
    /// No decision, because of a mistake in the service.
    Failed(ServerMistake),
    /// No decision: the limits have changed since the question was made, and need more facts of the request. Only
    /// [`answer`](RequestLimits::answer) returns this, and nothing is charged. Ask about the request again.
    Outdated,
}

/// Whether a request is admitted to the service.
#[derive(Debug)]
pub enum Admission<H: HoldRequest> {
    /// The request passes, with this permit.
    Passed(RequestPermit<H>),
    /// The request is denied: [`RequestLimiter::admit`] builds the response.
    Refused(Box<Denial>),
    /// No decision, because of a mistake in the service: [`RequestLimiter::admit`] builds the response.
    Failed(ServerMistake),
}

/// The limits have changed since a request was asked about, and need more facts of it: [ask](RequestLimiter::ask)
/// again.
#[derive(Clone, Copy, Debug, Display, Error, PartialEq, Eq)]
#[display("the limits have changed meanwhile, and need more facts of the request: ask again")]
pub struct Outdated;

/// A mistake in the service that prevents a decision.
#[derive(Clone, Debug, Display, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerMistake {
    /// The request has no key, and the server is responsible for it.
    #[display("a request has no key to be limited by: {_0}")]
    NoKey(MissingKey),
}

impl<H> LimitOutcome<H> {
    /// The request lacks the key of the limit with this name, and its client is responsible for it.
    #[cold]
    fn missing_key(limit: &str, missing: MissingKey) -> Self {
        Self::Denied(Box::new(Denial::missing_key(limit, missing)))
    }
}
