//! What stands between requests and a service, whatever the framework: whom a request is counted by, who decides, and how
//! the client is told. Carriers (`tollgate-tower`, `tollgate-actix`) only carry requests in and answers out.
//!
//! ```text
//! request ─► exempt? ─► key ─► limits ─► admission ─► header fields, or a refusal
//! ```

use std::fmt;

mod answers;
mod by_policy;
pub mod keys;
mod per_key;
mod request;

pub use answers::{Answers, Fields, Form, Refused};
pub use by_policy::{ByPolicy, Question};
pub use keys::KeyOf;
pub use per_key::{Missing, PerKey};
pub use request::{MoreFacts, Request, Tenant, Tier, User};

/// Paths that only machines ask, which should know whether a service lives however much it has to do.
const PROBES: [&str; 4] = ["/healthz", "/readyz", "/livez", "/metrics"];

/// Who decides about requests.
pub trait Limits<R: Request>: Send + Sync + 'static {
    /// What a request that passed holds until it has ended.
    type Held: Send + 'static;

    /// What is asked of somebody who takes time to answer: all that is needed of a request.
    type Question: Send + 'static;

    /// What becomes of a request, or what has to be asked first.
    fn ask(&self, request: &R, answers: &Answers) -> Asked<Self::Held, Self::Question>;

    /// What becomes of a request, in time.
    fn answer(
        &self,
        question: Self::Question,
        answers: &Answers,
    ) -> impl Future<Output = Admission<Self::Held>> + Send;

    /// Whether all requests are counted as one client's.
    fn is_everyone(&self) -> bool {
        false
    }
}

/// What came of asking.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "it is taken apart where it is made, and a box costs more"
)]
pub enum Asked<H, Q> {
    /// An answer.
    Now(Admission<H>),
    /// It takes time: this is to be asked.
    Later(Q),
}

/// What becomes of a request.
#[derive(Debug)]
pub enum Admission<H> {
    /// No limit is for it.
    Exempt,
    /// It may go on.
    Passed {
        /// What it holds until it has ended.
        held: H,
        /// What its answer says of the limit.
        fields: Fields,
    },
    /// It may not, and this is the answer.
    Refused(Refused),
    /// It can't be said, because of a mistake in the service: its answer is 500.
    Failed(&'static str),
}

/// A guard before a service.
pub struct Guard<R, L> {
    limits: L,
    answers: Answers,
    exempt: Vec<Exempt<R>>,
}

/// Says whether no limit is for a request.
type Exempt<R> = Box<dyn Fn(&R) -> bool + Send + Sync>;

impl<R: Request, L: Limits<R>> Guard<R, L> {
    /// A guard that asks these limits about every request.
    pub fn new(limits: L) -> Self {
        if limits.is_everyone() {
            tracing::warn!(
                "all requests are counted as one client's: any of them can use up the limit of all others"
            );
        }
        Self {
            limits,
            answers: Answers::new(),
            exempt: Vec::new(),
        }
    }

    /// How clients are told.
    pub fn set_answers(&mut self, answers: Answers) {
        self.answers = answers;
    }

    /// No limit is for requests like this, either.
    pub fn exempt(&mut self, is_exempt: impl Fn(&R) -> bool + Send + Sync + 'static) {
        self.exempt.push(Box::new(is_exempt));
    }

    /// No limit is for GET and HEAD of exactly `/healthz`, `/readyz`, `/livez` and `/metrics`.
    pub fn exempt_probes(&mut self) {
        self.exempt(|request: &R| {
            matches!(request.method(), "GET" | "HEAD") && PROBES.contains(&request.path())
        });
    }

    /// What becomes of a request, or what has to be asked first.
    #[inline]
    pub fn ask(&self, request: &R) -> Asked<L::Held, L::Question> {
        if self.exempt.iter().any(|is_exempt| is_exempt(request)) {
            return Asked::Now(Admission::Exempt);
        }
        self.limits.ask(request, &self.answers)
    }

    /// What becomes of a request, in time.
    pub fn answer(&self, question: L::Question) -> impl Future<Output = Admission<L::Held>> + Send {
        self.limits.answer(question, &self.answers)
    }
}

impl<R, L: fmt::Debug> fmt::Debug for Guard<R, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("limits", &self.limits)
            .field("answers", &self.answers)
            .field("exempt", &self.exempt.len())
            .finish_non_exhaustive()
    }
}
