//! What stands between requests and a service, whatever the framework: whom a request is counted by, who decides, and how
//! the client is told. Carriers (`tollgate-tower`, `tollgate-actix`) only carry requests in and answers out.
//!
//! ```text
//! request ─► exempt, denied, blocked? ─► cost, key ─► limits ─┬─► ticket ─► service ─► fields, body ─► settled
//!                                                            └─► denial ─► shadow, block, tarpit ─► refusal
//! ```
//!
//! A carrier asks ([`RequestLimiter::ask`], and [`RequestLimiter::answer`] if that takes time; if the limits have changed meanwhile it asks once
//! more). A request that passes has a [`RequestPermit`]: with the head
//! of its answer it becomes [`HeaderFields`] and a [`BodyPermit`], which lives until the body has ended. Of one that doesn't,
//! [`RequestLimiter::admit`] makes the answer.

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

/// Who decides about requests.
pub trait RequestLimits<R: Request + ?Sized>: Send + Sync + 'static {
    /// What a request that passed holds until it has ended; by default nothing.
    type Held: HoldRequest + Default;

    /// What is asked of somebody who takes time to answer: all that is needed of a request.
    type Question: Send + 'static;

    /// What is found about a request at one look, on terms that name no cost. By default nothing.
    fn check_fast(&self, request: &R, terms: &Terms<'_>) -> FastCheck<Self::Held, Self::Question> {
        let _ = (request, terms);
        FastCheck::Unclear
    }

    /// What is found about a request, or what has to be asked first.
    fn ask(
        &self,
        request: &R,
        terms: &Terms<'_>,
    ) -> AskOutcome<LimitOutcome<Self::Held>, Self::Question>;

    /// What is found about a request, in time.
    fn answer(
        &self,
        question: Self::Question,
        terms: &Terms<'_>,
    ) -> impl Future<Output = LimitOutcome<Self::Held>> + Send;

    /// Whether it may take time until it is known what becomes of a request, by waiting or by asking a store. It may change over time.
    fn takes_time(&self) -> bool {
        true
    }

    /// Whether all requests are counted as one client's.
    fn is_global(&self) -> bool {
        false
    }
}

/// Limits that give back what a request turns out not to have cost, exactly: [`SettlingRatePerKey`], and [`PolicyLimits`] for rules whose
/// cost is an estimate. A [`RatePerKey`] has no room to keep it in.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't give back what a request turns out not to have cost",
    label = "these limits don't settle costs",
    note = "use `ExactPerKey::new(rate, key)` in place of `PerKey`, or a policy whose rules have `settle_within`"
)]
pub trait SettleCosts {}

/// On which terms a request is asked about.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Terms<'a> {
    /// What it costs, if somebody said so.
    pub cost: Option<u64>,
    /// How clients are told.
    pub answers: &'a ResponseFormat,
    /// Whether it may be kept until its turn comes. In [shadow](RequestLimiter::shadow) nobody is: who would be, is over the limit.
    pub may_wait: bool,
}

impl Terms<'_> {
    /// What it costs: one, unless somebody said otherwise.
    #[inline]
    pub fn cost(&self) -> u64 {
        self.cost.unwrap_or(1)
    }
}

/// Whether denied requests are turned away, or only logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Enforce,
    Shadow,
}

/// What came of asking.
#[derive(Debug)]
pub enum AskOutcome<A, Q> {
    /// An answer.
    Now(A),
    /// It takes time: this is to be asked.
    Later(Q),
}

/// What limits find at one look.
#[derive(Debug)]
pub enum FastCheck<H, Q> {
    /// It may go on, holds nothing, and its answer says this of the limit.
    Passed(HeaderFields),
    /// It may not, or not yet: the same as comes of [asking](RequestLimits::ask).
    Over(AskOutcome<LimitOutcome<H>, Q>),
    /// Nothing is known and nothing has happened: it is asked about in full.
    Unclear,
}

/// What limits find about a request.
#[derive(Debug)]
pub enum LimitOutcome<H> {
    /// No limit is for it.
    Exempt,
    /// It may go on.
    Passed {
        /// What it holds until it has ended.
        held: H,
        /// What its answer says of the limit.
        fields: HeaderFields,
    },
    /// It may not.
    Denied(Box<Denial>),
    /// It can't be said, because of a mistake in the service.
    Failed(ServerMistake),
    /// It can't be said of what was asked, because the limits have changed since and want to know more: only
    /// [`answer`](RequestLimits::answer) says so, and holds nothing then. The request is asked about again.
    Outdated,
}

/// What becomes of a request.
#[derive(Debug)]
pub enum Admission<H: HoldRequest> {
    /// It may go on, with this.
    Passed(RequestPermit<H>),
    /// It may not: [`RequestLimiter::admit`] makes the answer.
    Refused(Box<Denial>),
    /// It can't be said, because of a mistake in the service: [`RequestLimiter::admit`] makes the answer.
    Failed(ServerMistake),
}

/// The limits have changed since a request was asked about, and want to know more of it: [ask](RequestLimiter::ask) again.
#[derive(Clone, Copy, Debug, Display, Error, PartialEq, Eq)]
#[display(
    "the limits have changed since the request was asked about, and want to know more of it: ask again"
)]
pub struct Outdated;

/// Why nothing can be said about a request.
#[derive(Clone, Debug, Display, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerMistake {
    /// It has no key to be limited by, and the server has to supply that.
    #[display("a request has no key to be limited by: {_0}")]
    NoKey(MissingKey),
}

impl<H> LimitOutcome<H> {
    /// It lacks the key of the limit with this name, and its client is to blame.
    #[cold]
    fn missing_key(limit: &str, missing: MissingKey) -> Self {
        Self::Denied(Box::new(Denial::missing_key(limit, missing)))
    }
}
