//! Every word that a field of the native form takes, by table: what the decoder reads, and what the schema lists.

use tollgate::{Algorithm, OnMissingKey, Timestamp, core::Align};
use tollgate_adaptive::NamedLaw;

use super::overload::laws;
use crate::policy::{Counting, Mode, OnStoreFailure, Unsettled};

/// All ways of counting, by name.
pub(crate) const ALGORITHMS: &[(&str, Algorithm)] = &[
    ("gcra", Algorithm::Gcra),
    ("token-bucket", Algorithm::TokenBucket),
    ("leaky", Algorithm::LeakyBucket),
    (
        "fixed-window",
        Algorithm::FixedWindow(Align::Boundary(Timestamp::ZERO)),
    ),
    ("sliding-window", Algorithm::SlidingCounter),
    ("sliding-log", Algorithm::SlidingLog),
];

/// All modes, by name.
pub(crate) const MODES: &[(&str, Mode)] = &[
    ("enforce", Mode::Enforce),
    ("shadow", Mode::Shadow),
    ("off", Mode::Off),
];

/// All that can be done without the store, by name; `inherit` is as if nothing were said.
pub(crate) const FAILURES: &[(&str, Option<OnStoreFailure>)] = &[
    failure(OnStoreFailure::Open),
    failure(OnStoreFailure::Closed),
    failure(OnStoreFailure::Local),
    failure(OnStoreFailure::CircuitBreak),
    ("inherit", None),
];

const fn failure(failure: OnStoreFailure) -> (&'static str, Option<OnStoreFailure>) {
    (failure.name(), Some(failure))
}

/// What can happen to a request without its key, by name.
pub(crate) const MISSING_KEYS: &[(&str, OnMissingKey)] = &[
    missing(OnMissingKey::Pass),
    missing(OnMissingKey::Deny),
    missing(OnMissingKey::OneCounter),
];

const fn missing(choice: OnMissingKey) -> (&'static str, OnMissingKey) {
    (choice.name(), choice)
}

/// How several nodes can count together, by name.
pub(crate) const COUNTINGS: &[(&str, Counting)] = &[
    (Counting::Exact.name(), Counting::Exact),
    (Counting::Leased.name(), Counting::Leased),
    (Counting::Local.name(), Counting::Local),
];

/// All laws that find a limit, by name.
pub(crate) const LAWS: &[(&str, NamedLaw)] = &laws();

/// What becomes of an estimate that nobody settles, by name.
pub(crate) const UNSETTLED: &[(&str, Unsettled)] = &[
    (Unsettled::Charge.name(), Unsettled::Charge),
    (Unsettled::Refund.name(), Unsettled::Refund),
];

/// What keeps a limit from being leased.
pub(crate) const NOT_LEASED: &str = "only rates by gcra, token-bucket or leaky can be leased";
/// What is said of a limit that never asks a store.
pub(crate) const ASKS_NO_STORE: &str =
    "on_store_failure does nothing where counting is local: no store is asked";

/// Whether a rate by this algorithm can be leased: whether tokens can be taken ahead.
pub(crate) const fn lends(algorithm: Algorithm) -> bool {
    matches!(
        algorithm,
        Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket
    )
}

/// The words of a table.
pub(crate) fn names<T>(table: &[(&'static str, T)]) -> Vec<&'static str> {
    table.iter().map(|(name, _)| *name).collect()
}
