//! Denials that an engine caches, before and after the backend query.

use tollgate::Timestamp;

use super::BackendQuery;
use crate::backend::Backend;
use crate::engine::request_match::CheckGroup;
use crate::limits::{Answer, DenyCache, DenyRecheck, DenyVersion, KnownDenial};

/// What is known of a request's checks before the backend query.
pub(super) enum DenyLookup<'e> {
    /// The request is denied.
    Denied(Answer),
    /// The backend has to be queried.
    AskBackend(PendingCheck<'e>),
}

/// A backend query whose denial may be cached.
#[derive(Default)]
pub(super) struct PendingCheck<'e> {
    /// The cache, if there is one.
    deny_cache: Option<&'e DenyCache>,
    version: DenyVersion,
    /// The time before the query, so that no denial is cached for longer than it holds.
    asked_at: Timestamp,
    /// The cached denial to recheck.
    recheck: Option<DenyRecheck<'e>>,
}

impl<'e> DenyLookup<'e> {
    /// Looks the checks up before the backend query.
    #[inline]
    pub(super) fn look_up<B: Backend>(asking: &BackendQuery<'e, '_, B>) -> Self {
        let backend = asking.backend;
        let Some(own) = asking.deny_cache else {
            return Self::AskBackend(PendingCheck::default());
        };
        // Read before the query: a refund during it starts a new epoch, and must not be attributed to the old answer.
        let version = DenyVersion(
            asking.rules.version,
            backend.deny_epoch().unwrap_or_default(),
        );
        let at = backend.now();
        let recheck =
            match own.look_up(asking.request_match.enforced.checks.as_slice(), at, version) {
                KnownDenial::Repeat(decider, decision) => {
                    return Self::Denied(Answer::new(Some(decider), decision));
                }
                KnownDenial::Due(recheck) => Some(recheck),
                KnownDenial::None => None,
            };
        Self::AskBackend(PendingCheck {
            deny_cache: asking.deny_cache,
            version,
            asked_at: at,
            recheck,
        })
    }
}

impl PendingCheck<'_> {
    /// The answer to the request, after the backend's answer.
    #[inline]
    pub(super) fn record_answer(self, group: &CheckGroup<'_>, answer: Answer) -> Answer {
        let Some(deny) = self.deny_cache else {
            return answer;
        };
        if answer.unavailable.is_some() {
            // The store was unavailable, so a cached denial is the best information.
            return match self.cached_denial() {
                Some(denied) => {
                    answer.pass.cancel();
                    denied
                }
                None => answer,
            };
        }
        if answer.allowed {
            if let Some(recheck) = self.recheck {
                recheck.passed();
            }
        } else if let Some(check) = answer
            .decider
            .and_then(|decider| group.checks.as_slice().get(decider))
        {
            deny.record_denial(check, &answer.decision, self.asked_at, self.version);
        }
        answer
    }

    /// The cached denial, for a recheck that found the backend unavailable.
    pub(super) fn cached_denial(self) -> Option<Answer> {
        let (decider, decision) = self.recheck?.failed();
        Some(Answer::known(Some(decider), decision))
    }
}
