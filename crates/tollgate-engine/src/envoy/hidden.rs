//! Which descriptor of a file keeps a request from a limit that it would meet otherwise.

use super::compiled::Wildcard;
use crate::facts::Descriptor;
use crate::policy::{DescriptorRule, Domain};

/// A descriptor that is more specific than another, is taken in its place, and leads to no limit.
///
/// ```
/// use tollgate_engine::document::Format;
/// use tollgate_engine::envoy::Hidden;
/// use tollgate_engine::facts::Descriptor;
/// use tollgate_engine::Policy;
///
/// let file = "
/// domain: edge
/// descriptors:
/// - key: path
///   rate_limit: {unit: second, requests_per_unit: 5}
/// - key: path
///   value: /login
///   descriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 1}}]
/// ";
/// let domain = &Policy::from_text(file, Format::Yaml)?.policy.domains["edge"];
/// let hidden = Hidden::of(domain, &Descriptor::new(&[("path", "/login")])).expect("no limit");
/// assert_eq!((hidden.by.as_str(), hidden.hidden.as_str()), ("path=/login", "path"));
/// assert!(Hidden::of(domain, &Descriptor::new(&[("path", "/")])).is_none());
/// # Ok::<(), tollgate_engine::Rejected>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hidden {
    /// The one that is taken, as `key=value`.
    pub by: String,
    /// The one that would lead to a limit, as `key=value` or `key`.
    pub hidden: String,
}

impl Hidden {
    /// What hides a limit from this descriptor; none if it meets one, or there is none for it in any case.
    pub fn of(domain: &Domain, descriptor: &Descriptor<'_>) -> Option<Self> {
        let mut level = domain.descriptors.as_slice();
        let mut entries = descriptor.entries;
        while let Some((first, rest)) = entries.split_first() {
            let candidates = candidates(level, *first);
            let (chosen, others) = candidates.split_first()?;
            if !leads(chosen, rest) {
                let other = others.iter().find(|other| leads(other, rest))?;
                return Some(Self {
                    by: shown(chosen),
                    hidden: shown(other),
                });
            }
            level = &chosen.descriptors;
            entries = rest;
        }
        None
    }
}

/// Those that an entry fits, the one that is taken first.
fn candidates<'d>(
    level: &'d [DescriptorRule],
    (key, value): (&str, &str),
) -> Vec<&'d DescriptorRule> {
    let mut fit: Vec<_> = level
        .iter()
        .filter(|rule| rule.key == key)
        .filter_map(|rule| {
            let rank = match rule.value.as_deref() {
                Some(own) if own == value => 0,
                Some(own) => Wildcard::new(own)
                    .filter(|own| own.fits(value))
                    .map(|_| 1)?,
                None => 2,
            };
            Some((rank, rule))
        })
        .collect();
    fit.sort_by_key(|(rank, _)| *rank);
    fit.into_iter().map(|(_, rule)| rule).collect()
}

/// Whether one of the ways on from here ends at a limit.
fn leads(rule: &DescriptorRule, rest: &[(&str, &str)]) -> bool {
    match rest.split_first() {
        None => rule.limit.is_some(),
        Some((first, rest)) => {
            let next = candidates(&rule.descriptors, *first);
            next.iter().any(|next| leads(next, rest))
        }
    }
}

fn shown(rule: &DescriptorRule) -> String {
    match &rule.value {
        Some(value) => format!("{}={value}", rule.key),
        None => rule.key.clone(),
    }
}
