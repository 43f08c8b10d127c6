//! Compiled globs and networks of overrides, to match the facts of a request.

use std::borrow::Cow;

use crate::address::{Address, Network};
use crate::facts::Facts;
use crate::matcher::glob::Glob;
use crate::overrides::{FactPattern, OverrideError};

/// The most stars in a glob, the same as in a policy.
const MAX_STARS: usize = 16;

/// Conditions on facts, all of which must hold.
#[derive(Debug)]
pub(super) struct FactConditions(Box<[(Box<str>, FactTest)]>);

/// The condition on one value.
#[derive(Debug)]
enum FactTest {
    Exact(Box<str>),
    Glob(Box<Glob>),
    /// The network, and its text: a value may also be that text itself.
    Network(Network, Box<str>),
}

impl FactConditions {
    pub(super) fn new(facts: &[(String, FactPattern)]) -> Result<Self, OverrideError> {
        let test = |(fact, pattern): &(String, FactPattern)| {
            let test = match pattern {
                FactPattern::Exact(text) => FactTest::Exact(canonical(text).into()),
                FactPattern::Glob(text) => FactTest::Glob(Box::new(compile_glob(text)?)),
                FactPattern::Network(text) => {
                    let network = Network::parse(text);
                    let network = network.ok_or_else(|| OverrideError::NotAnAddress {
                        fact: fact.clone(),
                        value: text.clone(),
                    })?;
                    FactTest::Network(network, text.as_str().into())
                }
            };
            Ok((fact.as_str().into(), test))
        };
        Ok(Self(facts.iter().map(test).collect::<Result<_, _>>()?))
    }

    /// Whether all facts are present and match.
    pub(super) fn match_facts(&self, facts: &Facts<'_>) -> bool {
        let holds = |(fact, test): &(Box<str>, FactTest)| {
            let value = facts.get(fact);
            value.is_some_and(|value| test.is_match(value))
        };
        self.0.iter().all(holds)
    }
}

impl FactTest {
    fn is_match(&self, value: &str) -> bool {
        match self {
            Self::Exact(text) => canonical(value) == **text,
            Self::Glob(glob) => glob.matches(value),
            Self::Network(network, text) => {
                let address = Address::parse(value);
                address.is_some_and(|own| network.contains(own)) || value == &**text
            }
        }
    }
}

fn compile_glob(text: &str) -> Result<Glob, OverrideError> {
    let is_short = !text.contains("***") && text.matches('*').count() <= MAX_STARS;
    let glob = is_short.then(|| Glob::new(text)).flatten();
    glob.ok_or_else(|| OverrideError::BadGlob(text.to_owned()))
}

/// The text in the form that is compared: an address has one form, however it is written.
pub(super) fn canonical(text: &str) -> Cow<'_, str> {
    // A fast path: most texts are no addresses, and have neither character.
    if !text.contains(['.', ':']) {
        return Cow::Borrowed(text);
    }
    match Address::parse(text) {
        Some(address) => Cow::Owned(address.to_string()),
        None => Cow::Borrowed(text),
    }
}
