//! What each part of a policy is to a request, in words that text and JSON share.

use std::time::Duration;

use serde::{Serialize, Serializer};
use tollgate_engine::Policy;
use tollgate_engine::envoy::{self, Hidden, Lookup};
use tollgate_engine::explain::{Entry, Standing};
use tollgate_engine::policy::{Counting, Limits, Mode, Over};

use super::super::request::{
    DescriptorRequestArgs, cause_name, descriptor_text, in_millis_or_null,
};

/// A rule, a tier, or an entry of `block` or `exempt`.
#[derive(Serialize)]
pub(super) struct Part<'a> {
    pub(super) rule: String,
    pub(super) applies: bool,
    pub(super) why: String,
    /// The key of its counter, if it applies and has one.
    pub(super) key: Option<String>,
    pub(super) mode: &'static str,
    /// For how many keys in a hundred it is enforced.
    pub(super) enforced_percent: u8,
    #[serde(rename = "warm_up_ms", serialize_with = "in_millis_or_null")]
    pub(super) warm_up: Option<Duration>,
    #[serde(serialize_with = "by_name")]
    pub(super) counting: Option<Counting>,
    pub(super) on_store_failure: Option<String>,
    #[serde(rename = "may_wait_ms", serialize_with = "in_millis_or_null")]
    pub(super) may_wait: Option<Duration>,
    pub(super) limits: Vec<String>,
    /// By which fact it says who is refused first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) shed: Option<String>,
    #[serde(skip)]
    pub(super) standing: Standing<'a>,
}

/// What one descriptor meets.
#[derive(Default, Serialize)]
pub(super) struct Found {
    pub(super) descriptor: String,
    /// The limit.
    pub(super) limit: Option<String>,
    /// What is said of it, or why there is none.
    pub(super) why: Option<String>,
    pub(super) limits: Vec<String>,
    pub(super) on_store_failure: Option<String>,
    /// The descriptor of the file that is taken in place of one with a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hidden_by: Option<String>,
    #[serde(skip)]
    pub(super) notes: Vec<String>,
}

fn by_name<S: Serializer>(counting: &Option<Counting>, to: S) -> Result<S::Ok, S::Error> {
    counting.map(Counting::name).serialize(to)
}

/// Each limit as a policy says it.
pub(super) fn each(limits: &Limits) -> Vec<String> {
    let rates = limits.rates.iter().map(ToString::to_string);
    let quota = limits.quota.iter().map(ToString::to_string);
    let slots = limits.concurrency.map(|slots| format!("{slots} at once"));
    let unlimited = limits.unlimited.then(|| "unlimited".to_owned());
    rates.chain(quota).chain(slots).chain(unlimited).collect()
}

impl<'a> Part<'a> {
    pub(super) fn of(entry: Entry<'a>) -> Self {
        let key = match &entry.standing {
            Standing::Applies { key, .. } if !key.is_empty() => Some(key.clone()),
            _ => None,
        };
        Self {
            rule: cause_name(entry.cause).unwrap_or_default(),
            applies: entry.standing.applies(),
            why: entry.standing.to_string(),
            key,
            mode: entry.mode.name(),
            enforced_percent: entry.enforced_percent,
            warm_up: entry.warm_up,
            counting: entry.counting,
            on_store_failure: entry
                .on_store_failure
                .map(|modes| modes.shown(entry.limits.unwrap_or(&Limits::default()))),
            may_wait: match entry.over {
                Over::Wait(longest) => Some(longest),
                Over::Refuse => None,
            },
            limits: {
                let adaptive = entry.adaptive.map(|own| own.to_string());
                let limits = entry.limits.map(each).unwrap_or_default();
                limits.into_iter().chain(adaptive).collect()
            },
            shed: entry.shed.map(|shed| shed.by.clone()),
            standing: entry.standing,
        }
    }

    pub(super) fn is_in_shadow(&self) -> bool {
        self.mode == Mode::Shadow.name()
    }
}

impl Found {
    /// What each descriptor of a request meets.
    pub(super) fn all(policy: &Policy, request: &DescriptorRequestArgs<'_>) -> Vec<Self> {
        let compiled = envoy::Compiled::new(&policy.domains);
        let descriptors = request.descriptors();
        let lookup = |descriptor| compiled.lookup(request.domain, descriptor);
        let mut found: Vec<_> = descriptors.iter().map(lookup).collect();
        envoy::drop_replaced(&mut found);
        let each = request.entries.iter().zip(&descriptors).zip(found);
        let each = each.map(|((entries, descriptor), lookup)| {
            let mut own = Self {
                descriptor: descriptor_text(entries),
                ..Self::default()
            };
            match lookup {
                Lookup::Limited(leaf) | Lookup::Replaced(leaf) => {
                    own.limit = Some(leaf.to_string());
                    own.limits = self::each(&leaf.limit.limits);
                    own.on_store_failure = (leaf.limit.counting != Counting::Local)
                        .then(|| leaf.limit.on_store_failure.shown(&leaf.limit.limits));
                    let shadow = leaf.limit.shadow.then(|| "in shadow".to_owned());
                    own.notes.extend(shadow);
                    let counted = super::super::check::counted(leaf.limit.counting);
                    own.notes.extend(counted.map(str::to_owned));
                    if matches!(lookup, Lookup::Replaced(_)) {
                        own.why = Some("replaced by another".to_owned());
                    }
                }
                Lookup::Asked { requests, unit, .. } => {
                    own.limit = Some("a limit that was asked for".to_owned());
                    own.limits = vec![format!("{requests}/{}", unit.name())];
                }
                Lookup::Nothing => own.without_limit(policy, request.domain, descriptor),
            }
            own
        });
        each.collect()
    }

    fn without_limit(
        &mut self,
        policy: &Policy,
        name: &str,
        descriptor: &tollgate_engine::facts::Descriptor<'_>,
    ) {
        let Some(domain) = policy.domains.get(name) else {
            let domains: Vec<_> = policy.domains.keys().map(String::as_str).collect();
            let domains = domains.join(", ");
            self.why = Some(format!("the file has no domain {name:?}, but {domains}"));
            return;
        };
        let hidden = Hidden::of(domain, descriptor);
        self.why = Some(match &hidden {
            Some(Hidden { by, hidden, .. }) => format!(
                "{by:?} is taken before {hidden:?}, as it is more specific, and has none at this depth"
            ),
            None => "none has these keys at this depth".to_owned(),
        });
        self.hidden_by = hidden.map(|hidden| hidden.by);
    }
}
