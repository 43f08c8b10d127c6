//! Every field and every word of the native form, once: the decoder knows no others, and the schema is made of these.

use tollgate::{Algorithm, OnMissingKey, Timestamp, core::Align};
use tollgate_adaptive::NamedLaw;

use crate::policy::{Counting, Mode, OnStoreFailure, Unsettled};

/// A field that a map may have.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    /// What it says, for editors.
    pub(crate) about: &'static str,
    pub(crate) shape: Shape,
}

/// What a field may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A name, one line long.
    Name,
    /// The name of a fact, one word.
    Fact,
    /// One name of a fact or a list of them.
    Facts,
    /// One name or a list of them.
    Names,
    /// A list of rules.
    Rules,
    /// Tiers by name.
    Tiers,
    /// Tiers' names by tenant.
    Tenants,
    /// Conditions by fact.
    Match,
    /// A list of conditions.
    Matches,
    /// One condition on a fact.
    Pattern,
    /// One text or a list of them.
    Texts,
    /// Facts, some with `/bits`, or [`KEY`].
    Key,
    /// A list of keys.
    Keys,
    /// One of [`MISSING_KEYS`].
    OnMissingKey,
    /// A rate or a list of them.
    Rates,
    /// A quota.
    Quota,
    /// A whole number from 1.
    Count,
    /// A whole number from 0.
    Number,
    /// True or false.
    Flag,
    /// A number, or a fact that says it.
    Cost,
    /// `200ms`.
    Duration,
    /// `refuse` or `wait 200ms`.
    Over,
    /// One of [`UNSETTLED`].
    Unsettled,
    /// `80%` or `0.8`.
    Part,
    /// One of [`ALGORITHMS`].
    Algorithm,
    /// One of [`MODES`].
    Mode,
    /// One of [`MODES`], or [`ROLLOUT`].
    RuleMode,
    /// One of [`FAILURES`].
    FailureMode,
    /// One of [`FAILURES`], or [`FAILURE_KINDS`].
    OnStoreFailure,
    /// One of [`COUNTINGS`].
    Counting,
    /// A whole number from 1, or [`ADAPTIVE`].
    Concurrency,
    /// One of [`laws`].
    Law,
    /// A fact, or [`SHED`].
    Shed,
}

const fn field(name: &'static str, shape: Shape, about: &'static str) -> Field {
    Field { name, about, shape }
}

/// A file.
pub(crate) const POLICY: &[Field] = &[
    field(
        "include",
        Shape::Names,
        "Other files, by their path from this one; what they say comes first.",
    ),
    field(
        "limits",
        Shape::Rules,
        "Which requests are limited, by what and to how much. All that match apply.",
    ),
    field(
        "tiers",
        Shape::Tiers,
        "What each tier allows each of its tenants.",
    ),
    field(
        "facts",
        Shape::Facts,
        "Facts of yours that requests have, beside those that all may have: any other is an error then.",
    ),
    field("tenants", Shape::Tenants, "Which tier a tenant is in."),
    field(
        "tier_fact",
        Shape::Fact,
        "The fact that carries the tier of a tenant that isn't listed.",
    ),
    field(
        "default_tier",
        Shape::Name,
        "The tier of tenants about whom nothing else is known.",
    ),
    field(
        "exempt",
        Shape::Matches,
        "Requests that are never limited: health, metrics, your own network.",
    ),
    field("block", Shape::Matches, "Requests that never pass."),
    field(
        "mode",
        Shape::Mode,
        "In force for all rules that say nothing weaker: shadow counts and lets everything pass.",
    ),
    field(
        "near_limit",
        Shape::Part,
        "From this part of a limit on it counts as near: 80% unless said otherwise.",
    ),
    field(
        "on_store_failure",
        Shape::OnStoreFailure,
        "What rules and tiers do that say nothing of it while the store can't be asked.",
    ),
];

// What rules and tiers both may say.
const ALGORITHM: &str = "How its rates are counted: gcra unless said otherwise.";
const COST_OF_A_REQUEST: &str = "What a request costs: 1 unless said otherwise.";
const OVER: &str = "What becomes of a request that is over the limit: refuse, or wait and for how long at most, \
                    as in wait 200ms. Refuse unless said otherwise.";
const ON_STORE_FAILURE: &str = "What happens while the store can't be asked, for all its limits or by \
                                their kind: a quota is closed and others are local, unless said otherwise here or \
                                for the whole file.";
const COUNTING: &str = "How a fleet counts it: exact asks the store about each request, leased spends tokens \
                        that were taken ahead, local counts in each process by itself. Exact unless said \
                        otherwise.";

/// A rule.
pub(crate) const RULE: &[Field] = &[
    field(
        "name",
        Shape::Name,
        "What people call it; no two rules have the same.",
    ),
    field(
        "match",
        Shape::Match,
        "Which requests it is for: all conditions must hold. Without any, all requests.",
    ),
    field(
        "key",
        Shape::Key,
        "Which facts tell one counter from another; ip/64 is the network an address is in. \
         Without any, one counter for all. {first: [user, ip]} is the first key whose facts a request has.",
    ),
    field(
        "on_missing_key",
        Shape::OnMissingKey,
        "What happens to a request that lacks its key: it passes (pass), is denied (deny), or counts with all others \
         that lack it (one_counter). Pass unless said otherwise; written out, nobody is warned of it.",
    ),
    field(
        "rate",
        Shape::Rates,
        "So many per so long, with a burst: 10/s burst 20. In a list, all are in force.",
    ),
    field(
        "quota",
        Shape::Quota,
        "A total over a long period: 10000/month. In memory a restart forgets what was used, unless the \
         program gives it a file.",
    ),
    field(
        "concurrency",
        Shape::Concurrency,
        "How many at once; or between which bounds a law finds that out, in each process by itself: \
         {adaptive: little, min: 10, max: 200}.",
    ),
    field(
        "shed",
        Shape::Shed,
        "The fact that says how critical a request is (critical, default or sheddable): when too many run at once, \
         sheddable ones are refused first and critical ones last.",
    ),
    field(
        "unlimited",
        Shape::Flag,
        "No limit at all: it only replaces others, and is counted.",
    ),
    field("algorithm", Shape::Algorithm, ALGORITHM),
    field("cost", Shape::Cost, COST_OF_A_REQUEST),
    field("over", Shape::Over, OVER),
    field(
        "mode",
        Shape::RuleMode,
        "Whether it refuses (enforce), counts and tells what it would refuse (shadow), or is off; {enforce: 10%} \
         enforces it for a part of its keys and has it in shadow for the others. Enforce unless said otherwise.",
    ),
    field(
        "warm_up",
        Shape::Duration,
        "For how long after a start its rates grow from a tenth to what they are.",
    ),
    field("on_store_failure", Shape::OnStoreFailure, ON_STORE_FAILURE),
    field("counting", Shape::Counting, COUNTING),
    field(
        "slot",
        Shape::Fact,
        "The fact by which a cluster keeps limits on one node: the first of the key unless said \
         otherwise.",
    ),
    field(
        "replaces",
        Shape::Names,
        "Rules that don't apply to a request that this one applies to.",
    ),
    field(
        "shared",
        Shape::Name,
        "Rules with the same name here count together.",
    ),
];

/// A key with others to fall back to.
pub(crate) const KEY: &[Field] = &[field(
    "first",
    Shape::Keys,
    "Keys, of which the first counts whose facts a request has; each has counters of its own.",
)];

/// A tier.
pub(crate) const TIER: &[Field] = &[
    field(
        "rate",
        Shape::Rates,
        "So many per so long, for each tenant.",
    ),
    field(
        "quota",
        Shape::Quota,
        "A total over a long period, for each tenant. In memory a restart forgets what was used, unless \
         the program gives it a file.",
    ),
    field(
        "concurrency",
        Shape::Count,
        "How many at once, for each tenant.",
    ),
    field("unlimited", Shape::Flag, "No limit at all."),
    field("algorithm", Shape::Algorithm, ALGORITHM),
    field("cost", Shape::Cost, COST_OF_A_REQUEST),
    field("over", Shape::Over, OVER),
    field("on_store_failure", Shape::OnStoreFailure, ON_STORE_FAILURE),
    field("counting", Shape::Counting, COUNTING),
];

/// A cost that a fact says.
pub(crate) const COST: &[Field] = &[
    field(
        "fact",
        Shape::Fact,
        "The fact that says it, as a whole number.",
    ),
    field(
        "default",
        Shape::Number,
        "What it is if the fact is unknown or no number: 1 unless said otherwise.",
    ),
    field(
        "settle_within",
        Shape::Duration,
        "The cost is an estimate, held for so long at most until the request says what it did cost.",
    ),
    field(
        "unsettled",
        Shape::Unsettled,
        "What a request is charged that never says what it did cost: the estimate (charge) unless said \
         otherwise, or nothing (refund).",
    ),
];

/// A number at once that a law finds.
pub(crate) const ADAPTIVE: &[Field] = &[
    field(
        "adaptive",
        Shape::Law,
        "The law that finds how many at once, from how long requests take and how they end.",
    ),
    field(
        "min",
        Shape::Count,
        "It never falls below this: 1 unless said otherwise.",
    ),
    field("max", Shape::Count, "It never rises above this."),
];

/// Who is shed first.
pub(crate) const SHED: &[Field] = &[
    field(
        "by",
        Shape::Fact,
        "The fact that says how critical a request is: critical, default or sheddable. Any other value, or none, counts \
         as default.",
    ),
    field(
        "sheddable",
        Shape::Part,
        "The part of the limit up to which sheddable requests pass: 70% unless said otherwise.",
    ),
    field(
        "default",
        Shape::Part,
        "The part of the limit up to which default requests pass: 90% unless said otherwise.",
    ),
];

/// A mode for a part of the keys.
pub(crate) const ROLLOUT: &[Field] = &[field(
    "enforce",
    Shape::Part,
    "The part of the keys for which the rule is enforced, in whole percents.",
)];

/// A condition that says its kind. It has just one of these.
pub(crate) const PATTERN: &[Field] = &[
    field("exact", Shape::Texts, "Just this text, or one of these."),
    field(
        "glob",
        Shape::Texts,
        "* is anything but /, ** anything, ? one character but /.",
    ),
    field("prefix", Shape::Texts, "Begins with this."),
    field(
        "regex",
        Shape::Texts,
        "A regular expression for the whole text.",
    ),
    field("cidr", Shape::Texts, "An address in this network."),
    field(
        "present",
        Shape::Flag,
        "The fact is known, or with false, is not.",
    ),
    field("not", Shape::Pattern, "What must not hold."),
];

/// What is done without the store, by the kind of the limit.
pub(crate) const FAILURE_KINDS: &[Field] = &[
    field(
        "rate",
        Shape::FailureMode,
        "What rates do: local unless said otherwise.",
    ),
    field(
        "quota",
        Shape::FailureMode,
        "What a quota does: closed unless said otherwise.",
    ),
    field(
        "concurrency",
        Shape::FailureMode,
        "What slots do: local unless said otherwise.",
    ),
];

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
    ("open", Some(OnStoreFailure::Open)),
    ("closed", Some(OnStoreFailure::Closed)),
    ("local", Some(OnStoreFailure::Local)),
    ("circuit-break", Some(OnStoreFailure::CircuitBreak)),
    ("inherit", None),
];

/// What can happen to a request without its key, by name.
pub(crate) const MISSING_KEYS: &[(&str, OnMissingKey)] = &[
    ("pass", OnMissingKey::Pass),
    ("deny", OnMissingKey::Deny),
    ("one_counter", OnMissingKey::OneCounter),
];

/// How several nodes can count together, by name.
pub(crate) const COUNTINGS: &[(&str, Counting)] = &[
    (Counting::Exact.name(), Counting::Exact),
    (Counting::Leased.name(), Counting::Leased),
    (Counting::Local.name(), Counting::Local),
];

/// All laws that find a limit, by name.
pub(crate) fn laws() -> [(&'static str, NamedLaw); NamedLaw::ALL.len()] {
    NamedLaw::ALL.map(|law| (law.name(), law))
}

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

/// The words of a table.
pub(crate) fn names<T>(table: &[(&'static str, T)]) -> Vec<&'static str> {
    table.iter().map(|(name, _)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Format;
    use crate::policy::Policy;

    /// A text that ends with a field and, below it, a value that no field takes.
    fn with(field: &str, before: &str, indent: &str) -> String {
        // What the field may have had before goes.
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
            (POLICY, "", ""),
            (RULE, "limits:\n-\n  name: a\n  rate: 1/s", "  "),
            (TIER, "default_tier: a\ntiers:\n  a:", "    "),
            (KEY, "limits:\n-\n  name: a\n  rate: 1/s\n  key:", "    "),
            (
                ROLLOUT,
                "limits:\n-\n  name: a\n  rate: 1/s\n  mode:",
                "    ",
            ),
            (COST, "limits:\n-\n  name: a\n  rate: 1/s\n  cost:", "    "),
            (ADAPTIVE, "limits:\n-\n  name: a\n  concurrency:", "    "),
            (
                SHED,
                "limits:\n-\n  name: a\n  concurrency: 5\n  shed:",
                "    ",
            ),
            (
                PATTERN,
                "limits:\n-\n  name: a\n  rate: 1/s\n  match:\n    x:",
                "      ",
            ),
        ] {
            for field in table {
                let text = with(field.name, before, indent);
                let rejected = Policy::from_text(&text, Format::Yaml)
                    .expect_err("a value that no field takes");
                let at = text.lines().count() - 2;
                let found = rejected.errors.iter().any(|error| {
                    let line = usize::try_from(error.span.start.line).unwrap();
                    let unread = error.message.contains(&format!("field {:?}", field.name));
                    line > at && !unread
                });
                assert!(found, "{}:\n{text}\n{rejected}", field.name);
            }
        }
    }
}
