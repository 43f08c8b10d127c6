//! Every field name and every word of the native form. The decoder knows no others. A test compares the tables with
//! the schema, which describes each field.

use tollgate::{Algorithm, OnMissingKey, Timestamp, core::WindowAlignment};
use tollgate_adaptive::AdaptiveAlgorithm;

use crate::policy::{Counting, Mode, OnStoreFailure, UnsettledAction};

/// The names of the fields that a map may have.
pub(crate) type FieldNames = &'static [&'static str];

/// Fields of a policy file.
pub(crate) const POLICY_FIELDS: FieldNames = &[
    "include",
    "limits",
    "tiers",
    "facts",
    "tenants",
    "tier_fact",
    "default_tier",
    "exempt",
    "block",
    "mode",
    "near_limit",
    "on_store_failure",
];

/// Fields of a rule.
pub(crate) const RULE_FIELDS: FieldNames = &[
    "name",
    "match",
    "key",
    "on_missing_key",
    "rate",
    "quota",
    "concurrency",
    "shed",
    "unlimited",
    "algorithm",
    "cost",
    "over",
    "mode",
    "warm_up",
    "on_store_failure",
    "counting",
    "hash_tag",
    "replaces",
    "shared",
];

/// Fields of a `key` with fallback keys.
pub(crate) const KEY_FIELDS: FieldNames = &["first"];

/// Fields of a tier.
pub(crate) const TIER_FIELDS: FieldNames = &[
    "rate",
    "quota",
    "concurrency",
    "unlimited",
    "algorithm",
    "cost",
    "over",
    "on_store_failure",
    "counting",
];

/// Fields of a cost that a fact carries.
pub(crate) const COST_FIELDS: FieldNames = &["fact", "default", "settle_within", "unsettled"];

/// Fields of an adaptive concurrency limit.
pub(crate) const ADAPTIVE_FIELDS: FieldNames = &["adaptive", "min", "max"];

/// Fields of `shed`: the fact that has a request's class, the classes to shed first, and the default class.
pub(crate) const SHED_FIELDS: FieldNames = &["by", "sheddable", "default"];

/// Fields of a `mode` that enforces a rule for a percentage of its keys.
pub(crate) const ROLLOUT_FIELDS: FieldNames = &["enforce"];

/// Fields of a condition that names its kind. A condition has exactly one of them.
pub(crate) const CONDITION_KINDS: FieldNames =
    &["exact", "glob", "prefix", "regex", "cidr", "present", "not"];

/// The kinds of limits: a rule sets `on_store_failure` for each of them.
pub(crate) const LIMIT_KINDS: FieldNames = &["rate", "quota", "concurrency"];

/// All algorithms, by name.
pub(crate) const ALGORITHM_WORDS: &[(&str, Algorithm)] = &[
    ("gcra", Algorithm::Gcra),
    ("token-bucket", Algorithm::TokenBucket),
    ("leaky", Algorithm::LeakyBucket),
    (
        "fixed-window",
        Algorithm::FixedWindow(WindowAlignment::Boundary(Timestamp::ZERO)),
    ),
    ("sliding-window", Algorithm::SlidingCounter),
    ("sliding-log", Algorithm::SlidingLog),
];

/// All modes, by name.
pub(crate) const MODE_WORDS: &[(&str, Mode)] = &[
    (Mode::Enforce.name(), Mode::Enforce),
    (Mode::Shadow.name(), Mode::Shadow),
    (Mode::Off.name(), Mode::Off),
];

/// All failure modes, by name. `inherit` has the same effect as no mode.
pub(crate) const STORE_FAILURE_WORDS: &[(&str, Option<OnStoreFailure>)] = &[
    ("open", Some(OnStoreFailure::Open)),
    ("closed", Some(OnStoreFailure::Closed)),
    ("local", Some(OnStoreFailure::Local)),
    ("circuit-break", Some(OnStoreFailure::CircuitBreak)),
    ("inherit", None),
];

/// All ways to treat a request without the rule's key, by name.
pub(crate) const MISSING_KEY_WORDS: &[(&str, OnMissingKey)] = &[
    ("pass", OnMissingKey::Pass),
    ("deny", OnMissingKey::Deny),
    ("one_counter", OnMissingKey::OneCounter),
];

/// All ways in which several nodes count together, by name.
pub(crate) const COUNTING_WORDS: &[(&str, Counting)] = &[
    (Counting::Exact.name(), Counting::Exact),
    (Counting::Leased.name(), Counting::Leased),
    (Counting::Local.name(), Counting::Local),
];

/// All algorithms of adaptive limits, by name.
pub(crate) fn adaptive_algorithm_words()
-> [(&'static str, AdaptiveAlgorithm); AdaptiveAlgorithm::ALL.len()] {
    AdaptiveAlgorithm::ALL.map(|law| (law.name(), law))
}

/// All ways to treat an estimate that is never settled, by name.
pub(crate) const UNSETTLED_WORDS: &[(&str, UnsettledAction)] = &[
    (UnsettledAction::Charge.name(), UnsettledAction::Charge),
    (UnsettledAction::Refund.name(), UnsettledAction::Refund),
];

/// The error for a limit that can't be leased.
pub(crate) const NOT_LEASABLE_MESSAGE: &str =
    "only rates by gcra, token-bucket or leaky can be leased";
/// The error for `on_store_failure` on a limit that never queries a store.
pub(crate) const NO_STORE_MESSAGE: &str =
    "on_store_failure does nothing where counting is local: no store is asked";

/// The words of a table.
pub(crate) fn words_of<T>(table: &[(&'static str, T)]) -> Vec<&'static str> {
    table.iter().map(|(name, _)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Format;
    use crate::policy::Policy;

    /// A policy text whose last field has a value that no field accepts, on the lines below it.
    fn with(field: &str, before: &str, indent: &str) -> String {
        // A field must not occur twice, so an earlier value of the same field is removed.
        let lines = before.lines();
        let before: String = lines
            .filter(|line| !line.trim_start().starts_with(&format!("{field}:")))
            .map(|line| format!("{line}\n"))
            .collect();
        format!("{before}{indent}{field}:\n{indent}  wrong:\n{indent}    wrong: ~\n")
    }

    #[test]
    fn the_decoder_reads_every_field_of_every_table() {
        for (table, before, indent) in [
            (POLICY_FIELDS, "", ""),
            (RULE_FIELDS, "limits:\n-\n  name: a\n  rate: 1/s", "  "),
            (TIER_FIELDS, "default_tier: a\ntiers:\n  a:", "    "),
            (
                KEY_FIELDS,
                "limits:\n-\n  name: a\n  rate: 1/s\n  key:",
                "    ",
            ),
            (
                ROLLOUT_FIELDS,
                "limits:\n-\n  name: a\n  rate: 1/s\n  mode:",
                "    ",
            ),
            (
                COST_FIELDS,
                "limits:\n-\n  name: a\n  rate: 1/s\n  cost:",
                "    ",
            ),
            (
                ADAPTIVE_FIELDS,
                "limits:\n-\n  name: a\n  concurrency:",
                "    ",
            ),
            (
                SHED_FIELDS,
                "limits:\n-\n  name: a\n  concurrency: 5\n  shed:",
                "    ",
            ),
            (
                CONDITION_KINDS,
                "limits:\n-\n  name: a\n  rate: 1/s\n  match:\n    x:",
                "      ",
            ),
        ] {
            for &field in table {
                let text = with(field, before, indent);
                let rejected = Policy::from_text(&text, Format::Yaml)
                    .expect_err("a value that no field takes");
                let at = text.lines().count() - 2;
                let found = rejected.errors.iter().any(|error| {
                    let line = usize::try_from(error.span.start.line).unwrap();
                    let unread = error.message.contains(&format!("field {field:?}"));
                    line > at && !unread
                });
                assert!(found, "{field}:\n{text}\n{rejected}");
            }
        }
    }

    #[test]
    fn the_schema_has_the_same_fields_and_words() {
        let schema = crate::schema::json_schema();
        let at = |place: &str| schema.pointer(place).expect(place);
        for (table, place) in [
            (POLICY_FIELDS, ""),
            (RULE_FIELDS, "/$defs/rule"),
            (TIER_FIELDS, "/$defs/tier"),
            (KEY_FIELDS, "/$defs/keys"),
            (ROLLOUT_FIELDS, "/$defs/rollout"),
            (COST_FIELDS, "/$defs/cost/anyOf/1"),
            (ADAPTIVE_FIELDS, "/$defs/adaptive"),
            (SHED_FIELDS, "/$defs/shed/anyOf/1"),
            (CONDITION_KINDS, "/$defs/pattern/anyOf/2"),
            (LIMIT_KINDS, "/$defs/failures"),
        ] {
            let fields = at(&format!("{place}/properties"));
            let mut known = table.to_vec();
            known.sort_unstable();
            let said: Vec<_> = fields.as_object().expect(place).keys().collect();
            assert_eq!(said, known, "{place}");
        }
        for (words, place) in [
            (words_of(MODE_WORDS), "/properties/mode"),
            (
                words_of(STORE_FAILURE_WORDS),
                "/properties/on_store_failure/anyOf/0",
            ),
            (
                words_of(STORE_FAILURE_WORDS),
                "/$defs/failures/properties/rate",
            ),
            (
                words_of(ALGORITHM_WORDS),
                "/$defs/rule/properties/algorithm",
            ),
            (
                words_of(ALGORITHM_WORDS),
                "/$defs/tier/properties/algorithm",
            ),
            (
                words_of(MISSING_KEY_WORDS),
                "/$defs/rule/properties/on_missing_key",
            ),
            (words_of(COUNTING_WORDS), "/$defs/rule/properties/counting"),
            (words_of(COUNTING_WORDS), "/$defs/tier/properties/counting"),
            (words_of(MODE_WORDS), "/$defs/rule/properties/mode/anyOf/0"),
            (
                words_of(UNSETTLED_WORDS),
                "/$defs/cost/anyOf/1/properties/unsettled",
            ),
            (
                words_of(&adaptive_algorithm_words()),
                "/$defs/adaptive/properties/adaptive",
            ),
        ] {
            assert_eq!(
                *at(&format!("{place}/enum")),
                serde_json::json!(words),
                "{place}"
            );
        }
        let longest = at("/$defs/name/maxLength");
        assert_eq!(*longest, crate::native::MAX_NAME_LENGTH);
        let most = at("/$defs/keys/properties/first/maxItems");
        assert_eq!(*most, crate::native::rule::MAX_KEYS);
    }
}
