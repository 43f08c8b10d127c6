//! What requests of HTTP carry: JSON, of which text is borrowed wherever it can be.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use smallvec::SmallVec;
use tollgate_engine::Facts;
use tollgate_engine::facts::{fact_name, text_of_bytes};

use super::descriptor_json::DescriptorJson;

/// A request to decide about.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CheckRequest<'b> {
    /// What is known of it.
    #[serde(borrow, default)]
    pub(crate) facts: FactPairs<'b>,
    /// What it costs, unless a rule finds that in a fact.
    pub(crate) cost: Option<u64>,
    /// In place of facts: a domain and what Envoy would tell of the request there.
    #[serde(borrow)]
    pub(crate) domain: Option<Cow<'b, str>>,
    #[serde(borrow)]
    pub(crate) descriptors: Option<Vec<DescriptorJson<'b>>>,
}

impl CheckRequest<'_> {
    /// What is known of the request, in the engine's words; or what is wrong with it where at most so many facts are taken.
    pub(crate) fn checked_facts(&self, most: usize) -> Result<Facts<'_>, String> {
        match (&self.domain, &self.descriptors) {
            (_, Some(_)) => Err("descriptors: not here, send facts".to_owned()),
            (Some(_), None) => Err("domain: it goes with descriptors".to_owned()),
            (None, None) => self.facts.check(most).map(|()| self.facts()),
        }
    }

    /// The same without a look at them.
    pub(crate) fn facts(&self) -> Facts<'_> {
        let facts = self.facts.0.iter();
        let facts = facts.map(|(name, value)| (&**name, &**value)).collect();
        match self.cost {
            Some(cost) => Facts::with_cost(facts, cost),
            None => facts,
        }
    }
}

/// Names and values, in their order.
#[derive(Debug, Default)]
pub(crate) struct FactPairs<'b>(pub(crate) SmallVec<[(Cow<'b, str>, Cow<'b, str>); 8]>);

impl FactPairs<'_> {
    /// What is wrong if there are more than so many, or a fact has two values: none of them could be left out.
    pub(crate) fn check(&self, most: usize) -> Result<(), String> {
        let found = self.0.len();
        // Each is compared with those before it.
        if found > most {
            return Err(format!(
                "facts: {found} of them, more than the {most} that are taken"
            ));
        }
        let differs = |(place, (name, value)): (usize, &(Cow<'_, str>, Cow<'_, str>))| {
            let mut before = self.0[..place].iter();
            before.any(|(other, its)| other == name && its != value)
        };
        match self.0.iter().enumerate().find(|one| differs(*one)) {
            Some((_, (name, _))) => Err(format!("facts: {name:?} has two values: send one")),
            None => Ok(()),
        }
    }
}

/// Text, or a number or a word that is taken as text.
struct FactText<'b>(Cow<'b, str>);

impl<'de: 'b, 'b> Deserialize<'de> for FactPairs<'b> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reading<'b>(PhantomData<&'b ()>);

        impl<'de: 'b, 'b> Visitor<'de> for Reading<'b> {
            type Value = FactPairs<'b>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of facts, as {\"user\": \"42\"}")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FactPairs<'b>, A::Error> {
                let mut pairs = FactPairs::default();
                while let Some(FactText(name)) = map.next_key()? {
                    let FactText(value) = map.next_value()?;
                    pairs.0.push((normalize_fact_name(name), value));
                }
                Ok(pairs)
            }
        }
        from.deserialize_map(Reading(PhantomData))
    }
}

/// Text as a fact has it.
pub(super) fn fact_text(text: Cow<'_, str>) -> Cow<'_, str> {
    match text_of_bytes(text.as_bytes()) {
        Cow::Owned(other) => Cow::Owned(other),
        Cow::Borrowed(_) => text,
    }
}

/// The name of a fact as policies know it.
pub(super) fn normalize_fact_name(name: Cow<'_, str>) -> Cow<'_, str> {
    match fact_name(&name) {
        Cow::Owned(other) => Cow::Owned(other),
        Cow::Borrowed(_) => name,
    }
}

impl<'de: 'b, 'b> Deserialize<'de> for FactText<'b> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reading;

        impl<'de> Visitor<'de> for Reading {
            type Value = FactText<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text, a whole number, or true or false")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<FactText<'de>, E> {
                Ok(FactText(fact_text(Cow::Borrowed(text))))
            }

            fn visit_str<E>(self, text: &str) -> Result<FactText<'de>, E> {
                Ok(FactText(fact_text(Cow::Owned(text.to_owned()))))
            }

            fn visit_u64<E>(self, number: u64) -> Result<FactText<'de>, E> {
                Ok(FactText(Cow::Owned(number.to_string())))
            }

            fn visit_i64<E>(self, number: i64) -> Result<FactText<'de>, E> {
                Ok(FactText(Cow::Owned(number.to_string())))
            }

            fn visit_bool<E>(self, value: bool) -> Result<FactText<'de>, E> {
                Ok(FactText(Cow::Borrowed(if value {
                    "true"
                } else {
                    "false"
                })))
            }
        }
        from.deserialize_any(Reading)
    }
}

/// Reads a body. What is wrong with it is told with the field that it is about.
pub(crate) fn parse_body<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, String> {
    // All of it, also where a reader would pass over it.
    let text = std::str::from_utf8(body).map_err(|_| "the body isn't UTF-8 text".to_owned())?;
    if let Ok(read) = serde_json::from_str(text) {
        return Ok(read);
    }
    // Once more, to learn where: nobody pays for that whose bodies are right.
    let mut json = serde_json::Deserializer::from_str(text);
    let field = match serde_path_to_error::deserialize::<_, T>(&mut json) {
        Ok(read) => match json.end() {
            Ok(()) => return Ok(read),
            Err(error) => return Err(describe_json_error(&error.to_string())),
        },
        Err(error) => error,
    };
    let path = field.path().to_string();
    let why = describe_json_error(&field.inner().to_string());
    match path.as_str() {
        // The whole, or a part that has no name yet.
        "." | "?" => Err(why),
        _ => Err(format!("{path}: {why}")),
    }
}

/// What was expected, in words of JSON where it is told in those of this program.
fn describe_json_error(why: &str) -> String {
    let Some((found, wanted)) = why.split_once(", expected ") else {
        return why.to_owned();
    };
    let (kind, rest) = match wanted.split_once(" at line ") {
        Some((kind, place)) => (kind, format!(" at line {place}")),
        None => (wanted, String::new()),
    };
    let kind = match kind {
        "u64" => "a whole number that isn't negative",
        "u32" => "a whole number from 0 to 4294967295",
        kind if kind.starts_with("struct ") => "an object",
        kind => kind,
    };
    format!("{found}, expected {kind}{rest}")
}
