//! The stable codes of all warnings.

use crate::diagnostic::Code;

/// No request can reach the rule.
pub const NEVER_REACHED: Code = Code("never-reached");
/// No tenant can be in the tier.
pub const UNUSED_TIER: Code = Code("unused-tier");
/// The burst or the rate is 0, so nothing passes.
pub const BURST_BELOW_ONE: Code = Code("burst-below-one");
/// The limit never decides, because another limit always denies first.
pub const NEVER_DECIDES: Code = Code("never-decides");
/// A client can choose its key freely.
pub const KEY_ANYONE_CAN_SET: Code = Code("key-anyone-can-set");
/// A low rate applies to an address that many clients may share.
pub const ADDRESS_ALONE: Code = Code("address-alone");
/// The key is the route and another fact, so each pair of them has a counter.
pub const ROUTE_TIMES_KEY: Code = Code("route-times-key");
/// The burst is below the rate, or above five times the rate.
pub const BURST_RATIO: Code = Code("burst-ratio");
/// The rule lets requests pass while the store is unreachable, where that is dangerous.
pub const OPEN_ON_FAILURE: Code = Code("open-on-failure");
/// Two limits have the same match and the same key.
pub const SAME_KEY_AND_MATCH: Code = Code("same-key-and-match");

/// The name of a fact is close to the name of a fact that every request may have.
pub const MISSPELT_FACT: Code = Code("misspelt-fact");
/// A condition is on a fact with the name of a field of a rule.
pub const FIELD_IN_MATCH: Code = Code("field-in-match");
/// A method is in lower case, which no request has.
pub const LOWER_CASE_METHOD: Code = Code("lower-case-method");
/// An exemption matches only blocked requests.
pub const EXEMPT_IS_BLOCKED: Code = Code("exempt-is-blocked");
/// A sliding log stores very many hits.
pub const LOG_MEMORY: Code = Code("log-memory");
/// An adaptive limit is used with a protocol that doesn't report how long requests take.
pub const ADAPTIVE_UNTOLD: Code = Code("adaptive-untold");
/// The rule has a key, but its only limit is adaptive, which has one counter for all keys.
pub const ADAPTIVE_BY_KEY: Code = Code("adaptive-by-key");
/// A client can choose its class for load shedding freely.
pub const SHED_ANYONE_CAN_SET: Code = Code("shed-anyone-can-set");

/// A text looks like a regular expression, but is compared literally.
pub const LOOKS_LIKE_REGEX: Code = Code("looks-like-regex");
/// A text looks like a glob, but is compared as a prefix or a regular expression.
pub const LOOKS_LIKE_GLOB: Code = Code("looks-like-glob");
/// A text looks like a network, but is compared literally.
pub const LOOKS_LIKE_NETWORK: Code = Code("looks-like-network");
/// A text can't be a path.
pub const NOT_A_PATH: Code = Code("not-a-path");
/// A path ends in a slash, and doesn't match the paths below it.
pub const ONLY_THIS_PATH: Code = Code("only-this-path");
/// A `*` stands for a value that may have slashes, which `*` doesn't match.
pub const STAR_STOPS_AT_SLASH: Code = Code("star-stops-at-slash");
/// A text can't be a method.
pub const NOT_A_METHOD: Code = Code("not-a-method");
/// A text can't be a host.
pub const NOT_A_HOST: Code = Code("not-a-host");
/// A text isn't in the form in which addresses are compared.
pub const NOT_AN_ADDRESS: Code = Code("not-an-address");
/// A condition has white space at one of its ends.
pub const EDGE_SPACE: Code = Code("edge-space");
/// A regular expression describes only the start of a text, but must match the whole text.
pub const REGEX_IS_WHOLE: Code = Code("regex-is-whole");
/// A rule's name says that each user has a counter, but all users share one.
pub const NO_KEY: Code = Code("no-key");
/// A key has the network of a fact that is no address.
pub const NETWORK_OF_TEXT: Code = Code("network-of-text");
/// A key has more bits of an IPv6 address than identify a client.
pub const EACH_IPV6_ADDRESS: Code = Code("each-ipv6-address");
/// Tenants outside the tiers have no limit.
pub const NO_DEFAULT_TIER: Code = Code("no-default-tier");
/// A tenant's name looks like a pattern.
pub const TENANT_IS_NO_PATTERN: Code = Code("tenant-is-no-pattern");
/// A condition is on the fact `tier`, which isn't the tier of a tenant.
pub const TIER_IS_NO_FACT: Code = Code("tier-is-no-fact");
/// An exemption matches all requests.
pub const EXEMPTS_ALL: Code = Code("exempts-all");
/// An exemption depends on a header that a client can choose freely.
pub const EXEMPT_ANYONE_CAN_SET: Code = Code("exempt-anyone-can-set");
/// An unlimited rule replaces no other rule.
pub const UNLIMITED_REPLACES_NOTHING: Code = Code("unlimited-replaces-nothing");
/// A rule replaces another that never applies to the same request.
pub const REPLACES_NOTHING: Code = Code("replaces-nothing");
