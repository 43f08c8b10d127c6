//! The configuration of envoyproxy/ratelimit as it is: domains, each a tree of descriptors.
//!
//! ```
//! use tollgate_engine::envoy::{self, DescriptorIndex};
//! use tollgate_engine::facts::Descriptor;
//!
//! let file = "
//! domain: edge
//! descriptors:
//! - key: remote_address
//!   rate_limit: {unit: minute, requests_per_unit: 100}
//! - key: remote_address
//!   value: 10.*
//!   rate_limit: {unlimited: true}
//! ";
//! let decoded = envoy::decode(&[(0, file)]).expect("a configuration");
//! let compiled = DescriptorIndex::new(&decoded.domains);
//! let entries = [("remote_address", "10.0.0.1")];
//! let found = compiled.lookup("edge", &Descriptor::new(&entries));
//! assert!(found.leaf().is_some_and(|leaf| leaf.limit.limits.unlimited));
//! ```
//!
//! # What a file can say here and not there
//! Beside `domain`: `charging: each`, which is how theirs charges a request of several descriptors; ours is
//! `all-or-none` unless said otherwise; and `on_store_failure` for all limits of the domain. In `rate_limit`: `rate: 10/s burst 20` or a list of rates in place of `unit` and
//! `requests_per_unit`, by our default algorithm; `algorithm`, `counting` and `on_store_failure`, as in our own
//! form; `quota: 10000/month`; `concurrency: 50`. A file without them means what it means there.
//!
//! # What differs
//! Keys and values are never joined by `_`: `a_b`/`c` is not `a`/`b_c`, neither where descriptors are
//! looked up nor where they are counted. A `*` is a wildcard in a value, not in a key.
//!
//! A descriptor that brings its own limit counts where the configured limit for its entries does, as
//! there, if both are by the same unit; if not, apart from it. There, windows of two units that begin in
//! the same second are one counter.
//!
//! A request that one limit refuses is charged to none, unless the file says [`charging:
//! each`](crate::policy::Charging); and a limit that refuses is never charged. There all are, so that a cost
//! that doesn't fit uses up what is left. Descriptors of one request that meet the same counter are judged by
//! the sum of their costs, all alike; there one after the other.

mod convert;
mod counter_keys;
mod decoder;
mod descriptor_index;
mod field_names;
mod reader;
mod status;

use std::collections::BTreeMap;

use crate::diagnostic::{Code, Diagnostic};
use crate::document::{Node, Value};
use crate::policy::Domain;

pub use convert::{ConversionLoss, ConvertedRules, LossKind, convert_to_rules, convert_to_yaml};
pub(crate) use counter_keys::path_name;
pub use counter_keys::{counter_key, requested_limit_key};
pub(crate) use decoder::domain_spans;
pub use decoder::{DecodedDomains, decode};
pub use descriptor_index::{CompiledLimit, DescriptorIndex, HiddenLimit, LookupResult, PathEntry};
pub use status::{
    Charge, CurrentLimit, LimitStatus, StatusCode, descriptor_charge, limit_status, overall_code,
    remove_replaced_limits,
};

/// Trees of descriptors by domain.
///
/// ```
/// use tollgate_engine::envoy::{self, DescriptorDomains};
///
/// let domains: DescriptorDomains = envoy::decode(&[(0, "domain: edge")]).expect("a configuration").domains;
/// assert!(domains["edge"].descriptors.is_empty());
/// ```
pub type DescriptorDomains = BTreeMap<String, Domain>;

/// Whether a file is in this form, not in our own.
///
/// ```
/// use tollgate_engine::document::{Format, parse};
/// use tollgate_engine::envoy;
///
/// let theirs = parse("domain: edge", Format::Yaml, 0).expect("YAML");
/// let ours = parse("limits: []", Format::Yaml, 0).expect("YAML");
/// assert!(envoy::is_envoy_document(&theirs) && !envoy::is_envoy_document(&ours));
/// ```
pub fn is_envoy_document(file: &Node) -> bool {
    let fields = file.as_fields().iter();
    let mut names = fields.map(|(name, _)| name.as_text());
    names.any(|name| matches!(name, Some("domain" | "descriptors")))
}

/// A field that neither they nor we know.
pub const UNKNOWN_FIELD: Code = Code("unknown-field");
/// A field's name is not text.
pub const NAME_NOT_TEXT: Code = Code("name-not-text");
/// A list holds something that is not a map.
pub const NOT_A_MAP: Code = Code("not-a-map");
/// A value of another kind was expected.
pub const WRONG_TYPE: Code = Code("wrong-type");
/// A file or document names no domain.
pub const EMPTY_DOMAIN: Code = Code("empty-domain");
/// A domain is given twice.
pub const DUPLICATE_DOMAIN: Code = Code("duplicate-domain");
/// A descriptor has no key.
pub const EMPTY_KEY: Code = Code("empty-key");
/// Two descriptors side by side are for the same entries.
pub const DUPLICATE_DESCRIPTOR: Code = Code("duplicate-descriptor");
/// A unit that isn't one.
pub const BAD_UNIT: Code = Code("bad-unit");
/// Unlimited, and yet a limit.
pub const UNLIMITED_WITH_LIMIT: Code = Code("unlimited-with-limit");
/// `replaces` names nothing.
pub const EMPTY_REPLACES: Code = Code("empty-replaces");
/// `replaces` names the limit it stands in.
pub const SELF_REPLACES: Code = Code("self-replaces");
/// `share_threshold` without a wildcard.
pub const SHARE_WITHOUT_WILDCARD: Code = Code("share-without-wildcard");
/// A `rate` that isn't one, or that the algorithm can't keep.
pub const BAD_RATE: Code = Code("bad-rate");
/// A `quota` that isn't one.
pub const BAD_QUOTA: Code = Code("bad-quota");
/// A `concurrency` of nothing.
pub const BAD_CONCURRENCY: Code = Code("bad-concurrency");
/// An `algorithm` that isn't one.
pub const BAD_ALGORITHM: Code = Code("bad-algorithm");
/// A `counting` that isn't one, or that the limit can't be counted by.
pub const BAD_COUNTING: Code = Code("bad-counting");
/// An `on_store_failure` that isn't one, or that does nothing.
pub const BAD_ON_STORE_FAILURE: Code = Code("bad-on-store-failure");
/// A `charging` that isn't one.
pub const BAD_CHARGING: Code = Code("bad-charging");
/// Both `rate` and `unit`.
pub const RATE_AND_UNIT: Code = Code("rate-and-unit");
/// More is wrong than is told.
pub const TOO_MANY_ERRORS: Code = Code("too-many-errors");
/// Warning: a field that is known, but does nothing where it stands.
pub const MISPLACED_FIELD: Code = Code("misplaced-field");
/// Warning: no `requests_per_unit`, which means 0.
pub const NO_REQUESTS: Code = Code("no-requests-per-unit");
/// Warning: a mode without a limit: it isn't inherited.
pub const MODE_WITHOUT_LIMIT: Code = Code("mode-without-limit");
/// Warning: a `*` in a key, where it is no wildcard.
pub const STAR_IN_KEY: Code = Code("star-in-key");
/// Warning: `replaces` names a limit that the domain doesn't have.
pub const REPLACES_UNKNOWN: Code = Code("replaces-unknown");

/// Collects what is wrong.
type Problems = Vec<Diagnostic>;
