//! The bodies and queries of operators' requests: the target, the action and the duration.

use std::borrow::Cow;
use std::time::Duration;

use serde::Deserialize;
use tollgate::Rate;
use tollgate_engine::engine::ResetScope;
use tollgate_engine::overrides::{
    MAX_OVERRIDE_DURATION, OverrideAction, OverrideFacts, ReplacementLimits, Target,
};

use crate::http::body::FactPairs;
use crate::http::session::{HttpError, bad_request};
use crate::http::usage::percent_decode;

/// The default duration of an override.
const DEFAULT_DURATION: Duration = Duration::from_secs(600);
/// The longest text of a reason.
const MAX_REASON_BYTES: usize = 120;

/// The target of a request, and the parts of an override.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AdminRequest<'b> {
    /// The name of a rule, a tier, or a limit of a tree.
    #[serde(borrow)]
    rule: Option<Cow<'b, str>>,
    /// The facts that make the key, as in requests.
    #[serde(borrow, default)]
    facts: FactPairs<'b>,
    /// Instead of facts: a key as lists and logs show it.
    #[serde(borrow)]
    key: Option<Cow<'b, str>>,
    /// Permits facts that the policy doesn't use.
    #[serde(default)]
    any_fact: bool,
    /// Instead of both: a counter of Envoy's trees.
    #[serde(borrow)]
    domain: Option<Cow<'b, str>>,
    #[serde(borrow)]
    descriptor: Option<Vec<DescriptorEntry<'b>>>,
    /// Confirms that the target is everything.
    #[serde(default)]
    all: bool,
    #[serde(borrow, rename = "for")]
    duration: Option<Cow<'b, str>>,
    #[serde(borrow, rename = "why")]
    reason: Option<Cow<'b, str>>,
    /// One rate, or a list of rates.
    #[serde(borrow)]
    rate: Option<Rates<'b>>,
    quota: Option<u64>,
    concurrency: Option<u32>,
    /// Also resets quotas.
    #[serde(default)]
    quotas: bool,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Rates<'b> {
    One(#[serde(borrow)] Cow<'b, str>),
    Several(#[serde(borrow)] Vec<Cow<'b, str>>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DescriptorEntry<'b> {
    #[serde(borrow)]
    key: Cow<'b, str>,
    #[serde(borrow, default)]
    value: Cow<'b, str>,
}

/// The fields that a request may have in addition to its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum RequestKind {
    /// None.
    Target,
    /// `quotas`.
    Reset,
    /// `for` and `why`.
    Block,
    /// These, and `all`.
    Bypass,
    /// These, and limits.
    Override,
}

impl<'b> AdminRequest<'b> {
    /// Parses a query: `rule=per-user&user=ada`.
    pub(super) fn from_query(query: &'b str) -> Result<Self, HttpError> {
        let mut asked = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (percent_decode(name)?, percent_decode(value)?);
            if name == "rule" {
                asked.rule = Some(value);
            } else if name == "key" {
                asked.key = Some(value);
            } else {
                asked.facts.0.push((name, value));
            }
        }
        Ok(asked)
    }

    /// Rejects fields that this request would ignore.
    pub(super) fn check(&self, takes: RequestKind, most: usize) -> Result<(), HttpError> {
        let is_order = !matches!(takes, RequestKind::Target | RequestKind::Reset);
        let is_override = takes == RequestKind::Override;
        let not_here = [
            ("for", self.duration.is_some() && !is_order),
            ("why", self.reason.is_some() && !is_order),
            ("any_fact", self.any_fact && !is_order),
            ("quotas", self.quotas && takes != RequestKind::Reset),
            ("all", self.all && takes != RequestKind::Bypass),
            ("rate", self.rate.is_some() && !is_override),
            ("quota", self.quota.is_some() && !is_override),
            ("concurrency", self.concurrency.is_some() && !is_override),
        ];
        if let Some((field, _)) = not_here.into_iter().find(|(_, is_there)| *is_there) {
            return Err(bad_request(format!("{field}: not here")));
        }
        self.facts.check(most).map_err(bad_request)?;
        let has_facts = !self.facts.0.is_empty();
        let is_of_facts = self.domain.is_none() && self.descriptor.is_none();
        if self.key.is_some() && (has_facts || !is_of_facts) {
            return Err(bad_request("key: it stands in place of facts"));
        }
        let is_of_facts = is_of_facts && self.key.is_none();
        let names_nobody = self.rule.is_none() && !has_facts && is_of_facts;
        match takes {
            RequestKind::Bypass if names_nobody != self.all => Err(bad_request(
                "say whom it is for by rule, facts or both; or all: true, for all limits",
            )),
            RequestKind::Bypass => Ok(()),
            _ if names_nobody => Err(bad_request("say whom it is for, by rule, facts or both")),
            _ => Ok(()),
        }
    }

    /// The target.
    pub(super) fn target(&self) -> Result<Target, HttpError> {
        if let Some(key) = &self.key {
            let target = Target::from_text(self.rule.as_deref(), key);
            return target.map_err(|error| bad_request(format!("key: {error}")));
        }
        let facts = self.facts.0.iter();
        let facts = facts.map(|(name, value)| (&**name, &**value));
        let has_facts = !self.facts.0.is_empty();
        match (&self.domain, &self.descriptor, &self.rule) {
            (None, None, rule) if has_facts => Ok(Target::parse_facts(rule.as_deref(), facts)),
            (None, None, None) => Ok(Target::all_requests()),
            (None, None, Some(rule)) => Ok(Target::rule(&**rule)),
            (Some(domain), Some(entries), None) if !has_facts => {
                let entries = entries.iter().map(|entry| (&*entry.key, &*entry.value));
                Ok(Target::descriptor(&**domain, entries))
            }
            (Some(_), Some(_), _) => Err(bad_request(
                "descriptor: it names a limit by itself, without rule and facts",
            )),
            (Some(_), None, _) => Err(bad_request("domain: it goes with descriptor")),
            (None, Some(_), _) => Err(bad_request("descriptor: it goes with domain")),
        }
    }

    /// The duration.
    pub(super) fn lasts(&self) -> Result<Duration, HttpError> {
        let Some(text) = &self.duration else {
            return Ok(DEFAULT_DURATION);
        };
        let starts = text.starts_with(|first: char| first.is_ascii_digit());
        // Parsed as a rate's period, so that the units are the same.
        let rate: Option<Rate> = format!("1 per {text}").parse().ok();
        let lasts = rate.filter(|_| starts && !text.contains(' '));
        let lasts = lasts.and_then(|rate| rate.period());
        match lasts.filter(|lasts| *lasts <= MAX_OVERRIDE_DURATION) {
            Some(lasts) => Ok(lasts),
            None => Err(bad_request(format!(
                "for: {text:?} is no length of time that an order may last: write a whole number and a unit, as 90s, \
                 10m, 2h or 7d, up to 30d"
            ))),
        }
    }

    /// The operator's reason.
    pub(super) fn why(&self) -> Result<Option<&str>, HttpError> {
        match self.reason.as_deref() {
            Some(why) if why.len() > MAX_REASON_BYTES => Err(bad_request(format!(
                "why: it may have {MAX_REASON_BYTES} bytes at the most"
            ))),
            why => Ok(why.filter(|why| !why.is_empty())),
        }
    }

    /// The action of the override.
    pub(super) fn act(&self, takes: RequestKind) -> Result<OverrideAction, HttpError> {
        Ok(match takes {
            RequestKind::Bypass => OverrideAction::Bypass,
            RequestKind::Override => OverrideAction::Limit(self.replacement()?),
            _ => OverrideAction::Block,
        })
    }

    /// Which facts an override may name.
    pub(super) const fn order_facts(&self) -> OverrideFacts {
        if self.any_fact {
            OverrideFacts::Any
        } else {
            OverrideFacts::Known
        }
    }

    /// The scope of a reset.
    pub(super) const fn reset_scope(&self) -> ResetScope {
        if self.quotas {
            ResetScope::RatesAndQuotas
        } else {
            ResetScope::Rates
        }
    }

    /// The replacement limits.
    fn replacement(&self) -> Result<ReplacementLimits, HttpError> {
        let rates = match &self.rate {
            None => &[],
            Some(Rates::One(rate)) => std::slice::from_ref(rate),
            Some(Rates::Several(rates)) => rates.as_slice(),
        };
        let read = |text: &Cow<'_, str>| {
            text.parse::<Rate>().map_err(|error| {
                // The further lines point at the error's column, which makes no sense in JSON.
                let why = error.to_string();
                let first = why.lines().next().unwrap_or_default();
                bad_request(format!("rate: {first}"))
            })
        };
        Ok(ReplacementLimits {
            rates: rates.iter().map(read).collect::<Result<_, _>>()?,
            quota: self.quota,
            concurrency: self.concurrency,
        })
    }
}
