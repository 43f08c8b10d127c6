//! Splits a policy into comparable parts: each has a kind, a name, and fields whose values are texts.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use tollgate::Algorithm;
use tollgate_adaptive::shed::Criticality;

use super::PartKind;
use crate::envoy::path_name;
use crate::native::yaml_text::{
    algorithm_word, conditions_text, flow_yaml, keys_text, quoted, quoted_if_needed,
};
use crate::policy::{
    Adaptive, Charging, Cost, Counting, DescriptorRule, FailureModes, Limits, MatchConditions,
    Mode, OnStoreFailure, OverLimitAction, Policy, Rule, Shedding, Tier,
};

/// The fields of a part. Fields with default values are left out.
pub(super) type FieldTexts = Vec<(&'static str, String)>;

/// All parts, by kind and name.
pub(super) type PartsByName = BTreeMap<(PartKind, String), FieldTexts>;

/// Most rules that are listed if the order of rules changed. The others are counted.
const MAX_LISTED_NAMES: usize = 20;

/// The parts of a policy that is compared with another.
pub(super) fn policy_parts(policy: &Policy, other: &Policy) -> PartsByName {
    let mut parts = PartsByName::new();
    let mut add = |kind, name: &str, part| drop(parts.insert((kind, name.to_owned()), part));
    add(PartKind::Policy, "", policy_fields(policy, other));
    for matches in &policy.block {
        add(
            PartKind::Block,
            &conditions_text(&sorted_conditions(matches)),
            FieldTexts::new(),
        );
    }
    for matches in &policy.exempt {
        add(
            PartKind::Exempt,
            &conditions_text(&sorted_conditions(matches)),
            FieldTexts::new(),
        );
    }
    for rule in &policy.rules {
        add(PartKind::Rule, &rule.name, rule_fields(rule));
    }
    for (name, tier) in &policy.tiers {
        add(PartKind::Tier, name, tier_fields(tier));
    }
    for (tenant, tier) in &policy.tenants {
        add(PartKind::Tenant, tenant, vec![("tier", tier.clone())]);
    }
    for (name, domain) in &policy.domains {
        let charging = match domain.charging {
            Charging::AllOrNone => "all-or-none",
            Charging::Each => "each",
        };
        let mut part = vec![("charging", charging.to_owned())];
        part.extend(wildcard_order(&domain.descriptors));
        add(PartKind::Domain, name, part);
        add_descriptors(name, &mut Vec::new(), &domain.descriptors, &mut add);
    }
    parts
}

fn policy_fields(policy: &Policy, other: &Policy) -> FieldTexts {
    let mut part = vec![
        ("mode", policy.mode.name().to_owned()),
        ("near_limit", format!("{}%", policy.near_limit_percent)),
    ];
    let texts = [
        ("tier_fact", policy.tier_fact.clone()),
        ("default_tier", policy.default_tier.clone()),
        ("facts", bracketed_names(policy.facts.iter())),
    ];
    part.extend(
        texts
            .into_iter()
            .filter_map(|(name, text)| Some((name, text?))),
    );
    // Only rules of both policies: an added or removed rule is a change of its own.
    let known: HashSet<&str> = other.rules.iter().map(|rule| rule.name.as_str()).collect();
    let common = policy.rules.iter().map(|rule| &rule.name);
    let common = common.filter(|name| known.contains(name.as_str()));
    let common: Vec<_> = common.collect();
    let place: HashSet<&str> = common.iter().map(|name| name.as_str()).collect();
    let theirs = other.rules.iter().map(|rule| &rule.name);
    let theirs = theirs.filter(|name| place.contains(name.as_str()));
    // The first rule whose position changed, and all rules after it.
    let pairs = common.iter().zip(theirs);
    let same = pairs.take_while(|(own, their)| *own == their).count();
    let moved = common.get(same..).unwrap_or_default();
    let first = moved.iter().copied().take(MAX_LISTED_NAMES);
    let more = match moved.len().saturating_sub(MAX_LISTED_NAMES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    part.extend(bracketed_names(first).map(|text| ("order", text + &more)));
    part
}

fn rule_fields(rule: &Rule) -> FieldTexts {
    let mut part = FieldTexts::new();
    if !rule.matches.conditions.is_empty() {
        part.push((
            "match",
            format!("{{{}}}", conditions_text(&sorted_conditions(&rule.matches))),
        ));
    }
    part.extend(keys_text(rule).map(|keys| ("key", keys)));
    // An explicit choice suppresses a warning, so it differs from the same choice by default.
    let missing = rule.on_missing_key;
    part.extend(missing.map(|choice| ("on_missing_key", choice.name().to_owned())));
    add_limits(&mut part, &rule.limits, rule.algorithm);
    add_adaptive_and_shed(&mut part, rule);
    add_cost_and_over(&mut part, &rule.cost, rule.over);
    if rule.mode != Mode::default() || rule.enforced_percent != 100 {
        let percent = match rule.enforced_percent {
            100 => String::new(),
            percent => format!(" for {percent}% of its keys"),
        };
        part.push(("mode", format!("{}{percent}", rule.mode.name())));
    }
    part.extend(
        rule.warm_up
            .map(|length| ("warm_up", duration_text(length))),
    );
    add_counting_and_failure(&mut part, rule.counting, rule.on_store_failure);
    part.extend(
        rule.hash_tag
            .iter()
            .map(|tag| ("hash_tag", quoted_if_needed(tag))),
    );
    part.extend(bracketed_names(rule.replaces.iter()).map(|names| ("replaces", names)));
    part.extend(
        rule.shared
            .iter()
            .map(|shared| ("shared", quoted_if_needed(shared))),
    );
    part
}

fn add_adaptive_and_shed(part: &mut FieldTexts, rule: &Rule) {
    if let Some(Adaptive {
        algorithm: law,
        min,
        max,
    }) = rule.adaptive
    {
        let text = format!("{{adaptive: {law}, min: {min}, max: {max}}}");
        // A valid policy has only one of the two.
        match part.iter_mut().find(|(name, _)| *name == "concurrency") {
            Some((_, slots)) => *slots += &format!(" and {text}"),
            None => part.push(("concurrency", text)),
        }
    }
    part.extend(rule.shed.as_ref().map(|Shedding { by, shares }| {
        let [sheddable, default] =
            [Criticality::Sheddable, Criticality::Default].map(|class| shares.percent(class));
        let by = quoted_if_needed(by);
        let text = format!("{{by: {by}, sheddable: {sheddable}%, default: {default}%}}");
        ("shed", text)
    }));
}

fn tier_fields(tier: &Tier) -> FieldTexts {
    let mut part = FieldTexts::new();
    add_limits(&mut part, &tier.limits, tier.algorithm);
    add_cost_and_over(&mut part, &tier.cost, tier.over);
    add_counting_and_failure(&mut part, tier.counting, tier.on_store_failure);
    part
}

fn add_limits(part: &mut FieldTexts, limits: &Limits, own: Algorithm) {
    let rates: Vec<_> = limits.rates.iter().map(ToString::to_string).collect();
    match rates.as_slice() {
        [] => {}
        [rate] => part.push(("rate", rate.clone())),
        rates => part.push(("rate", format!("[{}]", rates.join(", ")))),
    }
    let quota = limits.quota.as_ref();
    part.extend(quota.map(|quota| ("quota", quota.to_string())));
    let slots = limits.concurrency;
    part.extend(slots.map(|slots| ("concurrency", slots.to_string())));
    if limits.unlimited {
        part.push(("unlimited", "true".to_owned()));
    }
    if own != Algorithm::default() {
        let name = algorithm_word(own).map_or_else(|| format!("{own:?}"), str::to_owned);
        part.push(("algorithm", name));
    }
}

fn add_cost_and_over(part: &mut FieldTexts, cost: &Cost, over: OverLimitAction) {
    if *cost != Cost::default() {
        let mut text = match &cost.fact {
            Some(fact) => format!(
                "{{fact: {}, default: {}",
                quoted_if_needed(fact),
                cost.default
            ),
            None => format!("{{default: {}", cost.default),
        };
        if let Some(settle) = cost.settle {
            let (within, unsettled) = (duration_text(settle.within), settle.unsettled.name());
            text += &format!(", settle_within: {within}, unsettled: {unsettled}");
        }
        part.push(("cost", text + "}"));
    }
    if let OverLimitAction::Wait(longest) = over {
        part.push(("over", format!("wait {}", duration_text(longest))));
    }
}

fn add_counting_and_failure(part: &mut FieldTexts, counting: Counting, failure: FailureModes) {
    if counting != Counting::default() {
        part.push(("counting", counting.name().to_owned()));
    }
    if failure == FailureModes::default() {
        return;
    }
    let FailureModes {
        rate,
        quota,
        concurrency,
    } = failure;
    // Kinds that the rule has no limit of are included too, so that each difference between files is a change.
    let text = if failure == FailureModes::from(rate) {
        rate.name().to_owned()
    } else {
        let [rate, quota, concurrency] = [rate, quota, concurrency].map(OnStoreFailure::name);
        format!("{{rate: {rate}, quota: {quota}, concurrency: {concurrency}}}")
    };
    part.push(("on_store_failure", text));
}

/// Adds each node of a descriptor tree, named by its path.
fn add_descriptors<'a>(
    domain: &str,
    way: &mut Vec<(&'a str, Option<&'a str>)>,
    rules: &'a [DescriptorRule],
    add: &mut impl FnMut(PartKind, &str, FieldTexts),
) {
    for rule in rules {
        way.push((&rule.key, rule.value.as_deref()));
        let name = path_name(domain, way.iter().copied());
        add(PartKind::Descriptor, &name, descriptor_fields(rule));
        add_descriptors(domain, way, &rule.descriptors, add);
        way.pop();
    }
}

fn descriptor_fields(rule: &DescriptorRule) -> FieldTexts {
    let mut part = FieldTexts::new();
    let mut flags = vec![
        ("share_threshold", rule.share_threshold),
        ("detailed_metric", rule.detailed_metric),
        ("value_to_metric", rule.value_to_metric),
    ];
    if let Some(limit) = &rule.limit {
        part.extend(
            limit
                .name
                .iter()
                .map(|name| ("name", quoted_if_needed(name))),
        );
        add_limits(&mut part, &limit.limits, limit.algorithm);
        part.extend(limit.unit.map(|unit| ("unit", unit.name().to_owned())));
        add_counting_and_failure(&mut part, limit.counting, limit.on_store_failure);
        part.extend(bracketed_names(limit.replaces.iter()).map(|names| ("replaces", names)));
        flags.push(("shadow_mode", limit.shadow));
        flags.push(("quota_mode", limit.quota_mode));
    }
    let on = flags.into_iter().filter(|(_, is_on)| *is_on);
    part.extend(on.map(|(name, _)| (name, "true".to_owned())));
    let metadata = rule.metadata.as_ref();
    part.extend(metadata.map(|value| ("metadata", flow_yaml(value, quoted_if_needed))));
    part.extend(wildcard_order(&rule.descriptors));
    part
}

/// The order of wildcards, which matters because the first that matches is used.
fn wildcard_order(rules: &[DescriptorRule]) -> Option<(&'static str, String)> {
    let wild = rules.iter().filter_map(|rule| {
        let value = rule.value.as_ref().filter(|value| value.contains('*'))?;
        let text = format!("{}={value}", rule.key);
        // A text with a comma or a quote could be read as two.
        Some(if text.contains([',', '"']) {
            quoted(&text)
        } else {
            text
        })
    });
    let wild: Vec<_> = wild.collect();
    (wild.len() > 1).then(|| ("order", wild.join(", ")))
}

/// All names with commas between them: if some were left out, they could change unnoticed. `None` for an empty list.
fn bracketed_names<'a>(names: impl Iterator<Item = &'a String>) -> Option<String> {
    let shown: Vec<_> = names.map(|name| quoted_if_needed(name)).collect();
    (!shown.is_empty()).then(|| format!("[{}]", shown.join(", ")))
}

/// Conditions in a fixed order. Their order doesn't matter, because all of them must hold.
fn sorted_conditions(matches: &MatchConditions) -> MatchConditions {
    let mut matches = matches.clone();
    matches
        .conditions
        .sort_by(|(one, _), (other, _)| one.cmp(other));
    matches
}

fn duration_text(length: Duration) -> String {
    format!("{length:?}")
}
