//! Describes each part of a policy for one request, for text and JSON output alike.

use std::time::Duration;

use serde::{Serialize, Serializer};
use tollgate_engine::Policy;
use tollgate_engine::envoy::{self, HiddenLimit, LookupResult};
use tollgate_engine::explain::{Entry, RuleStatus};
use tollgate_engine::policy::{Counting, Limits, Mode, OverLimitAction};

use super::super::request::{
    DescriptorRequestArgs, cause_name, descriptor_text, in_millis_or_null,
};

/// A rule, a tier, or an entry of `block` or `exempt`.
#[derive(Serialize)]
pub(super) struct RuleEntry<'a> {
    pub(super) rule: String,
    pub(super) applies: bool,
    pub(super) why: String,
    /// The key of the counter, if the rule applies and has a key.
    pub(super) key: Option<String>,
    pub(super) mode: &'static str,
    /// The percentage of keys for which the rule is enforced.
    pub(super) enforced_percent: u8,
    #[serde(rename = "warm_up_ms", serialize_with = "in_millis_or_null")]
    pub(super) warm_up: Option<Duration>,
    #[serde(serialize_with = "serialize_counting")]
    pub(super) counting: Option<Counting>,
    pub(super) on_store_failure: Option<String>,
    #[serde(rename = "may_wait_ms", serialize_with = "in_millis_or_null")]
    pub(super) may_wait: Option<Duration>,
    pub(super) limits: Vec<String>,
    /// The fact that decides which requests are shed first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) shed: Option<String>,
    #[serde(skip)]
    pub(super) standing: RuleStatus<'a>,
}

/// The limit of one descriptor.
#[derive(Default, Serialize)]
pub(super) struct DescriptorEntry {
    pub(super) descriptor: String,
    /// The limit.
    pub(super) limit: Option<String>,
    /// A remark on the limit, or the reason why there is none.
    pub(super) why: Option<String>,
    pub(super) limits: Vec<String>,
    pub(super) on_store_failure: Option<String>,
    /// The descriptor of the file that hides another one with a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hidden_by: Option<String>,
    #[serde(skip)]
    pub(super) notes: Vec<String>,
}

fn serialize_counting<S: Serializer>(
    counting: &Option<Counting>,
    to: S,
) -> Result<S::Ok, S::Error> {
    counting.map(Counting::name).serialize(to)
}

/// The limits in the notation of a policy.
pub(super) fn limit_texts(limits: &Limits) -> Vec<String> {
    let rates = limits.rates.iter().map(ToString::to_string);
    let quota = limits.quota.iter().map(ToString::to_string);
    let slots = limits
        .concurrency
        .map(|slots| format!("{slots} concurrent"));
    let unlimited = limits.unlimited.then(|| "unlimited".to_owned());
    rates.chain(quota).chain(slots).chain(unlimited).collect()
}

impl<'a> RuleEntry<'a> {
    pub(super) fn of(entry: Entry<'a>) -> Self {
        let key = match &entry.standing {
            RuleStatus::Applies { key, .. } if !key.is_empty() => Some(key.clone()),
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
                .map(|modes| modes.to_text(entry.limits.unwrap_or(&Limits::default()))),
            may_wait: match entry.over {
                OverLimitAction::Wait(longest) => Some(longest),
                OverLimitAction::Deny => None,
            },
            limits: {
                let adaptive = entry.adaptive.map(|own| own.to_string());
                let limits = entry.limits.map(limit_texts).unwrap_or_default();
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

impl DescriptorEntry {
    /// Looks up the limit of each descriptor.
    pub(super) fn match_descriptors(
        policy: &Policy,
        request: &DescriptorRequestArgs<'_>,
    ) -> Vec<Self> {
        let compiled = envoy::DescriptorIndex::new(&policy.domains);
        let descriptors = request.descriptors();
        let lookup = |descriptor| compiled.lookup(request.domain, descriptor);
        let mut found: Vec<_> = descriptors.iter().map(lookup).collect();
        envoy::remove_replaced_limits(&mut found);
        let each = request.entries.iter().zip(&descriptors).zip(found);
        let each = each.map(|((entries, descriptor), lookup)| {
            let mut own = Self {
                descriptor: descriptor_text(entries),
                ..Self::default()
            };
            match lookup {
                LookupResult::Limited(leaf) | LookupResult::Replaced(leaf) => {
                    own.limit = Some(leaf.to_string());
                    own.limits = limit_texts(&leaf.limit.limits);
                    own.on_store_failure = (leaf.limit.counting != Counting::Local)
                        .then(|| leaf.limit.on_store_failure.to_text(&leaf.limit.limits));
                    let shadow = leaf.limit.shadow.then(|| "in shadow".to_owned());
                    own.notes.extend(shadow);
                    let counted = super::super::check::counting_text(leaf.limit.counting);
                    own.notes.extend(counted.map(str::to_owned));
                    if matches!(lookup, LookupResult::Replaced(_)) {
                        own.why = Some("replaced by another".to_owned());
                    }
                }
                LookupResult::Requested { requests, unit, .. } => {
                    own.limit = Some("a limit that was asked for".to_owned());
                    own.limits = vec![format!("{requests}/{}", unit.name())];
                }
                LookupResult::NoMatch => own.explain_no_limit(policy, request.domain, descriptor),
            }
            own
        });
        each.collect()
    }

    fn explain_no_limit(
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
        let hidden = HiddenLimit::of(domain, descriptor);
        self.why = Some(match &hidden {
            Some(HiddenLimit { by, hidden, .. }) => format!(
                "{by:?} is taken before {hidden:?}, as it is more specific, and has none at this depth"
            ),
            None => "none has these keys at this depth".to_owned(),
        });
        self.hidden_by = hidden.map(|hidden| hidden.by);
    }
}
