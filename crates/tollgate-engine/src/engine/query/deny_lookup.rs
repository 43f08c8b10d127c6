//! Denials that an engine remembers, before and after its backend is asked.

use tollgate::Timestamp;

use super::BackendQuery;
use crate::backend::Backend;
use crate::engine::request_match::CheckGroup;
use crate::limits::{Answer, DenyCache, DenyRecheck, DenyVersion, KnownDenial};

/// What is known of a request's checks before they are asked.
pub(super) enum DenyLookup<'e> {
    /// It is denied.
    Denied(Answer),
    /// The backend is asked.
    AskBackend(PendingCheck<'e>),
}

/// A question to the backend, whose denial may be remembered.
#[derive(Default)]
pub(super) struct PendingCheck<'e> {
    /// Where it is remembered, if it is.
    deny_cache: Option<&'e DenyCache>,
    version: DenyVersion,
    /// Before the question, so that no denial is held longer than it was meant.
    asked_at: Timestamp,
    /// The denial that is asked about again.
    recheck: Option<DenyRecheck<'e>>,
}

impl<'e> DenyLookup<'e> {
    /// What is known before the backend is asked.
    #[inline]
    pub(super) fn look_up<B: Backend>(asking: &BackendQuery<'e, '_, B>) -> Self {
        let backend = asking.backend;
        let Some(own) = asking.deny_cache else {
            return Self::AskBackend(PendingCheck::default());
        };
        // Read before the question: an answer is of the epoch in which it was asked for.
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
    /// The answer to a request, after the backend gave this one.
    #[inline]
    pub(super) fn record_answer(self, group: &CheckGroup<'_>, answer: Answer) -> Answer {
        let Some(deny) = self.deny_cache else {
            return answer;
        };
        if answer.unavailable.is_some() {
            // Nobody knows better than what was remembered.
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

    /// The denial that holds as far as is known, if the backend couldn't be asked about it again.
    pub(super) fn cached_denial(self) -> Option<Answer> {
        let (decider, decision) = self.recheck?.failed();
        Some(Answer::known(Some(decider), decision))
    }
}
