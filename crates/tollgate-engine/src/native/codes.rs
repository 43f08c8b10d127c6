//! The stable names of what can be wrong with a native policy file.

use crate::diagnostic::Code;

/// A field that the format doesn't have.
pub const UNKNOWN_FIELD: Code = Code("unknown-field");
/// A word that isn't one of those that a field takes.
pub const UNKNOWN_VALUE: Code = Code("unknown-value");
/// A value of another kind than the field takes.
pub const WRONG_TYPE: Code = Code("wrong-type");
/// A field that must be there.
pub const MISSING_FIELD: Code = Code("missing-field");
/// A list or map that must have something in it.
pub const EMPTY: Code = Code("empty");
/// Fields that exclude one another, or one that does nothing here.
pub const CONFLICT: Code = Code("conflict");
/// A number outside what a field takes.
pub const OUT_OF_RANGE: Code = Code("out-of-range");
/// A name that can't be one.
pub const BAD_NAME: Code = Code("bad-name");
/// Two things of one name.
pub const DUPLICATE_NAME: Code = Code("duplicate-name");
/// The text is no rate.
pub const BAD_RATE: Code = Code("bad-rate");
/// The text is no quota.
pub const BAD_QUOTA: Code = Code("bad-quota");
/// The algorithm can't represent the rate.
pub const UNREPRESENTABLE: Code = Code("unrepresentable");
/// The text is no regular expression, or a too large one.
pub const BAD_REGEX: Code = Code("bad-regex");
/// The text is no network.
pub const BAD_NETWORK: Code = Code("bad-cidr");
/// A regular expression where text is compared as it stands.
pub const REGEX_AS_TEXT: Code = Code("regex-as-text");
/// A network where text is compared as it stands.
pub const NETWORK_AS_TEXT: Code = Code("network-as-text");
/// The text is no glob.
pub const BAD_GLOB: Code = Code("bad-glob");
/// A key that can't be one.
pub const BAD_KEY: Code = Code("bad-key");
/// A rule or tier that limits nothing and doesn't say so.
pub const NO_LIMIT: Code = Code("no-limit");
/// A limit that lets nothing pass, ever.
pub const NOTHING_PASSES: Code = Code("nothing-passes");
/// A cost of 0, which charges nothing.
pub const COST_ZERO: Code = Code("cost-zero");
/// No tier of this name.
pub const UNKNOWN_TIER: Code = Code("unknown-tier");
/// No rule of this name.
pub const UNKNOWN_RULE: Code = Code("unknown-rule");
/// Rules that replace one another.
pub const REPLACES_CYCLE: Code = Code("replaces-cycle");
/// Rules that can't count together, or one that has nobody to count with.
pub const BAD_SHARED: Code = Code("bad-shared");
/// A condition that everything meets, where that is surely not meant.
pub const MATCHES_ALL: Code = Code("matches-all");
/// A file that can't be read.
pub const UNREADABLE: Code = Code("unreadable");
/// The process has no file descriptor left to read a file with: nothing is wrong with the file.
pub const NO_DESCRIPTORS: Code = Code("no-descriptors");
/// A file that can't be included here.
pub const INCLUDE: Code = Code("bad-include");
/// A fact that the policy doesn't list, though it lists some.
pub const UNKNOWN_FACT: Code = Code("unknown-fact");
/// More errors than are shown.
pub const TOO_MANY_ERRORS: Code = Code("too-many-errors");
