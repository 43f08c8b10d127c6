//! Rules as YAML of our own form.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{Converted, Rule, Unsaid};
use crate::native::fields::ALGORITHMS;
use crate::policy::{Counting, KeyPart, Mode, OnStoreFailure, Pattern};
use crate::render::is_hidden;

const HEAD: &str = "\
# Converted from the form of envoyproxy/ratelimit. The facts are named like its keys, and those of a
# request stand for all its descriptors: a limit applies where all of its keys are known.
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
    line(out, &format!("  match: {{{}}}", conditions(rule)));
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
    let algorithm = ALGORITHMS
        .iter()
        .find(|(_, known)| *known == rule.algorithm);
    if let Some((name, _)) = algorithm.filter(|_| !limits.rates.is_empty()) {
        line(out, &format!("  algorithm: {name}"));
    }
    // Nothing is counted of what is unlimited.
    if rule.counting != Counting::default() && !limits.unlimited {
        line(out, &format!("  counting: {}", rule.counting.name()));
    }
    let failure = rule.on_store_failure;
    // One that asks no store has nothing to say of it.
    let asks = rule.counting != Counting::Local && !limits.unlimited;
    if failure != OnStoreFailure::default_for(limits) && asks {
        line(out, &format!("  on_store_failure: {}", failure.name()));
    }
    if rule.mode == Mode::Shadow {
        line(out, "  mode: shadow");
    }
    if !rule.replaces.is_empty() {
        let names: Vec<_> = rule.replaces.iter().map(|name| quoted(name)).collect();
        line(out, &format!("  replaces: [{}]", names.join(", ")));
    }
}

fn conditions(rule: &Rule) -> String {
    let all = rule.matches.conditions.iter();
    let all = all.map(|(fact, pattern)| format!("{}: {}", plain(fact), condition(fact, pattern)));
    all.collect::<Vec<_>>().join(", ")
}

/// In the shortest form: text alone, a list of them, or `{kind: …}`.
fn condition(fact: &str, pattern: &Pattern) -> String {
    match pattern {
        // Else it would be a glob, or for an address a network.
        Pattern::Exact(text) if !text.contains('*') && fact != "ip" => quoted(text),
        Pattern::OneOf(all) => {
            let all: Vec<_> = all.iter().map(|one| condition(fact, one)).collect();
            format!("[{}]", all.join(", "))
        }
        Pattern::Exact(text) => format!("{{exact: {}}}", quoted(text)),
        Pattern::Glob(text) => format!("{{glob: {}}}", quoted(text)),
        Pattern::Prefix(text) => format!("{{prefix: {}}}", quoted(text)),
        Pattern::Regex(text) => format!("{{regex: {}}}", quoted(text)),
        Pattern::Cidr(text) => format!("{{cidr: {}}}", quoted(text)),
        Pattern::Present => "{present: true}".to_owned(),
        Pattern::Absent => "{present: false}".to_owned(),
        Pattern::Not(inner) => format!("{{not: {}}}", condition(fact, inner)),
    }
}

fn key_part(part: &KeyPart) -> String {
    match part {
        KeyPart::Fact(fact) => plain(fact),
        KeyPart::Network { fact, bits } => quoted(&format!("{fact}/{bits}")),
    }
}

/// A name as it is if YAML takes it for one, else in quotes.
fn plain(name: &str) -> String {
    let is_word = name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
    let means_something = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
        .contains(&name.to_ascii_lowercase().as_str());
    if is_word && !means_something {
        name.to_owned()
    } else {
        quoted(name)
    }
}

/// In double quotes, on one line.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if is_hidden(c) => {
                // Writing to a string can't fail.
                let _ = write!(out, "\\U{:08x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}
