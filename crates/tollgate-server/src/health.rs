//! Whether a service should be asked, and if not why.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use derive_more::Display;
use serde::Serialize;

/// What stands in the way of being ready, or is worth knowing though it doesn't. Each has one source, which says it and
/// takes it back.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[display(rename_all = "lowercase")]
#[serde(rename_all = "lowercase")]
pub(crate) enum Concern {
    /// It ends soon: nobody should come any more.
    Draining,
    /// The policy that was to be put in force has errors, and the one before goes on.
    Reload,
    /// The store can't be asked.
    Store,
    /// State can't be saved.
    State,
    /// Certificates can't be read again, or are over.
    Certificate,
    /// Secrets can't be read again.
    Secret,
    /// Nearly everything is refused.
    Denials,
    /// Operators let requests pass limits that are there.
    Bypass,
    /// What was saved couldn't be read at the start: what keys had spent is forgotten.
    Restore,
    /// No more may be held, so requests that would hold something aren't decided.
    Holds,
}

impl Concern {
    /// All that there are.
    pub(crate) const ALL: [Self; 10] = [
        Self::Draining,
        Self::Reload,
        Self::Store,
        Self::State,
        Self::Certificate,
        Self::Secret,
        Self::Denials,
        Self::Bypass,
        Self::Restore,
        Self::Holds,
    ];

    /// Whether clients should go elsewhere because of it. All others are shown, and it stays ready: a service that
    /// decides by the policy before, or as the operator chose, is better than none.
    pub(crate) const fn is_unready(self) -> bool {
        matches!(self, Self::Draining)
    }
}

/// What concerns a service has now, each with its reason. Clones are of the same service.
#[derive(Clone, Debug, Default)]
pub(crate) struct Health(Arc<Mutex<BTreeMap<Concern, String>>>);

impl Health {
    /// Says why, in place of what was said of it before, which comes back.
    pub(crate) fn raise_concern(&self, concern: Concern, why: impl Into<String>) -> Option<String> {
        self.locked().insert(concern, why.into())
    }

    /// It is over. Whether it was there.
    pub(crate) fn clear_concern(&self, concern: Concern) -> bool {
        self.locked().remove(&concern).is_some()
    }

    /// All that are there.
    pub(crate) fn concerns(&self) -> Vec<(Concern, String)> {
        let all = self.locked();
        all.iter().map(|(one, why)| (*one, why.clone())).collect()
    }

    /// Whether clients may come.
    pub(crate) fn is_ready(&self) -> bool {
        !self.locked().keys().any(|one| one.is_unready())
    }

    /// What a probe is told, as JSON: whether clients may come, and all concerns with their reasons.
    pub(crate) fn to_json(&self) -> String {
        #[derive(Serialize)]
        struct Told<'a> {
            status: &'a str,
            reasons: BTreeMap<Concern, String>,
        }
        let reasons = self.locked().clone();
        let status = match reasons.keys().any(|one| one.is_unready()) {
            true => "unready",
            false if reasons.is_empty() => "ready",
            false => "degraded",
        };
        let told = serde_json::to_string(&Told { status, reasons });
        // Texts are all that is in it.
        told.unwrap_or_default() + "\n"
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, BTreeMap<Concern, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
