//! Facts and descriptors of a request, as arguments.

use std::str::FromStr;

use tollgate_engine::Facts;
use tollgate_engine::facts::fact_name;

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
                name: fact_name(name).into_owned(),
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

/// The entries of a descriptor, as an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entries(Vec<(String, String)>);

impl FromStr for Entries {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let entry = |part: &str| match part
            .split_once('=')
            .map(|(key, value)| (key.trim(), value.trim()))
        {
            Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
            None if !part.trim().is_empty() => Err(format!(
                "{:?} has no value; write it as key=value, or as key= for an empty one",
                part.trim()
            )),
            _ => Err(format!(
                "{text:?} is no descriptor; write it as key=value,key2=value2"
            )),
        };
        text.split(',')
            .map(entry)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

impl Entries {
    pub(super) fn pairs(&self) -> Vec<(&str, &str)> {
        let pairs = self.0.iter();
        pairs
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect()
    }
}
