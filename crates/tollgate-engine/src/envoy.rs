//! The configuration of envoyproxy/ratelimit, unchanged: domains, each a tree of descriptors.
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
//! # Fields that envoyproxy/ratelimit doesn't have
//! Beside `domain`: `charging: each`, which is how envoyproxy/ratelimit charges a request of several descriptors (the
//! default here is `all-or-none`), and `on_store_failure` for all limits of the domain. In `rate_limit`: `rate: 10/s
//! burst 20`, or a list of rates, in place of `unit` and `requests_per_unit`, counted by Tollgate's default
//! algorithm; `algorithm`, `counting` and `on_store_failure`, as in the native form; `quota: 10000/month`;
//! `concurrency: 50`. A file without these fields means the same in both programs.
//!
//! # What differs
//! Keys and values are never joined by `_`: `a_b`/`c` isn't `a`/`b_c`, neither in lookups nor in counters. A `*` is a
//! wildcard in a value, not in a key.
//!
//! A descriptor with its own limit uses the counter of the configured limit for its entries if both have the same
//! unit, as in envoyproxy/ratelimit. Otherwise it has a counter of its own. In envoyproxy/ratelimit, windows of two
//! units that begin in the same second share a counter.
//!
//! A request that one limit denies is charged to none, unless the file has [`charging:
//! each`](crate::policy::Charging), and a limit that denies is never charged. In envoyproxy/ratelimit all limits are
//! charged, so a cost that doesn't fit uses up the rest. Descriptors of one request with the same counter are checked
//! together by the sum of their costs; in envoyproxy/ratelimit, one after the other.

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

/// Whether a file is in this form, and not in the native one.
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

/// A field that neither envoyproxy/ratelimit nor Tollgate has.
pub const UNKNOWN_FIELD: Code = Code("unknown-field");
/// A field's name isn't text.
pub const NAME_NOT_TEXT: Code = Code("name-not-text");
/// A list has an item that isn't a map.
pub const NOT_A_MAP: Code = Code("not-a-map");
/// A value has the wrong type.
pub const WRONG_TYPE: Code = Code("wrong-type");
/// A file or document names no domain.
pub const EMPTY_DOMAIN: Code = Code("empty-domain");
/// Two domains have the same name.
pub const DUPLICATE_DOMAIN: Code = Code("duplicate-domain");
/// A descriptor has no key.
pub const EMPTY_KEY: Code = Code("empty-key");
/// Two sibling descriptors have the same entries.
pub const DUPLICATE_DESCRIPTOR: Code = Code("duplicate-descriptor");
/// An invalid unit.
pub const BAD_UNIT: Code = Code("bad-unit");
/// `unlimited` together with a limit.
pub const UNLIMITED_WITH_LIMIT: Code = Code("unlimited-with-limit");
/// `replaces` names nothing.
pub const EMPTY_REPLACES: Code = Code("empty-replaces");
/// `replaces` names its own limit.
pub const SELF_REPLACES: Code = Code("self-replaces");
/// `share_threshold` without a wildcard.
pub const SHARE_WITHOUT_WILDCARD: Code = Code("share-without-wildcard");
/// An invalid `rate`, or one that the algorithm doesn't support.
pub const BAD_RATE: Code = Code("bad-rate");
/// An invalid `quota`.
pub const BAD_QUOTA: Code = Code("bad-quota");
/// An invalid `concurrency`, or one of 0.
pub const BAD_CONCURRENCY: Code = Code("bad-concurrency");
/// An invalid `algorithm`.
pub const BAD_ALGORITHM: Code = Code("bad-algorithm");
/// An invalid `counting`, or one that the limit doesn't support.
pub const BAD_COUNTING: Code = Code("bad-counting");
/// An invalid `on_store_failure`, or one without an effect.
pub const BAD_ON_STORE_FAILURE: Code = Code("bad-on-store-failure");
/// An invalid `charging`.
pub const BAD_CHARGING: Code = Code("bad-charging");
/// Both `rate` and `unit`.
pub const RATE_AND_UNIT: Code = Code("rate-and-unit");
/// There are more errors than are reported.
pub const TOO_MANY_ERRORS: Code = Code("too-many-errors");
/// Warning: a known field that has no effect in this position.
pub const MISPLACED_FIELD: Code = Code("misplaced-field");
/// Warning: `requests_per_unit` is missing, which means 0.
pub const NO_REQUESTS: Code = Code("no-requests-per-unit");
/// Warning: a mode without a limit. It isn't inherited.
pub const MODE_WITHOUT_LIMIT: Code = Code("mode-without-limit");
/// Warning: a `*` in a key, where it isn't a wildcard.
pub const STAR_IN_KEY: Code = Code("star-in-key");
/// Warning: `replaces` names a limit that the domain doesn't have.
pub const REPLACES_UNKNOWN: Code = Code("replaces-unknown");

/// The errors found so far.
type Problems = Vec<Diagnostic>;
