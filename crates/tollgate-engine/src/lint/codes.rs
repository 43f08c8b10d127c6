//! The stable names of all warnings.

use crate::diagnostic::Code;

/// No request can come to this rule.
pub const NEVER_REACHED: Code = Code("never-reached");
/// No tenant can be in this tier.
pub const UNUSED_TIER: Code = Code("unused-tier");
/// A burst or a rate of 0, with which nothing passes.
pub const BURST_BELOW_ONE: Code = Code("burst-below-one");
/// A limit that never decides, as another always refuses first.
pub const NEVER_DECIDES: Code = Code("never-decides");
/// A key that whoever sends a request can choose.
pub const KEY_ANYONE_CAN_SET: Code = Code("key-anyone-can-set");
/// A low rate for an address, which many may share.
pub const ADDRESS_ALONE: Code = Code("address-alone");
/// A key of the route and something else, so that there is a counter for each pair of them.
pub const ROUTE_TIMES_KEY: Code = Code("route-times-key");
/// A burst below the rate, or above five times the rate.
pub const BURST_RATIO: Code = Code("burst-ratio");
/// A rule that lets requests pass without the store where that is dangerous.
pub const OPEN_ON_FAILURE: Code = Code("open-on-failure");
/// Two limits for the same requests by the same key.
pub const SAME_KEY_AND_MATCH: Code = Code("same-key-and-match");

/// A fact whose name is close to that of one that every request may have.
pub const MISSPELT_FACT: Code = Code("misspelt-fact");
/// A condition on a fact that is called like a field of a rule.
pub const FIELD_IN_MATCH: Code = Code("field-in-match");
/// A method in small letters, which no request has.
pub const LOWER_CASE_METHOD: Code = Code("lower-case-method");
/// An exemption of what is blocked.
pub const EXEMPT_IS_BLOCKED: Code = Code("exempt-is-blocked");
/// A sliding log of very many hits.
pub const LOG_MEMORY: Code = Code("log-memory");
/// A limit that adapts, reached over a protocol by which nobody tells how long requests take.
pub const ADAPTIVE_UNTOLD: Code = Code("adaptive-untold");
/// A key of a rule whose only limit adapts, and is one for all keys.
pub const ADAPTIVE_BY_KEY: Code = Code("adaptive-by-key");
/// A class that whoever sends a request can choose.
pub const SHED_ANYONE_CAN_SET: Code = Code("shed-anyone-can-set");

/// Text that looks like a regular expression, but is compared as it stands.
pub const LOOKS_LIKE_REGEX: Code = Code("looks-like-regex");
/// Text that looks like a glob, but is compared as a beginning or a regular expression.
pub const LOOKS_LIKE_GLOB: Code = Code("looks-like-glob");
/// Text that looks like a network, but is compared as it stands.
pub const LOOKS_LIKE_NETWORK: Code = Code("looks-like-network");
/// Text that no path can be.
pub const NOT_A_PATH: Code = Code("not-a-path");
/// A path that ends in a slash, without what is below it.
pub const ONLY_THIS_PATH: Code = Code("only-this-path");
/// A `*` in front of what may have a slash in it.
pub const STAR_STOPS_AT_SLASH: Code = Code("star-stops-at-slash");
/// Text that no method can be.
pub const NOT_A_METHOD: Code = Code("not-a-method");
/// Text that no host can be.
pub const NOT_A_HOST: Code = Code("not-a-host");
/// Text that no address is written as.
pub const NOT_AN_ADDRESS: Code = Code("not-an-address");
/// A condition with white space at one of its ends.
pub const EDGE_SPACE: Code = Code("edge-space");
/// A regular expression for the beginning of a text, though it has to fit the whole.
pub const REGEX_IS_WHOLE: Code = Code("regex-is-whole");
/// A rule for each user, by its name, that has one counter for all of them.
pub const NO_KEY: Code = Code("no-key");
/// The network of a fact that is no address.
pub const NETWORK_OF_TEXT: Code = Code("network-of-text");
/// A key by more of an IPv6 address than tells one client from another.
pub const EACH_IPV6_ADDRESS: Code = Code("each-ipv6-address");
/// Tenants that no tier limits.
pub const NO_DEFAULT_TIER: Code = Code("no-default-tier");
/// A tenant whose name looks like a pattern.
pub const TENANT_IS_NO_PATTERN: Code = Code("tenant-is-no-pattern");
/// A condition on the fact `tier`, which isn't the tier of a tenant.
pub const TIER_IS_NO_FACT: Code = Code("tier-is-no-fact");
/// An exemption of all requests.
pub const EXEMPTS_ALL: Code = Code("exempts-all");
/// An exemption by a header that whoever sends a request can choose.
pub const EXEMPT_ANYONE_CAN_SET: Code = Code("exempt-anyone-can-set");
/// A rule without a limit that replaces no other.
pub const UNLIMITED_REPLACES_NOTHING: Code = Code("unlimited-replaces-nothing");
/// A rule that replaces one for other requests.
pub const REPLACES_NOTHING: Code = Code("replaces-nothing");
