//! Rules as YAML of our own form.

use std::collections::BTreeMap;

use super::{Converted, Rule, Unsaid};
use crate::native::text::{algorithm, conditions, key_part, quoted};
use crate::policy::{Counting, Mode};

const HEAD: &str = "\
# Converted from the form of envoyproxy/ratelimit. The facts are named like its keys. A rule is for
# descriptors of just its keys; where a request comes as facts, for all that have its keys.
";

pub(super) fn write(converted: &Converted) -> String {
    let mut out = String::from(HEAD);
    for unsaid in converted
        .unsaid
        .iter()
        .filter(|unsaid| unsaid.rule.is_none())
    {
        let Unsaid { limit, what, .. } = unsaid;
        line(
            &mut out,
            &format!("# Not converted, {}: {what}", quoted(limit)),
        );
    }
    if !converted.rules.is_empty() {
        line(&mut out, "limits:");
    }
    let mut lost: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for unsaid in &converted.unsaid {
        if let Some(rule) = &unsaid.rule {
            lost.entry(rule).or_default().push(unsaid.what);
        }
    }
    for rule in &converted.rules {
        limit(&mut out, rule);
        for what in lost.get(rule.name.as_str()).into_iter().flatten() {
            line(&mut out, &format!("  # lost: {what}"));
        }
    }
    out
}

fn limit(out: &mut String, rule: &Rule) {
    line(out, &format!("- name: {}", quoted(&rule.name)));
    line(out, &format!("  match: {{{}}}", conditions(&rule.matches)));
    if !rule.key.is_empty() {
        let parts: Vec<_> = rule.key.iter().map(key_part).collect();
        line(out, &format!("  key: [{}]", parts.join(", ")));
    }
    let limits = &rule.limits;
    match limits.rates.as_slice() {
        [] => {}
        [rate] => line(out, &format!("  rate: {rate}")),
        rates => {
            let rates: Vec<_> = rates.iter().map(ToString::to_string).collect();
            line(out, &format!("  rate: [{}]", rates.join(", ")));
        }
    }
    if let Some(quota) = &limits.quota {
        line(out, &format!("  quota: {quota}"));
    }
    if let Some(concurrency) = limits.concurrency {
        line(out, &format!("  concurrency: {concurrency}"));
    }
    if limits.unlimited {
        line(out, "  unlimited: true");
    }
    if let Some(name) = algorithm(rule.algorithm).filter(|_| !limits.rates.is_empty()) {
        line(out, &format!("  algorithm: {name}"));
    }
    // Nothing is counted of what is unlimited.
    if rule.counting != Counting::default() && !limits.unlimited {
        line(out, &format!("  counting: {}", rule.counting.name()));
    }
    // One that asks no store has nothing to say of it.
    let asks = rule.counting != Counting::Local && !limits.unlimited;
    if let Some(failure) = rule.on_store_failure.written(limits).filter(|_| asks) {
        line(out, &format!("  on_store_failure: {failure}"));
    }
    if rule.mode == Mode::Shadow {
        line(out, "  mode: shadow");
    }
    if !rule.replaces.is_empty() {
        let names: Vec<_> = rule.replaces.iter().map(|name| quoted(name)).collect();
        line(out, &format!("  replaces: [{}]", names.join(", ")));
    }
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}
