//! The stable codes of the errors in a native policy file.

use crate::diagnostic::Code;

/// The map has a field that the format doesn't have.
pub const UNKNOWN_FIELD: Code = Code("unknown-field");
/// The field has a word that isn't one of its values.
pub const UNKNOWN_VALUE: Code = Code("unknown-value");
/// The value is of another type than the field takes.
pub const WRONG_TYPE: Code = Code("wrong-type");
/// A required field is missing.
pub const MISSING_FIELD: Code = Code("missing-field");
/// A list or map is empty that must not be.
pub const EMPTY: Code = Code("empty");
/// Fields exclude one another, or a field has no effect here.
pub const CONFLICT: Code = Code("conflict");
/// A number is outside the field's range.
pub const OUT_OF_RANGE: Code = Code("out-of-range");
/// The text can't be a name.
pub const BAD_NAME: Code = Code("bad-name");
/// Two items have the same name.
pub const DUPLICATE_NAME: Code = Code("duplicate-name");
/// The text isn't a rate.
pub const BAD_RATE: Code = Code("bad-rate");
/// The text isn't a quota.
pub const BAD_QUOTA: Code = Code("bad-quota");
/// The algorithm can't represent the rate.
pub const UNREPRESENTABLE: Code = Code("unrepresentable");
/// The text isn't a regular expression, or the expression is too large.
pub const BAD_REGEX: Code = Code("bad-regex");
/// The text isn't a network.
pub const BAD_NETWORK: Code = Code("bad-cidr");
/// A regular expression stands where text is compared literally.
pub const REGEX_AS_TEXT: Code = Code("regex-as-text");
/// A network stands where text is compared literally.
pub const NETWORK_AS_TEXT: Code = Code("network-as-text");
/// The text isn't a glob.
pub const BAD_GLOB: Code = Code("bad-glob");
/// The key is invalid.
pub const BAD_KEY: Code = Code("bad-key");
/// A rule or tier has no limit and isn't marked `unlimited`.
pub const NO_LIMIT: Code = Code("no-limit");
/// The limit denies every request.
pub const NOTHING_PASSES: Code = Code("nothing-passes");
/// The cost is 0, which charges nothing.
pub const COST_ZERO: Code = Code("cost-zero");
/// No tier has this name.
pub const UNKNOWN_TIER: Code = Code("unknown-tier");
/// No rule has this name.
pub const UNKNOWN_RULE: Code = Code("unknown-rule");
/// Rules replace one another in a cycle.
pub const REPLACES_CYCLE: Code = Code("replaces-cycle");
/// Rules with different limits share a counter, or a rule shares one with no other rule.
pub const BAD_SHARED: Code = Code("bad-shared");
/// A condition matches every request where that is surely a mistake.
pub const MATCHES_ALL: Code = Code("matches-all");
/// The file can't be read.
pub const UNREADABLE: Code = Code("unreadable");
/// The process has no free file descriptor to read a file with. Nothing is wrong with the file itself.
pub const NO_DESCRIPTORS: Code = Code("no-descriptors");
/// The file can't be included here.
pub const INCLUDE: Code = Code("bad-include");
/// The policy lists its facts, but not this one.
pub const UNKNOWN_FACT: Code = Code("unknown-fact");
/// There are more errors than the report shows.
pub const TOO_MANY_ERRORS: Code = Code("too-many-errors");
