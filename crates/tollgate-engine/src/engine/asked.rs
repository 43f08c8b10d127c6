//! Which facts a policy asks for, so that whoever fills them in needn't look for others.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use arc_swap::Guard;

use super::Engine;
use super::rules::Rules;
use crate::backend::Backend;

/// The names of the facts that the policy in force asks for, each once: see [`Engine::facts_asked`].
///
/// ```
/// use tollgate_engine::FactsAsked;
///
/// fn reads_addresses(asked: &FactsAsked) -> bool {
///     asked.iter().any(|name| &**name == "ip")
/// }
/// ```
pub struct FactsAsked(Guard<Arc<Rules>>);

impl<B: Backend> Engine<B> {
    /// Whether the policy in force has rules, lists or tiers, which decide by facts.
    pub fn decides_by_facts(&self) -> bool {
        let rules = self.rules.load();
        rules.block + rules.exempt + rules.applied.len() > 0
    }

    /// Whether the policy in force has trees, which decide by descriptors.
    pub fn decides_by_descriptors(&self) -> bool {
        !self.rules.load().policy.domains.is_empty()
    }

    /// Whether any limit of the policy may be for requests of descriptors of this domain. Others pass.
    ///
    /// ```
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Policy};
    /// let file = "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1}}]";
    /// let engine = Engine::new(Policy::from_text(file, Format::Yaml)?.policy, Memory::new())?;
    /// assert!(engine.knows_domain("edge") && !engine.knows_domain("egde"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn knows_domain(&self, domain: &str) -> bool {
        let rules = self.rules.load();
        rules.domains.has(domain) || rules.policy.domains.contains_key(domain)
    }

    /// The facts that a rule, a tier or a list of the policy in force asks for. No other makes a difference to a
    /// request by facts.
    ///
    /// ```
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Policy};
    /// let text = "limits: [{name: logins, match: {path: /login}, key: [ip, header.x-app], rate: 5/m}]";
    /// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, Memory::new())?;
    /// let mut asked: Vec<_> = engine.facts_asked().iter().map(|name| name.to_string()).collect();
    /// asked.sort();
    /// assert_eq!(asked, ["header.x-app", "ip", "path"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn facts_asked(&self) -> FactsAsked {
        FactsAsked(self.rules.load())
    }
}

impl FactsAsked {
    /// The same, to be kept for as long as a request may wait: those that are only looked at borrow a place of their thread,
    /// of which there are few.
    #[must_use]
    pub fn kept(self) -> Self {
        Self(Guard::from_inner(Guard::into_inner(self.0)))
    }

    /// Whether the fact of this number is only compared, by `match`, `block` and `exempt`. The value of any other is used: it is a
    /// part of a key, a cost, a tier or a class. So a request that has several values of it has to be denied, or asked about with
    /// each of them ([`Facts::also`](crate::Facts::also)).
    ///
    /// ```
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Policy};
    /// let text = "limits: [{name: a, match: {header.x-app: web}, key: header.x-api-key, rate: 5/m}]";
    /// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, Memory::new())?;
    /// let asked = engine.facts_asked();
    /// let compared: Vec<_> = (0..asked.len()).filter(|number| asked.is_only_compared(*number)).collect();
    /// assert_eq!((compared.len(), &*asked[compared[0]]), (1, "header.x-app"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_only_compared(&self, number: usize) -> bool {
        number >= self.0.values
    }

    /// Whether these rules ask for nothing else.
    pub(super) fn is_all_that(&self, rules: &Arc<Rules>) -> bool {
        let names = rules.matcher.slots().names();
        Arc::ptr_eq(&self.0, rules) || names.iter().all(|name| self.contains(name))
    }
}

impl Deref for FactsAsked {
    type Target = [Box<str>];

    #[inline]
    fn deref(&self) -> &[Box<str>] {
        self.0.matcher.slots().names()
    }
}

impl fmt::Debug for FactsAsked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
