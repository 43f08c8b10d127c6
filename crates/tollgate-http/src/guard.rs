//! What stands between requests and a service, whatever the framework: whom a request is counted by, who decides, and how
//! the client is told. Carriers (`tollgate-tower`, `tollgate-actix`) only carry requests in and answers out.
//!
//! ```text
//! request ─► exempt, denied, blocked? ─► cost, key ─► limits ─┬─► ticket ─► service ─► fields, body ─► settled
//!                                                            └─► denial ─► shadow, block, tarpit ─► refusal
//! ```
//!
//! A carrier asks ([`Guard::ask`], and [`Guard::answer`] if that takes time; if the limits have changed meanwhile it asks once
//! more). A request that passes has a [`Ticket`]: with the head
//! of its answer it becomes [`Fields`] and a [`Rest`], which lives until the body has ended. Of one that doesn't,
//! [`Guard::admit`] makes the answer.

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

pub use admission::{Arrived, Later, ServiceWait};
pub use blocking::{Block, Tarpit};
pub use builder::Guard;
pub use by_policy::{ByPolicy, Question};
pub use concurrency_limit::{AtOnce, Slot, SlotWait};
pub use denial::Denial;
pub use fields::Fields;
pub use keys::KeyOf;
pub use missing_key::{ByKey, Fingerprint, KeySource, MissingKey};
pub use per_key::{ExactPerKey, ExactWaiting, PerKey, Waiting};
pub use request::{Cost, MoreFacts, Request, Tenant, Tier, User};
pub use response::{Answers, Form, Refused};
pub use ticket::{
    Counts, CountsIf, Estimate, Held, Reply, Rest, Settle, Ticket, Usage, Used, ending_of,
};

/// Who decides about requests.
pub trait Limits<R: Request + ?Sized>: Send + Sync + 'static {
    /// What a request that passed holds until it has ended; by default nothing.
    type Held: Held + Default;

    /// What is asked of somebody who takes time to answer: all that is needed of a request.
    type Question: Send + 'static;

    /// What is found about a request at one look, on terms that name no cost. By default nothing.
    fn glance(&self, request: &R, terms: &Terms<'_>) -> Look<Self::Held, Self::Question> {
        let _ = (request, terms);
        Look::Unclear
    }

    /// What is found about a request, or what has to be asked first.
    fn ask(&self, request: &R, terms: &Terms<'_>) -> Asked<Judged<Self::Held>, Self::Question>;

    /// What is found about a request, in time.
    fn answer(
        &self,
        question: Self::Question,
        terms: &Terms<'_>,
    ) -> impl Future<Output = Judged<Self::Held>> + Send;

    /// Whether it may take time until it is known what becomes of a request, by waiting or by asking a store. It may change over time.
    fn takes_time(&self) -> bool {
        true
    }

    /// Whether all requests are counted as one client's.
    fn is_everyone(&self) -> bool {
        false
    }
}

/// Limits that give back what a request turns out not to have cost, exactly: [`ExactPerKey`], and [`ByPolicy`] for rules whose
/// cost is an estimate. A [`PerKey`] has no room to keep it in.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't give back what a request turns out not to have cost",
    label = "these limits don't settle costs",
    note = "use `ExactPerKey::new(rate, key)` in place of `PerKey`, or a policy whose rules have `settle_within`"
)]
pub trait Settles {}

/// On which terms a request is asked about.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Terms<'a> {
    /// What it costs, if somebody said so.
    pub cost: Option<u64>,
    /// How clients are told.
    pub answers: &'a Answers,
    /// Whether it may be kept until its turn comes. In [shadow](Guard::shadow) nobody is: who would be, is over the limit.
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
pub enum Asked<A, Q> {
    /// An answer.
    Now(A),
    /// It takes time: this is to be asked.
    Later(Q),
}

/// What limits find at one look.
#[derive(Debug)]
pub enum Look<H, Q> {
    /// It may go on, holds nothing, and its answer says this of the limit.
    Passed(Fields),
    /// It may not, or not yet: the same as comes of [asking](Limits::ask).
    Over(Asked<Judged<H>, Q>),
    /// Nothing is known and nothing has happened: it is asked about in full.
    Unclear,
}

/// What limits find about a request.
#[derive(Debug)]
pub enum Judged<H> {
    /// No limit is for it.
    Exempt,
    /// It may go on.
    Passed {
        /// What it holds until it has ended.
        held: H,
        /// What its answer says of the limit.
        fields: Fields,
    },
    /// It may not.
    Refused(Box<Denial>),
    /// It can't be said, because of a mistake in the service.
    Failed(Mistake),
    /// It can't be said of what was asked, because the limits have changed since and want to know more: only
    /// [`answer`](Limits::answer) says so, and holds nothing then. The request is asked about again.
    Outdated,
}

/// What becomes of a request.
#[derive(Debug)]
pub enum Admission<H: Held> {
    /// It may go on, with this.
    Passed(Ticket<H>),
    /// It may not: [`Guard::admit`] makes the answer.
    Refused(Box<Denial>),
    /// It can't be said, because of a mistake in the service: [`Guard::admit`] makes the answer.
    Failed(Mistake),
}

/// The limits have changed since a request was asked about, and want to know more of it: [ask](Guard::ask) again.
#[derive(Clone, Copy, Debug, Display, Error, PartialEq, Eq)]
#[display(
    "the limits have changed since the request was asked about, and want to know more of it: ask again"
)]
pub struct Outdated;

/// Why nothing can be said about a request.
#[derive(Clone, Debug, Display, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mistake {
    /// It has no key to be limited by, and the server has to supply that.
    #[display("a request has no key to be limited by: {_0}")]
    NoKey(MissingKey),
}

impl<H> Judged<H> {
    /// It lacks the key of the limit with this name, and its client is to blame.
    #[cold]
    fn missing_key(limit: &str, missing: MissingKey) -> Self {
        Self::Refused(Box::new(Denial::missing_key(limit, missing)))
    }
}
