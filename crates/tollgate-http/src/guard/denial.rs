//! A denial, before a response is made of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tollgate::{Decision, Outcome};

use super::missing_key::MissingKey;
use crate::{DenialBody, DenyReason, ShownLimit, http_status_of};

/// Why a request is denied: limits return it, and the request limiter makes a response of it.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Decision, Outcome};
/// use tollgate_http::DenyReason;
/// use tollgate_http::guard::Denial;
///
/// let soon = Duration::from_secs(2);
/// let denial = Denial::new(DenyReason::Rate, "per-user", Decision::new(Outcome::Denied, 5, 0, soon, soon)).key(7);
/// assert_eq!((denial.reason, &*denial.limit), (DenyReason::Rate, "per-user"));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
#[must_use]
pub struct Denial {
    /// The reason.
    pub reason: DenyReason,
    /// The name of the limit; empty if it has none.
    pub limit: Arc<str>,
    /// The decision of the limit.
    pub decision: Decision,
    /// A fingerprint of the key, for logs: never the key itself.
    pub key: Option<u64>,
    /// Why the store is unavailable: for the log, and never for clients.
    pub error: Option<Box<str>>,
    /// The missing key, if that is the [reason](DenyReason::MissingKey).
    pub missing: Option<MissingKey>,
    /// The limit for header fields, without its name.
    shown: Option<ShownLimit<'static>>,
    /// All limits of the request for header fields, with their names, if there are several.
    listed: Vec<(Box<str>, ShownLimit<'static>)>,
}

impl Denial {
    /// A denial by this limit. Responses show the limit, unless it has no numbers.
    pub fn new(reason: DenyReason, limit: impl Into<Arc<str>>, decision: Decision) -> Self {
        let shown = (decision.limit > 0).then(|| ShownLimit::of("", &decision));
        Self {
            reason,
            limit: limit.into(),
            decision,
            key: None,
            error: None,
            missing: None,
            shown,
            listed: Vec::new(),
        }
    }

    /// A denial because the limits can't be checked. The client may retry soon, and the log has the error.
    pub fn store_unreachable(error: &dyn fmt::Display) -> Self {
        let soon = Duration::from_secs(1);
        let decision = Decision::new(Outcome::Denied, 0, 0, soon, soon);
        Self {
            error: Some(error.to_string().into()),
            ..Self::new(DenyReason::Store, "", decision)
        }
    }

    /// A denial by a list or a block, so there is no limit to show.
    pub fn blocked(limit: impl Into<Arc<str>>, wait: Option<Duration>) -> Self {
        let outcome = wait.map_or(Outcome::Never, |_| Outcome::Denied);
        let wait = wait.unwrap_or(Duration::MAX);
        Self::new(
            DenyReason::Blocked,
            limit,
            Decision::new(outcome, 0, 0, wait, wait),
        )
    }

    /// A denial of a request that lacks the key of this limit.
    pub fn missing_key(limit: impl Into<Arc<str>>, missing: MissingKey) -> Self {
        let decision = Decision::new(Outcome::Never, 0, 0, Duration::MAX, Duration::ZERO);
        Self {
            missing: Some(missing),
            ..Self::new(DenyReason::MissingKey, limit, decision)
        }
    }

    /// The HTTP status of the response.
    ///
    /// ```
    /// use tollgate_http::guard::{Denial, KeySource, MissingKey};
    ///
    /// let missing = MissingKey::new(KeySource::Credentials, "a token");
    /// assert_eq!(Denial::missing_key("per-token", missing).status(), 401);
    /// assert_eq!(Denial::blocked("denied", None).status(), 429);
    /// ```
    pub fn status(&self) -> u16 {
        let missing = self.missing.as_ref();
        missing.map_or_else(
            || http_status_of(self.reason),
            |missing| missing.source.status(),
        )
    }

    /// Sets the fingerprint of the key, for logs.
    pub const fn key(mut self, key: u64) -> Self {
        self.key = Some(key);
        self
    }

    /// Sets the limit that responses show. Its name is the name of the denial's limit.
    pub fn with_shown_limit(mut self, shown: Option<ShownLimit<'_>>) -> Self {
        self.shown = shown.map(|shown| ShownLimit { name: "", ..shown });
        self
    }

    /// The limit for header fields.
    pub fn shown(&self) -> Option<ShownLimit<'_>> {
        let shown = self.shown?;
        Some(ShownLimit {
            name: &self.limit,
            ..shown
        })
    }

    /// Sets all limits that responses show, the most urgent first. A single one has the name of the denial's limit.
    pub fn with_shown_limits(mut self, limits: &[ShownLimit<'_>]) -> Self {
        if let [_, _, ..] = limits {
            let listed = limits.iter().map(|limit| {
                let unnamed = ShownLimit { name: "", ..*limit };
                (limit.name.into(), unnamed)
            });
            self.listed = listed.collect();
            return self;
        }
        self.with_shown_limit(limits.first().copied())
    }

    /// All limits for header fields.
    pub(super) fn show_limits<T>(&self, show: impl FnOnce(&[ShownLimit<'_>]) -> T) -> T {
        if self.listed.is_empty() {
            return match self.shown() {
                Some(shown) => show(&[shown]),
                None => show(&[]),
            };
        }
        let limits = self.listed.iter();
        let limits: Vec<_> = limits
            .map(|(name, shown)| ShownLimit { name, ..*shown })
            .collect();
        show(&limits)
    }

    /// The body for the client, with this retry delay in seconds.
    pub(super) fn refusal(&self, retry_after: Option<u64>) -> DenialBody<'_> {
        DenialBody {
            reason: self.reason,
            limit: &self.limit,
            retry_after,
        }
    }

    /// How long to wait until a retry can pass; none if it never passes.
    pub fn wait(&self) -> Option<Duration> {
        (self.decision.outcome == Outcome::Denied).then_some(self.decision.wait_or_max())
    }
}
