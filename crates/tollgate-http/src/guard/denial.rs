//! Why a request may not go on, before anybody is told.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tollgate::{Decision, Outcome};

use crate::{Kind, Shown};

/// Why a request may not go on: what limits find, and a guard makes an answer of.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Decision, Outcome};
/// use tollgate_http::Kind;
/// use tollgate_http::guard::Denial;
///
/// let soon = Duration::from_secs(2);
/// let denial = Denial::new(Kind::Rate, "per-user", Decision::new(Outcome::Denied, 5, 0, soon, soon)).key(7);
/// assert_eq!((denial.kind, &*denial.limit), (Kind::Rate, "per-user"));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Denial {
    /// What refused.
    pub kind: Kind,
    /// The name of the limit; empty if it has none.
    pub limit: Arc<str>,
    /// What the limit said.
    pub decision: Decision,
    /// What tells the key from others in logs: never the key itself.
    pub key: Option<u64>,
    /// Why the limits couldn't be asked: for the log, and never for clients.
    pub error: Option<Box<str>>,
    /// What fields show, but for the name.
    shown: Option<Shown<'static>>,
}

impl Denial {
    /// This limit said so. Clients are shown what is left of it, unless it has no numbers.
    pub fn new(kind: Kind, limit: impl Into<Arc<str>>, decision: Decision) -> Self {
        let shown = (decision.limit > 0).then(|| Shown::of("", &decision));
        Self {
            kind,
            limit: limit.into(),
            decision,
            key: None,
            error: None,
            shown,
        }
    }

    /// The limits couldn't be asked: somebody may try again soon, and the log says why.
    pub fn unasked(error: &dyn fmt::Display) -> Self {
        let soon = Duration::from_secs(1);
        let decision = Decision::new(Outcome::Denied, 0, 0, soon, soon);
        Self {
            error: Some(error.to_string().into()),
            ..Self::new(Kind::Unavailable, "", decision)
        }
    }

    /// It is on a list of what isn't served, so there is no limit to be shown.
    pub fn blocked(limit: impl Into<Arc<str>>, wait: Option<Duration>) -> Self {
        let outcome = wait.map_or(Outcome::Never, |_| Outcome::Denied);
        let wait = wait.unwrap_or(Duration::MAX);
        Self::new(
            Kind::Blocked,
            limit,
            Decision::new(outcome, 0, 0, wait, wait),
        )
    }

    /// What tells its key from others in logs.
    #[must_use]
    pub const fn key(mut self, key: u64) -> Self {
        self.key = Some(key);
        self
    }

    /// The same, and clients are shown this of the limit, whose name is known already.
    #[must_use]
    pub fn showing(mut self, shown: Option<Shown<'_>>) -> Self {
        self.shown = shown.map(|shown| Shown { name: "", ..shown });
        self
    }

    /// What header fields show of the limit.
    pub fn shown(&self) -> Option<Shown<'_>> {
        let shown = self.shown?;
        Some(Shown {
            name: &self.limit,
            ..shown
        })
    }

    /// How long to wait; none if it never passes.
    pub fn wait(&self) -> Option<Duration> {
        (self.decision.outcome == Outcome::Denied).then_some(self.decision.retry_after)
    }
}
