//! What another policy would change: rules, tiers, lists, descriptors and settings, field by field, and what becomes of
//! all that was counted.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::policy::Policy;
use crate::render::escaped;

mod parts;
mod state;

use parts::FieldTexts;
pub use state::CounterState;

/// What differs between two policies, in one order: where a rule stands in its file says nothing here.
///
/// Its text is for people, a line for each change and each field of it.
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
    /// Each thing that isn't the same.
    pub changes: Vec<PolicyChange>,
}

/// One thing that isn't the same in both policies.
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
    /// What it is.
    pub kind: PartKind,
    /// Its name; empty for the policy as a whole.
    pub name: String,
    /// Whether it is new, gone or another.
    pub what: ChangeKind,
    /// What is said of it: of what is new or gone all of it, else what isn't the same.
    pub fields: Vec<FieldChange>,
    /// What becomes of what its keys have spent, in memory; none if it counts nothing.
    pub state: Option<CounterState>,
    /// The same in a store, where that is something else: there a rate of another period, or another way of
    /// counting, is counted by itself.
    pub in_store: Option<CounterState>,
}

/// What something in a policy is.
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
    /// What is said of the whole policy.
    Policy,
    /// Requests that never pass.
    Block,
    /// Requests that are never limited.
    Exempt,
    /// A limit by facts.
    Rule,
    /// What a tier allows its tenants.
    Tier,
    /// The tier that a tenant is in.
    Tenant,
    /// One of Envoy's domains.
    Domain,
    /// A descriptor of a domain.
    Descriptor,
}

/// Whether something is new, gone or another.
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
    /// The old policy hasn't it.
    Added,
    /// The new policy hasn't it.
    Removed,
    /// Both have it, and say different things of it.
    Changed,
}

/// A field whose value isn't the same, in the words of our files.
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
    /// Its name.
    pub name: &'static str,
    /// Its value in the old policy; none if nothing is said there.
    pub old: Option<String>,
    /// Its value in the new one.
    pub new: Option<String>,
}

impl PolicyDiff {
    /// What the new policy would change of the old one.
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

    /// Whether both policies do the same.
    ///
    /// ```
    /// assert!(tollgate_engine::diff::PolicyDiff::default().is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// How much changes, in one line.
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

    /// One JSON object in one line.
    ///
    /// ```
    /// assert_eq!(tollgate_engine::diff::PolicyDiff::default().to_json(), r#"{"changes":[]}"#);
    /// ```
    pub fn to_json(&self) -> String {
        // Text always has a form in JSON.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The fields that aren't the same, in the order in which they are told.
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

/// A line, and one for each field.
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
            // Their name is what they say.
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

/// What holds where a field isn't said.
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
