//! envoyproxy/ratelimit's matching, written to be obviously right. Tests compare `DescriptorIndex` with it.

use tollgate_engine::envoy::DescriptorDomains;
use tollgate_engine::policy::DescriptorRule;

/// The rules that the entries lead through, from the outermost, if the last of them has a limit.
///
/// At each level: the rule for just this value, else the first wildcard in the order of the file, else
/// the rule for the key alone. What was chosen stays chosen, even if nothing below it fits, and no rule
/// stands in for those below it.
pub(crate) fn find<'p>(
    domains: &'p DescriptorDomains,
    domain: &str,
    entries: &[(&str, &str)],
) -> Option<Vec<&'p DescriptorRule>> {
    let mut level = &domains.get(domain)?.descriptors;
    let mut path = Vec::new();
    for (key, value) in entries {
        let rule = choose(level, key, value)?;
        path.push(rule);
        level = &rule.descriptors;
    }
    path.last()?.limit.is_some().then_some(path)
}

/// The rule of one level that is for this entry.
fn choose<'p>(level: &'p [DescriptorRule], key: &str, value: &str) -> Option<&'p DescriptorRule> {
    let mut resolve_key = level.iter().filter(|rule| rule.key == key);
    let exact = resolve_key
        .clone()
        .find(|rule| rule.value.as_deref() == Some(value));
    let wild = resolve_key.clone().find(|rule| {
        let pattern = rule.value.as_deref();
        pattern.is_some_and(|pattern| pattern.contains('*') && fits(pattern, value))
    });
    exact
        .or(wild)
        .or_else(|| resolve_key.find(|rule| rule.value.is_none()))
}

/// Whether a value matches a pattern, in which each `*` stands for any text.
pub(crate) fn fits(pattern: &str, value: &str) -> bool {
    bytes_fit(pattern.as_bytes(), value.as_bytes())
}

fn bytes_fit(pattern: &[u8], value: &[u8]) -> bool {
    match pattern.split_first() {
        None => value.is_empty(),
        Some((b'*', rest)) => (0..=value.len()).any(|skip| bytes_fit(rest, &value[skip..])),
        Some((byte, rest)) => value
            .split_first()
            .is_some_and(|(first, tail)| first == byte && bytes_fit(rest, tail)),
    }
}
