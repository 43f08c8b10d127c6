//! Facts of a request, as arguments.

use std::str::FromStr;

use tollgate_engine::Facts;

/// One fact, as `name=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    name: String,
    value: String,
}

impl FromStr for Fact {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok(Self {
                name: name.to_owned(),
                value: value.to_owned(),
            }),
            _ => Err(format!("{text:?} is no fact; write it as name=value")),
        }
    }
}

/// Facts as the engine takes them.
pub(crate) fn facts(facts: &[Fact]) -> Facts<'_> {
    let pairs = facts.iter();
    pairs
        .map(|fact| (fact.name.as_str(), fact.value.as_str()))
        .collect()
}
