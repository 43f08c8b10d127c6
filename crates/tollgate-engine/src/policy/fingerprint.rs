//! A number that tells policies apart, in every process alike.

use super::{DescriptorRule, Match, Policy};
use crate::document::Span;

impl Policy {
    /// A hash of what the policy says, wherever that stands in its files: processes of one version that have the same
    /// policy have the same one. Metadata of descriptors doesn't count.
    ///
    /// ```
    /// use tollgate_engine::Policy;
    /// use tollgate_engine::document::Format;
    ///
    /// let read = |text: &str| Policy::from_text(text, Format::Yaml).map(|read| read.policy.fingerprint());
    /// let five = read("limits: [{name: all, rate: 5/s}]")?;
    /// assert_eq!(five, read("# As agreed.\nlimits:\n- name: all\n  rate: 5/s")?);
    /// assert_ne!(five, read("limits: [{name: all, rate: 6/s}]")?);
    /// # Ok::<(), tollgate_engine::Rejected>(())
    /// ```
    pub fn fingerprint(&self) -> u64 {
        let mut policy = self.clone();
        for rule in &mut policy.rules {
            (rule.span, rule.matches.span) = (Span::default(), Span::default());
        }
        for tier in policy.tiers.values_mut() {
            tier.span = Span::default();
        }
        let lists = [&mut policy.exempt, &mut policy.block];
        for Match { span, .. } in lists.into_iter().flatten() {
            *span = Span::default();
        }
        for domain in policy.domains.values_mut() {
            domain.descriptors.iter_mut().for_each(forget_places);
        }
        fnv(format!("{policy:?}").as_bytes())
    }
}

/// Where a descriptor and all below it stand makes no difference.
fn forget_places(rule: &mut DescriptorRule) {
    rule.span = Span::default();
    // Its values know where they stand, and limit nothing.
    rule.metadata = None;
    if let Some(limit) = &mut rule.limit {
        limit.span = Span::default();
    }
    rule.descriptors.iter_mut().for_each(forget_places);
}

/// FNV-1a, which is the same on every machine.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
