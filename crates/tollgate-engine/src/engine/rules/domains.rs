//! Which domains of requests of descriptors a policy knows: one that it doesn't know passes, which people should hear of.

use std::collections::BTreeSet;

use crate::facts::DOMAIN;
use crate::policy::{Mode, Pattern, Policy, Rule};

/// The domains that rules are for.
#[derive(Debug, Default)]
pub(crate) struct Domains {
    /// A rule is for domains that aren't named one by one.
    any: bool,
    named: BTreeSet<Box<str>>,
}

impl Domains {
    /// Those of a policy's rules.
    pub(crate) fn of(policy: &Policy) -> Self {
        let is_on = |rule: &&Rule| rule.mode != Mode::Off;
        let has_none = policy.rules.is_empty() && policy.domains.is_empty();
        let mut domains = Self {
            any: has_none || !policy.tiers.is_empty(),
            named: BTreeSet::new(),
        };
        for rule in policy.rules.iter().filter(is_on) {
            let mut conditions = rule.matches.conditions.iter();
            let own = conditions.find(|(fact, _)| fact == DOMAIN);
            match own {
                Some((_, pattern)) => domains.add(pattern),
                None => domains.any = true,
            }
        }
        domains
    }

    fn add(&mut self, pattern: &Pattern) {
        match pattern {
            Pattern::Exact(domain) => drop(self.named.insert(domain.as_str().into())),
            Pattern::OneOf(patterns) => patterns.iter().for_each(|one| self.add(one)),
            Pattern::Absent => {}
            _ => self.any = true,
        }
    }

    /// Whether a rule may be for requests of this domain.
    pub(crate) fn has(&self, domain: &str) -> bool {
        self.any || self.named.contains(domain)
    }
}
