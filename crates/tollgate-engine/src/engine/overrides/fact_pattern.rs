//! Globs and networks of orders, compiled: whether the facts of a request match.

use std::borrow::Cow;

use crate::address::{Address, Network};
use crate::facts::Facts;
use crate::matcher::glob::Glob;
use crate::overrides::{FactPattern, OverrideError};

/// As many stars as a policy's glob has at the most.
const MAX_STARS: usize = 16;

/// What the facts of a request have to match, all of them.
#[derive(Debug)]
pub(super) struct FactConditions(Box<[(Box<str>, FactTest)]>);

/// What one value has to be.
#[derive(Debug)]
enum FactTest {
    Exact(Box<str>),
    Glob(Box<Glob>),
    /// The network, and how it was written: a value may be that text itself.
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

    /// Whether all facts are there and match.
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

/// A text as it is compared: addresses have one form, however they are written.
pub(super) fn canonical(text: &str) -> Cow<'_, str> {
    // Most texts are no addresses, and have none of these.
    if !text.contains(['.', ':']) {
        return Cow::Borrowed(text);
    }
    match Address::parse(text) {
        Some(address) => Cow::Owned(address.to_string()),
        None => Cow::Borrowed(text),
    }
}
