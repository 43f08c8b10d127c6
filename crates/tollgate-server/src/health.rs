//! The health of a service: whether clients should be sent here, and current concerns.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use derive_more::Display;
use serde::Serialize;

/// A concern: a reason not to be ready, or a degradation worth knowing. Each concern has one source, which raises and
/// clears it.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[display(rename_all = "lowercase")]
#[serde(rename_all = "lowercase")]
pub(crate) enum Concern {
    /// The service stops soon: clients should go elsewhere.
    Draining,
    /// The new policy has errors; the previous one stays in force.
    Reload,
    /// The store is unreachable.
    Store,
    /// The state can't be saved.
    State,
    /// Certificates can't be reloaded, or have expired.
    Certificate,
    /// Secrets can't be reloaded.
    Secret,
    /// Nearly all requests are denied.
    Denials,
    /// Operators bypass limits.
    Bypass,
    /// Saved state couldn't be read at the start, so what keys had spent is forgotten.
    Restore,
    /// The reservation capacity is exhausted, so requests that need permits aren't decided.
    Holds,
}

impl Concern {
    /// All concerns.
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

    /// Whether clients should go elsewhere because of it. With any other concern the service stays ready: deciding by
    /// an old policy or by fallback is better than not deciding.
    pub(crate) const fn is_unready(self) -> bool {
        matches!(self, Self::Draining)
    }
}

/// The current concerns of a service, each with its reason. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Health(Arc<Mutex<BTreeMap<Concern, String>>>);

impl Health {
    /// Raises a concern, or replaces its reason. Returns the previous reason.
    pub(crate) fn raise_concern(&self, concern: Concern, why: impl Into<String>) -> Option<String> {
        self.locked().insert(concern, why.into())
    }

    /// Clears a concern. Returns whether it was raised.
    pub(crate) fn clear_concern(&self, concern: Concern) -> bool {
        self.locked().remove(&concern).is_some()
    }

    /// All current concerns.
    pub(crate) fn concerns(&self) -> Vec<(Concern, String)> {
        let all = self.locked();
        all.iter().map(|(one, why)| (*one, why.clone())).collect()
    }

    /// Whether clients should be sent here.
    pub(crate) fn is_ready(&self) -> bool {
        !self.locked().keys().any(|one| one.is_unready())
    }

    /// The JSON of a readiness check: the status, and all concerns with their reasons.
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
        // Serializing texts can't fail.
        told.unwrap_or_default() + "\n"
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, BTreeMap<Concern, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
