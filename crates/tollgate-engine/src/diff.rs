//! Compares two policies: rules, tiers, lists, descriptors and settings, field by field, and what happens to the
//! counters.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::policy::Policy;
use crate::render::escaped;

mod parts;
mod state;

use parts::FieldTexts;
pub use state::CounterState;

/// The differences between two policies, sorted. The positions of rules in their files don't matter.
///
/// Its text is for people: a line for each change, and one for each field.
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::diff::PolicyDiff;
/// use tollgate_engine::document::Format;
///
/// let read = |text: &str| Policy::from_text(text, Format::Yaml).map(|checked| checked.policy);
/// let old = read("limits: [{name: api, key: user, rate: 10/s}]")?;
/// let new = read("limits: [{name: api, key: user, rate: 20/s}, {name: all, rate: 500/s}]")?;
/// let diff = PolicyDiff::new(&old, &new);
/// assert_eq!(
///     diff.to_string(),
///     "+ rule \"all\": starts anew\n\
///      \x20   rate: 500/s\n\
///      ~ rule \"api\": keeps what its keys have spent\n\
///      \x20   rate: 10/s -> 20/s\n"
/// );
/// assert!(PolicyDiff::new(&old, &old).is_empty());
/// # Ok::<(), tollgate_engine::LoadError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PolicyDiff {
    /// Each part that differs.
    pub changes: Vec<PolicyChange>,
}

/// A part that differs between the policies.
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::diff::{PolicyDiff, PartKind, ChangeKind};
/// use tollgate_engine::document::Format;
///
/// let read = |text: &str| Policy::from_text(text, Format::Yaml).map(|checked| checked.policy);
/// let diff = PolicyDiff::new(&read("block: [{user: eve}]")?, &Policy::default());
/// let change = &diff.changes[0];
/// assert_eq!((change.kind, change.what, change.name.as_str()), (PartKind::Block, ChangeKind::Removed, "user: \"eve\""));
/// # Ok::<(), tollgate_engine::LoadError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PolicyChange {
    /// The kind of part.
    pub kind: PartKind,
    /// The name. Empty for the policy as a whole.
    pub name: String,
    /// Whether the part was added, removed or changed.
    pub what: ChangeKind,
    /// All fields of an added or removed part, or the fields that differ in a changed one.
    pub fields: Vec<FieldChange>,
    /// What happens to its counters in memory. `None` if it counts nothing.
    pub state: Option<CounterState>,
    /// What happens to its counters in a store, if that differs: there a rate with another period, or another way of
    /// counting, has its own counter.
    pub in_store: Option<CounterState>,
}

/// The kind of a part of a policy.
///
/// ```
/// use tollgate_engine::diff::PartKind;
///
/// assert!(PartKind::Block < PartKind::Rule, "in the order in which it is shown");
/// ```
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, derive_more::Display,
)]
#[serde(rename_all = "kebab-case")]
#[display(rename_all = "kebab-case")]
pub enum PartKind {
    /// The settings of the whole policy.
    Policy,
    /// Requests that are always denied.
    Block,
    /// Requests that are never limited.
    Exempt,
    /// A limit by facts.
    Rule,
    /// The limits of a tier.
    Tier,
    /// The tier that a tenant is in.
    Tenant,
    /// One of Envoy's domains.
    Domain,
    /// A descriptor of a domain.
    Descriptor,
}

/// Whether a part was added, removed or changed.
///
/// ```
/// use tollgate_engine::diff::{PolicyChange, ChangeKind};
///
/// fn takes_away(change: &PolicyChange) -> bool {
///     change.what == ChangeKind::Removed
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeKind {
    /// Only the new policy has it.
    Added,
    /// Only the old policy has it.
    Removed,
    /// Both policies have it, with different fields.
    Changed,
}

/// A field whose value differs, in the syntax of native files.
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::diff::{PolicyDiff, FieldChange};
///
/// let strict = Policy { near_limit_percent: 90, ..Policy::default() };
/// let diff = PolicyDiff::new(&Policy::default(), &strict);
/// let field = FieldChange { name: "near_limit", old: Some("80%".to_owned()), new: Some("90%".to_owned()) };
/// assert_eq!(diff.changes[0].fields, [field]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldChange {
    /// The name.
    pub name: &'static str,
    /// The value in the old policy. `None` if it isn't set there.
    pub old: Option<String>,
    /// The value in the new policy. `None` if it isn't set there.
    pub new: Option<String>,
}

impl PolicyDiff {
    /// The changes from the old policy to the new one.
    ///
    /// ```
    /// use tollgate_engine::Policy;
    /// use tollgate_engine::diff::PolicyDiff;
    ///
    /// let strict = Policy { near_limit_percent: 90, ..Policy::default() };
    /// let diff = PolicyDiff::new(&Policy::default(), &strict);
    /// assert_eq!(diff.to_string(), "~ policy\n    near_limit: 80% -> 90%\n");
    /// ```
    pub fn new(old: &Policy, new: &Policy) -> Self {
        let (before, after) = (parts::policy_parts(old, new), parts::policy_parts(new, old));
        let states = state::StateChanges::between(old, new);
        let mut pairs: BTreeMap<_, (Option<&FieldTexts>, Option<&FieldTexts>)> = BTreeMap::new();
        for (key, part) in &before {
            pairs.entry(key).or_default().0 = Some(part);
        }
        for (key, part) in &after {
            pairs.entry(key).or_default().1 = Some(part);
        }
        let changes = pairs.into_iter().filter_map(|(key, (old, new))| {
            let (what, fields) = match (old, new) {
                (None, Some(new)) => (ChangeKind::Added, changed_fields(&Vec::new(), new)),
                (Some(old), None) => (ChangeKind::Removed, changed_fields(old, &Vec::new())),
                (Some(old), Some(new)) if old != new => {
                    (ChangeKind::Changed, changed_fields(old, new))
                }
                _ => return None,
            };
            let (kind, name) = key;
            let (state, in_store) = states.of(*kind, name, &fields);
            Some(PolicyChange {
                kind: *kind,
                name: name.clone(),
                what,
                fields,
                in_store: in_store.filter(|_| in_store != state),
                state,
            })
        });
        Self {
            changes: changes.collect(),
        }
    }

    /// Whether both policies are equivalent.
    ///
    /// ```
    /// assert!(tollgate_engine::diff::PolicyDiff::default().is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The number of changes, in one line.
    ///
    /// ```
    /// use tollgate_engine::diff::PolicyDiff;
    ///
    /// assert_eq!(PolicyDiff::default().summary(), "nothing changes");
    /// ```
    pub fn summary(&self) -> String {
        let each = [
            (ChangeKind::Added, "added"),
            (ChangeKind::Removed, "removed"),
            (ChangeKind::Changed, "changed"),
        ];
        let each = each.into_iter().filter_map(|(what, word)| {
            let count = self.changes.iter().filter(|one| one.what == what).count();
            (count > 0).then(|| format!("{count} {word}"))
        });
        let each: Vec<_> = each.collect();
        match each.as_slice() {
            [] => "nothing changes".to_owned(),
            each => each.join(", "),
        }
    }

    /// One JSON object, in one line.
    ///
    /// ```
    /// assert_eq!(tollgate_engine::diff::PolicyDiff::default().to_json(), r#"{"changes":[]}"#);
    /// ```
    pub fn to_json(&self) -> String {
        // Serializing text never fails.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The fields that differ, in display order.
fn changed_fields(old: &FieldTexts, new: &FieldTexts) -> Vec<FieldChange> {
    let value = |part: &FieldTexts, name: &str| {
        let found = part.iter().find(|(own, _)| *own == name);
        found.map(|(_, value)| value.clone())
    };
    let mut fields = Vec::new();
    let names = new.iter().chain(old).map(|(name, _)| *name);
    for name in names {
        let (old, new) = (value(old, name), value(new, name));
        if old != new && fields.iter().all(|one: &FieldChange| one.name != name) {
            fields.push(FieldChange { name, old, new });
        }
    }
    fields
}

impl fmt::Display for PolicyDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.changes.iter().try_for_each(|change| change.fmt(f))
    }
}

/// Writes a line for the change, and one for each field.
impl fmt::Display for PolicyChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match self.what {
            ChangeKind::Added => '+',
            ChangeKind::Removed => '-',
            ChangeKind::Changed => '~',
        };
        write!(f, "{sign} {}", self.kind)?;
        match self.kind {
            PartKind::Policy => {}
            // Their name is their content.
            PartKind::Block | PartKind::Exempt => write!(f, " {{{}}}", escaped(&self.name))?,
            _ => write!(f, " {:?}", self.name)?,
        }
        if let Some(state) = self.state {
            write!(f, ": {state}")?;
        }
        match self.in_store {
            Some(state) => writeln!(f, "; in a store it {state}")?,
            None => writeln!(f)?,
        }
        for FieldChange { name, old, new } in &self.fields {
            let shown = |value: &Option<String>| match value {
                Some(value) => escaped(value).into_owned(),
                None => default_text(self.kind, name).to_owned(),
            };
            match self.what {
                ChangeKind::Added => writeln!(f, "    {name}: {}", shown(new))?,
                ChangeKind::Removed => writeln!(f, "    {name}: {}", shown(old))?,
                ChangeKind::Changed => writeln!(f, "    {name}: {} -> {}", shown(old), shown(new))?,
            }
        }
        Ok(())
    }
}

/// The text for a field that isn't set.
fn default_text(kind: PartKind, field: &str) -> &'static str {
    match field {
        "match" => "every request (the default)",
        "key" => "one counter for all (the default)",
        "algorithm" => "gcra (the default)",
        "mode" => "enforce (the default)",
        "cost" => "1 (the default)",
        "over" => "deny (the default)",
        "counting" => "exact (the default)",
        "on_store_failure" => "quota closed, rate and concurrency local (the default)",
        "hash_tag" => "the first fact of the key (the default)",
        "unlimited" | "shadow_mode" | "quota_mode" | "share_threshold" | "detailed_metric"
        | "value_to_metric" => "false (the default)",
        "facts" => "any (the default)",
        "default_tier" => "no tier: who is in none is unlimited (the default)",
        "tier" if kind == PartKind::Tenant => "the default_tier",
        _ => "nothing",
    }
}
