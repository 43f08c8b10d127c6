//! Facts and descriptors of a request, as command-line arguments.

use std::str::FromStr;

use serde_json::{Map, Value, json};
use tollgate_engine::Facts;
use tollgate_engine::facts::{Unit, fact_name};

/// A fact, as `name=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FactArg {
    name: String,
    value: String,
}

impl FromStr for FactArg {
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

impl FactArg {
    /// The name and the value.
    pub(crate) fn pair(&self) -> (&str, &str) {
        (&self.name, &self.value)
    }
}

/// Facts as a JSON object.
///
/// # Errors
/// A fact has two values.
pub(crate) fn facts_object<'a>(
    pairs: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<Map<String, Value>, String> {
    let mut facts = Map::new();
    for (name, value) in pairs {
        let before = facts.insert(name.to_owned(), json!(value));
        if before.is_some_and(|before| before != value) {
            return Err(format!("{name:?} has two values: give it one"));
        }
    }
    Ok(facts)
}

/// Facts for the engine.
pub(crate) fn facts(facts: &[FactArg]) -> Facts<'_> {
    facts.iter().map(FactArg::pair).collect()
}

/// The entries of a descriptor, as one argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptorArg(Vec<(String, String)>);

impl FromStr for DescriptorArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let entry = |part: &EntryParts| match part.value.as_ref() {
            Some(value) if !part.key.trim().is_empty() => {
                Ok((part.key.trim().to_owned(), value.trim().to_owned()))
            }
            None if !part.key.trim().is_empty() => Err(format!(
                "{:?} has no value; write it as key=value, as key= for an empty one, or with \\, for a comma in a value",
                part.key.trim()
            )),
            _ => Err(format!(
                "{text:?} is no descriptor; write it as key=value,key2=value2"
            )),
        };
        let parts = split_entries(text);
        parts.iter().map(entry).collect::<Result<_, _>>().map(Self)
    }
}

/// An entry without its escapes.
#[derive(Debug, Default)]
struct EntryParts {
    key: String,
    value: Option<String>,
}

/// Splits entries at commas, and keys from values at the first equals sign. A backslash escapes a comma, an equals
/// sign or a backslash after it. Before any other character it is literal.
fn split_entries(text: &str) -> Vec<EntryParts> {
    let mut parts = vec![EntryParts::default()];
    let mut signs = text.chars().peekable();
    while let Some(sign) = signs.next() {
        let escaped = match sign {
            '\\' => signs.next_if(|next| matches!(next, ',' | '=' | '\\')),
            _ => None,
        };
        let last = parts.len() - 1;
        let part = &mut parts[last];
        match (sign, escaped) {
            (',', None) => parts.push(EntryParts::default()),
            ('=', None) if part.value.is_none() => part.value = Some(String::new()),
            (sign, escaped) => {
                let sign = escaped.unwrap_or(sign);
                part.value.as_mut().unwrap_or(&mut part.key).push(sign);
            }
        }
    }
    parts
}

/// A value with its commas escaped, so that the output can be used as an argument.
pub(super) fn escape_commas(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,")
}

/// A value for one descriptor, by its number from 1, or for all: `2=3` or `3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerDescriptor<T> {
    pub(super) number: Option<usize>,
    pub(super) value: T,
}

impl<T: FromStr<Err = String>> FromStr for PerDescriptor<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, value) = match text.split_once('=') {
            Some((number, value)) => {
                let number = number.parse().ok().filter(|number| *number > 0);
                let number = number.ok_or_else(|| {
                    format!("{text:?} names no descriptor; write 2={value} for the second")
                })?;
                (Some(number), value)
            }
            None => (None, text),
        };
        Ok(Self {
            number,
            value: value.parse()?,
        })
    }
}

/// The cost of a request: the hits_addend of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HitsArg(pub(super) u32);

impl FromStr for HitsArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.parse().map(Self);
        number.map_err(|_| format!("{text:?} is no whole number from 0 to {}", u32::MAX))
    }
}

/// A limit that a proxy requests in place of the configured one, as `5/minute`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestedLimit(pub(super) u32, pub(super) Unit);

impl FromStr for RequestedLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('/').and_then(|(count, unit)| {
            let unit = Unit::ALL.into_iter().find(|known| known.name() == unit)?;
            Some(Self(count.parse().ok()?, unit))
        });
        parsed.ok_or_else(|| {
            let units = Unit::ALL.map(Unit::name).join(", ");
            format!("{text:?} is no limit; write it as 5/minute, with one of {units}")
        })
    }
}

impl DescriptorArg {
    pub(crate) fn pairs(&self) -> Vec<(&str, &str)> {
        let pairs = self.0.iter();
        pairs
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comma_is_escaped_by_a_backslash() {
        let pairs = |text: &str| {
            let entries: DescriptorArg = text.parse().unwrap();
            let pairs = entries.pairs().into_iter();
            pairs
                .map(|(key, value)| format!("{key}|{value}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(pairs("a=1,b=2"), ["a|1", "b|2"]);
        assert_eq!(pairs(r"agent=x\,y,b=2"), ["agent|x,y", "b|2"]);
        assert_eq!(pairs(r"path=C:\\x,q=a=b"), [r"path|C:\x", "q|a=b"]);
        assert_eq!(pairs(r"regex=\d"), [r"regex|\d"]);
        assert_eq!(escape_commas(r"x,\y"), r"x\,\\y");
    }
}
